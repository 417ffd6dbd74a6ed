"""Signals end a command with the shell's exit codes; warnings become one line each."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click

from mercer.cli.output import say


@contextmanager
def stoppable() -> Iterator[None]:
    """Exit 130 or 143 where the block is stopped, after what it was writing is cleared away."""
    from mercer.cli.process import Interrupted, Interruption

    try:
        with Interruption(), warnings.catch_warnings():
            warnings.showwarning = _show
            yield
    except Interrupted as interrupted:
        click.echo("Interrupted: nothing was written.", err=True)
        raise click.exceptions.Exit(interrupted.exit_code) from None


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: object = None,
) -> None:
    say(f"Warning: {message}")
