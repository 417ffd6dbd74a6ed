"""The infinite-width limit of a torch model as it stands."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..linalg.torch_internals import readable
from ..signals.layers import unwrap
from ..signals.private_copy import private_copy
from .layer_rules import Embed
from .trace_network import NoLimitError, record
from .wide_kernel import Step, WideKernel, WideKernels, plan

KINDS = ("ntk", "nngp")
_STANDARD_ERRORS = 4.0  # of a sample's variance, within which it is taken for a known one


def infinite_width(
    model: nn.Module,
    *,
    kind: str = "ntk",
    example: Tensor | None = None,
    weight_var: float | Mapping[str, float] | None = None,
    bias_var: float | Mapping[str, float] | None = None,
) -> InfiniteWidth:
    r"""The kernel of a torch model whose hidden layers become infinitely wide.

    .. math:: \Sigma(x, y) = E[f(x) f(y)], \qquad
        \Theta(x, y) = \lim \partial_\theta f(x) \, \partial_\theta f(y)^\top,

    for one of the model's outputs f, exactly (``NNGP`` and ``NTK`` are the cases of plain networks). The model is run
    once, on a stand-in for its input that records the layers; it is not changed.

    Layers with a rule: ``Linear``, ``Conv1d``, ``Conv2d`` (stride, padding, dilation, groups), ``Embedding``,
    ``EmbeddingBag``; ``ReLU``, ``LeakyReLU``, ``PReLU``, ``abs``, ``erf``, ``GELU``, ``sin``, ``cos`` in closed form;
    ``Tanh``, ``SiLU``, ``Sigmoid``, ``Softplus``, ``Mish``, ``GELU("tanh")`` by a Hermite series with an error below
    1e-8 for pre-activations of deviation up to 2; ``LayerNorm``, ``RMSNorm``, ``GroupNorm``, fresh batch norm at
    evaluation; average pooling, means and sums over positions; sums and weighted sums of branches that share no weights
    at their ends; ``Flatten``, ``reshape``, ``permute``, ``pad``; dropout, as at evaluation. Any function of the input
    alone runs as it is. Everything else is refused by the layer's name: max pooling, softmax and attention, batch norm
    in training, products of branches, an activation on what is no Gaussian process (``relu(x + relu(y))``).

    The parametrization is the NTK's: a weight is :math:`\sqrt{v / \text{fan-in}}` and a bias :math:`\sqrt{b}` times a
    standard normal number, and derivatives are with respect to those numbers. Parameters that start at a constant (a
    norm's scale and shift, biases of zero) have variance 0, and like frozen ones no part in the tangent kernel. v and b
    are read from the model: where a layer's weights agree, within sampling error, with torch's default (v = 1/3), with
    LeCun's (1), He's (2) or Xavier's initialization, that number; else their mean square. Torch's default bias has
    variance 1/(3 fan-in), at the model's own width. Weights count as Gaussian whatever their distribution, which
    matters in the first layer of few inputs only. The numbers are in the kernel's ``repr``.

    Args:
        model: The network, fresh rather than trained: only its layers and their variances count.
        kind: ``"ntk"`` for :math:`\Theta` or ``"nngp"`` for :math:`\Sigma`.
        example: Some rows as the model takes them, ``x[:1]``, so that layers are read (and refused) now. None: rows of
            ``in_features`` numbers if the first layer with weights is linear; else the model is read at the first call.
        weight_var: v of every linear and convolutional layer, or of the layers named (``{"0": 2.0}``).
        bias_var: b of every bias, or of those of the layers named.

    Raises:
        ValueError: A layer has no known limit; the message names it and says what to do.
    """
    return InfiniteWidth(model, kind=kind, example=example, weight_var=weight_var, bias_var=bias_var)


class InfiniteWidth(WideKernel):
    """The kernel that :func:`infinite_width` makes; its arguments are the same."""

    def __init__(
        self,
        model: nn.Module,
        *,
        kind: str = "ntk",
        example: Tensor | None = None,
        weight_var: float | Mapping[str, float] | None = None,
        bias_var: float | Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        where = "infinite_width"
        if not isinstance(model, nn.Module):
            raise TypeError(checks.sentence(where, "model must be an nn.Module", type(model).__name__))
        self.kind = checks.choice(where, "kind", kind, KINDS)
        self.weight_var, self.bias_var = weight_var, bias_var
        # Variances given by layer must name layers of the model.
        names = {name for name, _ in unwrap(model).named_modules()}
        for argument, value, check in (
            ("weight_var", weight_var, checks.positive),
            ("bias_var", bias_var, checks.non_negative),
        ):
            if isinstance(value, Mapping):
                for name, number in value.items():
                    check(where, f"{argument}[{name!r}]", number)
                    if name not in names:
                        fix = "Names are those of model.named_modules()."
                        raise ValueError(checks.sentence(where, f"{argument} must name layers", repr(name), fix))
            elif value is not None:
                check(where, argument, value)
        # The steps by the shape of a row, and the variances of the layers by name.
        self._programs: dict[tuple[int, ...], tuple[Step, ...]] = {}
        self.layers: dict[str, tuple[float, float | None]] = {}
        self._kept_model: tuple[nn.Module, ...] = ()  # in a tuple: held, not registered
        self._tokens = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in model.modules())
        # Read the model now where an example says what rows look like.
        if example is not None:
            if not isinstance(example, Tensor) or example.ndim < 2 or not len(example):
                got: object = type(example).__name__
                if isinstance(example, Tensor):
                    got = tuple(example.shape)
                raise ValueError(checks.sentence(where, "example must be rows, (n, ...)", got, "Use x[:1]."))
            self._read(_at_evaluation(model), example[:1])
            return
        # Without an example the model is kept, as it is now, for the shapes that calls bring.
        self._kept_model = (copy.deepcopy(unwrap(model)),)
        weighted = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
        if weighted and isinstance(weighted[0], nn.Linear):
            self._read(_at_evaluation(model), weighted[0].weight.new_ones(1, weighted[0].in_features))

    @property
    @override
    def tangent(self) -> bool:
        return self.kind == "ntk"

    def both(self, x: Tensor, y: Tensor | None = None) -> WideKernels:  # (n, ...), (m, ...) -> (n, m), (n, m)
        """NNGP and NTK from one pass over the layers; of ``kind="ntk"``."""
        if not self.tangent:
            raise ValueError(checks.sentence("InfiniteWidth.both", "kind must be 'ntk'", repr(self.kind)))
        return WideKernels(*self.kernels(*self._pair(x, y)))

    @override
    def steps(self, shape: tuple[int, ...]) -> tuple[Step, ...]:
        if shape not in self._programs:
            # A model read with an example knows rows of its shape only; one that is kept is read again.
            if not self._kept_model:
                shapes = " or ".join(str(("n", *s)).replace("'", "") for s in self._programs)
                got = str(("n", *shape)).replace("'", "")
                fix = "Call infinite_width again with an example of that shape."
                raise ValueError(checks.sentence("InfiniteWidth", f"rows must have shape {shapes}", got, fix))
            example = torch.ones(1, *shape)
            if self._tokens:
                example = example.long()
            self._read(_at_evaluation(self._kept_model[0]), example)
        return self._programs[shape]

    @override
    def prepare(self, name: str, x: Tensor) -> Tensor:
        where = "InfiniteWidth"
        if not isinstance(x, Tensor):
            raise TypeError(
                checks.sentence(where, f"{name} must be a tensor", type(x).__name__, "Use torch.as_tensor.")
            )
        checks.dense(where, name, x)
        checks.real(where, name, x)
        # Rows as the model takes them; a model of vectors names a wrong shape as any kernel does.
        vectors = bool(self._programs) and all(len(shape) == 1 for shape in self._programs)
        if x.ndim < 2 or (vectors and not self._kept_model):
            checks.matrix(where, name, x)
        if x.shape[1:].numel() == 0:
            raise ValueError(checks.sentence(where, f"{name} must have at least one feature", tuple(x.shape)))
        if self._tokens and not x.is_floating_point():
            return x
        x = checks.floating(x)
        # Squares of pictures must not overflow, where values can be looked at.
        if x.ndim > 2 and readable(x):
            checks.no_overflow(where, name, x)
        return x

    @override
    def extra_repr(self) -> str:
        lines = [repr(self.kind)]
        for name, (weight, bias) in self.layers.items():
            line = f"{name or 'model'}: weight_var={weight:.4g}"
            if bias is not None:
                line = f"{line}, bias_var={bias:.4g}"
            lines.append(line)
        return ",\n".join(lines)

    def _read(self, model: nn.Module, example: Tensor) -> None:
        with torch.no_grad():
            steps, self.layers = record(model, example, self._variances)
        tokens = any(isinstance(step.rule, Embed) for step in steps)
        self._tokens = self._tokens and tokens
        self._programs = {**self._programs, tuple(example.shape[1:]): plan(steps)}

    def _variances(self, name: str, weight: Tensor, bias: Tensor | None, fan_in: int) -> tuple[float, float]:
        """The variances of a layer's weights, times fan-in, and of its biases: given, known, or as they are."""
        # The weights'. The rows of an embedding (fan-in 0) are not summed, and only its own name speaks of it.
        weight_var: float | None = None
        if isinstance(self.weight_var, Mapping):
            weight_var = self.weight_var.get(name)
        elif fan_in:
            weight_var = self.weight_var
        candidates = [1.0]
        if fan_in:
            fan_out = weight.shape[0] * weight[0, 0].numel()
            candidates = [1.0, 2.0, 2 * fan_in / (fan_in + fan_out)]  # LeCun, He, Xavier
        fan_in = fan_in or 1
        if weight_var is None:
            weight_var = _recognize_variance(weight, fan_in, [v / fan_in for v in candidates]) * fan_in
        if weight_var == 0:
            fix = f"Say weight_var={{{name!r}: 1.0}}."
            need = f"layer {name!r} must have random weights"
            raise NoLimitError(checks.sentence("infinite_width", need, "zeros", fix))

        # The biases'.
        if bias is None:
            return float(weight_var), 0.0
        bias_var = self.bias_var
        if isinstance(bias_var, Mapping):
            bias_var = bias_var.get(name)
        if bias_var is None:
            bias_var = _recognize_variance(bias, fan_in, [])
        return float(weight_var), float(bias_var)


def _at_evaluation(model: nn.Module) -> nn.Module:
    """A private copy at evaluation, but for batch norms: those in training are refused by name."""
    modes = {name: module.training for name, module in unwrap(model).named_modules()}
    private = private_copy(model)
    for name, module in private.named_modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm):
            module.train(modes.get(name, False))
    return private


def _recognize_variance(values: Tensor, fan_in: int, candidates: list[float]) -> float:
    """The variance that a sample was drawn with, where it agrees with a candidate; else its mean square."""
    values = values.detach().double()
    square = float(values.square().mean())
    if square == 0:
        return 0.0
    # A normal sample's mean square has a relative standard error of sqrt(2 / size).
    error = max(0.01, _STANDARD_ERRORS * math.sqrt(2 / values.numel()))
    # Torch's default, for weights and biases: uniform in +-1 / sqrt(fan_in), so that no value is beyond.
    default = 1 / (3 * fan_in)
    if float(values.abs().max()) <= 1.00001 * math.sqrt(3 * default) and abs(math.log(square / default)) < error:
        return default
    # The nearest candidate, where it is within the error.
    distances = {v: abs(math.log(square / v)) for v in candidates}
    nearest = min(distances, key=lambda v: distances[v], default=square)
    if distances.get(nearest, math.inf) < error:
        return nearest
    return square
