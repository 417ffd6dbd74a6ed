"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from typing_extensions import override

from mercer.cli.output import closest

SMALL = 10_000_000  # bytes of a table whose matrices are too small to share among threads

Command = Callable[..., Any]


class _Existing(click.Path):
    """A path that is there; where it is not, the nearest name beside it is in the sentence."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(value)
        if not path.exists():
            beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
            self.fail(f"{str(path)!r} does not exist.{closest(path.name, sorted(beside))}", param, ctx)
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
