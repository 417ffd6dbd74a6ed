"""Directions that stand for a class: its mean, or the centres of k-means on the sphere."""

from __future__ import annotations

import torch
from torch import Tensor

from ..distributed import global_slice, shared_generator, sum_over_ranks, take_rows
from ..linalg import unit_rows

__all__ = ["class_directions"]

_ROWS = 5000  # of one class that k-means looks at
_SPREAD = 1e-2  # what tells copies of one row apart, where a class has fewer rows than prototypes


def class_directions(
    z: Tensor, labels: Tensor, classes: int, prototypes: int, generator: torch.Generator | None
) -> tuple[Tensor, list[int]]:
    """Unit vectors ``(classes * prototypes, d)``, class-major, and the classes that have no row (theirs are 0).

    Of several ranks each gives its own rows; directions are those of all rows.
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
