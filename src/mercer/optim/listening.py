"""The base of the optimizers that see what their model's layers are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..signals.layers import find_layers, last_linear
from .base import CheckedOptimizer
from .layers import Layer, trained_layers
from .recording import Recorder


class ListeningOptimizer(CheckedOptimizer):
    """An optimizer with hooks on a model; call `listen_to` once the groups are set.

    The hooks go with `close`, or with the optimizer. They are in no copy or pickle of the model.
    """

    _recorder: Recorder

    def listen_to(self, model: nn.Module, modules: Mapping[str, nn.Module], *, once: bool = True) -> None:
        """Record these modules of the model: see :class:`Recorder`."""
        self._recorder = Recorder(type(self).__name__, model, modules, once=once)
        self._warned: set[str] = set()

    def warn_unheard(self, layers: Sequence[Layer]) -> None:
        """Say once of each layer that it has a gradient, and that nobody heard where the gradient came from."""
        names = [a.name for a in layers if a.name not in self._warned and bool(a.weight.grad.any())]  # type: ignore[union-attr]
        if names:
            self._warned.update(names)
            which = ", ".join(map(repr, names))
            subject = f"layer {which} has" if len(names) == 1 else f"layers {which} have"
            effect = "the steps are plain SGD, or use what earlier batches gave"
            fix = "Call each layer as a module, not through its weight; if the model was compiled, call "
            fix += f"torch.compiler.reset() once; or leave them out with exclude=[{which}]."
            checks.warn(type(self).__name__, f"{subject} a gradient but no recorded input; {effect}. {fix}")

    def choose_layers(self, model: nn.Module, layers: str, exclude: Sequence[str]) -> list[Layer]:
        """The linear and ungrouped 2-d convolutional layers whose weights are ours: all, or the last linear one."""
        where = type(self).__name__
        checks.choice(where, "layers", layers, ("all", "last"))
        found = trained_layers(where, model, self.parameters, (nn.Linear, nn.Conv2d), exclude)
        last = last_linear(model)[0] if layers == "last" else None
        chosen = [
            Layer(name, module, self._own_bias(module))
            for name, module in found.items()
            if getattr(module, "groups", 1) == 1 and last in (None, name)
        ]
        if not chosen:
            checks.warn(where, "params hold no weight of a linear or convolutional layer of model; all take SGD steps.")
        return chosen

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and the inputs that belong to them."""
        super().zero_grad(set_to_none)
        self._recorder.clear()

    def close(self) -> None:
        """Take the hooks off the model."""
        self._recorder.close()

    def _own_bias(self, module: nn.Module) -> Tensor | None:
        bias = module._parameters.get("bias")
        ours = bias is not None and bias.requires_grad and any(p is bias for p in self.parameters)
        return bias if ours else None


def readout_of(model: nn.Module) -> str | None:
    """Name of the last linear layer, which makes the logits; None where there is none."""
    names = list(find_layers(model, nn.Linear))
    return names[-1] if names else None
