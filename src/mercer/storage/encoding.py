"""Objects to JSON and tensors, and back, without ever running what a file says.

JSON values stand for themselves; everything else is a dictionary with one tag that begins with ``$``.
Tensors go to a table beside the JSON, equal ones once.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from ..checks import sentence
from .savable import Savable

_ROOM = 2**28  # bytes that constructors may allocate besides what the tensors hold
_MODULE = re.compile(r"mercer(_\w+)?(\.[a-z][a-z0-9_]*)+")
_FACTORIES = {
    *(torch.empty, torch.zeros, torch.ones, torch.full, torch.eye, torch.arange, torch.linspace, torch.logspace),
    *(torch.rand, torch.randn, torch.randperm, torch.randint),
}
_LIKE = {Tensor.new_empty, Tensor.new_zeros, Tensor.new_ones, Tensor.new_full}
_UNKNOWN_TO_META = ("generator", "out", "pin_memory")


class Encoder:
    """Turns a savable into JSON; ``tensors`` fills up as it goes."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[str, str] = {}  # of stored tensors, by what identifies their content

    def savable(self, value: Savable, path: str, *, with_state: bool = True) -> dict[str, Any]:
        """The class's name, its arguments, its state."""
        # Modules among the arguments are a part of this one: the state of the whole holds theirs.
        owned: set[int] = set()
        if isinstance(value, nn.Module):
            owned = set(map(id, value.modules()))
        arguments = {name: self.value(item, f"{path}.{name}", owned) for name, item in value.get_arguments().items()}
        document: dict[str, Any] = {"$object": class_name(type(value), path), "arguments": arguments}
        if with_state:
            document["state"] = self.value(value.get_state(), f"{path}.state")
            if isinstance(value, nn.Module):
                document["training"] = value.training
        return document

    def value(self, value: Any, path: str, owned: set[int] | frozenset[int] = frozenset()) -> Any:
        """One value; ``owned`` are the submodules whose state their owner already saves."""
        # Values that JSON has.
        if type(value) in (type(None), bool, int, str):  # a subclass would come back as these
            return value
        if type(value) is float and not math.isfinite(value):
            return {"$float": str(value)}
        if type(value) is float:
            return value
        # Objects of Mercer, then numbers in tensors and arrays, then containers.
        if isinstance(value, Savable):
            return self.savable(value, path, with_state=id(value) not in owned)
        if isinstance(value, Tensor):
            return {"$tensor": self._store(value, path)}
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value, path)
        if type(value) in (list, tuple):
            items = [self.value(item, f"{path}.{i}", owned) for i, item in enumerate(value)]
            if type(value) is tuple:
                return {"$tuple": items}
            return items
        if isinstance(value, Mapping):
            if all(type(key) is str and not key.startswith("$") for key in value):
                return {key: self.value(item, f"{path}.{key}", owned) for key, item in value.items()}
            pairs = ([self.value(k, path), self.value(v, f"{path}.{k}", owned)] for k, v in value.items())
            return {"$items": list(pairs)}
        if isinstance(value, torch.dtype | torch.device):
            return {f"${type(value).__name__}": str(value).removeprefix("torch.")}
        if isinstance(value, torch.Generator):
            return {"$generator": str(value.device), "state": self._store(value.get_state(), path)}
        # Nothing else is data.
        got, fix = f"a {type(value).__name__}", "Give numbers, strings, tensors, arrays, or objects of Mercer."
        if isinstance(value, nn.Module):
            got = f"the module {type(value).__name__}"
            fix = "Keep your model's state_dict with your own code; Mercer saves its own objects."
        elif callable(value):
            got = f"the function {getattr(value, '__name__', type(value).__name__)}"
            fix = "Code is never saved: construct the object again with your function."
        raise TypeError(sentence("mercer.save", f"{path} must be data that a file can carry", got, fix))

    def _array(self, value: np.ndarray | np.generic, path: str) -> dict[str, Any]:
        kind = "$scalar"
        if isinstance(value, np.ndarray):
            kind = "$array"
        array = np.asarray(value)
        if array.dtype.kind in "OU":  # labels: strings, or objects that are strings and numbers
            items = self.value(array.ravel().tolist(), path)
            return {"$listed": items, "shape": list(array.shape), "dtype": array.dtype.str, "as": kind}
        return {kind: self._store(torch.from_numpy(np.array(array, order="C")), path), "dtype": array.dtype.str}

    def _store(self, value: Tensor, path: str) -> str:
        if value.is_meta:
            raise TypeError(sentence("mercer.save", f"{path} must hold data", "a tensor on the meta device"))
        # Equal tensors are stored once, known by dtype, shape and bytes.
        plain = value.detach().cpu().contiguous()
        raw = np.empty(0, np.uint8)
        if plain.numel():
            raw = plain.reshape(-1).view(torch.uint8).numpy()
        digest = f"{plain.dtype}{tuple(plain.shape)}{hashlib.sha256(raw.data).hexdigest()}"
        if digest not in self._names:
            name = path
            if path in self.tensors:
                name = f"{path}#{len(self.tensors)}"
            self._names[digest] = name
            self.tensors[name] = plain.clone()  # safetensors refuses tensors that share memory
        return self._names[digest]


