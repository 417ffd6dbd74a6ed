"""SIGINT and SIGTERM end a command with the shell's codes, after what it was writing is cleared away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def stoppable() -> Iterator[None]:
    """Exit 130 or 143 where the block is stopped."""
    from mercer.experiments.interruption import Interrupted, Interruption

    try:
        with Interruption():
            yield
    except Interrupted as interrupted:
        click.echo("Interrupted: nothing was written.", err=True)
        raise click.exceptions.Exit(interrupted.exit_code) from None
