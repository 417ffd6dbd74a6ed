"""Loaders: small files written here in each format, the papers' files where MERCER_DATA has them."""

import gzip
import io
import pickle
import struct
import sys

import numpy as np
import pytest
import torch

from mercer_papers import data
from mercer_papers.chen2022.sets import glove
from mercer_papers.data import pictures
from mercer_papers.data.readers import READERS
from mercer_papers.data.resnet import ResNet50, imagenet_resnet50
from mercer_papers.data_files import SOURCES
from tests.papers.cases import Trap

RNG = np.random.default_rng(0)


def digits(n, side=28):
    return RNG.integers(0, 256, (n, side, side), dtype=np.uint8), np.arange(n, dtype=np.uint8) % 10


def webp_strips(x, per_strip=10):
    image = pytest.importorskip("PIL.Image", reason="pillow decodes WebP")
    strips = []
    for start in range(0, len(x), per_strip):
        stream = io.BytesIO()
        part = x[start : start + per_strip]
        image.fromarray(part.reshape(-1, *part.shape[2:])).save(stream, "WEBP", lossless=True)
        strips.append(stream.getvalue())
    offsets = np.cumsum([0, *map(len, strips)])
    return np.frombuffer(b"".join(strips), np.uint8), offsets


def write_cifar10(folder, n=37):
    made = {}
    for part in ("train", "test"):
        x = RNG.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
        y = np.arange(n, dtype=np.uint8) % 10
        blob, offsets = webp_strips(x)
        np.savez(folder / f"cifar10_{part}.npz", blob=blob, offsets=offsets, labels=y)
        made[part] = x, y
    return made


def idx_bytes(x):
    return b"\0\0\x08" + bytes([x.ndim]) + struct.pack(f">{x.ndim}I", *x.shape) + x.tobytes()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MERCER_DATA", str(tmp_path))
    return tmp_path


def test_every_set_has_a_sentence_and_a_reader():
    assert set(data.names()) == set(READERS) | {"digits", "wine", "breast_cancer"}
    for name in data.names():
        assert data.how_to_get(name).endswith((".", "names."))
        assert data.how_to_get(name).count(". ") <= 1
    with pytest.raises(ValueError, match=r"name must be one of 'breast_cancer', .*; got 'minst'"):
        data.load("minst")


@pytest.mark.parametrize("name", sorted(READERS))
def test_an_absent_set_says_at_once_how_to_get_it(name, folder, monkeypatch):
    assert not data.available(name)
    with pytest.raises(data.MissingData) as caught:
        data.load(name)
    assert str(caught.value) == (
        f"data.load: the files of {name!r} must be on this machine; got none of them there. {SOURCES[name].how}"
    )
    assert isinstance(caught.value, FileNotFoundError)
    monkeypatch.delenv("MERCER_DATA")
    with pytest.raises(data.MissingData, match="got MERCER_DATA unset"):
        data.load(name)
    with pytest.raises(data.MissingData, match="got a folder that does not exist"):
        data.load(name, folder=folder / "nowhere")


@pytest.mark.parametrize(
    ("name", "shape", "c"), [("digits", (1, 8, 8), 10), ("wine", (13,), 3), ("breast_cancer", (30,), 2)]
)
def test_shipped_sets_need_no_folder(name, shape, c, monkeypatch):
    monkeypatch.delenv("MERCER_DATA", raising=False)
    assert data.available(name)
    d = data.load(name, validation=0.25)
    assert d.x_train.shape[1:] == d.x_test.shape[1:] == d.x_val.shape[1:] == shape
    assert d.x_train.dtype == torch.float32
    assert d.y_train.dtype == torch.int64
    assert len(d.classes) == c == len(d.y_train.unique()) == len(d.y_test.unique())
    n = len(d.y_train) + len(d.y_val) + len(d.y_test)
    assert len(d.y_test) / n == pytest.approx(0.2, abs=0.01)
    assert len(d.y_val) / (n - len(d.y_test)) == pytest.approx(0.25, abs=0.01)


