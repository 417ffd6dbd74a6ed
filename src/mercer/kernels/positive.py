"""Hyper-parameters above 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import checks


class Positive(nn.Module):
    """A hyper-parameter above 0: a constant, or learned as its logarithm.

    A learned number is a parameter of shape ``(1,)``, because FSDP takes none of shape ``()``; files that hold the
    latter still load.

    Args:
        where: The kernel, for the error sentence.
        name: The argument, for the error sentence.
        value: A number, or, ``per_feature``, a tensor ``(d,)``.
        learnable: Make the logarithm an ``nn.Parameter``.
        per_feature: Whether one number for each feature is allowed.
    """

    log: nn.Parameter
    constant: Tensor
    __call__: Callable[..., Tensor]

    def __init__(
        self,
        where: str,
        name: str,
        value: float | Tensor | Sequence[float],
        learnable: bool,
        *,
        per_feature: bool = False,
    ) -> None:
        super().__init__()
        self.where, self.name = where, name
        self.number: float | None = None
        if isinstance(value, (list, tuple, np.ndarray)):
            value = torch.as_tensor(np.asarray(value, dtype=float))
        self.is_vector = isinstance(value, Tensor) and (value.numel() != 1 or (value.ndim == 1 and per_feature))
        if isinstance(value, Tensor) and self.is_vector:
            # One number for each feature.
            if not per_feature or value.ndim > 1:
                need, fix = f"{name} must be one number", "Scale the rows themselves."
                if per_feature:
                    need, fix = f"{need}, or a vector with one for each feature", ""
                raise ValueError(checks.sentence(where, need, f"shape {tuple(value.shape)}", fix))
            if not len(value) or not bool((value > 0).all()) or not bool(torch.isfinite(value).all()):
                raise ValueError(checks.sentence(where, f"{name} must be positive", value.tolist()))
            start = checks.floating(value.detach().clone())
        else:
            # One number; that of a tensor keeps its dtype, so that float64 is not rounded.
            number: Any = value
            dtype = None
            if isinstance(value, Tensor):
                number, dtype = value.item(), checks.floating(value).dtype
            self.number = checks.positive(where, name, number)
            start = torch.tensor([self.number], dtype=dtype)
        if learnable:
            self.number = None
            self.log = nn.Parameter(start.log())
        elif self.number is None:
            self.register_buffer("constant", start)

    def forward(self, like: Tensor) -> Tensor:
        """The value, ``()`` or ``(d,)``, in the dtype and on the device of ``like``."""
        if self.number is not None:
            return like.new_full((), self.number)
        value: Tensor = self.log.exp() if self.learnable else self.constant
        return (value if self.is_vector else value.reshape(())).to(like.dtype)

    @property
    def learnable(self) -> bool:
        """Whether it is a parameter."""
        return "log" in self._parameters

    def times(self, factor: float) -> float | Tensor:
        """The value times ``factor``, within the positive numbers of float32."""
        info = torch.finfo(torch.float32)
        value = (factor * self(torch.zeros((), dtype=torch.float64)).detach()).clamp(info.tiny, info.max)
        return value if value.ndim else value.item()

    def scale(self, by: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Both sets of rows times ``by`` ``(d,)``; rows that are one tensor stay one."""
        if len(by) != x.shape[1]:
            need = f"x must have a feature for each of the {len(by)} values of {self.name}"
            raise ValueError(checks.sentence(self.where, need, tuple(x.shape)))
        left = x * by
        return left, left if y is x else y * by

    def extra_repr(self) -> str:
        """The value, shown in ``repr(kernel)``."""
        if self.number is not None:
            return f"{self.number:g}"
        value = self(torch.zeros((), dtype=torch.float64)).detach()
        return f"{value.item():g}, learnable" if value.ndim == 0 else f"{len(value)} values"

    def __float__(self) -> float:
        return float(self(torch.zeros((), dtype=torch.float64)).detach())
