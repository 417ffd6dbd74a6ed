"""A network's layers as optimizers see them: a matrix of weights, the rows it multiplies, and hooks that hear these."""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from .. import checks, distributed
from ..linalg.torch_internals import leave_uncompiled, mark_for_compiler
from ..signals.layers import as_logits, find_layers, last_linear, unwrap
from .base import CheckedOptimizer

Reader = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Tensor]  # what to keep of a module's call

LAYER = "layer"  # the part of a weight that is one layer


class Layer:
    r"""A block of weights as :math:`\tilde W`, ``(c, d)``: outputs are :math:`G \tilde W^\top` with rows G of inputs.

    A linear layer or a convolution is one; attention's packed projection is three, with the queries', keys' and
    values' inputs; a weight of a recurrent layer is one, with a part for each gate.

    Args:
        name: Unique in the model.
        module: The module whose calls show the input.
        weight: The parameter.
        bias: The parameter of the bias where it is trained with the weight, else None.
        read: What G is made of, from a call of the module.
        part: Name of the block in its parameter, for the state.
        block: Rows of weight and bias that belong to it; None for all.
        parts: Names of equal blocks of rows, one after the other, that have steps of lengths of their own.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        weight: Tensor,
        bias: Tensor | None,
        read: Reader,
        part: str = LAYER,
        block: slice | None = None,
        parts: tuple[str, ...] = (LAYER,),
    ) -> None:
        self.name, self.module, self.read, self.part = name, module, read, part
        self.weight, self.bias = weight, bias
        self.block = block
        self.parts = parts
        self.outputs = len(self.take(weight))  # c

    def take(self, p: Tensor) -> Tensor:
        """The layer's rows of its weight or bias, or of a tensor of that shape."""
        if self.block is None:
            return p
        return p[self.block]

    def gradients(self) -> tuple[Tensor, Tensor | None]:  # (c, d - 1), (c,)
        """The gradients of weight and bias."""
        weight, bias = self.weight.grad, None
        assert weight is not None
        if self.block is not None:
            weight = weight[self.block]
        if weight.ndim != 2:
            weight = weight.reshape(self.outputs, -1)
        if self.bias is not None:
            bias = self.bias.grad
            if bias is None:
                bias = torch.zeros_like(self.bias)
            if self.block is not None:
                bias = bias[self.block]
        return weight, bias

    def targets(self) -> list[Tensor]:
        """The parameters that a step moves: the weight, and the bias if it has a gradient."""
        if self.bias is None or self.bias.grad is None:
            return [self.weight]
        return [self.weight, self.bias]

    def rows(self, inputs: Sequence[Tensor], most: int) -> Tensor:  # (n, d)
        """The rows G that weight and bias multiply in these passes, at most about so many of all ranks."""
        most = max(1, most // distributed.world_size())
        return torch.cat([layer_rows(self.module, x, bias=self.bias is not None, most=most) for x in inputs])

    def apply(self, rows: Tensor) -> Tensor:  # (n, d) -> (n, c)
        r"""The outputs :math:`G \tilde W^T`, of a layer whose bias is not ours without it."""
        weight = self.take(self.weight).reshape(self.outputs, -1).to(rows.dtype)
        if self.bias is None:
            return rows @ weight.mT
        return rows[:, :-1] @ weight.mT + self.take(self.bias).to(rows.dtype)


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

    # A weight that two modules share has rows of both: no moment of one of them is right for it.
    holders = [id(p) for _, p in root.named_parameters(remove_duplicate=False)]
    trained = {id(p) for p in parameters if p.requires_grad}
    ours = {key for key in trained if holders.count(key) == 1}
    layers: list[Layer] = []

    def is_excluded(name: str) -> bool:
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
        parts: tuple[str, ...] = (LAYER,),
        heard: nn.Module | None = None,
    ) -> None:
        w = module._parameters.get(weight)
        b = None
        if bias is not None:
            b = module._parameters.get(bias)
        if id(b) not in ours:
            b = None  # trained apart, or not at all
        if w is not None and id(w) in ours:
            layers.append(Layer(name, heard or module, w, b, read, part, block, parts))

    if last:
        name = last_linear(model)[0]
        names = {name: names[name]}
    never_called: set[nn.Module] = set()  # linear layers whose owner uses their weights
    for name, module in names.items():  # an attention comes before its out_proj
        if is_excluded(name) or module in never_called:
            continue
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1):
            add(name, module, "weight", "bias", read_input)
        elif isinstance(module, nn.MultiheadAttention):
            # A packed weight is three layers, with the inputs of queries, keys and values; or there are three weights.
            width = module.embed_dim
            for i, part in enumerate(("query", "key", "value")):
                block = slice(i * width, (i + 1) * width)
                read = functools.partial(read_argument, i, part)
                add(f"{name}.{part}", module, "in_proj_weight", "in_proj_bias", read, part=part, block=block)
                add(f"{name}.{part}", module, f"{part[0]}_proj_weight", None, read, part=part)
            never_called.add(module.out_proj)
            if not is_excluded(f"{name}.out_proj"):
                add(f"{name}.out_proj", module.out_proj, "weight", "bias", read_attended, heard=module)
        elif isinstance(module, nn.RNNBase):
            # The input of the first layer and the states of the last are seen; what is between them is not. Each gate
            # is a part, because their gradients are of very different sizes.
            gates = {"LSTM": ("input", "forget", "cell", "output"), "GRU": ("reset", "update", "new")}
            parts = gates.get(module.mode, (LAYER,))
            for back, suffix in enumerate(("", "_reverse")[: 1 + module.bidirectional]):
                first, top = f"ih_l0{suffix}", f"hh_l{module.num_layers - 1}{suffix}"
                read_states = functools.partial(read_state, bool(back))
                for kind, reader in ((first, read_input), (top, read_states)):
                    add(f"{name}.{kind}", module, f"weight_{kind}", f"bias_{kind}", reader, parts=parts)
    return layers


