"""One reader for each set: its files in, a :class:`Raw` set out, whose rows are decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mercer.storage.archives import checked_size, corrupt, decompress, read_npz

from .pictures import Array, Rows, cifar_binary, from_array, from_files, from_strips, idx, usps_text

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DIGITS = tuple("0123456789")
CAR_LEVELS = {  # UCI's columns and their levels from low to high, the codes of the kept file
    "buying": ("low", "med", "high", "vhigh"),
    "maint": ("low", "med", "high", "vhigh"),
    "doors": ("2", "3", "4", "5more"),
    "persons": ("2", "4", "more"),
    "lug_boot": ("small", "med", "big"),
    "safety": ("low", "med", "high"),
}
CAR_CLASSES = ("unacc", "acc", "good", "vgood")


@dataclass(frozen=True)
class Part:
    """Labels ``(n,)`` of some rows, and ``take(rows)`` that fetches and decodes just those asked for."""

    y: Tensor
    take: Callable[[Rows], Any]


@dataclass(frozen=True)
class Raw:
    """A set as its files have it. ``test`` is None where no official split exists.

    The last ``validation`` rows of ``train`` are validation rows that the set brings; they are never trained on.
    """

    train: Part
    test: Part | None
    classes: tuple[str, ...]
    features: tuple[str, ...] = ()
    fold_of: Tensor | None = None
    validation: int = 0


def picture_part(
    x: Array, y: Array, path: Path, shape: tuple[int, ...], c: int, *, low: float = 0.0, high: float = 255.0
) -> Part:
    """Pictures ``(n, *shape)`` with values in ``low..high``, and labels below c."""
    if x.shape[1:] != shape or x.dtype.kind not in "uif":
        raise corrupt(path, f"pictures must be numbers of shape (n, {', '.join(map(str, shape))})", x.shape)
    if x.size and x.dtype != np.uint8 and not (x.min() >= low and x.max() <= high):  # NaN fails both
        raise corrupt(path, f"grey values must be in {low:g}..{high:g}", f"{x.min()}..{x.max()}")
    return Part(label_numbers(path, y, len(x), c), from_array(x, low=low, high=high))


def strip_part(path: Path, suffix: str, shape: tuple[int, int, int], c: int) -> Part:
    """Pictures in WebP strips: the arrays blob, offsets and labels, each with ``suffix``."""
    z = read_npz(path, (f"blob{suffix}", f"offsets{suffix}", f"labels{suffix}"))
    blob, offsets, y = z.values()
    if blob.dtype != np.uint8 or blob.ndim != 1 or offsets.dtype.kind not in "ui":
        raise corrupt(path, "the blob must be uint8 and its offsets whole numbers", f"{blob.dtype}, {offsets.dtype}")
    return Part(label_numbers(path, y, y.size, c), from_strips(path, blob, offsets, y.size, shape))


def table_part(path: Path, x: Array, y: Array, d: int, c: int) -> Part:
    """A table ``(n, d)`` of finite numbers, and labels below c."""
    if x.ndim != 2 or x.shape[1] != d or x.dtype.kind not in "uif" or not np.isfinite(x).all():
        raise corrupt(path, f"the table must be finite numbers of shape (n, {d})", f"{x.dtype} {x.shape}")
    values = x.astype(np.float32)
    return Part(label_numbers(path, y, len(x), c), lambda rows: torch.from_numpy(values[rows]))


def text_part(path: Path, columns: Sequence[list[str]], y: Array, c: int) -> Part:
    """One column of texts, or two for pairs, and labels below c."""

    def take(rows: Rows) -> Any:
        if len(columns) == 1:
            return [columns[0][row] for row in rows.tolist()]
        return [(columns[0][row], columns[1][row]) for row in rows.tolist()]

    return Part(label_numbers(path, y, len(columns[0]), c), take)


def label_numbers(path: Path, y: Array, n: int, c: int) -> Tensor:
    """Labels of n rows, checked to be whole numbers below c."""
    if y.shape != (n,) or n == 0 or y.dtype.kind not in "ui":
        raise corrupt(path, f"there must be {max(n, 1)} whole-number labels", f"{y.dtype} {y.shape}")
    if int(y.min()) < 0 or int(y.max()) >= c:
        raise corrupt(path, f"labels must be in 0..{c - 1}", f"{int(y.min())}..{int(y.max())}")
    return torch.from_numpy(y.astype(np.int64))


def fold_numbers(path: Path, fold: Array, y: Tensor) -> Tensor:
    """The fold 1.. of each row, as the file has it."""
    if fold.shape != tuple(y.shape) or fold.dtype.kind not in "ui" or fold.min() < 1:
        raise corrupt(path, f"there must be {len(y)} fold numbers from 1", f"{fold.dtype} {fold.shape}")
    return torch.from_numpy(fold.astype(np.int64))


def text_table(path: Path, columns: Iterable[str], *, header: Iterable[str] | None = None) -> dict[str, list[str]]:
    """The named columns of a tab-separated UTF-8 file without quoting; line 1 names them unless ``header`` does.

    A leading byte-order mark is dropped (the public MRPC files have one). A ragged line is refused by its number.
    """
    content = decompress(path)
    if content[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in content[:4096]:
        raise corrupt(path, "the text must be UTF-8", "UTF-16 or binary bytes", "Save it as UTF-8.")
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise corrupt(path, "the text must be UTF-8", f"another byte in line {line}", "Save it as UTF-8.") from error
    if lines[-1] == "":
        lines.pop()

    # The names of the columns, and the number of lines before the rows.
    head, first = [], 1
    if header is not None:
        head, first = list(header), 0
    elif lines:
        head = lines[0].removesuffix("\r").split("\t")
    missing = [name for name in columns if name not in head]
    if missing:
        raise corrupt(path, f"line 1 must name the columns {', '.join(missing)}", ", ".join(head)[:80] or "nothing")

    # Every row must have as many columns.
    rows = [line.removesuffix("\r").split("\t") for line in lines[first:]]
    for number, row in enumerate(rows, start=first + 1):
        if len(row) != len(head):
            raise corrupt(path, f"line {number} must have {len(head)} columns", len(row))
    if not rows:
        raise corrupt(path, "the table must have at least one row", "none")
    return {name: [row[head.index(name)] for row in rows] for name in columns}


def whole_numbers(path: Path, column: str, texts: list[str]) -> Rows:
    """A text column as int64; the message names the first row that is none."""
    for row, text in enumerate(texts):
        if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 10:
            raise corrupt(path, f"{column} must be a whole number in row {row}", repr(text[:20]))
    return np.array([int(text) for text in texts], dtype=np.int64)


def mnist(paths: list[Path], kept: bool) -> Raw:
    """MNIST: one npz, or the four idx files."""
    if kept:
        z = read_npz(paths[0], ("x_train", "y_train", "x_test", "y_test"))
        arrays = [z["x_train"], z["y_train"], z["x_test"], z["y_test"]]
    else:
        arrays = [idx(path) for path in paths]
    train, test = ((arrays[i], arrays[i + 1], paths[min(i, len(paths) - 1)]) for i in (0, 2))
    return Raw(picture_part(*train, (28, 28), 10), picture_part(*test, (28, 28), 10), DIGITS)


def usps(paths: list[Path], kept: bool) -> Raw:
    """USPS: thousandths in one npz, or the two text files; grey values -1..1 are mapped to [0, 1]."""
    if kept:
        z = read_npz(paths[0], ("x_train_milli", "y_train", "x_test_milli", "y_test"))
        parts, high = [(z[f"x_{part}_milli"], z[f"y_{part}"], paths[0]) for part in ("train", "test")], 1000.0
    else:
        parts, high = [(*usps_text(path), path) for path in paths], 1.0
    train, test = (picture_part(x, y, path, (16, 16), 10, low=-high, high=high) for x, y, path in parts)
    return Raw(train, test, DIGITS)


def cifar10(paths: list[Path], kept: bool) -> Raw:
    """CIFAR-10: WebP strips, or the six binary batches."""
    if kept:
        return Raw(strip_part(paths[0], "", (3, 32, 32), 10), strip_part(paths[1], "", (3, 32, 32), 10), CIFAR10)
    train, test = cifar_binary(paths[:-1]), cifar_binary(paths[-1:])
    shape = (3, 32, 32)
    return Raw(picture_part(*train, paths[0], shape, 10), picture_part(*test, paths[-1], shape, 10), CIFAR10)


def cifar100(paths: list[Path], kept: bool) -> Raw:
    """The whole of CIFAR-100, fine labels, from the two binary files."""
    parts = [picture_part(*cifar_binary([p], label_bytes=2), p, (3, 32, 32), 100) for p in paths]
    classes, names = tuple(map(str, range(100))), paths[0].with_name("fine_label_names.txt")
    if names.is_file():
        lines = decompress(names).decode("ascii", "replace").split()
        if len(lines) == 100:
            classes = tuple(lines)
    return Raw(parts[0], parts[1], classes)


def cifar100_subset(paths: list[Path], kept: bool) -> Raw:
    """The class-balanced subset of CIFAR-100 (fine labels)."""
    names = _strings(read_npz(paths[0], ("classes",))["classes"])
    train, test = (strip_part(paths[0], f"_{part}", (3, 32, 32), 100) for part in ("train", "test"))
    return Raw(train, test, names)


def sars_cov2_ct(paths: list[Path], kept: bool) -> Raw:
    """CT slices with and without COVID-19, grey."""
    names = _strings(read_npz(paths[0], ("classes",))["classes"])
    return Raw(strip_part(paths[0], "", (1, 128, 128), 2), None, names)


def cmu_faces(paths: list[Path], kept: bool) -> Raw:
    """Faces of 20 people, with the authors' ten folds."""
    z = read_npz(paths[0], ("x", "y", "fold"))
    part = picture_part(z["x"], z["y"], paths[0], (30, 32), 20)
    return Raw(part, None, tuple(map(str, range(20))), fold_of=fold_numbers(paths[0], z["fold"], part.y))


