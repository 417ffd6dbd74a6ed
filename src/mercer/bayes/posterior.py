"""The family of posteriors: fit, logits, predict, predict_proba, sample, and a file without the network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..rows.packing import Packing
from ..rows.stored import Readable
from ..signals.layers import unwrap
from ..storage.savable import Savable
from .likelihood import LIKELIHOODS, LINKS, Gaussian, Link, Softmax, draws, likelihood_named, link_named
from .network import SavedWithoutNetwork, Unattached
from .validation import check_outputs, check_rows, not_fitted, training_pairs


class Posterior(Savable, ABC):
    """Gaussian outputs of a network, or of several, behind a likelihood.

    A variant writes ``fit`` and ``_moments``; everything else is derived. Every public call runs on copies of the
    networks: several threads can use one posterior, and the user's networks never change. ``fit`` sets
    ``temperature_``, which divides a classifier's outputs, and ``noise_``, a regression's noise variance.

    Args:
        networks: The user's networks.
        likelihood: ``"classification"`` (softmax; one output is a logit) or ``"regression"`` (Gaussian).
        link: ``"probit"``, ``"pairwise"``, ``"laplace_bridge"`` or ``"samples"`` (1,000 draws).
        batch_size: Rows at a time.
        generator: Source of randomness.
    """

    least_networks = 1
    temperature_: float
    noise_: float
    packing_: Packing | None = None
    row_shape_: tuple[int, ...] | None = None

    def __init__(
        self,
        networks: Sequence[nn.Module],
        likelihood: str,
        link: str,
        batch_size: int,
        generator: torch.Generator | None,
    ) -> None:
        where = type(self).__name__
        for network in networks:
            if not isinstance(network, nn.Module):
                raise TypeError(checks.sentence(where, "model must be an nn.Module", type(network).__name__))
        if len(networks) < self.least_networks:
            need = f"models must hold at least {self.least_networks} networks"
            raise ValueError(checks.sentence(where, need, len(networks)))
        self._networks = [unwrap(network) for network in networks]
        self.likelihood = checks.choice(where, "likelihood", likelihood, LIKELIHOODS)
        self.link = checks.choice(where, "link", link, LINKS)
        self.batch_size = checks.integer(where, "batch_size", batch_size, 1)
        self.generator = generator

    @abstractmethod
    def fit(self, loader: Iterable[Any], val_loader: Iterable[Any] | None = None) -> Self:
        """Learn from training rows and labels; validation rows choose what must be chosen."""

    @abstractmethod
    def _moments(self, x: Tensor, *, full: bool, gradients: bool) -> tuple[Tensor, Tensor]:
        """Mean ``(n, c)``, and covariance ``(n, c, c)`` or, if not ``full``, variance ``(n, c)``."""

    def _joint(self, x: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        """Mean ``(n, c)`` and covariance of all rows, ``(n, n, c, c)``."""
        raise NotImplementedError(f"{type(self).__name__} has no joint covariance")

    def logits(
        self, x: Any, *, joint: bool = False, gradients: bool = False
    ) -> tuple[Tensor, Tensor]:  # (n, ...) -> (n, c), (n, c, c) or (n, n, c, c)
        """Mean and covariance of the outputs; a regression's noise is not included.

        Args:
            x: Rows; a dictionary of the network's arguments where ``fit`` saw such.
            joint: Return covariances between rows as well.
            gradients: Let gradients flow back to ``x``; otherwise nothing requires grad.
        """
        with torch.set_grad_enabled(gradients):
            rows = self._rows(x, gradients)
            if joint:
                mean, covariance = self._joint(rows, gradients)
            else:
                mean, covariance = self._moments(rows, full=True, gradients=gradients)
        where = type(self).__name__
        return check_outputs(where, mean), check_outputs(where, covariance)

    def predict_proba(self, x: Any, *, gradients: bool = False) -> Tensor:  # (n, ...) -> (n, c)
        """Class probabilities through the link; ``(n, 2)`` for a network with one logit."""
        density = self._likelihood
        if not isinstance(density, Softmax):
            fix = "Use predict, which gives mean and variance."
            raise ValueError(
                checks.sentence("predict_proba", "likelihood must be 'classification'", "'regression'", fix)
            )
        with torch.set_grad_enabled(gradients):
            rows, link = self._rows(x, gradients), self._link
            mean, covariance = self._moments(rows, full=link.needs_covariance, gradients=gradients)
            check_outputs(type(self).__name__, mean)
            return density.proba(mean, check_outputs(type(self).__name__, covariance), link)

    def predict(self, x: Any, *, gradients: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Labels ``(n,)``; for a regression mean and variance ``(n, c)`` of a new target, the noise included."""
        density = self._likelihood
        if not isinstance(density, Gaussian):
            return self.predict_proba(x).argmax(1)
        with torch.set_grad_enabled(gradients):
            mean, variance = self._moments(self._rows(x, gradients), full=False, gradients=gradients)
        where = type(self).__name__
        return check_outputs(where, mean), check_outputs(where, variance) + density.noise

    def sample(self, x: Any, n: int) -> Tensor:  # (rows, ...) -> (n, rows, c)
        """Draws of the outputs as functions: the rows of one draw belong together."""
        checks.integer(f"{type(self).__name__}.sample", "n", n, 1)
        with torch.no_grad():
            draws_of_outputs = self._draws(self._rows(x, False), n)
        return check_outputs(type(self).__name__, draws_of_outputs)

    def _draws(self, x: Tensor, n: int) -> Tensor:  # (rows, ...) -> (n, rows, c)
        mean, covariance = self._joint(x, False)
        rows, c = mean.shape
        flat = covariance.transpose(1, 2).reshape(1, rows * c, rows * c)
        return draws(mean.reshape(1, rows * c), flat, n, self.generator).reshape(n, rows, c)

    @override
    def __repr__(self) -> str:
        """The networks, the likelihood, and what ``fit`` chose."""
        names = list(dict.fromkeys(type(network).__name__ for network in self._networks))
        networks = " and ".join(names)
        if len(self._networks) > 1:
            networks = f"{len(self._networks)} x {networks}"
        choices = "not fitted"
        if self._is_fitted():
            choices = ", ".join(self._describe())
        return f"{type(self).__name__}({networks}, {self.likelihood}): {choices}"

    def _describe(self) -> list[str]:
        """What ``fit`` chose, for ``repr``."""
        if likelihood_named(self.likelihood).has_noise:
            return [f"noise {self.noise_:.3g}"]
        return [f"temperature {self.temperature_:.3g}"]

    @property
    def _likelihood(self) -> Softmax | Gaussian:
        density = likelihood_named(self.likelihood)
        return density.at(getattr(self, density.learned, 1.0))

    @property
    def _link(self) -> Link:
        return link_named(self.link, self.generator)

    def _is_fitted(self) -> bool:
        return self.row_shape_ is not None

    def _rows(self, x: Any, gradients: bool) -> Tensor:
        where, first = type(self).__name__, self._networks[0]
        if isinstance(first, Unattached):
            raise first.error(where)
        if not self._is_fitted():
            raise not_fitted(where)
        return self._check_rows(x, gradients)

    def _check_rows(self, x: Any, gradients: bool) -> Tensor:
        where, first = type(self).__name__, self._networks[0]
        if self.packing_ is not None:
            x = self.packing_.pack(where, x)
        rows = check_rows(where, x, first, self.row_shape_)
        if gradients:
            return rows
        return rows.detach()

    def _pairs(self, name: str, loader: Iterable[Any]) -> tuple[Readable, Tensor]:
        """Rows and labels of a loader; the shape of rows and their packing are kept for rows to come."""
        where = f"{type(self).__name__}.fit, {name}"
        x, y, self.packing_ = training_pairs(where, loader, self._networks[0])
        self.row_shape_ = tuple(x.shape[1:])
        return x, y


class NetworkPosterior(SavedWithoutNetwork, Posterior):
    """A posterior of one network: saved without it, ``mercer.load(folder).attach(model)``."""

    @property
    def model(self) -> nn.Module:
        """The user's network."""
        return self._networks[0]

    @model.setter
    def model(self, model: nn.Module) -> None:
        self._networks = [model]
