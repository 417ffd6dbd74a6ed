"""Directions that stand for a class: its mean, or the centres of k-means on the sphere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..distributed import global_slice, shared_generator, sum_over_ranks, take_rows
from ..linalg.distances import unit_rows

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
    unit, generator = unit_rows(z.double()), shared_generator(generator)
    found = unit.new_zeros(classes * prototypes, z.shape[1])
    missing = []
    for label in range(classes):
        own = unit[labels == label]
        if global_slice(len(own))[1] == 0:
            missing.append(label)
            continue
        place = slice(label * prototypes, (label + 1) * prototypes)
        found[place] = _mean(own) if prototypes == 1 else _k_means(own, prototypes, generator)
    return found.to(z.dtype), missing


def prototypes_for(labels: Tensor, classes: int) -> int:
    """Prototypes that the rows can carry: one for each 100 rows of a class, by the median class; 1 to 10."""
    counts = sum_over_ranks(torch.bincount(labels, minlength=classes).double())
    typical = float(counts.median())
    return int(min(_MOST_PROTOTYPES, max(1, typical // _ROWS_OF_A_PROTOTYPE)))


def _mean(unit: Tensor) -> Tensor:  # (n, d) -> (1, d)
    mean = sum_over_ranks(unit.sum(0, keepdim=True)) / global_slice(len(unit))[1]
    # Opposite rows cancel: any of them is then a better direction than rounding error.
    return unit_rows(mean) if float(mean.norm()) > 1e-6 else take_rows(unit, torch.zeros(1, dtype=torch.int64))


def _k_means(unit: Tensor, count: int, generator: torch.Generator | None) -> Tensor:  # (n, d) -> (count, d)
    from sklearn.cluster import KMeans

    n = global_slice(len(unit))[1]
    some = torch.randperm(n, generator=generator, device=unit.device) if n > _ROWS else torch.arange(n)
    unit = take_rows(unit, some[:_ROWS].to(unit.device))
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator, device=unit.device))
    distinct = unit.unique(dim=0)
    if len(distinct) <= count:
        copies = distinct[torch.arange(count, device=unit.device) % len(distinct)]
        noise = torch.randn(copies.shape, generator=generator, dtype=unit.dtype, device=unit.device)
        return unit_rows(copies + _SPREAD * noise)
    found = KMeans(count, n_init=1, random_state=seed).fit(unit.cpu().numpy())
    return unit_rows(torch.from_numpy(found.cluster_centers_).to(unit))


def checked_labels(where: str, labels: Any, z: Tensor, classes: int) -> Tensor:
    """Labels as whole numbers on the rows' device."""
    labels = torch.as_tensor(labels).to(z.device)
    if labels.ndim != 1:
        fix = "Use labels.ravel() for a column."
        raise ValueError(checks.sentence(where, "labels must have shape (n,)", tuple(labels.shape), fix))
    checks.same_length(where, "embeddings", z, "labels", labels)
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(checks.sentence(where, "labels must be whole numbers", labels.dtype))
    whole: Tensor = labels.long()
    least, most = (int(whole.min()), int(whole.max())) if len(whole) else (0, 0)
    if least < 0 or most >= classes:
        raise ValueError(checks.sentence(where, f"labels must be in 0..{classes - 1}", f"{least}..{most}"))
    return whole