def car(paths: list[Path], kept: bool) -> Raw:
    """UCI's Car Evaluation as ordinal codes: one npz, or ``car.data``."""
    path = paths[0]
    if kept:
        z = read_npz(path, ("x", "y", "classes", "features"))
        return Raw(table_part(path, z["x"], z["y"], 6, 4), None, _strings(z["classes"]), _strings(z["features"]))
    codes = []
    for number, line in enumerate(_lines(path), start=1):
        words = line.split(",")
        allowed = (*CAR_LEVELS.values(), CAR_CLASSES)
        if len(words) != 7 or any(word not in levels for word, levels in zip(words, allowed, strict=True)):
            raise corrupt(path, f"line {number} must have six levels and a class", line[:60])
        codes.append([levels.index(word) for word, levels in zip(words, allowed, strict=True)])
    if not codes:
        raise corrupt(path, "the table must have at least one row", "an empty file")
    table = np.array(codes)
    return Raw(table_part(path, table[:, :6], table[:, 6], 6, 4), None, CAR_CLASSES, tuple(CAR_LEVELS))


def divorce(paths: list[Path], kept: bool) -> Raw:
    """UCI's Divorce Predictors: one npz with the authors' ten folds, or ``divorce.csv`` without."""
    path, features = paths[0], tuple(f"Atr{j}" for j in range(1, 55))
    if kept:
        z = read_npz(path, ("x", "y", "fold"))
        part = table_part(path, z["x"], z["y"], 54, 2)
        return Raw(part, None, ("0", "1"), features, fold_numbers(path, z["fold"], part.y))
    rows = []
    for number, line in enumerate(_lines(path)[1:], start=2):
        words = line.split(";")
        if len(words) != 55 or any(word not in tuple("01234") for word in words):
            raise corrupt(path, f"line {number} must have 55 answers 0..4", line[:60])
        rows.append([int(word) for word in words])
    table = np.array(rows).reshape(-1, 55)
    return Raw(table_part(path, table[:, :54], table[:, 54], 54, 2), None, ("0", "1"), features)


