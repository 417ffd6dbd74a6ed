"""``mercer fit``: a table in, a model folder out, and how good the model is."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mercer.cli.options import (
    DATA,
    SMALL,
    STANDARD_INPUT,
    device_option,
    examples,
    json_option,
    seed_option,
    task_option,
)
from mercer.cli.output import command_line, is_stream, note, number, progress, seconds_since_start, table, width, wrap
from mercer.user_text import shown

if TYPE_CHECKING:
    from mercer.tabular import TabularModel

PAGE = "explain.html"
_SHOWN = 12  # classes up to which the confusion matrix is printed
_ALIKE = 4  # columns treated alike up to which each has a line
_NAME = 24
_SCORES = {
    "accuracy": "accuracy",
    "always_most_frequent": "always the most frequent class",
    "balanced_accuracy": "balanced accuracy",
    "auroc": "area under the ROC curve",
    "average_precision": "average precision",
    "log_loss": "log loss",
    "ece": "calibration error (ECE)",
    "r2": "R2",
    "rmse": "root mean squared error",
    "always_the_mean_rmse": "the same, always predicting the mean",
    "mae": "mean absolute error",
}

_SHORT = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced",
    "log_loss": "log loss",
    "auroc": "AUROC",
    "average_precision": "avg prec",
    "r2": "R2",
}


@click.command(
    epilog=examples(
        "mercer fit houses.csv --target price -o model",
        "mercer fit survey.parquet --target answer --task classification -o model",
    )
)
@click.argument("data", type=DATA)
@click.option("--target", required=True, metavar="COLUMN", help="Column to predict.")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="MODEL",
    help="Folder for the model. Replaces an existing model of the same target.",
)
@click.option("--weight", metavar="COLUMN", help="Column with the rows' weights; it is not learned from.")
@click.option("--no-trees", is_flag=True, help="Kernel machines alone, without boosted trees beside them.")
@click.option("--ignore", multiple=True, metavar="COLUMN", help="Column that is not learned from; may be repeated.")
@click.option(
    "--time",
    metavar="COLUMN",
    help="Choose and score by later rows, each period predicted from those before it by this column.",
)
@click.option("--group", metavar="COLUMN", help="Score whole groups named by this column, learned without them.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    metavar="NUMBER",
    help="About how long learning may take; of a long table, rows are left out.",
)
@click.option("--force", is_flag=True, help="Also replace a model of another target.")
@task_option
@seed_option
@device_option("Device to factor matrices on: cpu, cuda, cuda:1.")
@json_option
def fit(
    data: Path,
    target: str,
    output: Path,
    weight: str | None,
    no_trees: bool,
    ignore: tuple[str, ...],
    time: str | None,
    group: str | None,
    minutes: float | None,
    force: bool,
    task: str,
    seed: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Learn to predict COLUMN from the other columns of DATA.

    DATA is csv, tsv (plain, .gz or .bz2), parquet, npz or xlsx, of any length, or - for csv from standard input. Scores
    come from held-out rows. Under torchrun the processes share the rows.
    """
    from mercer import distributed
    from mercer.cli.process import stoppable, threads_set
    from mercer.storage.folder import save
    from mercer.tabular import TabularModel
    from mercer.tabular.streaming import fingerprint, fit_file

    if time is not None and group is not None:
        raise click.UsageError("--time and --group both choose the rows that are scored. Drop one of them.")
    device = _check_device(device or "cpu")
    if is_stream(output):
        raise click.UsageError("MODEL must be a folder; got -, standard output. Choose a folder.")
    if output.resolve() in data.resolve().parents:
        raise click.UsageError(f"MODEL must be a folder of its own; got {output}, which holds DATA. Choose another.")
    _check_output(output, target, force)
    threads = threads_set(1) if data.stat().st_size < SMALL else contextlib.nullcontext()
    with stoppable(), threads, contextlib.ExitStack() as reservation:
        with distributed.joined():
            trees = False if no_trees else "auto"
            model = TabularModel(task=task, trees=trees, random_state=seed, time=time, groups=group)
            if distributed.rank():  # rank 0 keeps and shows what all learn
                quiet = logging.getLogger("mercer").debug
                fit_file(
                    model, data, target, weight=weight, ignore=ignore, minutes=minutes, progress=quiet, device=device
                )
                return
            reservation.enter_context(_reserve(output))
            report = reservation.enter_context(progress())  # until the page is drawn
            fit_file(
                model,
                data,
                target,
                weight=weight,
                ignore=ignore,
                minutes=minutes,
                compare=True,
                progress=report,
                device=device,
            )
            model.made_with["data"] = fingerprint(data)
            report("saving the model")
            try:
                save(model, output)
            except RuntimeError as error:  # another run is saving into the folder
                raise click.ClickException(str(error)) from error
        with distributed.alone():
            report("drawing the page")
            page = _draw_page(model, output)
    if as_json:
        click.echo(json.dumps({**_document(model, output), "page": page and str(page)}, indent=2, allow_nan=False))
        return
    for line in _lines(model, data, output, page):
        click.echo(line)


