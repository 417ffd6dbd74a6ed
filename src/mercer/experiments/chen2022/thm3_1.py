"""Theorem 3.1: a step of Kernel SGD does not raise the cross-entropy. True for one instance, false for a batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ...kernels import RBF
from ...optim.kernel_sgd import kernel_inverse, reshaped
from ..cells import Cell, Outcome

DRAWS = {"smoke": 50, "small": 2000, "paper": 20_000}
_GRID = (1e-1, 1e-2, 1e-3, 1e-4)  # the paper's, for the rate and for gamma
_CUTOFF = 1e-6  # about that of torch's pseudo-inverse in float32, for the paper names none
CLAIMS = ("one instance", "mini-batch", "Hessian of an affine loss is K")


def cells(scale: str) -> list[Cell]:
    """The theorem as proved, as used, and the Hessian it starts from."""
    settings = {"draws": DRAWS[scale]}
    return [Cell("chen2022/thm3.1", row=claim, settings=settings, seeds=1) for claim in CLAIMS]


def run(cell: Cell) -> Outcome:
    """Whether the claim held in every draw; the worst rise of the loss."""
    generator = torch.Generator().manual_seed(cell.seed)
    if cell.row == CLAIMS[2]:
        return _affine(generator)
    m = 1 if cell.row == CLAIMS[0] else 8
    rises = torch.tensor([_rise(m, generator) for _ in range(cell.settings["draws"])])
    share = float((rises > 1e-12).double().mean())
    rose = f"The loss rose in {100 * share:.1f} % of {len(rises)} draws, by at most {float(rises.max()):.3g}."
    note = "Proved, and found, for one instance. " if m == 1 else "The proof is for one instance; a batch of 8: "
    return Outcome(float(rises.max()), {"share of draws with a rise": share}, passed=share == 0, note=note + rose)


def _rise(m: int, generator: torch.Generator) -> float:
    """Change of the loss by one step of Eq. 8 at a random point, rate and gamma; above 0 the claim fails."""
    d, c = 6, 4
    x, g, w = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((m, 5), (m, d), (c, d)))
    y = torch.randint(c, (m,), generator=generator)
    lr, gamma = (_GRID[int(i)] for i in torch.randint(len(_GRID), (2,), generator=generator))
    inverse = reshaped(kernel_inverse(RBF(gamma), x, _CUTOFF), d)
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
