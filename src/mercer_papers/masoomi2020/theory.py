"""Theorems 1 and 2, Corollary 2 and Claims 4 to 6 on sets that need no download."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mercer.figures import plots
from mercer.figures.theme import Figure, canvas
from mercer.layerwise.bandwidths import most_dependent
from mercer.layerwise.closed_form import Chain, fit_closed_form
from mercer.layerwise.dependence import class_sums, gamma_table, gaussian, ism_matrix
from mercer.layerwise.spectral import fit_spectral, ism, riemannian_gradient

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from .solved import RESTARTED, Fold, fold, stack_layers

ZERO = 1e-5  # HSIC is flat at its maximum: steps below the root of rounding cannot be told apart
EQUAL = 1e-8
CHARITABLE = "norms squared and K frozen"  # a reading of claim 6
SHOWN = 60  # rows of a kernel matrix in the picture


def cells(entry: Entry, scale: str) -> list[Cell]:
    """The sets that the entry's TOML names, each in the entry's readings; one of the sets at smoke scale."""
    sets = entry.run["sets"][:1] if scale == "smoke" else entry.run["sets"]
    cells = []
    for name in sets:
        settings = {"set": name, "check": entry.run["check"], **entry.run.get("settings", {})}
        if "readings" not in entry.run:
            cells.append(Cell(entry.id, row=name, settings=settings))
        for reading in entry.run.get("readings", ()):
            cells.append(Cell(entry.id, row=f"{name}, {reading}", settings={**settings, "reading": reading}))
    return cells


def run(cell: Cell) -> Outcome:
    """The check that the cell names."""
    name = cell.settings["set"]
    parts = fold("wine" if name == "uneven" else name, 0)
    return _CHECKS[cell.settings["check"]](parts, cell.settings)


def _follow_layers(parts: Fold, s: Any) -> Outcome:
    """Theorem 1: H of every layer of W_s, those that do not raise it too; passed where all rise to 1 - delta.

    The theorem says that bandwidths exist; ours are searched, so that a failure is of the search.
    """
    H: list[float] = []
    for halvings in range(s["restarts"] + 1):
        tried = stack_layers(parts, s["layers"], 1 - s["delta"], halvings)
        if not H or tried[-1] > H[-1]:
            H = tried
        if H[-1] >= 1 - s["delta"] and _count_falls(H) == 0:
            break
    # what the best walk did
    fell = _count_falls(H)
    x = [float(i) for i in range(len(H))]
    note = f"{len(H) - 1} layers, {fell} of them did not raise H; H from {H[0]:.3f} to {H[-1]:.3f}."
    return Outcome(
        value=H[-1],
        values={"layers": float(len(H) - 1), "layers that did not raise H": float(fell)},
        curves={"H": {"x": x, "y": H}},
        passed=fell == 0 and H[-1] >= 1 - s["delta"],
        note=note,
    )


def _count_falls(H: list[float]) -> int:
    """How many layers did not raise H."""
    return sum(after <= before for before, after in itertools.pairwise(H))


def _solve(parts: Fold, reading: str) -> Chain:
    """The theorems' own sequence, W_s in one walk of bandwidths; that with our restarts; or W*."""
    x, y, c = parts.x_train, parts.y_train, parts.c
    if reading == "W*":
        return fit_spectral(x, y, c, enough=0.999, generator=torch.Generator().manual_seed(0))
    restarts = 8 if reading == RESTARTED else 0
    return fit_closed_form(x, y, c, rule="authors", max_layers=20, enough=0.999, restarts=restarts)


def _reach_limit(parts: Fold, s: Any) -> Outcome:
    """Theorem 2: T by layer, and the last layer's kernel: mean within and between classes."""
    chain = _solve(parts, s["reading"])
    y = parts.y_train
    gram, same = gaussian(chain.bandwidth)(chain.outputs), y[:, None] == y
    within, between = float(gram[same].mean()), float(gram[~same].mean())
    # the scatter ratio by layer, and a few rows of the last kernel for the picture
    T = [record.t for record in chain.history]
    order = y.argsort(stable=True)
    rows = order[torch.linspace(0, len(order) - 1, min(SHOWN, len(order))).round().long()]
    tolerance = s["near"]
    return Outcome(
        value=T[-1],
        values={"within": within, "between": between, "H": chain.history[-1].hsic},
        curves={"T": {"x": [float(i + 1) for i in range(len(T))], "y": T}},
        arrays={"kernel": gram[rows][:, rows].tolist()},
        passed=T[-1] < T[0] and T[-1] < tolerance and within > 1 - tolerance and abs(between) < tolerance,
        note=f"Mean kernel {within:.3f} within and {between:.3f} between classes; T from {T[0]:.2f} to {T[-1]:.3f}.",
    )