def imdb(paths: list[Path], kept: bool) -> Raw:
    """Movie reviews: one table, or the folders of ``aclImdb``."""
    if kept:
        return _glue(paths[0], ("text",), "test", ("negative", "positive"))
    parts = []
    for folder in paths:
        files = [
            (path, label) for label, kind in enumerate(("neg", "pos")) for path in sorted((folder / kind).glob("*.txt"))
        ]
        if not files:
            raise corrupt(folder, "the folders neg and pos must hold one text file a review", "none")
        texts = [decompress(checked_size(path, 2**20)).decode("utf-8", "replace") for path, _ in files]
        parts.append(text_part(folder, [texts], np.array([label for _, label in files]), 2))
    return Raw(parts[0], parts[1], ("negative", "positive"))


def sst2(paths: list[Path], kept: bool) -> Raw:
    """SST-2: one table, or GLUE's ``train.tsv`` and ``dev.tsv``."""
    classes = ("negative", "positive")
    if kept:
        return _glue(paths[0], ("sentence",), "dev", classes)
    tables = [(path, text_table(path, ("sentence", "label"))) for path in paths]
    return _two([(path, [t["sentence"]], whole_numbers(path, "label", t["label"])) for path, t in tables], classes)


def rte(paths: list[Path], kept: bool) -> Raw:
    """RTE: one table, or GLUE's ``train.tsv`` and ``dev.tsv``; pairs of sentences."""
    classes = ("entailment", "not_entailment")
    if kept:
        return _glue(paths[0], ("sentence1", "sentence2"), "dev", classes)
    parts = []
    for path in paths:
        t = text_table(path, ("sentence1", "sentence2", "label"))
        parts.append((path, [t["sentence1"], t["sentence2"]], _number_classes(path, t["label"], classes)))
    return _two(parts, classes)


