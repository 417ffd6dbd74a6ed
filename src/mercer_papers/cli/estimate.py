"""``mercer estimate``: what a run will cost, from measured growth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mercer.cli.output import DATA, closest, examples, json_option, wrap
from mercer.user_text import shown

if TYPE_CHECKING:
    from mercer_papers.bench.cost_model import Estimate


_UNITS = (("years", 365.25 * 86400), ("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3))


@click.command(
    short_help="Estimate CPU time and memory of a method.",
    epilog=examples("mercer estimate", "mercer estimate nystrom --n 1000000 --d 784 --ranks 1 --ranks 8"),
)
@click.argument("method", required=False)
@click.option("--n", type=click.IntRange(1), help="Number of rows (see the method's list).")
@click.option("--d", type=click.IntRange(1), help="Number of columns.")
@click.option("--c", type=click.IntRange(1), help="Number of classes.")
@click.option("--k", type=click.IntRange(1), help="Number of functions, landmarks or directions.")
@click.option(
    "--ranks", type=click.IntRange(1), multiple=True, help="Number of processes; may be repeated.  [default: 1 2 8 64]"
)
@click.option(
    "--measured",
    type=DATA,
    metavar="FILE",
    help="growth.json of `mercer bench growth -o RUN` on your own machine; - is standard input.",
)
@json_option
def estimate(
    method: str | None,
    n: int | None,
    d: int | None,
    c: int | None,
    k: int | None,
    ranks: tuple[int, ...],
    measured: Path | None,
    as_json: bool,
) -> None:
    """Estimate CPU time and peak memory of METHOD; without METHOD, list the methods.

    The output names the machine the figures come from; times are of one thread of it.
    """
    from mercer_papers.bench.cost_methods import METHODS
    from mercer_papers.bench.cost_model import MEASURED, RANKS
    from mercer_papers.bench.cost_model import estimate as predicted

    methods = {one.name: one for one in METHODS}
    if method is None:
        for one in METHODS:
            letters = ", ".join(f"{letter} {what}" for letter, what in one.letters.items())
            for line in (*wrap(one.what, " " * 24, f"{one.name:<24}"), *wrap(letters, " " * 24, " " * 24)):
                click.echo(line)
        return
    # a method that is not there, or no size
    if method not in methods:
        need = f"estimate: METHOD must be one of {', '.join(methods)}"
        raise click.UsageError(f"{need}; got {shown(method)!r}.{closest(method, list(methods))}")
    if n is None:
        raise click.UsageError(f"estimate: --n is needed, {methods[method].letters['n']}.")
    try:
        prediction = predicted(method, n=n, d=d, c=c, k=k, ranks=ranks or RANKS, path=measured or MEASURED)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        click.echo(json.dumps(asdict(prediction), allow_nan=False, default=dict))
        return
    for text in _page(prediction, methods[method].what):
        click.echo(text)


def _page(prediction: Estimate, what: str) -> Iterator[str]:
    size = ", ".join(f"{letter} = {value:,}" for letter, value in prediction.size.items())
    yield click.style(f"{prediction.method}: {size}", bold=True)
    yield from wrap(what, "  ", "  ")
    yield f"  {'ranks':>7}{'CPU time of each':>20}{'peak memory of each':>22}"
    for cost in prediction.costs:
        yield f"  {cost.ranks:>7,}{duration(cost.seconds):>20}{volume(cost.mib):>22}"
    bands = f"time within {prediction.seconds_factor:.2g}x, memory within {prediction.mib_factor:.2g}x"
    yield from wrap(f"{bands} at the sizes measured; the rows themselves come on top", "  ", "  ")
    growth = ", ".join(f"{letter}^{power:.2f}" for letter, power in prediction.exponents.items())
    yield f"  time grows as {growth} around the measured base"
    busy = "" if prediction.load is None else f", at load {prediction.load:g} of {prediction.machine['cores']} cores"
    where = f"measured with one thread of {prediction.machine['cpu']}, torch {prediction.versions['torch']}{busy}"
    yield from wrap(where, "  ", "  ")
    for beyond in prediction.beyond:
        for line in wrap(f"warning: {beyond}: an extrapolation, beyond the factors above", "    ", "  "):
            yield click.style(line, fg="yellow")


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{_number(seconds / size)} {unit}"
    return f"{_number(seconds / 1e-6)} us"


def volume(mib: float) -> str:
    """MiB in the unit that suits them."""
    for unit, size in (("PiB", 2.0**30), ("TiB", 2.0**20), ("GiB", 2.0**10)):
        if mib >= size:
            return f"{_number(mib / size)} {unit}"
    return f"{_number(mib)} MiB"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
