"""The networks met on the way of training, kept."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

from .. import checks
from ..signals.layers import unwrap


class Snapshots:
    """Copies of a network during training. Call it whenever a copy should be kept.

    Args:
        model: The network in training.
        every: Keep a copy at every call (1), every second call (2), and so on.
        most: Number of copies to keep, the latest ones; None keeps all.
    """

    def __init__(self, model: nn.Module, *, every: int = 1, most: int | None = None) -> None:
        self.model = unwrap(model)
        self.every = checks.integer("Snapshots", "every", every, 1)
        self.most = None if most is None else checks.integer("Snapshots", "most", most, 2)
        self.models: list[nn.Module] = []
        self._calls = 0

    def __call__(self) -> None:
        """Count a step; keep a copy when its turn comes."""
        self._calls += 1
        if self._calls % self.every == 0:
            self.models.append(copy.deepcopy(self.model).eval().requires_grad_(False))
            if self.most is not None:
                del self.models[: -self.most]

    def averaged(self, loader: Iterable[Any] | None = None) -> nn.Module:
        """Stochastic weight averaging: one network with the mean of the weights.

        Args:
            loader: Training batches, to recompute the statistics of batch normalisation; None averages those, too.
        """
        if not self.models:
            raise RuntimeError(checks.sentence("Snapshots", "at least one copy must have been kept", "none"))
        mean = AveragedModel(self.models[-1], use_buffers=True)
        for model in self.models:
            mean.update_parameters(model)
        if loader is not None:
            update_bn(loader, mean.module)
        return mean.module
