"""Theorem 3.1 (a step does not raise the loss) and Proposition 3.2 (the optimum is nearer in the transformed space)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mercer.kernels import RBF

from ..catalogue import Entry
from ..cells import Cell, Outcome

DRAWS = {"smoke": 50, "small": 2000, "paper": 20_000}
_GRID = (1e-1, 1e-2, 1e-3, 1e-4)  # the paper's, for the rate and for gamma
_CLAIMS: dict[str, dict[str, dict[str, Any]]] = {
    "chen2022/thm3.1": {
        "one instance": {"check": "rise", "m": 1},
        "mini-batch": {"check": "rise", "m": 8},
        "Hessian of an affine loss is K": {"check": "hessian"},
    },
    "chen2022/prop3.2": {
        "trace(H) = 1 / c": {"check": "distance", "trace": "1 / c", "direction": "random"},
        "an RBF matrix, trace m": {"check": "distance", "trace": "m", "direction": "leading"},
        "an RBF matrix, a random direction": {"check": "distance", "trace": "m", "direction": "random"},
    },
}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """The theorem as proved, as used, and the Hessian it starts from; the proposition with and without its premise."""
    return [
        Cell(entry.id, row=claim, settings={**settings, "draws": DRAWS[scale]}, seeds=1)
        for claim, settings in _CLAIMS[entry.id].items()
    ]


def run(cell: Cell) -> Outcome:
    """Whether the claim held in every draw."""
    s, generator = cell.settings, torch.Generator().manual_seed(cell.seed)
    if s["check"] == "hessian":
        return _affine(generator)
    if s["check"] == "rise":
        rises = torch.tensor([_rise(s["m"], generator) for _ in range(s["draws"])])
        worst, share = float(rises.max()), float((rises > 1e-12).double().mean())
        of_a_batch = f"The proof is for one instance; a batch of {s['m']}: "
        note = "Proved, and found, for one instance. " if s["m"] == 1 else of_a_batch
        note += f"The loss rose in {100 * share:.1f} % of {len(rises)} draws, by at most {worst:.3g}."
        return Outcome(worst, {"share of draws with a rise": share}, passed=share == 0, note=note)
    ratios = torch.tensor([_ratio(s["trace"], s["direction"], generator) for _ in range(s["draws"])])
    worst, share = float(ratios.max()), float((ratios > 1).double().mean())
    note = f"The distance grew in {100 * share:.1f} % of {len(ratios)} draws; the largest ratio is {worst:.3g}."
    return Outcome(worst, {"share of draws with growth": share}, passed=worst <= 1, note=note)


def _rise(m: int, generator: torch.Generator) -> float:
    """Change of the loss by one step of Eq. 8 at a random point, rate and gamma; above 0 the claim fails."""
    d, c = 6, 4
    x, g, w = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((m, 5), (m, d), (c, d)))
    y = torch.randint(c, (m,), generator=generator)
    lr, gamma = (_GRID[int(i)] for i in torch.randint(len(_GRID), (2,), generator=generator))
    # one step of Eq. 8 from a random point
    inverse = torch.zeros(d, d, dtype=torch.float64)  # padded with zeros, or without its last rows (Section 3.1)
    size = min(m, d)
    inverse[:size, :size] = torch.linalg.inv(RBF(gamma)(x).detach())[:size, :size]
    gradient = (F.softmax(g @ w.mT, 1) - F.one_hot(y, c)).mT @ g / m
    return float(_loss(w - lr * gradient @ inverse, g, y) - _loss(w, g, y))


def _loss(w: Tensor, g: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(g @ w.mT, y)


def _affine(generator: torch.Generator) -> Outcome:
    """With a loss that is affine in alpha, the Hessian of Eq. 2 by autograd, against K and against lambda K."""
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    gram, lam = RBF(0.5)(x).detach(), 0.01
    slope = torch.randn(6, generator=generator, dtype=torch.float64)

    def objective(alpha: Tensor) -> Tensor:
        return (slope * (gram @ alpha)).mean() + lam / 2 * alpha @ gram @ alpha

    hessian = torch.autograd.functional.hessian(objective, slope)
    off = float((hessian - gram).norm() / gram.norm())
    true = float((hessian - lam * gram).norm() / gram.norm())
    note = f"The Hessian is lambda K (off by {true:.1e}), not K (off by {off:.2f} of its norm at lambda = {lam})."
    return Outcome(off, {"distance to lambda K": true}, passed=off < 1e-10, note=note)


def _ratio(trace: str, direction: str, generator: torch.Generator) -> float:
    r""":math:`\|\Delta W H^{1/2}\|_F / \|\Delta W\|_F` of one draw; the claim is that it is at most 1."""
    m, c = 10, 4
    x = torch.randn(m, 5, generator=generator, dtype=torch.float64)
    h = RBF(0.05)(x).detach()
    if trace == "1 / c":
        h = h / (c * h.trace())
    # the change of W through the root of H
    values, vectors = torch.linalg.eigh(h)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.mT
    gap = torch.randn(c, m, generator=generator, dtype=torch.float64)
    if direction == "leading":  # the direction that the mean of features takes: the leading eigenvector
        gap = gap[:, :1] * vectors[:, -1]
    return float((gap @ root).norm() / gap.norm())
