"""What commands have around their work: signals end them with the shell's codes, warnings are a line, threads one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def stoppable() -> Iterator[None]:
    """Exit 130 or 143 where the block is stopped, after what it was writing is cleared away."""
    from mercer.experiments.interruption import Interrupted, Interruption

    try:
        with Interruption(), warnings.catch_warnings():
            warnings.showwarning = _show
            yield
    except Interrupted as interrupted:
        click.echo("Interrupted: nothing was written.", err=True)
        raise click.exceptions.Exit(interrupted.exit_code) from None


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread: the matrices are small, and on a busy machine threads that wait for each other cost more."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: object = None,
) -> None:
    click.echo(f"Warning: {message}", err=True)
