"""Whether decoded values are what a class's annotations say, so that a changed file fails where it is read."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any


def misfit(cls: type, values: Mapping[str, Any], *, arguments: bool) -> tuple[str, Any] | None:
    """The first name whose value its annotation rules out, with that annotation; None where all fit.

    What cannot be resolved, or is not checked (type variables, callables), fits.

    Args:
        cls: The class.
        values: By name.
        arguments: Whether they are its constructor's arguments; else its attributes.

    >>> class Ball:
    ...     radius: float
    ...     names: list[str]
    >>> misfit(Ball, {"radius": 2, "names": ["a", 3]}, arguments=False)
    ('names', list[str])
    """
    for name, hint in _hints(cls, arguments):
        if name in values and not _fits(values[name], hint):
            return name, hint
    return None


def _hints(cls: type, arguments: bool) -> Iterator[tuple[str, Any]]:
    owners = [cls.__init__] if arguments else cls.__mro__  # type: ignore[misc]
    for owner in owners:
        if owner is object.__init__:
            continue
        names = vars(sys.modules[owner.__module__])
        for name, hint in inspect.get_annotations(owner).items():
            try:  # one by one: some names are imported for type checkers only
                yield name, typing.get_type_hints(types.SimpleNamespace(__annotations__={name: hint}), names)[name]
            except NameError:
                continue


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is typing.Literal:
        return value in inner
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _fits_sequence(value, origin, inner)
    if hint is None or hint is types.NoneType:
        return value is None
    return _is(value, origin or hint)


def _fits_sequence(value: Any, origin: type, inner: tuple[Any, ...]) -> bool:
    if not isinstance(value, list | tuple):
        return False
    if origin is tuple and inner[-1] is not Ellipsis:
        return len(value) == len(inner) and all(map(_fits, value, inner))
    return all(_fits(item, inner[0]) for item in value)


def _is(value: Any, kind: Any) -> bool:
    if kind in (int, bool):  # numpy's whole numbers, too
        return isinstance(value, Integral)
    if kind is float:
        return isinstance(value, Real)
    try:
        return isinstance(value, kind)
    except TypeError:  # not a type: Any, a type variable, a protocol that is checked by nobody
        return True