def _measure_losses(parts: Fold, s: Any) -> Outcome:
    """Corollary 2: MSE to translated labels in IDS over the outputs' variance, and CE after a change of basis."""
    chain = _solve(parts, s["reading"])
    H = [record.hsic for record in chain.history]
    last = chain.history[-1]
    spread = float((chain.outputs - chain.outputs.mean(0)).square().sum(1).mean())
    return Outcome(
        values={"H": last.hsic, "MSE": last.mse, "MSE / variance": last.mse / spread, "CE": last.ce},
        curves={
            "MSE": {"x": H, "y": [record.mse for record in chain.history]},
            "CE": {"x": H, "y": [record.ce for record in chain.history]},
        },
        passed=last.ce < s["near"] and last.mse / spread < s["near"],
        note=f"At H = {last.hsic:.3f}: CE {last.ce:.4f}, MSE {last.mse / spread:.4f} of the outputs' variance.",
    )


def _measure_gradients(parts: Fold, _: Any) -> Outcome:
    """Claims 4 and 5: relative norms of the gradient along W^T W = I at both solutions of the first layer."""
    r, y, c = parts.x_train, parts.y_train, parts.c
    width = min(c - 1, r.shape[1] - 1)
    sigma = most_dependent(r, y, c)
    embedded = torch.linalg.svd(class_sums(r, y, c).mT, full_matrices=False)[0][:, :width]
    # W*, and the gradient's norm at W_s along the constraint
    star = ism(r, y, c, sigma, width=width, max_iterations=300, tolerance=ZERO / 10)
    q = ism_matrix(gaussian(sigma)(r @ embedded), r, y, c)
    at_embedding = float(riemannian_gradient(q, embedded).norm() / (q @ embedded).norm())
    note = f"Gradient, relative: {at_embedding:.2g} at W_s, {star.residual:.1g} at W* after {star.iterations} steps."
    return Outcome(
        values={"at W_s": at_embedding, "at W*": star.residual, "sigma": sigma},
        passed=at_embedding > 1e-3 and star.residual < ZERO,
        note=note,
    )


def _compare_equations(parts: Fold, s: Any) -> Outcome:
    """Claim 6: Eq. 11 against Eq. 1, which the poster calls equivalent, and against Tr(W^T Q W) / sigma^2."""
    r, y, c = parts.x_train, parts.y_train, parts.c
    if s["set"] == "uneven":  # one class far larger than the others: a between-class Gamma is then positive
        keep = torch.cat([(y == k).nonzero()[: (40, 4, 4)[k], 0] for k in range(c)])
        r, y = r[keep], y[keep]
    sigma = most_dependent(r, y, c)
    w = ism(r, y, c, sigma, width=min(c - 1, r.shape[1])).w
    if s["reading"] == CHARITABLE:
        return _compare_gradients(r, y, c, sigma)
    # both sides of the claim, as printed and with squared norms and signed Gamma
    z = r @ w
    ours, printed = implicit_penalty(r, w, y, c, sigma), implicit_penalty(r, w, y, c, sigma, as_printed=True)
    eq1 = float((gamma_table(y, c).to(r.dtype)[y][:, y] * gaussian(sigma)(z)).sum())
    eq11 = printed.attraction - float((printed.penalties * z.norm(dim=1)).sum())
    values = {
        "Eq. 1": eq1,
        "Eq. 11 as printed": eq11,
        "Tr(W^T Q W) / sigma^2": ours.objective,
        "gap, squared norms": abs(ours.attraction - ours.charge - ours.objective) / abs(ours.objective),
        "gap, |Gamma|": abs(printed.attraction - printed.charge - ours.objective) / abs(ours.objective),
    }
    note = (
        f"Eq. 1 is {eq1:.4g} and Eq. 11 {eq11:.4g}: not equal. With squared norms and signed Gamma, Eq. 11 equals "
        f"Tr(W^T Q W) / sigma^2 = {ours.objective:.4g}, what a step of ISM maximizes."
    )
    gap = abs(eq11 - eq1) / abs(eq1)
    return Outcome(value=gap, values=values, passed=gap < EQUAL, note=note)


