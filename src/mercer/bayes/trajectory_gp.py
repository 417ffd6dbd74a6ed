"""A Gaussian process over the networks met on the way of training, and the collector of those networks."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..kernels import Trajectory
from ..linalg import slices
from ..modules import Readable, unwrap
from ..storage import Savable
from .intake import checked_outputs, checked_rows, checked_targets, not_fitted, training_pairs
from .likelihood import (
    LIKELIHOODS,
    LINKS,
    gaussian_nll,
    laplace_bridge,
    mean_over_ranks,
    negative_log_likelihood,
    probit,
    sampled,
)
from .prior_choice import least


class Snapshots:
    """Copies of a network as it is trained: call it where one should be kept.

    Args:
        model: The network in training.
        every: Keep one in so many calls.
        most: Keep the last so many; None keeps all.
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
            loader: Training batches, on which statistics of batch normalisation are taken anew; without, they are
                averaged as the weights are.
        """
        if not self.models:
            raise RuntimeError(checks.sentence("Snapshots", "at least one copy must have been kept", "none"))
        mean = copy.deepcopy(self.models[-1])
        states = [model.state_dict() for model in self.models]
        mean.load_state_dict(
            {
                name: torch.stack([state[name] for state in states]).mean(0) if value.is_floating_point() else value
                for name, value in states[-1].items()
            }
        )
        if loader is not None:
            torch.optim.swa_utils.update_bn(loader, mean)
        return mean


class TrajectoryGP(Savable):
    r"""Network with outputs :math:`f \sim GP(\bar g, \kappa_{SGD} / \tau)`, the kernel `mercer.kernels.Trajectory`.

    .. math:: \kappa_{SGD}(x, x') = \tfrac1M \sum_i (g(x, \theta_i) - \bar g(x)) (g(x', \theta_i) - \bar g(x'))^\top,
        \qquad p(y | x) = \int N(f; \bar g(x), \kappa_{SGD}(x, x)) \, p(y | f) \, df

    (deng2022, slide "Bayesian deep learning by modeling SGD trajectory"). M forward passes for each row. The variance
    outside the run's own directions is 0: far from the data it need not grow.

    Args:
        models: The M >= 2 networks, say ``Snapshots(...).models``.
        likelihood: ``"classification"`` or ``"regression"`` (Gaussian with learned noise).
        precision: :math:`\tau`, by which the covariance is divided: ``"validation"`` (1 without a ``val_loader``), or a
            number; the slides have 1.
        link: ``"probit"``, ``"laplace_bridge"`` or ``"samples"``.
        batch_size: Rows at a time.
        generator: Source of randomness of ``"samples"``.

    Attributes:
        precision_: The number in force.
        noise_: Variance of the noise, of a regression.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        *,
        likelihood: str = "classification",
        precision: str | float = "validation",
        link: str = "probit",
        batch_size: int = 256,
        generator: torch.Generator | None = None,
    ) -> None:
        self.kernel = Trajectory(models, outputs="full")
        self.likelihood = checks.choice("TrajectoryGP", "likelihood", likelihood, LIKELIHOODS)
        if isinstance(precision, str):
            checks.choice("TrajectoryGP", "precision", precision, ("validation",))
        else:
            checks.positive("TrajectoryGP", "precision", precision)
        self.precision = precision
        self.link = checks.choice("TrajectoryGP", "link", link, LINKS)
        self.batch_size = checks.integer("TrajectoryGP", "batch_size", batch_size, 1)
        self.generator = generator
        if not isinstance(precision, str) and likelihood == "classification":  # nothing is left to learn
            self.precision_, self.noise_ = float(precision), 0.0

    def fit(self, loader: Iterable[Any] | None = None, val_loader: Iterable[Any] | None = None) -> Self:
        """Choose the precision on validation rows, and a regression's noise on them or, without, on training rows.

        A classifier's training rows are in its networks already: they are checked, and taken as the shape of rows to
        come. Of several ranks each gives its own.
        """
        noise = self._first_noise(loader if loader is not None else val_loader)
        precision = 1.0 if isinstance(self.precision, str) else float(self.precision)
        if self.precision == "validation" and val_loader is not None:
            precision, noise = least(partial(self._score, *self._read(val_loader)), noise=noise or None)
        self.precision_, self.noise_ = precision, noise if self.likelihood == "regression" else 0.0
        return self

    def _first_noise(self, loader: Iterable[Any] | None) -> float:
        """Mean squared residual of a regression; 0 for a classifier, whose rows are only looked at."""
        if self.likelihood == "regression":
            if loader is None:
                need, fix = "a regression learns its noise from rows", "Give loader or val_loader."
                raise ValueError(checks.sentence("TrajectoryGP.fit", need, "neither loader", fix))
            mean, _, y = self._read(loader)
            return max(mean_over_ranks((y - mean).square()), torch.finfo(torch.float32).tiny)
        if loader is not None:
            x, y = self._pairs(loader)
            checked_targets("TrajectoryGP", self.likelihood, y, self._outputs(x[:1]).mean(2))
        return 0.0

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (n, ...) -> (n, c), (n, c, c)
        """Mean and covariance of the outputs (of a regression, without the noise)."""
        outputs = self._outputs(self._rows(x))
        centred = outputs - outputs.mean(2, keepdim=True)
        return outputs.mean(2), centred @ centred.mT / (outputs.shape[2] * self.precision_)

    def predict_proba(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c)
        """Class probabilities through the link."""
        if self.likelihood != "classification":
            fix = "Use predict, which gives mean and variance."
            raise ValueError(
                checks.sentence("predict_proba", "likelihood must be 'classification'", "'regression'", fix)
            )
        if self.link == "samples":
            return sampled(*self.logits(x), 1000, self.generator)
        mean, variance = self._mean_and_variance(self._rows(x))
        return (probit if self.link == "probit" else laplace_bridge)(mean, variance / self.precision_)

    def predict(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Labels ``(n,)``; for a regression mean and variance ``(n, c)`` of a new target, the noise included."""
        if self.likelihood == "classification":
            return self.predict_proba(x).argmax(1)
        mean, variance = self._mean_and_variance(self._rows(x))
        return mean, variance / self.precision_ + self.noise_

    def ensemble_proba(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c)
        """The baseline: the mean of the networks' own probabilities; needs no fit."""
        return self._outputs(checked_rows("TrajectoryGP", x, self._network(), None)).softmax(1).mean(2)

    @override
    def get_arguments(self) -> dict[str, Any]:
        """Refuse: there is nothing to save but the networks.

        Raises:
            TypeError: Always.
        """
        need = "its networks are yours to save, by their state_dict"
        fix = "Then TrajectoryGP(models, precision=gp.precision_) is the same posterior."
        raise TypeError(
            checks.sentence("mercer.save, TrajectoryGP", need, f"{len(self.kernel.networks())} of them", fix)
        )

    def _score(self, mean: Tensor, variance: Tensor, y: Tensor, precision: float, noise: float) -> float:
        if self.likelihood == "regression":
            return gaussian_nll(mean, variance / precision + noise, y)
        link = laplace_bridge if self.link == "laplace_bridge" else probit
        return negative_log_likelihood(link(mean, variance / precision), y)

    def _read(self, loader: Iterable[Any]) -> tuple[Tensor, Tensor, Tensor]:
        x, y = self._pairs(loader)
        mean, variance = self._mean_and_variance(x)
        return mean, variance, checked_targets("TrajectoryGP", self.likelihood, y, mean)

    def _pairs(self, loader: Iterable[Any]) -> tuple[Readable, Tensor]:
        x, y = training_pairs("TrajectoryGP.fit", loader, self._network())
        self.row_shape_ = tuple(x.shape[1:])
        return x, y

    def _mean_and_variance(self, x: Readable) -> tuple[Tensor, Tensor]:
        outputs = self._outputs(x)
        return outputs.mean(2), outputs.var(2, correction=0)

    def _outputs(self, x: Readable) -> Tensor:  # (n, ...) -> (n, c, M)
        if not len(x):  # a rank without rows: the shape alone
            return self._outputs(torch.zeros(1, *x.shape[1:], dtype=x.dtype, device=x.device))[:0]
        with torch.no_grad():
            parts = [self.kernel.outputs_of_all(x[part]) for part in slices(len(x), self.batch_size)]
        return checked_outputs("TrajectoryGP", torch.cat(parts))

    def _rows(self, x: Tensor) -> Tensor:
        if not hasattr(self, "precision_"):
            raise not_fitted("TrajectoryGP")
        return checked_rows("TrajectoryGP", x, self._network(), getattr(self, "row_shape_", None))

    def _network(self) -> nn.Module:
        return unwrap(self.kernel.networks()[0])
