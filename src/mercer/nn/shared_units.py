"""A kernelised head whose units are read by all classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from .kernel_classifier import KernelClassifier


class SharedUnits(KernelClassifier):
    r"""Logits that all classes read from m units u: what ``KernelClassifier(d, c, shared=m)`` makes.

    .. math:: \text{logits} = \frac{1}{T} (A \, \mathrm{LN}(k(u, z - \mu)) + B z) + b

    LN is layer norm, so that no scale is needed; B z is the linear part. T is 1 where no temperature is given.
    """

    shared: int

    @override
    def _make_parameters(self, bias: bool, linear: bool | None, place: dict[str, Any]) -> None:
        c, d, m = self.num_classes, self.in_features, self.shared
        self.weight = nn.Parameter(torch.empty(m, d, **place))
        self.bias = nn.Parameter(torch.empty(c, **place)) if bias else None
        self.linear = self.gate = self.start = None
        self.norm = nn.LayerNorm(m, **place)
        self.readout = nn.Linear(m, c, bias=False, **place)
        self.skip = nn.Linear(d, c, bias=False, **place)
        self.register_buffer("center", torch.empty(d, **place) if self.temperature is None else None)

    @override
    def _logits(self, z: Tensor, weight: Tensor, classes: Tensor | None = None) -> Tensor:
        return self._read_values(z, self._kernel_values(z, weight))

    @override
    def _read_values(self, z: Tensor, value: Tensor, classes: Tensor | None = None) -> Tensor:
        norm, dtype, share = self.norm, z.dtype, 1 / (self.temperature or 1.0)
        # LN(k), so that units of any size are read alike.
        units = nn.functional.layer_norm(
            value, norm.normalized_shape, norm.weight.to(dtype), norm.bias.to(dtype), norm.eps
        )
        if isinstance(self.readout, nn.Linear) and isinstance(self.skip, nn.Linear):
            logits = torch.mm(units, self.readout.weight.to(dtype).mT)
            logits = torch.addmm(logits, z, self.skip.weight.to(dtype).mT, beta=share, alpha=share)
        else:
            # Another module was put in their place, as quantize_dynamic does: its weight may be no tensor.
            total: Tensor = self.readout(units.float()) + self.skip(z.float())
            logits = share * total.to(dtype)
        if self.bias is not None:
            logits = logits + self.bias.to(dtype)
        return logits

    @override
    def _group_rows(self, labels: Tensor) -> tuple[Tensor, int, int]:
        """One group of all rows, with every unit in it."""
        return torch.zeros_like(labels), 1, self.shared
