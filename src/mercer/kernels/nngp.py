"""Infinitely wide fully connected networks: the kernel of their outputs (NNGP) and of their gradients (NTK)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from .. import checks
from .gaussian_moments import Activation, Erf, LeakyReLU
from .layer_rules import Activate, Affine, Enter
from .wide_kernel import Step, WideKernel, WideKernels, chain

ACTIVATIONS: dict[str, Activation] = {"relu": LeakyReLU(), "erf": Erf()}


class NNGP(WideKernel):
    r"""Covariance of the outputs of an infinitely wide network of random weights.

    .. math:: \Sigma^0 = \sigma_w^2 \langle x, y \rangle / d + \sigma_b^2, \qquad
        \Sigma^{l} = \sigma_w^2 \, E[\phi(u) \phi(v)] + \sigma_b^2, \quad (u, v) \sim N(0, \Sigma^{l-1}),

    and :math:`k = \Sigma^{depth}` (deng2022, slide "The modern kernels": :math:`E_\theta\, g(x) g(y)`). Large Gram
    matrices are computed in tiles. With ``y=None`` only the upper triangle is computed, and the diagonal is exact.
    For any other network see :func:`infinite_width`.

    Args:
        depth: Hidden layers, at least 1.
        activation: :math:`\phi`, ``"relu"`` or ``"erf"``.
        weight_var: :math:`\sigma_w^2`; every layer, readout too, has weights of variance ``weight_var / fan_in``.
        bias_var: :math:`\sigma_b^2`, the variance of every bias.

    Use it for few rows: the prior of an untrained wide network.

    >>> import torch
    >>> NNGP(depth=2)(torch.ones(3, 2)).shape
    torch.Size([3, 3])
    """

    def __init__(
        self, depth: int = 1, activation: str = "relu", weight_var: float = 2.0, bias_var: float = 0.0
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.depth = checks.integer(where, "depth", depth, 1)
        self.activation = checks.choice(where, "activation", activation, ACTIVATIONS)
        self.weight_var = checks.positive(where, "weight_var", weight_var)
        self.bias_var = checks.non_negative(where, "bias_var", bias_var)

    @property
    @override
    def is_homogeneous(self) -> bool:
        return self.activation == "relu" and self.bias_var == 0

    @override
    def steps(self, shape: tuple[int, ...]) -> tuple[Step, ...]:
        dense = Affine(self.weight_var, self.bias_var)
        return chain([Enter(), dense, *[Activate(ACTIVATIONS[self.activation]), dense] * self.depth])

    @override
    def extra_repr(self) -> str:
        return f"{self.depth}, {self.activation!r}, weight_var={self.weight_var:g}, bias_var={self.bias_var:g}"


class NTK(NNGP):
    r"""Neural tangent kernel of an infinitely wide network, in the NTK parametrisation.

    .. math:: \Theta^0 = \Sigma^0, \qquad
        \Theta^{l} = \Sigma^{l} + \Theta^{l-1} \, \sigma_w^2 \, E[\phi'(u) \phi'(v)],
        \quad (u, v) \sim N(0, \Sigma^{l-1}),

    the limit of :math:`\partial_\theta g(x) \, \partial_\theta g(y)^\top` over weights and biases of all layers
    (deng2022, slide "The modern kernels"). :math:`\Sigma` is the recursion of :class:`NNGP`.

    Args:
        depth: Hidden layers, at least 1.
        activation: :math:`\phi`, ``"relu"`` or ``"erf"``.
        weight_var: :math:`\sigma_w^2`.
        bias_var: :math:`\sigma_b^2`.

    Use it for few rows: what training a wide network would give.

    >>> import torch
    >>> NTK(depth=2)(torch.ones(3, 2)).shape
    torch.Size([3, 3])
    """

    TANGENT: ClassVar[bool] = True

    def both(self, x: Tensor, y: Tensor | None = None) -> WideKernels:  # (n, d), (m, d) -> (n, m), (n, m)
        """NNGP and NTK from one pass over the layers."""
        return WideKernels(*self.kernels(*self._pair(x, y)))
