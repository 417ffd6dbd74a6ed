"""What commands print: 80 columns, progress that never fails the work, names that cannot steer the terminal."""

from __future__ import annotations

import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from mercer.user_text import shown

WIDTH = 79  # a line fits a terminal of 80
_BEGAN = time.perf_counter()


def say(message: object) -> None:
    """One line of progress to stderr; where nobody listens any more, the work goes on."""
    try:
        click.echo(shown(message, 400), err=True)
    except OSError:
        return


def elapsed() -> float:
    """Seconds since the command started, its imports included."""
    return time.perf_counter() - _BEGAN


def wrapped(text: str, indent: str = "  ", first: str = "") -> list[str]:
    """A sentence in lines of at most 79 letters."""
    return textwrap.wrap(shown(text, 1000), WIDTH, initial_indent=first, subsequent_indent=indent)


def note(text: str) -> list[str]:
    """A sentence that the user should read."""
    return wrapped(f"Note: {text}")


def command_line(*words: str | Path) -> str:
    """A command that the shell takes as it stands."""
    return shlex.join(map(str, words))


def closest(name: str, known: Sequence[str]) -> str:
    """`` Did you mean ...?`` where a known name is near; else nothing."""
    import difflib

    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def number(value: float | None, digits: int = 4) -> str:
    """``digits`` significant digits, thousands set apart and never as a power of ten; ``-`` for None.

    >>> number(57190.4), number(0.898849), number(None)
    ('57,190', '0.8988', '-')
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def table(columns: Mapping[str, int], rows: Sequence[Sequence[str]], name: int) -> Iterator[str]:
    """Rows of a name and its numbers: ``columns`` gives the title and width of each number."""
    yield click.style(" " * name + "".join(f"{head:>{width}}" for head, width in columns.items()), bold=True)
    for first, *cells in rows:
        numbers = "".join(f"{cell:>{width}}" for cell, width in zip(cells, columns.values(), strict=True))
        yield f"{shown(first, name - 1):<{name}}{numbers}".rstrip()


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function to report progress with: a moving bar with the last message on a terminal, a line each elsewhere."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield say
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(24), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda message: bar.update(task, description=shown(message, 40))
