"""The paper's data sets as tensors, and Table 2, which counts them."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from mercer.storage.archives import corrupt

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..data import load
from ..data_files import MissingData, data_folder

KINDS = {
    "mnist": "table",
    "usps": "table",
    "cifar10": "image",
    "s-cov": "image",
    "cov-tw": "text",
    "imdb": "text",
    "digits": "table",  # ours, beside the paper's six: it ships with scikit-learn
}
_BUNDLED = ("digits",)

# What a cell's training depends on, by scale and kind. Rows are counted before the validation split.
_TEXT = {"words": 2000, "length": 60}
_SIZES: dict[str, dict[str, dict[str, int | str | None]]] = {
    "smoke": {
        "table": {"rows": 160, "test_rows": 80, "epochs": 2, "tries": 1},
        "image": {"rows": 80, "test_rows": 40, "epochs": 1, "tries": 1, "network": "ResNet-8, half width"},
        "text": {"rows": 80, "test_rows": 40, "epochs": 1, "tries": 1, **_TEXT},
    },
    "small": {
        "table": {"rows": 1200, "test_rows": 1000, "epochs": 8, "tries": 16},
        "image": {"rows": 640, "test_rows": 400, "epochs": 4, "tries": 4, "network": "ResNet-8, half width"},
        "text": {"rows": 640, "test_rows": 400, "epochs": 3, "tries": 4, **_TEXT},
    },
    "paper": {
        "table": {"rows": None, "test_rows": None, "epochs": 500, "tries": 16},
        "image": {"rows": None, "test_rows": None, "epochs": 500, "tries": 16, "network": "ResNet-18"},
        "text": {
            "rows": None,
            "test_rows": None,
            "epochs": 500,
            "tries": 16,
            "words": 50_000,
            "length": 400,
            "vectors": "GloVe",
        },
    },
}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """One cell for each data set; smoke counts only what needs no download."""
    names = [name for name in KINDS if scale != "smoke" or not required_data(name)]
    return [Cell(entry.id, row=name, settings={"data": name}, data=required_data(name)) for name in names]


def run(cell: Cell) -> Outcome:
    """Rows of each part, and classes."""
    data = load(cell.settings["data"])
    counts = (len(data.y_train), len(data.y_test), len(data.classes))
    names = ("training instances", "test instances", "classes")
    return Outcome(values=dict(zip(names, map(float, counts), strict=True)), note=data.note)


@dataclass(frozen=True)
class Rows:
    """One data set: training, validation and test part, and the number of words of texts."""

    kind: str
    x: Tensor
    y: Tensor
    x_val: Tensor
    y_val: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    words: int = 0
    vectors: Tensor | None = None

    def to(self, device: str) -> Rows:
        """These rows on a device."""
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return Rows(**{**vars(self), **moved})


def size(name: str, scale: str) -> dict[str, int | str | None]:
    """The settings of a training on a set; bundled sets are quick at small scale, for the demo runs them."""
    sizes = _SIZES[scale][KINDS[name]]
    if scale == "small" and name in _BUNDLED:
        return {**sizes, "tries": 4}
    return sizes


def required_data(name: str) -> list[str]:
    """The data that the runner must find in MERCER_DATA for a set."""
    return [] if name in _BUNDLED else [name]


@functools.lru_cache(maxsize=2)
def rows_of(
    name: str, rows: int | None, test_rows: int | None, words: int = 0, length: int = 0, vectors: str = "learned"
) -> Rows:
    """A set, or its first rows; 20 % of the training rows validate, of cov-tw the 1,000 rows that it brings."""
    kind = KINDS[name]
    limit = None if rows is None else (rows, test_rows or rows)
    data = load(name, rows=limit, validation=0.2)
    parts = [data.x_train, data.x_val, data.x_test]
    table = None
    if kind == "text":
        counts = Counter(word for text in data.x_train for word in _split(text))
        vocabulary = {word: i + 1 for i, (word, _) in enumerate(counts.most_common(words))}
        if vectors == "GloVe":
            spelled = [""] * words  # fewer words than asked for leave the last rows unused
            for word, number in vocabulary.items():
                spelled[number - 1] = word
            table = glove(spelled)
        # the first words of each text that are in the vocabulary, by their numbers; 0 is the end
        for i, texts in enumerate(parts):
            tokens = torch.zeros(len(texts), length, dtype=torch.long)
            for row, text in enumerate(texts):
                numbers = [vocabulary[word] for word in _split(text) if word in vocabulary][:length]
                tokens[row, : len(numbers)] = torch.tensor(numbers, dtype=torch.long)
            parts[i] = tokens
    elif kind == "image":
        # 32 x 32, in three colours, around 0
        for i, part in enumerate(parts):
            if part.shape[-1] != 32:
                part = F.interpolate(part, size=(32, 32), mode="area")
            parts[i] = part.expand(-1, 3, -1, -1).contiguous() - 0.5
    else:
        parts = [part.flatten(1) for part in parts]
    assert data.y_val is not None
    x, x_val, x_test = parts
    y = (data.y_train, data.y_val, data.y_test)
    return Rows(kind, x, y[0], x_val, y[1], x_test, y[2], len(data.classes), words + 1, table)


def bag_of_words(words: int, tokens: Tensor) -> Tensor:  # (m, length) -> (m, words)
    """A text as the kernel sees it: the shares of its words. The paper does not say what x is there."""
    ones = torch.ones(tokens.shape, device=tokens.device)
    counts = torch.zeros(len(tokens), words, device=tokens.device).scatter_add_(1, tokens, ones)
    counts[:, 0] = 0
    return counts / counts.sum(1, keepdim=True).clamp(min=1)


def _split(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower().replace("<br />", " "))


GLOVE = ("glove.6B.100d.txt", "glove.6B.300d.txt", "glove.6B.50d.txt", "glove.6B.200d.txt", "glove.840B.300d.txt")
_HOW_GLOVE = f"Put {GLOVE[0]} (or another file of GloVe's vectors) into the folder MERCER_DATA names."


def glove(words: Sequence[str], *, folder: str | Path | None = None) -> Tensor:  # -> (len(words) + 1, d)
    """Vectors of words, row i + 1 that of word i and row 0 zero; a word that the file lacks is drawn at random.

    Only the lines of wanted words are parsed: the files have up to two million.

    Raises:
        MissingData: No file of GloVe's is there.
        CorruptData: A line has another number of numbers than the first.
    """
    base = data_folder(folder)
    path = next((base / name for name in GLOVE if base is not None and (base / name).is_file()), None)
    if path is None:
        raise MissingData(_HOW_GLOVE)
    rows = {word: number + 1 for number, word in enumerate(words)}
    vectors_by_row: dict[int, list[float]] = {}
    width = 0
    # the lines of wanted words; the first line says how many numbers
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            word, _, numbers = line.rstrip("\n").partition(" ")
            width = width or len(numbers.split())
            if word not in rows:
                continue
            try:
                vector = [float(part) for part in numbers.split(" ")]
            except ValueError:
                vector = []
            if len(vector) != width or not width:
                raise corrupt(path, f"line {number} must hold a word and {width} numbers", numbers[:40])
            vectors_by_row[rows[word]] = vector
    # words that the file lacks are drawn, the row of no word is 0
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(len(words) + 1, width, generator=generator) * 0.1
    vectors[0] = 0
    for row, vector in vectors_by_row.items():
        vectors[row] = torch.tensor(vector)
    return vectors
