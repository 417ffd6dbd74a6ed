"""``mercer fit``: a table in, a model folder out, and how good the model is."""

from __future__ import annotations

import contextlib
import json
import logging
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mercer.cli.options import task_option

if TYPE_CHECKING:
    from mercer.tabular import TabularModel

_WIDTH = 98
_SHOWN = 12  # columns and classes that are listed; beyond, counted
_SCORES = {
    "accuracy": "accuracy",
    "always_most_frequent": "always the most frequent class",
    "balanced_accuracy": "balanced accuracy",
    "auroc": "area under the ROC curve",
    "log_loss": "log loss",
    "ece": "calibration error (ECE)",
    "r2": "R2",
    "rmse": "root mean squared error",
    "always_the_mean_rmse": "the same, always predicting the mean",
    "mae": "mean absolute error",
}
_SMALL = 10_000_000  # bytes of a table whose matrices are too small to share among threads


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--target", required=True, metavar="COLUMN", help="What to predict.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path, file_okay=False), metavar="MODEL")
@task_option
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of folds, subsets and landmarks.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def fit(data: Path, target: str, output: Path, task: str, seed: int, as_json: bool) -> None:
    """Learn to predict COLUMN from the other columns of DATA, and keep the model in the folder MODEL.

    DATA is csv, tsv (plain, .gz or .bz2), parquet or npz, of any length. Scores are of rows that were held out. Under
    torchrun its ranks share the rows.
    """
    from mercer import distributed
    from mercer.cli.signals import stoppable
    from mercer.process import threads_set
    from mercer.tabular import TabularModel
    from mercer.tabular.streaming import fit_file

    threads = threads_set(1) if data.stat().st_size < _SMALL else contextlib.nullcontext()
    with stoppable(), threads, distributed.joined():
        model = TabularModel(task=task, random_state=seed)
        if distributed.rank():  # rank 0 keeps and shows what all learn
            fit_file(model, data, target, progress=logging.getLogger("mercer").debug)
            return
        with _kept_if_filled(output):
            fit_file(model, data, target, compare=True, progress=_say)
            _keep(model, output)
    with distributed.alone():
        page = _drawn(model, output)
    if as_json:
        click.echo(json.dumps({**_document(model, output), "page": page and str(page)}, indent=2, allow_nan=False))
        return
    for line in _lines(model, data, output, page):
        click.echo(line)


def _say(message: str) -> None:
    click.echo(message, err=True)


def _keep(model: TabularModel, folder: Path) -> None:
    from mercer.storage import save

    try:
        save(model, folder)
    except RuntimeError as error:  # another run is saving into the folder
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def _kept_if_filled(folder: Path) -> Iterator[None]:
    """A folder that can be written, or an error at once: minutes of work must not end there. Empty, it goes again."""
    from mercer.storage import atomic_write

    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / ".writable"
    try:
        atomic_write(probe, b"")
        probe.unlink(missing_ok=True)
        yield
    finally:
        if made:
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()


def _drawn(model: TabularModel, folder: Path) -> Path | None:
    """The page of `mercer explain`; a picture that fails does not take the model with it."""
    try:
        from mercer.report import model_page

        return model_page(model, folder / "explain.html", folder=str(folder))
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
    columns = model.preparation.columns
    yield click.style(f"{data.name}: {model.rows} rows, {len(columns)} columns beside {model.target.name}", bold=True)
    yield f"{model.target.why}."
    yield ""
    yield from _columns(model)
    yield from (line for note in model.notes for line in textwrap.wrap(f"Note: {note}", _WIDTH, subsequent_indent="  "))
    yield ""
    yield from _scores(model)
    yield f"{model.seconds:.1f} seconds"
    yield ""
    yield f"Model: {folder}"
    if page is not None:
        yield f"Page:  {page}"
    yield f"Next:  mercer predict {folder} {data} -o predictions.csv"
    yield f"       mercer explain {folder} --data {data}"


def _columns(model: TabularModel) -> Iterator[str]:
    columns = model.preparation.columns
    width = min(28, max(len(column.name) for column in columns[:_SHOWN]) + 2)
    for column in columns[:_SHOWN]:
        text = f"  {column.name:<{width}}{column.kind:<13}{column.how}"
        yield from textwrap.wrap(text, _WIDTH, subsequent_indent=" " * (width + 15), drop_whitespace=True)
    kinds: dict[str, int] = {}
    for column in columns[_SHOWN:]:
        kinds[column.kind] = kinds.get(column.kind, 0) + 1
    if kinds:
        yield "  and " + ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def _scores(model: TabularModel) -> Iterator[str]:
    scores = model.scores
    if not scores["folds"]:
        yield f"No scores: {scores['note']}."
        return
    folds = f"{scores['folds']} folds over" if scores["folds"] > 1 else "one fifth,"
    yield click.style(f"On held-out rows ({folds} {scores['rows']} rows)", bold=True)
    for name, words in _SCORES.items():
        if scores.get(name) is not None:
            yield f"  {words:<38}{scores[name]:.4g}"
    if model.target.classes is not None:
        yield from _confusion([str(name) for name in model.target.classes], scores["confusion"])


def _confusion(classes: list[str], counts: list[list[int]]) -> Iterator[str]:
    if len(classes) > _SHOWN:
        return
    short = [name if len(name) <= 12 else name[:11] + "~" for name in classes]
    width = max(6, *(len(name) + 2 for name in short), *(len(str(count)) + 2 for row in counts for count in row))
    yield "  held-out rows: true class down, predicted across"
    yield "  " + " " * width + "".join(f"{name:>{width}}" for name in short)
    for name, row in zip(short, counts, strict=True):
        yield f"  {name:<{width}}" + "".join(f"{count or '.':>{width}}" for count in row)