def mrpc(paths: list[Path], kept: bool) -> Raw:
    """MRPC: one table, or the two MSR text files; pairs of sentences."""
    classes = ("different", "paraphrase")
    if kept:
        return _glue(paths[0], ("sentence1", "sentence2"), "test", classes)
    head = ("label", "id1", "id2", "sentence1", "sentence2")
    parts = []
    for path in paths:  # the first line is a header of other words, with a number sign
        t = text_table(path, ("label", "sentence1", "sentence2"), header=head)
        parts.append((path, [t["sentence1"][1:], t["sentence2"][1:]], whole_numbers(path, "Quality", t["label"][1:])))
    return _two(parts, classes)


def cov_tw(paths: list[Path], kept: bool) -> Raw:
    """COVID-19 tweets of WNUT-2020 Task 2, with the 1,000 validation rows that it brings."""
    classes = ("UNINFORMATIVE", "INFORMATIVE")
    tables = []
    for path in paths:
        t = text_table(path, ("Text", "Label"))
        tables.append((path, [t["Text"]], _number_classes(path, t["Label"], classes)))
    (path, [first], a), (_, [second], b), test = tables
    raw = _two([(path, [first + second], np.concatenate([a, b])), test], classes)
    return replace(raw, validation=len(b))


def oxford_pets(paths: list[Path], kept: bool) -> Raw:
    """Oxford-IIIT Pets: ``annotations/trainval.txt`` and ``test.txt`` (name, class 1..37, ...), ``images/NAME.jpg``."""
    parts: list[tuple[Path, list[Path], Array]] = []
    names: dict[int, str] = {}
    for path in paths:
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        lines = [line for line in lines if line]
        if not lines or any(len(line) < 2 or not line[1].isdigit() for line in lines):
            raise corrupt(path, "each line must hold a picture's name and its class", lines[:1] or "nothing")
        names |= {int(line[1]): line[0].rpartition("_")[0] for line in lines}
        files = [path.parent.parent / "images" / f"{line[0]}.jpg" for line in lines]
        parts.append((path, files, np.array([int(line[1]) - 1 for line in lines])))
    classes = tuple(names.get(number, str(number)) for number in range(1, max(names) + 1))
    train, test = (
        Part(label_numbers(path, y, len(files), len(classes)), from_files(files)) for path, files, y in parts
    )
    return Raw(train, test, classes)


