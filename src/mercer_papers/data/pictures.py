"""Picture formats: strips of WebP, MNIST's idx, CIFAR's binary batches, the text digits of USPS."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mercer import checks
from mercer.storage.archives import corrupt, decompress

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
Take = Callable[[Rows], Tensor]  # row numbers -> pictures (n, channels, height, width) in [0, 1]


def from_array(pixels: Array, *, low: float = 0.0, high: float = 255.0) -> Take:
    """Pictures held as an array ``(n, h, w)`` or ``(n, c, h, w)`` with values in ``low..high``."""
    full = pixels[:, None] if pixels.ndim == 3 else pixels  # (n, c, h, w)

    def take(rows: Rows) -> Tensor:
        _room(len(rows), full[0].size)
        scaled = full[rows].astype(np.float32)
        if low:
            scaled -= np.float32(low)
        scaled /= np.float32(high - low)
        return torch.from_numpy(scaled)

    return take


def from_strips(path: Path, blob: Array, offsets: Array, n: int, shape: tuple[int, int, int]) -> Take:
    """Pictures stacked vertically in WebP strips; only the strips that hold a wanted row are decoded.

    Args:
        path: the file, for messages.
        blob: the strips' bytes, one after the other, uint8.
        offsets: where strip i starts and ends, ``(strips + 1,)``.
        n: pictures in all; every strip but the last holds as many.
        shape: channels, height, width of one picture.
    """
    steps = np.empty(0)
    if offsets.ndim == 1:
        steps = np.diff(offsets.astype(np.int64))
    if len(steps) == 0 or n == 0 or offsets[0] < 0 or offsets[-1] > blob.size or (steps <= 0).any():
        raise corrupt(path, f"offsets must rise within the {blob.size} bytes of the blob", f"{offsets.shape}")
    per_strip = -(-n // len(steps))

    def decode(number: int) -> Array:  # -> (count, c, h, w), uint8
        """One strip; its size is compared with what was promised before it is decoded."""
        (c, h, w), count = shape, min(per_strip, n - number * per_strip)
        content, pillow = blob[offsets[number] : offsets[number + 1]].tobytes(), _pillow(path)
        try:
            with pillow.open(io.BytesIO(content), formats=("WEBP",)) as image:
                if image.size != (w, count * h):
                    size = f"{image.size[0]} x {image.size[1]}"
                    raise corrupt(path, f"a strip must have {w} x {count * h} pixels", size)
                pixels = np.asarray(image.convert("RGB" if c == 3 else "L"))
        except (OSError, SyntaxError, pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
            raise corrupt(path, "a strip must be a whole WebP picture", type(error).__name__) from error
        return pixels.reshape(count, h, w, c).transpose(0, 3, 1, 2)

    def take(rows: Rows) -> Tensor:
        _room(len(rows), int(np.prod(shape)))
        out = torch.empty(len(rows), *shape)
        strip_of = rows // per_strip
        needed = np.unique(strip_of)
        for number in needed.tolist():
            places = np.flatnonzero(strip_of == number)
            out[torch.from_numpy(places)] = from_array(decode(number))(rows[places] - number * per_strip)
        return out

    return take


def from_files(paths: list[Path]) -> Take:
    """Pictures in files of their own (JPEG or PNG): the middle square of each, at 224 x 224, in colour."""
    side = 224

    def take(rows: Rows) -> Tensor:
        _room(len(rows), 3 * side * side)
        pillow = _pillow(paths[0])
        out = torch.empty(len(rows), 3, side, side)
        for place, row in enumerate(rows.tolist()):
            try:
                with pillow.open(paths[row], formats=("JPEG", "PNG")) as image:
                    w, h = image.size
                    edge = min(w, h)
                    left, top = (w - edge) // 2, (h - edge) // 2
                    box = (left, top, left + edge, top + edge)
                    square = np.array(image.convert("RGB").resize((side, side), box=box))
            except (OSError, SyntaxError, pillow.DecompressionBombError) as error:
                need = "the file must be a whole JPEG or PNG picture"
                raise corrupt(paths[row], need, type(error).__name__) from error
            out[place] = torch.from_numpy(square).permute(2, 0, 1).float() / 255
        return out

    return take


def idx(path: Path) -> Array:
    """An array of unsigned bytes in MNIST's idx format, plain or gzipped."""
    content = decompress(path)
    if len(content) < 4 or content[:3] != b"\0\0\x08" or not 1 <= content[3] <= 3:
        raise corrupt(path, "an idx file of bytes must start with 00 00 08", content[:4].hex(" ") or "nothing")
    head = 4 + 4 * content[3]
    if len(content) < head:
        raise corrupt(path, f"the header must have {head} bytes", len(content))
    shape = struct.unpack(f">{content[3]}I", content[4:head])
    size = 1
    for side in shape:
        size *= side  # Python integers: a product in a header must not wrap around
    if len(content) - head != size:
        raise corrupt(path, f"the header promises {size} bytes", len(content) - head)
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def cifar_binary(paths: Iterable[Path], *, label_bytes: int = 1) -> tuple[Array, Array]:
    """Pixels ``(n, 3, 32, 32)`` and labels ``(n,)`` of CIFAR's binary batches; of two labels the last (fine) counts."""
    record = label_bytes + 3 * 32 * 32
    tables = []
    for path in paths:
        content = decompress(path)
        if not content or len(content) % record:
            raise corrupt(path, f"a binary batch must have records of {record} bytes", f"{len(content)} bytes")
        tables.append(np.frombuffer(content, np.uint8).reshape(-1, record))
    table = np.concatenate(tables)
    return table[:, label_bytes:].reshape(-1, 3, 32, 32), table[:, label_bytes - 1]


def usps_text(path: Path) -> tuple[Array, Array]:
    """Grey values ``(n, 16, 16)`` in [-1, 1] and labels ``(n,)`` of a ``zip.train`` file: 257 numbers a line."""
    try:
        table = np.loadtxt(io.BytesIO(decompress(path)), dtype=np.float32, ndmin=2)
    except (ValueError, UnicodeDecodeError) as error:
        raise corrupt(path, "each line must have a digit and 256 numbers", str(error).split("\n")[0][:80]) from error
    if table.shape[0] == 0 or table.shape[1] != 257 or not np.isfinite(table).all():
        raise corrupt(path, "each line must have a digit and 256 numbers", f"a table of {table.shape}")
    digits = table[:, 0].astype(np.int64)
    if (digits != table[:, 0]).any():
        raise corrupt(path, "each line must start with a digit", "a fraction")
    return table[:, 1:].reshape(-1, 16, 16), digits


def _pillow(path: Path) -> Any:
    """Pillow's module ``Image``, an optional package; ``path`` is what asks for it."""
    try:
        from PIL import Image
    except ImportError as error:
        fix = "Run pip install mercer[data]."
        raise ImportError(checks.sentence(path.name, "decoding pictures needs pillow", "none", fix)) from error
    return Image


def _room(n: int, values: int) -> None:
    checks.memory("data.load", f"{n} pictures in float32", 8 * n * values, "Ask for fewer with rows= or classes=.")
