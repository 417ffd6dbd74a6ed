r"""What reaches a network's layers and what leaves them: inputs a and derivatives g = df / dz of all outputs.

A linear layer with inputs :math:`a_t` and :math:`g_{ct} = \partial f_c / \partial z_t` has the Jacobian
:math:`\sum_t g_{ct} a_t^\top`; a convolution is the same over its patches. So :math:`K(x, x) = J(x) J(x)^\top` and
Kronecker factors need c backward passes for a block of rows, and nothing that grows with classes times weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn import functional as F

from ..checks import sentence
from ..linalg.blocks import block_rows, slices
from .network import flat_logits, one_thread_at_a_time

_BUDGET = 64 * 2**20
_Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.LayerNorm


@dataclasses.dataclass
class Signal:
    """One layer's part in some rows.

    Attributes:
        module: The layer.
        a: Its inputs, patches of a convolution: ``(n, t, in)``; of a normalisation, the normalised ``(n, units, t)``.
        g: Derivatives of the outputs: ``(n, c, t, out)``; of a normalisation ``(n, c, units, t)``.
        weight: Whether the weight counts.
        bias: Whether the bias counts.
    """

    module: nn.Module
    a: Tensor
    g: Tensor
    weight: bool
    bias: bool

    @property
    def dense(self) -> bool:
        """Linear or convolutional, in place of a normalisation."""
        return isinstance(self.module, nn.Linear | nn.Conv2d)

    def kernel(self, diagonal: bool) -> Tensor:  # -> (n, c) or (n, c, c)
        r"""The layer's share of :math:`K(x, x)`."""
        if not self.dense:
            parts = ([(self.a[:, None] * self.g).sum(3)] if self.weight else []) + (
                [self.g.sum(3)] if self.bias else []
            )
            j = torch.cat(parts, 2)  # (n, c, units)
            return j.square().sum(2) if diagonal else j @ j.mT
        (n, t, width), (_, c, _, out) = self.a.shape, self.g.shape
        if t > 1 and c * width * out < t * (width + c * out):
            return self._by_jacobian(diagonal)
        inner = (self.a @ self.a.mT if self.weight else self.a.new_zeros(n, t, t)) + float(self.bias)  # (n, t, t)
        moved = torch.einsum("nts,ncso->ncto", inner, self.g)
        return (self.g * moved).sum((2, 3)) if diagonal else self.g.flatten(2) @ moved.flatten(2).mT

    def _by_jacobian(self, diagonal: bool) -> Tensor:
        j = self.jacobian().flatten(2)
        return j.square().sum(2) if diagonal else j @ j.mT

    def jacobian(self) -> Tensor:  # -> (n, c, out, in), a last column for the bias
        """The rows' Jacobians over the layer's weights."""
        a = self.with_bias()
        return self.g.mT @ a[:, None]

    def with_bias(self) -> Tensor:  # -> (n, t, in + 1)
        """Inputs with a 1 for the bias, without those of a frozen weight."""
        ones = [torch.ones_like(self.a[..., :1])] if self.bias else []
        return torch.cat(([self.a] if self.weight else []) + ones, 2)


class MisalignedRowsError(ValueError):
    """A layer did not see the rows along its first dimension."""


