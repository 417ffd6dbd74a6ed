"""``mercer predict``: a model folder and a table in, predictions out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mercer.tabular import TabularModel
    from mercer.tabular.streaming import Answers

_SHOWN = 10  # classes that are listed


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("data", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path, dir_okay=False), metavar="OUT.csv")
@click.option("--json", "as_json", is_flag=True, help="One JSON document about the predictions.")
def predict(model: Path, data: Path, output: Path, as_json: bool) -> None:
    """Predict every row of DATA with MODEL, a folder of `mercer fit`, into OUT.csv.

    Columns: prediction, p_<class> for each class, and unfamiliar: 0 for a row like the training rows, 0.5 for one
    farther from them than 19 in 20 of themselves, 1 for one unlike all of them.
    """
    from mercer.cli.signals import stoppable
    from mercer.tabular.streaming import predict_file

    loaded = load_model(model)
    with stoppable():
        answers = predict_file(loaded, data, output, progress=lambda message: click.echo(message, err=True))
    for what, rows in answers.surprises.items():
        click.echo(f"Warning: {what} ({rows} rows).", err=True)
    if as_json:
        click.echo(json.dumps(_document(loaded, answers, output), indent=2, allow_nan=False))
        return
    for line in _page(loaded, answers, output):
        click.echo(line)


def load_model(folder: Path) -> TabularModel:
    """The tabular model in a folder.

    Raises:
        click.ClickException: The folder holds something else.
    """
    from mercer.storage import load
    from mercer.tabular import TabularModel

    found = load(folder)
    if not isinstance(found, TabularModel):
        kind = type(found).__name__
        raise click.ClickException(
            f"{folder} must hold a model of `mercer fit`; got a {kind}. Use mercer.load in Python."
        )
    return found


def _document(model: TabularModel, answers: Answers, output: Path) -> dict[str, Any]:
    return {
        "output": str(output),
        "rows": answers.rows,
        "target": model.target.name,
        "task": model.target.task,
        "predicted": dict(answers.classes),
        "unfamiliar_above_half": answers.far,
        "warnings": dict(answers.surprises),
        "scored_rows": answers.scored,
        _score_name(model): answers.score,
    }


def _page(model: TabularModel, answers: Answers, output: Path) -> Iterator[str]:
    yield click.style(f"{answers.rows} rows predicted: {output}", bold=True)
    if answers.classes:
        most = answers.classes.most_common(_SHOWN)
        more = ", ..." if len(answers.classes) > _SHOWN else ""
        yield f"{model.target.name}: " + ", ".join(f"{name} {count}" for name, count in most) + more
    share = answers.far / answers.rows
    yield f"unfamiliar above 0.5: {answers.far} rows ({share:.1%}; about 5% where rows are like the training rows)"
    if answers.score is not None:
        what = _score_name(model).replace("r2", "R2")
        yield f"{what} on the {answers.scored} rows whose {model.target.name} is in the file: {answers.score:.4g}"


def _score_name(model: TabularModel) -> str:
    return "accuracy" if model.target.task == "classification" else "r2"
