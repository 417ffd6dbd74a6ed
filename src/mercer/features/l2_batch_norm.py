"""Batch normalisation to a mean square of 1: the constraint of the eigenfunctions, met by construction."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks


class L2BatchNorm(nn.Module):
    r"""L2 batch normalisation, without centring and without a learned scale.

    .. math:: h^{out}_b = h^{in}_b / \sigma, \quad \sigma = \sqrt{\tfrac{1}{B} \sum_b (h^{in}_b)^2}

    for each feature (deng2022, slide "DNNs as eigenfunctions"). In training :math:`\sigma` is the batch's and the
    gradient flows through it; in evaluation it is the root of the running mean square. A feature that is 0 in the
    whole batch stays 0.

    Args:
        num_features: Size of dimension 1; the mean runs over all other dimensions.
        momentum: Weight of a batch in the running mean square. The first ``1 / momentum`` batches are averaged
            evenly, so that no start value remains. None averages all batches evenly.

    Use it where features should have mean square 1, whatever their sign.

    >>> L2BatchNorm(3)(torch.randn(8, 3)).shape
    torch.Size([8, 3])
    """

    mean_square: Tensor
    num_batches_tracked: Tensor
    __call__: Callable[..., Tensor]

    def __init__(self, num_features: int, *, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.num_features = checks.integer("L2BatchNorm", "num_features", num_features, 1)
        if momentum is not None and not 0 < checks.positive("L2BatchNorm", "momentum", momentum) <= 1:
            raise ValueError(checks.sentence("L2BatchNorm", "momentum must be in (0, 1] or None", momentum))
        self.momentum = momentum
        self.register_buffer("mean_square", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))

    @override
    def forward(self, h: Tensor) -> Tensor:  # (n, num_features, ...) -> the same
        """Rows divided by sigma, the batch's in training, the running one in evaluation."""
        if h.ndim < 2 or h.shape[1] != self.num_features:
            need = f"the input must have shape (n, {self.num_features}, ...)"
            raise ValueError(checks.sentence("L2BatchNorm", need, tuple(h.shape)))
        if self.training:
            others = [dim for dim in range(h.ndim) if dim != 1]
            mean_square = h.square().mean(others)
            self._track(mean_square.detach())
        else:
            mean_square = self.mean_square.to(h.dtype)
        zero = mean_square <= 0
        inverse = torch.where(zero, torch.zeros_like(mean_square), torch.where(zero, 1.0, mean_square).rsqrt())
        return h * inverse.reshape(-1, *[1] * (h.ndim - 2))

    @torch.no_grad()
    def _track(self, mean_square: Tensor) -> None:
        self.num_batches_tracked += 1
        even = 1.0 / self.num_batches_tracked.to(self.mean_square.dtype)
        weight = even if self.momentum is None else even.clamp(min=self.momentum)
        self.mean_square += weight * (mean_square.to(self.mean_square.dtype) - self.mean_square)

    @override
    def extra_repr(self) -> str:
        return f"{self.num_features}, momentum={self.momentum}"
