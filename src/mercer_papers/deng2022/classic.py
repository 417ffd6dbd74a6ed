"""Eigenfunctions of classic kernels in one dimension: NeuralEF to the letter, Mercer's ways, Nystrom, SpIN."""

from __future__ import annotations

import torch

from mercer.features import NeuralEigenfunctions
from mercer.figures.theme import LIGHT, Figure, canvas
from mercer.kernels import RBF, Kernel, Polynomial

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from ..rivals import SpectralInference
from .measures import SEEDS, AllRowsNystrom, cosines, reference, rng

KERNELS: dict[str, tuple[Kernel, float, int]] = {  # kernel, reach of the uniform density, functions
    "RBF": (RBF(0.5), 2.0, 10),
    "polynomial": (Polynomial(4, 1.0, 1.5), 1.0, 5),
}
METHODS = ("NeuralEF", "Mercer, NeuralEF then Ritz", "Mercer, landmarks", "Nystrom", "SpIN")  # Nystrom: of all rows
SIZES = {"smoke": (64,), "small": (512,), "paper": (64, 512, 8192)}
STEPS = {"smoke": 10, "small": 2000, "paper": 2000}
_DRAWN = 5


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Every method on every kernel and size."""
    return [
        Cell(entry.id, method, f"{kernel}, N = {n}", seeds=SEEDS[scale],
             settings={"kernel": kernel, "method": method, "rows": n, "k": KERNELS[kernel][2], "steps": STEPS[scale]})
        for n in SIZES[scale]
        for kernel in KERNELS
        for method in METHODS
        if method != "SpIN" or scale != "small"  # its 2,000 steps take minutes
    ]  # fmt: skip


def run(cell: Cell) -> Outcome:
    """Mean |cos| with the true eigenfunctions on a grid, of all and of three, how many exceed 0.99; five are drawn."""
    kernel, bound, k = KERNELS[cell.settings["kernel"]]
    x = (2 * torch.rand(cell.settings["rows"], 1, generator=rng(cell.seed), dtype=torch.float64) - 1) * bound
    grid = torch.linspace(-bound, bound, 101, dtype=torch.float64)[:, None]
    values, true = reference(kernel, bound, grid, k)
    # the functions by the cell's method, and their values on the grid
    method, steps, generator = cell.settings["method"], cell.settings["steps"], rng(cell.seed + 1)
    f: NeuralEigenfunctions | AllRowsNystrom | SpectralInference
    if method == "Nystrom":
        f = AllRowsNystrom(kernel, k)
    elif method == "SpIN":
        f = SpectralInference(kernel, k, steps=steps, generator=generator)
    elif method == "Mercer, landmarks":
        f = NeuralEigenfunctions(kernel, k, method="landmarks", generator=generator)
    elif method == "NeuralEF":
        f = NeuralEigenfunctions(kernel, k, method="neuralef", ritz=False, steps=steps, generator=generator)
    else:  # hidden features need no convergence
        steps = max(1, steps // 10)
        f = NeuralEigenfunctions(kernel, k, method="neuralef", ritz=True, steps=steps, generator=generator)
    f.fit(x.to(cell.device))
    computed, eigenvalues = f.eigenfunctions(grid.to(cell.device)).cpu(), f.eigenvalues.double().cpu()
    # how far they are from the true ones; a sign is free
    agreement = cosines(computed, true)
    signs = (computed * true).sum(0).sign()
    curves = {"true": true, "found": computed * signs}
    return Outcome(
        value=float(agreement.mean()),
        values={
            "functions with |cos| > 0.99": float((agreement > 0.99).sum()),
            "first three": float(agreement[:3].mean()),
            "worst relative error of an eigenvalue": float(((eigenvalues - values) / values).abs().max()),
        },
        curves={
            f"{name} {j + 1}": {"x": grid[:, 0].tolist(), "y": functions[:, j].tolist()}
            for name, functions in curves.items()
            for j in range(min(k, _DRAWN))
        },
    )


def draw(results: list[Result]) -> Figure:
    """The first functions of each method over the true ones, for the largest sample."""
    results = [result for result in results if result.seed == 0]
    largest = max(result.settings["rows"] for result in results)
    columns = list(dict.fromkeys(result.settings["kernel"] for result in results))
    rows = [method for method in METHODS if any(result.settings["method"] == method for result in results)]
    figure, axes = canvas(len(rows), len(columns), width=4.6 * len(columns), height=1.9 * len(rows))
    for result in (r for r in results if r.settings["rows"] == largest):
        s = result.settings
        ax = axes[rows.index(s["method"]) * len(columns) + columns.index(s["kernel"])]
        for number in range(1, min(s["k"], _DRAWN) + 1):
            true, fitted = result.curves[f"true {number}"], result.curves[f"found {number}"]
            ax.plot(true["x"], true["y"], color=LIGHT.soft, linewidth=4, alpha=0.35)
            ax.plot(fitted["x"], fitted["y"], color=LIGHT.series[number - 1], linewidth=1.2)
        ax.set_title(f"{s['method']}: {s['kernel']}, mean |cos| {result.value:.3f}", fontsize=9)
        limit = max(max(map(abs, curve["y"])) for name, curve in result.curves.items() if "true" in name)
        ax.set_ylim(-1.3 * limit, 1.3 * limit)
    figure.suptitle("broad: the true eigenfunctions; narrow: found", fontsize=9, color=LIGHT.soft)
    return figure