def stanford_cars(paths: list[Path], kept: bool) -> Raw:
    """Stanford Cars as folders of classes: ``train/CLASS/*.jpg`` and ``test/CLASS/*.jpg``."""
    classes = tuple(sorted(folder.name for folder in paths[0].iterdir() if folder.is_dir()))
    parts = []
    for path in paths:
        files = [(file, number) for number, name in enumerate(classes) for file in sorted((path / name).glob("*.jpg"))]
        if not files:
            raise corrupt(path, "there must be pictures in CLASS/*.jpg", "none")
        labels = np.array([number for _, number in files])
        pictures = from_files([file for file, _ in files])
        parts.append(Part(label_numbers(path, labels, len(files), len(classes)), pictures))
    return Raw(parts[0], parts[1], classes)


READERS: dict[str, Callable[[list[Path], bool], Raw]] = {
    "car": car,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cifar100_subset": cifar100_subset,
    "cmu_faces": cmu_faces,
    "cov-tw": cov_tw,
    "divorce": divorce,
    "imdb": imdb,
    "mnist": mnist,
    "mrpc": mrpc,
    "oxford_pets": oxford_pets,
    "rte": rte,
    "s-cov": sars_cov2_ct,
    "sst2": sst2,
    "stanford_cars": stanford_cars,
    "usps": usps,
}


def load_shipped(name: str) -> Raw:
    """Digits ``(n, 1, 8, 8)``, wine ``(n, 13)`` and breast cancer ``(n, 30)`` as scikit-learn ships them."""
    from sklearn import datasets

    bunch = {
        "digits": datasets.load_digits,
        "wine": datasets.load_wine,
        "breast_cancer": datasets.load_breast_cancer,
    }[name]()
    classes, path = tuple(str(label) for label in bunch.target_names), Path(name)
    if name == "digits":
        return Raw(picture_part(bunch.images, bunch.target, path, (8, 8), 10, high=16.0), None, classes)
    part = table_part(path, bunch.data, bunch.target, bunch.data.shape[1], len(classes))
    return Raw(part, None, classes, tuple(map(str, bunch.feature_names)))


def _glue(path: Path, columns: tuple[str, ...], test: str, classes: tuple[str, ...]) -> Raw:
    """A table of the papers' folder: a column ``split``, a column ``label``, one text column or two."""
    table = text_table(path, ("split", "label", *columns))
    parts = []
    for part in ("train", test):
        rows = [row for row, name in enumerate(table["split"]) if name == part]
        y = whole_numbers(path, "label", [table["label"][row] for row in rows])
        parts.append((path, [[table[column][row] for row in rows] for column in columns], y))
    return _two(parts, classes)


def _two(parts: Sequence[tuple[Path, list[list[str]], Array]], classes: tuple[str, ...]) -> Raw:
    train, test = (text_part(path, columns, y, len(classes)) for path, columns, y in parts)
    return Raw(train, test, classes)


def _number_classes(path: Path, labels: list[str], classes: tuple[str, ...]) -> Array:
    for row, label in enumerate(labels):
        if label not in classes:
            raise corrupt(path, f"the label must be one of {', '.join(classes)} in row {row}", repr(label[:30]))
    return np.array([classes.index(label) for label in labels])


def _strings(names: Array) -> tuple[str, ...]:
    return tuple(str(name) for name in names)


def _lines(path: Path) -> list[str]:
    return [line for line in decompress(path, limit=2**24).decode("utf-8-sig", "replace").splitlines() if line]
