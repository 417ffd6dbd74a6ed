"""The command line: commands only; the work is done in the tiers below."""

from mercer.cli.commands import main

__all__ = ["main"]
