"""Links: the class probabilities that Gaussian outputs give, E softmax(f) for f ~ N(mean, covariance)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

LINKS = ("probit", "laplace_bridge", "samples")


class Link(ABC):
    """Approximates E softmax(f); ``needs_covariance`` says whether variances alone will do."""

    needs_covariance = True

    @abstractmethod
    def __call__(self, mean: Tensor, covariance: Tensor) -> Tensor:  # (n, c), (n, c, c) -> (n, c)
        """Class probabilities; where covariances are not needed, ``(n, c)`` variances are accepted too."""


class Probit(Link):
    r"""MacKay (1992): :math:`\mathrm{softmax}(f / \sqrt{1 + \pi v / 8})`; of one logit this is its integral nearly."""

    needs_covariance = False

    @override
    def __call__(self, mean: Tensor, covariance: Tensor) -> Tensor:
        variance = covariance if covariance.ndim == 2 else covariance.diagonal(dim1=1, dim2=2)
        return (mean / (1 + math.pi / 8 * variance).sqrt()).softmax(1)


class LaplaceBridge(Link):
    r"""Mean of the Dirichlet matched to the Gaussian (Hobbhahn et al. 2022).

    :math:`\alpha_i = \frac{1}{v_i} (1 - \frac2c + \frac{e^{f_i}}{c^2} \sum_j e^{-f_j})`. A softmax does not see
    what all outputs share, so mean and covariance are projected first, :math:`f - \bar f` and :math:`P \Sigma P` with
    :math:`P = I - 1 1^\top / c`; v is the diagonal of that. Large variances are scaled by
    :math:`\sqrt{c / 2} / \bar v`, as they propose.
    """

    @override
    def __call__(self, mean: Tensor, covariance: Tensor) -> Tensor:
        c = mean.shape[1]
        covariance = torch.diag_embed(covariance) if covariance.ndim == 2 else covariance
        shared = covariance.mean(2)  # (n, c)
        variance = covariance.diagonal(dim1=1, dim2=2) - 2 * shared + shared.mean(1, keepdim=True)
        mean = mean - mean.mean(1, keepdim=True)
        ratio = (variance.mean(1, keepdim=True) / math.sqrt(c / 2)).clamp_min(1.0)
        mean, variance = mean / ratio.sqrt(), (variance / ratio).clamp_min(1e-12)
        spread = torch.exp(mean + torch.logsumexp(-mean, 1, keepdim=True)) / c**2
        alpha = ((1 - 2 / c + spread) / variance).clamp_min(torch.finfo(mean.dtype).tiny)
        return alpha / alpha.sum(1, keepdim=True)


class Samples(Link):
    """Mean softmax over draws of the outputs.

    Args:
        samples: Number of draws.
        generator: Source of randomness.
    """

    def __init__(self, samples: int = 1000, generator: torch.Generator | None = None) -> None:
        self.samples, self.generator = samples, generator

    @override
    def __call__(self, mean: Tensor, covariance: Tensor) -> Tensor:
        return draws(mean, covariance, self.samples, self.generator).softmax(2).mean(0)


def draws(
    mean: Tensor, covariance: Tensor, samples: int, generator: torch.Generator | None
) -> Tensor:  # (n, c), (n, c, c) -> (s, n, c)
    """Draws of each row's outputs; directions whose variance is negative by rounding are left out."""
    covariance = torch.diag_embed(covariance) if covariance.ndim == 2 else covariance
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp_min(0).sqrt()[:, None]
    noise = torch.randn(samples, *mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
    return mean + torch.einsum("ncd,snd->snc", root, noise)


def link_named(name: str, generator: torch.Generator | None = None) -> Link:
    """The link that users name."""
    if name == "samples":
        return Samples(generator=generator)
    return LaplaceBridge() if name == "laplace_bridge" else Probit()
