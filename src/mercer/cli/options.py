"""Options that several commands share."""

from __future__ import annotations

import click

__all__ = ["task_option"]

task_option = click.option(
    "--task",
    type=click.Choice(("auto", "classification", "regression")),
    default="auto",
    show_default=True,
    help="auto: by what the target holds.",
)
