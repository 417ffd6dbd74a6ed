"""Table 1: heads alone on the synthetic sphere, beside the Bayes rule (Section 6.1, Appendix B)."""

from __future__ import annotations

from ..catalogue import Entry
from ..cells import Cell, Outcome
from .sphere_heads import SIZES, fit_on_sphere, sphere_of

__all__ = ["cells", "run"]

_ROWS = ("Softmax", "Ours", "Recommended", "Recommended, Gegenbauer", "Bayes optimal")


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Ten draws of the centres at small scale: the paper prints one, and its difficulty depends on them."""
    return [
        Cell("jayasumana2021/table1", row=row, column="accuracy", settings=SIZES[scale], seeds=SIZES[scale]["seeds"])
        for row in _ROWS
    ]


def run(cell: Cell) -> Outcome:
    """Test accuracy on the centres of this seed."""
    drawn = sphere_of(cell.settings, cell.seed)
    if cell.row == "Bayes optimal":
        best, error = drawn.bayes_accuracy(cell.settings["bayes_samples"])
        return Outcome(value=100 * best, values={"standard error": 100 * error})
    head = fit_on_sphere(cell.row, drawn, cell.settings, cell.seed)
    right = (head(drawn.x_test).argmax(1) == drawn.y_test).double().mean()
    return Outcome(value=100 * right.item(), note=f"Our own centres, seed {cell.seed}.")
