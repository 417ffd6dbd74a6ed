"""Training of the networks of an ensemble: AdamW, the rate falling to 0 by a cosine, once or in cycles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import sentence
from ..rows import Rows
from ..rows.packing import PackedNetwork
from .likelihood import likelihood_named
from .network import flat_logits
from .validation import checked_outputs, training_pairs

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
        raise RuntimeError(sentence(where, need, "several ranks", fix))
    density = likelihood_named(likelihood)
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr, weight_decay=_DECAY)
    ends = [round((i + 1) * epochs / cycles) for i in range(cycles)]  # the epoch after each cycle's last
    start = 0
    network.train()
    for end in ends:
        for epoch in range(start, end):
            # the rate of this epoch
            for group in optimizer.param_groups:
                group["lr"] = lr / 2 * (1 + math.cos(math.pi * (epoch - start) / (end - start)))
            for batch in _read_batches(where, loader, network, generator):
                x, y, packing = training_pairs(where, batch, network)
                model = network if packing is None else PackedNetwork(network, packing)
                f = checked_outputs(where, flat_logits(model(x[:])))
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
    """The loader's own batches, or those of one pair in random order."""
    if isinstance(loader, tuple) and len(loader) == 2 and isinstance(loader[0], Tensor):
        x, y, _ = training_pairs(where, loader, network)
        for index in torch.randperm(len(y), generator=generator).split(BATCH_SIZE):
            yield x[index.to(y.device)], y[index.to(y.device)]
        return
    batches: Iterable[Any] = [loader] if isinstance(loader, tuple | Mapping) else loader
    for batch in batches:
        yield tuple(batch) if isinstance(batch, list) else batch
