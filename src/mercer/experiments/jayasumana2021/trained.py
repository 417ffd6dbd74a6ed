"""Networks on pictures, trained as Appendix A says: Tables 3, 6, 7, 8, 10, 11, 12, Figure 2 and Section 7.4.

An entry's ``run`` table in the TOML names its ``networks``, its ``variants`` (a head and what else changes) and how
rows and columns are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ... import figures
from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from .heads import build
from .pictures import Pictures, accuracy, cifar, fit, squared_loss, synthetic_pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SIZES", "STAND_IN", "cells", "draw", "pictures_of", "run"]

STAND_IN = "ResNet-8, half width"  # stands in for ResNet-56 at smoke and small scale
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"rows": 48, "test_rows": 48, "epochs": 1, "batch": 16},
    "small": {"rows": 2000, "test_rows": 1000, "epochs": 4, "batch": 64},
    "paper": {"rows": None, "test_rows": None, "epochs": 450, "batch": 128},
}
_SETS = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cross_entropy": F.cross_entropy, "squared": squared_loss}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Every network, set and variant; at smoke scale the pictures are made up, so that tests need no data."""
    run = entry.run
    named = run.get("sets", {"paper": ["CIFAR-100"]})
    sets = named.get(scale, ["CIFAR-10"])
    networks: Mapping[str, str] = run.get("networks", {}).get(
        scale, {"": "ResNet-56" if scale == "paper" else STAND_IN}
    )
    return [
        _cell(entry, scale, label, network, name, variant, changes)
        for label, network in networks.items()
        for name in sets
        for variant, changes in run["variants"].items()
        if scale in changes.get("scales", (scale,))
    ]


def _cell(
    entry: Entry, scale: str, label: str, network: str, name: str, variant: str, changes: Mapping[str, Any]
) -> Cell:
    stored = {"smoke": "synthetic", "small": "cifar100_subset" if name == "CIFAR-100" else "cifar10"}
    chosen = stored.get(scale, _SETS[name])
    settings = {
        **SIZES[scale],
        "set": chosen,
        "classes": 100 if name == "CIFAR-100" and scale != "smoke" else 10,
        "network": network,
        "loss": "cross_entropy",
        "rectify": False,
        "lr": 0.1,
        **{key: value for key, value in changes.items() if key != "scales"},
    }
    names = {"network": label, "set": name, "variant": variant}
    return Cell(
        entry.id,
        row=entry.run["row"].format(**names),
        column=entry.run["column"].format(**names),
        settings=settings,
        data=() if scale == "smoke" else (chosen,),
        seeds=1 if scale == "smoke" else 3,
    )


def run(cell: Cell) -> Outcome:
    """Train as Appendix A says and count the test pictures that are classified rightly.

    A training that diverges without an activation on alpha is the result that the paper reports (Table 12).
    """
    s = cell.settings
    torch.manual_seed(cell.seed)
    x, y, x_test, y_test = (part.to(cell.device) for part in pictures_of(s, cell.seed))
    model = build(s["network"], s["head"], s["classes"], rectify=s["rectify"], order=s.get("order", 10))
    model = model.to(cell.device)
    generator = torch.Generator().manual_seed(cell.seed)
    train = partial(fit, epochs=s["epochs"], batch=s["batch"], lr=s["lr"], generator=generator, loss=_LOSSES[s["loss"]])
    try:
        losses = train(model, x, y)
    except FloatingPointError as error:
        if not s.get("may_diverge"):
            raise
        return Outcome(values={"diverged": 1.0}, note=f"Unstable, as the paper says of no activation: {error}.")
    steps = list(range(1, len(losses) + 1))
    note = f"{s['network']}, {len(x)} pictures of {s['set']}, {s['epochs']} epochs."
    return Outcome(
        value=accuracy(model, x_test, y_test),
        values={"training loss": losses[-1]},
        curves={"training loss": {"x": steps, "y": losses}},
        note=note,
    )


def pictures_of(settings: Any, seed: int) -> Pictures:
    """The pictures that a cell names."""
    if settings["set"] == "synthetic":
        return synthetic_pictures(settings["rows"], settings["classes"], seed)
    return cifar(settings["set"], settings["rows"], settings["test_rows"])


def draw(results: Sequence[Result]) -> Figure | None:
    """Accuracy over M, of Figure 2; the tables have no picture."""
    by_order: dict[int, list[float]] = {}
    for result in results:
        if "order" in result.settings and result.value is not None:
            by_order.setdefault(int(result.settings["order"]), []).append(result.value)
    if not by_order:
        return None
    means = {order: sum(values) / len(values) for order, values in sorted(by_order.items())}
    curve = {"x": [float(order) for order in means], "y": list(means.values())}
    return figures.lines({"kernelised head": curve}, x_label="order M of the series", y_label="test accuracy, %")
