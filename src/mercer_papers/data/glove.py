"""GloVe word vectors from a local text file: a word and its numbers a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from mercer.storage.archives import corrupt

from ..data_files import MissingData, data_folder

FILES = ("glove.6B.100d.txt", "glove.6B.300d.txt", "glove.6B.50d.txt", "glove.6B.200d.txt", "glove.840B.300d.txt")
_HOW = f"Put {FILES[0]} (or another file of GloVe's vectors) into the folder MERCER_DATA names."


def glove(words: Sequence[str], *, folder: str | Path | None = None, seed: int = 0) -> Tensor:  # -> (len(words) + 1, d)
    """Vectors of words, row i + 1 that of word i and row 0 zero; a word that the file lacks is drawn at random.

    Only the lines of wanted words are parsed: the files have up to two million.

    Raises:
        MissingData: No file of GloVe's is there.
        CorruptData: A line has another number of numbers than the first.
    """
    base = data_folder(folder)
    path = next((base / name for name in FILES if base is not None and (base / name).is_file()), None)
    if path is None:
        raise MissingData(_HOW)
    rows = {word: number + 1 for number, word in enumerate(words)}
    vectors_by_row: dict[int, list[float]] = {}
    width = 0
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
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(len(words) + 1, width, generator=generator) * 0.1
    vectors[0] = 0
    for row, vector in vectors_by_row.items():
        vectors[row] = torch.tensor(vector)
    return vectors
