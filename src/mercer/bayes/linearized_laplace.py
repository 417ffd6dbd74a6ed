"""Uncertainty of a trained network: linearized Laplace in k directions, with the prior's variance outside them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..rows.rows import Rows
from ..rows.stored import Readable
from ..signals.layers import trainable
from .class_blocks import ClassBlocks, ClassBlocksSpan, ClassCurvature, fits_class_blocks
from .directions import (
    Curvature,
    DistilledSpan,
    LastLayerSpan,
    Span,
    SpanAndComplement,
    eigenpairs,
    leading_directions,
)
from .eigenfunction_network import EigenfunctionNetwork, distill_network
from .jacobian import (
    HeadJacobian,
    Jacobian,
    LastLayerJacobian,
    NetworkJacobian,
    RowwiseJacobian,
    check_rows_apart,
    find_head,
    is_right,
    one_output,
    two_rows,
)
from .likelihood import Gaussian, Likelihood, Softmax, likelihood_named, mean_over_ranks
from .network import draw_seed, own_network, weights_of, zero_row
from .posterior import NetworkPosterior
from .prior_choice import SpreadAt, best_temperature, by_evidence, by_validation, compare_with_temperature
from .validation import check_network_runs, check_outputs, not_fitted

_EXACT_WEIGHTS = 2000  # a last layer of no more weights is taken whole
_DIRECTIONS = 20  # more lower the log-loss by less than its standard error
_PRIORS = ("validation", "evidence")
_log = logging.getLogger("mercer")


class LinearizedLaplace(NetworkPosterior):
    r"""The Gaussian process of a network linearised at its weights.

    .. math:: f(x) \sim N(g(x), \; J(x) \Sigma J(x)^\top), \qquad
        \Sigma^{-1} = \sum_i J(x_i)^\top \Lambda_i J(x_i) + \tfrac{1}{\sigma_0^2} I, \qquad
        p(y | f) = \mathrm{softmax}(f / T)_y

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

    The network is run on a copy in ``eval`` mode: batch normalisation by its running statistics, no dropout.
    Layers may see rows in any order (time first, rows and times in one dimension, windows): ``fit`` compares the
    layer-wise derivatives of two rows with plain autograd and takes derivatives row by row where they differ or fail
    (recurrent cells, TorchScript, masks that decide about the way), which is slower.
    Parameters that require grad count; freeze the others. All of ``fit`` runs in the network's dtype, its small
    matrices in float64. ``mercer.save`` keeps the posterior without the network: ``mercer.load(folder).attach(model)``.

    Args:
        model: The trained network, outputs ``(n, c)`` (or an object with ``.logits``); one output is a logit.
        likelihood: ``"classification"`` (softmax) or ``"regression"`` (Gaussian with learned noise).
        k: Directions among the weights; None for 20 of all weights, or every one of a last layer.
        complement: Keep the prior variance outside the directions.
        prior_precision: :math:`1 / \sigma_0^2`: ``"validation"`` takes the least whose log-loss on ``val_loader`` is
            within 0.5 % of the best and at most 0.1 % above a temperature's (of a regression, the best; ``"evidence"``
            takes its place where there is no ``val_loader``, and the log says so), ``"evidence"`` maximises the
            marginal likelihood on the training rows, or a number. The first two choose a regression's noise, too; else
            it is the mean squared residual.
        parameters: ``"last"``, those of the last layer that runs: one forward pass for each prediction, and exact up
            to 2,000 weights whatever k. A larger linear layer is exact, too, up to 4,096 rows or so, unless ``k`` is
            given (:class:`~mercer.bayes.class_blocks.ClassBlocks`; its prior precision is chosen by the diagonal blocks
            alone). Or ``"all"`` that require grad, k forward and c backward passes. None is the last layer, or all
            where ``k`` is given. In one trial all took 77 passes for a log-loss of 0.3545, the last layer had 0.3546
            and a temperature 0.3549; on a ResNet-20 the last layer has 0.2361 and a temperature 0.2352. Of a
            `mercer.nn.KernelClassifier` all its parameters count that require grad: weights, bias, linear map, center,
            scale and the kernel's coefficients.
        temperature: T of a classifier; None chooses it together with the prior precision on ``val_loader``, and is 1
            where the prior is not chosen there.
        link: From Gaussian outputs to probabilities: ``"probit"``, ``"pairwise"``, ``"laplace_bridge"`` or
            ``"samples"`` (1,000 draws).
        eigenfunctions: How a new row gets its Psi and K: by ``"derivatives"``, k forward and c backward passes, or
            from a small ``"network"`` fitted to those on the training rows, in one pass; ``logits`` and ``sample`` take
            derivatives all the same.
        network_steps: Training steps of that small network.
        batch_size: Rows at a time.
        iterations: Power steps of the range finder.
        generator: Source of randomness.

    Attributes:
        prior_precision_: The value used.
        temperature_: T.
        noise_: Noise variance (regression only).
        eigenvalues_: ``(k,)`` of the Gauss-Newton matrix in the directions, descending.
        directions_: Q ``(p, k)``.
        class_blocks_: The posterior of a large linear last layer, which has no directions; else None.
        validation_loss_: Log-loss on the validation rows of the network, of the best temperature alone, and of this.

    Use it for probabilities that know their own doubt, of a network you have trained.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> rows = (torch.randn(60, 4), torch.arange(60) % 3)
    >>> LinearizedLaplace(model, prior_precision=1.0).fit(rows).predict_proba(rows[0]).shape
    torch.Size([60, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        likelihood: str = "classification",
        k: int | None = None,
        complement: bool = True,
        prior_precision: str | float = "validation",
        parameters: str | None = None,
        temperature: float | None = None,
        link: str = "probit",
        eigenfunctions: str = "derivatives",
        network_steps: int = 2500,
        batch_size: int = 64,
        iterations: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__([model], likelihood, link, batch_size, generator)
        where = "LinearizedLaplace"
        if not trainable(model):
            fix = "Unfreeze some with requires_grad_(True)."
            raise ValueError(checks.sentence(where, "model must have parameters that require grad", "none", fix))
        if parameters is None:
            parameters = "last"
            if k is not None:  # k counts directions among all weights
                parameters = "all"
        self.k = None if k is None else checks.integer(where, "k", k, 1)
        self.complement = bool(complement)
        if isinstance(prior_precision, str):
            checks.choice(where, "prior_precision", prior_precision, _PRIORS)
        else:
            checks.positive(where, "prior_precision", prior_precision)
        self.prior_precision = prior_precision
        self.parameters = checks.choice(where, "parameters", parameters, ("all", "last"))
        self.temperature = None if temperature is None else checks.positive(where, "temperature", temperature)
        self.eigenfunctions = checks.choice(where, "eigenfunctions", eigenfunctions, ("derivatives", "network"))
        self.network_steps = checks.integer(where, "network_steps", network_steps, 0)
        self.iterations = checks.integer(where, "iterations", iterations, 0)
        self._covariance_blocks: dict[float, Tensor] = {}  # of a last layer, by prior precision

    def fit(self, loader: Iterable[Any], val_loader: Iterable[Any] | None = None) -> Self:
        """Find the directions and the posterior in them, then the prior precision.

        Args:
            loader: Training rows and labels (targets ``(n, c)`` for a regression): a loader or one pair, whose rows
                may stay in a file (`mercer.rows.open_rows`); batches may be dictionaries of the network's arguments
                with ``labels``. With several ranks, each passes its own.
            val_loader: Rows on which ``"validation"`` decides; not the training rows.
        """
        where = "LinearizedLaplace"
        x, y = self._pairs("loader", loader)
        with torch.no_grad():
            # Outputs and targets of the training rows, the weights that count, and the way to their derivatives.
            network = NetworkJacobian(own_network(self.model, packing=self.packing_))
            if len(x):
                check_network_runs(f"{where}.fit, loader", network.outputs, x[:1])
            f = check_outputs(where, network.outputs_of(x, self.batch_size))
            density: Likelihood = likelihood_named(self.likelihood)
            y = density.targets(where, y, f)
            jacobian = self._choose_jacobian(x, network.network)

            # Validation rows, their outputs and targets.
            val = None
            if val_loader is not None and self.prior_precision == "validation":
                shape = self.row_shape_
                stored, val_y = self._pairs("val_loader", val_loader)
                if stored.shape[1:] != shape:
                    need = f"rows of val_loader must have the shape of loader's, {shape}"
                    raise ValueError(checks.sentence(f"{where}.fit", need, tuple(stored.shape[1:])))
                val_x = stored[:]
                val_f = check_outputs(where, jacobian.outputs_of(val_x, self.batch_size))
                val_y = density.targets(where, val_y, val_f)
                val = val_x, val_f, val_y

            # Where to start: the noise of the residuals; the given temperature, or the best one without a posterior.
            if isinstance(density, Gaussian):
                density = density.at(density.noise_of(y, f))
            elif self.temperature is not None:
                density = density.at(self.temperature)
            elif val is not None:
                density = density.at(best_temperature(lambda t: mean_over_ranks(-Softmax(t).log_density(val_f, val_y))))

            # The Gauss-Newton matrix: of a large last layer output by output, else in the directions that the data says
            # most about. A small last layer is taken whole, in all directions there are.
            self.class_blocks_: ClassBlocks | None = None
            self.student_: EigenfunctionNetwork | None = None
            self.rotation_: Tensor | None = None
            self._covariance_blocks = {}
            c, size = f.shape[1], jacobian.size
            curvature: Curvature | ClassCurvature
            spread_of: Callable[[Tensor], SpreadAt]
            large = self.k is None and size > _EXACT_WEIGHTS and fits_class_blocks(c, size // c)
            if large and isinstance(jacobian, LastLayerJacobian):
                self.directions_: Tensor = f.new_zeros(size, 0)
                curvature = ClassCurvature(jacobian, x, f, self.batch_size)
                spread_of = curvature.spread_of
            else:
                k = self.k or _DIRECTIONS
                if self.parameters == "last" and size <= _EXACT_WEIGHTS:
                    k = size
                self.directions_ = leading_directions(
                    jacobian, x, f, k, density, weighted=self.complement,
                    iterations=self.iterations, batch_size=self.batch_size, seed=draw_seed(self.generator),
                )  # fmt: skip
                directed = curvature = Curvature(jacobian, x, f, self.directions_, self.batch_size)

                # A small network that gives Psi and the variance outside in one pass.
                span = self._exact_span(jacobian)
                if self.eigenfunctions == "network":
                    self.student_ = distill_network(
                        Rows(x).gather(), span.block, jacobian.network, self.network_steps,
                        self.batch_size, draw_seed(self.generator), mix=self.packing_ is None,
                    )  # fmt: skip
                    span = DistilledSpan(span, self.student_, self.complement)
                full = self._link.needs_covariance and isinstance(density, Softmax)

                def spread_of(x: Tensor) -> SpreadAt:
                    return directed.spread_of(*span.parts(x, full=full)[1:])

            # The prior precision, and with it the temperature or the noise.
            self.squared_norm_ = sum(float(p.double().square().sum()) for p in jacobian.theta.values())
            density = self._choose_prior(curvature.eigenvalues, spread_of, density, f, y, val)
            self.temperature_ = self.noise_ = 1.0
            setattr(self, density.learned, density.scale)
            self.log_likelihood_ = float(Rows(f, y).sum(lambda f, y: density.log_density(f, y).double().sum()))

            # The posterior. In the eigenvectors of the matrix it is diagonal: turn the directions to them. The small
            # network learned the old ones, so its Psi is turned when it is asked.
            if isinstance(curvature, ClassCurvature):
                self.eigenvalues_ = f.new_zeros(0)
                self.class_blocks_ = curvature.invert(density, self.prior_precision_)
                return self
            self.eigenvalues_, vectors = eigenpairs(curvature.at(density, every_row=True))
            rotation = vectors.to(self.directions_.dtype)
            self.directions_ = self.directions_ @ rotation
            if self.student_ is not None:
                self.rotation_ = rotation
        return self

    def log_marginal_likelihood(self) -> float:
        r"""Laplace's log evidence of the training rows.

        .. math:: \sum_i \log p(y_i | g(x_i)) - \tfrac{\delta}{2} \|\theta\|^2 -
            \tfrac12 \sum_j \log(1 + \lambda_j / \delta)
        """
        if not hasattr(self, "log_likelihood_"):
            raise not_fitted("LinearizedLaplace.log_marginal_likelihood")
        if self.class_blocks_ is not None:
            spread = self.class_blocks_.log_determinant
        else:
            spread = float((1 + self.eigenvalues_.double() / self.prior_precision_).log().sum())
        value: float = self.log_likelihood_ - (self.prior_precision_ * self.squared_norm_ + spread) / 2
        return value

    def _choose_prior(
        self,
        eigenvalues: Callable[[Likelihood], Tensor],
        spread_of: Callable[[Tensor], SpreadAt],
        density: Likelihood,
        f: Tensor,
        y: Tensor,
        val: tuple[Tensor, ...] | None,
    ) -> Likelihood:
        """Set the prior precision; give the likelihood with the temperature or noise chosen with it."""
        if not isinstance(self.prior_precision, str):
            self.prior_precision_ = float(self.prior_precision)
            return density

        # By the evidence of the training rows.
        if val is None:
            if self.prior_precision == "validation":
                _log.info("LinearizedLaplace: no val_loader was given; the evidence decides the prior precision.")
            residuals = None
            if isinstance(density, Gaussian):
                residuals = Rows(y - f).gather()
            self.prior_precision_, density = by_evidence(eigenvalues(density), density, self.squared_norm_, residuals)
            return density

        # On validation rows: what their spread is made of is computed once, then every precision and temperature is
        # tried.
        x, f, y = val
        spread_at, link = spread_of(x), self._link
        self.prior_precision_, density = by_validation(
            spread_at, density, f, y, link, temperature=self.temperature is None
        )
        if isinstance(density, Softmax):
            losses = density.loss(f, spread_at(density)(self.prior_precision_), y, link)
            self.validation_loss_ = compare_with_temperature(f, y, losses)
        return density

    @override
    def _moments(self, x: Tensor, *, full: bool, gradients: bool) -> tuple[Tensor, Tensor]:
        values, precision = self.eigenvalues_, self.prior_precision_
        return self._span().moments(x, values, precision, full=full, gradients=gradients)

    @override
    def _joint(self, x: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        return self._span().joint(x, self.eigenvalues_, self.prior_precision_)

    @override
    def _draws(self, x: Tensor, n: int) -> Tensor:
        return self._span().draw(x, n, self.eigenvalues_, self.prior_precision_, self.generator)

    def _span(self) -> Span:
        """How new rows are seen: see the classes of `Span`."""
        exact = self._exact_span(self._jacobian())
        if self.student_ is None or isinstance(exact, LastLayerSpan):  # which is one pass, too
            return exact
        return DistilledSpan(exact, self.student_, self.complement, self.rotation_)

    def _exact_span(self, jacobian: Jacobian) -> Span:
        if self.class_blocks_ is not None:
            assert isinstance(jacobian, LastLayerJacobian)
            return ClassBlocksSpan(jacobian, self.class_blocks_, self.batch_size)
        p, k = self.directions_.shape
        if self.complement and k < p:
            return SpanAndComplement(jacobian, self.directions_, self.batch_size)
        if isinstance(jacobian, LastLayerJacobian):
            return LastLayerSpan(jacobian, self.directions_, self.batch_size, self._covariance_blocks)
        return Span(jacobian, self.directions_, self.batch_size)

    def _choose_jacobian(self, x: Readable, network: nn.Module) -> Jacobian:
        """Decide which weights count, and the fastest way to their derivatives that is right for this network.

        Two rows are differentiated by plain autograd, each alone, which any network allows. A faster way that does
        not give the same numbers, or any, is not taken.
        """
        where = "LinearizedLaplace"
        rows = zero_row(x)  # of a rank without rows
        if len(x):
            rows = x[:2]
        rows = two_rows(rows)
        check_rows_apart(where, network, rows)

        # The weights that count: all, or those of the last layer that runs, on which the outputs must depend.
        self.head_: str | None = None
        self.direct_ = False
        names = list(trainable(self.model))
        if self.parameters == "last":
            self.head_, self.direct_ = find_head(network, rows)
            counted = {id(p) for p in network.get_submodule(self.head_).parameters() if p.requires_grad}
            names = [name for name, p in network.named_parameters() if id(p) in counted]
            if self.packing_ is not None:  # the network is wrapped
                names = [name.removeprefix("model.") for name in names]
        self.weights_ = weights_of(self.model, names)
        if self.head_ is not None and not self.direct_:
            exact = RowwiseJacobian(own_network(self.model, names, self.packing_))
            if not any(bool(j.any()) for _, j in exact.blocks(rows)):
                need = f"the outputs must depend on {self.head_}, the last layer that runs"
                raise ValueError(checks.sentence(where, need, "derivatives of 0", "Use parameters='all'."))

        # Compare the fast way with the plain one. A mixture of all outputs says as much as each of them.
        self.rowwise_ = False
        jacobian = self._jacobian()
        if isinstance(jacobian, NetworkJacobian):
            right = is_right(NetworkJacobian(one_output(jacobian.network, rows)), rows)
        else:
            right = is_right(jacobian, rows)
        self.rowwise_ = bool(Rows(rows).total(torch.tensor(float(not right), device=rows.device)) > 0)
        if not self.rowwise_:
            return jacobian
        _log.info("LinearizedLaplace: derivatives are taken row by row: the network allows no faster way.")
        return self._jacobian()

    def _jacobian(self) -> Jacobian:
        network = own_network(self.model, self.weights_.keys(), self.packing_)
        if self.rowwise_:
            return RowwiseJacobian(network)
        if self.head_ is None or not self.direct_:
            return NetworkJacobian(network)
        head = network.get_submodule(self.head_)
        plain = isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward
        if plain and head._parameters.get("weight") is not None and head.weight.requires_grad:
            return LastLayerJacobian(network, self.head_)
        return HeadJacobian(network, self.head_)

    @override
    def _is_fitted(self) -> bool:
        return hasattr(self, "prior_precision_")

    @override
    def _describe(self) -> list[str]:
        weights = "all weights"
        if self.head_ is not None:
            weights = f"last layer {self.head_ or type(self.model).__name__}"
        directions = f"{self.directions_.shape[1]} directions"
        if self.class_blocks_ is not None:
            directions = "all directions"
        return [weights, directions, f"prior precision {self.prior_precision_:.3g}", *super()._describe()]

    @override
    def _all_count(self) -> bool:
        return self.parameters == "all"
