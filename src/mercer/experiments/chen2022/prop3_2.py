"""Proposition 3.2: the optimum is nearer in the transformed space. It needs trace(H) <= 1 / c; an RBF trace is m."""

from __future__ import annotations

import torch

from ...kernels import RBF
from ..cells import Cell, Outcome

DRAWS = {"smoke": 50, "small": 2000, "paper": 20_000}
CLAIMS = ("trace(H) = 1 / c", "an RBF matrix, trace m", "an RBF matrix, a random direction")


def cells(scale: str) -> list[Cell]:
    """Under the assumption, and for the matrices that the method uses."""
    settings = {"draws": DRAWS[scale]}
    return [Cell("chen2022/prop3.2", row=claim, settings=settings, seeds=1) for claim in CLAIMS]


def run(cell: Cell) -> Outcome:
    r"""The largest :math:`\|\Delta W H^{1/2}\|_F / \|\Delta W\|_F` over draws; the claim is that it is at most 1."""
    generator = torch.Generator().manual_seed(cell.seed)
    ratios = torch.tensor([_ratio(cell.row, generator) for _ in range(cell.settings["draws"])])
    worst, share = float(ratios.max()), float((ratios > 1).double().mean())
    note = f"The distance grew in {100 * share:.1f} % of {len(ratios)} draws; the largest ratio is {worst:.3g}."
    return Outcome(worst, {"share of draws with growth": share}, passed=worst <= 1, note=note)


def _ratio(claim: str, generator: torch.Generator) -> float:
    m, c = 10, 4
    x = torch.randn(m, 5, generator=generator, dtype=torch.float64)
    h = RBF(0.05)(x).detach()
    if claim == CLAIMS[0]:
        h = h / (c * h.trace())
    values, vectors = torch.linalg.eigh(h)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.mT
    gap = torch.randn(c, m, generator=generator, dtype=torch.float64)
    if claim == CLAIMS[1]:  # the direction that the mean of features takes: the leading eigenvector
        gap = gap[:, :1] * vectors[:, -1]
    return float((gap @ root).norm() / gap.norm())