class Decoder:
    """Turns what :class:`Encoder` made back into objects; constructs savables of Mercer, nothing else."""

    def __init__(self, tensors: Mapping[str, Tensor], source: str, room: int = _ROOM) -> None:
        self.tensors, self.source, self.room = tensors, source, room

    def whole(self, document: Mapping[str, Any]) -> Savable:
        """The object that a manifest describes.

        Raises:
            ValueError: It cannot be built, or asks for far more memory than its tensors have.
        """
        size = sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())
        try:
            with AllocationBudget(self.room + 4 * size):
                return self.savable(document)
        except Exception as error:
            if isinstance(error, ValueError) and str(error).startswith("mercer.load: "):
                raise
            text = str(error).rstrip(".") or type(error).__name__
            raise self._wrong("what this version can build", text) from error

    def value(self, value: Any) -> Any:
        """One decoded value."""
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if not isinstance(value, dict):
            return value
        tag = next((key for key in value if key.startswith("$")), None)
        if tag is None:
            return {key: self.value(item) for key, item in value.items()}
        return self._decode_tagged(tag, value)

    def savable(self, document: Mapping[str, Any]) -> Savable:
        """The object, constructed and given its state."""
        # Construct it, from arguments of the annotated types.
        cls = self._class(document["$object"])
        if not isinstance(document.get("arguments"), dict):
            raise self._wrong(f"the arguments of {cls.__name__}", document.get("arguments"))
        arguments = self.value(document["arguments"])
        if not issubclass(cls, nn.Module) and not hasattr(cls, "get_params"):  # these check what users give them
            self._check_types(cls, arguments, arguments=True)
        try:
            result = cls.from_arguments(arguments)
        except TypeError as error:
            raise self._wrong(f"arguments that fit {cls.__name__}", error) from error

        # Give it its state.
        if "state" in document:
            try:
                state = self.value(document["state"])
                if isinstance(state, dict) and not isinstance(result, nn.Module):
                    self._check_types(cls, state, arguments=False)
                result.set_state(state)
            except (RuntimeError, KeyError) as error:  # torch lists the missing and unexpected keys
                raise self._wrong(f"the state of a {cls.__name__} of this version", error) from error
            if isinstance(result, nn.Module):
                result.train(bool(document["training"]))
        return result

    def _check_types(self, cls: type[Savable], values: Mapping[str, Any], *, arguments: bool) -> None:
        wrong = find_misfit(cls, values, arguments=arguments)
        if wrong is not None:
            name, hint = wrong
            if isinstance(hint, type):
                hint = hint.__name__
            need = f"{hint} as {name} of a {cls.__name__}"
            raise self._wrong(need, repr(values[name])[:60])

    def _decode_tagged(self, tag: str, value: dict[str, Any]) -> Any:
        body = value[tag]
        # Each tag that `Encoder` writes; any other is refused.
        match tag:
            case "$object":
                return self.savable(value)
            case "$tensor":
                return self._tensor(body).clone()  # the table may be a view of the file
            case "$array":
                return self._tensor(body).clone().numpy().astype(self._dtype(value["dtype"], "biufc"), copy=False)
            case "$scalar":
                return self._tensor(body).numpy().astype(self._dtype(value["dtype"], "biufc"))[()]
            case "$listed":
                array = np.empty(len(body), dtype=self._dtype(value["dtype"], "OU", len(body)))
                array[:] = self.value(body)
                array = array.reshape(value["shape"])
                if value["as"] == "$scalar":
                    return array[()]
                return array
            case "$tuple":
                return tuple(self.value(body))
            case "$items":
                return {self.value(key): self.value(item) for key, item in body}
            case "$float":
                return float(body)
            case "$dtype" if isinstance(getattr(torch, body, None), torch.dtype):
                return getattr(torch, body)
            case "$device":
                return torch.device(body)
            case "$generator":
                generator = torch.Generator(body)
                generator.set_state(self._tensor(value["state"]))
                return generator
        raise self._wrong("only values that this version knows", f"{tag}: {body!r}")

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise self._wrong("only tensors that were saved with it", f"a reference to {name!r}")
        return self.tensors[name]

    def _dtype(self, name: Any, kinds: str, items: int = 0) -> np.dtype[Any]:
        dtype: np.dtype[Any] | None = None
        if isinstance(name, str):
            with contextlib.suppress(TypeError):
                dtype = np.dtype(name)
        if dtype is None or dtype.kind not in kinds or items * dtype.itemsize > self.room:
            raise self._wrong(f"arrays of the kinds {kinds}", repr(name)[:40])
        return dtype

    def _class(self, name: str) -> type[Savable]:
        module, _, attribute = str(name).rpartition(".")
        cls = None
        if _MODULE.fullmatch(module):  # never import by a name from outside the package
            with contextlib.suppress(ImportError):
                cls = getattr(importlib.import_module(module), attribute, None)
        if isinstance(cls, type) and issubclass(cls, Savable) and cls is not Savable:
            return cls
        raise self._wrong("only classes of Mercer that can be saved", repr(name))

    def _wrong(self, need: str, got: object) -> ValueError:
        fix = "It was written for another version, or changed by hand: save the object again."
        return ValueError(sentence("mercer.load", f"{self.source} must hold {need}", got, fix))