def _check_device(device: str) -> str:
    """The device, where it can factor in float64."""
    import torch

    from mercer import checks

    try:
        return checks.device("fit", device, torch.float64)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _check_output(folder: Path, target: str, force: bool) -> None:
    """Refuse, before any work, a folder whose content would be lost."""
    from mercer.storage.folder import read_manifest

    way_out = "Pass --force to replace it, or choose another folder."
    if force or not folder.exists():
        return
    if not (folder / "mercer.json").exists():
        if (folder / PAGE).exists():
            raise click.ClickException(f"{folder} holds {PAGE} but no model: choose another folder or pass --force.")
        return
    try:
        saved = read_manifest(folder)["object"]
    except ValueError as error:
        raise click.ClickException(f"{error} {way_out}") from error
    if saved["$object"] != "mercer.tabular.TabularModel":
        raise click.ClickException(f"{folder} must hold a model of `mercer fit`; got {saved['$object']}. {way_out}")
    try:
        known = saved["state"]["target"]["arguments"]["name"]
    except (KeyError, TypeError):
        known = None
    if known != target:
        got = f"one of {shown(known)!r}"
        raise click.ClickException(f"{folder} must hold a model of {shown(target)!r}; got {got}. {way_out}")


@contextlib.contextmanager
def _reserve(folder: Path) -> Iterator[None]:
    """Reserve the folder for this run, from its start to its page; fail at once where it cannot be written.

    A new folder that stays empty is removed.
    """
    from mercer.storage.files import atomic_write
    from mercer.storage.locking import lock

    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".mercer-{os.getpid()}-probe.tmp"
    try:
        with lock(folder):
            atomic_write(probe, b"")  # minutes of work must not end at a full disk
            probe.unlink()
            yield
    except RuntimeError as error:
        if "used by one run at a time" not in str(error):
            raise
        raise click.ClickException(str(error)) from error
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()


def _draw_page(model: TabularModel, folder: Path) -> Path | None:
    """The page of `mercer explain`; a picture that fails does not take the model with it."""
    try:
        from mercer.tabular.pages import model_page

        return model_page(model, folder / PAGE, folder=str(folder))
    except Exception as error:
        logging.getLogger("mercer").error("the page could not be drawn; the model is kept", exc_info=error)
        return None


def _document(model: TabularModel, folder: Path) -> dict[str, Any]:
    target = model.target
    return {
        "model": str(folder),
        "target": target.name,
        "task": target.task,
        "why": target.why,
        "classes": None if target.classes is None else target.classes.tolist(),
        "rows": model.rows,
        "columns": [{"name": c.name, "kind": c.kind, "how": c.how} for c in model.preparation.columns],
        "features": len(model.preparation.feature_names),
        "notes": model.notes,
        "scores": model.scores,
        "seconds": model.seconds,
        "made_with": model.made_with,
    }


def _lines(model: TabularModel, data: Path, folder: Path, page: Path | None) -> Iterator[str]:
    from mercer.tabular.pages.model_page import advice, headline

    columns, target = model.preparation.columns, shown(model.target.name)
    title = f"{shown(data.name)}: {model.rows} rows, {len(columns)} columns beside {target}"
    yield click.style(title, bold=True)
    yield from (line for text in (headline(model), advice(model)) for line in wrap(text))
    yield from wrap(f"{model.target.why}.")
    yield ""
    yield from _columns(model)
    yield from (line for text in model.notes for line in note(text))
    yield ""
    yield from _scores(model)
    yield f"{seconds_since_start():.1f} seconds"
    yield ""
    yield f"Model: {folder}"
    if page is not None:
        yield f"Page:  {page}"
    name = "DATA.csv" if data.name == STANDARD_INPUT else data
    yield "Next:  " + command_line("mercer", "predict", folder, name, "-o", "predictions.csv")
    yield "       " + command_line("mercer", "explain", folder, "--data", name)


