r"""The tangent kernel of a row with itself, :math:`K(x, x) = J(x) J(x)^\top`, without J of linear layers.

A linear layer with inputs :math:`a_t` and output derivatives :math:`g_{ct} = \partial f_c / \partial z_t` adds
:math:`\sum_{ts} (\langle a_t, a_s \rangle + 1) \langle g_{ct}, g_{c's} \rangle` (the 1 for its bias). What is held
grows with classes times units, never with classes times weights. Other layers go by their Jacobians.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from ..checks import sentence
from ..kernels.network import evaluating, in_dtype
from ..linalg import block_rows, slices
from ..modules import as_logits, trainable

_BUDGET = 64 * 2**20


class PriorVariance:
    r""":math:`K(x, x)` of a network's rows, ``(n, c, c)``, or its diagonal, ``(n, c)``.

    Args:
        model: The network; parameters that require grad count.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._own = trainable(model)

    def __call__(self, x: Tensor, *, diagonal: bool) -> Tensor:  # (n, ...) -> (n, c) or (n, c, c)
        """Some rows at a time."""
        linear, shapes, c = self._look(x)
        rest = sum(p.numel() for name, p in self._own.items() if name not in self._weights(linear))
        units = sum(shape.numel() for shape in shapes.values())
        width = c * (rest + 2 * units) + (0 if diagonal else 2 * c * c)
        rows = block_rows(4 * width * 8, budget=_BUDGET)
        return torch.cat([self._block(x[part], linear, shapes, diagonal) for part in slices(len(x), rows)])

    def _look(self, x: Tensor) -> tuple[dict[str, nn.Linear], dict[str, torch.Size], int]:
        """Linear layers that run once and own their weights, the shapes of their outputs, and the number of outputs."""
        names = {name: m for name, m in self.model.named_modules() if isinstance(m, nn.Linear)}
        calls: dict[str, list[torch.Size]] = {name: [] for name in names}
        handles = [
            module.register_forward_hook(lambda _m, _i, out, name=name: calls[name].append(out.shape[1:]))
            for name, module in names.items()
        ]
        try:
            with torch.no_grad():
                output = self.outputs(x[:1])
        finally:
            for handle in handles:
                handle.remove()
        tensors = [id(p) for module in names.values() for p in module.parameters()]
        linear = {
            name: module
            for name, module in names.items()
            if len(calls[name]) == 1
            and len(calls[name][0]) <= 2
            and f"{name}.weight".lstrip(".") in self._own
            and all(tensors.count(id(p)) == 1 for p in module.parameters())
        }
        return linear, {name: calls[name][0] for name in linear}, output.shape[1]

    def _weights(self, linear: dict[str, nn.Linear]) -> set[str]:
        return {f"{name}.{kind}".lstrip(".") for name in linear for kind in ("weight", "bias")}

    def _block(self, x: Tensor, linear: dict[str, nn.Linear], shapes: dict[str, torch.Size], diagonal: bool) -> Tensor:
        (signals, others), seen = self._derivatives(x, linear, shapes)
        total: Any = 0
        for name, module in linear.items():
            bias = module.bias is not None and f"{name}.bias".lstrip(".") in self._own
            total = total + _linear_part(seen[name], signals[name], bias, diagonal)
        for part in others.values():
            j = part.flatten(2)  # (n, c, p)
            total = total + (j.square().sum(2) if diagonal else j @ j.mT)
        kernel: Tensor = total
        return kernel.detach()

    def linear_signals(self, x: Tensor) -> dict[str, tuple[nn.Linear, Tensor, Tensor]]:
        """For each linear layer: itself, its inputs ``(n, in)`` and the outputs' derivatives ``(n, c, out)``.

        Raises:
            ValueError: Other layers hold trained parameters too, or a linear one runs more than once a row.
        """
        linear, shapes, _ = self._look(x)
        others = sorted(set(self._own) - self._weights(linear))
        if others or any(len(shape) > 1 for shape in shapes.values()):
            fix = "Freeze other layers with requires_grad_(False)."
            need = "trained parameters must belong to linear layers that run once a row"
            raise ValueError(sentence("KroneckerLaplace", need, ", ".join(others[:4]) or "a layer over sequences", fix))
        (signals, _), seen = self._derivatives(x, linear, shapes)
        return {name: (module, seen[name].detach(), signals[name].detach()) for name, module in linear.items()}

    def _derivatives(self, x: Tensor, linear: dict[str, nn.Linear], shapes: dict[str, torch.Size]) -> Any:
        own = self._weights(linear)
        dtype = x.dtype if x.is_floating_point() else next(iter(self._own.values())).dtype
        rest = in_dtype({name: p for name, p in self._own.items() if name not in own}, dtype)
        zeros = {name: torch.zeros(shape, dtype=dtype, device=x.device) for name, shape in shapes.items()}
        inputs: dict[str, Tensor] = {}

        def outputs(
            shift: dict[str, Tensor], others: dict[str, Tensor], row: Tensor
        ) -> tuple[Tensor, dict[str, Tensor]]:
            handles = [
                module.register_forward_hook(_Shift(name, shift[name], inputs)) for name, module in linear.items()
            ]
            try:
                found = self.outputs(row[None], others)[0]
            finally:
                for handle in handles:
                    handle.remove()
            return found, dict(inputs)

        jacobian = vmap(jacrev(outputs, argnums=(0, 1), has_aux=True), in_dims=(None, None, 0))
        return jacobian(zeros, rest, x)

    def outputs(self, x: Tensor, others: Mapping[str, Tensor] = MappingProxyType({})) -> Tensor:  # (n, ...) -> (n, c)
        """The network's outputs in ``eval`` mode, with some weights replaced."""
        dtype = x.dtype if x.is_floating_point() else next(iter(self._own.values())).dtype
        state = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        fixed = in_dtype({k: v for k, v in state.items() if k not in others}, dtype)
        with evaluating(self.model):
            out = as_logits(functional_call(self.model, {**fixed, **others}, (x,)))
        return out.reshape(len(out), -1)


class _Shift:
    """Adds a variable to a layer's output and notes its input."""

    def __init__(self, name: str, shift: Tensor, inputs: dict[str, Tensor]) -> None:
        self.name, self.shift, self.inputs = name, shift, inputs

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        self.inputs[self.name] = args[0][0]
        return output + self.shift


def _linear_part(a: Tensor, g: Tensor, bias: bool, diagonal: bool) -> Tensor:
    """One linear layer's share: inputs ``(n, [t,] in)``, output derivatives ``(n, c, [t,] out)``."""
    if a.ndim == 2:
        scale = a.square().sum(1) + float(bias)  # (n,)
        return scale[:, None] * g.square().sum(2) if diagonal else scale[:, None, None] * (g @ g.mT)
    inner = a @ a.mT + float(bias)  # (n, t, t)
    moved = torch.einsum("nts,ncso->ncto", inner, g)
    if diagonal:
        return (g * moved).sum((2, 3))
    return g.flatten(2) @ moved.flatten(2).mT
