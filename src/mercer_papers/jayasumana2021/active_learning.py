"""Table 5: active learning, three selections at several budgets with either head (Section 6.5, Appendix C)."""

from __future__ import annotations

import itertools
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.signals.embedding import embeddings

from ..catalogue import Entry
from ..cells import Cell, Outcome
from .heads import build
from .trained import RATES, SCHEDULES, SIZES, STAND_IN, accuracy, choose_training, fit, logits, pictures_of

_BUDGETS = (30, 40, 50, 60, 70, 80, 90)  # per cent of the rows
_SEED_SHARE = 0.1


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Every budget, selection and head; the seed model is the softmax one, trained on a tenth with labels."""
    settings = {**SIZES[scale], "set": "cifar10", "classes": 10, "network": STAND_IN, "lr": 0.1,
                "rates": RATES[scale], "schedules": SCHEDULES[scale]}  # fmt: skip
    if scale == "smoke":
        settings["set"] = "synthetic"
    elif scale == "paper":
        settings |= {"set": "cifar100", "classes": 100, "network": "ResNet-56"}
    data_needed = () if scale == "smoke" else (settings["set"],)
    budgets = (50,) if scale == "smoke" else _BUDGETS
    heads = ("Softmax", "Softmax, scale 10", "Kernelized")
    cells = []
    for budget, head, selection in itertools.product(budgets, heads, ("random", "margin", "k-center")):
        asked = {**settings, "head": head, "selection": selection, "budget": budget}
        cells.append(Cell(entry.id, f"{budget} %", f"{head}, {selection}", asked, data_needed, seeds=1))
    return cells


def run(cell: Cell) -> Outcome:
    """Select in one shot without labels, train afresh on the selection, score on the test part."""
    s = cell.settings
    x, y, x_test, y_test = pictures_of(s, cell.seed, cell.device)
    # the model that selects, and its selection
    names = ("network", "set", "rows", "test_rows", "classes", "epochs", "batch", "lr")
    scores, places = _seed_model(*(s[name] for name in names), seed=cell.seed, device=cell.device)
    count = round(len(x) * s["budget"] / 100)
    generator = torch.Generator().manual_seed(cell.seed)
    if s["selection"] == "random":
        chosen = torch.randperm(len(x), generator=generator)[:count]
    elif s["selection"] == "margin":
        chosen = margin(scores, count)
    else:
        chosen = k_center(places, count, generator)
    # train afresh
    rate, schedule = choose_training(s, x[chosen], y[chosen], cell.seed)
    torch.manual_seed(cell.seed)
    model = build(s["network"], s["head"], s["classes"])
    fit(
        model, x[chosen], y[chosen], epochs=s["epochs"], batch=s["batch"], lr=rate, generator=generator,
        schedule=schedule,
    )  # fmt: skip
    return Outcome(value=accuracy(model, x_test, y_test), note=f"{count} of {len(x)} pictures of {s['set']}.")


def margin(scores: Tensor, count: int) -> Tensor:  # (n, c) -> (count,)
    """The rows whose two largest probabilities are closest."""
    top = scores.softmax(1).topk(2, dim=1).values
    return (top[:, 0] - top[:, 1]).argsort()[:count]


def k_center(places: Tensor, count: int, generator: torch.Generator) -> Tensor:  # (n, d) -> (count,)
    """Greedy k-center by cosine distance: each next row is the one farthest from all chosen so far."""
    unit = F.normalize(places, dim=1)
    chosen = [int(torch.randint(len(unit), (1,), generator=generator))]
    distance = 1 - unit @ unit[chosen[0]]
    for _ in range(count - 1):
        distance[chosen[-1]] = -1.0  # a chosen row is never chosen again
        chosen.append(int(distance.argmax()))
        distance = torch.minimum(distance, 1 - unit @ unit[chosen[-1]])
    return torch.tensor(chosen)


@lru_cache(maxsize=1)
def _seed_model(
    network: str, name: str, rows: int | None, test_rows: int | None, classes: int, epochs: int, batch: int, lr: float,
    seed: int, device: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Logits and embeddings of all pictures by a model that saw the labels of a tenth of them."""
    settings = {"set": name, "rows": rows, "test_rows": test_rows, "classes": classes}
    x, y, _, _ = pictures_of(settings, seed, device)
    generator = torch.Generator().manual_seed(1000 + seed)
    labeled = torch.randperm(len(x), generator=generator)[: max(batch, round(_SEED_SHARE * len(x)))]
    torch.manual_seed(1000 + seed)
    model: nn.Module = build(network, "Softmax", classes)
    fit(model, x[labeled], y[labeled], epochs=epochs, batch=batch, lr=lr, generator=generator)
    return logits(model, x).cpu(), embeddings(model, list(x.split(500)), layer="pool").cpu()
