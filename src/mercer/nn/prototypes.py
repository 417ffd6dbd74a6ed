"""Directions that stand for a class: its mean, or the centres of spherical k-means."""

from __future__ import annotations

import torch
from torch import Tensor

from ..distributed import global_slice, shared_generator, sum_over_ranks, take_rows
from ..linalg import unit_rows

__all__ = ["class_directions"]

_STEPS = 30
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
        found[place] = _mean(own) if prototypes == 1 else _spherical_k_means(own, prototypes, generator)
    return found.to(z.dtype), missing


def _mean(unit: Tensor) -> Tensor:  # (n, d) -> (1, d)
    mean = sum_over_ranks(unit.sum(0, keepdim=True)) / global_slice(len(unit))[1]
    # Opposite rows cancel: any of them is then a better direction than rounding error.
    return unit_rows(mean) if float(mean.norm()) > 1e-6 else take_rows(unit, torch.zeros(1, dtype=torch.int64))


def _spherical_k_means(unit: Tensor, count: int, generator: torch.Generator | None) -> Tensor:  # (n, d) -> (count, d)
    n = global_slice(len(unit))[1]
    some = torch.randperm(n, generator=generator, device=unit.device) if n > _ROWS else torch.arange(n)
    unit = take_rows(unit, some[:_ROWS].to(unit.device))
    if len(unit) <= count:
        copies = unit[torch.arange(count, device=unit.device) % len(unit)]
        noise = torch.randn(copies.shape, generator=generator, dtype=unit.dtype, device=unit.device)
        return unit_rows(copies + _SPREAD * noise)
    centers = _spread_starts(unit, count, generator)
    for _ in range(_STEPS):
        nearest = (unit @ centers.mT).argmax(1)  # (n,)
        sums = torch.zeros_like(centers).index_add_(0, nearest, unit)
        moved = torch.where(sums.norm(dim=1, keepdim=True) > 1e-12, unit_rows(sums), centers)
        if torch.allclose(moved, centers, atol=1e-9):
            break
        centers = moved
    return centers


def _spread_starts(unit: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """k-means++: each next start drawn with weight 1 - its cosine to the nearest one so far."""
    first = torch.randint(len(unit), (1,), generator=generator, device=unit.device)
    chosen = [unit[first]]
    away = (1 - unit @ chosen[0].mT)[:, 0].clamp(min=0)
    for _ in range(count - 1):
        weights = away if float(away.sum()) > 0 else torch.ones_like(away)
        chosen.append(unit[torch.multinomial(weights, 1, generator=generator)])
        away = torch.minimum(away, (1 - unit @ chosen[-1].mT)[:, 0].clamp(min=0))
    return torch.cat(chosen)
