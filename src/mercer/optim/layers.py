"""What a layer is to an optimizer: a matrix of weights with a column for the bias, and the rows that it multiplies."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks, distributed
from ..signals.layers import find_layers, last_linear, unwrap

LAYER = "layer"  # the part of a weight that is one layer


class Layer:
    r"""A block of weights as :math:`\tilde W`, ``(c, d)``: outputs are :math:`G \tilde W^\top` with rows G of inputs.

    A linear layer or a convolution is one; attention's packed projection is three, with the queries', keys' and
    values' inputs; each weight of a recurrent layer is one.

    Args:
        name: Unique in the model.
        module: The module whose calls show the input.
        weight: The parameter.
        bias: The parameter of the bias where it is trained with the weight, else None.
        read: What G is made of, from a call of the module.
        part: Name of the block in its parameter, for the state.
        block: Rows of weight and bias that belong to it; None for all.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        weight: Tensor,
        bias: Tensor | None,
        read: Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Tensor],
        part: str = LAYER,
        block: slice | None = None,
    ) -> None:
        self.name, self.module, self.read, self.part = name, module, read, part
        self.weight, self.bias = weight, bias
        self.block = slice(None) if block is None else block
        self.outputs = len(weight[self.block])  # c

    def gradients(self) -> tuple[Tensor, Tensor | None]:  # (c, d - 1), (c,)
        """The gradients of weight and bias."""
        assert self.weight.grad is not None
        weight = self.weight.grad[self.block].reshape(self.outputs, -1)
        if self.bias is None:
            return weight, None
        if self.bias.grad is None:
            return weight, torch.zeros_like(self.bias[self.block])
        return weight, self.bias.grad[self.block]

    def rows(self, inputs: Sequence[Tensor], most: int) -> Tensor:  # (n, d)
        """The rows G that weight and bias multiply in these passes, at most about so many of all ranks."""
        most = max(1, most // distributed.world_size())
        return torch.cat([layer_rows(self.module, x, bias=self.bias is not None, most=most) for x in inputs])

    def apply(self, rows: Tensor) -> Tensor:  # (n, d) -> (n, c)
        r"""The outputs :math:`G \tilde W^T`, of a layer whose bias is not ours without it."""
        weight = self.weight[self.block].reshape(self.outputs, -1).to(rows.dtype)
        if self.bias is None:
            return rows @ weight.mT
        return rows[:, :-1] @ weight.mT + self.bias[self.block].to(rows.dtype)


def find_trained_layers(
    where: str, model: nn.Module, parameters: Sequence[Tensor], exclude: Sequence[str], *, last: bool
) -> list[Layer]:
    """The blocks of weights whose inputs can be heard and whose weights are ours and of no second module.

    These are linear layers, 2-d convolutions without groups, the projections of ``nn.MultiheadAttention``, and of
    ``nn.RNN``, ``nn.LSTM`` and ``nn.GRU`` the weights of the first layer's input and of the last layer's state.

    Args:
        where: The optimizer's name, for messages.
        model: The user's model, plain or wrapped.
        parameters: What the optimizer was given.
        exclude: Names of layers, or of modules that hold them, to leave out.
        last: The last linear layer alone.
    """
    root = unwrap(model)
    names = dict(root.named_modules())
    for name in exclude:
        checks.choice(where, "a name in exclude", name, list(names))
    holders = [id(p) for _, p in root.named_parameters(remove_duplicate=False)]
    trained = {id(p) for p in parameters if p.requires_grad}
    ours = {key for key in trained if holders.count(key) == 1}
    only = last_linear(model)[0] if last else None
    layers: list[Layer] = []

    def excluded(name: str) -> bool:
        return any(name == e or name.startswith(f"{e}.") for e in exclude)

    def add(
        name: str,
        module: nn.Module,
        weight: str,
        bias: str | None,
        read: Any,
        *,
        part: str = LAYER,
        block: slice | None = None,
        heard: nn.Module | None = None,
    ) -> None:
        w = module._parameters.get(weight)
        b = None if bias is None else module._parameters.get(bias)
        if w is not None and id(w) in ours:
            b = b if b is not None and id(b) in ours else None
            layers.append(Layer(name, module if heard is None else heard, w, b, read, part, block))

    inside: set[nn.Module] = set()  # linear layers that are never called: their owner uses their weights
    for name, module in names.items():
        if excluded(name) or module in inside or (only is not None and name != only):
            continue
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1):
            add(name, module, "weight", "bias", read_input)
        elif isinstance(module, nn.MultiheadAttention):
            width = module.embed_dim
            for i, part in enumerate(("query", "key", "value")):
                block = slice(i * width, (i + 1) * width)
                read = functools.partial(read_argument, i, part)
                add(f"{name}.{part}", module, "in_proj_weight", "in_proj_bias", read, part=part, block=block)
                add(f"{name}.{part}", module, f"{part[0]}_proj_weight", None, read, part=part)
            inside.add(module.out_proj)
            if not excluded(f"{name}.out_proj"):
                add(f"{name}.out_proj", module.out_proj, "weight", "bias", read_attended, heard=module)
        elif isinstance(module, nn.RNNBase):
            for back, suffix in enumerate(("", "_reverse")[: 1 + module.bidirectional]):
                first, top = f"_l0{suffix}", f"_l{module.num_layers - 1}{suffix}"
                add(f"{name}.ih{first}", module, f"weight_ih{first}", f"bias_ih{first}", read_input)
                read = functools.partial(read_state, bool(back))
                add(f"{name}.hh{top}", module, f"weight_hh{top}", f"bias_hh{top}", read)
    return layers


