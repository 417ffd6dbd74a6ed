r"""A network's layers, row by row: their inputs a and the derivatives g = df / dz of all outputs f.

A linear layer with inputs :math:`a_t` and :math:`g_{ct} = \partial f_c / \partial z_t` has the Jacobian
:math:`\sum_t g_{ct} a_t^\top`; a convolution is the same over its patches. So :math:`K(x, x) = J(x) J(x)^\top` and
Kronecker factors need c backward passes for a block of rows, and nothing that grows with classes times weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

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
            parts = []
            if self.weight:
                parts.append((self.a[:, None] * self.g).sum(3))
            if self.bias:
                parts.append(self.g.sum(3))
            return _outer_products(torch.cat(parts, 2), diagonal)
        # K = sum_ts (a_t . a_s) (g_ct . g_ds): t^2 products, or the Jacobian itself where that has fewer numbers.
        (n, t, width), (_, c, _, out) = self.a.shape, self.g.shape
        if t > 1 and c * width * out < t * (width + c * out):
            return _outer_products(self.jacobian().flatten(2), diagonal)  # few weights: the Jacobian is smaller
        inner = self.a.new_zeros(n, t, t)
        if self.weight:
            inner = self.a @ self.a.mT
        inner = inner + float(self.bias)  # the 1 of the bias, times itself
        product = torch.einsum("nts,ncso->ncto", inner, self.g)
        if diagonal:
            return (self.g * product).sum((2, 3))
        return self.g.flatten(2) @ product.flatten(2).mT

    def jacobian(self) -> Tensor:  # -> (n, c, out, in), a last column for the bias
        """The rows' Jacobians over the layer's weights."""
        a = self.with_bias()
        return self.g.mT @ a[:, None]

    def with_bias(self) -> Tensor:  # -> (n, t, in + 1)
        """Inputs with a 1 for the bias, without those of a frozen weight."""
        parts = []
        if self.weight:
            parts.append(self.a)
        if self.bias:
            parts.append(torch.ones_like(self.a[..., :1]))
        return torch.cat(parts, 2)


def _outer_products(j: Tensor, diagonal: bool) -> Tensor:  # (n, c, p) -> (n, c) or (n, c, c)
    """J J^T of each row, or its diagonal."""
    if diagonal:
        return j.square().sum(2)
    return j @ j.mT


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
        names = self._names_of(layers)
        without_layer = {name: p.detach() for name, p in self.counted.items() if name not in names}

        def outputs(theta: dict[str, Tensor], row: Tensor) -> Tensor:
            return flat_logits(functional_call(self.network, theta, (row[None],)))[0]

        # Numbers held for one row: derivatives at every layer, and Jacobians of parameters that are in none.
        width = c * (sum(p.numel() for p in without_layer.values()) + 2 * units)
        if not diagonal:
            width += 2 * c * c
        totals = []
        for part in slices(len(x), block_rows(4 * width * 8, budget=_BUDGET)):
            # The layers' shares of K, from their signals.
            f, signals = self._signals(x[part], layers, gradients)
            total = torch.zeros_like(f)
            if not diagonal:
                total = f.new_zeros(*f.shape, f.shape[1])
            for signal in signals.values():
                total = total + signal.kernel(diagonal)

            # The shares of the other parameters, from their Jacobians.
            if without_layer:
                with one_thread_at_a_time():
                    jacobians = vmap(jacrev(outputs), in_dims=(None, 0))(without_layer, x[part])
                for j in jacobians.values():  # (n, c, *shape)
                    total = total + _outer_products(j.reshape(*j.shape[:2], -1), diagonal)
            totals.append(total)
        return torch.cat(totals)

    def of(self, x: Tensor, *, gradients: bool = False) -> tuple[Tensor, dict[str, Signal], list[str]]:
        """Outputs ``(n, c)``, a signal for each layer that has one, and the parameters that are in none of them."""
        layers, _, _ = self._look(x)
        without_layer = sorted(self.counted.keys() - self._names_of(layers))
        if not self.rowwise:
            return *self._signals(x, layers, gradients), without_layer

        # Each row alone, put together afterwards.
        rows = [self._signals(row, layers, gradients) for row in x.split(1)]
        signals = {}
        for name, first in rows[0][1].items():
            of_layer = [signals_of_row[name] for _, signals_of_row in rows]
            if len({signal.a.shape for signal in of_layer}) > 1:
                need = "a layer must see as much of every row"
                raise MisalignedRowsError(sentence("LayerSignals", need, f"{name} that does not"))
            a, g = torch.cat([signal.a for signal in of_layer]), torch.cat([signal.g for signal in of_layer])
            signals[name] = dataclasses.replace(first, a=a, g=g)
        return torch.cat([f for f, _ in rows]), signals, without_layer

    def _look(self, x: Tensor) -> tuple[dict[str, nn.Module], int, int]:
        """Layers with a signal: their outputs' sizes for one row summed, and the number of outputs."""
        # Run one row, and note the size of each layer's output as often as it runs.
        candidates = {n: m for n, m in self.network.named_modules() if _has_signal(m) and any(self._flags(n))}
        sizes: dict[str, list[int]] = {name: [] for name in candidates}
        handles = [
            module.register_forward_hook(lambda _m, _i, out, name=name: sizes[name].append(out[:1].numel()))
            for name, module in candidates.items()
        ]
        with torch.no_grad():
            c = flat_logits(self.network(x[:1])).shape[1]
        for handle in handles:
            handle.remove()

        # A layer that runs twice, or shares a parameter with another, has no signal of its own.
        ids = [id(p) for m in self.network.modules() for p in m.parameters(recurse=False)]
        layers = {
            name: module
            for name, module in candidates.items()
            if len(sizes[name]) == 1 and all(ids.count(id(p)) == 1 for p in module.parameters(recurse=False))
        }
        return layers, sum(sizes[name][0] for name in layers), c

    def _flags(self, name: str) -> tuple[bool, bool]:
        """Whether a layer's weight counts, and whether its bias does."""
        return f"{name}.weight".lstrip(".") in self.counted, f"{name}.bias".lstrip(".") in self.counted

    def _names_of(self, layers: Mapping[str, nn.Module]) -> set[str]:
        return {f"{name}.{kind}".lstrip(".") for name in layers for kind in ("weight", "bias")}

    def _signals(self, x: Tensor, layers: dict[str, nn.Module], gradients: bool) -> tuple[Tensor, dict[str, Signal]]:
        # One forward pass that notes each layer's input and output, then one backward pass for each of the c outputs.
        calls: dict[str, tuple[Tensor, Tensor]] = {}

        def record(name: str, _: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
            calls[name] = (arguments[0], output)
            return output.clone()  # an activation in place must not change what was noted

        handles = [module.register_forward_hook(partial(record, name)) for name, module in layers.items()]
        with torch.enable_grad():
            f = flat_logits(self.network(x))
            for handle in handles:
                handle.remove()
            z = [calls[name][1] for name in layers]
            c = 0
            if z:
                c = f.shape[1]
            pulled = [
                torch.autograd.grad(f[:, i].sum(), z, retain_graph=True, create_graph=gradients, materialize_grads=True)
                for i in range(c)
            ]

        # Inputs and derivatives of each layer in the shapes of a signal.
        columns = zip(*pulled, strict=True)
        signals = {}
        for (name, module), column in zip(layers.items(), columns, strict=True):
            inputs, output = calls[name]
            if not self.rowwise and len(output) != len(x):
                need, got = f"every layer must see {len(x)} rows", f"{name} with {len(output)} lines"
                raise MisalignedRowsError(sentence("LayerSignals", need, got, "Use LinearizedLaplace."))
            a, g = _arrange(module, inputs, torch.stack(column, 1))
            if self.rowwise and isinstance(module, _Norm):  # all places are of the one row
                a, g = a.transpose(0, 1).flatten(1)[None], g.permute(1, 2, 0, 3).flatten(2)[None]
            elif self.rowwise:
                a, g = a.flatten(0, 1)[None], g.transpose(0, 1).flatten(1, 2)[None]
            if not gradients:
                a = a.detach()
            signals[name] = Signal(module, a, g, *self._flags(name))
        if not gradients:
            f = f.detach()
        return f, signals


def _has_signal(module: nn.Module) -> bool:
    """Whether a signal can say this layer's part: linear layers, plain convolutions, normalisations."""
    if type(module) is nn.Conv2d:
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module) in (nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm)


def _arrange(module: nn.Module, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and derivatives in the shapes of :class:`Signal`; g comes as ``(n, c, *output)``."""
    if isinstance(module, nn.Conv2d):
        padding, stride, dilation = module.padding, module.stride, module.dilation
        # A convolution is a linear layer over its patches.
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
