"""Figures 1(a), 1(b), 2 and 3(a), 3(b): the two-layer network by step, on each embedding."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from mercer.figures.theme import Figure, canvas, legend_below
from mercer.kernels import ReLUGram
from mercer.spectral import analyze

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from ..rivals import TwoLayerNet, train_two_layer
from .embedded import COLUMNS, SIZES, embed_pair, required_data

SCALE = 1e-2  # the paper's k, the deviation of the first weights; ``--set k=0.2`` trains lazily
RATE = 2e-4  # the paper's eta, for the sum over all its rows
PAPER_ROWS = {"mnist": 12_665, "cifar10": 10_000, "digits": 12_665}
_LABELS = {"loss": "training loss / n", "test_loss": "test loss / n", "accuracy": "test accuracy"}
_DISTRUST = 1.0  # laziness above which the weights move too far for the spectrum's prediction
_STEPS = (1, 5, 20, 100)


def cells(entry: Entry, scale: str) -> list[Cell]:
    """One training for each set and embedding."""
    shows, sizes, seeds = entry.run["shows"], SIZES[scale], 1
    if scale != "smoke":
        sizes, seeds = {**sizes, **entry.run.get("settings", {})}, 3
    cells = []
    for set_name in entry.run["sets"]:
        column = COLUMNS[set_name]
        if shows == "table":
            column = ""
        for name, embedding in entry.run["embeddings"].items():
            settings = {"set": set_name, "shows": shows, "k": SCALE, **sizes, **embedding}
            cells.append(Cell(entry.id, name, column, settings, required_data(set_name), seeds))
    return cells


class Trained(NamedTuple):
    """Losses by step, half the mean square; accuracy by step; the predicted loss; the laziness number."""

    loss: list[float]
    test_loss: list[float]
    accuracy: list[float]
    predicted: list[float]
    laziness: float


def run(cell: Cell) -> Outcome:
    """One field of the training by step; of the training loss also what the spectrum predicted.

    Figure 2(c) is a table: accuracy in per cent after 1, 5, 20, 100 steps and at the end.
    """
    shows = cell.settings["shows"]
    settings = {name: value for name, value in cell.settings.items() if name != "shows"}
    result = _train(json.dumps(settings, sort_keys=True), cell.seed, cell.device)
    if shows == "table":
        steps = [step for step in _STEPS if step < len(result.accuracy) - 1] + [len(result.accuracy) - 1]
        return Outcome(values={f"step {step}": 100 * result.accuracy[step] for step in steps})
    # a figure: one field by step
    y: list[float] = getattr(result, shows)
    x = [float(step) for step in range(len(y))]
    curves = {shows: {"x": x, "y": y}}
    values = {"laziness": result.laziness, "after 20 steps": y[min(20, len(y) - 1)]}
    note = f"{_LABELS[shows]} after {len(y) - 1} steps"
    if shows == "loss":
        curves["predicted"] = {"x": x, "y": result.predicted}
        values["predicted"] = result.predicted[-1]
        note += f"; predicted {result.predicted[-1]:.3g}, laziness {result.laziness:.2g}"
        if result.laziness > _DISTRUST:
            note += " (above 1: not lazy, the prediction is not to be trusted)"
    return Outcome(value=y[-1], values=values, curves=curves, note=note + ".")


@functools.lru_cache(maxsize=64)  # several figures are drawn of one training
def _train(settings: str, seed: int, device: str) -> Trained:
    """Full-batch descent of the two-layer network on an embedding, and what the spectrum predicted of it.

    The rate is the paper's times (its rows / ours), because the loss is a sum over rows: eta n is then the paper's.
    """
    s: dict[str, Any] = json.loads(settings)
    generator = torch.Generator().manual_seed(seed)
    both = embed_pair(s, generator)
    lr = RATE * PAPER_ROWS[s["set"]] / len(both.x)  # on half the rows this doubles eta, as the paper does
    # what the spectrum predicts
    spectrum = analyze(ReLUGram(), both.x, both.y)
    predicted = spectrum.convergence(lr, s["steps"]).square() / (2 * len(both.x))
    # A network with normal first weights sees its rows through scalar products alone, so that its training has the same
    # distribution in coordinates of the rows' span, as few as there are rows.
    x, x_test = both.x, both.x_test
    every = torch.cat((x, x_test))
    if every.shape[1] > len(every):
        x, x_test = torch.linalg.qr(every.mT, mode="r").R.mT.split((len(x), len(x_test)))
    # what training does
    network = TwoLayerNet(x.shape[1], s["width"], scale=s["k"], generator=generator).to(device)
    test = (x_test.float().to(device), both.y_test.float().to(device))
    run = train_two_layer(network, x.float().to(device), both.y.float().to(device), lr=lr, steps=s["steps"], test=test)
    assert run.test_residual is not None and run.test_accuracy is not None
    return Trained(
        loss=(run.residual.square() / (2 * len(x))).tolist(),
        test_loss=(run.test_residual.square() / (2 * len(x_test))).tolist(),
        accuracy=run.test_accuracy.tolist(),
        predicted=predicted.tolist(),
        laziness=spectrum.laziness(lr, s["steps"], width=s["width"], scale=s["k"]),
    )


def draw(results: Sequence[Result]) -> Figure | None:
    """One curve of each cell against the step, a panel for each data set; the first seed is drawn."""
    shows = results[0].settings.get("shows")
    if shows not in _LABELS:
        return None
    sets = list(dict.fromkeys(result.column for result in results))
    figure, axes = canvas(1, len(sets), width=5.2 * len(sets) + (1.2 if len(sets) == 1 else 0), height=4.2)
    handles: dict[str, Any] = {}
    for ax, name in zip(axes, sets, strict=True):
        for result in (r for r in results if r.column == name and r.seed == 0):
            (line,) = ax.plot(result.curves[shows]["x"], result.curves[shows]["y"])
            handles.setdefault(result.row, line)
        ax.set(title=name, xlabel="step", ylabel=_LABELS[shows] if ax is axes[0] else "")
        if shows == "loss":
            ax.set_yscale("log")
    legend_below(figure, handles)
    return figure
