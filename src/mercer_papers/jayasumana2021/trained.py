"""Networks on pictures, trained as Appendix A says: Tables 3, 6, 7, 8, 10, 11, 12, Figure 2 and Section 7.4.

SGD, linear warm-up, cosine decay, flip and crop. An entry's ``run`` table in the TOML names its ``networks``, its
``variants`` (a head and what else changes) and how rows and columns are called.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.figures import plots
from mercer.figures.theme import Figure
from mercer.nn import KernelClassifier

from .. import data
from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..data import normalised
from ..results import Result
from .heads import build, choose_best

_WARM_UP = 0.1  # share of the steps
_WEIGHT_DECAY = 1e-4
Pictures = tuple[Tensor, Tensor, Tensor, Tensor]  # training pictures and labels, test pictures and labels
Loss = Callable[[Tensor, Tensor], Tensor]
STAND_IN = "ResNet-8, half width"  # stands in for ResNet-56 at smoke and small scale
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"rows": 48, "test_rows": 48, "epochs": 1, "batch": 16},
    "small": {"rows": 2000, "test_rows": 1000, "epochs": 4, "batch": 64},
    "paper": {"rows": None, "test_rows": None, "epochs": 450, "batch": 128},
}
# Base rates that every head tries on held-out rows ("by cross validation", Appendix A); none: 0.1 for all heads.
RATES: dict[str, list[float]] = {"smoke": [], "small": [], "paper": [0.3, 0.1, 0.03, 0.01]}
# He et al.'s schedule beside the paper's own, "the best accuracy of the two" (Appendix A): chosen with the rate.
SCHEDULES: dict[str, list[str]] = {"smoke": ["cosine"], "small": ["cosine"], "paper": ["cosine", "steps"]}
_HELD_OUT = 0.1  # share of the training rows
_SETS = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Every network, set and variant; at smoke scale the pictures are made up, so that tests need no data."""
    run = entry.run
    smoke = scale == "smoke"
    sets = run.get("sets", {"paper": ["CIFAR-100"]}).get(scale, ["CIFAR-10"])
    usual = "ResNet-56" if scale == "paper" else STAND_IN
    networks: Mapping[str, str] = run.get("networks", {}).get(scale, {"": usual})
    cells = []
    for label, network in networks.items():
        for name in sets:
            # the pictures: made up, a subset of CIFAR-100, or the set itself
            set_name, classes = _SETS[name], 10
            if smoke:
                set_name = "synthetic"
            elif name == "CIFAR-100":
                classes = 100
                set_name = "cifar100_subset" if scale == "small" else set_name
            settings = {
                **SIZES[scale], "set": set_name, "classes": classes,
                "network": network, "loss": "cross_entropy", "rectify": False, "lr": 0.1,
                "rates": RATES[scale], "schedules": SCHEDULES[scale],
            }  # fmt: skip
            for variant, changes in run["variants"].items():
                if scale not in changes.get("scales", (scale,)):
                    continue
                asked = {key: value for key, value in changes.items() if key != "scales"}
                row, column = (
                    run[place].format(network=label, set=name, variant=variant) for place in ("row", "column")
                )
                data_needed, seeds = ((), 1) if smoke else ((set_name,), 3)
                cells.append(Cell(entry.id, row, column, {**settings, **asked}, data_needed, seeds))
    return cells


def run(cell: Cell) -> Outcome:
    """Train as Appendix A says and count the test pictures that are classified rightly.

    A training that diverges without an activation on alpha is the result that the paper reports (Table 12).
    """
    return _train(json.dumps(dict(cell.settings), sort_keys=True), cell.seed, cell.device)


