"""Files nobody has to trust: damaged, huge, pickled, ragged, of another content."""

import bz2
import gzip
import hashlib
import os
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mercer.storage.archives import decompress, read_npz
from mercer_papers.data import CorruptData
from mercer_papers.data.loaders import verify_checksum
from mercer_papers.data.readers import text_table, whole_numbers
from tests.papers.cases import Trap


def npz(path, **arrays):
    np.savez_compressed(path, **arrays)
    return path


def npz_of_bytes(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def header(text, version=1):
    padded = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(padded)) + padded


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">f4", "<U5", "?"])
def test_npz_reads_what_numpy_wrote(tmp_path, dtype):
    x = np.arange(12).reshape(3, 4).astype(dtype)
    found = read_npz(npz(tmp_path / "a.npz", c=x, fortran=np.asfortranarray(x), empty=x[:0], number=x[0, 0]))
    for name, want in {"c": x, "fortran": x, "empty": x[:0], "number": x[0, 0]}.items():
        np.testing.assert_array_equal(found[name], want)
        assert found[name].dtype == want.dtype


def test_pickled_arrays_are_refused_and_nothing_runs(tmp_path):
    path = npz(tmp_path / "evil.npz", x=np.array([Trap()], dtype=object))
    with pytest.raises(CorruptData, match=r"evil.npz: x.npy must be a plain array .*pickled objects, which are never"):
        read_npz(path)
    assert not Trap.sprung


def test_zip_bomb_is_refused_before_it_is_inflated(tmp_path):
    path = npz(tmp_path / "bomb.npz", x=np.zeros(2**20, np.uint8))
    assert path.stat().st_size < 5000
    with pytest.raises(CorruptData, match=r"at most 1000 arrays of 1000 bytes in all are read; got 1 of 1048704 bytes"):
        read_npz(path, limit=1000)


def test_a_header_alone_does_not_make_us_allocate(tmp_path):
    text = header("{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999,), }")
    with pytest.raises(CorruptData, match=r"must hold the 99999999999999 bytes its header states; got 3"):
        read_npz(npz_of_bytes(tmp_path / "a.npz", x=text + b"abc"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an array",
        header("{'descr': '|u1', 'fortran_order': False, 'shape': (__import__('os').getpid(),), }"),
        header("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }"),
        header("{'descr': '<M8', 'fortran_order': False, 'shape': (1,), }"),
        header("{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }", version=3),
        b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b" " * 64,
    ],
    ids=["empty", "words", "code", "record", "date", "version-3", "huge"],
)
def test_strange_headers_are_refused(tmp_path, content):
    with pytest.raises(CorruptData, match=r"a\.npz: x\.npy must"):
        read_npz(npz_of_bytes(tmp_path / "a.npz", x=content))


def test_missing_arrays_are_named(tmp_path):
    with pytest.raises(CorruptData, match="the arrays y, z must be there; got 1 others"):
        read_npz(npz(tmp_path / "a.npz", x=np.zeros(2)), ("x", "y", "z"))


def test_every_truncation_is_refused(tmp_path):
    whole = npz(tmp_path / "a.npz", x=np.arange(50)).read_bytes()
    for end in range(0, len(whole), 7):
        (tmp_path / "b.npz").write_bytes(whole[:end])
        with pytest.raises(CorruptData, match=r"b\.npz: "):
            read_npz(tmp_path / "b.npz")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flipped_bytes_are_refused_or_harmless(tmp_path, data):
    x = np.arange(50)
    whole = bytearray(npz(tmp_path / "a.npz", x=x).read_bytes())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    (tmp_path / "b.npz").write_bytes(whole)
    try:
        found = read_npz(tmp_path / "b.npz", ("x",))
    except CorruptData:
        return
    np.testing.assert_array_equal(found["x"], x)  # the flip met a field that does not matter, such as a date


@pytest.mark.parametrize("read", [read_npz, decompress, lambda path: verify_checksum(path, "0" * 64)])
def test_size_on_disk_is_checked_before_a_byte_is_read(tmp_path, read):
    path = tmp_path / "big.npz"
    with path.open("wb") as stream:
        stream.truncate(2**29 + 1)  # sparse: it takes no room on disk
    with pytest.raises(CorruptData, match=r"big.npz: the file must have at most 536870912 bytes; got 536870913"):
        read(path)


@pytest.mark.parametrize(("end", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), ("", bytes)])
def test_decompression_stops_at_the_limit(tmp_path, end, pack):
    path = tmp_path / f"text{end}"
    path.write_bytes(pack(b"0" * 10_000))
    assert decompress(path, limit=10_000) == b"0" * 10_000
    with pytest.raises(CorruptData, match="the content must have at most 9999 bytes; got more"):
        decompress(path, limit=9999)


@pytest.mark.parametrize(("end", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_truncated_streams_are_refused(tmp_path, end, pack):
    path = tmp_path / f"text{end}"
    path.write_bytes(pack(os.urandom(1000))[:500])
    with pytest.raises(CorruptData, match="the compressed stream must be whole"):
        decompress(path)
    path.write_bytes(b"plainly not compressed")
    with pytest.raises(CorruptData, match="the compressed stream must be whole"):
        decompress(path)


def test_checksum_is_computed_once_for_each_state_of_a_file(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    path.write_bytes(b"abc")
    good = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    calls = []
    real = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *a: calls.append(1) or real(*a))
    verify_checksum(path, good)
    verify_checksum(path, good)
    assert len(calls) == 1
    path.write_bytes(b"abd")
    os.utime(path, ns=(1, 1))
    with pytest.raises(
        CorruptData, match=r"a.bin: the SHA-256 must start with ba7816bf8f01; got a52d159f262b.*verify="
    ):
        verify_checksum(path, good)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1 must name the columns text; got nothing"),
        (b"label\ttext\n", "the table must have at least one row; got none"),
        (b"label\tother\n0\ta\n", "line 1 must name the columns text; got label, other"),
        (b"label\ttext\n0\ta\n1\tb\tc\n", "line 3 must have 2 columns; got 3"),
        (b"label\ttext\n0\ta\n1\n", "line 3 must have 2 columns; got 1"),
        ("label\ttext\n0\ta\n".encode("utf-16"), "the text must be UTF-8; got UTF-16 or binary bytes"),
        (b"label\ttext\n0\tok\n1\t\xff\n", "the text must be UTF-8; got another byte in line 3"),
    ],
    ids=["empty", "no-rows", "no-text", "three-columns", "one-column", "utf-16", "a-byte"],
)
def test_bad_tables_are_refused_by_line(tmp_path, content, message):
    path = tmp_path / "t.tsv"
    path.write_bytes(content)
    with pytest.raises(CorruptData, match=message):
        text_table(path, ("text",))


def test_tables_keep_quotes_and_drop_marks_of_windows(tmp_path):
    path = tmp_path / "t.tsv.gz"
    path.write_bytes(gzip.compress('\ufefflabel\ttext\r\n0\t"a" NA\r\n1\t\u2028ü\r\n'.encode()))
    assert text_table(path, ("text", "label")) == {"text": ['"a" NA', "\u2028ü"], "label": ["0", "1"]}


@pytest.mark.parametrize(
    "bad", ["", "1.0", "x", "²", "--1", "9" * 30], ids=["empty", "decimal", "letter", "raised", "signs", "long"]
)
def test_labels_must_be_whole_numbers(tmp_path, bad):
    with pytest.raises(CorruptData, match="label must be a whole number in row 1"):
        whole_numbers(tmp_path / "t.tsv", "label", ["-1", bad])
