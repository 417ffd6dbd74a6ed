"""Directions that stand for a class: its mean, or the centres of k-means on the sphere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..linalg.distances import unit_rows
from ..rows.agreement import share_generator
from ..rows.rows import Rows

_ROWS = 5000  # of one class that k-means looks at
_ROWS_OF_A_PROTOTYPE = 100  # docs/which-head.md has the trials
_MOST_PROTOTYPES = 10
_SPREAD = 1e-2  # what tells copies of one row apart, where a class has fewer rows than prototypes


def class_directions(
    z: Tensor, labels: Tensor, classes: int, prototypes: int, generator: torch.Generator | None
) -> tuple[Tensor, list[int]]:
    """Unit vectors ``(classes * prototypes, d)``, class-major, and the classes that have no row (theirs are 0).

    With several ranks, each passes its own rows; the directions come from all rows.
    """
    unit, generator = unit_rows(z.double()), share_generator(generator)
    directions = unit.new_zeros(classes * prototypes, z.shape[1])
    missing = []
    for label in range(classes):
        rows = Rows(unit[labels == label])
        place = slice(label * prototypes, (label + 1) * prototypes)
        if rows.n == 0:
            missing.append(label)
        elif prototypes == 1:
            directions[place] = _find_mean(rows)
        else:
            directions[place] = _find_centers(rows, prototypes, generator)
    return directions.to(z.dtype), missing


def prototypes_for(labels: Tensor, classes: int) -> int:
    """Prototypes that the rows can carry: one for each 100 rows of a class, by the median class; 1 to 10."""
    counts = Rows.total(torch.bincount(labels, minlength=classes).double())
    typical = float(counts.median())
    return int(min(_MOST_PROTOTYPES, max(1, typical // _ROWS_OF_A_PROTOTYPE)))


def _find_mean(rows: Rows) -> Tensor:  # (n, d) -> (1, d)
    mean = rows.mean(lambda unit: unit.sum(0, keepdim=True))
    if float(mean.norm()) > 1e-6:
        return unit_rows(mean)
    # Opposite rows cancel: any of them is then a better direction than rounding error.
    first: Tensor = rows.take(torch.zeros(1, dtype=torch.int64))
    return first


def _find_centers(rows: Rows, count: int, generator: torch.Generator | None) -> Tensor:  # (n, d) -> (count, d)
    """Centers of k-means on some rows of all ranks; rows too few to be told apart are shaken copies."""
    from sklearn.cluster import KMeans

    # Some rows, the same on all ranks.
    order = torch.arange(rows.n)
    if rows.n > _ROWS:
        order = torch.randperm(rows.n, generator=generator, device=rows.parts[0].device)
    unit = rows.take(order[:_ROWS].to(rows.parts[0].device))
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator, device=unit.device))
    # Too few different rows for k-means: copies of them, a little apart.
    distinct = unit.unique(dim=0)
    if len(distinct) <= count:
        copies = distinct[torch.arange(count, device=unit.device) % len(distinct)]
        noise = torch.randn(copies.shape, generator=generator, dtype=unit.dtype, device=unit.device)
        return unit_rows(copies + _SPREAD * noise)
    machine = KMeans(count, n_init=1, random_state=seed).fit(unit.cpu().numpy())
    return unit_rows(torch.from_numpy(machine.cluster_centers_).to(unit))


def check_labels(where: str, labels: Any, z: Tensor, classes: int) -> Tensor:
    """Labels as whole numbers on the rows' device."""
    labels = torch.as_tensor(labels).to(z.device)
    if labels.ndim != 1:
        fix = "Use labels.ravel() for a column."
        raise ValueError(checks.sentence(where, "labels must have shape (n,)", tuple(labels.shape), fix))
    checks.same_length(where, "embeddings", z, "labels", labels)
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(checks.sentence(where, "labels must be whole numbers", labels.dtype))
    indices: Tensor = labels.long()
    if len(indices):
        low, high = int(indices.min()), int(indices.max())
        if low < 0 or high >= classes:
            raise ValueError(checks.sentence(where, f"labels must be in 0..{classes - 1}", f"{low}..{high}"))
    return indices