def test_shipped_splits_never_change():
    assert data.load("wine").y_train[:20].tolist() == [1, 0, 2, 0, 1, 0, 0, 0, 2, 1, 0, 0, 1, 2, 1, 2, 2, 0, 1, 0]
    assert float(data.load("digits", fold=3).x_test.double().sum()) == 3498.125


def test_mnist_from_both_formats(folder):
    (x, y), (xt, yt) = digits(30), digits(20)
    np.savez(folder / "mnist.npz", x_train=x, y_train=y, x_test=xt, y_test=yt)
    with pytest.raises(data.CorruptData, match=r"mnist.npz: the SHA-256 must start with 06af5dfe73b7"):
        data.load("mnist")
    kept = data.load("mnist", verify=False)
    (folder / "mnist.npz").unlink()
    (folder / "mnist").mkdir()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(x)))
    (folder / "train-labels.idx1-ubyte").write_bytes(idx_bytes(y))
    (folder / "mnist" / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(xt))
    assert not data.available("mnist")
    (folder / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(yt)))
    assert data.available("mnist")
    original = data.load("mnist")
    for d in (kept, original):
        torch.testing.assert_close(d.x_train, torch.from_numpy(x[:, None] / 255).float())
        assert d.y_test.tolist() == yt.tolist()
        assert d.x_test.shape == (20, 1, 28, 28)


def test_damaged_idx_is_refused(folder):
    x, y = digits(4)
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes(x))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(y))
    images = folder / "train-images-idx3-ubyte"
    for content, message in [
        (idx_bytes(x)[:-1], "the header promises 3136 bytes; got 3135"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "the header promises 79228162458924105385300197375 bytes; got 0"),
        (b"\0\0\x0d\x03", "must start with 00 00 08; got 00 00 0d 03"),
        (b"\0\0\x08\x03\0", "the header must have 16 bytes; got 5"),
        (idx_bytes(x[:3]), r"there must be 3 whole-number labels; got uint8 \(4,\)"),
        (idx_bytes(x[:, :20]), r"shape \(n, 28, 28\); got \(4, 20, 28\)"),
    ]:
        images.write_bytes(content)
        with pytest.raises(data.CorruptData, match=message):
            data.load("mnist")


