"""One number for all rows: the rival that every uncertainty of a network must beat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..linalg.blocks import slices
from ..rows.stored import Readable
from .likelihood import Softmax, likelihood_named, mean_over_ranks
from .network import flat_logits, own_network, weights_of, zero_row
from .posterior import NetworkPosterior
from .prior_choice import best_temperature
from .validation import check_network_runs, check_outputs


class TemperatureScaling(NetworkPosterior):
    r"""Probabilities :math:`\mathrm{softmax}(g(x) / T)` with T of least log-loss (Guo et al. 2017).

    It costs one forward pass for each row and keeps the network's labels. It says nothing about single rows: all
    covariances are 0. For a regression the same number is the noise variance.

    Args:
        model: The trained network; one output is a logit.
        likelihood: ``"classification"`` or ``"regression"``.
        batch_size: Rows at a time.

    Attributes:
        temperature_: T.
        noise_: Noise variance (regression only).

    Use it first where probabilities are too sure: one number, no change of labels.

    >>> model = nn.Linear(4, 3)
    >>> rows = (torch.randn(60, 4), torch.arange(60) % 3)
    >>> TemperatureScaling(model).fit(rows, rows).predict_proba(rows[0]).shape
    torch.Size([60, 3])
    """

    def __init__(self, model: nn.Module, *, likelihood: str = "classification", batch_size: int = 256) -> None:
        super().__init__([model], likelihood, "probit", batch_size, None)

    def fit(self, loader: Iterable[Any], val_loader: Iterable[Any] | None = None) -> Self:
        """Choose T on the validation rows, or on the loader's where there are none.

        Use rows that the network was not trained on: its own training rows give too low a T.
        """
        x, y = self._pairs("loader", loader)
        if val_loader is not None:
            x, y = self._pairs("val_loader", val_loader)
        self.weights_ = weights_of(self.model, [name for name, _ in self.model.named_parameters()])
        with torch.no_grad():
            f = self._outputs(x)
            density = likelihood_named(self.likelihood)
            y = density.targets("TemperatureScaling", y, f)
            self.temperature_, self.noise_ = 1.0, density.noise_of(y, f)
            if isinstance(density, Softmax):
                self.temperature_ = best_temperature(lambda t: mean_over_ranks(-Softmax(t).log_density(f, y)))
        return self

    @override
    def _moments(self, x: Tensor, *, full: bool, gradients: bool) -> tuple[Tensor, Tensor]:
        f = self._outputs(x)
        if full:
            return f, f.new_zeros(*f.shape, f.shape[1])
        return f, torch.zeros_like(f)

    @override
    def _joint(self, x: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        f = self._outputs(x)
        return f, f.new_zeros(len(f), len(f), f.shape[1], f.shape[1])

    @override
    def _draws(self, x: Tensor, n: int) -> Tensor:
        return self._outputs(x).expand(n, -1, -1).clone()

    def _outputs(self, x: Readable) -> Tensor:  # (n, ...) -> (n, c)
        network = own_network(self.model, (), self.packing_)
        if not len(x):  # a rank without rows: the shape alone
            return flat_logits(network(zero_row(x)))[:0]
        with torch.no_grad():
            check_network_runs("TemperatureScaling", lambda row: flat_logits(network(row)), x[:1])
        parts = [flat_logits(network(x[part])) for part in slices(len(x), self.batch_size)]
        return check_outputs("TemperatureScaling", torch.cat(parts))

    @override
    def _all_count(self) -> bool:
        return False

    @override
    def _is_fitted(self) -> bool:
        return hasattr(self, "temperature_")
