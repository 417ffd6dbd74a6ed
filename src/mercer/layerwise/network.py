"""The fitted network as torch modules: what an estimator predicts with, saves and hands out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..machines.calibration import Calibration
from ..machines.solution import Solution
from ..storage.savable import SavableModule


class Indicators(SavableModule):
    """One column for each level of features that take few values; a value never seen gives zeros.

    Args:
        columns: Which feature each indicator looks at, ``(p,)``.
        levels: The value it stands for, ``(p,)``.
    """

    columns: Tensor
    levels: Tensor

    def __init__(self, columns: Tensor, levels: Tensor) -> None:
        super().__init__()
        self.hold(columns=columns, levels=levels)

    @classmethod
    def of(cls, x: Tensor, most: int) -> Indicators | None:
        """The indicators of ``x`` where every feature has at most ``most`` levels and some has three; else None."""
        levels = []
        for column in x.mT:  # one feature with many levels settles it
            values = column.unique()
            if len(values) > most:
                return None
            levels.append(values)
        if max(map(len, levels)) < 3:
            return None
        # One indicator for each level: its column, and its value.
        counts = torch.tensor([len(values) for values in levels])
        return cls(torch.repeat_interleave(torch.arange(len(levels)), counts), torch.cat(levels))

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, d) -> (n, p)
        equal = (x[:, self.columns] - self.levels).abs() <= 1e-6 * (1 + self.levels.abs())
        return equal.to(self.levels.dtype)


class Standardize(SavableModule):
    r""":math:`(x - \mu) / s`, the training rows' statistics.

    Args:
        mean: :math:`\mu`, ``(d,)``.
        scale: s, ``(d,)``, above 0.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.hold(mean=mean, scale=scale)

    @classmethod
    def of(cls, x: Tensor) -> Standardize:
        """By the rows of ``x``; a constant feature is only centred."""
        largest = x.abs().amax(0).clamp_min(torch.finfo(x.dtype).tiny)
        shrunk = x / largest  # squares of tiny or huge values would under- or overflow
        spread = shrunk.std(0, correction=0)
        varies = spread > 16 * torch.finfo(x.dtype).eps
        return cls(shrunk.mean(0) * largest, torch.where(varies, spread * largest, torch.ones_like(spread)))

    def with_one_scale(self, x: Tensor) -> Standardize:
        """The same centring with one scale for all features, for rows such as pictures, whose features share a unit."""
        squares = ((x - self.mean) / self.scale.max()).square().mean()
        scale = float(squares.sqrt() * self.scale.max()) or 1.0
        return Standardize(self.mean, torch.full_like(self.scale, scale))

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, d) -> (n, d)
        return (x - self.mean) / self.scale


class MetricLayer(SavableModule):
    r""":math:`z M^{1/2}`: distances afterwards are :math:`(z - z')^T M (z - z')`.

    Args:
        root: :math:`M^{1/2}`, ``(d, d)``; ``(d,)`` for feature weights; ``(d, q)`` for q principal components.
    """

    root: Tensor

    def __init__(self, root: Tensor) -> None:
        super().__init__()
        self.hold(root=root)

    @override
    def forward(self, z: Tensor) -> Tensor:  # (n, d) -> (n, d)
        if self.root.ndim == 1:
            return z * self.root
        return z @ self.root


class AverageLayer(SavableModule):
    r""":math:`\sum_i s_i f_i(x)` of networks that each start from the rows as they came.

    Args:
        branches: The modules of each network, first to last.
        shares: :math:`s_i`, ``(b,)``, of sum 1.
    """

    shares: Tensor

    def __init__(self, branches: Sequence[Sequence[nn.Module]], shares: Tensor) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(*modules) for modules in branches)
        self.hold(shares=shares)

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, d) -> (n, c)
        parts = [share * branch(x) for share, branch in zip(self.shares, self.branches, strict=True)]
        return torch.stack(parts).sum(0)


class LinearLayer(SavableModule):
    """``z @ weight + bias``, the ridge head of the poster's solvers.

    Args:
        weight: ``(q, c)``.
        bias: ``(c,)``.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.hold(weight=weight, bias=bias)

    @override
    def forward(self, z: Tensor) -> Tensor:  # (n, q) -> (n, c)
        return z @ self.weight + self.bias


class Rescale(SavableModule):
    """A regression's answer: ``scale * z + shift``.

    Args:
        scale: ``(1,)``, the targets' deviation.
        shift: ``(1,)``, their mean.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.hold(scale=scale, shift=shift)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that rows are computed in."""
        return self.shift.dtype

    @override
    def forward(self, z: Tensor) -> Tensor:  # (n, c) -> (n, c)
        return z * self.scale + self.shift


class LogProbabilities(SavableModule):
    """A classifier's answer: the logarithms of calibrated probabilities, which are logits, too.

    Args:
        calibration: What turns scores into probabilities.
    """

    def __init__(self, calibration: Calibration) -> None:
        super().__init__()
        self.calibration = calibration

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that rows are computed in."""
        return self.calibration.bias.dtype

    @override
    def forward(self, z: Tensor) -> Tensor:  # (n, c) -> (n, c)
        p: Tensor = self.calibration(z)
        return p.log()


class KernelNetwork(SavableModule):
    """Layers one after the other, and the answer that their last columns give.

    Args:
        layers: Modules; the last gives one column for each output.
        width: Features d of a row.
        answer: The last step: class logits, or a regression's predictions.
    """

    def __init__(self, layers: Sequence[nn.Module], width: int, answer: Rescale | LogProbabilities) -> None:
        super().__init__()
        self.width = width
        self.layers = nn.ModuleList(layers)
        self.answer = answer

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, d) -> (n, c)
        if x.ndim != 2 or x.shape[1] != self.width:
            raise ValueError(checks.sentence("KernelNetwork", f"x must have shape (n, {self.width})", tuple(x.shape)))
        z = x.to(self.answer.dtype)
        for layer in self.layers:
            z = layer(z)
        out: Tensor = self.answer(z.to(self.answer.dtype))
        return out

    def make_trainable(self) -> KernelNetwork:
        """Turn every floating buffer into a parameter, so that an optimizer can go on from here; returns itself."""
        for module in self.modules():
            for name, buffer in list(module._buffers.items()):
                if buffer is not None and buffer.is_floating_point():
                    del module._buffers[name]
                    module.register_parameter(name, nn.Parameter(buffer.clone()))
        return self


class FittedNetwork(NamedTuple):
    """The network that a solver learned, before calibration.

    Attributes:
        modules: From raw rows to one column an output.
        layers: Those that count as layers.
        history: One dictionary a layer.
        left_out: Outputs of rows left out, ``(r, c)``.
        rows: Which rows those are, ``(r,)``, numbered over all ranks.
        penalty: Ridge of the last layer.
        stem: Modules before the kernel machine that later rows are added to.
        machine: That machine; None where no rows can be added.
    """

    modules: list[nn.Module]
    layers: list[nn.Module]
    history: list[dict[str, float]]
    left_out: Tensor
    rows: Tensor
    penalty: float
    stem: Sequence[nn.Module] = ()
    machine: Solution | None = None