class LayerSignals:
    """Signals of a network of one's own, see :func:`~mercer.bayes.network.own_network`.

    Args:
        network: Parameters that require grad count.
        rowwise: Run each row alone. Then everything that a layer sees belongs to that row, in whatever order: time
            first, rows and times in one dimension, windows. Otherwise rows must be the first dimension in every layer.
    """

    def __init__(self, network: nn.Module, *, rowwise: bool = False) -> None:
        self.network = network
        self.rowwise = rowwise
        self.counted = {name: p for name, p in network.named_parameters() if p.requires_grad}

    def own_kernel(
        self, x: Tensor, *, diagonal: bool, gradients: bool = False
    ) -> Tensor:  # (n, ...) -> (n, c) or (n, c, c)
        r""":math:`K(x, x)`, some rows at a time.

        Args:
            x: Rows.
            diagonal: Variances alone.
            gradients: Keep the graph.
        """
        layers, units, c = self._look(x)
        rest = sum(p.numel() for name, p in self.counted.items() if name not in self._names_of(layers))
        width = c * (rest + 2 * units) + (0 if diagonal else 2 * c * c)
        rows = block_rows(4 * width * 8, budget=_BUDGET)
        parts = [self._block(x[part], layers, diagonal, gradients) for part in slices(len(x), rows)]
        return torch.cat(parts)

    def of(self, x: Tensor, *, gradients: bool = False) -> tuple[Tensor, dict[str, Signal], list[str]]:
        """Outputs ``(n, c)``, a signal for each layer that has one, and the parameters that are in none of them."""
        layers, _, _ = self._look(x)
        others = sorted(self.counted.keys() - self._names_of(layers))
        if not self.rowwise:
            return *self._signals(x, layers, gradients), others
        rows = [self._signals(row, layers, gradients) for row in x.split(1)]
        signals = {}
        for name, first in rows[0][1].items():
            same = [signal[name] for _, signal in rows]
            if len({signal.a.shape for signal in same}) > 1:
                need = "a layer must see as much of every row"
                raise MisalignedRowsError(sentence("LayerSignals", need, f"{name} that does not"))
            a, g = torch.cat([signal.a for signal in same]), torch.cat([signal.g for signal in same])
            signals[name] = dataclasses.replace(first, a=a, g=g)
        return torch.cat([f for f, _ in rows]), signals, others

    def _look(self, x: Tensor) -> tuple[dict[str, nn.Module], int, int]:
        """Layers with a signal: their outputs' sizes for one row summed, and the number of outputs."""
        found = {n: m for n, m in self.network.named_modules() if _known(m) and self._flags(n) != (False, False)}
        sizes: dict[str, list[int]] = {name: [] for name in found}
        handles = [
            module.register_forward_hook(lambda _m, _i, out, name=name: sizes[name].append(out[:1].numel()))
            for name, module in found.items()
        ]
        with torch.no_grad():
            c = flat_logits(self.network(x[:1])).shape[1]
        for handle in handles:
            handle.remove()
        ids = [id(p) for m in self.network.modules() for p in m.parameters(recurse=False)]
        layers = {
            name: module
            for name, module in found.items()
            if len(sizes[name]) == 1 and all(ids.count(id(p)) == 1 for p in module.parameters(recurse=False))
        }
        return layers, sum(sizes[name][0] for name in layers), c

    def _flags(self, name: str) -> tuple[bool, bool]:
        return f"{name}.weight".lstrip(".") in self.counted, f"{name}.bias".lstrip(".") in self.counted

    def _names_of(self, layers: Mapping[str, nn.Module]) -> set[str]:
        return {f"{name}.{kind}".lstrip(".") for name in layers for kind in ("weight", "bias")}

    def _signals(self, x: Tensor, layers: dict[str, nn.Module], gradients: bool) -> tuple[Tensor, dict[str, Signal]]:
        seen: dict[str, tuple[Tensor, Tensor]] = {}
        handles = [module.register_forward_hook(_recorder(name, seen)) for name, module in layers.items()]
        with torch.enable_grad():
            f = flat_logits(self.network(x))
            for handle in handles:
                handle.remove()
            z = [seen[name][1] for name in layers]
            c = f.shape[1] if z else 0
            pulled = [
                torch.autograd.grad(f[:, i].sum(), z, retain_graph=True, create_graph=gradients, materialize_grads=True)
                for i in range(c)
            ]
        columns = zip(*pulled, strict=True)
        signals = {}
        for (name, module), column in zip(layers.items(), columns, strict=True):
            if not self.rowwise and len(seen[name][1]) != len(x):
                need, got = f"every layer must see {len(x)} rows", f"{name} with {len(seen[name][1])} lines"
                raise MisalignedRowsError(sentence("LayerSignals", need, got, "Use LinearizedLaplace."))
            a, g = _arranged(module, seen[name][0], torch.stack(column, 1))
            if self.rowwise and isinstance(module, _Norm):  # all places are of the one row
                a, g = a.transpose(0, 1).flatten(1)[None], g.permute(1, 2, 0, 3).flatten(2)[None]
            elif self.rowwise:
                a, g = a.flatten(0, 1)[None], g.transpose(0, 1).flatten(1, 2)[None]
            signals[name] = Signal(module, a if gradients else a.detach(), g, *self._flags(name))
        return f if gradients else f.detach(), signals

    def _block(self, x: Tensor, layers: dict[str, nn.Module], diagonal: bool, gradients: bool) -> Tensor:
        f, signals = self._signals(x, layers, gradients)
        total = torch.zeros_like(f) if diagonal else f.new_zeros(*f.shape, f.shape[1])
        for signal in signals.values():
            total = total + signal.kernel(diagonal)
        for j in self._other_jacobians(x, self._names_of(layers)):
            total = total + (j.square().sum(2) if diagonal else j @ j.mT)
        return total

    def _other_jacobians(self, x: Tensor, known: set[str]) -> list[Tensor]:  # -> (n, c, p_i) each
        rest = {name: p.detach() for name, p in self.counted.items() if name not in known}
        if not rest:
            return []

        def outputs(others: dict[str, Tensor], row: Tensor) -> Tensor:
            return flat_logits(functional_call(self.network, others, (row[None],)))[0]

        with one_thread_at_a_time():
            rows = vmap(jacrev(outputs), in_dims=(None, 0))(rest, x)
        return [j.reshape(*j.shape[:2], -1) for j in rows.values()]


def _known(module: nn.Module) -> bool:
    if type(module) is nn.Conv2d:
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module) in (nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm)


def _recorder(name: str, seen: dict[str, tuple[Tensor, Tensor]]) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    def record(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen[name] = (arguments[0], output)
        return output.clone()  # an activation in place must not change what was noted

    return record


def _arranged(module: nn.Module, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and derivatives in the shapes of :class:`Signal`; g comes as ``(n, c, *output)``."""
    if isinstance(module, nn.Conv2d):
        padding, stride, dilation = module.padding, module.stride, module.dilation
        patches = F.unfold(a, module.kernel_size, dilation=dilation, padding=padding, stride=stride)  # type: ignore[arg-type]
        return patches.mT, g.flatten(3).mT
    if isinstance(module, nn.LayerNorm):
        a = F.layer_norm(a, module.normalized_shape, eps=module.eps)
        units = torch.Size(module.normalized_shape).numel()
        return a.reshape(len(a), -1, units).mT, g.reshape(*g.shape[:2], -1, units).mT
    if isinstance(module, _Norm):
        a = F.batch_norm(a, module.running_mean, module.running_var, eps=module.eps)  # type: ignore[arg-type]
        return a.reshape(*a.shape[:2], -1), g.reshape(*g.shape[:3], -1)
    return a.reshape(len(a), -1, a.shape[-1]), g.reshape(*g.shape[:2], -1, g.shape[-1])
