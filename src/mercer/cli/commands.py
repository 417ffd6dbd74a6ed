"""The group ``mercer`` and what all its commands share: logging, exit codes.

Nothing heavy is imported here: ``mercer --help`` must not wait for torch.
"""

from __future__ import annotations

import logging
from typing import Any

import click
from typing_extensions import override

from mercer import __version__
from mercer.cli.bench import bench
from mercer.cli.diagnose import diagnose
from mercer.cli.estimate import estimate
from mercer.cli.explain import explain
from mercer.cli.fit import fit
from mercer.cli.listing import list_entries
from mercer.cli.predict import predict
from mercer.cli.report import report
from mercer.cli.reproduce import reproduce


class _Commands(click.Group):
    """A group whose commands end with the house's codes: 0 done, 1 failed, 2 bad usage, 130 and 143 interrupted."""

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(130)
        except BrokenPipeError:
            raise
        except (ValueError, OSError, MemoryError) as error:
            logging.getLogger("mercer").debug("the command failed", exc_info=error)
            raise click.ClickException(_text(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="mercer")
@click.option("-v", "--verbose", count=True, help="Log more to stderr; twice for everything.")
def main(verbose: int) -> None:
    """Kernels in deep networks: an answer about your own table, the papers' results again, peers beside us.

    Results go to stdout, progress and logs to stderr. Exit 0 done, 1 the work or its data failed, 2 bad usage,
    130 or 143 interrupted.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(levelname)s %(message)s", tracebacks=verbose > 0))
    logger = logging.getLogger("mercer")
    logger.handlers = [handler]
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])


main.add_command(bench)
main.add_command(diagnose)
main.add_command(estimate)
main.add_command(explain)
main.add_command(fit)
main.add_command(list_entries)
main.add_command(predict)
main.add_command(report)
main.add_command(reproduce)


class _Formatter(logging.Formatter):
    """One line for each record; tracebacks where asked for."""

    def __init__(self, pattern: str, *, tracebacks: bool) -> None:
        super().__init__(pattern)
        self._tracebacks = tracebacks

    @override
    def format(self, record: logging.LogRecord) -> str:
        if self._tracebacks or not record.exc_info:
            return super().format(record)
        error = record.exc_info[1]
        return f"{record.levelname} {record.getMessage()}: {type(error).__name__}: {error}"


def _text(error: BaseException) -> str:
    # The number that str() puts before an OSError's sentence is noise to a reader.
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror
    return str(error) or type(error).__name__
