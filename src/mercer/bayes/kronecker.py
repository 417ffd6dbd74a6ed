"""Linearised Laplace with Kronecker factors (KFAC), the rival in the slides' comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..linalg.blocks import slices
from ..rows.rows import Rows
from ..signals.layers import trainable
from .jacobian import RowwiseJacobian, check_rows_apart, near, one_output, two_rows
from .layer_signals import LayerSignals, MisalignedRowsError, Signal
from .likelihood import Softmax, likelihood_named
from .network import flat_logits, own_network, weights_of
from .posterior import NetworkPosterior
from .prior_choice import best_precision
from .validation import check_network_runs, check_outputs


class KroneckerLaplace(NetworkPosterior):
    r"""Linearised Laplace with a block for each linear or convolutional layer, each block a Kronecker product.

    .. math:: \sum_i J_i^\top \Lambda_i J_i \approx
        \Big(\tfrac1n \sum_{it} a_{it} a_{it}^\top\Big) \otimes
        \Big(\tfrac1t \sum_{it} B_{it}^\top \Lambda_i B_{it}\Big) = A \otimes G

    for inputs a (a 1 appended for the bias) and :math:`B = \partial f / \partial z` (Martens and Grosse 2015; of
    convolutions, over the t patches, Grosse and Martens 2016). The posterior's covariance of a layer is
    :math:`(A \otimes G + \delta I)^{-1}`, by the eigenvectors of the factors, so that the prior is added exactly.

    Args:
        model: A trained network whose trained parameters are those of linear and convolutional layers.
        likelihood: ``"classification"`` or ``"regression"``, whose noise is the mean squared residual.
        prior_precision: :math:`\delta`: a number, or ``"validation"``, which needs a ``val_loader``.
        link: ``"probit"``, ``"pairwise"``, ``"laplace_bridge"`` or ``"samples"``.
        batch_size: Rows at a time.
        generator: Source of randomness of samples.

    Attributes:
        prior_precision_: The value used.
        factors_: Eigenvalues and eigenvectors of A and G, by layer.

    Use it to compare with the usual approximation; :class:`LinearizedLaplace` is ours.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> rows = (torch.randn(60, 4), torch.arange(60) % 3)
    >>> KroneckerLaplace(model, prior_precision=1.0).fit(rows).predict_proba(rows[0]).shape
    torch.Size([60, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        likelihood: str = "classification",
        prior_precision: str | float = 1.0,
        link: str = "probit",
        batch_size: int = 64,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__([model], likelihood, link, batch_size, generator)
        if not trainable(model):
            need, fix = "model must have parameters that require grad", "Unfreeze some with requires_grad_(True)."
            raise ValueError(checks.sentence("KroneckerLaplace", need, "none", fix))
        if isinstance(prior_precision, str):
            checks.choice("KroneckerLaplace", "prior_precision", prior_precision, ("validation",))
        else:
            checks.positive("KroneckerLaplace", "prior_precision", prior_precision)
        self.prior_precision = prior_precision

    def fit(self, loader: Iterable[Any], val_loader: Iterable[Any] | None = None) -> Self:
        """Sum the factors over the rows. A classifier's Gauss-Newton matrix does not depend on the labels."""
        where = "KroneckerLaplace.fit"
        if val_loader is None and isinstance(self.prior_precision, str):
            need, fix = "prior_precision='validation' needs a val_loader", "Give one, or a number."
            raise ValueError(checks.sentence(where, need, "None", fix))
        # The rows of all ranks, and layers that are seen row by row where they must be.
        self.weights_ = weights_of(self.model)
        x, y = Rows(*self._pairs("loader", loader)).gather()
        network = own_network(self.model, self.weights_, self.packing_)
        with torch.no_grad():
            check_network_runs(where, lambda row: flat_logits(network(row)), x[:1])
        signals = self._choose_signals(network, two_rows(x))

        # The noise of a regression, which is part of Lambda.
        f = torch.cat([_signals(signals, x[part])[0] for part in slices(len(x), self.batch_size)])
        density = likelihood_named(self.likelihood)
        y = density.targets(where, y, check_outputs("KroneckerLaplace", f))
        self.temperature_, self.noise_ = 1.0, density.noise_of(y, f)

        # Sum A and G of each layer over the rows, and decompose both.
        density = self._likelihood
        sums: dict[str, tuple[Tensor, Tensor]] = {}
        for part in slices(len(x), self.batch_size):
            f, layers = _signals(signals, x[part])
            eye = torch.eye(f.shape[1], dtype=f.dtype, device=f.device).expand(len(f), -1, -1)
            roots = density.curvature_root(f, eye)  # S with S S^T = Lambda: G is then a sum of squares
            for name, signal in layers.items():
                rows = signal.with_bias().flatten(0, 1).double()
                pulled = torch.einsum("ncd,ncto->ndto", roots, signal.g).flatten(0, 2).double()
                a, g = rows.mT @ rows / len(x), pulled.mT @ pulled / signal.a.shape[1]
                if name in sums:
                    a, g = sums[name][0] + a, sums[name][1] + g
                sums[name] = (a, g)
        pairs = {name: [*torch.linalg.eigh(a), *torch.linalg.eigh(g)] for name, (a, g) in sums.items()}
        self.factors_: dict[str, list[Tensor]] = pairs

        # The prior precision: the number given, or the one of least loss on the validation rows.
        if not isinstance(self.prior_precision, str):
            self.prior_precision_ = float(self.prior_precision)
            return self
        assert val_loader is not None
        val_x, val_y = Rows(*self._pairs("val_loader", val_loader)).gather()
        link = self._link
        full = link.needs_covariance and isinstance(density, Softmax)

        def score(precision: float) -> float:
            self.prior_precision_ = precision
            mean, covariance = self._moments(val_x, full=full, gradients=False)
            targets = density.targets("KroneckerLaplace", val_y, mean)
            return float(density.loss(mean, covariance, targets, link).mean())

        self.prior_precision_ = best_precision(score)[0]
        return self

    def _choose_signals(self, network: nn.Module, rows: Tensor) -> LayerSignals:
        """Take rows side by side where layers see one row a line, else row by row: two rows are checked by autograd."""
        check_outputs("KroneckerLaplace", flat_logits(network(rows)).detach())
        check_rows_apart("KroneckerLaplace", network, rows)
        _signals(LayerSignals(network, rowwise=True), rows[:1])  # refuses parameters of other layers

        # The faster way is taken where its K(x, x) is that of plain autograd; one mixture of the outputs shows it.
        mixed = one_output(network, rows)
        expected = torch.cat([j.square().sum(2) for _, j in RowwiseJacobian(mixed).blocks(rows)])
        for rowwise in (False, True):
            signals = LayerSignals(mixed, rowwise=rowwise)
            try:
                layers = signals.of(rows)[1]
            except (MisalignedRowsError, RuntimeError):
                continue
            kernel = sum((signal.kernel(True) for signal in layers.values()), torch.zeros_like(expected))
            if near(kernel, expected):
                self.rowwise_ = rowwise
                return LayerSignals(network, rowwise=rowwise)
        need = "every weight must be used by its own layer, once, and see as much of each row"
        fix = "Use LinearizedLaplace, which takes any network."
        raise ValueError(checks.sentence("KroneckerLaplace", need, "a network that uses some otherwise", fix))

    @override
    def _moments(self, x: Tensor, *, full: bool, gradients: bool) -> tuple[Tensor, Tensor]:
        means, covariances = [], []
        for f, jacobians in self._rotate_jacobians(x, gradients):
            # Add each layer's share: in the eigenvectors of its factors the posterior is diagonal.
            shape = tuple(f.shape)
            if full:
                shape = (*shape, f.shape[1])
            total = f.new_zeros(shape, dtype=torch.float64)
            for name, j in jacobians.items():
                spread = j / self._deviation(name)
                if full:
                    total = total + spread @ spread.mT
                else:
                    total = total + spread.square().sum(2)
            means.append(f)
            covariances.append(total.to(f.dtype))
        return torch.cat(means), torch.cat(covariances)

    @override
    def _joint(self, x: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        blocks = list(self._rotate_jacobians(x, gradients))
        f = torch.cat([mean for mean, _ in blocks])
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        for name in self.factors_:
            j = torch.cat([jacobians[name] for _, jacobians in blocks]) / self._deviation(name)
            total = total + torch.einsum("ncp,mdp->nmcd", j, j)
        return f, total.to(f.dtype)

    def _rotate_jacobians(self, x: Tensor, gradients: bool) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Outputs and each layer's Jacobian in the eigenvectors of its factors, ``(n, c, out in)``, in float64."""
        signals = LayerSignals(own_network(self.model, self.weights_, self.packing_), rowwise=self.rowwise_)
        for part in slices(len(x), self.batch_size):
            f, layers = _signals(signals, x[part], gradients)
            jacobians = {}
            for name, signal in layers.items():
                _, vector_a, _, vector_g = self.factors_[name]
                jacobians[name] = (vector_g.mT @ signal.jacobian().double() @ vector_a).flatten(2)
            yield f, jacobians

    def _deviation(self, name: str) -> Tensor:  # -> (out in,)
        """Roots of a layer's posterior precisions, in the eigenvectors of its factors."""
        value_a, _, value_g, _ = self.factors_[name]
        precision = value_g.clamp_min(0)[:, None] * value_a.clamp_min(0) + self.prior_precision_
        return precision.sqrt().flatten()

    @override
    def _is_fitted(self) -> bool:
        return hasattr(self, "prior_precision_")

    @override
    def _describe(self) -> list[str]:
        return [f"{len(self.factors_)} layers", f"prior precision {self.prior_precision_:.3g}", *super()._describe()]


def _signals(signals: LayerSignals, x: Tensor, gradients: bool = False) -> tuple[Tensor, dict[str, Signal]]:
    """Outputs and the signals of all layers; parameters of other kinds of layers are refused."""
    f, layers, without_factors = signals.of(x, gradients=gradients)
    without_factors += [f"{name}.weight" for name, signal in layers.items() if not signal.dense]
    if without_factors:
        need, fix = "trained parameters must be those of linear layers and convolutions", "Freeze the others."
        got = ", ".join(without_factors[:4])
        raise ValueError(checks.sentence("KroneckerLaplace", need, got, f"{fix[:-1]} with requires_grad_(False)."))
    return f, layers
