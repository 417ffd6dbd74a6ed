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
class _Pass:
    """What one forward pass has shown so far: the last output with places, and every mask."""

    source: str = ""  # the module that gave the places
    places: Tensor | None = None
    other_shape: tuple[int, ...] = ()  # of the last output with places of another width
    masks: dict[tuple[str, str], Tensor] = field(default_factory=dict)  # by module and argument


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
        self._passes: dict[int, _Pass] = {}  # under way, by thread
        self._handles: dict[str, RemovableHandle] = {}

    def attach_to(self, model: nn.Module) -> None:
        """Hook the modules of the model that this head is a part of: all of them, or those that are known by now."""
        own_name = next(name for name, module in model.named_modules() if module is self)
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        for name, module in model.named_modules():
            if name == own_name or name.startswith(f"{own_name}.") or not self._listens_to(name):
                continue
            listener = _Listener(self, name, module)
            if name:
                self._handles[name] = module.register_forward_hook(listener, with_kwargs=True)
            else:  # the model itself: before its pass, for the masks it is given
                self._handles[name] = module.register_forward_pre_hook(listener, with_kwargs=True)

    def _listens_to(self, name: str) -> bool:
        return self.source is None or name == self.source or (self.mask is not None and name == self.mask[0])

    def forward(self, z: Tensor) -> Tensor:  # (n, d) -> (n, c), or (n, s, d) -> (n, s, c)
        """Logits of the pass that is under way; at every token, where the model picks one of them afterwards."""
        seen = self._passes.pop(_thread(), _Pass())
        if seen.places is None:
            d = self.in_features
            need = f"with place='before_pooling' a layer must give (n, {d}, places) or (n, places, {d})"
            came, fix = "none in this pass", "Use place='head' for a model that pools nothing."
            if seen.other_shape:
                came = f"{seen.other_shape} as the last output with places"
                fix = "Use place='head' for a model that joins several pooled parts, as DINOv2 does."
            raise ValueError(checks.sentence("kernelize", need, came, fix))
        if self.source is None:
            self._settle(seen)
        mask = None
        if self.mask is not None:
            mask = seen.masks.get(self.mask)
        if mask is not None:
            # Cut the mask to the tokens that came out, or count a class token in front, which no mask leaves out.
            extra = seen.places.shape[1] - mask.shape[1]
            if extra > 0:
                mask = torch.cat((mask.new_ones(len(mask), extra), mask), 1)
            else:
                mask = mask[:, : seen.places.shape[1]]
        logits: Tensor = self.head.at_places(z, seen.places, mask)  # type: ignore[operator]
        if z.ndim == 3 and logits.ndim == 2:  # of a head that does not read z
            return logits[:, None].expand(-1, z.shape[1], -1)
        return logits

    def _settle(self, seen: _Pass) -> None:
        """Listen from now on only to the module that gave the places and to the one that was given the mask."""
        if torch.compiler.is_compiling():
            need = "the first pass, which finds the places, must be a plain one"
            fix = "Run the model on one batch, or give kernelize a loader, before torch.compile or torch.export."
            raise RuntimeError(checks.sentence("kernelize", need, "a compiled one", fix))
        assert seen.places is not None
        # Of the masks of about as many tokens: the model's own, else the last.
        tokens = seen.places.shape[1]
        chosen = None
        for key, mask in seen.masks.items():
            if abs(mask.shape[1] - tokens) <= 1:
                chosen = key
                if not key[0]:
                    break
        self.settle(seen.source, chosen)

    def settle(self, source: str, mask: tuple[str, str] | None) -> None:
        """Name what is listened to, as a first pass would."""
        self.source, self.mask = source, mask
        for name in [name for name in self._handles if not self._listens_to(name)]:
            self._handles.pop(name).remove()

    def see(self, name: str, output: Any, arguments: dict[str, Any]) -> None:
        """Remember what one module gave and was given."""
        seen = self._passes.setdefault(_thread(), _Pass())

        # Masks: True where a token counts. A padding mask says the opposite, and an additive one has 0 there.
        for key, mask in arguments.items():
            if "mask" in key and isinstance(mask, Tensor) and mask.ndim == 2:
                is_additive = mask.is_floating_point() and key != "attention_mask"
                if is_additive or "padding" in key:
                    seen.masks[name, key] = mask == 0
                else:
                    seen.masks[name, key] = mask != 0

        # An output with several places of d features; the last of a pass counts.
        if isinstance(output, Tensor) and output.ndim >= 3 and self.source in (None, name):
            d = self.in_features
            channels_first, channels_last = output.shape[1] == d, output.shape[-1] == d
            places = None
            if channels_first and not (channels_last and output.ndim == 3):  # d tokens of d channels: channels last
                places = output.flatten(2).mT  # (n, s, d)
            elif channels_last:
                places = output.flatten(1, -2)
            if places is not None and places.shape[1] > 1:
                seen.source, seen.places = name, places
            else:
                seen.other_shape = tuple(output.shape)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_passes": {}}


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
        self.parameters = list(inspect.signature(module.forward).parameters)

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any = None) -> None:
        masks = {key: kwargs[key] for key in self.parameters if "mask" in key and key in kwargs}
        for key, value in zip(self.parameters, args, strict=False):
            if "mask" in key:
                masks[key] = value
        if not self.name:
            self.head._passes.pop(_thread(), None)  # what an interrupted pass may have left
        self.head.see(self.name, output, masks)


def _thread() -> int:
    """The thread that runs a pass; a compiler cannot ask."""
    if torch.compiler.is_compiling():
        return 0
    return threading.get_ident()