@lru_cache(maxsize=256)  # several tables ask for one training: a later cell may take no time
def _train(settings: str, seed: int, device: str) -> Outcome:
    s: dict[str, Any] = json.loads(settings)
    torch.manual_seed(seed)
    # the pictures, and the rate and schedule that held-out rows choose
    x, y, x_test, y_test = pictures_of(s, seed, device)
    rate, schedule = choose_training(s, x, y, seed)
    torch.manual_seed(seed)
    # the training; the generator deals batches, flips and crops
    model = build(s["network"], s["head"], s["classes"], rectify=s["rectify"], order=s.get("order", 10))
    generator = torch.Generator().manual_seed(seed)
    loss = squared_loss if s["loss"] == "squared" else F.cross_entropy
    try:
        losses = fit(
            model, x, y, epochs=s["epochs"], batch=s["batch"], lr=rate, generator=generator, loss=loss,
            schedule=schedule,
        )  # fmt: skip
    except FloatingPointError as error:
        if not s.get("may_diverge"):
            raise
        return Outcome(values={"diverged": 1.0}, note=f"Unstable, as the paper says of no activation: {error}.")
    # what came out, with how the training was chosen
    values = {"training loss": losses[-1]}
    if s.get("may_diverge"):
        values["diverged"] = 0.0
    steps = list(range(1, len(losses) + 1))
    note = f"{s['network']}, {len(x)} pictures of {s['set']}, {s['epochs']} epochs."
    if s.get("rates"):
        note += f" Rate {rate:g}, schedule {schedule}: the best on held-out rows."
    return Outcome(
        value=accuracy(model, x_test, y_test),
        values=values,
        curves={"training loss": {"x": steps, "y": losses}},
        note=note,
    )


def choose_training(s: Mapping[str, Any], x: Tensor, y: Tensor, seed: int) -> tuple[float, str]:
    """Rate and schedule of most accuracy on a tenth of the training rows, each tried by a whole training on the others.

    Without rates to choose from, the cell's own and the cosine.
    """
    if not s.get("rates"):
        return s["lr"], "cosine"
    # a tenth of the rows judges, the others train
    held_out = max(1, round(_HELD_OUT * len(x)))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    judging, training = order[:held_out].to(x.device), order[held_out:].to(x.device)
    loss = squared_loss if s.get("loss") == "squared" else F.cross_entropy

    def judge(option: tuple[float, str]) -> float:
        torch.manual_seed(seed)
        model = build(s["network"], s["head"], s["classes"], rectify=s.get("rectify", False), order=s.get("order", 10))
        fit(
            model, x[training], y[training], epochs=s["epochs"], batch=min(s["batch"], len(training)), lr=option[0],
            generator=torch.Generator().manual_seed(seed), loss=loss, schedule=option[1],
        )  # fmt: skip
        return accuracy(model, x[judging], y[judging])

    return choose_best(itertools.product(s["rates"], s.get("schedules", ["cosine"])), judge)


def pictures_of(settings: Any, seed: int, device: str = "cpu") -> Pictures:
    """The pictures that a cell names."""
    if settings["set"] == "synthetic":
        # noise around one pattern for each class: what the smoke scale trains on, where there is no data folder
        n, classes, generator = settings["rows"], settings["classes"], torch.Generator().manual_seed(seed)
        patterns = torch.randn(classes, 3, 32, 32, generator=generator)
        labels = torch.arange(2 * n) % classes
        pictures = patterns[labels] + torch.randn(2 * n, 3, 32, 32, generator=generator)
        parts = pictures[:n], labels[:n], pictures[n:], labels[n:]
    else:
        parts = cifar(settings["set"], settings["rows"], settings["test_rows"])
    x, y, x_test, y_test = (part.to(device) for part in parts)
    return x, y, x_test, y_test


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
    figure = plots.lines({"kernelized head": curve}, x_label="order M of the series", y_label="test accuracy, %")
    figure.axes[0].set_xticks(list(means))
    return figure


