"""The cells that train a network on pictures: what most tables of the paper are made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..cells import Cell, Outcome
from .heads import build
from .pictures import Pictures, accuracy, cifar, fit, squared_loss, synthetic_pictures

__all__ = ["SIZES", "STAND_IN", "picture_cell", "pictures_of", "run_pictures"]

STAND_IN = "Small ResNet"  # what stands in for ResNet-56 at smoke and small scale: ResNet-8 of half its width
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"rows": 48, "test_rows": 48, "epochs": 1, "batch": 16},
    "small": {"rows": 2000, "test_rows": 1000, "epochs": 4, "batch": 64},
    "paper": {"rows": None, "test_rows": None, "epochs": 450, "batch": 128},
}
_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cross_entropy": F.cross_entropy, "squared": squared_loss}


def picture_cell(
    entry: str,
    scale: str,
    head: str,
    *,
    row: str,
    column: str = "accuracy",
    network: str = STAND_IN,
    dataset: str = "cifar10",
    loss: str = "cross_entropy",
    rectify: bool = False,
    lr: float = 0.1,
) -> Cell:
    """One network with one head on one set; at smoke scale the set is made up, so that tests need no data."""
    name = {"cifar100": "cifar100_subset"}.get(dataset, dataset) if scale == "small" else dataset
    settings = {
        **SIZES[scale],
        "set": "synthetic" if scale == "smoke" else name,
        "classes": 100 if dataset == "cifar100" else 10,
        "network": network,
        "head": head,
        "loss": loss,
        "rectify": rectify,
        "lr": lr,
    }
    if scale == "smoke":
        settings["classes"] = 10
    data = () if scale == "smoke" else (name,)
    return Cell(f"jayasumana2021/{entry}", row=row, column=column, settings=settings, data=data, seeds=1)


def run_pictures(cell: Cell) -> Outcome:
    """Train as Appendix A says and count the test pictures that are classified rightly."""
    s = cell.settings
    torch.manual_seed(cell.seed)
    x, y, x_test, y_test = pictures_of(s, cell.seed)
    model = build(s["network"], s["head"], s["classes"], rectify=s["rectify"])
    generator = torch.Generator().manual_seed(cell.seed)
    train = partial(fit, epochs=s["epochs"], batch=s["batch"], lr=s["lr"], generator=generator, loss=_LOSSES[s["loss"]])
    losses = train(model, x, y)
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
