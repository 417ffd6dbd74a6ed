"""A Gaussian process over the networks met on the way of training."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..linalg.blocks import slices
from ..rows.rows import Rows
from ..rows.stored import Readable
from .eigenfunction_network import EigenfunctionNetwork, distill_network, read_embedding
from .ensembles import Ensemble
from .likelihood import likelihood_named, mean_over_ranks
from .network import draw_seed, own_network, zero_row
from .prior_choice import best_precision, best_precision_and_noise

_log = logging.getLogger("mercer")


class TrajectoryGP(Ensemble):
    r"""Network with outputs :math:`f \sim GP(\bar g, \kappa_{SGD} / \tau)`, the kernel `mercer.kernels.Trajectory`.

    Use it for error bars from one training in one forward pass; `DeepEnsemble` of the same snapshots takes M passes.

    .. math:: \kappa_{SGD}(x, x') = \tfrac1M \sum_i (g(x, \theta_i) - \bar g(x)) (g(x', \theta_i) - \bar g(x'))^\top,
        \qquad p(y | x) = \int N(f; \bar g(x), \kappa_{SGD}(x, x)) \, p(y | f) \, df

    (deng2022, slide "Bayesian deep learning by modeling SGD trajectory"). The kernel's eigenfunctions on the training
    rows are known, :math:`\Psi = (g_i - \bar g)_i V / \sqrt M` with the leading eigenvectors V of the networks' M x M
    covariance; a small network that reads the last network's embedding gives them, the mean and the variance outside
    them in one forward pass. The variance outside the run's own directions is 0: far from the data it need not grow.

    Args:
        models: The M >= 2 networks, say ``Snapshots(...).models``.
        likelihood: ``"classification"`` or ``"regression"`` (Gaussian with learned noise).
        eigenfunctions: ``"network"``: ``predict`` takes one pass of the last network and a small one fitted to k
            functions on the training rows; ``"models"``: M forward passes a row, exact. ``logits`` and ``sample``
            always take the M, and so does all of it where ``fit`` was given no training rows.
        k: Eigenfunctions of the network.
        precision: :math:`\tau`, by which the covariance is divided: ``"validation"`` (1 without a ``val_loader``), or a
            number; the slides have 1.
        link: ``"probit"``, ``"pairwise"``, ``"laplace_bridge"`` or ``"samples"``.
        network_steps: Training steps of the small network.
        batch_size: Rows at a time.
        generator: Source of randomness.

    Attributes:
        precision_: The value used.
        noise_: Noise variance (regression only).

    >>> from mercer.bayes import Snapshots
    >>> x, y = torch.randn(60, 2), torch.randint(3, (60,))
    >>> models = Snapshots.train(nn.Linear(2, 3), (x, y), 3, epochs=6).models
    >>> posterior = TrajectoryGP(models, network_steps=20).fit((x, y))
    >>> posterior.predict_proba(x[:5]).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        *,
        likelihood: str = "classification",
        eigenfunctions: str = "network",
        k: int = 10,
        precision: str | float = "validation",
        link: str = "probit",
        network_steps: int = 2500,
        batch_size: int = 256,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(models, likelihood, link, batch_size, generator)
        where = "TrajectoryGP"
        self.eigenfunctions = checks.choice(where, "eigenfunctions", eigenfunctions, ("network", "models"))
        self.k = checks.integer(where, "k", k, 1)
        self.network_steps = checks.integer(where, "network_steps", network_steps, 0)
        if isinstance(precision, str):
            checks.choice(where, "precision", precision, ("validation",))
        else:
            checks.positive(where, "precision", precision)
        self.precision = precision
        self.student_: EigenfunctionNetwork | None = None
        if not isinstance(precision, str) and not likelihood_named(likelihood).has_noise:  # nothing is left to learn
            self.precision_, self.noise_, self.temperature_ = float(precision), 1.0, 1.0

    def fit(self, loader: Iterable[Any] | None = None, val_loader: Iterable[Any] | None = None) -> Self:
        """Fit the small network on training rows; choose the precision, and a regression's noise, on validation rows.

        Without validation rows a regression's noise is learned on the training rows. With several ranks, each passes
        its own.
        """
        self._check_noise_rows(loader, val_loader)
        density, noise = likelihood_named(self.likelihood), 1.0
        precision = 1.0
        if not isinstance(self.precision, str):
            precision = float(self.precision)
        self.student_ = None
        if loader is not None:
            noise = self._learn(loader)
        if val_loader is not None:
            # Mean and variance of the validation rows as they will be predicted, without tau.
            x, y = self._pairs("val_loader", val_loader)
            with torch.no_grad():
                mean, variance = self._mean_and_variance(x)
            y = density.targets("TrajectoryGP", y, mean)
            if loader is None:
                noise = density.noise_of(y, mean)
            link = self._link

            def loss(p: float, s: float = 1.0) -> float:
                return mean_over_ranks(density.at(s).loss(mean, variance / p, y, link))

            if self.precision == "validation" and density.has_noise:
                precision, noise = best_precision_and_noise(loss, noise)
            elif self.precision == "validation":
                precision, _ = best_precision(loss)
        self.precision_, self.noise_, self.temperature_ = precision, noise, 1.0
        return self

    def _learn(self, loader: Iterable[Any]) -> float:
        """Fit the small network; mean squared residual of a regression, 1 of a classifier."""
        x = self._pairs("loader", loader)[0]
        outputs, y = self._read("loader", loader)
        if self.eigenfunctions == "network":
            # V: the leading eigenvectors of the networks' M x M covariance, of which one is always 0.
            centred = (outputs - outputs.mean(2, keepdim=True)).flatten(0, 1).double()
            gram = Rows(outputs).total(centred.mT @ centred)
            vectors = torch.linalg.eigh(gram)[1].flip(1)[:, : min(self.k, len(gram) - 1)]
            network = own_network(self._networks[-1], (), self.packing_)
            with torch.no_grad():
                self.student_ = distill_network(
                    Rows(x).gather(), lambda rows: self._parts(rows, vectors), network, self.network_steps,
                    self.batch_size, draw_seed(self.generator), mix=self.packing_ is None,
                )  # fmt: skip
        return likelihood_named(self.likelihood).noise_of(y, outputs.mean(2))

    def _parts(self, x: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs of the last network; the mean less these and Psi, ``(n, c, 1 + k)``; the variance outside."""
        outputs = self._outputs(x)
        last, mean = outputs[..., -1], outputs.mean(2)
        centred = outputs - mean[..., None]
        psi = centred @ vectors.to(centred.dtype) / math.sqrt(outputs.shape[2])
        outside = (outputs.var(2, correction=0) - psi.square().sum(2)).clamp_min(0)
        return last, torch.cat(((mean - last)[..., None], psi), 2), outside

    def _mean_and_variance(self, x: Readable) -> tuple[Tensor, Tensor]:  # -> (n, c), (n, c)
        if self.student_ is None:
            outputs = self._outputs(x)
            return outputs.mean(2), outputs.var(2, correction=0)
        if not len(x):
            mean, variance = self._mean_and_variance(zero_row(x))
            return mean[:0], variance[:0]
        network = own_network(self._networks[-1], (), self.packing_)
        means, variances = [], []
        for part in slices(len(x), max(512, self.batch_size)):
            f, embedding = read_embedding(network, x[part])
            psi, outside = self.student_.parts(embedding)
            means.append(f + psi[..., 0])
            variances.append(psi[..., 1:].square().sum(2) + outside)
        return torch.cat(means), torch.cat(variances)

    @override
    def _moments(self, x: Tensor, *, full: bool, gradients: bool) -> tuple[Tensor, Tensor]:
        if full or gradients:
            mean, covariance = super()._moments(x, full=full, gradients=gradients)
        else:
            mean, covariance = self._mean_and_variance(x)
        return mean, covariance / self.precision_

    @override
    def _joint(self, x: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        mean, covariance = super()._joint(x, gradients)
        return mean, covariance / self.precision_

    @override
    def _draws(self, x: Tensor, n: int) -> Tensor:
        outputs = self._outputs(x)
        mean = outputs.mean(2)
        m = outputs.shape[2]
        z = torch.randn(m, n, generator=self.generator, dtype=outputs.dtype, device=outputs.device)
        deviations = (outputs - mean[..., None]) @ z / math.sqrt(m * self.precision_)
        return mean + deviations.permute(2, 0, 1)

    @override
    def _is_fitted(self) -> bool:
        return hasattr(self, "precision_")

    @override
    def _describe(self) -> list[str]:
        passes = "1 pass a row"
        if self.student_ is None:
            passes = f"{len(self._networks)} passes a row"
        return [passes, f"precision {self.precision_:.3g}", *super()._describe()]
