"""What a diagnosis reads: a part of the table as numbers, its labels, and what the user should know of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ... import checks
from ...storage.archives import read_npz
from ..columns import Column, Target, Writing, find_target, name_by_text, present
from ..frames import as_pandas
from ..reading import read
from ..training import Training, order_by_content

SCANNED = 200_000
"""Rows of a file that are looked at; a longer one is read in part."""
FEWEST = 10
"""Rows below which nothing can be said."""
MOST_CLASSES = 20
"""Classes that are told apart; rows of rarer ones are set aside."""


class Sample(NamedTuple):
    """A file as :func:`~mercer.tabular.diagnose` takes it.

    Attributes:
        frame: Its columns.
        embeddings: By name, its arrays ``(n, m)``, where it is an npz file.
        notes: What was left out.
    """

    frame: pd.DataFrame
    embeddings: dict[str, Any]
    notes: list[str]


@dataclass(frozen=True)
class Problem:
    """Rows and labels of one diagnosis.

    Attributes:
        target: What is predicted.
        x: The prepared columns, ``(n, d)``; None where the table has embeddings only.
        embeddings: By name, ``(n, m)``.
        y: Classes ``0..c - 1`` or numbers, ``(n,)``.
        classes: Names of the classes that are left.
        counts: Rows of each.
        columns: What was done with each column.
        notes: Sentences for the user.
        conflicts: Rows that another row equals in every feature but not in its label.
        copies: Rows that another row equals in all, label included.
    """

    target: Target
    x: Tensor | None
    embeddings: dict[str, Tensor]
    y: Tensor
    classes: list[str]
    counts: list[int]
    columns: list[Column]
    notes: list[str]
    conflicts: int
    copies: int

    @property
    def guess(self) -> float:
        """Share of the rows in the most common class."""
        if not self.counts:
            return 0.0
        return max(self.counts) / sum(self.counts)

    def measure_accuracy(self, predicted: Tensor) -> float | None:  # (n, c)
        """Share of rows whose centred -1/+1 columns are largest at their class; None for regression."""
        if not self.classes:
            return None
        if predicted.shape[1] == 1:
            threshold = 1 - 2 * self.counts[1] / len(self.y)
            return float(((predicted[:, 0] > threshold).long() == self.y).double().mean())
        shares = torch.tensor(self.counts, dtype=predicted.dtype) / len(self.y)
        return float(((predicted + 2 * shares).argmax(1) == self.y).double().mean())


def sample(path: str | Path) -> Sample:
    """The first rows of a file; of an npz file its arrays ``(n, m)`` as embeddings, the others as columns."""
    path = Path(path)
    if path.suffix.lower() != ".npz":
        frame = read(path, rows=SCANNED + 1)
        if len(frame) <= SCANNED:
            return Sample(frame, {}, [])
        said = f"The file has more than {SCANNED:,} rows; only the first {SCANNED:,} were looked at."
        return Sample(frame.iloc[:SCANNED], {}, [said])
    frame = read(path)  # its checks come first
    arrays = read_npz(path)
    wide = {name: array.reshape(len(array), -1) for name, array in arrays.items() if array.ndim > 1}
    wide = {name: array for name, array in wide.items() if array.dtype.kind in "biuf"}
    embedded = {f"{name}_{i}" for name, array in wide.items() for i in range(array.shape[1])}
    return Sample(frame[[name for name in frame.columns if name not in embedded]], wide, [])


def pose_problem(
    frame: pd.DataFrame,
    target: str,
    *,
    task: str,
    embeddings: Mapping[str, Any],
    rows: int,
    generator: torch.Generator,
    training: Training,
) -> Problem:
    """Choose rows, read the target, prepare the columns, as a fit of these rows would."""
    checks.integer("diagnose", "rows", rows, FEWEST)
    frame = name_by_text(as_pandas("diagnose", frame))
    name = find_target(frame.columns, target)
    series = frame[name]

    # The target, by all rows that have one.
    blank = int((~present(series)).sum())
    notes = [f"{blank:,} rows without a value in {name} were left out."] * bool(blank)
    writings = {column: Writing.of(frame[column]) for column in frame.columns}
    asked = Target.of(series, task=task, writing=writings[name])
    notes += asked.notes
    places = np.flatnonzero(asked.known(series))  # of the rows that are read

    # Rows of the most frequent classes, and a draw of them.
    if asked.classes is not None and len(asked.classes) > MOST_CLASSES:
        codes = asked.encode(series.iloc[places])
        counts = torch.bincount(codes, minlength=len(asked.classes))
        largest = counts.argsort(descending=True, stable=True)[:MOST_CLASSES]
        notes.append(f"Of {len(asked.classes)} classes the {MOST_CLASSES} with most rows were read.")
        places = places[torch.isin(codes, largest).numpy()]
    if len(places) < FEWEST:
        need = f"at least {FEWEST} rows must have a value in {name!r}"
        raise ValueError(checks.sentence("diagnose", need, len(places)))
    if len(places) > rows:
        notes.append(f"A random {rows:,} of {len(places):,} rows were read.")
        places = np.sort(places[torch.randperm(len(places), generator=generator)[:rows].numpy()])
    places = places[order_by_content(frame.iloc[places])]  # as a fit orders them
    part = frame.iloc[places]
    y = asked.encode(part[name])
    if len(y.unique()) == 1:
        need, got = f"column {name!r} must vary in the rows that were drawn", f"{float(y[0]):g} in each"
        if asked.classes is not None:
            need, got = f"the rows that were drawn must hold two classes of {name!r}", f"only {asked.classes[y[0]]}"
        raise ValueError(checks.sentence("diagnose", need, got, "Use more rows."))

    # The columns, where there are any beside the target.
    training.task = asked.task
    x, columns = None, []
    if part.shape[1] > 1 or not embeddings:
        x, y = training.read(part, name, writings=writings)
        columns = training.preparation.columns
        notes += [text for text in training.notes if text not in notes]
    else:
        training.target = Target.of(part[name], task=asked.task, writing=writings[name])
        y = training.target.encode(part[name])
    classes: list[str] = []
    counts_by_class: list[int] = []
    if training.target.classes is not None:
        classes = [str(label) for label in training.target.classes]
        counts_by_class = torch.bincount(y).tolist()

    # The embeddings of the same rows.
    embeddings_of_rows = {}
    for key, value in embeddings.items():
        if isinstance(value, Tensor):
            value = value.detach().cpu().numpy()
        matrix = torch.as_tensor(np.array(value)).double()  # a copy: torch warns of arrays that are read-only
        matrix = checks.squarable("diagnose", str(key), checks.matrix("diagnose", str(key), matrix))
        if len(matrix) != len(frame):
            need = f"{key} must have a row for each of the table's {len(frame)}"
            raise ValueError(checks.sentence("diagnose", need, len(matrix)))
        embeddings_of_rows[str(key)] = matrix[places]

    # Rows that equal another in all features: with another label no model gets both right.
    features = torch.cat([part for part in (x, *embeddings_of_rows.values()) if part is not None], 1)
    group = features.unique(dim=0, return_inverse=True)[1]
    pair = torch.stack([group.double(), y.double()], 1).unique(dim=0, return_inverse=True)[1]
    alike, copies = torch.bincount(group)[group], torch.bincount(pair)[pair]
    conflicts = int((alike > copies).sum())
    repeated = int((copies > 1).sum())
    return Problem(asked, x, embeddings_of_rows, y, classes, counts_by_class, columns, notes, conflicts, repeated)