def test_usps_from_both_formats_is_mapped_to_the_unit_interval(folder):
    milli, y = RNG.integers(-1000, 1001, (12, 16, 16)).astype(np.int16), np.arange(12, dtype=np.uint8) % 10
    np.savez(folder / "usps.npz", x_train_milli=milli, y_train=y, x_test_milli=milli[:5], y_test=y[:5])
    kept = data.load("usps", verify=False)
    (folder / "usps.npz").unlink()
    lines = "".join(
        f"{a}.0000 " + " ".join(f"{v / 1000:.3f}" for v in x.ravel()) + " \n" for a, x in zip(y, milli, strict=True)
    )
    (folder / "zip.train.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "zip.test").write_text(lines)
    original = data.load("usps")
    torch.testing.assert_close(kept.x_train, torch.from_numpy((milli[:, None] / 1000 + 1) / 2).float())
    torch.testing.assert_close(original.x_train, kept.x_train)
    assert original.y_test.tolist() == y.tolist()
    for bad, message in [
        ("1 2 3\n", "each line must have a digit and 256 numbers"),
        (lines.replace(" -0.", " -7.", 1), "grey"),
    ]:
        (folder / "zip.test").write_text(bad + lines)
        with pytest.raises(data.CorruptData, match=message):
            data.load("usps")


def test_cifar_strips_decode_to_the_pixels_that_went_in(folder):
    made = write_cifar10(folder)
    d = data.load("cifar10", verify=False)
    x, y = made["train"]
    torch.testing.assert_close(d.x_train, torch.from_numpy(x.transpose(0, 3, 1, 2) / 255).float())
    assert d.y_train.tolist() == y.tolist()


def test_classes_are_renumbered_in_the_order_given_and_rows_are_the_first(folder):
    x, y = write_cifar10(folder)["test"]
    d = data.load("cifar10", classes=("cat", 1), rows=(4, 3), verify=False)
    rows = [row for row in range(37) if y[row] in (3, 1)][:3]
    assert d.classes == ("cat", "automobile")
    assert d.y_test.tolist() == [[3, 1].index(y[row]) for row in rows]
    torch.testing.assert_close(d.x_test, torch.from_numpy(x[rows].transpose(0, 3, 1, 2) / 255).float())
    assert len(d.x_train) == 4


def test_only_the_strips_needed_are_decoded(folder, monkeypatch):
    write_cifar10(folder)
    decoded = []
    real = pictures._pillow
    monkeypatch.setattr(pictures, "_pillow", lambda *a: decoded.append(1) or real(*a))
    data.load("cifar10", rows=10, verify=False)
    assert len(decoded) == 2  # one strip of ten for each part, of four


def test_damaged_strips_are_refused(folder):
    write_cifar10(folder)
    path = folder / "cifar10_train.npz"
    good = dict(np.load(path, allow_pickle=False))
    torn = good["blob"].copy()
    torn[good["offsets"][1] :][:20] = 0
    wide, wide_offsets = webp_strips(np.zeros((37, 32, 64, 3), np.uint8))
    for change, message in [
        ({"offsets": good["offsets"][::-1].copy()}, "offsets must rise within"),
        ({"offsets": good["offsets"] * 9}, "offsets must rise within"),
        ({"blob": torn}, "a strip must be a whole WebP picture"),
        ({"blob": wide, "offsets": wide_offsets}, "a strip must have 32 x 320 pixels; got 64 x 320"),
        ({"labels": good["labels"] + np.uint8(9)}, r"labels must be in 0\.\.9; got 9\.\.18"),
        ({"labels": good["labels"].astype(float)}, "whole-number labels; got float64"),
    ]:
        np.savez(path, **{**good, **change})
        with pytest.raises(data.CorruptData, match=message):
            data.load("cifar10", verify=False)


def test_without_pillow_the_extra_is_named(folder, monkeypatch):
    write_cifar10(folder)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"decoding pictures needs pillow; got none. Run pip install mercer\[data\]"):
        data.load("cifar10", verify=False)


