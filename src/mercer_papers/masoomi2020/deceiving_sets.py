"""Experiment 1: the random and the adversarial set, fitted layer by layer with W_s."""

from __future__ import annotations

from mercer.figures.theme import Figure, canvas, legend_below
from mercer.layerwise.closed_form import fit_closed_form

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from .solved import fold, pass_through, read_out

ROWS = {"random": "random", "adver": "adversarial"}
RESTARTS = {", one walk": 0, ", up to 8 restarts": 8}  # the authors' walk stalls; from narrower bandwidths it does not


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Both sets, with and without restarts; the seeds are the folds that stay out."""
    seeds = {"smoke": 1, "small": 3, "paper": 10}[scale]
    return [
        Cell(entry.id, row=row + walk, seeds=seeds, settings={"set": name, "restarts": restarts})
        for name, row in ROWS.items()
        for walk, restarts in RESTARTS.items()
    ]


def run(cell: Cell) -> Outcome:
    """Training accuracy and H of every layer; the value is the last layer's accuracy."""
    parts = fold(cell.settings["set"], cell.seed % 10)
    chain = fit_closed_form(
        parts.x_train,
        parts.y_train,
        parts.c,
        rule="authors",
        max_layers=20,
        enough=0.99,
        restarts=cell.settings["restarts"],
    )
    # how well a ridge on each layer's outputs fits the training rows
    outputs = pass_through(chain, parts.x_train)
    accuracy = [read_out(z, parts.y_train, z, parts.y_train, parts.c).train for z in outputs]
    index = [float(i + 1) for i in range(len(outputs))]
    curves = {
        "accuracy": {"x": index, "y": accuracy},
        "H": {"x": index, "y": [record.hsic for record in chain.history]},
    }
    perfect = next((i for i, value in zip(index, accuracy, strict=True) if value == 1.0), None)
    note = f"Perfect from layer {perfect:.0f} on." if perfect else "Never perfect."
    values = {"layers": index[-1], "sigma": min(record.bandwidth for record in chain.history)}
    return Outcome(value=accuracy[-1], values=values, curves=curves, note=note)


def draw(results: list[Result]) -> Figure:
    """H and training accuracy by layer, of each row's fold with most layers."""
    figure, (left, right) = canvas(1, 2, width=9.6, height=3.8)
    for row in dict.fromkeys(result.row for result in results):
        longest = max((r for r in results if r.row == row), key=lambda r: len(r.curves["H"]["x"]))
        left.plot(longest.curves["H"]["x"], longest.curves["H"]["y"], marker="o", markersize=3, label=row)
        right.plot(longest.curves["accuracy"]["x"], longest.curves["accuracy"]["y"], marker="o", markersize=3)
    left.set(title="W_s on sets made to deceive", xlabel="layer", ylabel="normalised HSIC")
    right.set(title="Ridge on the layer's outputs", xlabel="layer", ylabel="training accuracy")
    legend_below(figure, {str(line.get_label()): line for line in left.get_lines()})
    return figure
