"""A Gaussian process over the networks met on the way of training, and the collector of those networks."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from .. import checks
from ..kernels import Trajectory
from ..linalg import slices
from ..modules import labelled_rows, unwrap
from .likelihood import LINKS, laplace_bridge, negative_log_likelihood, probit, sampled

_GRID = torch.logspace(-2, 3, 51, dtype=torch.float64)


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

    def averaged(self) -> nn.Module:
        """Stochastic weight averaging: one network with the mean of the weights (and of the statistics)."""
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
        return mean


class TrajectoryGP:
    r"""Classifier with outputs :math:`f \sim GP(\bar g, \kappa_{SGD} / \tau)`, the kernel `mercer.kernels.Trajectory`.

    .. math:: \kappa_{SGD}(x, x') = \tfrac1M \sum_i (g(x, \theta_i) - \bar g(x)) (g(x', \theta_i) - \bar g(x'))^\top,
        \qquad p(y | x) = \int N(f; \bar g(x), \kappa_{SGD}(x, x)) \, p(y | f) \, df

    (deng2022, slide "Bayesian deep learning by modeling SGD trajectory"). M forward passes for each row.

    Args:
        models: The M >= 2 networks, say ``Snapshots(...).models``.
        precision: :math:`\tau`, by which the covariance is divided: ``"validation"`` (1 without a ``val_loader``), or a
            number; the slides have 1.
        link: ``"probit"``, ``"laplace_bridge"`` or ``"samples"``.
        batch_size: Rows at a time.
        generator: Source of randomness of ``"samples"``.

    Attributes:
        precision_: The number in force.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        *,
        precision: str | float = "validation",
        link: str = "probit",
        batch_size: int = 256,
        generator: torch.Generator | None = None,
    ) -> None:
        self.kernel = Trajectory(models, outputs="full")
        if isinstance(precision, str):
            checks.choice("TrajectoryGP", "precision", precision, ("validation",))
        else:
            checks.positive("TrajectoryGP", "precision", precision)
        self.precision = precision
        self.link = checks.choice("TrajectoryGP", "link", link, LINKS)
        self.batch_size = checks.integer("TrajectoryGP", "batch_size", batch_size, 1)
        self.generator = generator
        self.precision_ = 1.0 if isinstance(precision, str) else float(precision)

    def fit(self, loader: Iterable[Any] | None = None, val_loader: Iterable[Any] | None = None) -> Self:
        """Choose the precision on validation rows; the training rows are in the networks already, and are not read."""
        if self.precision == "validation" and val_loader is not None:
            x, y = labelled_rows("TrajectoryGP.fit", val_loader)
            mean, variance = self._mean_and_variance(x)
            if y.is_floating_point() or int(y.min()) < 0 or int(y.max()) >= mean.shape[1]:
                need = f"labels must be whole numbers in 0..{mean.shape[1] - 1}"
                raise ValueError(checks.sentence("TrajectoryGP.fit", need, f"{y.dtype}, {y.min()}..{y.max()}"))
            scores = [negative_log_likelihood(probit(mean, variance / float(t)), y.long()) for t in _GRID]
            self.precision_ = float(_GRID[int(torch.tensor(scores).argmin())])
        return self

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (n, ...) -> (n, c), (n, c, c)
        """Mean and covariance of the outputs."""
        x = checks.finite("TrajectoryGP", "x", self.kernel.prepare("x", x))
        with torch.no_grad():
            means = torch.cat([self.kernel.mean(x[part]) for part in slices(len(x), self.batch_size)])
            covariances = torch.cat([self.kernel.diag(x[part]) for part in slices(len(x), self.batch_size)])
        return means, covariances / self.precision_

    def predict_proba(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c)
        """Class probabilities through the link."""
        if self.link == "samples":
            return sampled(*self.logits(x), 1000, self.generator)
        mean, variance = self._mean_and_variance(x)
        return (probit if self.link == "probit" else laplace_bridge)(mean, variance / self.precision_)

    def predict(self, x: Tensor) -> Tensor:  # (n, ...) -> (n,)
        """Labels."""
        return self.predict_proba(x).argmax(1)

    def ensemble_proba(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c)
        """The baseline: the mean of the networks' own probabilities."""
        x = checks.finite("TrajectoryGP", "x", self.kernel.prepare("x", x))
        with torch.no_grad():
            parts = [self.kernel.outputs_of_all(x[part]).softmax(1).mean(2) for part in slices(len(x), self.batch_size)]
        return torch.cat(parts)

    def _mean_and_variance(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = checks.finite("TrajectoryGP", "x", self.kernel.prepare("x", x))
        with torch.no_grad():
            outputs = torch.cat(
                [self.kernel.outputs_of_all(x[part]) for part in slices(len(x), self.batch_size)]
            )  # (n, c, M)
        return outputs.mean(2), outputs.var(2, correction=0)
