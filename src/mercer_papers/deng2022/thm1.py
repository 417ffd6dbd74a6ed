"""Theorem 1 on a finite measure: solve the chain of constrained maximizations and compare with the eigenpairs."""

from __future__ import annotations

import torch
from torch import Tensor

from mercer.kernels import NNGP, RBF, Kernel, Polynomial

from ..catalogue import Entry
from ..cells import Cell, Outcome
from .measures import rng

KERNELS: dict[str, Kernel] = {"RBF": RBF(1.0), "polynomial": Polynomial(3, 0.5, 1.0), "NNGP": NNGP(2, bias_var=0.2)}
K = 5


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Three kernels on random points."""
    n = {"smoke": 12, "small": 60, "paper": 200}[scale]
    seeds = 1 if scale == "smoke" else 3
    return [Cell(entry.id, name, "gap", {"rows": n, "k": K, "kernel": name}, seeds=seeds) for name in KERNELS]


def run(cell: Cell) -> Outcome:
    """Largest gap between the maximal R_jj found under the constraints and the j-th eigenvalue, relative to it."""
    n = cell.settings["rows"]
    x = torch.randn(n, 3, generator=rng(cell.seed), dtype=torch.float64)
    gram = KERNELS[cell.settings["kernel"]](x)
    values, vectors = torch.linalg.eigh(gram / n)
    values, vectors = values.flip(0)[:K], vectors.flip(1)[:, :K]
    operator = gram / n
    earlier: list[Tensor] = []
    gaps, angles = [], []
    for j in range(K):
        # the subspace R_ij = 0, i < j, and the sphere C_j = 1 in it; nothing is said of eigenvectors
        constraints = torch.zeros(n, 0, dtype=torch.float64)
        if earlier:
            constraints = torch.stack([operator @ psi for psi in earlier], 1)
        basis = torch.linalg.qr(constraints)[0]
        psi = _project(torch.randn(n, generator=rng(cell.seed + j), dtype=torch.float64), basis)
        # ascent of R_jj from a random start
        for _ in range(20_000):
            moved = _project(operator @ psi, basis)
            if float((moved - psi).abs().max()) < 1e-12:
                break
            psi = moved
        earlier.append(psi)
        gaps.append(abs(float(psi @ gram @ psi) / n**2 - float(values[j])) / float(values[j]))
        angles.append(abs(float(psi @ vectors[:, j])) / n**0.5)
    return Outcome(
        value=max(gaps),
        values={"least |cos| with the eigenvector": min(angles)},
        passed=max(gaps) < 1e-6 and min(angles) > 1 - 1e-6,
        note="projected ascent of R_jj from a random start under C_j = 1 and R_ij = 0",
    )


def _project(psi: Tensor, basis: Tensor) -> Tensor:  # (n,), (n, j) -> (n,)
    psi = psi - basis @ (basis.mT @ psi)
    return psi / psi.square().mean().sqrt()
