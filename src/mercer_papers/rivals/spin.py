"""Spectral inference networks (SpIN), the rival that NeuralEF is compared with."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vjp
from typing_extensions import override

from mercer import checks
from mercer.distributed import broadcast_module, gather_rows
from mercer.features.base import FeatureMap
from mercer.features.parallel_networks import ParallelNetworks
from mercer.features.rayleigh_ritz import kernel_operator, measure_center_and_spread
from mercer.kernels import Kernel
from mercer.linalg.blocks import blockwise
from mercer.linalg.cholesky import cholesky, shift_diagonal
from mercer.rows.stored import Readable

_BLOCK = 4096
_BATCH = 256  # rows of a minibatch
_LR = 1e-2  # of Adam, which falls to a tenth along a cosine
_DECAY = 0.3  # weight of a batch in the moving averages; at 0.1 and below the Jacobian lags behind the weights
_log = logging.getLogger("mercer")


class SpectralInference(FeatureMap):
    r"""SpIN: one trace objective, separated into eigenfunctions by a Cholesky factor at every step.

    With :math:`\Sigma = E[u u^\top]`, :math:`\Pi = E[k(x, x') u(x) u(x')^\top]` of the networks' outputs u,
    :math:`\Sigma = L L^\top` and :math:`\Lambda = L^{-1} \Pi L^{-\top}`, the masked gradient is

    .. math:: \langle L^{-\top} \mathrm{diag}(L)^{-1}, \partial_w \Pi \rangle -
        \langle L^{-\top} \mathrm{triu}(\Lambda \, \mathrm{diag}(L)^{-1}), \bar J_\Sigma \rangle

    with moving averages of :math:`\Sigma` and of :math:`J_\Sigma` (deng2022, slide "A closely related work"; Pfau et
    al. 2018). Both derivatives are of the right factor only, :math:`J_\Sigma = E[u \, \partial_w u^\top]`: with that
    and the mask, function j sees those before it, never those after it. :math:`J_\Sigma` is k x k for each weight: that
    is the cost of SpIN. The networks are k parallel ones, made anew at every fit.

    Args:
        kernel: k, with one number for each pair.
        k: Number of eigenfunctions.
        generator: Source of randomness, or a seed.
        steps: Iterations.

    Attributes:
        eigenvalues: ``(k,)``, descending, the diagonal of :math:`\Lambda` over all rows.
        jitter: Added to the diagonal of :math:`\Sigma` at the end, 0 where none was needed.
    """

    FITTED = ("eigenvalues", "projection", "centre", "spread")
    eigenvalues: Tensor
    projection: Tensor
    centre: Tensor
    spread: Tensor

    def __init__(
        self,
        kernel: Kernel,
        k: int,
        *,
        generator: torch.Generator | int | None = None,
        steps: int = 2000,
    ) -> None:
        super().__init__(kernel, generator)
        self.k = self.m = checks.integer("SpectralInference", "k", k, 1)
        self.steps = checks.integer("SpectralInference", "steps", steps, 0)
        self.network: ParallelNetworks | None = None
        self.jitter = 0.0

    @override
    def learn(self, x: Readable) -> None:  # (n, ...)
        self.centre, spread = measure_center_and_spread(x)
        self.spread = spread.reshape(1)
        x = gather_rows(x[:])
        self.network = self._make_networks(self.centre.shape)
        broadcast_module(self.network)
        try:
            self._train(x)
        except KeyboardInterrupt:
            _log.warning("SpectralInference: interrupted; the map keeps what was learned.")
        self._freeze()
        self._finish(x)

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, k)
        return self._functions(x) * self.eigenvalues.sqrt().to(x.dtype)

    def eigenfunctions(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, k)
        r""":math:`L^{-1} u(x)`, orthonormal over the fitted rows."""
        self._check_fitted()
        return self._functions(self._check_rows(x))

    def _functions(self, x: Tensor) -> Tensor:
        return (self._outputs(x).to(self.projection.dtype) @ self.projection).to(x.dtype)

    def _outputs(self, x: Tensor, weights: dict[str, Tensor] | None = None) -> Tensor:  # (n, ...) -> (n, k)
        assert self.network is not None
        dtype = next(self.network.parameters()).dtype
        rows = ((x.double() - self.centre) / self.spread).to(dtype)
        output: Tensor = self.network(rows) if weights is None else functional_call(self.network, weights, (rows,))
        return output

    def _train(self, x: Tensor) -> None:
        assert self.network is not None
        parameters = dict(self.network.named_parameters())
        optimizer = torch.optim.Adam(parameters.values(), lr=_LR)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, self.steps), _LR / 10)
        size = min(_BATCH, len(x))
        sigma: Tensor | None = None
        jacobian: dict[str, Tensor] = {}
        for step in range(self.steps):
            batch = x[torch.randperm(len(x), generator=self.generator)[:size].to(x.device)]
            weights = {name: p.detach() for name, p in parameters.items()}
            # the moving averages of Sigma and of its Jacobian
            outputs = self._outputs(batch, weights)
            now = outputs.mT @ outputs / len(outputs)
            change = jacrev(lambda w, x, u: u.mT @ self._outputs(x, w) / len(u))(weights, batch, outputs)
            rate = max(_DECAY, 1 / (step + 1))
            sigma = now if sigma is None else sigma + rate * (now - sigma)
            if jacobian:
                change = {name: j + rate * (change[name] - j) for name, j in jacobian.items()}
            jacobian = change
            # one step of Adam along the masked gradient
            gradient = self._gradient(batch, weights, sigma, jacobian)
            if not all(bool(torch.isfinite(g).all()) for g in gradient.values()):
                where = f"NaN at step {step}"
                raise FloatingPointError(checks.sentence("SpectralInference", "the loss must stay finite", where))
            for name, p in parameters.items():
                p.grad = -gradient[name]
            optimizer.step()
            schedule.step()

    def _gradient(
        self, x: Tensor, weights: dict[str, Tensor], sigma: Tensor, jacobian: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The masked gradient: through Pi of this batch, and through the moving average of Sigma's Jacobian."""
        left = self.exact(x).to(sigma.dtype) @ self._outputs(x, weights)
        value, pull, *_ = vjp(lambda w: left.mT @ self._outputs(x, w) / len(left) ** 2, weights)
        by_pi, by_sigma = mask_gradients(sigma, value)
        (through_pi,) = pull(by_pi)
        return {n: through_pi[n] + torch.tensordot(by_sigma, jacobian[n], dims=2) for n in weights}

    def _finish(self, x: Tensor) -> None:
        operator = kernel_operator(self.exact, x.double())
        u = blockwise(self._outputs, x, block=_BLOCK).double()
        factor, self.jitter = cholesky(u.mT @ u / len(u), where="SpectralInference")
        inverse = torch.linalg.solve_triangular(
            factor.mT, torch.eye(self.k, dtype=u.dtype, device=u.device), upper=True
        )
        # the eigenvalues over all rows, the largest first
        psi = u @ inverse
        values = (psi * (operator @ psi)).sum(0) / len(u)
        order = values.argsort(descending=True)
        self.eigenvalues = values[order].clamp_min(0)
        self.projection = inverse[:, order]

    def _make_networks(self, shape: torch.Size) -> ParallelNetworks:
        return ParallelNetworks(shape.numel(), self.k, generator=self.generator).to(self.eigenvalues.device)

    def _freeze(self) -> None:
        assert self.network is not None
        self.network.eval().double().requires_grad_(False)

    @override
    def _width(self) -> int | None:
        return self.centre.shape[0] if self.centre.ndim == 1 else None

    @override
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        if self.network is None and any(key.startswith(prefix + "network.") for key in state_dict):
            self.network = self._make_networks(state_dict[prefix + "centre"].shape)
            self._freeze()
        super()._load_from_state_dict(state_dict, prefix, *args)


def mask_gradients(sigma: Tensor, pi: Tensor) -> tuple[Tensor, Tensor]:  # (k, k), (k, k) -> (k, k), (k, k)
    r"""The masked derivatives of :math:`\mathrm{tr} \Lambda` with respect to :math:`\Pi` and :math:`\Sigma`."""
    eye = torch.eye(len(sigma), dtype=sigma.dtype, device=sigma.device)
    ridge = 1e-6 * sigma.diagonal().mean().clamp_min(torch.finfo(sigma.dtype).tiny)  # two outputs may start alike
    factor = torch.linalg.cholesky_ex(shift_diagonal(sigma, ridge))[0]
    inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
    lam = inverse @ pi @ inverse.mT
    inverse_diagonal = 1 / factor.diagonal()
    return inverse.mT * inverse_diagonal, -inverse.mT @ torch.triu(lam * inverse_diagonal)
