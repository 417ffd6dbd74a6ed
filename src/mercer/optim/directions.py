"""Directions that are added to parameters without being formed first, where that is cheaper."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Part(Protocol):
    """A direction of one parameter."""

    def add_to(self, target: Tensor, alpha: float) -> None:
        """Add alpha times the direction in place."""

    def dense(self) -> Tensor:
        """The direction itself, as a matrix or vector."""


@dataclass(frozen=True)
class Whole:
    """A direction that is there already."""

    u: Tensor

    def add_to(self, target: Tensor, alpha: float) -> None:
        """Add alpha times the direction in place."""
        target.add_(self.u.reshape(target.shape), alpha=alpha)

    def dense(self) -> Tensor:
        """The direction itself."""
        return self.u


@dataclass(frozen=True)
class Projected:
    r""":math:`(g - B U^\top) / \mu`: two passes over the parameter, and no tensor of its size in between."""

    gradient: Tensor  # (c, d)
    back: Tensor  # (c, q)
    vectors: Tensor  # (d, q)
    outside: float  # mu

    def add_to(self, target: Tensor, alpha: float) -> None:
        """Add alpha times the direction in place."""
        by = alpha / self.outside
        if target.dtype == self.gradient.dtype and target.is_contiguous():
            flat = target.view(self.gradient.shape)
            flat.add_(self.gradient, alpha=by).addmm_(self.back, self.vectors.mT, alpha=-by)
        else:
            target.add_(self.dense().reshape(target.shape), alpha=alpha)

    def dense(self) -> Tensor:
        """The direction itself."""
        mu = self.outside
        return torch.addmm(self.gradient, self.back, self.vectors.mT, beta=1 / mu, alpha=-1 / mu)


@dataclass(frozen=True)
class Direction:
    """A layer's direction u.

    Attributes:
        weight: Direction of the weight, ``(c, d - 1)``.
        bias: Direction of the bias, ``(c,)``.
        product: u times the gradient, before scaling: no less than the squared change of the outputs.
        scale: What both are multiplied by.
    """

    weight: Part
    bias: Part | None
    product: Tensor
    scale: float = 1.0

    def scaled(self, by: float) -> Direction:
        """The direction times a number."""
        return dataclasses.replace(self, scale=self.scale * by)

    def squares(self) -> float:
        """Sum of its squared entries, before scaling."""
        parts = [self.weight] if self.bias is None else [self.weight, self.bias]
        return sum(float(part.dense().double().square().sum()) for part in parts)