def find_readout(model: nn.Module) -> str | None:
    """Name of the last linear layer, which makes the logits; None where there is none."""
    attention = find_layers(model, nn.MultiheadAttention).values()
    inside = {module.out_proj for module in attention}
    names = [name for name, module in find_layers(model, nn.Linear).items() if module not in inside]
    return names[-1] if names else None


def read_input(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> Tensor:
    """The first tensor of a call, or of a packed sequence its rows."""
    for value in (*args, *named.values()):
        if isinstance(value, Tensor):
            return value
        if isinstance(value, nn.utils.rnn.PackedSequence):
            return value.data
    raise TypeError(checks.sentence("optim", f"{type(module).__name__} must be called with a tensor", "none"))


def read_argument(
    i: int, name: str, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any
) -> Tensor:
    """The argument of this place or this name."""
    x: Tensor = args[i] if len(args) > i else named[name]
    return x


def read_attended(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> Tensor:
    """What attention's last projection is given: the output of the same attention with the identity in its place.

    ``nn.MultiheadAttention`` never calls ``out_proj``, it hands the weight on. A second forward pass without dropout is
    the price, in the few steps in which moments are renewed.
    """
    assert isinstance(module, nn.MultiheadAttention)
    twin = copy.copy(module)  # shares the parameters
    weight = module.out_proj.weight
    identity = torch.eye(len(weight), device=weight.device, dtype=weight.dtype)
    twin.__dict__["out_proj"] = types.SimpleNamespace(weight=identity, bias=None)
    twin.dropout = 0.0  # draws no random numbers
    attended: Tensor = twin.forward(*args, **named)[0]
    return attended


def read_state(backwards: bool, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> Tensor:
    """The states that the last recurrent layer went on from; without the first, which is not in the output."""
    assert isinstance(module, nn.RNNBase)
    states = output[0].data if isinstance(output[0], nn.utils.rnn.PackedSequence) else output[0]
    width = states.shape[-1] // (1 + module.bidirectional)
    states = states[..., width:] if backwards else states[..., :width]
    if states.ndim == 3 and states.shape[module.batch_first] > 1:
        begin = 1 if backwards else 0
        states = states.narrow(int(module.batch_first), begin, states.shape[module.batch_first] - 1)
    return states


def layer_rows(module: nn.Module, x: Tensor, *, bias: bool, most: int | None = None) -> Tensor:
    r"""The rows G that a layer's weight multiplies, :math:`(n, d)`: outputs are :math:`G \tilde W^\top`.

    Args:
        module: The layer; of a 2-d convolution a row is one patch.
        x: Its input.
        bias: Add a column of ones for the bias.
        most: Take every second, third, ... token or patch, until about so many rows are left; the same places in
            every sample, so that the order of samples does not matter.
    """
    if isinstance(module, nn.Conv2d):
        x = _patches(module, x, most)
    elif x.ndim > 2 and most is not None:
        places = x.reshape(len(x), -1, x.shape[-1])
        x = places[:, :: min(places.shape[1], max(1, len(places) * places.shape[1] // most))]
    g = x.reshape(-1, x.shape[-1])  # (n, d)
    return torch.cat((g, g.new_ones(len(g), 1)), 1) if bias else g


def _patches(module: nn.Conv2d, x: Tensor, most: int | None) -> Tensor:  # (n, c, h, w) -> (n, places, d)
    x = x if x.ndim == 4 else x[None]
    around = module._reversed_padding_repeated_twice
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    if any(around):
        x = F.pad(x, around, mode=mode)
    size, dilation = tuple(module.kernel_size), tuple(module.dilation)
    stride = [int(s) for s in module.stride]
    places = len(x) * x.shape[-1] * x.shape[-2] / (stride[0] * stride[1])
    wider = 1 if most is None else max(1, round((places / most) ** 0.5))
    down, across = stride[0] * wider, stride[1] * wider
    if size == (1, 1):  # a patch is a pixel
        return x[:, :, ::down, ::across].flatten(2).mT
    return F.unfold(x, size, dilation, 0, (down, across)).mT
