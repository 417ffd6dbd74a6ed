"""Training of the networks of an ensemble by AdamW, the rate falling to 0 by a cosine; copies kept on the way."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, update_bn

from .. import checks
from ..rows.packing import PackedNetwork
from ..rows.rows import Rows
from ..signals.layers import unwrap
from .likelihood import likelihood_named
from .network import flat_logits
from .validation import check_outputs, training_pairs

BATCH_SIZE = 128  # of rows that come as one pair
_DECAY = 1e-4


def train_network(
    where: str,
    network: nn.Module,
    loader: Iterable[Any],
    *,
    likelihood: str,
    epochs: int,
    lr: float,
    generator: torch.Generator,
    cycles: int = 1,
    after_cycle: Callable[[], None] = lambda: None,
) -> None:
    r"""Cross-entropy or least squares by AdamW, the rate :math:`\tfrac{lr}{2} (1 + \cos \pi e)`, e of 0..1 in a cycle.

    Args:
        where: Who asks.
        network: Trained in place; its parameters that require grad.
        loader: Batches, read anew in each epoch (a loader may shuffle and augment), or one pair, which is shuffled.
        likelihood: ``"classification"`` or ``"regression"``.
        epochs: In all.
        lr: The rate at the start of a cycle.
        generator: Order of the rows of one pair.
        cycles: How often the rate starts anew.
        after_cycle: Called when the rate is back at 0.
    """
    if Rows(torch.zeros(1)).n > 1:
        need, fix = "training runs on one process", "Train with your own loop, then pass the models."
        raise RuntimeError(checks.sentence(where, need, "several ranks", fix))
    density = likelihood_named(likelihood)
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr, weight_decay=_DECAY)
    start = 0
    network.train()
    for cycle in range(1, cycles + 1):
        end = round(cycle * epochs / cycles)  # the epoch after the cycle's last
        for epoch in range(start, end):
            # The rate falls from lr to nearly 0 within the cycle.
            for group in optimizer.param_groups:
                group["lr"] = lr / 2 * (1 + math.cos(math.pi * (epoch - start) / (end - start)))
            for batch in _read_batches(where, loader, network, generator):
                # A batch may come as a pair or as a dictionary of arguments, which is packed.
                x, y, packing = training_pairs(where, batch, network)
                model = network
                if packing is not None:
                    model = PackedNetwork(network, packing)
                f = check_outputs(where, flat_logits(model(x[:])))
                y = density.targets(where, y, f.detach())
                loss = -density.log_density(f, y).mean()  # of a regression with noise 1: half the squares
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        start = end
        after_cycle()
    network.eval()


def _read_batches(
    where: str, loader: Iterable[Any], network: nn.Module, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor] | Mapping[str, Any]]:
    """The loader's batches, or those of one pair in random order."""
    if isinstance(loader, tuple) and len(loader) == 2 and isinstance(loader[0], Tensor):
        x, y, _ = training_pairs(where, loader, network)
        for index in torch.randperm(len(y), generator=generator).split(BATCH_SIZE):
            yield x[index.to(y.device)], y[index.to(y.device)]
        return
    if isinstance(loader, tuple | Mapping):
        yield loader
        return
    for batch in loader:
        if isinstance(batch, list):  # a pair, as default collators give it
            batch = tuple(batch)
        yield batch


class Snapshots:
    """Copies of a network during training. Call it whenever a copy should be kept.

    Use it for an ensemble at the price of one training.

    Args:
        model: The network in training.
        every: Keep a copy at every call (1), every second call (2), and so on.
        most: Number of copies to keep, the latest ones; None keeps all.

    >>> model = nn.Linear(2, 3)
    >>> snapshots = Snapshots(model, every=10)
    >>> for step in range(40):  # of a training
    ...     snapshots()
    >>> len(snapshots.models)
    4
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
