r"""The last layer from landmarks, for streams of rows; what older versions saved of it."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks
from ..kernels import Kernel
from ..machines.landmarks import LandmarkMachine
from ..rows.agreement import take_share
from ..storage.savable import Savable
from .network import Head


class Sums(Savable):
    r"""Sums over rows as version 0.1 saved them: :math:`\sum_i k_i k_i^T`, :math:`\sum_i k_i y_i^T`, and moments.

    Args:
        gram: ``(m, m)``.
        cross: ``(m, c)``.
        total: ``(m,)``, :math:`\sum_i k_i`.
        targets: ``(c,)``, :math:`\sum_i y_i`.
        n: Rows.
    """

    def __init__(self, gram: Tensor, cross: Tensor, total: Tensor, targets: Tensor, n: int) -> None:
        self.gram, self.cross, self.total, self.targets, self.n = gram, cross, total, targets, n

    def get_arguments(self) -> dict[str, object]:
        """The sums as they are now."""
        return {"gram": self.gram, "cross": self.cross, "total": self.total, "targets": self.targets, "n": self.n}

    def whitened(self, kernel: Kernel, landmarks: Tensor, offset: Tensor) -> LandmarkMachine:
        """The same sums in the landmarks' whitened features; ``offset`` was taken off the targets."""
        machine = LandmarkMachine.at(kernel, landmarks, len(self.targets))
        w, offset = machine.whitener, offset.to(machine.whitener)
        total = w.mT @ self.total.to(w)
        cross = w.mT @ self.cross.to(w) + total[:, None] * offset
        second = w.mT @ self.gram.to(w) @ w
        targets = self.targets.to(w) + self.n * offset
        return LandmarkMachine(landmarks, w, second, cross, total, targets, self.n)


def extend(
    head: Head, machine: LandmarkMachine | None, penalty: float, z: Tensor, y: Tensor
) -> tuple[Head, LandmarkMachine]:
    """The last layer with more rows in it, exactly, and its sums: (n, d), (n, c).

    Without sums every row so far is an anchor, and the machine of largest share goes on with all of them as landmarks.
    """
    kernel, weights = head.heaviest()
    if machine is None:
        if head.anchors.dtype != torch.float64:
            need, fix = "partial_fit needs landmarks", "Give landmarks=2000, or start with partial_fit."
            raise ValueError(checks.sentence("KernelNetwork", need, f"{len(head.anchors)} rows by eigenpro", fix))
        known = kernel.matmul(head.anchors, None, weights) + penalty * weights + head.intercept
        machine = LandmarkMachine.at(kernel, head.anchors, known.shape[1])
        machine = machine.add(kernel, take_share(head.anchors), take_share(known))  # every rank holds all anchors
    machine = machine.add(kernel, z.to(head.anchors), y)
    return head.solved(machine, penalty), machine
