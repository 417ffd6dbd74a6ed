"""Kernels of finite networks: what they share, and averages over random networks or over those of a training run.

They take rows of any shape, sum over outputs or keep them, and work with features rather than Gram matrices.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from typing_extensions import override

from .. import checks
from ..linalg.blocks import apply_to_both, slices
from ..signals.attention import plain_attention
from ..signals.layers import as_logits, output_rows, unwrap
from ..signals.private_copy import private_copy
from .base import Kernel

OUTPUTS = ("trace", "full")
_global_generator = threading.Lock()  # one for all threads; networks draw their weights from it


class NetworkKernel(Kernel):
    r"""A kernel :math:`k(x, y) = \sum_f \varphi_f(x) \varphi_f(y)^\top` of networks with c outputs.

    A variant writes :meth:`features`. The networks are held, not registered: ``parameters()`` and ``state_dict()`` of
    the kernel do not show them. Private copies are run in ``eval`` mode (batch normalization by its running statistics,
    no dropout), so that the networks themselves never change and several threads can call one kernel. Rows may have
    any shape; whole numbers stay so for a network with an embedding layer. The data's dtype wins over the weights'.

    Args:
        outputs: ``"trace"`` sums over the outputs, ``(n, m)``; ``"full"`` keeps a ``(c, c)`` matrix for each pair,
            ``(n, m, c, c)``; a number picks one output.
    """

    RECOMPUTED = False

    def __init__(self, outputs: str | int) -> None:
        super().__init__()
        where = type(self).__name__
        if isinstance(outputs, str):
            checks.choice(where, "outputs", outputs, OUTPUTS)
        else:
            checks.integer(where, "outputs", outputs, 0)
        self.outputs = outputs

    @property
    def matrix_valued(self) -> bool:
        """Whether ``k(x, y)`` is a ``(c, c)`` matrix for each pair."""
        return self.outputs == "full"

    @property
    def rowwise(self) -> bool:
        """Whether the features of a row are the same whatever the other rows are."""
        return True

    def features(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c, f)
        r""":math:`\varphi(x)` of checked rows, of one output where ``outputs`` says so; what a variant must write."""
        raise NotImplementedError(f"{type(self).__name__} must define features(x)")

    def networks(self) -> Sequence[nn.Module]:
        """The networks held; used to look at devices and layers."""
        return ()

    @override
    def prepare(self, name: str, x: Tensor) -> Tensor:
        where = type(self).__name__
        if not isinstance(x, Tensor):
            fix = "Use torch.as_tensor; for a batch of named tensors, wrap the network so that forward takes one."
            raise TypeError(checks.sentence(where, f"{name} must be a tensor", type(x).__name__, fix))
        checks.dense(where, name, x)
        if x.ndim < 2:
            fix = f"Use {name}[:, None] for one feature, {name}[None] for one row."
            raise ValueError(checks.sentence(where, f"{name} must have shape (n, ...)", tuple(x.shape), fix))
        checks.real(where, name, x)
        if x.shape[1:].numel() == 0:
            raise ValueError(checks.sentence(where, f"{name} must have at least one feature", tuple(x.shape)))
        # On the networks' device; whole numbers stay so where an embedding reads them as tokens.
        for network in self.networks():
            weight = next(unwrap(network).parameters(), None)
            if weight is not None:
                checks.same_device(where, name, x.device, "the network", weight.device)
        tokens = not x.is_floating_point() and any(
            isinstance(layer, nn.Embedding) for network in self.networks() for layer in network.modules()
        )
        if tokens:
            return x
        return checks.floating(x)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, ...), (m, ...) -> (n, m) or (n, m, c, c)
        return self.join(*apply_to_both(self.features, x, y))

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, ...) -> (n,) or (n, c, c)
        features = self.features(x)
        if self.matrix_valued:
            return features @ features.mT
        return features.square().sum((1, 2))

    @override
    def matmul(
        self, x: Tensor, y: Tensor | None, v: Tensor, *, block: int | None = None, over_ranks: bool = False
    ) -> Tensor:
        """``K(x, y) @ v`` without ever holding K; of a matrix-valued kernel ``v`` is ``(m, c)`` or ``(m, c, r)``."""
        if over_ranks or not self.matrix_valued:
            return super().matmul(x, y, v, block=block, over_ranks=over_ranks)
        x, y = self._pair(x, y)
        if v.ndim not in (2, 3) or len(v) != len(y):
            need = f"v must have shape ({len(y)}, c) or ({len(y)}, c, r)"
            raise ValueError(checks.sentence(f"{type(self).__name__}.matmul", need, tuple(v.shape)))
        # Multiply blocks of rows; a single vector counts as a matrix of one column.
        columns = v.to(x.dtype)
        if v.ndim == 2:
            columns = columns[..., None]
        parts = []
        for rows in slices(len(x), block or 64):
            parts.append(torch.einsum("nmij,mjr->nir", self.gram(x[rows], y), columns))
        return torch.cat(parts).reshape(len(x), *v.shape[1:])

    def join(self, fx: Tensor, fy: Tensor) -> Tensor:  # (n, c, f), (m, c, f) -> (n, m) or (n, m, c, c)
        """The Gram matrix of features."""
        if not self.matrix_valued:
            return fx.flatten(1) @ fy.flatten(1).mT
        (n, c, _), m = fx.shape, len(fy)
        return (fx.flatten(0, 1) @ fy.flatten(0, 1).mT).reshape(n, c, m, c).transpose(1, 2)

    def choose(self, flat: Tensor) -> Tensor:  # (n, c) -> (n, c) or (n, 1)
        """All outputs of a network, or the one that ``outputs`` picks."""
        if isinstance(self.outputs, str):
            return flat
        if self.outputs >= flat.shape[1]:
            need = f"outputs must be in 0..{flat.shape[1] - 1}, the network's outputs"
            raise ValueError(checks.sentence(type(self).__name__, need, self.outputs))
        return flat[:, self.outputs, None]


class MonteCarloNNGP(NetworkKernel):
    r"""NNGP kernel of any architecture, by sampling networks.

    .. math:: k(x, y) = \frac{1}{S c} \sum_{s=1}^{S} g(x, \theta_s)^\top g(y, \theta_s), \quad \theta_s \sim p(\theta)

    (deng2022, slide "The modern kernels"); the c outputs of a network are exchangeable, so they count as samples too.
    The error falls as :math:`1 / \sqrt{S}`. Networks are made again at each call, from their seeds: only one is in
    memory at a time. Torch's global generator is left as it was.

    Args:
        make_model: Makes a network with fresh random weights, of any input shape and outputs ``(n, c)``.
        samples: S.
        generator: Decides the networks; the kernel draws one seed from it and is then a fixed function.

    Use it for an architecture that :func:`infinite_width` does not know.

    >>> MonteCarloNNGP(lambda: nn.Linear(2, 3), samples=4)(torch.eye(2)).shape
    torch.Size([2, 2])
    """

    def __init__(
        self, make_model: Callable[[], nn.Module], samples: int = 1000, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__("trace")
        if not callable(make_model) or isinstance(make_model, nn.Module):
            need = "make_model must be a function without arguments that makes a network"
            raise TypeError(checks.sentence("MonteCarloNNGP", need, type(make_model).__name__, "Use lambda: Net()."))
        self.make_model = make_model
        self.samples = checks.integer("MonteCarloNNGP", "samples", samples, 1)
        self.seed = seed_from(generator)

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, 1, S c)
        parts = []
        for sample in range(self.samples):
            with _global_generator, torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed + sample)
                model = self.make_model()
            parts.append(self.choose(_outputs(model, x)))
        features = torch.stack(parts, 2)  # (n, c, S)
        return features.flatten(1)[:, None] / math.sqrt(features.shape[1] * self.samples)


class Trajectory(NetworkKernel):
    r"""Kernel of a training run: the covariance of its networks' outputs around their mean.

    .. math:: k(x, y) = \frac1M \sum_{i=1}^{M} (g(x, \theta_i) - \bar g(x)) (g(y, \theta_i) - \bar g(y))^\top

    (deng2022, slide "Bayesian deep learning by modeling SGD trajectory"). Its rank is at most M - 1 for each output.

    Args:
        models: The M >= 2 networks, say snapshots of one run; held, not registered.
        outputs: ``"trace"``, ``"full"`` or the number of one output.

    Use it to see on which rows a training run went on changing its mind.

    >>> models = [nn.Linear(2, 3) for _ in range(4)]
    >>> Trajectory(models)(torch.randn(5, 2)).shape
    torch.Size([5, 5])
    """

    def __init__(self, models: Sequence[nn.Module], *, outputs: str | int = "trace") -> None:
        super().__init__(outputs)
        models = tuple(models)
        if len(models) < 2 or not all(isinstance(model, nn.Module) for model in models):
            need = "models must hold at least 2 networks"
            raise ValueError(checks.sentence("Trajectory", need, f"{len(models)} items"))
        self._networks = models

    @override
    def networks(self) -> Sequence[nn.Module]:
        return self._networks

    def mean(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c)
        r""":math:`\bar g(x)`, the mean output of the networks."""
        return self.outputs_of_all(self.prepare("x", x)).mean(2)

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c, M)
        outputs = self.outputs_of_all(x)
        return (outputs - outputs.mean(2, keepdim=True)) / math.sqrt(len(self._networks))

    def outputs_of_all(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c, M)
        """Every network's outputs for checked rows."""
        return torch.stack([self.choose(_outputs(model, x)) for model in self._networks], 2)


def _outputs(model: nn.Module, x: Tensor) -> Tensor:
    plain = private_copy(model)
    state = in_dtype({**dict(plain.named_parameters()), **dict(plain.named_buffers())}, checks.floating_dtype(x))
    with plain_attention():
        output = as_logits(functional_call(plain, state, (x,)))
    return output_rows("Trajectory", output, x.shape[0])


def in_dtype(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Weights and statistics in the data's dtype; counters stay whole numbers."""
    return {name: checks.cast_floats(t.detach(), dtype) for name, t in tensors.items()}


def seed_from(generator: torch.Generator | None) -> int:
    """One seed for a kernel's own draws, so that it is the same function at every call."""
    return int(torch.randint(2**31 - 1, (1,), generator=generator))