def _compare_gradients(r: Tensor, y: Tensor, c: int, sigma: float) -> Outcome:
    """Claim 6 read charitably: with squared norms, and K and D held at W, Eq. 11 has the gradient of Eq. 1 at any W."""
    width = min(c - 1, r.shape[1] - 1)
    random = torch.linalg.qr(torch.randn(r.shape[1], width, generator=torch.Generator().manual_seed(0)).to(r.dtype))[0]
    gaps = {}
    for place, start in (("W*", ism(r, y, c, sigma, width=width).w), ("a random W", random)):
        w = start.clone().requires_grad_()
        gamma = gamma_table(y, c).to(r.dtype)[y][:, y]
        z = r @ w
        gram = gaussian(sigma)(z)
        # the gradient of Eq. 1, then that of Eq. 11 with its kernel frozen
        (of_eq1,) = torch.autograd.grad((gamma * gram).sum(), w, retain_graph=True)
        hat = (gamma * gram).detach() / sigma**2  # frozen: K in Eq. 11 and in D
        eq11 = (hat * (z @ z.mT)).sum() - (hat.sum(1) * z.square().sum(1)).sum()
        (of_eq11,) = torch.autograd.grad(eq11, w)
        gaps[f"gap at {place}"] = float((of_eq11 - of_eq1).norm() / of_eq1.norm())
    worst = max(gaps.values())
    note = f"Gradients of Eq. 11, norms squared and K frozen, and of Eq. 1 differ by {worst:.1g} of their norm."
    return Outcome(value=worst, values=gaps, passed=worst < EQUAL, note=note)


class ImplicitPenalty(NamedTuple):
    r"""The two sides of the poster's reformulation.

    Attributes:
        penalties: :math:`D_i`, ``(n,)``.
        attraction: :math:`\sum_{ij} \sigma^{-2} \hat\Gamma_{ij} r_i^T W W^T r_j`.
        charge: :math:`\sum_i D_i \|W^T r_i\|^2`.
        objective: :math:`\mathrm{Tr}(W^T Q W) / \sigma^2`, what a step of ISM maximizes.
    """

    penalties: Tensor
    attraction: float
    charge: float
    objective: float


def implicit_penalty(
    r: Tensor, w: Tensor, labels: Tensor, c: int, bandwidth: float, *, as_printed: bool = False
) -> ImplicitPenalty:
    r""":math:`D_i = \sigma^{-2} \sum_j \Gamma_{ij} K_W(r_i, r_j)` and the terms of (masoomi2020, Eq. 10 and 11).

    With signed :math:`\Gamma` and squared norms, ``attraction - charge`` equals ``objective``: the poster's
    :math:`D_i` is the degree of row i. Two things of the print differ: it has the norm, not its square; and
    :math:`-|\Gamma_{ij}|` between classes, which is :math:`\Gamma_{ij}` only where that is negative (it
    may be positive with uneven classes).

    Args:
        r: Rows, ``(n, d)``.
        w: W, ``(d, q)``.
        labels: Classes ``0..c - 1``.
        c: Number of classes.
        bandwidth: :math:`\sigma`.
        as_printed: Use :math:`|\Gamma_{ij}|` as Eq. 10 has it.
    """
    z = r @ w
    gamma = gamma_table(labels, c).to(r.dtype)[labels][:, labels]  # (n, n)
    gram = gaussian(bandwidth)(z)
    same = labels[:, None] == labels
    signed = gamma
    if as_printed:
        signed = torch.where(same, gamma, -gamma.abs())
    penalties = (signed * gram).sum(1) / bandwidth**2
    hat = gamma * gram
    attraction = float((hat * (z @ z.mT)).sum()) / bandwidth**2
    distances = float((hat * (z[:, None] - z[None]).square().sum(-1)).sum()) / (2 * bandwidth**2)
    charge = float((penalties * z.square().sum(1)).sum())
    return ImplicitPenalty(penalties, attraction, charge, -distances)


_CHECKS: dict[str, Callable[[Fold, Any], Outcome]] = {
    "rises": _follow_layers,
    "limit": _reach_limit,
    "losses": _measure_losses,
    "stationary": _measure_gradients,
    "reformulated": _compare_equations,
}


def draw(results: list[Result]) -> Figure | None:
    """H by layer, the limit kernel, or CE against H; the claims about gradients have no picture."""
    check = results[0].settings["check"]
    if check == "rises":
        curves = {result.row: result.curves["H"] for result in results}
        figure = plots.lines(curves, x_label="layer (0: the inputs)", y_label="normalised HSIC")
        last = int(max(max(curve["x"]) for curve in curves.values()))
        figure.axes[0].set_xticks(range(0, last + 1, max(1, last // 8)))
        return figure
    if check == "losses":
        curves = {result.row: result.curves["CE"] for result in results}
        return plots.lines(curves, x_label="normalised HSIC", y_label="cross-entropy")
    if check != "limit":
        return None
    figure, axes = canvas(1, len(results), width=3.2 * len(results), height=3.4)
    for result, ax in zip(results, axes, strict=True):
        ax.imshow(np.asarray(result.arrays["kernel"]), vmin=0, vmax=1, cmap="viridis")
        ax.set(title=f"{result.row}: last layer", xticks=[], yticks=[], xlabel="rows by class")
        ax.grid(False)
    return figure
