"""SWAG-like weights: a Gaussian over the networks of a training run, the rival of the GP over their outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .. import checks
from ..kernels.network import evaluating, seed_from
from ..linalg import slices
from ..modules import as_logits, unwrap
from .intake import checked_outputs, checked_rows


class SWAG:
    r"""Mean softmax of networks drawn from the Gaussian of a training run (Maddox et al. 2019).

    .. math:: \theta = \bar\theta + \sqrt{\tfrac{s}{2}} \Big(\sigma \odot z_1 + \tfrac{1}{\sqrt{M - 1}} D z_2\Big),
        \qquad D_i = \theta_i - \bar\theta, \quad \sigma^2 = \tfrac1M \sum_i D_i^2

    with :math:`z_1, z_2` standard normal. Statistics of batch normalisation are drawn along with the weights' mean.

    Args:
        models: The M >= 2 networks, say ``Snapshots(...).models``.
        samples: Networks drawn.
        scale: s; 1 in the paper.
        batch_size: Rows at a time.
        generator: Decides the networks; a seed is drawn from it once, so that predictions repeat.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        *,
        samples: int = 30,
        scale: float = 1.0,
        batch_size: int = 256,
        generator: torch.Generator | None = None,
    ) -> None:
        if len(models) < 2 or not all(isinstance(model, nn.Module) for model in models):
            raise ValueError(checks.sentence("SWAG", "models must hold at least 2 networks", f"{len(models)} items"))
        self.models = [unwrap(model) for model in models]
        self.samples = checks.integer("SWAG", "samples", samples, 1)
        self.scale = checks.non_negative("SWAG", "scale", scale)
        self.batch_size = checks.integer("SWAG", "batch_size", batch_size, 1)
        self.seed = seed_from(generator)

    def draws(self) -> Iterator[dict[str, Tensor]]:
        """The states of the networks drawn."""
        states = [model.state_dict() for model in self.models]
        stacks = {name: torch.stack([s[name].detach() for s in states]) for name in states[0]}
        weights = {name for name, _ in self.models[0].named_parameters()}
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.samples):
            common = torch.randn(len(states), generator=generator, dtype=torch.float64)
            yield {
                name: self._drawn(stack, common, generator) if name in weights else _middle(stack)
                for name, stack in stacks.items()
            }

    def predict_proba(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c)
        """Class probabilities."""
        x = checked_rows("SWAG", x, self.models[0], None)
        total: Tensor = torch.zeros((), device=x.device)
        with torch.no_grad(), evaluating(self.models[0]):
            for state in self.draws():
                parts = [functional_call(self.models[0], state, (x[part],)) for part in slices(len(x), self.batch_size)]
                f = checked_outputs("SWAG", torch.cat([as_logits(part) for part in parts]))
                total = total + f.softmax(1)
        return total / self.samples

    def predict(self, x: Tensor) -> Tensor:  # (n, ...) -> (n,)
        """Labels."""
        return self.predict_proba(x).argmax(1)

    def _drawn(self, stack: Tensor, common: Tensor, generator: torch.Generator) -> Tensor:  # (M, ...) -> (...)
        mean = stack.mean(0)
        deviations = stack - mean
        own = torch.randn(mean.shape, generator=generator, dtype=torch.float64).to(mean)
        spread = deviations.square().mean(0).sqrt() * own
        spread = spread + torch.tensordot(common.to(mean), deviations, 1) / math.sqrt(len(stack) - 1)
        drawn: Tensor = mean + math.sqrt(self.scale / 2) * spread
        return drawn


def _middle(stack: Tensor) -> Tensor:
    """The mean of a statistic; the last value of a counter."""
    return stack.mean(0) if stack.is_floating_point() else stack[-1]
