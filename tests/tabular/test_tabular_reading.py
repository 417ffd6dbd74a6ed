"""Files in, tables out; and each way a file can be wrong, by its sentence."""

import bz2
import gzip
import random
import re
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest

from mercer.tabular import read
from mercer.tabular.reading import Limits
from mercer.tabular.reading.files import read_chunks
from mercer_papers.data import CorruptData

TABLE = "a,b,c\n1,x,2020-01-05\n2,y,2020-02-01\n,x,?\n"


def written(folder, content, name="table.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


DRESSES = {
    "plain": ("t.csv", TABLE),
    "windows": ("t.csv", TABLE.replace("\n", "\r\n")),
    "byte-order mark": ("t.csv", "\ufeff" + TABLE),
    "semicolons": ("t.csv", TABLE.replace(",", ";")),
    "bars": ("t.csv", TABLE.replace(",", "|")),
    "spaces": ("t.csv", TABLE.replace(",", ", ")),
    "quotes": ("t.csv", '"a","b","c"\n1,"x","2020-01-05"\n2,"y","2020-02-01"\n\n"","x",NA'),
    "tabs": ("t.tsv", TABLE.replace(",", "\t")),
    "gzip": ("t.csv.gz", gzip.compress(TABLE.encode())),
    "capitals": ("T.CSV.GZ", gzip.compress(TABLE.encode())),
}


@pytest.mark.parametrize("dress", DRESSES)
def test_the_same_table_in_many_dresses(tmp_path, dress):
    name, content = DRESSES[dress]
    frame = read(written(tmp_path, content, name))
    expected = pd.DataFrame({"a": [1, 2, None], "b": list("xyx"), "c": ["2020-01-05", "2020-02-01", None]})
    pd.testing.assert_frame_equal(frame, expected)


def test_quotes_may_hold_the_delimiter_and_line_breaks(tmp_path):
    frame = read(written(tmp_path, 'name,n\n"Smith, J.\nand ""son""",1\n5" pipe,2\n'))
    assert frame["name"].tolist() == ['Smith, J.\nand "son"', '5" pipe']


def test_leading_zeros_are_no_numbers(tmp_path):
    path = written(tmp_path, "zip,x\n01234,1\n98765,0.5\n")
    assert read(path)["zip"].tolist() == ["01234", "98765"]
    assert read(path)["x"].tolist() == [1.0, 0.5]


def test_columns_are_left_as_written_where_asked(tmp_path):
    assert read(written(tmp_path, "a,b\n1.50,2\n3,4\n"), text=["a"])["a"].tolist() == ["1.50", "3"]


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_parts_make_the_whole(tmp_path, rows):
    frame = pd.DataFrame({"a": np.arange(20) / 7, "b": [f"w{i % 3}" for i in range(20)], "c": np.arange(20)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", a=frame["a"], b=frame["b"].to_numpy(dtype=str), c=frame["c"])
    for name in ("t.csv", "t.parquet", "t.npz"):
        parts = list(read_chunks(tmp_path / name, rows=rows))
        assert max(map(len, parts)) == min(rows, 20)
        whole = pd.concat(parts)
        assert whole.index.tolist() == list(range(20))
        pd.testing.assert_frame_equal(whole, frame, check_dtype=False)
        pd.testing.assert_frame_equal(read(tmp_path / name), frame, check_dtype=False)
        pd.testing.assert_frame_equal(read(tmp_path / name, rows=4), frame[:4], check_dtype=False)


def test_arrays_become_columns(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.arange(24).reshape(4, 2, 3), y=np.array([b"a", b"b", b"a", b"b"]))
    frame = read(tmp_path / "t.npz")
    assert frame.columns.tolist() == [f"x_{i}" for i in range(6)] + ["y"]
    assert frame["x_5"].tolist() == [5, 11, 17, 23] and frame["y"].tolist() == ["a", "b", "a", "b"]


BAD = {
    "empty": (b"", "t.csv: the table must have a header and at least one row; got an empty file."),
    "header": (b"a,b\n", "t.csv: the table must have at least one row; got a header only."),
    "long": (b"a,b\n1,2\n3,4,5\n", "t.csv: line 3 must have 2 fields, as the header has; got 3."),
    "short": (b"a,b\n1,2\n3\n", "t.csv: line 3 must have 2 fields, as the header has; got 1."),
    "every row long": (b"a,b\n1,2,3\n1,2,3\n", "t.csv: line 2 must have 2 fields, as the header has; got 3."),
    "open quote": (b'a,b\n1,"2\n3,4\n', "must have 2 fields|well formed"),
    "twice": (b"a,b,a\n1,2,3\n", "t.csv: line 1 must name each column once; got 'a' twice. Rename one of them."),
    "no header": (b"1,2\n3,4\n", "t.csv: line 1 must name the columns; got 1, 2, .... Add a header line."),
    "utf-16": (b"\xff\xfea\0,\0\0\xd8b\0\n\0", "t.csv: the text must be UTF-8; got a NUL byte in line 1."),
    "two encodings": ("a,b\n1,é\n".encode() + "2,é\n".encode("latin-1"), "got another byte in line 3. Save it"),
    "no encoding": (b"a,b\n1,\x81\n", "t.csv: the text must be UTF-8; got another byte in line 2."),
    "nul": (b"a,b\n1,\0\n", "t.csv: the text must be UTF-8; got a NUL byte in line 2."),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_text_is_refused_by_its_line(tmp_path, name):
    content, sentence = BAD[name]
    path = written(tmp_path, content, "t.csv")
    with pytest.raises(CorruptData, match=sentence if "|" in sentence else re.escape(sentence)):
        read(path)
    with pytest.raises(CorruptData):
        list(read_chunks(path, rows=1))


def test_limits_are_kept(tmp_path):
    path = written(tmp_path, "a,b\n" + "1,2\n" * 100)
    with pytest.raises(CorruptData, match=r"at most 50 characters are read at once; got more. Use mercer fit"):
        read(path, limits=Limits(in_memory=50))
    assert sum(map(len, read_chunks(path, rows=7, limits=Limits(in_memory=50)))) == 100
    with pytest.raises(CorruptData, match="line 1 must have at most 10 bytes"):
        read(written(tmp_path, "a" * 30 + ",b\n1,2\n"), limits=Limits(line=10))


def test_damaged_files_are_refused(tmp_path):
    whole = gzip.compress(TABLE.encode() * 100)
    with pytest.raises(CorruptData, match=r"t.csv.gz: the compressed stream must be whole"):
        read(written(tmp_path, whole[: len(whole) // 2], "t.csv.gz"))
    with pytest.raises(CorruptData, match=r"t.parquet: the parquet file must be whole"):
        read(written(tmp_path, b"PAR1 and then something else", "t.parquet"))
    with pytest.raises(CorruptData, match=r"t.npz: the archive must be whole"):
        read(written(tmp_path, b"PK and then something else", "t.npz"))


def test_npz_files_that_are_no_tables_are_refused(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, x=np.zeros((3, 2)), y=np.zeros(4))
    with pytest.raises(CorruptData, match="all arrays must have as many rows; got 3 in x, 4 in y"):
        read(path)
    np.savez(path, x=np.array(1.0))
    with pytest.raises(CorruptData, match="the array x must have rows; got a single number"):
        read(path)
    np.savez(path, x=np.zeros((0, 2)))
    with pytest.raises(CorruptData, match="at least one row"):
        read(path)
    np.savez(path, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(CorruptData, match="pickled objects, which are never read"):
        read(path)


def test_a_zip_bomb_is_refused_before_it_is_inflated(tmp_path):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(2**20))
        archive.infolist()[0].file_size = 2**31 - 1  # what the directory promises
    with pytest.raises(CorruptData, match="decompression bomb"):
        read(path)


def test_other_files_are_named(tmp_path):
    with pytest.raises(
        ValueError, match=r"a table must be a file ending in .csv, .tsv, .parquet, .npz, .xlsx; got 't.ods'"
    ):
        read(written(tmp_path, b"", "t.ods"))
    with pytest.raises(ValueError, match="got the folder"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError, match="must be a file; got nothing there"):
        read(tmp_path / "t.csv")
    with pytest.raises(ValueError, match="rows must be a whole number of at least 1; got 0"):
        read(written(tmp_path, TABLE), rows=0)


def test_parquet_without_pyarrow_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = written(tmp_path, b"", "t.parquet")
    for reading in (read, lambda path: list(read_chunks(path))):
        with pytest.raises(
            ValueError, match=r't.parquet needs pyarrow; got none. Install it: pip install "mercer\[data\]"'
        ):
            reading(path)


def test_any_bytes_are_read_or_refused_in_a_sentence(tmp_path):
    pieces = [
        b",",
        b";",
        b"\n",
        b"\r",
        b'"',
        b" ",
        b"a",
        b"1",
        b"2.5",
        b"?",
        b"2020-01-05",
        b"no",
        b"\xff",
        b"inf",
        b"1,5",
    ]
    pieces += [b"007", b"\t", "é".encode(), b"\xef\xbb\xbf", b"9" * 30, b"1e400", b"0x10"]
    generator = random.Random(0)
    read_well = 0
    for _ in range(400):
        body = b"".join(generator.choices(pieces, k=generator.randint(0, 25)))
        path = written(tmp_path, generator.choice([b"", b"a\n", b"a,b\n"]) + body)
        try:
            frame = read(path)
        except CorruptData as error:
            assert str(error).startswith("table.csv: ") and "; got " in str(error)
        else:
            assert sum(map(len, read_chunks(path, rows=2))) == len(frame) > 0
            read_well += 1
    assert read_well > 20


def test_a_field_without_end_is_refused(tmp_path):
    with pytest.raises(CorruptData, match=r"table.csv: the table must be well formed; got field larger than"):
        read(written(tmp_path, "a,b\n1," + "x" * 200_000 + "\n"))


# --- 56: sizes before work


def test_56_a_small_parquet_that_decodes_to_gigabytes_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": ["x" * 10_000] * 200, "y": range(200)}).to_parquet(path)
    assert path.stat().st_size < 5000
    few = Limits(text=2**20)
    for act in (read, lambda path, limits: next(iter(read_chunks(path, limits=limits)))):
        with pytest.raises(CorruptData, match=r"200 rows must hold at most 0.000977 GiB of text; got 0.00186 GiB"):
            act(path, limits=few)
    assert len(read(path, rows=10, limits=few)) == 10


def test_long_texts_that_repeat_are_held_once(tmp_path):
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": ["x" * 1000, None, "y"] * 50}).to_parquet(path)
    (part,) = read_chunks(path)
    assert part["a"].iloc[0] is part["a"].iloc[3] and part["a"].isna().sum() == 50


def test_categories_of_a_parquet_stay_categories(tmp_path):
    frame = pd.DataFrame({"a": pd.Categorical(["1", "2", "1"]), "b": [1.0, 2.0, 3.0]})
    frame.to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read(tmp_path / "t.parquet"), frame)


def test_parquet_text_that_is_not_utf_8_is_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path, raw = tmp_path / "t.parquet", pyarrow.array([b"ok", b"\xff\xfe"])
    parquet.write_table(pyarrow.table({"a": raw}), path)
    with pytest.raises(CorruptData, match=r"t.parquet: column 'a' must hold UTF-8 text; got other bytes"):
        read(path)
    text = pyarrow.Array.from_buffers(pyarrow.string(), 2, raw.buffers())
    parquet.write_table(pyarrow.table({"a": text}), path)
    with pytest.raises(CorruptData, match=r"t.parquet: text must be UTF-8; got other bytes. Write it as UTF-8 text."):
        read(path)
    parquet.write_table(pyarrow.table({"a": pyarrow.array([b"ok", None])}), path)
    assert read(path)["a"].fillna("?").tolist() == ["ok", "?"]


def test_npz_edge_cases(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, x=np.arange(3, dtype=">f8"), t=np.array(["2020-01-01"] * 3, dtype="M8[ns]"), h=np.zeros(3, "f2"))
    frame = read(path)
    assert frame["x"].dtype.isnative and frame["t"].dtype.kind == "M" and frame["h"].tolist() == [0, 0, 0]
    np.savez(path, x=np.zeros((3, 2)), x_0=np.zeros(3))
    with pytest.raises(CorruptData, match="each column must have a name of its own; got 'x_0' twice"):
        read(path)
    np.savez(path, x=np.array([b"\xff", b"a"]))
    with pytest.raises(CorruptData, match="the array x must hold UTF-8 text"):
        read(path)
    np.savez(path, x=np.zeros((3, 0)))
    with pytest.raises(CorruptData, match="at least one row and one column"):
        read(path)
    np.savez(path, x=np.zeros(3, complex))
    with pytest.raises(CorruptData, match="must be a plain array of numbers or text; got complex128"):
        read(path)
    np.savez(path, x=np.zeros((3, 5)))
    with pytest.raises(CorruptData, match="at most 4 columns; got 5"):
        read(path, limits=Limits(columns=4))


@pytest.mark.parametrize("name", ["T.CSV", "t.Csv.GZ", "t.TSV.gz", "t.csv.BZ2"])
def test_capital_letters_in_a_name_do_not_matter(tmp_path, name):
    text = TABLE.replace(",", "\t") if "TSV" in name else TABLE
    pack = {".gz": gzip.compress, ".bz2": bz2.compress}.get(name[name.rindex(".") :].lower(), bytes)
    assert read(written(tmp_path, pack(text.encode()), name)).shape == (3, 3)


def test_53_a_link_to_a_table_is_refused_with_its_target(tmp_path):
    path = written(tmp_path, TABLE)
    for name in ("link.csv", "link.parquet", "link.npz"):
        (tmp_path / name).symlink_to(path)
        with pytest.raises(ValueError, match=r"must be a regular file; got a symbolic link. .*table.csv"):
            read(tmp_path / name)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_header_longer_than_what_is_sniffed(tmp_path, delimiter):
    names = [f"a long name of a column {i:06d}" for i in range(40_000)]
    text = "\n".join(delimiter.join(row) for row in (names, ["1"] * 40_000, ["2"] * 40_000))
    (tmp_path / "t.csv").write_text(text)
    frame = read(tmp_path / "t.csv")
    assert frame.shape == (2, 40_000) and frame.columns[-1] == names[-1] and frame.iloc[1, 0] == 2


def test_lines_that_end_in_carriage_returns_alone(tmp_path):
    rows = [f'{i},"w, {i}"' for i in range(20_000)]
    (tmp_path / "t.csv").write_bytes("\r".join(["a,b", *rows]).encode() + b"\r")
    frame = read(tmp_path / "t.csv")
    assert len(frame) == 20_000 and frame.iloc[-1].tolist() == [19_999, "w, 19999"]
    assert sum(len(part) for part in read_chunks(tmp_path / "t.csv", rows=7000)) == 20_000
    (tmp_path / "long.csv").write_bytes(b"a" * 60 + b"\r1\r")
    with pytest.raises(CorruptData, match="line 1 must have at most 50 bytes"):
        read(tmp_path / "long.csv", limits=Limits(line=50))


def test_a_lone_carriage_return_within_a_line_is_a_space(tmp_path):
    (tmp_path / "t.csv").write_bytes(b'a,b\r\none\rtwo,1\r\n"three\rfour",2\r\nfive,3\r\r\n')
    frame = read(tmp_path / "t.csv")
    assert frame["a"].tolist() == ["one two", "three four", "five"] and frame["b"].tolist() == [1, 2, 3]
