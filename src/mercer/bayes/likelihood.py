"""Likelihoods of a network's outputs: curvature, log-likelihood, and the predictive that Gaussian outputs give."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..distributed import sum_over_ranks

LIKELIHOODS = ("classification", "regression")
LINKS = ("probit", "laplace_bridge", "samples")


def curvature_root(likelihood: str, f: Tensor, u: Tensor, noise: float) -> Tensor:  # (n, c), (n, c, r) -> (n, c, r)
    r""":math:`S u` with :math:`S S^\top = \Lambda`: of a softmax :math:`S = D^{1/2} - p \sqrt{p}^\top`."""
    if likelihood == "regression":
        return u / math.sqrt(noise)
    p = f.softmax(1)[..., None]
    root = p.sqrt()
    return root * u - p * (root * u).sum(1, keepdim=True)


def curvature_product(likelihood: str, f: Tensor, u: Tensor, noise: float) -> Tensor:  # (n, c), (n, c, r) -> (n, c, r)
    r""":math:`\Lambda u`, the Hessian of the negative log-likelihood over the outputs, never ``(c, c)`` in memory."""
    if likelihood == "regression":
        return u / noise
    p = f.softmax(1)[..., None]
    return p * u - p * (p * u).sum(1, keepdim=True)


def probit(mean: Tensor, variance: Tensor) -> Tensor:  # (n, c), (n, c) -> (n, c)
    r"""MacKay (1992): :math:`\mathrm{softmax}(f / \sqrt{1 + \pi v / 8})`."""
    return (mean / (1 + math.pi / 8 * variance).sqrt()).softmax(1)


def laplace_bridge(mean: Tensor, variance: Tensor) -> Tensor:  # (n, c), (n, c) -> (n, c)
    r"""Mean of the Dirichlet matched to the Gaussian (Hobbhahn et al. 2022), normalised to its simplex first.

    :math:`\alpha_i = \frac{1}{v_i} (1 - \frac2c + \frac{e^{f_i}}{c^2} \sum_j e^{-f_j})`, with the variances scaled by
    :math:`\sqrt{c / 2} / \bar v` as they propose where they are large.
    """
    c = mean.shape[1]
    mean = mean - mean.mean(1, keepdim=True)
    ratio = (variance.mean(1, keepdim=True) / math.sqrt(c / 2)).clamp_min(1.0)
    mean, variance = mean / ratio.sqrt(), (variance / ratio).clamp_min(1e-12)
    spread = torch.exp(mean + torch.logsumexp(-mean, 1, keepdim=True)) / c**2
    alpha = ((1 - 2 / c + spread) / variance).clamp_min(torch.finfo(mean.dtype).tiny)
    return alpha / alpha.sum(1, keepdim=True)


def sampled(mean: Tensor, covariance: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:  # -> (n, c)
    """Mean softmax over draws of the outputs; directions of negative rounding are left out."""
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp_min(0).sqrt()[:, None]
    draws = torch.randn(samples, *mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
    outputs = mean + torch.einsum("ncd,snd->snc", root, draws)
    return outputs.softmax(2).mean(0)


def negative_log_likelihood(proba: Tensor, y: Tensor) -> float:  # (n, c), (n,)
    """Mean negative log-probability of the labels, over the rows of all ranks."""
    return mean_over_ranks(-proba.gather(1, y[:, None]).clamp_min(1e-12).log())


def gaussian_nll(mean: Tensor, variance: Tensor, y: Tensor) -> float:  # (n, c) each
    """Mean negative log-density of the targets, noise included in the variance, over the rows of all ranks."""
    return mean_over_ranks(0.5 * ((y - mean).square() / variance + (2 * math.pi * variance).log()))


def mean_over_ranks(values: Tensor) -> float:
    """The mean of all numbers, of all ranks' together."""
    total = values.double().sum()
    sums = sum_over_ranks(torch.stack((total, total.new_tensor(float(values.numel())))))
    return float(sums[0] / sums[1])
