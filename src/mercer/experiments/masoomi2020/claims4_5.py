"""Claims 4 and 5: HSIC's gradient along the constraint is not zero at W_s, and zero at W*."""

from __future__ import annotations

import torch
from torch import Tensor

from ...layerwise import ism
from ...layerwise.bandwidths import most_dependent
from ...layerwise.dependence import class_sums, gaussian_gram, ism_matrix
from ...layerwise.spectral import riemannian_gradient
from ..catalogue import Entry
from ..cells import Cell, Outcome
from .sets import fold

ENTRY = "masoomi2020/claims4-5"
ZERO = 1e-5  # HSIC is flat at its maximum: steps below the root of rounding cannot be told apart


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Sets that need no download."""
    sets = ("wine",) if scale == "smoke" else ("wine", "cancer", "spiral")
    return [Cell(ENTRY, row=name, settings={"set": name}) for name in sets]


def run(cell: Cell) -> Outcome:
    """Relative norms of the gradient along W^T W = I at both solutions of the first layer."""
    parts = fold(cell.settings["set"], 0)
    r, y, c = parts.x_train, parts.y_train, parts.c
    width = min(c - 1, r.shape[1] - 1)
    sigma = most_dependent(r, y, c)
    embedded = torch.linalg.svd(class_sums(r, y, c).mT, full_matrices=False)[0][:, :width]
    star = ism(r, y, c, sigma, width=width, max_iterations=300, tolerance=ZERO / 10)
    at_embedding = _relative(r, y, c, sigma, embedded)
    note = f"Gradient, relative: {at_embedding:.2g} at W_s, {star.residual:.1g} at W* after {star.iterations} steps."
    return Outcome(
        values={"at W_s": at_embedding, "at W*": star.residual, "sigma": sigma},
        passed=at_embedding > 1e-3 and star.residual < ZERO,
        note=note,
    )


def _relative(r: Tensor, y: Tensor, c: int, sigma: float, w: Tensor) -> float:
    z = r @ w
    q = ism_matrix(gaussian_gram(z, z, sigma), r, y, c)
    return float(riemannian_gradient(q, w).norm() / (q @ w).norm())