def _columns(model: TabularModel) -> Iterator[str]:
    """What is done with every column; where more than four are treated alike, they share a line."""
    from rich.cells import cell_len, set_cell_size

    groups: dict[tuple[str, str], list[str]] = {}
    for column in model.preparation.columns:
        groups.setdefault((column.kind, column.how), []).append(shown(column.name, _NAME))
    alone = [names for names in groups.values() if len(names) <= _ALIKE]
    room = max((cell_len(name) for names in alone for name in names), default=0) + 2
    for (kind, how), names in groups.items():
        if len(names) <= _ALIKE:
            for name in names:
                first = f"  {set_cell_size(name, room)}{kind:<13}"
                yield from wrap(how, " " * len(first), first)
            continue
        first = f"  {len(names)} columns, {kind}: each {how}"
        yield from wrap(first, "    ", "  ")
        yield from (line for part in _parts(names) for line in wrap(part, "    ", "    "))


def _parts(names: list[str], size: int = 30) -> list[str]:
    """Names in sentences short enough to be wrapped whole."""
    return [", ".join(names[at : at + size]) for at in range(0, len(names), size)]


def _scores(model: TabularModel) -> Iterator[str]:
    scores = model.scores
    if not scores["folds"]:
        yield from wrap(f"No scores: {scores['note']}.")
        return
    way = scores.get("of", "one draw") + ","
    if scores["folds"] > 1:
        way = f"{scores['folds']} folds over"
        if "of" in scores:
            way = f"{scores['of']}, {way}"
    count = f"{scores['rows']}"
    if scores["rows"] < model.rows:
        count = f"{scores['rows']} of the {model.rows}"
    yield click.style(f"On held-out rows ({way} {count} rows)", bold=True)
    for name, words in _SCORES.items():
        if scores.get(name) is not None:
            yield f"  {words:<38}{number(scores[name])}"
    yield from _beside(scores)
    if model.target.classes is not None:
        yield from _confusion([str(name) for name in model.target.classes], scores["confusion"])


def _beside(scores: dict[str, Any]) -> Iterator[str]:
    """Other models on the same folds, and a plain word where one of them is better."""
    from mercer.tabular.scoring import best_beside, boosting_is_better

    others = scores.get("beside") or {}
    if not others:
        return
    measures = list(next(iter(others.values())))
    guess = scores.get("always_most_frequent")
    rows = [["  always the mean", "0"]]
    if guess is not None:
        rows = [["  most frequent class", number(guess), *[""] * (len(measures) - 1)]]
    best, by = best_beside(scores)
    for name, found in [("this model", scores), *others.items()]:
        rows.append([f"  {name}{' *' * (name == best)}", *(number(found[measure], 3) for measure in measures)])
    yield click.style("Beside others, on the same folds", bold=True)
    yield from table({_SHORT[measure]: 10 for measure in measures}, rows, 26)
    yield f"  * best by {by}"
    if boosting_is_better(scores):
        yield from wrap("Boosted trees are better on this table: use scikit-learn's HistGradientBoosting for it.")


def _confusion(classes: list[str], counts: list[list[int]]) -> Iterator[str]:
    if len(classes) > _SHOWN:
        return
    from rich.cells import cell_len, set_cell_size  # a letter of some scripts takes two columns

    short = [shown(name, 10) for name in classes]
    room = max(6, *(cell_len(name) + 2 for name in short), *(len(str(count)) + 2 for row in counts for count in row))
    if 2 + room * (len(classes) + 1) > width():
        yield "  the confusion matrix is on the page"
        return
    yield "  held-out rows: true class down, predicted across"
    yield "  " + " " * room + "".join(" " * (room - cell_len(name)) + name for name in short)
    for name, row in zip(short, counts, strict=True):
        yield "  " + set_cell_size(name, room) + "".join(f"{count or '.':>{room}}" for count in row)
