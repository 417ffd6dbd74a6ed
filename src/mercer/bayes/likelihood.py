"""Likelihoods p(y | f) of a network's outputs f: their curvature, their densities, what counts as a target."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from ..distributed import sum_over_ranks
from .links import Link
from .validation import class_labels, real_targets

LIKELIHOODS = ("classification", "regression")


class Likelihood(ABC):
    r"""p(y | f). A variant writes the curvature, the density and the predictive density.

    :math:`\Lambda`, ``(c, c)`` for each row, is the Hessian of :math:`-\log p(y | f)` over f; it is never formed.
    """

    @property
    @abstractmethod
    def scale(self) -> float:
        """The one number learned: the temperature of a classifier, the noise variance of a regression."""

    @abstractmethod
    def at(self, scale: float) -> Self:
        """The same likelihood with another temperature or noise."""

    @abstractmethod
    def curvature_root(self, f: Tensor, u: Tensor) -> Tensor:  # (n, c), (n, c, r) -> (n, c, r)
        r""":math:`S u` with :math:`S S^\top = \Lambda`."""

    @abstractmethod
    def curvature_product(self, f: Tensor, u: Tensor) -> Tensor:  # (n, c), (n, c, r) -> (n, c, r)
        r""":math:`\Lambda u`."""

    @abstractmethod
    def log_density(self, f: Tensor, y: Tensor) -> Tensor:  # (n, c), (n, ...) -> (n,)
        r""":math:`\log p(y_i | f_i)`."""

    @abstractmethod
    def loss(self, mean: Tensor, covariance: Tensor, y: Tensor, link: Link) -> Tensor:  # -> (n,)
        """Negative log predictive density of each row; ``covariance`` is ``(n, c, c)``, or ``(n, c)``: its diagonal."""

    @abstractmethod
    def targets(self, where: str, y: Tensor, f: Tensor) -> Tensor:
        """Checked targets for outputs of this shape."""


@dataclasses.dataclass(frozen=True)
class Softmax(Likelihood):
    r""":math:`p(y | f) = \mathrm{softmax}(f / T)_y`. One output is the logit of class 1 beside a 0 for class 0.

    :math:`\Lambda = (\mathrm{diag}(p) - p p^\top) / T^2`; its root is :math:`(D^{1/2} - p \sqrt{p}^\top) / T`.
    """

    temperature: float = 1.0

    @property
    @override
    def scale(self) -> float:
        return self.temperature

    @override
    def at(self, scale: float) -> Self:
        return dataclasses.replace(self, temperature=scale)

    @override
    def curvature_root(self, f: Tensor, u: Tensor) -> Tensor:
        p = self._mean(f)[..., None]
        if f.shape[1] == 1:
            return (p * (1 - p)).sqrt() * u / self.temperature
        root = p.sqrt()
        return (root * u - p * (root * u).sum(1, keepdim=True)) / self.temperature

    @override
    def curvature_product(self, f: Tensor, u: Tensor) -> Tensor:
        p = self._mean(f)[..., None]
        if f.shape[1] == 1:
            return p * (1 - p) * u / self.temperature**2
        return (p * u - p * (p * u).sum(1, keepdim=True)) / self.temperature**2

    def _mean(self, f: Tensor) -> Tensor:
        return (f / self.temperature).sigmoid() if f.shape[1] == 1 else (f / self.temperature).softmax(1)

    @override
    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        f = torch.cat((torch.zeros_like(f), f), 1) if f.shape[1] == 1 else f
        return -F.cross_entropy(f / self.temperature, y, reduction="none")

    def proba(self, mean: Tensor, covariance: Tensor, link: Link) -> Tensor:  # -> (n, max(c, 2))
        """Class probabilities of Gaussian outputs."""
        if mean.shape[1] == 1:
            mean = torch.cat((torch.zeros_like(mean), mean), 1)
            covariance = F.pad(covariance, (1, 0) * (covariance.ndim - 1))
        return link(mean / self.temperature, covariance / self.temperature**2)

    @override
    def loss(self, mean: Tensor, covariance: Tensor, y: Tensor, link: Link) -> Tensor:
        return -self.proba(mean, covariance, link).gather(1, y[:, None]).clamp_min(1e-12).log()[:, 0]

    @override
    def targets(self, where: str, y: Tensor, f: Tensor) -> Tensor:
        return class_labels(where, y, max(2, f.shape[1]))


@dataclasses.dataclass(frozen=True)
class Gaussian(Likelihood):
    r""":math:`p(y | f) = N(y; f, \sigma^2 I)`, :math:`\Lambda = I / \sigma^2`."""

    noise: float = 1.0

    @property
    @override
    def scale(self) -> float:
        return self.noise

    @override
    def at(self, scale: float) -> Self:
        return dataclasses.replace(self, noise=scale)

    @override
    def curvature_root(self, f: Tensor, u: Tensor) -> Tensor:
        return u / math.sqrt(self.noise)

    @override
    def curvature_product(self, f: Tensor, u: Tensor) -> Tensor:
        return u / self.noise

    @override
    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        return -_surprise(f, torch.full_like(f, self.noise), y).sum(1)

    @override
    def loss(self, mean: Tensor, covariance: Tensor, y: Tensor, link: Link) -> Tensor:
        variance = covariance if covariance.ndim == 2 else covariance.diagonal(dim1=1, dim2=2)
        return _surprise(mean, variance + self.noise, y).mean(1)

    @override
    def targets(self, where: str, y: Tensor, f: Tensor) -> Tensor:
        return real_targets(where, y, f)


def _surprise(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """Negative log-density of each number."""
    return 0.5 * ((y - mean).square() / variance + (2 * math.pi * variance).log())


def likelihood_named(name: str, scale: float = 1.0) -> Softmax | Gaussian:
    """The likelihood that users name."""
    return Gaussian(scale) if name == "regression" else Softmax(scale)


def mean_over_ranks(values: Tensor) -> float:
    """The mean of all numbers, of all ranks' together."""
    total = values.double().sum()
    sums = sum_over_ranks(torch.stack((total, total.new_tensor(float(values.numel())))))
    return float(sums[0] / sums[1])
