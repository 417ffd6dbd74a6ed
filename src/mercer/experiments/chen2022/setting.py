"""The paper's data sets as tensors, at each scale."""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ...data import load

__all__ = ["KINDS", "NO_DOWNLOAD", "SIZES", "Rows", "Size", "bag_of_words", "needed", "rows_of"]

KINDS = {
    "mnist": "table",
    "usps": "table",
    "cifar10": "image",
    "s-cov": "image",
    "cov-tw": "text",
    "imdb": "text",
    "digits": "table",  # ours, beside the paper's six: it ships with scikit-learn
}
NO_DOWNLOAD = ("digits",)
WORDS, LENGTH = 2000, 60  # vocabulary and length of a text


@dataclass(frozen=True)
class Size:
    """How much of a set is used: rows before the validation split, rows of the test part, epochs at most."""

    rows: int | None
    test: int | None
    epochs: int


SIZES = {
    "smoke": {"table": Size(160, 80, 2), "image": Size(80, 40, 1), "text": Size(80, 40, 1)},
    "small": {"table": Size(1200, 1000, 8), "image": Size(640, 400, 4), "text": Size(640, 400, 3)},
    "paper": {"table": Size(None, None, 500), "image": Size(None, None, 500), "text": Size(None, None, 500)},
}


@dataclass(frozen=True)
class Rows:
    """One data set: training, validation (20 %) and test part, and the number of words of texts."""

    kind: str
    x: Tensor
    y: Tensor
    x_val: Tensor
    y_val: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    words: int = 0


def needed(name: str) -> list[str]:
    """What the runner must find in MERCER_DATA for a set."""
    return [] if name in NO_DOWNLOAD else [name]


@functools.lru_cache(maxsize=2)
def rows_of(name: str, scale: str) -> Rows:
    """A set at a scale; the paper's 20 % of the training rows validate."""
    kind = KINDS[name]
    size = SIZES[scale][kind]
    limit = None if size.rows is None or size.test is None else (size.rows, size.test)
    data = load(name, rows=limit, validation=0.2)
    parts = [data.x_train, data.x_val, data.x_test]
    words = 0
    if kind == "text":
        vocabulary = _vocabulary(data.x_train)
        parts = [_tokens(part, vocabulary) for part in parts]
        words = WORDS + 1
    elif kind == "image":
        parts = [_pictures(part) for part in parts]
    else:
        parts = [part.flatten(1) for part in parts]
    assert data.y_val is not None
    x, x_val, x_test = parts
    return Rows(kind, x, data.y_train, x_val, data.y_val, x_test, data.y_test, len(data.classes), words)


def bag_of_words(tokens: Tensor) -> Tensor:  # (m, length) -> (m, words)
    """What the kernel sees of a text: its words' shares, for the paper does not say what x is there."""
    counts = torch.zeros(len(tokens), WORDS + 1).scatter_add_(1, tokens, torch.ones(tokens.shape))
    counts[:, 0] = 0
    return counts / counts.sum(1, keepdim=True).clamp(min=1)


def _pictures(x: Tensor) -> Tensor:  # (n, c, h, w) -> (n, 3, 32, 32)
    if x.shape[-1] != 32:
        x = F.interpolate(x, size=(32, 32), mode="area")
    return x.expand(-1, 3, -1, -1).contiguous() - 0.5


def _split(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower().replace("<br />", " "))


def _vocabulary(texts: list[str]) -> dict[str, int]:
    counts = Counter(word for text in texts for word in _split(text))
    return {word: i + 1 for i, (word, _) in enumerate(counts.most_common(WORDS))}


def _tokens(texts: list[str], vocabulary: dict[str, int]) -> Tensor:  # (n, length)
    out = torch.zeros(len(texts), LENGTH, dtype=torch.long)
    for row, text in enumerate(texts):
        known = [vocabulary[word] for word in _split(text) if word in vocabulary][:LENGTH]
        out[row, : len(known)] = torch.tensor(known, dtype=torch.long)
    return out
