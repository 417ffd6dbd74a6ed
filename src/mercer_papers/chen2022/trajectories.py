"""Figure 1: trajectories of seven optimizers over two weights of the last layer, all others fixed."""

from __future__ import annotations

import contextlib
import functools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.figures.theme import LIGHT, Figure, canvas, legend_below

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from .optimizers import Choice, advance, make, tries
from .sets import required_data, rows_of, size
from .training import mlp, overlapping

METHODS = ("Kernel SGD", "AdaH", "ESGD", "L-BFGS", "R-L-BFGS", "SGD", "SGD+M")
STEPS = {"smoke": 8, "small": 120, "paper": 500}
SURFACE, SPAN, GRID, BATCH = "loss surface", 6.0, 25, 64
_AWAY = 3.0  # how far the two weights start from where training left them
_FASTER = 10  # two weights alone feel little slope: at the paper's rates of 0.1 and less nothing is to be seen


@dataclass(frozen=True)
class Problem:
    """A network of which two weights of one output are free, and the rows that its loss is taken over."""

    model: nn.Sequential
    weight: Tensor  # (c, 100), the only one that requires grad
    mask: Tensor  # (c, 100), 1 at the two
    x: Tensor
    y: Tensor

    def loss(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """Mean cross-entropy over some rows."""
        return F.cross_entropy(self.model(self.x[rows]), self.y[rows])

    def place(self) -> list[float]:
        """The two weights."""
        return [float(v) for v in self.weight.detach()[self.mask.bool()]]


def problem(name: str, rows: int | None, seed: int, device: str = "cpu") -> Problem:
    """Three hidden layers of 100, trained; two weights of the last layer, drawn at random, are moved away."""
    data = rows_of(name, rows, rows).to(device)
    x, y = data.x[:512], data.y[:512]
    torch.manual_seed(seed)
    model = mlp(x.shape[1], data.classes, hidden=3).to(device)
    # a few epochs of Adam: the loss of an untrained network is flat in any two weights
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(10):
        for batch in torch.arange(len(x)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    # two weights of the last layer are free, drawn among units that are alive; they start away from the minimum
    model.requires_grad_(False)
    weight = model[-1].weight
    assert isinstance(weight, Tensor)
    mask = torch.zeros_like(weight)
    live = model[:-1](x).var(0)[:BATCH].nonzero().flatten().cpu()  # within the m columns that Kernel SGD moves
    generator = torch.Generator().manual_seed(seed)
    places = torch.cartesian_prod(torch.arange(len(weight)), live)
    rows_and_columns = places[torch.randperm(len(places), generator=generator)[:2]]
    mask[rows_and_columns[:, 0], rows_and_columns[:, 1]] = 1
    weight += _AWAY * mask
    weight.requires_grad_(True)
    return Problem(model, weight, mask, x, y)


def cells(entry: Entry, scale: str) -> list[Cell]:
    """One trajectory for each optimizer, and the loss around the start."""
    cells = []
    for name in ("usps", "digits"):
        data, sizes = required_data(name), size(name, scale)
        seeds = 1 if scale == "smoke" or (scale == "small" and not data) else 5
        settings = {"data": name, "rows": sizes["rows"], "tries": sizes["tries"], "steps": STEPS[scale]}
        cells += [Cell(entry.id, row, name, {**settings, "shows": row}, data, seeds) for row in (*METHODS, SURFACE)]
    return cells


def run(cell: Cell) -> Outcome:
    """The path of the try that ends lowest; the loss over a grid, for the row of the surface."""
    s = cell.settings
    start = functools.partial(problem, s["data"], s["rows"], cell.seed, cell.device)
    method = s["shows"]
    if method == SURFACE:
        return _surface(start())
    # every try from the same start; the one that ends lowest is shown
    trajectories = []
    choices = [replace(choice, lr=_FASTER * choice.lr) for choice in tries(method, "RBF", s["tries"])]
    for choice in choices:
        with contextlib.suppress(FloatingPointError):
            trajectories.append(_trajectory(start(), method, choice, s["steps"]))
    if not trajectories:
        raise FloatingPointError("loss became NaN with every setting")
    path, losses = min(trajectories, key=lambda pair: pair[1][-1])
    curves = {
        "path": {"x": [w[0] for w in path], "y": [w[1] for w in path]},
        "loss": {"x": [float(i) for i in range(len(losses))], "y": losses},
    }
    return Outcome(losses[-1], curves=curves, note=f"Lowest of {len(choices)} tries.")


def _trajectory(task: Problem, method: str, choice: Choice, steps: int) -> tuple[list[list[float]], list[float]]:
    optimizer = make(method, choice, task.model)
    start = task.weight.detach().clone()
    order = torch.arange(len(task.x))
    batches: list[tuple[Tensor, Tensor | None]] = [(rows, None) for rows in order.split(BATCH)]
    if method == "R-L-BFGS":
        batches = list(overlapping(order, BATCH))

    def only_two() -> None:
        assert task.weight.grad is not None
        task.weight.grad = task.weight.grad * task.mask

    # each step moves all weights; all but the two are put back
    path, losses = [task.place()], [float(task.loss().detach())]
    for step in range(steps):
        rows, shared = batches[step % len(batches)]
        overlap = None if shared is None else functools.partial(task.loss, shared)
        advance(method, optimizer, functools.partial(task.loss, rows), overlap=overlap, change=only_two)
        with torch.no_grad():  # Eq. 8 mixes columns: what it did to the others is undone
            task.weight.copy_(torch.where(task.mask.bool(), task.weight, start))
            losses.append(float(task.loss()))
        path.append(task.place())
        if not math.isfinite(losses[-1]):
            raise FloatingPointError(f"loss became NaN at step {step}")
    return path, losses


def _surface(task: Problem) -> Outcome:
    a, b = task.place()
    steps = torch.linspace(-SPAN, SPAN, GRID)
    (first, second) = task.mask.nonzero().tolist()
    heights = []
    with torch.no_grad():
        for v in steps:
            row = []
            for u in steps:
                task.weight[first[0], first[1]], task.weight[second[0], second[1]] = a + u, b + v
                row.append(float(task.loss()))
            heights.append(row)
    arrays = {"loss": heights, "w0": (a + steps).tolist(), "w1": (b + steps).tolist()}
    return Outcome(min(map(min, heights)), arrays=arrays, note="Loss over the two weights; the value is its minimum.")


def draw(results: list[Result]) -> Figure:
    """Paths over the contours of the loss, of the first seed: a triangle where they start, crosses where they end."""
    results = [result for result in results if result.seed == 0]
    sets = list(dict.fromkeys(result.column for result in results))
    figure, axes = canvas(1, len(sets), width=5.4 * len(sets), height=5.0)
    handles = {}
    for ax, name in zip(axes, sets, strict=True):
        results_of_set = [result for result in results if result.column == name]
        paths = {r.settings["shows"]: r.curves["path"] for r in results_of_set if r.settings["shows"] != SURFACE}
        for result in results_of_set:
            if result.settings["shows"] == SURFACE:
                ground = result.arrays
                ax.contour(ground["w0"], ground["w1"], ground["loss"], levels=14, cmap="Greys", linewidths=0.8)
        # the paths, each with its start and its end
        for i, (method, path) in enumerate(paths.items()):
            wide = 1.4 + 0.5 * (len(paths) - i)  # the first is drawn broadest and lowest, so that none hides another
            (handles[method],) = ax.plot(path["x"], path["y"], linewidth=wide, zorder=3 + i, solid_capstyle="round")
            colour = handles[method].get_color()
            ax.plot(path["x"][-1], path["y"][-1], "x", color=colour, markersize=8, markeredgewidth=2, zorder=20)
            ax.plot(path["x"][0], path["y"][0], "^", color=LIGHT.ink, markersize=8, zorder=21)
        for axis, limit in (("x", ax.set_xlim), ("y", ax.set_ylim)):  # every path, with a margin
            numbers = [value for path in paths.values() for value in path[axis]]
            margin = 0.1 * (max(numbers) - min(numbers)) + 0.1
            limit(min(numbers) - margin, max(numbers) + margin)
        ax.grid(False)
        ax.set(title=name, xlabel="$w_0$", ylabel="$w_1$")
    legend_below(figure, handles)
    return figure