def find_readout(model: nn.Module) -> str | None:
    """Name of the last linear layer, which makes the logits; None where there is none."""
    attention = find_layers(model, nn.MultiheadAttention).values()
    never_called = {module.out_proj for module in attention}
    names = [name for name, module in find_layers(model, nn.Linear).items() if module not in never_called]
    if not names:
        return None
    return names[-1]


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
    x: Tensor
    if len(args) > i:
        x = args[i]
    else:
        x = named[name]
    return x


def read_attended(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> Tensor:
    """The input of attention's last projection: the output of the same attention with the identity in its place.

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
    states: Tensor = output[0]
    if isinstance(output[0], nn.utils.rnn.PackedSequence):
        states = output[0].data
    # Both directions stand side by side.
    width = states.shape[-1] // (1 + module.bidirectional)
    if backwards:
        states = states[..., width:]
    else:
        states = states[..., :width]
    if states.ndim == 3 and states.shape[module.batch_first] > 1:
        # No step goes on from the last state forwards, or from the first backwards.
        states = states.narrow(int(module.batch_first), int(backwards), states.shape[module.batch_first] - 1)
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
        # Pad as the layer does, then cut patches; a stride so many times as wide leaves about ``most`` of them.
        if x.ndim == 3:
            x = x[None]  # (n, c, h, w)
        margins = module._reversed_padding_repeated_twice
        if any(margins):
            mode: str = module.padding_mode
            if mode == "zeros":
                mode = "constant"
            x = F.pad(x, margins, mode=mode)
        stride = [int(s) for s in module.stride]
        if most is not None:
            places = len(x) * x.shape[-1] * x.shape[-2] / (stride[0] * stride[1])
            wider = max(1, round((places / most) ** 0.5))
            stride = [s * wider for s in stride]
        size = tuple(module.kernel_size)
        if size == (1, 1):  # a patch is a pixel
            x = x[:, :, :: stride[0], :: stride[1]].flatten(2).mT
        else:
            x = F.unfold(x, size, tuple(module.dilation), 0, tuple(stride)).mT  # (n, places, d)
    elif x.ndim > 2 and most is not None:
        # The same tokens of every sample, about ``most`` of all.
        tokens = x.reshape(len(x), -1, x.shape[-1])
        x = tokens[:, :: min(tokens.shape[1], max(1, len(tokens) * tokens.shape[1] // most))]
    g = x.reshape(-1, x.shape[-1])  # (n, d)
    if bias:
        g = torch.cat((g, g.new_ones(len(g), 1)), 1)
    return g


class Recorder:
    """Forward hooks that keep what a module was given once a gradient has reached its output.

    A pass that is never differentiated (an evaluation) leaves nothing, a pass recomputed by checkpointing counts once,
    and several passes before a step (accumulation), or several calls in one pass, are all kept. The model's hooks refer
    to the recorder weakly: they go when it goes, and no copy or pickle of the model holds them or what they have seen.
    A copy of the recorder listens to its own copy of the model.

    Args:
        model: The user's model, plain or wrapped.
        readers: A module and what to keep of its calls, by name.
    """

    def __init__(self, model: nn.Module, readers: Mapping[str, tuple[nn.Module, Reader]]) -> None:
        self._root = unwrap(model)
        self._readers = dict(readers)
        self._closed = False
        self._start_empty()
        self.listen(self._readers)

    def _start_empty(self) -> None:
        self.inputs: dict[str, list[Tensor]] = {name: [] for name in self._readers}
        self._heard: frozenset[str] = frozenset()
        self._handles: list[RemovableHandle] = []
        self._marks: list[tuple[Tensor, set[str]]] = []  # the attributes that a mark for the compiler consists of
        weakref.finalize(self, _remove, self._handles, self._marks)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("inputs", "_handles", "_marks")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        names = self._heard
        self._start_empty()
        self.listen(names)

    def listen(self, names: Collection[str]) -> None:
        """Hear these readers' modules from the next pass on, and no others: hooks cost time, so none stay in vain.

        Compiled code does not look for hooks that came after it, but it does look for marks on parameters. So these
        are marked as long as there are hooks: torch then compiles the model once more, with the hooks. All modules
        have hooks, or none: otherwise there would be code for every choice of them.
        """
        self._heard = frozenset(names)
        if self._closed:
            self._heard = frozenset()
        if not self._heard:
            _remove(self._handles, self._marks)
        elif not self._handles:
            for name, (module, _) in self._readers.items():
                handle = module.register_forward_hook(_WeakHook(self, "_see", name), with_kwargs=True)
                self._handles.append(handle)
                _leave_out_of_copies(module, handle.id)
            self._marks.extend((p, mark_for_compiler(p)) for p in self._root.parameters())

    def clear(self) -> None:
        """Forget what was seen."""
        for inputs in self.inputs.values():
            inputs.clear()

    def close(self) -> None:
        """Take the hooks off the model for good."""
        self._closed = True
        self.listen(())
        self.clear()

    def _see(self, name: str, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        if name in self._heard and torch.is_grad_enabled():
            result = output
            while isinstance(result, tuple | list):  # of attention, recurrent layers and packed sequences
                result = result[0]
            result = as_logits(result)
            if result.requires_grad:
                # The input is kept when a gradient comes back: an evaluation leaves nothing, and a pass that
                # checkpointing runs again counts once.
                with torch.no_grad():
                    x = self._readers[name][1](module, args, named, output).detach()
                result.register_hook(_WeakHook(self, "_keep", name, x))

    def _keep(self, name: str, x: Tensor, gradient: Tensor) -> None:
        self.inputs[name].append(x)


class _WeakHook:
    """Calls a method of a recorder for as long as there is one."""

    def __init__(self, recorder: Recorder, method: str, *args: Any) -> None:
        self._recorder = weakref.ref(recorder)
        self._method = method
        self._args = args

    @leave_uncompiled
    def __call__(self, *args: Any) -> None:
        recorder = self._recorder()
        if recorder is not None:
            getattr(recorder, self._method)(*self._args, *args)


def _remove(handles: list[RemovableHandle], marks: list[tuple[Tensor, set[str]]]) -> None:
    """Take hooks off their modules and marks off their parameters."""
    for handle in handles:
        handle.remove()
    handles.clear()
    for p, attributes in marks:
        for name in attributes:
            vars(p).pop(name, None)
    marks.clear()


def _leave_out_of_copies(module: nn.Module, key: int) -> None:
    """Keep the hook of this key out of every copy and pickle of the module.

    ``copy.deepcopy`` and ``pickle`` ask an object itself how it is copied. torch keeps hooks in ordered dictionaries,
    which may have attributes, and which cannot be replaced: the handles of other hooks point to them. A hook that
    copied into something harmless would still stay in the copy.
    """
    for kind in ("_forward_hooks", "_forward_hooks_with_kwargs"):
        hooks = getattr(module, kind)
        if "ours" not in vars(hooks):
            list_others = functools.partial(_list_other_hooks, weakref.ref(hooks))
            hooks.ours = set()
            hooks.__deepcopy__ = lambda memo, others=list_others: copy.deepcopy(others(), memo)
            hooks.__reduce_ex__ = lambda _, others=list_others: (OrderedDict, (), None, None, iter(others().items()))
        hooks.ours.add(key)


def _list_other_hooks(reference: weakref.ref[Any]) -> OrderedDict[int, Any]:
    """The hooks of a dictionary that are not a recorder's."""
    hooks = reference()
    assert hooks is not None  # it is asked by itself
    return OrderedDict((key, hook) for key, hook in hooks.items() if key not in hooks.ours)


class ListeningOptimizer(CheckedOptimizer):
    """An optimizer with hooks on a model; call `listen_to` once the groups are set.

    The hooks go with `close`, or with the optimizer. They are in no copy or pickle of the model.
    """

    _recorder: Recorder
    remaining_steps = "SGD"  # how parameters without a layer are moved, for messages

    def listen_to(self, model: nn.Module, readers: Mapping[str, tuple[nn.Module, Reader]]) -> None:
        """Record what these readers see of their modules: see :class:`Recorder`."""
        self._recorder = Recorder(model, readers)
        self._warned: set[str] = set()

    def choose_layers(self, model: nn.Module, layers: str, exclude: Sequence[str]) -> list[Layer]:
        """The layers that can be preconditioned and whose weights are ours: all, or the last linear one."""
        where = type(self).__name__
        checks.choice(where, "layers", layers, ("all", "last"))
        trained = find_trained_layers(where, model, self.parameters, exclude, last=layers == "last")
        if not trained:
            text = "params hold no weight of a linear, convolutional, attention or recurrent layer of model"
            checks.warn(where, f"{text}; all take {self.remaining_steps} steps.")
        return trained

    def warn_unheard(self, layers: Sequence[Layer]) -> None:
        """Say once of each layer that it has a gradient, and that nobody heard where the gradient came from."""
        names = [a.name for a in layers if a.name not in self._warned and bool(a.gradients()[0].any())]
        if names:
            self._warned.update(names)
            which = ", ".join(map(repr, names))
            subject = f"layers {which} have"
            if len(names) == 1:
                subject = f"layer {which} has"
            effect = f"the steps are {self.remaining_steps}'s, or use what earlier batches gave"
            fix = "Call each layer as a module, not through its weight; if the model was compiled, call "
            fix += f"torch.compiler.reset() once; or leave them out with exclude=[{which}]."
            checks.warn(type(self).__name__, f"{subject} a gradient but no recorded input; {effect}. {fix}")

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and the inputs that belong to them."""
        super().zero_grad(set_to_none)
        self._recorder.clear()

    def close(self) -> None:
        """Take the hooks off the model."""
        self._recorder.close()
