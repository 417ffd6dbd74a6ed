"""``mercer predict``: a model folder and a table in, predictions out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mercer.cli.output import (
    DATA,
    MODEL,
    check_output,
    examples,
    is_stream,
    json_option,
    note,
    opened_output,
    progress,
    say,
    wrap,
)
from mercer.user_text import shown

if TYPE_CHECKING:
    from mercer.tabular import TabularModel
    from mercer.tabular.streaming import Answers

_SHOWN = 10  # classes that are listed
_TRAINED = (
    "these are the rows that the model was fitted on, so scores on them are too good. `mercer explain` shows the "
    "scores on held-out rows."
)


@click.command(
    epilog=examples(
        "mercer predict model new.csv -o predictions.csv",
        "mercer predict model new.csv -o predictions.csv --keep customer",
        "zcat new.csv.gz | mercer predict model - -o - > predictions.csv",
    )
)
@click.argument("model", type=MODEL)
@click.argument("data", type=DATA)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="OUT.csv",
    help="File for the predictions; an existing one is replaced. - is standard output.",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="COLUMN",
    help="Copy this column of DATA; may be repeated.  [default: columns that name the row]",
)
@click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.9,
    show_default=True,
    help="For a number: share of true values between low and high.",
)
@click.option(
    "--threshold",
    metavar="CLASS=P",
    help="Predict CLASS from probability P on; elsewhere the likeliest other class.  [default: the likeliest class]",
)
@click.option(
    "--cost",
    metavar="CLASS=C",
    help="The threshold for which missing CLASS costs C times a false alarm: P = 1 / (1 + C).",
)
@click.option("--spreadsheet", is_flag=True, help="Quote text that a spreadsheet would run as a formula.")
@json_option
def predict(
    model: Path,
    data: Path,
    output: Path,
    keep: tuple[str, ...],
    level: float,
    threshold: str | None,
    cost: str | None,
    spreadsheet: bool,
    as_json: bool,
) -> None:
    """Predict every row of DATA with MODEL, a folder of `mercer fit`. DATA - is csv from standard input.

    Columns of OUT.csv: prediction; p_<class> for each class, or low and high for a number; unfamiliar, from 0 for a row
    like the training rows to 1 for one unlike any of them (0.5: farther than 95 % of them); the kept columns.
    """
    from mercer.cli.process import stoppable, threads_for
    from mercer.tabular.streaming import predict_file

    # Refuse, before any work, what cannot end well.
    loaded = load_model(model)
    check_output(output, {"DATA": data}, as_json, model=model)
    rule = _read_threshold(threshold, cost)

    # Predict, then tell what was predicted and what was strange.
    with stoppable(), threads_for(data), progress() as report, opened_output(output) as file:
        answers = predict_file(
            loaded,
            data,
            file,
            progress=report,
            keep=keep or None,
            level=level,
            threshold=rule,
            spreadsheet=spreadsheet,
        )
    for what, rows in answers.surprises.items():
        say(f"Warning: {what} ({rows} rows).")
    score_name = "accuracy"
    if loaded.target.task == "regression":
        score_name = "r2"
    if as_json:
        document = {
            "output": str(output),
            "rows": answers.rows,
            "target": loaded.target.name,
            "task": loaded.target.task,
            "kept": answers.kept,
            "predicted": dict(answers.classes),
            "unfamiliar_above_half": answers.far,
            "warnings": dict(answers.surprises),
            "training_rows": answers.trained,
            "scored_rows": answers.scored,
            score_name: answers.score,
        }
        click.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    for line in _write_lines(loaded, answers, output, level, score_name.replace("r2", "R2")):
        click.echo(line, err=is_stream(output))


def _read_threshold(threshold: str | None, cost: str | None) -> tuple[str, float] | None:
    """The class and its probability from ``--threshold CLASS=P`` or ``--cost CLASS=C``; None where neither is given."""
    if threshold is not None and cost is not None:
        raise click.UsageError("--threshold and --cost both choose a threshold. Drop one of them.")
    if threshold is not None:
        text, option, need = threshold, "--threshold", "a probability from 0 to 1"
    elif cost is not None:
        text, option, need = cost, "--cost", "a positive number"
    else:
        return None
    name, _, digits = text.rpartition("=")
    try:
        value = float(digits)
    except ValueError:
        value = -1.0
    if not name or not value > 0 or value == float("inf") or (cost is None and value > 1):
        raise click.UsageError(f"{option} must be CLASS=NUMBER with {need}; got {shown(text, 40)}.")
    if cost is not None:  # a miss at probability p costs p C, a false alarm 1 - p: they are level at this one
        value = 1 / (1 + value)
    return name, value


def load_model(folder: Path) -> TabularModel:
    """The tabular model in a folder.

    Raises:
        click.ClickException: The folder holds something else.
    """
    from mercer.storage.folder import load
    from mercer.tabular import TabularModel

    model = load(folder)
    if not isinstance(model, TabularModel):
        kind = type(model).__name__
        raise click.ClickException(
            f"{folder} must hold a model of `mercer fit`; got a {kind}. Use mercer.load in Python."
        )
    return model


def _write_lines(model: TabularModel, answers: Answers, output: Path, level: float, score_name: str) -> Iterator[str]:
    """What the command prints: what was predicted, how familiar the rows are, how good the answers are."""
    # What was predicted.
    target = shown(model.target.name)
    yield click.style(f"{answers.rows} rows predicted: {output}", bold=True)
    if answers.kept:
        yield from wrap(f"kept columns: {', '.join(shown(column, 30) for column in answers.kept)}")
    if answers.classes:
        listed = [f"{shown(name, 30)} {count}" for name, count in answers.classes.most_common(_SHOWN)]
        listed += ["..."] * (len(answers.classes) > _SHOWN)
        yield from wrap(f"{target}: {', '.join(listed)}")
        classes = []
        if model.target.classes is not None:
            classes = [str(name) for name in model.target.classes]
        missing = [name for name in classes if name not in answers.classes]
        if len(classes) == 2 and missing:
            name = shown(missing[0], 30)
            yield from wrap(f"no row is predicted as {name}: --cost {name}=10 predicts it sooner")
    else:
        yield from wrap(f"low, high: {level:.0%} of the true values lie between them, for rows like the training rows")
    # How familiar the rows are.
    share = answers.far / answers.rows
    familiar = "about 5% where rows are like the training rows"
    yield from wrap(f"unfamiliar at least 0.5: {answers.far} rows ({share:.1%}; {familiar})")
    # How good the answers are, where the file has the true ones.
    if answers.score is not None:
        rows = f"the {answers.scored} rows whose {target} is in the file"
        yield from wrap(f"{score_name} on {rows}: {answers.score:.4g}")
    if answers.trained:
        yield from note(_TRAINED)
