"""Figure 1: trajectories of seven optimizers over two weights of the last layer, all others fixed."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import figures
from ..cells import Cell, Outcome
from ..results import Result
from .curves import legend
from .methods import Choice, advance, make, tries
from .networks import mlp
from .setting import needed, rows_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("ours", "AdaH", "ESGD", "L-BFGS", "R-L-BFGS", "SGD", "SGD+M")
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


def problem(name: str, scale: str, seed: int) -> Problem:
    """Three hidden layers of 100, trained; two weights of the liveliest units to the first class are moved away."""
    rows = rows_of(name, scale)
    x, y = rows.x[:512], rows.y[:512]
    torch.manual_seed(seed)
    model = mlp(x.shape[1], rows.classes, hidden=3)
    _train(model, x, y)
    model.requires_grad_(False)
    weight = model[-1].weight
    assert isinstance(weight, Tensor)
    units = model[:-1](x).var(0)[:BATCH].topk(2).indices  # within the m columns that Kernel SGD moves
    mask = torch.zeros_like(weight)
    mask[0, units] = 1
    weight += _AWAY * mask
    weight.requires_grad_(True)
    return Problem(model, weight, mask, x, y)


def _train(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
    """A few epochs of Adam: the loss of an untrained network is flat in any two weights."""
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(10):
        for rows in torch.arange(len(x)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()


def cells(scale: str) -> list[Cell]:
    """One trajectory for each optimizer, and the loss around the start."""
    return [
        Cell("chen2022/fig1", row=row, column=name, settings={"data": name, "scale": scale}, data=needed(name), seeds=1)
        for name in ("usps", "digits")
        for row in (*METHODS, SURFACE)
    ]


def run(cell: Cell) -> Outcome:
    """The path of the try that ends lowest; the loss over a grid, for the row of the surface."""
    name, scale = cell.settings["data"], cell.settings["scale"]
    if cell.row == SURFACE:
        return _surface(problem(name, scale, cell.seed))
    found = []
    choices = [replace(choice, lr=_FASTER * choice.lr) for choice in tries(cell.row, "RBF", scale)]
    for choice in choices:
        with contextlib.suppress(FloatingPointError):
            found.append(_trajectory(problem(name, scale, cell.seed), cell.row, choice, STEPS[scale]))
    if not found:
        raise FloatingPointError("loss became NaN with every setting")
    path, losses = min(found, key=lambda pair: pair[1][-1])
    curves = {
        "path": {"x": [w[0] for w in path], "y": [w[1] for w in path]},
        "loss": {"x": [float(i) for i in range(len(losses))], "y": losses},
    }
    return Outcome(losses[-1], curves=curves, note=f"Lowest of {len(choices)} tries.")


def _trajectory(task: Problem, method: str, choice: Choice, steps: int) -> tuple[list[list[float]], list[float]]:
    optimizer = make(method, choice, task.model)
    start = task.weight.detach().clone()
    batches = torch.arange(len(task.x)).split(BATCH)

    def only_two() -> None:
        assert task.weight.grad is not None
        task.weight.grad = task.weight.grad * task.mask

    path, losses = [task.place()], [float(task.loss().detach())]
    for step in range(steps):
        rows = batches[step % len(batches)]
        advance(method, optimizer, lambda rows=rows: task.loss(rows), only_two)  # type: ignore[misc]
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
    """Paths over the contours of the loss: a triangle where they start, crosses where they end."""
    sets = list(dict.fromkeys(result.column for result in results))
    figure, axes = figures.canvas(1, len(sets), width=5.4 * len(sets), height=4.6)
    handles = {}
    for ax, name in zip(axes, sets, strict=True):
        for result in (r for r in results if r.column == name):
            if result.row == SURFACE:
                ground = result.arrays
                ax.contour(ground["w0"], ground["w1"], ground["loss"], levels=14, cmap="Greys", linewidths=0.8)
                ax.set(xlim=(ground["w0"][0], ground["w0"][-1]), ylim=(ground["w1"][0], ground["w1"][-1]))
                continue
            x, y = result.curves["path"]["x"], result.curves["path"]["y"]
            (handles[result.row],) = ax.plot(x, y, linewidth=1.6)
            ax.plot(x[-1], y[-1], "x", color=handles[result.row].get_color(), markersize=8, markeredgewidth=2)
            ax.plot(x[0], y[0], "^", color=figures.LIGHT.ink, markersize=8)
        ax.grid(False)
        ax.set(title=name, xlabel="$w_0$", ylabel="$w_1$")
    legend(figure, handles)
    return figure
