"""Read a torch model as a list of layer rules, by running it once on a stand-in for its input.

The stand-in answers every torch function by recording the rule of that layer. Functions of the input alone, before the
first layer with weights, are recorded as they are. Whatever has no rule is refused, by the layer's name.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import checks
from .gaussian_moments import GELU, Activation, Erf, HermiteSeries, LeakyReLU, Wave
from .layer_rules import (
    Activate,
    Affine,
    Combine,
    Embed,
    Enter,
    Normalize,
    Pad,
    Patch,
    Place,
    Pool,
    RawCall,
    Reposition,
    Rule,
)
from .wide_kernel import Step

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
CHANNEL, ALL = "channel", "channel and positions"  # what an axis of a tensor holds; a number: those positions

ReadVariances = Callable[[str, Tensor, Tensor | None, int], tuple[float, float]]  # layer, weight, bias, fan-in


# --- the stand-in and its tape ---------------------------------------------------------------------------------------


class NoLimitError(ValueError):
    """A model, or a part of it, without a known infinite-width limit."""


class Rows(int):
    """The number of rows of the stand-in; stays itself where it is passed on, so that it is not taken for a size."""


@dataclass(frozen=True)
class Wide:
    """Facts about a node with infinitely many channels."""

    axes: tuple[str | int, ...]  # of the tensor, after the rows
    channels: int
    positions: tuple[int, ...]
    terms: tuple[tuple[int, float], ...]  # the node as a weighted sum of others
    gaussian: bool  # whether the limit is a Gaussian process
    has_mean: bool  # whether the mean over channels can differ from 0
    carries: frozenset[int]  # nodes with which it may be correlated

    def shape(self) -> tuple[int, ...]:
        """The tensor's shape after the rows."""
        sizes: dict[str | int, int] = dict(enumerate(self.positions))
        sizes |= {CHANNEL: self.channels, ALL: self.channels * math.prod(self.positions)}
        return tuple(sizes[axis] for axis in self.axes)


@dataclass
class Tape:
    """The steps recorded so far, and the layers that are running."""

    read_variances: ReadVariances
    rows: int
    steps: list[Step] = field(default_factory=list)
    nodes: dict[int, Wide] = field(default_factory=dict)
    running: list[tuple[str, nn.Module]] = field(default_factory=list)
    used: dict[int, tuple[str, Tensor]] = field(default_factory=dict)  # weights, by identity
    layers: dict[str, tuple[float, float | None]] = field(default_factory=dict)

    def layer(self) -> str:
        """The layer that is running, as the messages call it."""
        if not self.running:
            return "the model's own forward (model)"
        name, module = self.running[-1]
        if not name:
            return f"the model's own forward ({type(module).__name__})"
        return f"layer {name!r} ({type(module).__name__})"

    def refuse(self, need: str, got: str, fix: str = "") -> NoLimitError:
        """The error that names the layer."""
        return NoLimitError(checks.sentence("infinite_width", f"{self.layer()} {need}", got, fix))

    def add(self, rule: Rule, inputs: tuple[int, ...], positions: tuple[int, ...] = ()) -> int:
        """Record a step; its node."""
        self.steps.append(Step(rule, inputs, positions))
        return len(self.steps)

    def source(self, rule: Rule, inputs: tuple[int, ...], wide: Wide, *, fresh: bool) -> Traced:
        """Record a step with infinitely many channels; ``fresh`` weights make it uncorrelated with all before."""
        node = self.add(rule, inputs, wide.positions)
        carries = frozenset([node])
        if not fresh:
            carries |= wide.carries
        self.nodes[node] = replace(wide, terms=((node, 1.0),), carries=carries)
        return Traced(self, node, wide=self.nodes[node])


def _record_operator(function: Any) -> Callable[[Any, Any], Any]:
    return lambda tensor, other: call(function, (tensor, other), {})