def test_cifar_binary_is_read_and_the_pickled_version_never(folder):
    (folder / "cifar-10-batches-py").mkdir()
    (folder / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(data.MissingData, match="the python version is pickled and never read"):
        data.load("cifar10")
    assert not Trap.sprung
    binary = folder / "cifar-10-batches-bin"
    binary.mkdir()
    x, y = RNG.integers(0, 256, (6, 3072), dtype=np.uint8), np.arange(6, dtype=np.uint8)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (binary / f"{name}.bin").write_bytes(np.concatenate([y[:, None], x], 1).tobytes())
    d = data.load("cifar10")
    assert d.y_train.tolist() == y.tolist() * 5
    torch.testing.assert_close(d.x_test, torch.from_numpy(x.reshape(6, 3, 32, 32) / 255).float())
    (binary / "test_batch.bin").write_bytes(b"short")
    with pytest.raises(
        data.CorruptData, match=r"test_batch.bin: a binary batch must have records of 3073 bytes; got 5"
    ):
        data.load("cifar10")


def test_cifar100_binary_has_fine_labels(folder):
    binary = folder / "cifar-100-binary"
    binary.mkdir()
    record = np.concatenate([[[7, 99]], np.zeros((1, 3072))], 1).astype(np.uint8).tobytes()
    (binary / "train.bin").write_bytes(record * 2)
    (binary / "test.bin").write_bytes(record)
    assert data.load("cifar100").y_train.tolist() == [99, 99]


def test_car_and_divorce_from_their_public_files(folder):
    (folder / "car.data").write_text("vhigh,low,5more,2,small,high,unacc\nlow,low,2,more,big,low,vgood\n" * 5)
    d = data.load("car")
    assert {tuple(row) for row in d.x_train.int().tolist()} == {(3, 0, 3, 0, 0, 2), (0, 0, 0, 2, 2, 0)}
    assert set(d.y_train.tolist()) == {0, 3}
    (folder / "car.data").write_text("vhigh,low,5more,2,small,high,unacc\nlow,low,2,more,big,vgood\n")
    with pytest.raises(data.CorruptData, match=r"car.data: line 2 must have six levels and a class"):
        data.load("car")
    (folder / "car.data").write_text("\n")
    with pytest.raises(data.CorruptData, match=r"car.data: the table must have at least one row; got an empty file"):
        data.load("car")
    (folder / "divorce.csv").write_text(
        "head\n" + (";".join(["4"] * 54 + ["1"]) + "\n" + ";".join(["0"] * 55) + "\n") * 10
    )
    d = data.load("divorce", fold=1)
    assert len(d.y_test) == 2
    assert (d.x_train[d.y_train == 1] == 4).all()
    (folder / "divorce.csv").write_text("head\n1;2;3\n")
    with pytest.raises(data.CorruptData, match=r"divorce.csv: line 2 must have 55 answers"):
        data.load("divorce")


def test_the_authors_folds_are_used(folder):
    fold = np.tile(np.arange(1, 11, dtype=np.uint8), 4)
    x = np.arange(40, dtype=np.uint8)[:, None, None] * np.ones((1, 30, 32), np.uint8)
    np.savez(folder / "cmu_faces.npz", x=x, y=np.arange(40, dtype=np.uint8) % 20, fold=fold)
    d = data.load("cmu_faces", fold=4, verify=False)
    rows = sorted((d.x_test[:, 0, 0, 0] * 255).round().int().tolist())
    assert rows == [3, 13, 23, 33]
    assert len(d.x_train) == 36


def test_fold_of_an_officially_split_set_is_refused(folder):
    write_cifar10(folder)
    with pytest.raises(ValueError, match=r"data.load\('cifar10'\): fold is for sets without an official split; got 2"):
        data.load("cifar10", fold=2, verify=False)


def test_text_sets_from_both_formats(folder):
    table = "split\tlabel\tsentence1\tsentence2\n" + "train\t0\ta\tb\ndev\t1\tc\t d\ntrain\t1\te\tf\ntest\t-1\tg\th\n"
    (folder / "rte.tsv.gz").write_bytes(gzip.compress(table.encode()))
    d = data.load("rte", verify=False)
    assert (d.x_train, d.y_train.tolist()) == ([("a", "b"), ("e", "f")], [0, 1])
    assert (d.x_test, d.y_test.tolist()) == ([("c", " d")], [1])
    (folder / "rte.tsv.gz").unlink()
    (folder / "RTE").mkdir()
    (folder / "RTE" / "train.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tnot_entailment\n")
    (folder / "RTE" / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\tc\td\tentailment\n")
    assert data.load("rte").y_train.tolist() == [1]
    (folder / "RTE" / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\tc\td\tmaybe\n")
    with pytest.raises(data.CorruptData, match=r"one of entailment, not_entailment in row 0; got 'maybe'"):
        data.load("rte")


def test_sst2_mrpc_and_tweets_as_published(folder):
    for name in ("SST-2", "MRPC", "cov_tw"):
        (folder / name).mkdir()
    for part in ("train", "dev"):
        (folder / "SST-2" / f"{part}.tsv").write_text("sentence\tlabel\nfine film \t1\nno\t0\n")
    assert data.load("sst2", rows=1).x_train == ["fine film "]
    for part in ("train", "test"):
        text = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t5\t6\tone\tuno\r\n"
        (folder / "MRPC" / f"msr_paraphrase_{part}.txt").write_bytes(text.encode())
    d = data.load("mrpc")
    assert (d.x_train, d.y_train.tolist()) == ([("one", "uno")], [1])
    for part in ("train", "valid", "test"):
        (folder / "cov_tw" / f"{part}.tsv").write_text(f"Id\tText\tLabel\n1\t{part}\tINFORMATIVE\n")
    d = data.load("cov_tw")
    assert (d.name, d.x_train, d.x_test, d.y_test.tolist()) == ("cov-tw", ["train"], ["test"], [1])
    assert (d.x_val, d.y_val.tolist()) == (["valid"], [1])  # its own, whatever share is asked for
    assert data.load("cov_tw", validation=0.2).x_val == ["valid"]


def test_imdb_as_published(folder):
    for part in ("train", "test"):
        for kind in ("neg", "pos"):
            (folder / "aclImdb" / part / kind).mkdir(parents=True)
            (folder / "aclImdb" / part / kind / "0_1.txt").write_text(f"{part} {kind} é", encoding="utf-8")
    d = data.load("imdb")
    assert (d.x_train, d.y_train.tolist()) == (["train neg é", "train pos é"], [0, 1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": (1, 11)}, r"a class must be in 0\.\.9; got 11"),
        ({"classes": ("one",)}, "a class must be one of '0', '1'"),
        ({"classes": (1, 1)}, r"classes must be distinct, at least one; got \[1, 1\]"),
        ({"classes": ()}, "classes must be distinct, at least one"),
        ({"rows": 0}, "rows must be a whole number of at least 1; got 0"),
        ({"rows": (5, -1)}, "rows must be a whole number of at least 1; got -1"),
        ({"validation": 1.0}, "validation must be a share below 1; got 1.0"),
        ({"fold": 0}, r"fold must be in 1\.\.10"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        data.load("digits", **options)


@pytest.mark.parametrize(
    ("name", "sizes", "c"),
    [
        ("mnist", (60000, 10000), 10),
        ("usps", (7291, 2007), 10),
        ("cifar100_subset", (2000, 1000), 100),
        ("cmu_faces", (504, 120), 20),
        ("car", (1382, 346), 4),
        ("divorce", (136, 34), 2),
        ("s-cov", (1985, 496), 2),
        ("sst2", (67349, 872), 2),
        ("rte", (2490, 277), 2),
        ("mrpc", (4076, 1725), 2),
    ],
)
def test_the_papers_files(papers_data, name, sizes, c):
    if not data.available(name):
        pytest.skip(data.how_to_get(name))
    d = data.load(name)
    assert (len(d.y_train), len(d.y_test)) == (len(d.x_train), len(d.x_test)) == sizes
    assert len(d.classes) == c == len(d.y_train.unique())
    if isinstance(d.x_train, torch.Tensor) and d.x_train.ndim == 4:
        assert 0 <= float(d.x_train.min()) < float(d.x_train.max()) <= 1


def test_the_papers_cifar10_and_imdb(papers_data):
    if not (data.available("cifar10") and data.available("imdb")):
        pytest.skip(data.how_to_get("cifar10"))
    d = data.load("cifar10", rows=(150, 100))
    assert d.x_train.shape == (150, 3, 32, 32)
    assert len(data.load("imdb", rows=3).x_train) == 3
    weights = data.resnet20_weights()
    assert len(weights) == 97
    assert sum(w.numel() for w in weights.values()) == 271_098


def test_absent_weights_say_how(folder):
    with pytest.raises(data.MissingData, match=r"Put cifar10_resnet20_weights.npz into"):
        data.resnet20_weights()


def test_glove_is_read_from_a_local_file(tmp_path):
    with pytest.raises(data.MissingData, match=r"Put glove\.6B\.100d\.txt"):
        glove(["film"], folder=tmp_path)
    path = tmp_path / "glove.6B.50d.txt"
    path.write_text("the 0.1 0.2\nfilm 1.5 -2\n", encoding="utf-8")
    vectors = glove(["film", "unheard", "the"], folder=tmp_path)
    assert vectors.shape == (4, 2) and vectors[0].tolist() == [0, 0] and vectors[1].tolist() == [1.5, -2.0]
    torch.testing.assert_close(vectors[3], torch.tensor([0.1, 0.2]))
    assert 0 < float(vectors[2].norm()) < 1 and torch.equal(vectors, glove(["film", "unheard", "the"], folder=tmp_path))
    path.write_text("the 0.1 0.2\nfilm 1.5\n", encoding="utf-8")
    with pytest.raises(data.CorruptData, match="line 2 must hold a word and 2 numbers"):
        glove(["film"], folder=tmp_path)


def _save_picture(path, colour, size=(40, 30)):
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, quality=95)


def test_pets_are_read_from_their_published_folder(tmp_path):
    pytest.importorskip("PIL")
    folder = tmp_path / "oxford-iiit-pet"
    lines = {"trainval": ["Abyssinian_1 1 1 1", "pug_7 2 2 1"], "test": ["pug_8 2 2 1"]}
    for part, rows in lines.items():
        (folder / "annotations").mkdir(parents=True, exist_ok=True)
        (folder / "annotations" / f"{part}.txt").write_text("# a comment\n" + "\n".join(rows), encoding="utf-8")
        for row in rows:
            _save_picture(folder / "images" / f"{row.split()[0]}.jpg", (255, 0, 0) if "pug" in row else (0, 0, 255))
    d = data.load("oxford_pets", folder=tmp_path)
    assert d.classes == ("Abyssinian", "pug") and d.y_train.tolist() == [0, 1] and d.y_test.tolist() == [1]
    assert d.x_train.shape == (2, 3, 224, 224) and float(d.x_train[1, 0].mean()) > 0.95 > 0.05 > float(
        d.x_train[1, 2].mean()
    )
    (folder / "images" / "pug_8.jpg").write_bytes(b"no picture")
    with pytest.raises(data.CorruptData, match=r"pug_8\.jpg.*JPEG"):
        data.load("oxford_pets", folder=tmp_path)
    (folder / "annotations" / "test.txt").write_text("pug_8\n", encoding="utf-8")
    with pytest.raises(data.CorruptData, match="a picture's name and its class"):
        data.load("oxford_pets", folder=tmp_path)


def test_cars_are_read_from_folders_of_classes(tmp_path):
    pytest.importorskip("PIL")
    for part in ("train", "test"):
        for name in ("Audi", "BMW"):
            _save_picture(tmp_path / "stanford_cars" / part / name / "1.jpg", (0, 255, 0), (30, 60))
    d = data.load("stanford_cars", folder=tmp_path, rows=2)
    assert d.classes == ("Audi", "BMW") and d.y_train.tolist() == [0, 1] and d.x_test.shape == (2, 3, 224, 224)
    with pytest.raises(data.MissingData, match="Put stanford_cars"):
        data.load("stanford_cars", folder=tmp_path / "elsewhere")


@pytest.mark.parametrize("name", ["resnet50.npz", "resnet50.safetensors"])
def test_weights_of_resnet50_are_read_from_a_local_file(name, tmp_path):
    with pytest.raises(data.MissingData, match=r"Put resnet50\.npz or resnet50\.safetensors"):
        imagenet_resnet50(3, folder=tmp_path)
    torch.manual_seed(0)
    published = ResNet50(5, width=2)
    if name.endswith("npz"):
        np.savez(tmp_path / name, **{key: value.numpy() for key, value in published.state_dict().items()})
    else:
        from safetensors.torch import save_file

        save_file(published.state_dict(), tmp_path / name)
    model = imagenet_resnet50(3, folder=tmp_path, width=2)
    assert torch.equal(model.layer4[2].conv3.weight, published.layer4[2].conv3.weight)
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 3)
    with pytest.raises(ValueError, match="must hold the weights of ResNet-50 by torchvision's names"):
        imagenet_resnet50(3, folder=tmp_path, width=4)
