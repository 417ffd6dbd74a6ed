"""The networks met on the way of training, kept."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

from .. import checks
from ..signals.layers import unwrap
from .training import train_network


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

    @classmethod
    def train(
        cls,
        model: nn.Module,
        loader: Iterable[Any],
        n: int = 5,
        *,
        likelihood: str = "classification",
        epochs: int = 50,
        lr: float = 2e-3,
        generator: torch.Generator | None = None,
    ) -> Self:
        """Train a copy of a network in n cycles of the rate and keep it at the end of each (Huang et al. 2017).

        ``DeepEnsemble(Snapshots.train(model, loader).models)`` is an ensemble at the price of one training;
        `TrajectoryGP` takes the same models.

        Args:
            model: The network; it stays as it is.
            loader: Training rows and labels: batches, read anew in each epoch, or one pair, which is shuffled in
                batches of 128.
            n: Cycles, and copies.
            likelihood: ``"classification"`` or ``"regression"``.
            epochs: In all cycles together.
            lr: The rate at the start of each cycle; it falls to 0 by a cosine.
            generator: Source of randomness.
        """
        where = f"{cls.__name__}.train"
        checks.integer(where, "n", n, 2)
        checks.integer(where, "epochs", epochs, n)
        checks.positive(where, "lr", lr)
        snapshots = cls(copy.deepcopy(unwrap(model)))
        seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        with torch.random.fork_rng():  # dropout and a loader that shuffles draw from here
            torch.manual_seed(seed)
            train_network(
                where, snapshots.model, loader, likelihood=likelihood, epochs=epochs, lr=lr,
                generator=torch.Generator().manual_seed(seed), cycles=n, after_cycle=snapshots,
            )  # fmt: skip
        return snapshots

    def __repr__(self) -> str:
        """The network and the number of copies."""
        return f"Snapshots({type(self.model).__name__}): {len(self.models)} kept"

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
