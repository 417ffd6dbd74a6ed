"""``mercer fit``: a table in, a model folder out, and how good the model is."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mercer.cli.output import (
    DATA,
    STANDARD_INPUT,
    command_line,
    device_option,
    examples,
    is_stream,
    json_option,
    note,
    number,
    progress,
    seconds_since_start,
    seed_option,
    table,
    target_option,
    task_option,
    width,
    wrap,
)
from mercer.user_text import shown

if TYPE_CHECKING:
    from mercer.tabular import TabularModel

PAGE = "explain.html"
_SHOWN = 12  # classes up to which the confusion matrix is printed
_ALIKE = 4  # columns treated alike up to which each has a line
_NAME = 24  # letters of a column's name
_NAMES = 30  # names that are wrapped together
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
@target_option
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
    help="Score the last fifth of the rows by this column, predicted from those before them, and choose so.",
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
    import torch

    from mercer import checks, distributed
    from mercer.cli.process import stoppable, threads_for
    from mercer.storage.folder import save
    from mercer.tabular import TabularModel
    from mercer.tabular.streaming import fingerprint, fit_file

    # Refuse, before any work, what cannot end well.
    if time is not None and group is not None:
        raise click.UsageError("--time and --group both choose the rows that are scored. Drop one of them.")
    try:
        device = checks.device("fit", device or "cpu", torch.float64)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if is_stream(output):
        raise click.UsageError("MODEL must be a folder; got -, standard output. Choose a folder.")
    if output.resolve() in data.resolve().parents:
        raise click.UsageError(f"MODEL must be a folder of its own; got {output}, which holds DATA. Choose another.")
    if not force:
        _check_folder(output, target)

    # Learn, on all ranks. Rank 0 keeps and shows what all learn.
    trees: bool | str = "auto"
    if no_trees:
        trees = False
    with stoppable(), threads_for(data), contextlib.ExitStack() as reservation:
        with distributed.joined():
            model = TabularModel(task=task, trees=trees, random_state=seed, time=time, groups=group)
            is_first = not distributed.rank()
            report: Callable[[str], None] = logging.getLogger("mercer").debug
            if is_first:
                reservation.enter_context(_reserve(output))
                report = reservation.enter_context(progress())  # until the page is drawn
            fit_file(
                model,
                data,
                target,
                weight=weight,
                ignore=ignore,
                minutes=minutes,
                compare=is_first,
                progress=report,
                device=device,
            )
            if not is_first:
                return
            model.made_with["data"] = fingerprint(data)
            report("saving the model")
            try:
                save(model, output)
            except RuntimeError as error:  # another run is saving into the folder
                raise click.ClickException(str(error)) from error
        # The page; rank 0 is alone now.
        with distributed.alone():
            report("drawing the page")
            page = None
            try:
                from mercer.tabular.pages import model_page

                page = model_page(model, output / PAGE, folder=str(output))
            except Exception as error:  # a picture that fails does not take the model with it
                logging.getLogger("mercer").error("the page could not be drawn; the model is kept", exc_info=error)

    # Tell what was learned.
    if as_json:
        classes = model.target.classes
        if classes is not None:
            classes = classes.tolist()
        document = {
            "model": str(output),
            "target": model.target.name,
            "task": model.target.task,
            "why": model.target.why,
            "classes": classes,
            "rows": model.rows,
            "columns": [column.summary() for column in model.preparation.columns],
            "features": len(model.preparation.feature_names),
            "notes": model.notes,
            "scores": model.scores,
            "seconds": model.seconds,
            "made_with": model.made_with,
            "page": page and str(page),
        }
        click.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    for line in _write_lines(model, data, output, page):
        click.echo(line)


def _check_folder(folder: Path, target: str) -> None:
    """Refuse, before any work, a folder whose content would be lost."""
    from mercer.storage.folder import read_manifest

    way_out = "Pass --force to replace it, or choose another folder."
    if not folder.exists():
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
        saved_target = saved["state"]["target"]["arguments"]["name"]
    except (KeyError, TypeError):
        saved_target = None
    if saved_target != target:
        got = f"one of {shown(saved_target)!r}"
        raise click.ClickException(f"{folder} must hold a model of {shown(target)!r}; got {got}. {way_out}")


@contextlib.contextmanager
def _reserve(folder: Path) -> Iterator[None]:
    """Reserve the folder for this run, from its start to its page; fail at once where it cannot be written.

    A new folder that stays empty is removed.
    """
    from mercer.storage.files import atomic_write, lock

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


def _write_lines(model: TabularModel, data: Path, folder: Path, page: Path | None) -> Iterator[str]:
    """What the command prints: how good the model is, what became of each column, the scores, what to do next."""
    from mercer.tabular.pages.model_page import advice, headline

    # How good it is.
    columns, target = model.preparation.columns, shown(model.target.name)
    title = f"{shown(data.name)}: {model.rows} rows, {len(columns)} columns beside {target}"
    yield click.style(title, bold=True)
    for text in (headline(model), advice(model), f"{model.target.why}."):
        yield from wrap(text)
    # What became of each column.
    yield ""
    yield from _list_columns(model)
    for text in model.notes:
        yield from note(text)
    # The scores.
    yield ""
    yield from _list_scores(model)
    yield f"{seconds_since_start():.1f} seconds"
    # Where it is, and what to do next.
    yield ""
    yield f"Model: {folder}"
    if page is not None:
        yield f"Page:  {page}"
    name: str | Path = data
    if data.name == STANDARD_INPUT:
        name = "DATA.csv"
    yield "Next:  " + command_line("mercer", "predict", folder, name, "-o", "predictions.csv")
    yield "       " + command_line("mercer", "explain", folder, "--data", name)


def _list_columns(model: TabularModel) -> Iterator[str]:
    """What is done with every column; where more than four are treated alike, they share a line."""
    from rich.cells import cell_len, set_cell_size

    groups: dict[tuple[str, str], list[str]] = {}
    for column in model.preparation.columns:
        groups.setdefault((column.kind, column.how), []).append(shown(column.name, _NAME))
    # Names that have a line of their own stand in a column as wide as the widest.
    names_alone = [name for names in groups.values() if len(names) <= _ALIKE for name in names]
    room = max(map(cell_len, names_alone), default=0) + 2
    for (kind, how), names in groups.items():
        if len(names) <= _ALIKE:
            for name in names:
                first = f"  {set_cell_size(name, room)}{kind:<13}"
                yield from wrap(how, " " * len(first), first)
            continue
        yield from wrap(f"  {len(names)} columns, {kind}: each {how}", "    ", "  ")
        for start in range(0, len(names), _NAMES):
            yield from wrap(", ".join(names[start : start + _NAMES]), "    ", "    ")


def _list_scores(model: TabularModel) -> Iterator[str]:
    """The scores on held-out rows, those of other models beside them, and the confusion matrix."""
    scores = model.scores
    if not scores["folds"]:
        yield from wrap(f"No scores: {scores['note']}.")
        return
    # How they were measured.
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

    yield from _list_others(scores)
    if model.target.classes is not None:
        yield from _draw_confusion([str(name) for name in model.target.classes], scores["confusion"])


def _list_others(scores: dict[str, Any]) -> Iterator[str]:
    """Other models on the same folds, and a plain word where one of them is better."""
    from mercer.tabular.scoring import best_beside, boosting_is_better

    models = scores.get("beside")
    if not models:
        return
    measures = list(next(iter(models.values())))
    # First what needs no model, then this one and the others, the best with a star.
    rows = [["  always the mean", "0"]]
    if scores.get("always_most_frequent") is not None:
        rows = [["  most frequent class", number(scores["always_most_frequent"]), *[""] * (len(measures) - 1)]]
    best, by = best_beside(scores)
    for name, scores_of_model in [("this model", scores), *models.items()]:
        star = " *" * (name == best)
        rows.append([f"  {name}{star}", *(number(scores_of_model[measure], 3) for measure in measures)])
    yield click.style("Beside others, on the same folds", bold=True)
    yield from table({_SHORT[measure]: 10 for measure in measures}, rows, 26)
    yield f"  * best by {by}"
    if boosting_is_better(scores):
        yield from wrap("Boosted trees are better on this table: use scikit-learn's HistGradientBoosting for it.")


def _draw_confusion(classes: list[str], counts: list[list[int]]) -> Iterator[str]:
    """The confusion matrix of few classes, where the terminal is wide enough."""
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