def class_name(cls: type, path: str) -> str:
    """The public name, so that a class may move between files of its package."""
    if not _MODULE.fullmatch(cls.__module__) or "." in cls.__qualname__:
        fix = "Save the state_dict of your own classes with safetensors, and construct them yourself."
        raise TypeError(
            sentence("mercer.save", f"{path} must be of a class of Mercer", f"{cls.__module__}.{cls.__qualname__}", fix)
        )
    package = ".".join(cls.__module__.split(".")[:2])
    public = getattr(importlib.import_module(package), cls.__name__, None)
    if public is cls:
        return f"{package}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__name__}"


class AllocationBudget(TorchFunctionMode):
    """While entered, torch's factories together make at most ``limit`` bytes.

    Each call is first made on the meta device, which has shapes and no memory.

    Raises:
        MemoryError: A call would go beyond; nothing was allocated for it.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.spent = limit, 0

    @override
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in _FACTORIES or func in _LIKE:
            # The same call on the meta device has the shape and takes no memory.
            plain = {key: value for key, value in named.items() if key not in _UNKNOWN_TO_META}
            on_meta = args
            if func in _LIKE:
                on_meta = (args[0].to("meta"), *args[1:])
            shape = func(*on_meta, **{**plain, "device": "meta"})
            self.spent += shape.numel() * shape.element_size()
            if self.spent > self.limit:
                raise MemoryError(f"{self.spent / 2**30:.2f} GiB, more than {self.limit / 2**30:.2f}")
        return func(*args, **named)


def find_misfit(cls: type, values: Mapping[str, Any], *, arguments: bool) -> tuple[str, Any] | None:
    """The first name whose value its annotation rules out, with that annotation; None where all fit.

    A changed file fails where it is read. What cannot be resolved, or is not checked (type variables, callables), fits.

    Args:
        cls: The class.
        values: By name.
        arguments: Whether they are its constructor's arguments; else its attributes.

    >>> class Ball:
    ...     radius: float
    ...     names: list[str]
    >>> find_misfit(Ball, {"radius": 2, "names": ["a", 3]}, arguments=False)
    ('names', list[str])
    """
    # Where annotations stand: at the constructor, or in the class and its bases.
    owners: Sequence[Any] = cls.__mro__
    if arguments:
        owners = [cls.__init__]  # type: ignore[misc]
    for owner in owners:
        if owner is object.__init__:
            continue
        names = vars(sys.modules[owner.__module__])
        for name, text in inspect.get_annotations(owner).items():
            try:  # one by one: some names are imported for type checkers only
                hint = typing.get_type_hints(types.SimpleNamespace(__annotations__={name: text}), names)[name]
            except NameError:
                continue
            if name in values and not _fits(values[name], hint):
                return name, hint
    return None


def _fits(value: Any, hint: Any) -> bool:
    # Unions and literals, then containers item by item, then plain types.
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, kind) for kind in inner)
    if origin is typing.Literal:
        return value in inner
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if isinstance(origin, type) and issubclass(origin, Sequence):
        if not isinstance(value, list | tuple):
            return False
        if origin is tuple and inner[-1] is not Ellipsis:  # a fixed number of items, each of its own kind
            return len(value) == len(inner) and all(map(_fits, value, inner))
        return all(_fits(item, inner[0]) for item in value)
    if hint is None or hint is types.NoneType:
        return value is None
    kind = origin or hint
    if kind in (int, bool):  # numpy's whole numbers, too
        return isinstance(value, Integral)
    if kind is float:
        return isinstance(value, Real)
    try:
        return isinstance(value, kind)
    except TypeError:  # not a type: Any, a type variable, a protocol that is checked by nobody
        return True
