"""SWAG-like weights: a Gaussian over the networks of a training run, the rival of the GP over their outputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from mercer import checks
from mercer.bayes.ensembles import Ensemble
from mercer.bayes.likelihood import Softmax
from mercer.bayes.network import own_network


class SWAG(Ensemble):
    r"""Mean softmax of networks drawn from the Gaussian of a training run (Maddox et al. 2019).

    .. math:: \theta = \bar\theta + \sqrt{\tfrac{s}{2}} \Big(\sigma \odot z_1 + \tfrac{1}{\sqrt{M - 1}} D z_2\Big),
        \qquad D_i = \theta_i - \bar\theta, \quad \sigma^2 = \tfrac1M \sum_i D_i^2

    with :math:`z_1, z_2` standard normal. Statistics of batch normalization are drawn along with the weights' mean.
    A classifier, ready without ``fit``.

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
        super().__init__(models, "classification", "probit", batch_size, generator)
        self.samples = checks.integer("SWAG", "samples", samples, 1)
        self.scale = checks.non_negative("SWAG", "scale", scale)
        self.seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        self.temperature_ = 1.0

    def fit(self, loader: Iterable[Any] | None = None, val_loader: Iterable[Any] | None = None) -> Self:
        """Read the shape of the rows; nothing is learned."""
        for name, rows in (("loader", loader), ("val_loader", val_loader)):
            if rows is not None:
                self._read(name, rows)
        return self

    def draws(self) -> Iterator[dict[str, Tensor]]:
        """The states of the networks drawn."""
        states = [model.state_dict() for model in self._networks]
        stacks = {name: torch.stack([s[name].detach() for s in states]) for name in states[0]}
        weights = {name for name, _ in self._networks[0].named_parameters()}
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.samples):
            common = torch.randn(len(states), generator=generator, dtype=torch.float64)
            state = {}
            for name, stack in stacks.items():
                if name in weights:
                    state[name] = self._draw(stack, common, generator)
                elif stack.is_floating_point():  # a statistic: its mean
                    state[name] = stack.mean(0)
                else:  # a counter: its last value
                    state[name] = stack[-1]
            yield state

    @override
    def predict_proba(self, x: Any, *, gradients: bool = False) -> Tensor:  # (n, ...) -> (n, c)
        """Mean probabilities of the networks drawn."""
        with torch.set_grad_enabled(gradients):
            return Softmax().mix(self._outputs(self._rows(x, gradients)))

    @override
    def _members(self) -> Iterable[nn.Module]:
        first = own_network(self._networks[0], (), self.packing_)
        prefix = "" if self.packing_ is None else "model."
        for state in self.draws():
            network = own_network(first, ())
            for name, value in state.items():
                owner, _, last = (prefix + name).rpartition(".")
                module = network.get_submodule(owner)
                setattr(module, last, nn.Parameter(value, False) if last in dict(module.named_parameters()) else value)
            yield network

    @override
    def _is_fitted(self) -> bool:
        return True

    def _draw(self, stack: Tensor, common: Tensor, generator: torch.Generator) -> Tensor:  # (M, ...) -> (...)
        mean = stack.mean(0)
        deviations = stack - mean
        noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64).to(mean)
        spread = deviations.square().mean(0).sqrt() * noise
        spread = spread + torch.tensordot(common.to(mean), deviations, 1) / math.sqrt(len(stack) - 1)
        weights: Tensor = mean + math.sqrt(self.scale / 2) * spread
        return weights
