"""Theorem E.1: the partial sum of a radial series stays within the Lagrange bound (Appendix E)."""

from __future__ import annotations

import math

import torch

from mercer.figures.theme import LIGHT, Figure, canvas
from mercer.kernels import truncation_bound

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result

_TERMS = 400
_ORDERS = (0, 1, 2, 5, 10, 20)
_SERIES = (
    "Gaussian, gamma 1",
    "Gaussian, gamma 5",
    "Polynomial, order 30",
    "Geometric, ratio 0.5",
    "Arc-cosine, order 1",
)


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Kernels whose series are known, smooth and less so."""
    rows = _SERIES[:2] if scale == "smoke" else _SERIES
    return [Cell(entry.id, row=row, settings={"terms": _TERMS, "orders": list(_ORDERS)}) for row in rows]


def run(cell: Cell) -> Outcome:
    """The largest error over [-1, 1] against the bound, and against the tail of the coefficients, at several M."""
    alphas = _alphas(cell.row, cell.settings["terms"])
    # the error of each partial sum, its bound, and the plain tail
    t = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    powers = t[None] ** torch.arange(len(alphas), dtype=torch.float64)[:, None]  # (terms, points)
    errors, bounds, tails = [], [], []
    for order in cell.settings["orders"]:
        errors.append(float((alphas[order + 1 :, None] * powers[order + 1 :]).sum(0).abs().max()))
        bounds.append(truncation_bound(alphas, order))
        tails.append(float(alphas[order + 1 :].sum()))
    # within the bound, and how loose it is
    passed = all(error <= bound * (1 + 1e-12) for error, bound in zip(errors, bounds, strict=True))
    loose = max(bound / max(tail, 1e-300) for bound, tail in zip(bounds, tails, strict=True) if tail > 1e-15)
    x = list(map(float, cell.settings["orders"]))
    note = f"The bound is up to {loose:.2g} times the plain tail sum, which bounds the error as well."
    curves = {"error": {"x": x, "y": errors}, "bound": {"x": x, "y": bounds}, "tail": {"x": x, "y": tails}}
    return Outcome(passed=passed, values={"error at M = 10": errors[4], "bound at M = 10": bounds[4]}, curves=curves,
                   note=note)  # fmt: skip


def draw(results: list[Result]) -> Figure:
    """Error and bound against M, one panel for each series, on a logarithmic scale."""
    figure, axes = canvas(1, len(results), width=2.3 * len(results) + 1, height=3.2)
    for ax, result in zip(axes, results, strict=True):
        for name, wide in (("bound", 1.5), ("tail", 6.0), ("error", 1.5)):  # the tail and the error may be one line
            curve = result.curves[name]
            points = [(x, y) for x, y in zip(curve["x"], curve["y"], strict=True) if y > 1e-17]  # the rest is rounding
            ax.plot(*zip(*points, strict=True), marker=".", linewidth=wide, alpha=0.4 if wide > 2 else 1, label=name)
        ax.set(title=result.row, xlabel="M", yscale="log")
        ax.title.set_fontsize(9)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, fontsize=9, labelcolor=LIGHT.ink)
    return figure


def _alphas(name: str, terms: int) -> torch.Tensor:
    """Coefficients of the powers of t on the sphere."""
    if name.startswith("Gaussian"):  # exp(-gamma |u - v|^2) = e^{-2 gamma} e^{2 gamma t}
        gamma = float(name.rsplit(" ", 1)[1])
        values = [math.exp(-2 * gamma + m * math.log(2 * gamma) - math.lgamma(m + 1)) for m in range(terms)]
    elif name.startswith("Polynomial"):  # ((1 + t) / 2)^30
        values = [math.comb(30, m) / 2**30 for m in range(31)]
    elif name.startswith("Geometric"):
        values = [0.5 ** (m + 1) for m in range(terms)]
    else:  # (sin a + (pi - a) cos a) / pi: a half linear, the rest even, with coefficients of order m^{-5/2}
        values = [1 / math.pi, 0.5] + [0.0] * (terms - 2)
        for m in range(2, terms, 2):
            log = math.lgamma(m - 1) - (m - 2) * math.log(2) - 2 * math.lgamma(m / 2)
            values[m] = math.exp(log) / (math.pi * (m - 1) * m)
    return torch.tensor(values, dtype=torch.float64)
