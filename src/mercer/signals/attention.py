"""Attention in plain operations, which have derivatives of every kind."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

_lock = threading.Lock()
_inside = 0
_settings = contextlib.ExitStack()


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Switch torch's fused attention off while the block runs.

    The switches belong to torch and hold for the whole process: the first thread that enters turns them off, the last
    one that leaves turns them on. Meanwhile other code gets a slower attention with the same numbers.
    """
    global _inside
    with _lock:
        if _inside == 0:
            # The first to enter notes what the last to leave restores.
            fast = torch.backends.mha.get_fastpath_enabled()
            _settings.callback(torch.backends.mha.set_fastpath_enabled, fast)
            torch.backends.mha.set_fastpath_enabled(False)
            _settings.enter_context(sdpa_kernel(SDPBackend.MATH))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _settings.close()
