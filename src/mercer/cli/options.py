"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

__all__ = ["count_option", "device_option", "examples", "json_option", "seed_option", "task_option"]

Command = Callable[..., Any]

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
