"""The group ``mercer`` and what all its commands share: logging, exit codes.

Nothing heavy is imported here: ``mercer --help`` must not wait for torch.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import click
from typing_extensions import override

from mercer import __version__
from mercer.cli.diagnose import diagnose
from mercer.cli.explain import explain
from mercer.cli.fit import fit
from mercer.cli.output import closest, examples
from mercer.cli.predict import predict
from mercer.user_text import shown

_LONGEST = 2000  # letters of an error


class _Commands(click.Group):
    """A group whose commands end with the house's codes: 0 done, 1 failed, 2 bad usage, 130 and 143 interrupted."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_find_commands()})

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is None:
            points = _find_commands()
            if cmd_name in points:
                return points[cmd_name].load()  # type: ignore[no-any-return]
        return command

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(130)
        except click.MissingParameter as error:
            raise click.MissingParameter(_example(error.ctx), error.ctx, error.param) from error
        except (BrokenPipeError, click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except (ValueError, OSError, MemoryError) as error:
            logging.getLogger("mercer").debug("the command failed", exc_info=error)
            raise click.ClickException(shown(_text(error), _LONGEST)) from error
        except Exception as error:
            logging.getLogger("mercer").debug("the command failed", exc_info=error)
            text = f"{type(error).__name__}: {_text(error)}. This is a bug or a damaged file: -vv shows where."
            raise click.ClickException(shown(text, _LONGEST)) from error

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            message = shown(error.message, 200) + closest(args[0], self.list_commands(ctx))
            raise click.UsageError(message, ctx) from error


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog=examples(
        "mercer diagnose houses.csv --target price",
        "mercer fit houses.csv --target price -o model",
        "mercer predict model new.csv -o predictions.csv",
    ),
)
@click.version_option(__version__, prog_name="mercer")
@click.option("-v", "--verbose", count=True, help="Log more to stderr; twice for everything.")
@click.pass_context
def main(context: click.Context, verbose: int) -> None:
    """Fit your own tables, run the claims of five papers again, compare with other libraries.

    Results go to stdout, progress and logs to stderr. Exit codes: 0 done, 1 the work or its data failed, 2 bad usage,
    130 or 143 interrupted.
    """
    if os.environ.get("NO_COLOR"):
        context.color = False
    try:
        Path.cwd()
    except OSError as error:  # torch's libraries end the process there
        raise click.ClickException(
            "the working directory must exist; got one that was deleted. Go to another."
        ) from error
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(levelname)s %(message)s", tracebacks=verbose > 0))
    logger = logging.getLogger("mercer")
    logger.handlers = [handler]
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])


main.add_command(diagnose)
main.add_command(explain)
main.add_command(fit)
main.add_command(predict)


def _find_commands() -> dict[str, EntryPoint]:
    """Commands that installed packages add under the entry point group ``mercer.commands``."""
    return {point.name: point for point in entry_points(group="mercer.commands")}


class _Formatter(logging.Formatter):
    """One line for each record; tracebacks where asked for."""

    def __init__(self, pattern: str, *, tracebacks: bool) -> None:
        super().__init__(pattern)
        self._tracebacks = tracebacks

    @override
    def format(self, record: logging.LogRecord) -> str:
        if self._tracebacks and record.exc_info:
            return super().format(record)
        why = ""
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            why = f": {type(error).__name__}: {error}"
        return f"{record.levelname} {shown(record.getMessage() + why, _LONGEST)}"


def _example(context: click.Context | None) -> str:
    """The first example of the command's help, for a reader who left something out."""
    if context is None:
        return ""
    lines = (context.command.epilog or "").splitlines()
    if len(lines) <= 2:
        return ""
    return f"For example: {lines[2].strip()}"


def _text(error: BaseException) -> str:
    """What an error says, or its name where it says nothing."""
    # The number that str() puts before an OSError's sentence is noise to a reader.
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror
    return str(error) or type(error).__name__