@lru_cache(maxsize=2)
def cifar(name: str, rows: int | None, test_rows: int | None) -> Pictures:
    """``"cifar10"``, ``"cifar100"`` or ``"cifar100_subset"``, its first rows, normalised as ImageNet's pictures are."""
    dataset = data.load(name, rows=None if rows is None else (rows, test_rows or rows))
    return normalised(dataset.x_train), dataset.y_train, normalised(dataset.x_test), dataset.y_test


def _augment(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mirrored by chance and moved by up to four pixels, zeros coming in: one move for each picture."""
    n, size = len(x), x.shape[-1]
    flipped = (torch.rand(n, generator=generator) < 0.5).to(x.device)
    x = torch.where(flipped[:, None, None, None], x.flip(3), x)
    # the picture within its frame of zeros, one place for each
    padded = F.pad(x, (4, 4, 4, 4))
    down, right = torch.randint(9, (2, n, 1), generator=generator)
    rows = (down + torch.arange(size))[:, None, :, None]  # (n, 1, size, 1)
    columns = (right + torch.arange(size))[:, None, None, :]
    return padded[torch.arange(n)[:, None, None, None], torch.arange(x.shape[1])[None, :, None, None], rows, columns]


def fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    generator: torch.Generator,
    lr: float = 0.1,
    batch: int = 128,
    loss: Loss = F.cross_entropy,
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = _augment,
    schedule: str = "cosine",
) -> list[float]:
    """Train in place, where ``x`` is; the mean loss of every epoch. ``y`` holds labels, or a teacher's logits.

    Raises:
        FloatingPointError: the loss became NaN or infinite.
    """
    model.to(device=x.device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    # SGD with momentum and a schedule over all steps
    optimizer = torch.optim.SGD(groups_of(model), lr, momentum=0.9, weight_decay=_WEIGHT_DECAY)
    per_epoch = max(1, len(x) // batch)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, _schedule(epochs * per_epoch, schedule))
    losses = []
    for _ in range(epochs):
        total = 0.0
        order = torch.randperm(len(x), generator=generator)
        for rows in order[: per_epoch * batch].split(batch):
            pictures = augment(x[rows], generator) if augment is not None else x[rows]
            value = loss(model(pictures.contiguous(memory_format=torch.channels_last)), y[rows])
            if not math.isfinite(value.item()):
                raise FloatingPointError(f"loss became {value.item()} at step {scheduler.last_epoch}")
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            scheduler.step()
            total += value.item()
        losses.append(total / per_epoch)
    return losses


@torch.no_grad()
def logits(model: nn.Module, x: Tensor, *, batch: int = 500) -> Tensor:
    """Logits of all pictures in ``eval`` mode."""
    model.to(x.device).eval()
    parts = [model(part.contiguous(memory_format=torch.channels_last)) for part in x.split(batch)]
    return torch.cat(parts)


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Per cent of pictures classified rightly."""
    return 100 * float((logits(model, x).argmax(1) == y).double().mean())


def squared_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean squared distance to one-hot targets (Hui and Belkin, 2020; Table 10)."""
    return (scores - F.one_hot(labels, scores.shape[1]).to(scores.dtype)).square().mean()


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """All parameters; those of a kernelized head by its own groups, so that alpha is decayed too (Appendix A)."""
    heads = [m for m in model.modules() if isinstance(m, KernelClassifier)]
    head_parameters = {id(p) for head in heads for p in head.parameters()}
    others = [p for p in model.parameters() if id(p) not in head_parameters and p.requires_grad]
    return [{"params": others}, *(group for head in heads for group in head.param_groups(weight_decay=_WEIGHT_DECAY))]


def _schedule(steps: int, name: str = "cosine") -> Callable[[int], float]:
    """The paper's warm-up and cosine, or He et al.'s: a tenth from half of the steps on, a hundredth from 3/4 on."""
    warm = max(1, round(_WARM_UP * steps))

    def factor(step: int) -> float:
        if name == "steps":
            return 0.1 ** ((step >= steps / 2) + (step >= 3 * steps / 4))
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))

    return factor
