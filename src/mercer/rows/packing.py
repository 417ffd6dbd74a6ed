"""Networks that take several arguments (token ids and an attention mask, say): their batches as one tensor of rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..checks import floating, same_length, sentence
from ..storage.savable import Savable
from .loading import as_tensor

LABELS = ("labels", "label")


@dataclasses.dataclass
class Packing(Savable):
    """How the arguments of one batch lie side by side in one tensor ``(n, width)``.

    Whole numbers alone are packed as such; beside floats they become floats, exact up to 2^24.

    Args:
        names: The arguments, in order.
        shapes: Shape of one row of each.
        whole: Which of them are whole numbers.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    whole: tuple[bool, ...]

    @classmethod
    def of(cls, where: str, batch: Mapping[str, Any]) -> Self:
        """The packing of batches like this one."""
        parts = _arguments(where, batch)
        shapes = tuple(tuple(part.shape[1:]) for part in parts.values())
        return cls(tuple(parts), shapes, tuple(not part.is_floating_point() for part in parts.values()))

    def pack(self, where: str, batch: object) -> Tensor:  # -> (n, width)
        """One tensor from a dictionary of arguments."""
        if not isinstance(batch, Mapping):
            need = f"x must be a dictionary of {', '.join(self.names)}, as at fit"
            raise ValueError(sentence(where, need, type(batch).__name__))
        parts = _arguments(where, batch)
        shapes = tuple(tuple(part.shape[1:]) for part in parts.values())
        if tuple(parts) != self.names or shapes != self.shapes:
            need = "x must hold " + ", ".join(f"{n} {s}" for n, s in zip(self.names, self.shapes, strict=True))
            got = ", ".join(f"{name} {tuple(part.shape[1:])}" for name, part in parts.items())
            raise ValueError(sentence(where, f"{need} a row", got, "Pad all rows to the length met at fit."))
        # Side by side, one number of each row as a column.
        columns = [part[:, None].flatten(1) for part in parts.values()]
        if all(self.whole):
            return torch.cat([part.long() for part in columns], 1)

        # Beside floats, whole numbers become floats, which are exact up to 2^24.
        counts = [part for part, is_whole in zip(columns, self.whole, strict=True) if is_whole and len(part)]
        if any(int(part.abs().max()) > 2**24 for part in counts):
            raise ValueError(sentence(where, "whole numbers beside floats must stay below 2^24", "a larger one"))
        dtype = next(floating(part).dtype for part, is_whole in zip(columns, self.whole, strict=True) if not is_whole)
        return torch.cat([part.to(dtype) for part in columns], 1)

    def unpack(self, rows: Tensor) -> dict[str, Tensor]:  # (n, width) ->
        """The dictionary of arguments again."""
        sizes = [torch.Size(shape).numel() for shape in self.shapes]
        arguments = {}
        for name, part, shape, is_whole in zip(self.names, rows.split(sizes, 1), self.shapes, self.whole, strict=True):
            arguments[name] = part.reshape(len(rows), *shape)
            if is_whole:
                arguments[name] = arguments[name].long()
        return arguments


class PackedNetwork(nn.Module):
    """A network of several arguments as one of packed rows.

    Args:
        model: The network.
        packing: How its arguments were packed.
    """

    def __init__(self, model: nn.Module, packing: Packing) -> None:
        super().__init__()
        self.model, self.packing = model, packing

    @override
    def forward(self, rows: Tensor) -> Any:  # (n, width) ->
        return self.model(**self.packing.unpack(rows))


def split_labels(where: str, loader: Iterable[Any]) -> tuple[list[Mapping[str, Any]], list[Tensor]] | None:
    """Dictionaries and labels of a loader that gives ``{..., "labels": y}`` or pairs of a dictionary and y.

    None for any other data; a loader of tensors is not read.
    """
    # One batch counts as a loader of one; tensors and loaders of tensors are not ours.
    batches: Iterable[Any] = loader
    if isinstance(loader, Mapping | tuple) and _is_named(loader):  # one batch
        batches = [loader]
    elif isinstance(loader, Tensor | tuple) or not _is_named(next(iter(loader), None)):
        return None

    # The labels of each batch stand beside its dictionary or in it.
    dictionaries: list[Mapping[str, Any]] = []
    labels: list[Tensor] = []
    for batch in batches:
        if isinstance(batch, tuple | list):
            arguments, y = batch
        else:
            name = next((name for name in LABELS if name in batch), None)
            if name is None:
                fix = "Give pairs (dictionary, y), or name the labels 'labels'."
                raise ValueError(sentence(where, "a batch must hold labels", ", ".join(map(str, batch)), fix))
            arguments, y = batch, batch[name]
        dictionaries.append({name: value for name, value in arguments.items() if name not in LABELS})
        labels.append(as_tensor(where, "y", y))
    return dictionaries, labels


def _is_named(batch: Any) -> bool:
    pair = isinstance(batch, tuple | list) and bool(batch) and isinstance(batch[0], Mapping)
    return pair or isinstance(batch, Mapping)


def _arguments(where: str, batch: Mapping[str, Any]) -> dict[str, Tensor]:
    parts = {str(n): as_tensor(where, str(n), v) for n, v in batch.items() if n not in LABELS}
    if not parts:
        raise ValueError(sentence(where, "x must hold the network's arguments", "an empty dictionary"))
    first = next(iter(parts))
    for name, part in parts.items():
        same_length(where, first, parts[first], name, part)
    return parts
