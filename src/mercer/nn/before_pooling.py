"""A head that reads what the model pools: every place of a map, every token of a sequence."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .. import checks


@dataclass
class _Held:
    """What was seen in one pass: the last output with places, and every mask, by the names of their modules."""

    source: str = ""
    places: Tensor | None = None
    other: tuple[int, ...] = ()  # the shape of the last output with places of another width
    masks: dict[tuple[str, str], Tensor] = field(default_factory=dict)


class BeforePooling(nn.Module):
    """``head.at_places(z, places, mask)``, with z as the model pools it and the places as they were before.

    The model's own code is not touched: hooks remember the last output that has places, of shape ``(n, d, ...)`` or
    ``(n, ..., d)``, and a mask ``(n, tokens)`` where the model or one of its modules is given one. The first pass finds
    which module that is; afterwards only that one is listened to. Nothing of a batch is kept after the head has run,
    nor copied or saved.

    Args:
        head: Has ``at_places``, as :class:`KernelClassifier` and :class:`SecondOrderPooling` have.
        in_features: d.
    """

    __call__: Callable[..., Tensor]

    def __init__(self, head: nn.Module, in_features: int) -> None:
        super().__init__()
        if not callable(getattr(head, "at_places", None)):
            need = "with place='before_pooling' head must have a method at_places(z, places, mask)"
            fix = "Use KernelClassifier or SecondOrderPooling."
            raise TypeError(checks.sentence("kernelize", need, type(head).__name__, fix))
        self.head = head
        self.in_features = in_features
        self.source: str | None = None
        self.mask: tuple[str, str] | None = None
        self._held: dict[int, _Held] = {}
        self._handles: dict[str, RemovableHandle] = {}

    def attach_to(self, model: nn.Module) -> None:
        """Hook the modules of the model that this head is a part of: all of them, or those that are known by now."""
        own = next(name for name, module in model.named_modules() if module is self)
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        for name, module in model.named_modules():
            if name == own or name.startswith(f"{own}.") or not self._listens_to(name):
                continue
            hook = _Listener(self, name, module)
            register = module.register_forward_hook if name else module.register_forward_pre_hook
            self._handles[name] = register(hook, with_kwargs=True)

    def _listens_to(self, name: str) -> bool:
        return self.source is None or name == self.source or (self.mask is not None and name == self.mask[0])

    def forward(self, z: Tensor) -> Tensor:  # (n, d) -> (n, c), or (n, s, d) -> (n, s, c)
        """Logits of the pass that is under way; at every token, where the model picks one of them afterwards."""
        held = self._held.pop(_thread(), None)
        if held is None or held.places is None:
            d = self.in_features
            need = f"with place='before_pooling' a layer must give (n, {d}, places) or (n, places, {d})"
            came, fix = "none in this pass", "Use place='head' for a model that pools nothing."
            if held is not None and held.other:
                came = f"{held.other} as the last output with places"
                fix = "Use place='head' for a model that joins several pooled parts, as DINOv2 does."
            raise ValueError(checks.sentence("kernelize", need, came, fix))
        if self.source is None:
            self._settle(held)
        mask = held.masks.get(self.mask) if self.mask is not None else None
        logits: Tensor = self.head.at_places(z, held.places, None if mask is None else _fitted(mask, held.places))  # type: ignore[operator]
        if z.ndim == 3 and logits.ndim == 2:  # of a head that does not read z
            return logits[:, None].expand(-1, z.shape[1], -1)
        return logits

    def _settle(self, held: _Held) -> None:
        """Listen from now on only to the module that gave the places and to the one that was given the mask."""
        if torch.compiler.is_compiling():
            need = "the first pass, which finds the places, must be a plain one"
            fix = "Run the model on one batch, or give kernelize a loader, before torch.compile or torch.export."
            raise RuntimeError(checks.sentence("kernelize", need, "a compiled one", fix))
        assert held.places is not None
        tokens = held.places.shape[1]
        fitting = [key for key, mask in held.masks.items() if abs(mask.shape[1] - tokens) <= 1]
        self.settle(held.source, next((key for key in fitting if not key[0]), fitting[-1] if fitting else None))

    def settle(self, source: str, mask: tuple[str, str] | None) -> None:
        """Name what is listened to, as a first pass would."""
        self.source, self.mask = source, mask
        for name in [name for name in self._handles if not self._listens_to(name)]:
            self._handles.pop(name).remove()

    def see(self, name: str, output: Any, arguments: dict[str, Any]) -> None:
        """Remember what one module gave and was given."""
        held = self._held.setdefault(_thread(), _Held())
        for key, value in arguments.items():
            if "mask" in key and isinstance(value, Tensor) and value.ndim == 2:
                held.masks[name, key] = _counted(key, value)
        if isinstance(output, Tensor) and self.source in (None, name):
            places = _places(output, self.in_features)
            if places is not None:
                held.source, held.places = name, places
            elif output.ndim >= 3:
                held.other = tuple(output.shape)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": {}}


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:  # (n, s, d), (n, s) -> (n, d)
    """The mean over places that count; 0 where none does."""
    if mask is None:
        return x.mean(1)
    if mask.shape != x.shape[:2]:
        need = f"mask must have shape {tuple(x.shape[:2])}, one value for each place"
        raise ValueError(checks.sentence("at_places", need, tuple(mask.shape)))
    counted = mask.to(x.dtype).unsqueeze(2)
    return (x * counted).sum(1) / counted.sum(1).clamp(min=1)


class _Listener:
    """One module's hook, before the pass for the model itself, after it for the others."""

    def __init__(self, head: BeforePooling, name: str, module: nn.Module) -> None:
        self.head, self.name = head, name
        self.names = [key for key in inspect.signature(module.forward).parameters if "mask" in key]
        self.order = list(inspect.signature(module.forward).parameters)

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any = None) -> None:
        given = {key: kwargs.get(key) for key in self.names if key in kwargs}
        for key in self.names:
            place = self.order.index(key)
            if place < len(args):
                given[key] = args[place]
        if not self.name:
            self.head._held.pop(_thread(), None)  # what an interrupted pass may have left
        self.head.see(self.name, output, given)


def _thread() -> int:
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


def _places(output: Tensor, d: int) -> Tensor | None:  # -> (n, s, d)
    if output.ndim < 3:
        return None
    first, last = output.shape[1] == d, output.shape[-1] == d
    if first and not (last and output.ndim == 3):  # channels first, but for tokens of as many as channels
        found = output.flatten(2).mT
    elif last:
        found = output.flatten(1, -2)
    else:
        return None
    return found if found.shape[1] > 1 else None


def _counted(name: str, mask: Tensor) -> Tensor:
    """True where a token counts; a padding mask says the opposite, an additive one has 0 there."""
    if mask.is_floating_point() and name != "attention_mask":
        return mask == 0
    return mask == 0 if "padding" in name else mask != 0


def _fitted(mask: Tensor, places: Tensor) -> Tensor:
    """The mask cut to the tokens that came out, or with a class token, which always counts, in front."""
    if mask.shape[1] < places.shape[1]:
        extra = mask.new_ones(len(mask), places.shape[1] - mask.shape[1])
        return torch.cat((extra, mask), 1)
    return mask[:, : places.shape[1]]
