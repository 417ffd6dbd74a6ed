"""The features before a network's last layer, read without a hook."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..modules import last_linear


def hidden_features(network: nn.Module, x: Tensor) -> Tensor | None:  # (n, ...) -> (n, m)
    """What goes into the network's last linear layer, or its own ``hidden(x)``; None where it has neither."""
    own = getattr(network, "hidden", None)
    if callable(own):
        features: Tensor = own(x)
        return features
    if not any(isinstance(layer, nn.Linear) for layer in network.modules()):
        return None
    name = last_linear(network)[0]
    if not name:
        return x.flatten(1)
    # A private copy that shares the weights: the user's network gets no hooks, and threads do not meet in it.
    shared: dict[int, Any] = {id(t): t for t in (*network.parameters(), *network.buffers())}
    private = copy.deepcopy(network, shared)
    private.get_submodule(name.rpartition(".")[0]).register_module(name.rpartition(".")[2], _Tap())
    try:
        private(x)
    except _ReachedError as reached:
        return reached.value.flatten(1)
    raise RuntimeError(checks.sentence("NeuralEigenfunctions", f"layer {name} must run in forward", "no call"))


class _ReachedError(Exception):
    """The features before the last layer, on their way out of the forward pass."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class _Tap(nn.Module):
    @override
    def forward(self, x: Tensor) -> Tensor:
        raise _ReachedError(x)
