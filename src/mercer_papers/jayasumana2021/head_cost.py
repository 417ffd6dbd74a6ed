"""Section 5.2: the parameters, operations and memory that the kernelized head adds to softmax, counted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from ..catalogue import Entry
from ..cells import Cell, Outcome
from .heads import backbone, make_head

_ORDER = 10  # M
_WIDTH = 64  # d, of every CIFAR ResNet
_NEGLIGIBLE = 0.1
_NETWORKS = ("ResNet-8", "ResNet-20", "ResNet-56")


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Nothing is random and nothing is trained: the same counts at every scale, of one network at smoke."""
    rows: dict[str, dict[str, Any]] = {
        "parameters, M = 10": {"counts": "parameters"},
        "memory, 10 to 100 classes": {"counts": "memory"},
    }
    for network in _NETWORKS[:1] if scale == "smoke" else _NETWORKS:
        for classes in (10, 100):
            changes = {"counts": "operations", "network": network, "classes": classes}
            rows[f"operations, {network}, {classes} classes"] = changes
    return [Cell(entry.id, row=row, settings=settings) for row, settings in rows.items()]


def run(cell: Cell) -> Outcome:
    """One count, and whether it is what Section 5.2 says."""
    s = cell.settings
    if s["counts"] == "parameters":
        # softmax without its bias, which the paper's head has not
        added = _learnable(make_head("Kernelized", _WIDTH, 10)) - _learnable(nn.Linear(_WIDTH, 10, bias=False))
        note = f"{added} more numbers to learn than weights of a linear classifier; M + 3 = {_ORDER + 3}."
        return Outcome(value=float(added), passed=added == _ORDER + 3, note=note)
    if s["counts"] == "memory":
        at_10, at_100 = (_kept_by_a_row(make_head("Kernelized", _WIDTH, classes)) for classes in (10, 100))
        note = f"Numbers kept for the gradient by each row: {at_10} at 10 classes, {at_100} at 100."
        passed = at_100 <= at_10 + _ORDER
        return Outcome(value=float(at_100), values={"10 classes": float(at_10)}, passed=passed, note=note)
    # Unit length of z, 3 d; then for each class M powers by multiplication, M products with alpha, M sums.
    added = 3 * _WIDTH + 3 * _ORDER * s["classes"]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        backbone(s["network"], s["classes"]).eval()(torch.zeros(1, 3, 32, 32))
    total = counter.get_total_flops()
    share = added / total
    note = f"{added:,} operations more than softmax's, of {total:,} of the whole network."
    return Outcome(value=share, passed=share < _NEGLIGIBLE, note=note)


def _learnable(head: nn.Module) -> int:
    return sum(p.numel() for p in head.parameters() if p.requires_grad)


def _kept_by_a_row(head: nn.Module) -> int:
    """Numbers that autograd keeps for one row more; what all rows share, as the prototypes, drops out."""
    counts = []
    for rows in (1, 2):
        saved: dict[int, int] = {}

        def pack(tensor: Tensor, saved: dict[int, int] = saved) -> Tensor:
            saved[tensor.data_ptr()] = tensor.numel()
            return tensor

        z = torch.ones(rows, _WIDTH, requires_grad=True)
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = head(z).sum()  # held, so that no address is used twice
        counts.append(sum(saved.values()))
        del loss
    return counts[1] - counts[0]
