"""Infinitely wide networks, dense and convolutional: kernels of their outputs (NNGP) and of their gradients (NTK)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from .. import checks
from ..linalg.torch_internals import readable
from .gaussian_moments import Activation, Erf, LeakyReLU
from .layer_rules import Activate, Affine, Enter, Patch, Pool, Rule
from .wide_kernel import Step, WideKernel, WideKernels, chain

READOUTS = ("flatten", "mean")
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
    r"""Neural tangent kernel of an infinitely wide network, in the NTK parametrization.

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


class ConvNNGP(NNGP):
    r"""Covariance of the outputs of a convolutional network with infinitely many channels.

    With :math:`P` the mean over the :math:`k \times k` patch around a pixel p (zeros outside the picture),

    .. math:: \Sigma^0_{pp'} = \sigma_w^2 P[\langle x_p, y_{p'} \rangle / C] + \sigma_b^2, \qquad
        \Sigma^{l}_{pp'} = \sigma_w^2 P[E[\phi(u_p) \phi(v_{p'})]] + \sigma_b^2, \quad l < depth,

    and the readout takes the mean of :math:`E[\phi \phi]` over equal pixels (``"flatten"``: a dense layer on all
    pixels) or over all pairs of pixels (``"mean"``: global average pooling), times :math:`\sigma_w^2`, plus
    :math:`\sigma_b^2`. It is the CNN-GP of deng2022 without sampling; pooling costs pixels^2 in place of pixels.

    Args:
        depth: Convolutional hidden layers, of stride 1 and the picture's size, at least 1.
        activation: :math:`\phi`, ``"relu"`` or ``"erf"``.
        weight_var: :math:`\sigma_w^2`; every layer has weights of variance ``weight_var / fan_in``.
        bias_var: :math:`\sigma_b^2`.
        kernel_size: k, odd.
        readout: ``"flatten"`` or ``"mean"``.

    Use it for few pictures: the prior of an untrained wide convolutional network.

    >>> import torch
    >>> ConvNNGP(depth=2)(torch.ones(2, 1, 6, 6)).shape
    torch.Size([2, 2])
    """

    is_homogeneous = False  # its rows are pictures, not vectors

    def __init__(
        self,
        depth: int = 1,
        activation: str = "relu",
        weight_var: float = 2.0,
        bias_var: float = 0.0,
        *,
        kernel_size: int = 3,
        readout: str = "flatten",
    ) -> None:
        super().__init__(depth, activation, weight_var, bias_var)
        where = type(self).__name__
        self.kernel_size = checks.integer(where, "kernel_size", kernel_size, 1)
        if kernel_size % 2 == 0:
            raise ValueError(checks.sentence(where, "kernel_size must be odd", kernel_size))
        self.readout = checks.choice(where, "readout", readout, READOUTS)

    @override
    def prepare(self, name: str, x: Tensor) -> Tensor:
        where = type(self).__name__
        if not isinstance(x, Tensor):
            raise TypeError(
                checks.sentence(where, f"{name} must be a tensor", type(x).__name__, "Use torch.as_tensor.")
            )
        checks.dense(where, name, x)
        if x.ndim != 4:
            fix = f"Use {name}[:, None] for grey pictures, {name}.reshape(-1, c, h, w) for rows."
            raise ValueError(checks.sentence(where, f"{name} must have shape (n, c, h, w)", tuple(x.shape), fix))
        x = checks.floating(checks.matrix(where, name, x.flatten(1))).reshape(x.shape)
        if x.numel() == 0 and len(x):
            raise ValueError(checks.sentence(where, f"{name} must have at least one pixel", tuple(x.shape)))
        if readable(x):
            checks.no_overflow(where, name, x)
        return x

    @override
    def steps(self, shape: tuple[int, ...]) -> tuple[Step, ...]:
        k = self.kernel_size
        patch = Patch((k, k), (1, 1), ((k // 2, k // 2),) * 2, (1, 1))
        convolution = Affine(self.weight_var, self.bias_var, patch)
        activate = Activate(ACTIVATIONS[self.activation])
        rules: list[Rule] = [Enter(1), convolution, *[activate, convolution] * (self.depth - 1), activate]
        if self.readout == "mean":
            rules += [Pool((None, None), (1, 1), (0, 0)), Affine(self.weight_var, self.bias_var)]
        else:
            rules.append(Affine(self.weight_var, self.bias_var, flattened=True))
        return chain(rules, shape[1:])

    @override
    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kernel_size={self.kernel_size}, readout={self.readout!r}"


class ConvNTK(ConvNNGP):
    r"""Neural tangent kernel of a convolutional network with infinitely many channels.

    .. math:: \Theta^0 = \Sigma^0, \qquad
        \Theta^{l} = \Sigma^{l} + \sigma_w^2 P[\Theta^{l-1} E[\phi'(u) \phi'(v)]]

    with the patch mean P of :class:`ConvNNGP`, at the readout the mean over pixels; weights and biases of all layers,
    NTK parametrization. Arguments as for :class:`ConvNNGP`.

    Use it for few pictures: what training a wide convolutional network would give.

    >>> import torch
    >>> ConvNTK(depth=2)(torch.ones(2, 1, 6, 6)).shape
    torch.Size([2, 2])
    """

    TANGENT: ClassVar[bool] = True
