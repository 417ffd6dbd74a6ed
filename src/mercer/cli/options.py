"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

__all__ = ["examples", "json_option", "seed_option", "task_option"]

task_option = click.option(
    "--task",
    type=click.Choice(("auto", "classification", "regression")),
    default="auto",
    show_default=True,
    help="auto: inferred from the target column.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def examples(*commands: str) -> str:
    """The end of a command's help; click keeps the lines after a backspace as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


def seed_option(what: str) -> Callable[[Any], Any]:
    """``--seed``, as large as scikit-learn takes it."""
    seeds = click.IntRange(0, 2**32 - 1)
    return click.option("--seed", type=seeds, default=0, show_default=True, help=f"Random seed of {what}.")