class Traced:
    """Stands in for a tensor: of the input alone (it has a ``value``), or of infinitely many channels (``wide``)."""

    def __init__(self, tape: Tape, node: int, *, value: Tensor | None = None, wide: Wide | None = None) -> None:
        self.tape, self.node, self.value, self.wide = tape, node, value, wide

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(function, tuple(args), dict(kwargs or {}))

    @property
    def shape(self) -> tuple[int, ...]:
        """The same as a tensor's."""
        if self.wide is not None:
            return Rows(self.tape.rows), *self.wide.shape()
        assert self.value is not None
        sizes = tuple(self.value.shape)
        if sizes and sizes[0] == self.tape.rows:
            return Rows(sizes[0]), *sizes[1:]
        return sizes

    @property
    def ndim(self) -> int:
        """The same as a tensor's."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The same as a tensor's."""
        if self.value is None:
            return torch.get_default_dtype()
        return self.value.dtype

    @property
    def device(self) -> torch.device:
        """The same as a tensor's."""
        if self.value is None:
            return torch.device("cpu")
        return self.value.device

    def dim(self) -> int:
        """The same as a tensor's."""
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """The same as a tensor's."""
        if dim is None:
            return self.shape
        return self.shape[dim]

    def is_floating_point(self) -> bool:
        """The same as a tensor's."""
        return self.dtype.is_floating_point

    def __getattr__(self, name: str) -> Any:
        method = getattr(Tensor, name, None)
        if name.startswith("_") or not callable(method):
            raise AttributeError(name)
        return lambda *args, **kwargs: call(method, (self, *args), kwargs)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Any:
        return self * -1.0

    __getitem__ = _record_operator(Tensor.__getitem__)
    __add__ = __radd__ = __iadd__ = _record_operator(torch.add)
    __sub__ = _record_operator(torch.sub)
    __mul__ = __rmul__ = __imul__ = _record_operator(torch.mul)
    __truediv__ = _record_operator(torch.div)
    __pow__ = _record_operator(torch.pow)
    __matmul__ = _record_operator(torch.matmul)

    def __bool__(self) -> bool:
        raise self.tape.refuse("must not branch on values", "an if on a tensor", "Branch on shapes only.")

    def __len__(self) -> int:
        return self.shape[0]


# --- running the model ------------------------------------------------------------------------------------------------


