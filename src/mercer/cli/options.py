"""Options that several commands share."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from typing_extensions import override

from mercer.cli.output import closest

SMALL = 10_000_000  # bytes of a table whose matrices are too small to share among threads

STANDARD_INPUT = "standard-input.csv"  # the file that the rows of DATA "-" are put into, to be read twice

Command = Callable[..., Any]


class _Existing(click.Path):
    """A path that is there; where it is not, the nearest name beside it is in the sentence. A file may be ``-``."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == "-" and self.file_okay:
            return self._copy_standard_input(param, ctx)
        path = Path(value)
        if not path.exists():
            beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
            self.fail(f"{str(path)!r} does not exist.{closest(path.name, sorted(beside))}", param, ctx)
        if not self.file_okay and path.is_file():
            self.fail(f"{str(path)!r} is a file; give the folder that `mercer fit` wrote.", param, ctx)
        return super().convert(value, param, ctx)

    def _copy_standard_input(self, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """A csv file with what standard input holds; it is gone when the command ends."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            self.fail("standard input reaches one process only; under torchrun give a file.", param, ctx)
        folder = tempfile.TemporaryDirectory(prefix="mercer-")
        (ctx or click.get_current_context()).call_on_close(folder.cleanup)
        path = Path(folder.name) / STANDARD_INPUT
        with path.open("xb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        return path


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
