"""Convolution with a kernel in place of the scalar product: KERVO of jayasumana2021."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks
from ..storage.savable import SavableModule


class Kervolution2d(SavableModule):
    r"""Responses :math:`k(x_p, w_j)` of every patch :math:`x_p` to every filter :math:`w_j` (Wang et al., 2019).

    .. math:: (\langle x_p, w_j \rangle + c)^g \quad \text{or} \quad e^{-\gamma \|x_p - w_j\|^2}

    One convolution gives the products; for the Gaussian one more, with a box of ones, gives :math:`\|x_p\|^2`.

    Args:
        in_channels: Channels of the input.
        out_channels: Filters.
        kernel_size: Side of a patch.
        stride: Step between patches.
        padding: Zeros around the input.
        kernel: ``"polynomial"`` or ``"gaussian"``.
        degree: g, a whole number.
        coef0: Where c starts; it stays at 0 or more.
        gamma: Where :math:`\gamma` starts; None for 1 over the length of a patch. Learned as its logarithm.
        learnable: Learn c, or :math:`\gamma`.

    Use it as a rival: a convolution whose products are a kernel's.

    >>> Kervolution2d(1, 4, 3)(torch.randn(2, 1, 8, 8)).shape
    torch.Size([2, 4, 6, 6])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        kernel: str = "polynomial",
        degree: int = 2,
        coef0: float = 0.5,
        gamma: float | None = None,
        learnable: bool = True,
    ) -> None:
        super().__init__()
        where = "Kervolution2d"
        self.in_channels = checks.integer(where, "in_channels", in_channels, 1)
        self.out_channels = checks.integer(where, "out_channels", out_channels, 1)
        self.kernel_size = checks.integer(where, "kernel_size", kernel_size, 1)
        self.stride = checks.integer(where, "stride", stride, 1)
        self.padding = checks.integer(where, "padding", padding, 0)
        self.kernel = checks.choice(where, "kernel", kernel, ("polynomial", "gaussian"))
        self.degree = checks.integer(where, "degree", degree, 1)
        length = in_channels * kernel_size**2
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size, kernel_size))
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")
        if self.kernel == "polynomial":
            value = checks.non_negative(where, "coef0", coef0)
        else:
            if gamma is None:
                gamma = 1.0 / length
            value = math.log(checks.positive(where, "gamma", gamma))
        self.shape = nn.Parameter(torch.tensor([value]), requires_grad=learnable)

    def forward(self, x: Tensor) -> Tensor:  # (n, c, h, w) -> (n, out, h', w')
        """Kernel values between patches and filters."""
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            need = f"x must have shape (n, {self.in_channels}, height, width)"
            raise ValueError(checks.sentence("Kervolution2d", need, tuple(x.shape)))
        products = F.conv2d(x, self.weight, stride=self.stride, padding=self.padding)
        if self.kernel == "polynomial":
            return (products + self.shape.relu()).pow(self.degree)
        box = x.new_ones(1, 1, self.kernel_size, self.kernel_size)
        patches = F.conv2d(x.square().sum(1, keepdim=True), box, stride=self.stride, padding=self.padding)
        filters = self.weight.square().sum((1, 2, 3))[None, :, None, None]
        squared = (patches + filters - 2 * products).clamp(min=0)
        return (-self.shape.exp() * squared).exp()

    def extra_repr(self) -> str:
        """Sizes, as ``nn.Conv2d`` shows them."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, kernel={self.kernel!r}"
        )
