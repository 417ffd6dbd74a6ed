"""The shape of a JSON document, checked before anything is built from it.

A shape is written as the data looks::

    {"file": str, "notes?": [str], "scores": {str: float}, "state": {"done", "failed"}, "seed": (int, None)}

``str``, ``int``, ``float`` (any finite number), ``bool``, ``None`` and ``object`` (anything) stand for themselves;
``[shape]`` is a list; ``{str: shape}`` a mapping; another ``dict`` a record, whose keys are all needed except those
that end in ``?``, and which has no others unless it has the key ``...``; a tuple is any of its shapes; a set any of
its texts.
"""

from __future__ import annotations

import math
from typing import Any

from ..checks import sentence

TEXT_LIMIT = 2**20  # letters of one text
LIST_LIMIT = 2**20  # items of one list or mapping
_WHOLE = 2**63
_NAMES = {
    str: "a text",
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    None: "null",
    object: "a value",
}

_KIND_NAMES: dict[type, str] = {list: "a list", dict: "an object"}


class _Mismatch(Exception):  # noqa: N818 - never seen outside of this file
    def __init__(self, path: str, need: str, value: Any) -> None:
        self.path, self.need, self.value = path, need, value


def check_schema(where: str, source: str, value: Any, shape: Any) -> Any:
    """The value, if it has the shape.

    Args:
        where: Who reads, for the sentence.
        source: The file, or line of a file, that the value was read from.
        value: What ``json.loads`` gave.
        shape: As the module says.

    Raises:
        ValueError: The sentence names the source, the place in it, what is needed and what came.

    >>> check_schema("load", "a.json", {"n": 1}, {"n": int, "note?": str})
    {'n': 1}
    >>> check_schema("load", "a.json", {"n": True}, {"n": int})
    Traceback (most recent call last):
    ValueError: load: a.json must hold a whole number at n; got True. The file is damaged or was changed by hand.
    """
    try:
        _check(value, shape, "")
    except _Mismatch as wrong:
        place = ""
        if wrong.path:
            place = f" at {wrong.path}"
        got = repr(wrong.value)
        if len(got) > 60:
            got = got[:57] + "..."
        fix = "The file is damaged or was changed by hand."
        raise ValueError(sentence(where, f"{source} must hold {wrong.need}{place}", got, fix)) from None
    return value


def _check(value: Any, shape: Any, path: str) -> None:
    """Raise a mismatch where the value has not the shape; ``path`` is the place in the document."""
    # Alternatives and texts, then lists item by item, then mappings and records, then plain types.
    if isinstance(shape, tuple):
        if not any(_fits(value, option, path) for option in shape):
            raise _Mismatch(path, " or ".join(map(_describe, shape)), value)
    elif isinstance(shape, set | frozenset):
        if not isinstance(value, str) or value not in shape:
            raise _Mismatch(path, f"one of {', '.join(sorted(shape))}", value)
    elif isinstance(shape, list):
        _check_length(value, list, path)
        for i, item in enumerate(value):
            _check(item, shape[0], f"{path}[{i}]")
    elif isinstance(shape, dict):
        _check_record(value, shape, path)
    elif not _has_type(value, shape):
        raise _Mismatch(path, _describe(shape), value)


def _check_record(value: Any, shape: dict[Any, Any], path: str) -> None:
    _check_length(value, dict, path)
    # A mapping: any keys, values of one shape.
    if str in shape:
        for name, item in value.items():
            _check(item, shape[str], f"{path}.{name[:40]}".lstrip("."))
        return

    # A record: all keys that are needed, and no others.
    fields = {name.removesuffix("?"): inner for name, inner in shape.items() if name != "..."}
    for name in shape:
        if name != "..." and not name.endswith("?") and name not in value:
            raise _Mismatch(path, f"the key {name!r}", sorted(value)[:5])
    for name, item in value.items():
        if name in fields:
            _check(item, fields[name], f"{path}.{name}".lstrip("."))
        elif "..." not in shape:
            raise _Mismatch(path, f"only the keys {', '.join(fields)}", name)


def _check_length(value: Any, kind: type[list[Any]] | type[dict[str, Any]], path: str) -> None:
    if not isinstance(value, kind):
        raise _Mismatch(path, _KIND_NAMES[kind], value)
    if len(value) > LIST_LIMIT:
        raise _Mismatch(path, f"at most {LIST_LIMIT} items", f"{len(value)} items")


def _fits(value: Any, shape: Any, path: str) -> bool:
    try:
        _check(value, shape, path)
    except _Mismatch:
        return False
    return True


def _has_type(value: Any, shape: Any) -> bool:
    if shape is object:
        return True
    if shape is None:
        return value is None
    if shape is str:
        return isinstance(value, str) and len(value) <= TEXT_LIMIT
    if shape is bool:
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if shape is int:
        return isinstance(value, int) and abs(value) < _WHOLE
    return math.isfinite(value)


def _describe(shape: Any) -> str:
    if isinstance(shape, list | dict):
        return _KIND_NAMES[type(shape)]
    if isinstance(shape, set | frozenset):
        return f"one of {', '.join(sorted(shape))}"
    return _NAMES[shape]
