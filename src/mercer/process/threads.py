"""Threads of torch and of the libraries below it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def threads_set(threads: int) -> Iterator[None]:
    """Torch and every BLAS and OpenMP pool at ``threads``; the caller's number comes back afterwards."""
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = torch.get_num_threads()
    with threadpool_limits(threads):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
