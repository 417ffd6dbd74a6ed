"""Options that several commands share."""

from __future__ import annotations

import click

__all__ = ["examples", "json_option", "seed_option", "task_option"]

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


def examples(*commands: str) -> str:
    """The end of a command's help; click keeps the lines after a backspace as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)
