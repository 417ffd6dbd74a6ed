"""Record what goes into a layer and what comes out, without changing the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..checks import sentence
from .layers import as_logits, layer


@dataclasses.dataclass
class Signals:
    """Inputs and outputs of one layer, call after call; a layer used twice in a forward pass has two of each.

    Attributes:
        inputs: First positional argument of each call.
        outputs: Output of each call; of a tuple the first item.
    """

    name: str
    inputs: list[Tensor] = dataclasses.field(default_factory=list)
    outputs: list[Tensor] = dataclasses.field(default_factory=list)

    @property
    def input(self) -> Tensor:
        """The last call's input."""
        return self._last(self.inputs)

    @property
    def output(self) -> Tensor:
        """The last call's output."""
        return self._last(self.outputs)

    def _last(self, calls: list[Tensor]) -> Tensor:
        if not calls:
            fix = "Call the model inside the with block, and the layer in its forward."
            raise RuntimeError(sentence("capture", f"layer {self.name} must have run", "no call", fix))
        return calls[-1]


@contextmanager
def capture(model: nn.Module, names: Iterable[str], *, detach: bool = True) -> Iterator[dict[str, Signals]]:
    """Record the named layers' inputs and outputs while the block runs; the hooks go away however it ends.

    Args:
        model: Any module, wrapped or not.
        names: Layers, as in ``model.named_modules()``.
        detach: Cut the tensors off the graph.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> with capture(model, ["0"]) as seen:
    ...     _ = model(torch.zeros(5, 2))
    >>> seen["0"].output.shape
    torch.Size([5, 3])
    """
    layers = {name: layer(model, name) for name in names}  # a wrong name hooks nothing
    signals = {name: Signals(name) for name in layers}
    handles: list[RemovableHandle] = []
    try:
        for name, module in layers.items():
            handles.append(module.register_forward_hook(_Recorder(signals[name], detach), with_kwargs=True))
        yield signals
    finally:
        for handle in handles:
            handle.remove()


class _Recorder:
    """A forward hook that keeps a layer's first tensor argument and its output."""

    def __init__(self, signals: Signals, detach: bool) -> None:
        self.signals, self.detach = signals, detach

    def __call__(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        tensors = [value for value in (*args, *named.values()) if isinstance(value, Tensor)]
        result = as_logits(output)
        if self.detach:
            tensors, result = [tensor.detach() for tensor in tensors], result.detach()
        self.signals.inputs.extend(tensors[:1])
        self.signals.outputs.append(result)