def record(
    model: nn.Module, example: Tensor, read_variances: ReadVariances
) -> tuple[list[Step], dict[str, tuple[float, float | None]]]:
    """The steps of a model of rows like the example's, and the variances of its layers by name.

    Args:
        model: A private copy, whose hooks are free to use.
        example: Some rows.
        read_variances: Gives the variances of a layer's weights (times fan-in) and biases.
    """
    # Hooks note which layer is running, for the messages and for the names of the weights. They refuse layers that the
    # functions they call would not name.
    tape = Tape(read_variances, len(example))
    names = {module: name for name, module in model.named_modules()}

    def enter_layer(module: nn.Module, args: Any) -> None:
        tape.running.append((names[module], module))
        if isinstance(module, nn.MultiheadAttention | nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            fix = "Drop the attention, or use EmpiricalNTK(model) or MonteCarloNNGP."
            raise tape.refuse("has no rule", "softmax attention, which has no Gaussian limit as scaled", fix)
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            fix = "Use convolutions, or EmpiricalNTK(model)."
            raise tape.refuse("has no rule", "a recurrent layer, which uses its weights many times", fix)
        if isinstance(module, _BATCH_NORMS) and module.training:
            fix = "Call model.eval() first: a fresh batch norm is then the identity. Or use nn.LayerNorm, nn.GroupNorm."
            raise tape.refuse("has no limit of its own", "batch norm in training mode, which mixes rows", fix)
        wide = any(isinstance(arg, Traced) and arg.wide is not None for arg in args)
        if wide and isinstance(module, nn.MaxPool1d | nn.MaxPool2d | nn.AdaptiveMaxPool1d | nn.AdaptiveMaxPool2d):
            fix = "Use average pooling (nn.AvgPool2d), or a convolution with a stride."
            raise tape.refuse("has no rule", "max pooling, whose limit has no closed form", fix)

    def leave_layer(module: nn.Module, args: Any, output: Any) -> None:
        tape.running.pop()

    handles = []
    for module in names:
        handles.append(module.register_forward_pre_hook(enter_layer))
        handles.append(module.register_forward_hook(leave_layer))

    # Run the model; what fails without a refusal of ours is named by its layer, too.
    try:
        output = model(Traced(tape, 0, value=example))
    except NoLimitError:
        raise
    except Exception as error:
        fix = "Give example=x[:1] with rows as the model takes them; use layers of torch.nn where forward does more."
        raise tape.refuse("must run on a stand-in for its input", f"{type(error).__name__}: {error}", fix) from error
    finally:
        for handle in handles:
            handle.remove()

    # One vector for each row must have come out.
    where = "infinite_width"
    if not isinstance(output, Traced) or output.wide is None:
        need = "model must give one tensor, made by layers with weights"
        got = "none"
        if output is None:
            got = "NoneType"
        raise NoLimitError(checks.sentence(where, need, got))
    if output.wide.positions:
        got, fix = "flattened positions", "Add a linear layer."
        if output.wide.axes != (ALL,):
            got = f"positions {output.wide.positions} beside the channels"
            fix = "Pool or flatten them and add a linear layer."
        raise NoLimitError(checks.sentence(where, "model must give one vector for each row", got, fix))
    node, _ = materialize(output)
    if node != len(tape.steps):  # the answer is the last step's
        tape.add(Combine((1.0,)), (node,))
    return tape.steps, tape.layers


def call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a torch function of stand-ins."""
    # The function goes by its name, which torch.relu, Tensor.relu_ and functional.relu share.
    traced = [value for value in _flat((args, kwargs)) if isinstance(value, Traced)]
    tape, name = traced[0].tape, str(getattr(function, "__name__", function)).rstrip("_")
    if name in ("size", "dim", "is_floating_point"):
        return getattr(traced[0], name)(*args[1:], **kwargs)
    if name in IDENTITIES:
        return traced[0]
    if name in LAYERS:
        return LAYERS[name](tape, *args, **kwargs)
    # Before the first layer with weights every function runs as it is; behind it only those with a rule.
    if all(t.wide is None for t in traced):
        return _call_raw(tape, function, name, args, kwargs, traced)
    if name in RULES:
        return RULES[name](tape, *args, **kwargs)
    if name in ACTIVATIONS:
        return activate(tape, ACTIVATIONS[name], args[0])
    fix = "Use layers of the list in its documentation, or EmpiricalNTK(model) of the finite network."
    raise tape.refuse("has no rule", f"the function {name}", fix)


def _flat(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _call_raw(
    tape: Tape, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], traced: list[Traced]
) -> Traced:
    """Record a function of the input alone."""
    if any(isinstance(value, nn.Parameter) for value in _flat((args, kwargs))):
        if not name.endswith("_norm"):
            fix = "Use nn.Linear or nn.Conv2d for weights."
            raise tape.refuse("has no rule", f"the function {name} of a parameter", fix)
        _norm_scale(tape, kwargs.get("weight"), kwargs.get("bias"))

    # Run it on the example, and keep it with places for its inputs and for the number of rows.
    inputs = {id(t): Place(i) for i, t in reversed(list(enumerate(traced)))}

    def substitute(value: Any, by: Callable[[Traced], Any], rows: Any) -> Any:
        if isinstance(value, Traced):
            return by(value)
        if isinstance(value, Rows):
            return rows
        if isinstance(value, nn.Parameter):
            return value.detach().clone()
        if type(value) in (tuple, list):
            return type(value)(substitute(v, by, rows) for v in value)
        return value

    values = [substitute(part, lambda t: t.value, tape.rows) for part in (args, tuple(kwargs.values()))]
    output = function(*values[0], **dict(zip(kwargs, values[1], strict=True)))
    if not isinstance(output, Tensor):
        raise tape.refuse("must give one tensor", f"{type(output).__name__} of {name}")
    places = [substitute(part, lambda t: inputs[id(t)], Place(-1)) for part in (args, tuple(kwargs.values()))]
    rule = RawCall(function, places[0], dict(zip(kwargs, places[1], strict=True)))
    return Traced(tape, tape.add(rule, tuple(t.node for t in traced)), value=output)


def materialize(t: Traced) -> tuple[int, Wide]:
    """The node that holds the sum of a stand-in's terms, and what is known of it."""
    assert t.wide is not None
    if len(t.wide.terms) == 1 and t.wide.terms[0][1] == 1.0:
        return t.wide.terms[0][0], t.wide
    nodes, weights = zip(*t.wide.terms, strict=True)
    return t.tape.add(Combine(weights), nodes, t.wide.positions), t.wide


def enter(t: Traced, channel: int) -> Traced:
    """The input's rows as a state; ``channel`` is the axis of its channels."""
    assert t.value is not None
    shape = list(t.value.shape)
    channel = channel % len(shape)
    channels = shape.pop(channel)
    positions = tuple(shape[1:])
    axes: list[str | int] = list(range(len(positions)))
    axes.insert(channel - 1, CHANNEL)
    wide = Wide(tuple(axes), channels, positions, (), gaussian=False, has_mean=True, carries=frozenset([0]))
    return t.tape.source(Enter(channel), (t.node,), wide, fresh=False)


# --- layers with weights ----------------------------------------------------------------------------------------------


def _affine(tape: Tape, weight: Tensor, bias: Tensor | None, *, fan_in: int | None = None, **options: Any) -> Affine:
    """The rule of a layer's weights, each used once; an embedding's fan-in is 0."""
    # The layer's name, and that of the parameter where it is not the layer's `weight`.
    name, module = tape.running[-1]
    for parameter, value in module.named_parameters(recurse=False):
        if value is weight and parameter != "weight":
            name = f"{name}.{parameter}".lstrip(".")

    # Weights used twice would correlate what the rules take for independent.
    if id(weight) in tape.used:
        got = f"weights that layer {tape.used[id(weight)][0]!r} uses too"
        raise tape.refuse("must have weights of its own", got, "Give every layer fresh weights, used once.")
    tape.used[id(weight)] = name, weight

    # Variances as the user gives them or as they stand in the weights; frozen parameters are not in the tangent kernel.
    if fan_in is None:
        fan_in = weight.shape[1:].numel()
    weight_var, bias_var = tape.read_variances(name, weight, bias, fan_in)
    tape.layers[name] = weight_var, None
    if bias is not None:
        tape.layers[name] = weight_var, bias_var
    trained = (weight.requires_grad, bias is None or bias.requires_grad)
    return Affine(weight_var, bias_var, trained=trained, **options)


def linear(tape: Tape, input: Any, weight: Tensor, bias: Tensor | None = None) -> Traced:
    """``torch.nn.functional.linear``."""
    if input.wide is None:
        input = enter(input, -1)
    node, wide = materialize(input)
    if wide.axes[-1] not in (CHANNEL, ALL):
        raise tape.refuse("must act on channels", "a linear layer over positions, which stay finite in number")
    if wide.shape()[-1] != weight.shape[1]:
        fix = "Give example=x[:1], as the model takes it."
        raise tape.refuse(f"must have an input of {weight.shape[1]} features", f"{wide.shape()[-1]}", fix)
    flattened = wide.axes[-1] == ALL
    after = replace(wide, channels=weight.shape[0], gaussian=True, has_mean=False)
    if flattened:
        after = replace(after, axes=(CHANNEL,), positions=())
    return tape.source(_affine(tape, weight, bias, flattened=flattened), (node,), after, fresh=True)


def convolution(
    tape: Tape,
    input: Any,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Traced:
    """``torch.nn.functional.conv1d`` and ``conv2d``."""
    count = weight.ndim - 2
    first_layer = input.wide is None
    if first_layer:
        input = enter(input, 1)
    node, wide = materialize(input)
    if wide.axes != (CHANNEL, *range(count)):
        need = f"must act on rows of channels and {count} axes of positions"
        raise tape.refuse(need, f"shape {(None, *wide.shape())}")
    if wide.channels != weight.shape[1] * groups:
        fix = "Give example=x[:1], as the model takes it."
        raise tape.refuse(f"must have an input of {weight.shape[1] * groups} channels", f"{wide.channels}", fix)
    if groups > 1 and first_layer:
        fix = "Use groups=1 in the first layer."
        raise tape.refuse("must see all channels of the input", f"groups={groups}", fix)

    # The window with its padding, and the positions after it, as torch counts them.
    size = tuple(weight.shape[2:])
    stride, dilation = _each(stride, count), _each(dilation, count)
    if padding == "same":
        spread = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
        amounts = tuple((total // 2, total - total // 2) for total in spread)
    elif padding == "valid":
        amounts = ((0, 0),) * count
    else:
        amounts = tuple((p, p) for p in _each(padding, count))
    positions = tuple(
        (p + sum(pad) - d * (k - 1) - 1) // s + 1
        for p, pad, d, k, s in zip(wide.positions, amounts, dilation, size, stride, strict=True)
    )

    # A group of one channel multiplies Gaussians: its output has the covariance, but is not Gaussian.
    gaussian = first_layer or weight.shape[1] > 1
    after = replace(wide, channels=weight.shape[0], positions=positions, gaussian=gaussian, has_mean=False)
    rule = _affine(tape, weight, bias, patch=Patch(size, stride, amounts, dilation))
    return tape.source(rule, (node,), after, fresh=True)


def embedding(tape: Tape, input: Any, weight: Tensor, padding_idx: int | None = None, *args: Any, **_: Any) -> Traced:
    """``torch.nn.functional.embedding``."""
    if not isinstance(input, Traced) or input.value is None or input.value.is_floating_point():
        fix = "Give example=x[:1] with whole numbers."
        raise tape.refuse("must look up tokens of the input", "other numbers", fix)
    rule = _affine(tape, weight, None, fan_in=0)
    positions = tuple(input.value.shape[1:])
    wide = Wide((*range(len(positions)), CHANNEL), weight.shape[1], positions, (), True, False, frozenset())
    return tape.source(Embed(rule.weight_var, padding_idx, rule.trained[0]), (input.node,), wide, fresh=True)


def embedding_bag(
    tape: Tape, input: Any, weight: Tensor, offsets: Any = None, *, mode: str = "mean", **options: Any
) -> Traced:
    """``torch.nn.functional.embedding_bag`` of rows of as many tokens each."""
    if mode == "max" or offsets is not None or options.get("per_sample_weights") is not None:
        got = "mode='max', offsets or weights of samples"
        raise tape.refuse("must sum the vectors of a row's tokens", got, "Give tokens of shape (n, length).")
    if options.get("padding_idx") is not None and mode == "mean":
        raise tape.refuse("must count all tokens", "a mean with padding_idx", "Use mode='sum'.")
    return mean(tape, embedding(tape, input, weight, options.get("padding_idx")), 1, total=mode == "sum")


# --- activations, sums, factors ---------------------------------------------------------------------------------------


def activate(tape: Tape, activation: Activation, input: Traced) -> Traced:
    """An elementwise function."""
    node, wide = materialize(input)
    if not wide.gaussian:
        got = "an activation of what is no Gaussian process: another activation's output, or a sum with one"
        fix = "Put a layer with weights between, as in residual blocks that end in one (pre-activation)."
        raise tape.refuse("must follow a layer with weights", got, fix)
    after = replace(wide, gaussian=False, has_mean=not activation.odd)
    return tape.source(Activate(activation), (node,), after, fresh=False)


def add(tape: Tape, a: Any, b: Any, *, alpha: float = 1.0, **_: Any) -> Traced:
    """Sums of uncorrelated nodes."""
    if alpha != 1:
        b = b * alpha
    # A number can only be 0: a bias belongs to a layer.
    if not isinstance(a, Traced) or not isinstance(b, Traced):
        constant: Any = b
        branch: Traced = a
        if isinstance(b, Traced):
            constant, branch = a, b
        if isinstance(constant, (int, float)) and constant == 0:
            return branch
        fix = "Use a layer's bias."
        raise tape.refuse("must add nodes with infinitely many channels", "a constant or parameter added", fix)

    # Both with the same channels and positions; the input itself enters beside a node that has channels.
    pair = [a, b]
    with_channels = next(t.wide for t in pair if t.wide is not None)
    if tuple(pair[0].shape) != tuple(pair[1].shape):
        got = f"{(None, *pair[0].shape[1:])} and {(None, *pair[1].shape[1:])}"
        raise tape.refuse("must add nodes of one shape", got)
    for place, t in enumerate(pair):
        if t.wide is None:
            if CHANNEL not in with_channels.axes:
                raise tape.refuse("must add nodes with channels of their own", "the input and flattened positions")
            pair[place] = enter(t, 1 + with_channels.axes.index(CHANNEL))
    first, second = pair[0].wide, pair[1].wide
    assert first is not None and second is not None
    if (first.axes, first.positions) != (second.axes, second.positions):
        got = f"axes {first.axes} and {second.axes}, positions {first.positions} and {second.positions}"
        raise tape.refuse("must add nodes with the same channels and positions", got)

    # The sum as a list of weighted nodes, each once; a sum of a node with itself is one term.
    weights: dict[int, float] = {}
    for node, weight in (*first.terms, *second.terms):
        weights[node] = weights.get(node, 0.0) + weight
    terms = tuple((node, weight) for node, weight in weights.items() if weight)
    if not terms:  # a difference of a node and itself
        terms = ((first.terms[0][0], 0.0),)

    # Covariances add only where the nodes are uncorrelated: no shared weights, and at most one mean that is not 0.
    sources = [tape.nodes[node] for node, _ in terms]
    for i, later in enumerate(sources):
        for earlier in sources[:i]:
            if later.carries & earlier.carries:
                got = "a sum of two nodes that share weights, such as x + relu(x)"
                fix = "End one branch in a layer with weights of its own."
                raise tape.refuse("must add uncorrelated nodes", got, fix)
    if sum(source.has_mean for source in sources) > 1:
        fix = "End one branch in a layer with weights."
        raise tape.refuse("must add uncorrelated nodes", "a sum of two activations' outputs", fix)
    wide = replace(
        first,
        terms=terms,
        gaussian=all(source.gaussian for source in sources),
        has_mean=any(source.has_mean for source in sources),
        carries=frozenset().union(*(source.carries for source in sources)),
    )
    return Traced(tape, -1, wide=wide)


def multiply(tape: Tape, a: Any, b: Any, **_: Any) -> Traced:
    """Products with a number."""
    t, factor = a, b
    if not isinstance(a, Traced):
        t, factor = b, a
    if isinstance(factor, Traced):
        fix = "Use sums, or EmpiricalNTK(model) of the finite network."
        raise tape.refuse("must not multiply nodes", "a product of two nodes", fix)
    if isinstance(factor, Tensor):
        factor = _constant(tape, factor, "a factor")
    assert t.wide is not None
    terms = tuple((node, weight * float(factor)) for node, weight in t.wide.terms)
    return Traced(tape, -1, wide=replace(t.wide, terms=terms))


def divide(tape: Tape, a: Any, b: Any, **_: Any) -> Traced:
    """Quotients by a number."""
    if not isinstance(a, Traced) or isinstance(b, Traced):
        raise tape.refuse("must not divide by nodes", "a quotient of nodes", "Use nn.LayerNorm.")
    if isinstance(b, Tensor):
        b = _constant(tape, b, "a divisor")
    return multiply(tape, a, 1 / b)


def _constant(tape: Tape, t: Tensor, what: str) -> float:
    """The one number that a tensor repeats."""
    first = float(t.detach().reshape(-1)[0])
    if not bool((t == first).all()):
        fix = "Use the same number for all channels, as a fresh layer does."
        raise tape.refuse("must scale all channels alike", f"{what} of several values", fix)
    return first


def _norm_scale(tape: Tape, weight: Tensor | None, bias: Tensor | None) -> float:
    """The factor of a normalization whose parameters are as a fresh layer has them."""
    if bias is not None and _constant(tape, bias, "a bias") != 0:
        fix = "Use a fresh layer: its bias is 0."
        raise tape.refuse("must have the bias that it starts with", "a bias that is not 0", fix)
    if weight is None:
        return 1.0
    return _constant(tape, weight, "a weight")


# --- normalizations ---------------------------------------------------------------------------------------------------


def layer_norm(
    tape: Tape, input: Traced, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Traced:
    """``torch.nn.functional.layer_norm``."""
    return _normalize(tape, input, tuple(normalized_shape), _norm_scale(tape, weight, bias), eps, center=True)


def rms_norm(tape: Tape, input: Traced, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Traced:
    """``torch.nn.functional.rms_norm``."""
    if eps is None:
        eps = torch.finfo(torch.get_default_dtype()).eps
    return _normalize(tape, input, tuple(normalized_shape), _norm_scale(tape, weight, None), eps, center=False)


def group_norm(
    tape: Tape, input: Traced, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Traced:
    """``torch.nn.functional.group_norm``."""
    if num_groups == input.shape[1]:
        fix = "Use fewer groups, such as nn.GroupNorm(1, channels)."
        raise tape.refuse("must have many channels in each group", f"{num_groups} groups of one", fix)
    return _normalize(tape, input, input.shape[1:], _norm_scale(tape, weight, bias), eps, center=True)


def _normalize(tape: Tape, input: Traced, over: tuple[int, ...], scale: float, eps: float, *, center: bool) -> Traced:
    # The last axes are normalized: channels, or channels and all positions. A mean over positions that is not 0 has no
    # rule.
    node, wide = materialize(input)
    axes = wide.axes[len(wide.axes) - len(over) :]
    positions = len(axes) > 1 or axes == (ALL,)
    if not {CHANNEL, ALL} & set(axes) or (positions and len(axes) != len(wide.axes)):
        got = f"the axes {tuple(over)} of {wide.shape()}"
        raise tape.refuse("must normalize over channels, or channels and all positions", got)
    if positions and math.prod(wide.positions) > 1 and wide.has_mean:
        fix = "Put it after a convolution or linear layer rather than after an activation."
        raise tape.refuse("must follow a layer with weights", "a norm over positions after an activation", fix)
    center = center and wide.has_mean
    rule = Normalize(eps, scale, center, positions)
    return tape.source(rule, (node,), replace(wide, has_mean=wide.has_mean and not center), fresh=False)


def batch_norm(
    tape: Tape,
    input: Traced,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Traced:
    """``torch.nn.functional.batch_norm`` at evaluation: a fixed factor."""
    if training or running_mean is None or running_var is None:
        raise tape.refuse("has no limit of its own", "batch statistics", "Call model.eval() first.")
    if _constant(tape, running_mean, "a running mean") != 0:
        fix = "Use a model that has not been trained."
        raise tape.refuse("must have the statistics that it starts with", "a mean that is not 0", fix)
    variance = _constant(tape, running_var, "a running variance")
    return multiply(tape, input, _norm_scale(tape, weight, bias) / math.sqrt(variance + eps))


# --- positions: pooling, padding, other shapes ------------------------------------------------------------------------


def average_pool(
    tape: Tape,
    input: Traced,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Traced:
    """``torch.nn.functional.avg_pool1d`` and ``avg_pool2d``."""
    node, wide = materialize(input)
    count = len(wide.positions)
    if ceil_mode or divisor_override is not None or wide.axes != (CHANNEL, *range(count)):
        got = "ceil_mode, divisor_override or another order of axes"
        raise tape.refuse("must pool positions in whole windows", got)
    size, pad = _each(kernel_size, count), _each(padding, count)
    steps = size
    if stride is not None and stride != ():
        steps = _each(stride, count)
    positions = tuple((p + 2 * a - k) // s + 1 for p, a, k, s in zip(wide.positions, pad, size, steps, strict=True))
    rule = Pool(size, steps, pad, count_include_pad)
    return tape.source(rule, (node,), replace(wide, positions=positions), fresh=False)


def adaptive_pool(tape: Tape, input: Traced, output_size: Any) -> Traced:
    """``torch.nn.functional.adaptive_avg_pool1d`` and ``adaptive_avg_pool2d``."""
    assert input.wide is not None
    before = input.wide.positions
    sizes = zip(_each(output_size, len(before)), before, strict=True)
    after = tuple(b if a is None else a for a, b in sizes)
    if any(b % a for a, b in zip(after, before, strict=True)):
        raise tape.refuse("must pool positions in equal windows", f"{before} to {after}", "Use nn.AvgPool2d.")
    size = tuple(b // a for a, b in zip(after, before, strict=True))
    return average_pool(tape, input, size)


def mean(tape: Tape, input: Traced, dim: Any = None, keepdim: bool = False, *, total: bool = False, **_: Any) -> Traced:
    """Means over positions, and sums."""
    node, wide = materialize(input)
    if not isinstance(dim, int) and not dim:  # None, or no axis
        dim = range(input.ndim)
    dims = {d % input.ndim for d in _as_tuple(dim)}
    # Only axes of positions: the mean over infinitely many channels is a number, that over rows mixes them.
    axes = [wide.axes[d - 1] for d in dims if d > 0]
    if 0 in dims or not all(isinstance(axis, int) for axis in axes):
        fix = "Use a linear layer to read the channels."
        raise tape.refuse("must take means over positions only", f"a mean over axes {sorted(dims)}", fix)

    # An axis that stays has a window of its whole length. One that goes has the window None, and the axes behind it
    # move up.
    count = len(wide.positions)
    window: list[int | None] = [1] * count
    lengths = list(wide.positions)
    for axis in axes:
        assert isinstance(axis, int)
        window[axis], lengths[axis] = None, 1
        if keepdim:
            window[axis] = wide.positions[axis]
    after = replace(wide, positions=tuple(lengths))
    if not keepdim:
        remaining = [axis for axis in wide.axes if axis not in axes]
        order = sorted(axis for axis in remaining if isinstance(axis, int))
        numbers: dict[str | int, str | int] = {axis: place for place, axis in enumerate(order)}
        positions = tuple(wide.positions[axis] for axis in order)
        after = replace(wide, axes=tuple(numbers.get(axis, axis) for axis in remaining), positions=positions)
    rule = Pool(tuple(window), (1,) * count, (0,) * count, total=total)
    return tape.source(rule, (node,), after, fresh=False)


def pad(tape: Tape, input: Traced, pad: Any, mode: str = "constant", value: float | None = None) -> Traced:
    """``torch.nn.functional.pad`` of positions."""
    node, wide = materialize(input)
    count = len(wide.positions)
    amounts = [(pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)][::-1]
    amounts = [(0, 0)] * (count - len(amounts)) + amounts
    if wide.axes != (CHANNEL, *range(count)) or len(amounts) > count or value or min(map(min, amounts)) < 0:
        raise tape.refuse("must pad positions", f"pad={tuple(pad)} with value {value}")
    positions = tuple(p + sum(a) for p, a in zip(wide.positions, amounts, strict=True))
    return tape.source(Pad(tuple(amounts), mode), (node,), replace(wide, positions=positions), fresh=False)


def permute(tape: Tape, input: Traced, *dims: Any) -> Traced:
    """Another order of axes: the same node."""
    if len(dims) == 1:
        dims = _as_tuple(dims[0])
    order = [d % input.ndim for d in dims]
    assert input.wide is not None
    if order[0] != 0:
        raise tape.refuse("must keep the rows first", f"the order {tuple(order)}")
    axes = tuple(input.wide.axes[d - 1] for d in order[1:])
    return Traced(tape, input.node, wide=replace(input.wide, axes=axes))


def transpose(tape: Tape, input: Traced, dim0: int, dim1: int) -> Traced:
    """Two axes exchanged."""
    order = list(range(input.ndim))
    dim0, dim1 = dim0 % input.ndim, dim1 % input.ndim
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(tape, input, order)


def flatten(tape: Tape, input: Traced, start_dim: int = 0, end_dim: int = -1) -> Traced:
    """Axes joined."""
    start, end = start_dim % input.ndim, end_dim % input.ndim
    shape = input.shape
    return reshape(tape, input, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


def squeeze(tape: Tape, input: Traced, dim: Any = None) -> Traced:
    """Axes of length 1 dropped."""
    if dim is None:
        dim = range(1, input.ndim)
    dims = [d % input.ndim for d in _as_tuple(dim)]
    return reshape(tape, input, tuple(s for d, s in enumerate(input.shape) if d not in dims or s != 1))


def reshape(tape: Tape, input: Traced, *shape: Any) -> Traced:
    """Positions in another shape, or joined with the channels."""
    # The sizes asked for, with -1 worked out.
    if len(shape) == 1:
        shape = _as_tuple(shape[0])
    target = list(shape)
    wide = input.wide
    assert wide is not None
    size = math.prod(wide.shape())
    rows, sizes = target[0], target[1:]
    if -1 in sizes:
        sizes[sizes.index(-1)] = size // max(1, -math.prod(sizes))
    if rows not in (-1, tape.rows) or math.prod(sizes) != size:
        raise tape.refuse("must keep the rows apart", f"reshape to {tuple(target)}")
    if tuple(sizes) == wide.shape():
        return input
    if not sizes:  # the axis of a single output dropped
        return Traced(tape, input.node, wide=replace(wide, axes=()))
    if len(sizes) == 1 and wide.positions:  # channels and positions in one
        return Traced(tape, input.node, wide=replace(wide, axes=(ALL,)))
    if len(sizes) == 1:
        return Traced(tape, input.node, wide=replace(wide, axes=(CHANNEL,)))

    # Only positions may change their shape: the axis of channels stays the first or the last, all positions in order.
    axes: tuple[str | int, ...]
    old_numbers, numbers = tuple(range(len(wide.positions))), tuple(range(len(sizes) - 1))
    if wide.axes == (CHANNEL, *old_numbers) and sizes[0] == wide.channels:
        axes, positions = (CHANNEL, *numbers), tuple(sizes[1:])
    elif wide.axes == (*old_numbers, CHANNEL) and sizes[-1] == wide.channels:
        axes, positions = (*numbers, CHANNEL), tuple(sizes[:-1])
    else:
        raise tape.refuse("must keep the channels apart", f"reshape of {wide.shape()} to {tuple(sizes)}")
    node, _ = materialize(input)
    return tape.source(Reposition(positions), (node,), replace(wide, axes=axes, positions=positions), fresh=False)


def _each(value: Any, count: int) -> tuple[int, ...]:
    """One number for each axis."""
    values = _as_tuple(value)
    if len(values) == 1:
        return values * count
    return values


def _as_tuple(value: Any) -> tuple[Any, ...]:
    """Several numbers as they are, one number as a tuple."""
    if isinstance(value, (tuple, list, range)):
        return tuple(value)
    return (value,)


def softplus(tape: Tape, input: Traced, beta: float = 1.0, threshold: float = 20.0) -> Traced:
    r"""``torch.nn.functional.softplus``: :math:`\mathrm{softplus}(\beta u) / \beta`."""
    if beta == 1:
        return activate(tape, HermiteSeries("softplus"), input)
    after = activate(tape, HermiteSeries("softplus"), multiply(tape, input, beta))
    return multiply(tape, after, 1 / beta)


def gelu(tape: Tape, input: Traced, approximate: str = "none") -> Traced:
    """``torch.nn.functional.gelu``."""
    if approximate == "none":
        return activate(tape, GELU(), input)
    return activate(tape, HermiteSeries("gelu_tanh"), input)


def softmax(tape: Tape, *_: Any, **__: Any) -> Traced:
    """Refused, whatever its arguments."""
    fix = "Take it off where it is the last layer: the kernel is that of the logits. Attention has no rule."
    raise tape.refuse("has no rule", "a softmax, which mixes channels or positions", fix)


# --- which function of torch has which rule ---------------------------------------------------------------------------

IDENTITIES = {
    "alpha_dropout", "clone", "contiguous", "detach", "double", "dropout", "dropout1d", "dropout2d", "dropout3d",
    "feature_alpha_dropout", "float", "requires_grad", "to", "type_as",
}  # fmt: skip
LAYERS: dict[str, Callable[..., Traced]] = {
    "linear": linear, "conv1d": convolution, "conv2d": convolution, "embedding": embedding,
    "embedding_bag": embedding_bag,
}  # fmt: skip
ACTIVATIONS: dict[str, Activation] = {
    "relu": LeakyReLU(), "abs": LeakyReLU(-1.0), "erf": Erf(), "sin": Wave(), "cos": Wave(cosine=True),
    "tanh": HermiteSeries("tanh"), "sigmoid": HermiteSeries("sigmoid"), "silu": HermiteSeries("silu"),
    "mish": HermiteSeries("mish"),
}  # fmt: skip
RULES: dict[str, Callable[..., Traced]] = {
    "add": add, "sub": lambda tape, a, b, *, alpha=1.0: add(tape, a, b, alpha=-alpha),
    "mul": multiply, "div": divide, "true_divide": divide,
    "leaky_relu": lambda tape, input, negative_slope=0.01, *_, **__: activate(
        tape, LeakyReLU(float(negative_slope)), input
    ),
    "prelu": lambda tape, input, weight: activate(tape, LeakyReLU(_constant(tape, weight, "a slope")), input),
    "gelu": gelu, "softplus": softplus, "softmax": softmax,
    "layer_norm": layer_norm, "rms_norm": rms_norm, "group_norm": group_norm, "batch_norm": batch_norm,
    "avg_pool1d": average_pool, "avg_pool2d": average_pool,
    "adaptive_avg_pool1d": adaptive_pool, "adaptive_avg_pool2d": adaptive_pool, "mean": mean,
    "sum": functools.partial(mean, total=True),
    "pad": pad, "permute": permute, "transpose": transpose, "swapaxes": transpose, "flatten": flatten,
    "reshape": reshape, "view": reshape, "squeeze": squeeze,
}  # fmt: skip
