"""Uncertainty of a trained network: linearised Laplace in k directions, and what lies outside them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn

from .. import checks
from ..kernels.tangents import Tangents
from ..linalg import slices
from ..modules import labelled_rows, trainable, unwrap
from .likelihood import (
    LIKELIHOODS,
    LINKS,
    curvature_product,
    curvature_root,
    gaussian_nll,
    laplace_bridge,
    negative_log_likelihood,
    probit,
    sampled,
)
from .prior_variance import PriorVariance

_GRID = torch.logspace(-4, 5, 46, dtype=torch.float64)
_log = logging.getLogger("mercer")


class LinearizedLaplace:
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
    layer. With k of at least n c the posterior is exact.

    The network is held as it is and run in ``eval`` mode: batch normalisation by its running statistics, no dropout.
    Parameters that require grad count; freeze the others. All of ``fit`` runs in the network's dtype, its small
    matrices in float64.

    Args:
        model: The trained network, outputs ``(n, c)`` (or an object with ``.logits``).
        likelihood: ``"classification"`` (softmax) or ``"regression"`` (Gaussian, noise learned from the residuals).
        k: Directions.
        complement: Keep the prior variance outside the directions.
        prior_precision: :math:`1 / \sigma_0^2`: ``"validation"`` minimises the log-loss on ``val_loader``
            (``"evidence"`` takes its place where there is none, and the log says so), ``"evidence"`` maximises the
            marginal likelihood on the training rows, or a number.
        link: ``"probit"``, ``"laplace_bridge"`` or ``"samples"`` (1,000 draws), from Gaussian outputs to probabilities.
        batch_size: Rows at a time.
        iterations: Power steps of the range finder.
        generator: Source of randomness.

    Attributes:
        prior_precision_: The number in force.
        noise_: Variance of the noise, of a regression.
        eigenvalues_: ``(k,)`` of the Gauss-Newton matrix in the directions, descending.
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
        self.batch_size = checks.integer(where, "batch_size", batch_size, 1)
        self.iterations = checks.integer(where, "iterations", iterations, 0)
        self.generator = generator
        self.noise_ = 1.0

    def fit(self, loader: Iterable[Any], val_loader: Iterable[Any] | None = None) -> Self:
        """Find the directions and the posterior in them, then the prior precision.

        Args:
            loader: Training rows and labels (targets ``(n, c)`` for a regression): a loader or one pair.
            val_loader: Rows that ``"validation"`` is decided on; not the training ones.
        """
        x, y = self._pairs("loader", loader)
        with torch.no_grad():
            f = self._outputs(x)
            y = self._targets(y, f)
            if self.likelihood == "regression":
                self.noise_ = max(float((y - f).square().mean()), torch.finfo(torch.float32).tiny)
            q = self._directions(x, f)
            ggn = torch.zeros(q.shape[1], q.shape[1], dtype=torch.float64, device=x.device)
            for part in slices(len(x), self.batch_size):
                psi = self._tangents(x).along(x[part], q)
                product = curvature_product(self.likelihood, f[part], psi, self.noise_)
                ggn += (psi.flatten(0, 1).mT @ product.flatten(0, 1)).double()
            values, vectors = torch.linalg.eigh((ggn + ggn.mT) / 2)
            self.eigenvalues_ = values.flip(0).clamp_min(0)
            self.directions_ = q @ vectors.flip(1).to(q.dtype)  # (p, k)
            self.prior_precision_ = self._choose_precision(val_loader)
        return self

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (n, ...) -> (n, c), (n, c, c)
        """Mean and covariance of the outputs (of a regression, without the noise)."""
        x = self._rows(x)
        with torch.no_grad():
            parts = [self._moments(x[part], diagonal=False) for part in slices(len(x), self.batch_size)]
        return torch.cat([mean for mean, _ in parts]), torch.cat([covariance for _, covariance in parts])

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

    def _mean_and_variance(self, x: Tensor) -> tuple[Tensor, Tensor]:  # -> (n, c), (n, c)
        with torch.no_grad():
            parts = [self._moments(x[part], diagonal=True) for part in slices(len(x), self.batch_size)]
        return torch.cat([mean for mean, _ in parts]), torch.cat([variance for _, variance in parts])

    def _moments(self, x: Tensor, *, diagonal: bool) -> tuple[Tensor, Tensor]:
        psi, outside = self._parts(x, diagonal)
        return self._outputs(x), self._combined(psi, outside, self.prior_precision_)

    def _parts(self, x: Tensor, diagonal: bool) -> tuple[Tensor, Tensor | None]:
        """Psi ``(n, c, k)`` and K(x, x) less what Psi holds of it."""
        psi = self._tangents(x).along(x, self.directions_)
        if not self.complement:
            return psi, torch.zeros((), dtype=psi.dtype) if diagonal else None
        own = PriorVariance(self.model)(x, diagonal=diagonal)
        return psi, (own - psi.square().sum(2)).clamp_min(0) if diagonal else own - psi @ psi.mT

    def _combined(self, psi: Tensor, outside: Tensor | None, precision: float) -> Tensor:
        shrink = 1 / (self.eigenvalues_ + precision).to(psi.dtype)
        if outside is not None and outside.ndim != 3:
            variance: Tensor = (psi.square() * shrink).sum(2) + outside / precision
            return variance
        inside: Tensor = (psi * shrink) @ psi.mT
        return inside if outside is None else inside + outside / precision

    def _directions(self, x: Tensor, f: Tensor) -> Tensor:  # -> (p, r)
        tangents = self._tangents(x)
        rank = min(self.k, len(x) * f.shape[1], tangents.size)
        if rank == tangents.size:  # every direction there is
            return torch.eye(rank, dtype=f.dtype, device=x.device)
        seed = int(torch.randint(2**31 - 1, (1,), generator=self.generator))
        draw = torch.Generator(device=x.device).manual_seed(seed)
        probes = torch.randn(*f.shape, rank, dtype=f.dtype, device=x.device, generator=draw)

        def weighted(part: slice, u: Tensor) -> Tensor:
            return curvature_root(self.likelihood, f[part], u, self.noise_) if self.complement else u

        def pulled(u: Tensor) -> Tensor:
            total = torch.zeros(tangents.size, rank, dtype=f.dtype, device=x.device)
            for part in slices(len(x), self.batch_size):
                total += tangents.transposed(x[part], weighted(part, u[part]))
            return total

        q: Tensor = torch.linalg.qr(pulled(probes))[0]
        for _ in range(self.iterations):
            pushed = [tangents.along(x[part], q) for part in slices(len(x), self.batch_size)]
            if self.complement:  # the products with the Gauss-Newton matrix, whose range is sought
                total = torch.zeros_like(q)
                for part, psi in zip(slices(len(x), self.batch_size), pushed, strict=True):
                    total += tangents.transposed(x[part], curvature_product(self.likelihood, f[part], psi, self.noise_))
                q = torch.linalg.qr(total)[0]
            else:
                q = torch.linalg.qr(pulled(torch.cat(pushed)))[0]
        return q

    def _choose_precision(self, val_loader: Iterable[Any] | None) -> float:
        if not isinstance(self.prior_precision, str):
            return float(self.prior_precision)
        if self.prior_precision == "validation" and val_loader is not None:
            x, y = self._pairs("val_loader", val_loader)
            f = self._outputs(x)
            y = self._targets(y, f)
            parts = [self._parts(x[part], True) for part in slices(len(x), self.batch_size)]
            psi = torch.cat([one for one, _ in parts])
            outside = torch.cat([rest for _, rest in parts if rest is not None]) if self.complement else parts[0][1]
            scores = [self._score(f, self._combined(psi, outside, float(p)), y) for p in _GRID]
            return float(_GRID[int(torch.tensor(scores).argmin())])
        if self.prior_precision == "validation":
            _log.info("LinearizedLaplace: no val_loader was given; the evidence decides the prior precision.")
        return float(_GRID[int(torch.stack([self._evidence(p) for p in _GRID]).argmax())])

    def _evidence(self, precision: Tensor) -> Tensor:
        """The marginal likelihood's terms in the prior precision: the fit to the prior and Occam's factor."""
        norm = sum(float(p.double().square().sum()) for p in trainable(self.model).values())
        evidence: Tensor = 0.5 * ((precision / (self.eigenvalues_ + precision)).log().sum() - precision * norm)
        return evidence

    def _score(self, f: Tensor, variance: Tensor, y: Tensor) -> float:
        if self.likelihood == "regression":
            return gaussian_nll(f, variance + self.noise_, y)
        return negative_log_likelihood(probit(f, variance), y)

    def _tangents(self, x: Tensor) -> Tangents:
        return Tangents(self.model, x, _flat)

    def _outputs(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c)
        tangents = self._tangents(x)
        return torch.cat([tangents.call(tangents.theta, x[part]) for part in slices(len(x), self.batch_size)])

    def _pairs(self, name: str, loader: Iterable[Any]) -> tuple[Tensor, Tensor]:
        x, y = labelled_rows(f"LinearizedLaplace.fit, {name}", loader)
        return self._placed(x), y.to(x.device)

    def _rows(self, x: Tensor) -> Tensor:
        if not hasattr(self, "prior_precision_"):
            from sklearn.exceptions import NotFittedError

            fix = "Call fit(loader)."
            raise NotFittedError(checks.sentence("LinearizedLaplace", "must be fitted first", "no fit", fix))
        if not isinstance(x, Tensor) or x.ndim < 2:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(checks.sentence("LinearizedLaplace", "x must be a tensor of shape (n, ...)", got))
        checks.finite("LinearizedLaplace", "x", x)
        return self._placed(checks.floating(x))

    def _placed(self, x: Tensor) -> Tensor:
        weight = next(iter(trainable(self.model).values()))
        checks.same_device("LinearizedLaplace", "x", x.device, "the network", weight.device)
        return x.to(weight.dtype)

    def _targets(self, y: Tensor, f: Tensor) -> Tensor:
        if not bool(torch.isfinite(f).all()):
            need, fix = "the network's outputs must be finite", "Train it again, or look for NaN weights."
            raise ValueError(checks.sentence("LinearizedLaplace", need, "NaN or infinity", fix))
        if self.likelihood == "regression":
            y = y.to(f.dtype).reshape(len(y), -1)
            if y.shape != f.shape:
                raise ValueError(
                    checks.sentence("LinearizedLaplace", f"targets must be {tuple(f.shape)}", tuple(y.shape))
                )
            return y
        if y.is_floating_point() or y.ndim != 1 or int(y.min()) < 0 or int(y.max()) >= f.shape[1]:
            need = f"labels must be whole numbers in 0..{f.shape[1] - 1}, shape (n,)"
            came = y.dtype if y.is_floating_point() else f"{int(y.min())}..{int(y.max())}, shape {tuple(y.shape)}"
            raise ValueError(checks.sentence("LinearizedLaplace", need, came))
        return y.long()


def _flat(output: Tensor) -> Tensor:
    return output.reshape(len(output), -1) if output.ndim > 1 else output[:, None]
