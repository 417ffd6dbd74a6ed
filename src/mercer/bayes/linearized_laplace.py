"""Uncertainty of a trained network: linearised Laplace in k directions, and what lies outside them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..distributed import gather_rows, shared_generator, sum_over_ranks
from ..kernels import Tangents
from ..linalg import slices
from ..modules import Readable, trainable, unwrap
from ..storage import Savable
from .directions import leading_directions
from .eigenfunction_network import EigenfunctionNetwork, spread_rows, with_embedding
from .intake import checked_outputs, checked_rows, checked_targets, not_fitted, training_pairs
from .likelihood import (
    LIKELIHOODS,
    LINKS,
    curvature_product,
    gaussian_nll,
    laplace_bridge,
    negative_log_likelihood,
    probit,
    sampled,
)
from .prior_choice import least, negative_evidence
from .prior_variance import PriorVariance
from .saving import Unattached, check_weights, weights_of

_TINY = torch.finfo(torch.float32).tiny
_STUDENT_ROWS, _STUDENT_STEPS = 2000, 2500
_log = logging.getLogger("mercer")


class LinearizedLaplace(Savable):
    r"""The Gaussian process of a network linearised at its weights.

    .. math:: f(x) \sim N(g(x), \; J(x) \Sigma J(x)^\top), \qquad
        \Sigma^{-1} = \sum_i J(x_i)^\top \Lambda_i J(x_i) + \tfrac{1}{\sigma_0^2} I

    (deng2022, slide "Improve linearised Laplace approximation with NeuralEF"). With :math:`\Psi(x) = J(x) Q` for k
    orthonormal directions Q in weight space,

    .. math:: J \Sigma J^\top \approx
        \Psi(x) \Big[\sum_i \Psi_i^\top \Lambda_i \Psi_i + \tfrac{1}{\sigma_0^2} I_k\Big]^{-1} \Psi(x)^\top +
        \sigma_0^2 \big(K(x, x) - \Psi(x) \Psi(x)^\top\big)

    the last term, the prior's variance outside the k directions, where ``complement``. Q comes from a randomised range
    finder on :math:`J^\top \Lambda^{1/2}` (without the complement on :math:`J^\top`, the span of the NTK's leading
    eigenfunctions), by VJP and JVP; neither J nor a weights x weights matrix is formed. K(x, x) is computed layer by
    layer. With k of at least n c the posterior is exact. Where J(x) shares nothing with the rows' Jacobians, the
    variance is the prior's, :math:`\sigma_0^2 K(x, x)`; along a ray of a ReLU network both grow as :math:`|x|^2`, and
    their ratio settles, in general below 1.

    The network is held as it is and run in ``eval`` mode: batch normalisation by its running statistics, no dropout.
    Parameters that require grad count; freeze the others. All of ``fit`` runs in the network's dtype, its small
    matrices in float64. ``mercer.save`` keeps the posterior without the network: ``mercer.load(folder).attach(model)``.

    Args:
        model: The trained network, outputs ``(n, c)`` (or an object with ``.logits``).
        likelihood: ``"classification"`` (softmax) or ``"regression"`` (Gaussian with learned noise).
        k: Directions.
        complement: Keep the prior variance outside the directions.
        prior_precision: :math:`1 / \sigma_0^2`: ``"validation"`` minimises the log-loss on ``val_loader``
            (``"evidence"`` takes its place where there is none, and the log says so), ``"evidence"`` maximises the
            marginal likelihood on the training rows, or a number. Both choose a regression's noise, too; beside a
            number it is the mean squared residual.
        link: ``"probit"``, ``"laplace_bridge"`` or ``"samples"`` (1,000 draws), from Gaussian outputs to probabilities.
        eigenfunctions: How a new row gets its Psi and K: by ``"derivatives"``, k forward and c backward passes, or
            from a small ``"network"`` fitted to those on the training rows, in one pass; ``logits`` takes derivatives
            all the same.
        batch_size: Rows at a time.
        iterations: Power steps of the range finder.
        generator: Source of randomness.

    Attributes:
        prior_precision_: The number in force.
        noise_: Variance of the noise, of a regression.
        eigenvalues_: ``(k,)`` of the Gauss-Newton matrix in the directions, descending.
        directions_: Q ``(p, k)``.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        likelihood: str = "classification",
        k: int = 20,
        complement: bool = True,
        prior_precision: str | float = "validation",
        link: str = "probit",
        eigenfunctions: str = "derivatives",
        batch_size: int = 64,
        iterations: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        where = "LinearizedLaplace"
        if not isinstance(model, nn.Module):
            raise TypeError(checks.sentence(where, "model must be an nn.Module", type(model).__name__))
        if not trainable(model):
            fix = "Unfreeze some with requires_grad_(True)."
            raise ValueError(checks.sentence(where, "model must have parameters that require grad", "none", fix))
        self.model = unwrap(model)
        self.likelihood = checks.choice(where, "likelihood", likelihood, LIKELIHOODS)
        self.k = checks.integer(where, "k", k, 1)
        self.complement = bool(complement)
        if isinstance(prior_precision, str):
            checks.choice(where, "prior_precision", prior_precision, ("validation", "evidence"))
        else:
            checks.positive(where, "prior_precision", prior_precision)
        self.prior_precision = prior_precision
        self.link = checks.choice(where, "link", link, LINKS)
        self.eigenfunctions = checks.choice(where, "eigenfunctions", eigenfunctions, ("derivatives", "network"))
        self.batch_size = checks.integer(where, "batch_size", batch_size, 1)
        self.iterations = checks.integer(where, "iterations", iterations, 0)
        self.generator = generator

    def fit(self, loader: Iterable[Any], val_loader: Iterable[Any] | None = None) -> Self:
        """Find the directions and the posterior in them, then the prior precision.

        Args:
            loader: Training rows and labels (targets ``(n, c)`` for a regression): a loader or one pair, whose rows
                may stay in a file (`mercer.modules.open_rows`). Of several ranks each gives its own.
            val_loader: Rows that ``"validation"`` is decided on; not the training ones.
        """
        x, y = self._pairs("loader", loader)
        with torch.no_grad():
            f = self._outputs(x)
            y = checked_targets("LinearizedLaplace", self.likelihood, y, f)
            residuals = gather_rows(y - f) if self.likelihood == "regression" else None
            self.noise_ = 1.0 if residuals is None else max(float(residuals.square().mean()), _TINY)
            self._find_directions(x, f)
            self.student_ = self._student(gather_rows(x[:])) if self.eigenfunctions == "network" else None
            self._choose_prior(residuals, val_loader)
        self.row_shape_ = tuple(x.shape[1:])
        self.weights_ = weights_of(self.model)
        return self

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (n, ...) -> (n, c), (n, c, c)
        """Mean and covariance of the outputs (of a regression, without the noise)."""
        x = self._rows(x)
        means, covariances = [], []
        with torch.no_grad():
            for part in slices(len(x), self.batch_size):
                means.append(self._outputs(x[part]))
                psi = self._tangents(x).along(x[part], self.directions_)
                covariance = (psi / (self.eigenvalues_ + self.prior_precision_).to(psi.dtype)) @ psi.mT
                if self._something_outside():
                    outside = PriorVariance(self.model)(x[part], diagonal=False) - psi @ psi.mT
                    outside.diagonal(dim1=1, dim2=2).clamp_(min=0)  # a difference: rounding may take it below
                    covariance = covariance + outside / self.prior_precision_
                covariances.append(covariance)
        return torch.cat(means), checked_outputs("LinearizedLaplace", torch.cat(covariances))

    def predict_proba(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c)
        """Class probabilities through the link; only variances are formed, but for ``"samples"``."""
        if self.likelihood != "classification":
            fix = "Use predict, which gives mean and variance."
            raise ValueError(
                checks.sentence("predict_proba", "likelihood must be 'classification'", "'regression'", fix)
            )
        if self.link == "samples":
            return sampled(*self.logits(x), 1000, self.generator)
        mean, variance = self._mean_and_variance(self._rows(x))
        return probit(mean, variance) if self.link == "probit" else laplace_bridge(mean, variance)

    def predict(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Labels ``(n,)``; for a regression mean and variance ``(n, c)`` of a new target, the noise included."""
        if self.likelihood == "classification":
            return self.predict_proba(x).argmax(1)
        mean, variance = self._mean_and_variance(self._rows(x))
        return mean, variance + self.noise_

    def attach(self, model: nn.Module) -> Self:
        """Give a posterior that came from ``mercer.load`` its network, which must hold the weights of the fit."""
        check_weights("LinearizedLaplace.attach", model, getattr(self, "weights_", {}))
        self.model = unwrap(model)
        return self

    @override
    def get_arguments(self) -> dict[str, Any]:
        """All but the network, which is the user's to save."""
        return {name: value for name, value in super().get_arguments().items() if name != "model"}

    @classmethod
    @override
    def from_arguments(cls, arguments: Any) -> Self:
        """A posterior that waits for its network."""
        return super().from_arguments({"model": Unattached(), **arguments})

    def _mean_and_variance(self, x: Tensor) -> tuple[Tensor, Tensor]:  # -> (n, c), (n, c)
        with torch.no_grad():
            f, psi, outside = self._parts(x)
            variance = self._variance(psi.square(), outside, self.prior_precision_, self.eigenvalues_)
        return f, checked_outputs("LinearizedLaplace", variance)

    def _parts(self, x: Readable) -> tuple[Tensor, Tensor, Tensor]:  # -> (n, c), (n, c, k), (n, c)
        """Outputs, Psi, and the diagonal of K(x, x) less what Psi holds of it."""
        if not len(x):  # a rank without rows: the shapes alone
            f, psi, outside = self._parts(_one_row(x))
            return f[:0], psi[:0], outside[:0]
        one = self._derived_parts if self.student_ is None else self._distilled_parts
        size = self.batch_size if self.student_ is None else max(512, self.batch_size)
        parts = [one(x[part]) for part in slices(len(x), size)]
        f, psi, outside = (torch.cat(column) for column in zip(*parts, strict=True))
        return checked_outputs("LinearizedLaplace", f), psi, outside

    def _derived_parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        f, psi = self._outputs(x), self._tangents(x).along(x, self.directions_)
        if not self._something_outside():
            return f, psi, torch.zeros_like(f)
        own = PriorVariance(self.model)(x, diagonal=True)
        return f, psi, (own - psi.square().sum(2)).clamp_min(0)

    def _something_outside(self) -> bool:
        p, k = self.directions_.shape
        return self.complement and k < p

    def _distilled_parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert self.student_ is not None
        f, read = with_embedding(self.model, x)
        psi, outside = self.student_.parts(read)
        return f, psi, outside if self.complement else torch.zeros_like(outside)

    def _variance(self, squares: Tensor, outside: Tensor, precision: float, eigenvalues: Tensor) -> Tensor:  # -> (n, c)
        return squares @ (1 / (eigenvalues + precision)).to(squares.dtype) + outside / precision

    def _find_directions(self, x: Readable, f: Tensor) -> None:
        tangents = self._tangents(x)
        q = leading_directions(
            tangents, x, f, self.k, likelihood=self.likelihood, noise=self.noise_, weighted=self.complement,
            iterations=self.iterations, batch_size=self.batch_size, seed=self._seed(),
        )  # fmt: skip
        ggn = torch.zeros(q.shape[1], q.shape[1], dtype=torch.float64, device=x.device)
        for part in slices(len(x), self.batch_size):
            psi = tangents.along(x[part], q)
            product = curvature_product(self.likelihood, f[part], psi, self.noise_)
            ggn += (psi.flatten(0, 1).mT @ product.flatten(0, 1)).double()
        ggn = sum_over_ranks(ggn)
        values, vectors = torch.linalg.eigh((ggn + ggn.mT) / 2)
        self.eigenvalues_ = values.flip(0).clamp_min(0)
        self.directions_ = q @ vectors.flip(1).to(q.dtype)  # (p, k)

    def _student(self, x: Tensor) -> EigenfunctionNetwork:
        generator = torch.Generator().manual_seed(self._seed())
        rows = spread_rows(x.cpu(), _STUDENT_ROWS, generator).to(x.device)
        parts = [self._derived_parts(rows[part]) for part in slices(len(rows), self.batch_size)]
        f, psi, outside = (torch.cat(column) for column in zip(*parts, strict=True))
        read = torch.cat([with_embedding(self.model, rows[part])[1] for part in slices(len(rows), 4096)])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed())
            student = EigenfunctionNetwork(read.shape[1], f.shape[1], psi.shape[2])
        student = student.to(read)
        student.learn(read, psi, outside, steps=_STUDENT_STEPS, generator=generator)
        return student

    def _choose_prior(self, residuals: Tensor | None, val_loader: Iterable[Any] | None) -> None:
        if not isinstance(self.prior_precision, str):
            self.prior_precision_ = float(self.prior_precision)
            return
        if self.prior_precision == "validation" and val_loader is not None:
            x, y = self._pairs("val_loader", val_loader)
            f, psi, outside = self._parts(x)
            y = checked_targets("LinearizedLaplace", self.likelihood, y, f)
            score = partial(self._validation_score, f, psi.square(), outside, y)
        else:
            if self.prior_precision == "validation":
                _log.info("LinearizedLaplace: no val_loader was given; the evidence decides the prior precision.")
            norm = sum(float(p.double().square().sum()) for p in trainable(self.model).values())
            score = partial(self._evidence_score, norm, residuals)
        precision, noise = least(score, noise=None if residuals is None else self.noise_)
        self.prior_precision_, self.eigenvalues_ = precision, self._eigenvalues_at(noise)
        self.noise_ = noise

    def _eigenvalues_at(self, noise: float) -> Tensor:
        scaled: Tensor = self.eigenvalues_ * (self.noise_ / noise)
        return scaled

    def _evidence_score(self, norm: float, residuals: Tensor | None, precision: float, noise: float) -> float:
        values = self._eigenvalues_at(noise)
        return negative_evidence(precision, noise, eigenvalues=values, squared_norm=norm, residuals=residuals)

    def _validation_score(
        self, f: Tensor, squares: Tensor, outside: Tensor, y: Tensor, precision: float, noise: float
    ) -> float:
        variance = self._variance(squares, outside, precision, self._eigenvalues_at(noise))
        if self.likelihood == "regression":
            return gaussian_nll(f, variance + noise, y)
        link = laplace_bridge if self.link == "laplace_bridge" else probit
        return negative_log_likelihood(link(f, variance), y)

    def _seed(self) -> int:
        return int(torch.randint(2**31 - 1, (1,), generator=shared_generator(self.generator)))

    def _tangents(self, x: Readable) -> Tangents:
        return Tangents(self.model, x[:0], _flat)

    def _outputs(self, x: Readable) -> Tensor:  # (n, ...) -> (n, c)
        if not len(x):
            return self._outputs(_one_row(x))[:0]
        tangents = self._tangents(x)
        return torch.cat([tangents.call(tangents.theta, x[part]) for part in slices(len(x), self.batch_size)])

    def _pairs(self, name: str, loader: Iterable[Any]) -> tuple[Readable, Tensor]:
        return training_pairs(f"LinearizedLaplace.fit, {name}", loader, self.model)

    def _rows(self, x: Tensor) -> Tensor:
        if isinstance(self.model, Unattached):
            raise self.model.error("LinearizedLaplace")
        if not hasattr(self, "row_shape_"):
            raise not_fitted("LinearizedLaplace")
        return checked_rows("LinearizedLaplace", x, self.model, self.row_shape_)


def _one_row(x: Readable) -> Tensor:  # -> (1, ...)
    return torch.zeros(1, *x.shape[1:], dtype=x.dtype, device=x.device)


def _flat(output: Tensor) -> Tensor:
    return output.reshape(len(output), -1) if output.ndim > 1 else output[:, None]
