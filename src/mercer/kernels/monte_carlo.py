"""Kernels that are averages over networks: random ones (NNGP by sampling), or those of a training run."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from typing_extensions import override

from .. import checks
from ..signals.attention import plain_attention
from ..signals.layers import as_logits, output_rows
from ..signals.private_copy import private_copy
from .network import NetworkKernel, in_dtype, seed_from

_global_generator = threading.Lock()  # one for all threads; networks draw their weights from it


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
            parts.append(self.chosen(_outputs(model, x)))
        features = torch.stack(parts, 2)  # (n, c, S)
        return features.flatten(1)[:, None] / math.sqrt(features.shape[1] * self.samples)


class Trajectory(NetworkKernel):
    r"""Kernel of a training run: the covariance of its networks' outputs around their mean.

    .. math:: k(x, y) = \frac1M \sum_{i=1}^{M} (g(x, \theta_i) - \bar g(x)) (g(y, \theta_i) - \bar g(y))^\top

    (deng2022, slide "Bayesian deep learning by modeling SGD trajectory"). Its rank is at most M - 1 for each output.

    Args:
        models: The M >= 2 networks, say snapshots of one run; held, not registered.
        outputs: ``"trace"``, ``"full"`` or the number of one output.
    """

    def __init__(self, models: Sequence[nn.Module], *, outputs: str | int = "trace") -> None:
        super().__init__(outputs)
        models = tuple(models)
        if len(models) < 2 or not all(isinstance(model, nn.Module) for model in models):
            need = "models must hold at least 2 networks"
            raise ValueError(checks.sentence("Trajectory", need, f"{len(models)} items"))
        self._held = models

    @override
    def networks(self) -> Sequence[nn.Module]:
        return self._held

    def mean(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c)
        r""":math:`\bar g(x)`, the mean output of the networks."""
        return self.outputs_of_all(self.prepare("x", x)).mean(2)

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c, M)
        outputs = self.outputs_of_all(x)
        return (outputs - outputs.mean(2, keepdim=True)) / math.sqrt(len(self._held))

    def outputs_of_all(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c, M)
        """Every network's outputs for checked rows."""
        return torch.stack([self.chosen(_outputs(model, x)) for model in self._held], 2)


def _outputs(model: nn.Module, x: Tensor) -> Tensor:
    plain = private_copy(model)
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    state = in_dtype({**dict(plain.named_parameters()), **dict(plain.named_buffers())}, dtype)
    with plain_attention():
        output = as_logits(functional_call(plain, state, (x,)))
    return output_rows("Trajectory", output, x.shape[0])
