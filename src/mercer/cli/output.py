"""What the commands share: options, lines for terminals of 80 to 120 columns, progress, where output may go."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from typing_extensions import override

from mercer.user_text import shown

SMALL = 10_000_000  # bytes of a table whose matrices are too small to share among threads
STANDARD_INPUT = "standard-input.csv"  # the file that the rows of DATA "-" are put into, to be read twice
Command = Callable[..., Any]
_NARROW, _WIDE = 80, 120  # columns of a terminal that lines are made for
_BEGAN = time.perf_counter()


def say(message: object) -> None:
    """One line of progress to stderr; where nobody listens any more, the work goes on."""
    try:
        click.echo(shown(message, 400), err=True)
    except OSError:
        return


def seconds_since_start() -> float:
    """Seconds since the command started, its imports included."""
    return time.perf_counter() - _BEGAN


def width() -> int:
    """Letters of a line: one less than the terminal has columns, at least 79 and at most 119; 79 for a pipe."""
    return max(_NARROW, min(_WIDE, shutil.get_terminal_size((_NARROW, 24)).columns)) - 1


def wrap(text: str, indent: str = "  ", first: str = "") -> list[str]:
    """A sentence in lines as wide as the terminal."""
    return textwrap.wrap(shown(text, 1000), width(), initial_indent=first, subsequent_indent=indent)


def note(text: str) -> list[str]:
    """A sentence that the user should read."""
    return wrap(f"Note: {text}")


def command_line(*words: str | Path) -> str:
    """A command that the shell takes as it stands."""
    return shlex.join(map(str, words))


def closest(name: str, names: Sequence[str]) -> str:
    """`` Did you mean ...?`` where one of the names is like this one; else nothing."""
    import difflib

    matches = difflib.get_close_matches(name, names, 1, 0.5)
    if not matches:
        return ""
    return f" Did you mean {matches[0]!r}?"


def number(value: float | None, digits: int = 4) -> str:
    """``digits`` significant digits, thousands set apart and never as a power of ten; ``-`` for None.

    >>> number(57190.4), number(0.898849), number(None)
    ('57,190', '0.8988', '-')
    """
    if value is None:
        return "-"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def table(columns: Mapping[str, int], rows: Sequence[Sequence[str]], name: int) -> Iterator[str]:
    """Rows of a name and its numbers: ``columns`` gives the title and width of each number."""
    yield click.style(" " * name + "".join(f"{head:>{width}}" for head, width in columns.items()), bold=True)
    for first, *cells in rows:
        numbers = "".join(f"{cell:>{width}}" for cell, width in zip(cells, columns.values(), strict=True))
        yield f"{shown(first, name - 1):<{name}}{numbers}".rstrip()


def check_output(
    output: Path, inputs: Mapping[str, Path | None], as_json: bool, *, model: Path | None = None, page: str = ""
) -> None:
    """Refuse, before any work, an output that would replace a table that is read or a part of the model.

    Args:
        output: What ``-o`` names; ``-`` is standard output.
        inputs: Argument -> file that is read.
        as_json: Whether a JSON document goes to standard output, too.
        model: Folder of the model, where there is one.
        page: Name of the one file in that folder that may be replaced.
    """
    if is_stream(output):
        if as_json:
            raise click.UsageError("-o - and --json both write to standard output. Drop one of them.")
        return
    target = output.resolve()
    for name, path in inputs.items():
        if path is not None and (target == path.resolve() or (output.exists() and output.samefile(path))):
            need = "-o must not name a file that is read"
            raise click.UsageError(f"{need}; got {output}, which is {name}. Choose another file.")
    if model is None or (page and target == (model / page).resolve()):
        return
    linked = output.exists() and any(output.samefile(file) for file in model.iterdir() if file.exists())
    if linked or model.resolve() in target.parents:
        raise click.UsageError(f"-o must lie outside the model's folder; got {output}. Choose another place.")


def is_stream(output: Path | None) -> bool:
    """Whether ``-o`` is ``-``, standard output."""
    return output is not None and str(output) == "-"


@contextmanager
def opened_output(output: Path) -> Iterator[Path]:
    """The file to write: ``output`` itself; for ``-`` a file that goes to standard output when the block ends well."""
    if not is_stream(output):
        yield output
        return
    with tempfile.TemporaryDirectory(prefix="mercer-") as folder:
        path = Path(folder) / "output"
        yield path
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.flush()


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


# --- options ----------------------------------------------------------------------------------------------------------


class _Existing(click.Path):
    """A path that is there; where it is not, the nearest name beside it is in the sentence. A file may be ``-``."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == "-" and self.file_okay:
            # A csv file with what standard input holds; it is gone when the command ends.
            if int(os.environ.get("WORLD_SIZE", "1")) > 1:
                self.fail("standard input reaches one process only; under torchrun give a file.", param, ctx)
            folder = tempfile.TemporaryDirectory(prefix="mercer-")
            (ctx or click.get_current_context()).call_on_close(folder.cleanup)
            copy = Path(folder.name) / STANDARD_INPUT
            with copy.open("xb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
            return copy
        path = Path(value)
        if not path.exists():
            neighbors = []
            if path.parent.is_dir():
                neighbors = sorted(entry.name for entry in path.parent.iterdir())
            self.fail(f"{str(path)!r} does not exist.{closest(path.name, neighbors)}", param, ctx)
        if not self.file_okay and path.is_file():
            self.fail(f"{str(path)!r} is a file; give the folder that `mercer fit` wrote.", param, ctx)
        return super().convert(value, param, ctx)


DATA = _Existing(path_type=Path, exists=True, dir_okay=False)
MODEL = _Existing(path_type=Path, exists=True, file_okay=False)

task_option = click.option(
    "--task",
    type=click.Choice(("auto", "classification", "regression")),
    default="auto",
    show_default=True,
    help="auto: inferred from the target column.",
)
seed_option = click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),  # as large as scikit-learn takes it
    default=0,
    show_default=True,
    help="Random seed.",
)
target_option = click.option("--target", required=True, metavar="COLUMN", help="Column to predict.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def device_option(meaning: str) -> Callable[[Command], Command]:
    """An option that names a device of torch."""
    return click.option("--device", metavar="DEVICE", help=f"{meaning}  [default: cpu]")


def examples(*commands: str) -> str:
    """The end of a command's help; click keeps the lines after a backspace as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


def count_option(name: str, default: int, meaning: str) -> Callable[[Command], Command]:
    """An option that takes a positive number."""
    return click.option(name, type=click.IntRange(1), default=default, show_default=True, help=meaning)
