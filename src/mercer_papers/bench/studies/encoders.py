"""Our encoders of words, texts and dates beside scikit-learn's and skrub's; our reader beside pandas and pyarrow.

    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.encoders lines.jsonl    # skrub 0.11 must be importable
    ... encoders lines.jsonl --reading    # files as people have them, and the seconds that a long one takes

Every table that has words of many levels, free text or dates is cut into the same three folds of at most 2,000 rows.
One kind of column at a time is encoded by a library, all else by us. Behind it stand a linear model and
scikit-learn's boosted trees, the same for every encoding. MERCER_DATA names the folder that holds ``tables``
and ``tables_long``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss, r2_score
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, TargetEncoder
from torch.nn.functional import one_hot

from mercer.tabular.columns import Column, Dates, Levels, Preparation, Target, TargetMeans, Texts, dates, words
from mercer.tabular.columns.column import MOST_LEVELS
from mercer.tabular.reading import read
from mercer_papers.bench.record import append_row, read_rows

from .honest_scores import tables

ROWS, FOLDS = 2000, 3
FILES = {  # bytes of a file, and the table that is in it; None for a file that must be refused
    "plain": (b"code,x\na,1.5\nb,2\n", {"code": ["a", "b"], "x": [1.5, 2.0]}),
    "semicolons": (b"code;x\na;1.5\nb;2\n", {"code": ["a", "b"], "x": [1.5, 2.0]}),
    "leading zeros": (b"code,x\n00501,1.5\n10115,2\n", {"code": ["00501", "10115"], "x": [1.5, 2.0]}),
    "UTF-16 of Excel": ("code,x\nä,1.5\nb,2\n".encode("utf-16"), {"code": ["ä", "b"], "x": [1.5, 2.0]}),
    "Windows-1252": ("code,x\nä,1.5\nb,2\n".encode("cp1252"), {"code": ["ä", "b"], "x": [1.5, 2.0]}),
    "a question mark": (b"code,x\na,?\nb,2\n", {"code": ["a", "b"], "x": [float("nan"), 2.0]}),
    "lone carriage returns": (b"code,x\ra,1.5\rb,2\r", {"code": ["a", "b"], "x": [1.5, 2.0]}),
    "a line that is too short": (b"code,x,z\na,1.5,1\nb,2\n", None),
    "a name that comes twice": (b"code,code\na,1.5\nb,2\n", None),
    "no header": (b"1,1.5\n2,2\n", None),
}


def find_kind(column: Column) -> str:
    """``words``, ``text`` or ``date`` for a column that a library could encode; else nothing."""
    encoder = column.encoder
    if isinstance(encoder, Levels) and len(encoder.levels) + len(encoder.others) > MOST_LEVELS:
        return "words"
    return {Texts: "text", Dates: "date"}.get(type(encoder), "")


def encode_by_library(kind: str, column: Column, train: pd.Series[Any], test: pd.Series[Any], y: Any) -> list[Any]:
    """Training and test values of one column as the library encodes them, ``(n, p)`` each."""
    encoder: Any
    parts: list[Any]
    if kind == "words":
        parts = [words(part).fillna("missing").to_numpy(dtype=object)[:, None] for part in (train, test)]
        # scikit-learn: target means
        encoder = TargetEncoder(random_state=0)
        return [encoder.fit_transform(parts[0], y), encoder.transform(parts[1])]
    # skrub: texts by their letters, dates by their parts
    import skrub  # type: ignore[import-not-found,import-untyped,unused-ignore]

    if kind == "text":
        parts = [words(part).fillna("").astype(str).rename("text") for part in (train, test)]
        encoder = skrub.StringEncoder(random_state=0)
    else:
        assert isinstance(column.encoder, Dates)
        parts = [dates(part, column.encoder.pattern).rename("date") for part in (train, test)]
        encoder = skrub.DatetimeEncoder(add_weekday=True, periodic_encoding="circular")
    encoded = [encoder.fit_transform(parts[0]), encoder.transform(parts[1])]
    fill = encoded[0].median()
    return [part.fillna(fill).to_numpy(dtype=np.float64) for part in encoded]


def encode(train: pd.DataFrame, test: pd.DataFrame, y: torch.Tensor, target: Target, library: str) -> list[Any]:
    """Both parts as matrices: columns of the kind ``library`` by the library, the others by us."""
    preparation, means = Preparation().fit(train), TargetMeans()
    theirs = [column for column in preparation.columns if library and find_kind(column) == library]
    ours = [column for column in preparation.columns if column not in theirs]
    sides: list[list[Any]] = [[], []]  # blocks of columns of the training rows and of the test rows
    # the library's columns
    for column in theirs:
        parts = encode_by_library(library, column, train[column.name], test[column.name], y.numpy())
        for side, part in zip(sides, parts, strict=True):
            side.append(part)
    # our columns, and the target means of ours
    if ours:
        targets = y[:, None].double()
        if target.classes is not None:
            targets = one_hot(y, len(target.classes)).double()
        train_means = means.fit_transform(train, ours, targets, torch.arange(len(y)) % 5)
        preparation.columns = ours
        sides[0] += [preparation.prepare(train).x.numpy(), train_means.numpy()]
        sides[1] += [preparation.prepare(test).x.numpy(), means.transform(test).numpy()]
    return [np.column_stack(side) for side in sides]


def make_learners(task: str) -> dict[str, Any]:
    """The two learners that stand behind every encoding."""
    if task == "regression":
        linear = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 4, 13)))
        return {"linear": linear, "trees": HistGradientBoostingRegressor(random_state=0)}
    linear = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=300))
    return {"linear": linear, "trees": HistGradientBoostingClassifier(random_state=0)}


def measure(name: str, frame: pd.DataFrame, target_name: str, task: str) -> Iterator[dict[str, Any]]:
    """One line for each library that has a column in this table: scores of ours and theirs, fold by fold."""
    target = Target.of(frame[target_name], task=task)
    frame = frame[target.known(frame[target_name])]
    frame = frame.iloc[np.random.default_rng(0).permutation(len(frame))[:ROWS]].reset_index(drop=True)
    y, x = target.encode(frame[target_name]), frame.drop(columns=target_name)
    kinds = {find_kind(column) for column in Preparation().fit(x).columns} - {""}
    splitter = KFold(FOLDS) if target.classes is None else StratifiedKFold(FOLDS)
    folds = list(splitter.split(x, y.numpy()))
    scores: dict[str, dict[str, list[float]]] = {}
    seconds: dict[str, float] = {}
    # all columns by us, then each kind by its library; CPU of the encoding alone
    for library in sorted(kinds) and ["", *sorted(kinds)]:
        scores[library], start, learning = {}, time.process_time(), 0.0
        for train, test in folds:
            x_train, x_test = encode(x.iloc[train], x.iloc[test], y[train], target, library)
            started = time.process_time()
            for learner, model in make_learners(task).items():
                model.fit(x_train, y[train].numpy())
                if target.classes is None:
                    score = r2_score(y[test].numpy(), model.predict(x_test))
                else:
                    score = -log_loss(y[test].numpy(), model.predict_proba(x_test), labels=range(len(target.classes)))
                scores[library].setdefault(learner, []).append(round(float(score), 5))
            learning += time.process_time() - started
        seconds[library] = round(time.process_time() - start - learning, 2)
    for library in sorted(kinds):
        yield {
            "table": name,
            "kind": library,
            "score": "r2" if target.classes is None else "-log_loss",
            "ours": scores[""],
            "library": scores[library],
            "encoding_seconds": [seconds[""], seconds[library]],
        }


def measure_reading() -> Iterator[dict[str, Any]]:
    """For each file which readers give its table or refuse it; then the CPU seconds of 300,000 lines, best of three."""
    import pyarrow.csv  # type: ignore[import-untyped,unused-ignore]

    readers: dict[str, Callable[[Path], Any]] = {
        "mercer": read,
        "pandas": pd.read_csv,
        "pyarrow": lambda path: pyarrow.csv.read_csv(path).to_pandas(),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.csv"
        # which readers are right about a file: its table, or a refusal
        for name, (content, table) in FILES.items():
            path.write_bytes(content)
            right = {}
            for reader, read_file in readers.items():
                try:
                    frame = read_file(path)
                except Exception:  # whatever a library raises is a refusal
                    right[reader] = table is None
                else:  # types may differ, values may not
                    values = {str(name): frame.iloc[:, i].tolist() for i, name in enumerate(frame.columns)}
                    right[reader] = str(values) == str(table)
            yield {"file": name, "right": right}
        # what a long file costs
        path.write_text("word,x,y\n" + "".join(f"w{i % 50},{i / 7:.4f},{i}\n" for i in range(300_000)))
        seconds = {}
        for reader, read_file in readers.items():
            times = []
            for _ in range(3):
                start = time.process_time()
                read_file(path)
                times.append(time.process_time() - start)
            seconds[reader] = round(min(times), 3)
        yield {"file": "300,000 lines", "seconds": seconds}


def main() -> None:
    """Append one line for each table and kind of column that the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--reading", action="store_true", help="compare readers of files instead")
    arguments = parser.parse_args()
    if arguments.reading:
        for line in measure_reading():
            append_row(arguments.output, line)
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    done = {line.get("table") for line in read_rows(arguments.output)}
    for name, row in tables().iterrows():
        if name in done:
            continue
        frame = read(Path(row["folder"]) / f"{name}.csv.gz", rows=200_000)
        for line in measure(str(name), frame, row["target"], row["task"]):
            append_row(arguments.output, line)


if __name__ == "__main__":
    main()
