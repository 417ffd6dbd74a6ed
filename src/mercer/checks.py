"""The one error sentence, the warning class, and the checks that every public entry shares.

A message says where it happened, what is needed, what came and what to do:

>>> positive("RBF", "gamma", -2.0)
Traceback (most recent call last):
ValueError: RBF: gamma must be positive; got -2.0.
"""

from __future__ import annotations

import math
import numbers
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "NumericalWarning",
    "cast_floats",
    "choice",
    "dense",
    "device",
    "finite",
    "floating",
    "floating_dtype",
    "integer",
    "matrix",
    "memory",
    "no_overflow",
    "non_negative",
    "positive",
    "real",
    "same_device",
    "same_length",
    "sentence",
    "squarable",
    "warn",
    "weights",
]


_CGROUPS = (  # where a container's limit of memory and its use stand, in versions 2 and 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


class NumericalWarning(UserWarning):
    """A numerical repair was made (jitter, a floor, fewer components); the message states its size."""


def sentence(where: str, need: str, got: object, fix: str = "") -> str:
    """The house's error sentence, as ``where: need; got this. What to do.`` reads."""
    return f"{where}: {need}; got {got}. {fix}".rstrip()


def warn(where: str, message: str, *, stacklevel: int = 3) -> None:
    """Warn once of a numerical repair, as :class:`NumericalWarning`."""
    warnings.warn(f"{where}: {message}", NumericalWarning, stacklevel=stacklevel)


def positive(where: str, name: str, value: float) -> float:
    """A finite number above 0."""
    if not _is_number(value) or not math.isfinite(value) or value <= 0:
        raise ValueError(sentence(where, f"{name} must be positive", value))
    return float(value)


def non_negative(where: str, name: str, value: float) -> float:
    """A finite number of at least 0."""
    if not _is_number(value) or not math.isfinite(value) or value < 0:
        raise ValueError(sentence(where, f"{name} must be 0 or more", value))
    return float(value)


def integer(where: str, name: str, value: int, low: int, high: int | None = None, *, of: str = "") -> int:
    """A whole number in ``low..high``; ``of`` says what ``high`` counts."""
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or value < low or (high is not None and value > high):
        need = f"{name} must be a whole number of at least {low}"
        if high is not None:
            need = f"{name} must be in {low}..{high}"
        if of:
            need = f"{need}, {of}"
        raise ValueError(sentence(where, need, value))
    return int(value)


def choice(where: str, name: str, value: object, options: Iterable[str]) -> str:
    """One of the named options."""
    names = list(options)
    if not isinstance(value, str) or value not in names:
        raise ValueError(sentence(where, f"{name} must be one of {', '.join(map(repr, names))}", repr(value)))
    return value


def matrix(where: str, name: str, x: object, *, columns: int | None = None) -> Tensor:
    """A tensor of shape ``(n, d)``; ``columns`` fixes d."""
    if not isinstance(x, Tensor):
        raise TypeError(
            sentence(where, f"{name} must be a tensor", type(x).__name__, "Use torch.as_tensor, or kernel.numpy.")
        )
    if x.ndim != 2:
        hint = {
            0: f"Use {name}.reshape(1, 1) for one number.",
            1: f"Use {name}[:, None] for one feature, {name}[None] for one row.",
        }.get(x.ndim, f"Use {name}.flatten(1) for one row a sample.")
        raise ValueError(sentence(where, f"{name} must have shape (n, d)", tuple(x.shape), hint))
    if columns is not None and x.shape[1] != columns:
        raise ValueError(sentence(where, f"{name} has {x.shape[1]} features, expecting {columns}", tuple(x.shape)))
    real(where, name, x)
    return dense(where, name, x)


def device(where: str, name: str, dtype: torch.dtype = torch.float32) -> str:
    """The name of a device that torch can use here with numbers of that type."""
    try:
        torch.empty(0, device=name, dtype=dtype)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        fix = "Use cpu, or a device that this machine and this torch have."
        raise ValueError(sentence(where, f"device {name!r} must be usable", str(error).splitlines()[0], fix)) from error
    return name


def dense(where: str, name: str, x: Tensor) -> Tensor:
    """No sparse tensor."""
    if x.layout is not torch.strided:
        raise TypeError(sentence(where, f"{name} must be dense", x.layout, f"Use {name}.to_dense()."))
    return x


def real(where: str, name: str, x: Tensor) -> Tensor:
    """No complex numbers: their imaginary part would be lost."""
    if x.is_complex():
        raise TypeError(sentence(where, f"{name} must be real", x.dtype, f"Use torch.view_as_real({name})."))
    return x


def floating(x: Tensor) -> Tensor:
    """The dtype rule: integers and booleans become the default dtype, half precision becomes float32."""
    if not x.is_floating_point():
        return x.to(torch.get_default_dtype())
    if x.dtype in (torch.float16, torch.bfloat16):
        return x.float()
    return x


def floating_dtype(x: Any, otherwise: torch.dtype | None = None) -> torch.dtype:
    """The dtype of floats (a tensor, or rows in a file); for whole numbers ``otherwise``, or torch's default dtype."""
    dtype: torch.dtype = x.dtype
    if x.is_floating_point():
        return dtype
    return otherwise or torch.get_default_dtype()


def cast_floats(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Floats in that dtype; whole numbers (tokens, indices, counters) stay as they are."""
    if x.is_floating_point():
        return x.to(dtype)
    return x


def finite(where: str, name: str, x: Tensor) -> Tensor:
    """No NaN and no infinity; the message names the first bad row."""
    if x.is_floating_point() and not math.isfinite(_largest(x)):
        # Only now, on the way to an error, look for the row.
        first = int((~torch.isfinite(x)).flatten().nonzero()[0, 0])
        row = first // max(1, x.shape[1:].numel())
        kind = "infinity"
        if bool(x.isnan().any()):
            kind = "NaN"
        raise ValueError(
            sentence(where, f"{name} must be finite", f"{kind}, first bad row {row}", "Drop or impute those rows.")
        )
    return x


def squarable(where: str, name: str, x: Tensor, *, empty: bool = False) -> Tensor:
    """Finite, with at least one row (unless ``empty``), and small enough that squared norms do not overflow."""
    if len(x) == 0 and not empty:
        raise ValueError(sentence(where, f"{name} must have at least one row", tuple(x.shape)))
    return no_overflow(where, name, finite(where, name, x))


def no_overflow(where: str, name: str, x: Tensor) -> Tensor:
    """Numbers whose squares, summed over a row, stay finite; NaN and infinity are not looked for."""
    largest = _largest(x)
    # A squared distance is at most 4 d times the largest square; half of the range is left for sums.
    limit = math.sqrt(torch.finfo(x.dtype).max / (8 * max(1, x.shape[1:].numel())))
    if limit < largest < math.inf:
        raise ValueError(
            sentence(
                where,
                f"{name} must stay below {limit:.1e} in {x.dtype}, because its squares overflow",
                f"{largest:.1e}",
                f"Standardise {name} first.",
            )
        )
    return x


def same_length(where: str, first: str, a: Any, second: str, b: Any) -> None:
    """Two arguments with as many rows."""
    if len(a) != len(b):
        raise ValueError(sentence(where, f"{first} and {second} must have as many rows", f"{len(a)} and {len(b)}"))


def weights(where: str, name: str, value: Any, n: int) -> Tensor | None:
    """Weights of n rows ``(n,)`` in float64: finite, 0 or more, one above 0. None where all rows weigh the same."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    try:
        # One number for all rows, or one for each.
        weight = torch.from_numpy(np.array(value, dtype=np.float64))  # a copy: the caller's weights stay his
    except (TypeError, ValueError) as error:
        raise ValueError(sentence(where, f"{name} must hold numbers", error)) from error
    if weight.ndim == 0:
        weight = weight.expand(n)
    if weight.shape != (n,):
        raise ValueError(sentence(where, f"{name} must have shape ({n},), a weight for each row", tuple(weight.shape)))
    finite(where, name, weight)
    if n and float(weight.min()) < 0:
        raise ValueError(sentence(where, f"{name} must be 0 or more", f"{float(weight.min()):g}"))
    if n and float(weight.max()) == 0:
        raise ValueError(sentence(where, f"{name} must be above zero in some row", "all zero weights"))
    if not n or bool((weight == weight[0]).all()):
        return None
    return weight


def same_device(where: str, first: str, a: torch.device, second: str, b: torch.device) -> None:
    """Two tensors that live on one device: nothing moves behind the user's back."""
    if a != b:
        raise ValueError(
            sentence(where, f"{first} and {second} must be on one device", f"{a} and {b}", f"Move one with .to({b}).")
        )


def memory(where: str, what: str, needed: int, fix: str) -> None:
    """Refuse, before allocating, what the machine's free memory cannot hold."""
    free = available_memory()
    if free is not None and needed > free:
        raise MemoryError(
            sentence(where, f"{what} needs {needed / 2**30:.1f} GiB", f"{free / 2**30:.1f} GiB free", fix)
        )


def available_memory() -> int | None:
    """Bytes available without swapping, within a container's limit; None where the system does not tell."""
    # Ask Linux; on other systems ask POSIX.
    free: int | None = None
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except OSError:
        pass
    if free is None:
        try:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            return None
    # A container that exceeds its limit is killed without a word, however much the machine has left.
    for limit, used in _CGROUPS:
        try:
            free = min(free, max(0, int(Path(limit).read_text()) - int(Path(used).read_text())))
        except (OSError, ValueError):  # no such file, or the limit is "max"
            continue
    return free


def _largest(x: Tensor) -> float:
    """Largest absolute value, NaN where there is one: one pass and no temporary, where ``isfinite`` costs ten."""
    if not x.numel():
        return 0.0
    # aminmax passes NaN on, so that one pass finds NaN, infinity and the largest value.
    low, high = (float(end) for end in torch.aminmax(x.detach()))
    if math.isnan(low) or math.isnan(high):
        return math.nan
    return max(-low, high)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
