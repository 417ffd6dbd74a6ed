"""Tables as people have them: ours beside what they would fit instead, on the same folds, one stored line for each fit.

The tables are those of the folders ``tables`` and ``tables_long`` in ``MERCER_DATA``, listed in their ``index.csv``.
:func:`measure` appends a line for each table, fold and method, and goes on where it stopped; ``table_ranks`` makes
ranks, wins and costs of the lines. Lines of this project are in ``results/tables.jsonl``.
"""

from __future__ import annotations

import os
import subprocess
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mercer import checks

from ..data import MissingData
from .record import append_row, read_rows
from .table_rivals import LEVEL, RIVALS, Rival, readable

Array = NDArray[Any]
OURS = "mercer"
KERNELS = "mercer without trees"
STORED = Path(__file__).parent / "results" / "tables.jsonl"
_FOLDERS = ("tables", "tables_long")
_LEAST = 1e-15  # a probability of 0 would make the log loss infinite


@dataclass(frozen=True)
class Table:
    """A table, its target and its five folds.

    Attributes:
        frame: The columns without the target.
        y: Class numbers or values ``(n,)``.
        classes: The number of classes; 0 for a regression.
        pairs: Rows to learn from and rows to score.
    """

    frame: pd.DataFrame
    y: Array
    classes: int
    pairs: list[tuple[Array, Array]]


def index(folder: Path | None = None) -> pd.DataFrame:
    """The tables, the shortest first: name, target, task, rows.

    Args:
        folder: A folder of tables with an ``index.csv``; by default both of ``MERCER_DATA``.

    Raises:
        MissingData: There is no such file.
    """
    data = Path(os.environ.get("MERCER_DATA", ""))
    folders = [data / name for name in _FOLDERS] if folder is None else [folder]
    paths = [place / "index.csv" for place in folders]
    lists = [pd.read_csv(path).assign(folder=str(path.parent)) for path in paths if path.is_file()]
    if not lists:
        raise MissingData("The folder tables is not in MERCER_DATA.")
    return pd.concat(lists).sort_values("rows", kind="stable")


def load(folder: str | Path, name: str, target: str, task: str, seed: int = 0) -> Table:
    """Read a table and deal its rows into five folds, stratified by class."""
    from sklearn.model_selection import KFold, StratifiedKFold

    path = Path(folder) / f"{name}.csv.gz"
    if not path.is_file():
        raise MissingData(f"{path.name} is not in {folder}.")
    frame = pd.read_csv(path, low_memory=False, lineterminator="\n")  # tweets hold single carriage returns
    frame = frame[frame[target].notna()].reset_index(drop=True)
    if task == "classification":
        labels, y = np.unique(frame[target].astype(str), return_inverse=True)
        folds: Any = StratifiedKFold(5, shuffle=True, random_state=seed).split(y, y)
        return Table(frame.drop(columns=target), y, len(labels), list(folds))
    y = frame[target].to_numpy(dtype=float)
    return Table(frame.drop(columns=target), y, 0, list(KFold(5, shuffle=True, random_state=seed).split(y)))


def score(y: Array, answer: Array, c: int) -> dict[str, float]:
    """Accuracy, log loss and AUROC (classes against the rest), or R2 and, of an answer ``(n, 3)``, its intervals.

    ``coverage`` is the share of targets within the ends; ``interval_score`` their mean width plus 2 / (1 - level) times
    what a target is outside by, over the standard deviation of the targets.
    """
    from sklearn.metrics import r2_score, roc_auc_score

    if c == 0:
        if answer.ndim == 1:
            return {"r2": float(r2_score(y, answer))}
        middle, low, high = answer.T
        outside = np.maximum(low - y, 0) + np.maximum(y - high, 0)
        width = (high - low + 2 / (1 - LEVEL) * outside).mean() / y.std()
        inside = ((low <= y) & (y <= high)).mean()
        return {"r2": float(r2_score(y, middle)), "coverage": float(inside), "interval_score": float(width)}
    p = np.clip(answer, _LEAST, 1)
    p = p / p.sum(1, keepdims=True)
    area = roc_auc_score(y, p[:, 1] if c == 2 else p, multi_class="ovr")
    losses = -np.log(p[np.arange(len(y)), y])
    return {"accuracy": float((p.argmax(1) == y).mean()), "log_loss": float(losses.mean()), "auroc": float(area)}


def measure(
    path: Path,
    methods: Sequence[str] = (),
    *,
    folder: Path | None = None,
    tables: Sequence[str] = (),
    folds: Sequence[int] = (0, 1),
    again: bool = False,
    progress: Callable[[dict[str, Any]], None] = lambda row: None,
) -> None:
    """Fit and score every method on these folds of every table, and append a line to ``path`` for each.

    A fold that has its line is not run again, a method whose packages are not installed or that is not made for a table
    is left out. CPU seconds are of all threads and child processes; give it one thread (``OMP_NUM_THREADS=1``).

    Args:
        path: The file of lines.
        methods: Names of :data:`METHODS`; all that are installed by default.
        folder: A folder of tables with an ``index.csv``; by default both of ``MERCER_DATA``.
        tables: Names of tables; all by default.
        folds: Which of the five.
        again: Run what has its line once more; of two lines the later holds.
        progress: Called with each line.
    """
    done = set() if again else {(row["table"], row["fold"], row["method"]) for row in read_rows(path)}
    for entry in index(folder).to_dict("records"):
        if tables and entry["table"] not in tables:
            continue
        table: Table | None = None
        for name in methods or METHODS:
            method = METHODS[checks.choice("tables", "method", name, METHODS)]
            missing = [fold for fold in folds if (entry["table"], fold, name) not in done]
            versions = _find_versions(method)
            if versions is None or not missing or method.task not in ("", entry["task"]):
                continue
            table = table or load(entry["folder"], entry["table"], entry["target"], entry["task"])
            if len(table.pairs[0][0]) > method.most_rows or table.classes > method.most_classes:
                continue
            # each fold that is left, one line when it is done
            frame = table.frame if method.raw else readable(table.frame)
            for fold in missing:
                train, test = table.pairs[fold]
                row = {"table": entry["table"], "rows": len(table.y), "classes": table.classes, "fold": fold}
                row |= {"method": name, "settings": method.settings, "versions": versions}
                row |= _fit_and_score(method, table.classes, frame, table.y, train, test)
                append_row(path, row)
                progress(row)


def _fit_and_score(method: Rival, c: int, x: pd.DataFrame, y: Array, train: Array, test: Array) -> dict[str, Any]:
    """The scores of one fit with the CPU seconds of fitting and of predicting, or the error it ended with."""
    times = [sum(os.times()[:4])]
    clock = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a rival that does not converge says so at each fold
            predict = method.fit(x.iloc[train], y[train], c)
            times.append(sum(os.times()[:4]))
            answer = predict(x.iloc[test])
            times.append(sum(os.times()[:4]))
        scores: dict[str, Any] = score(y[test], answer, c)
    except Exception as error:  # a rival that fails is a result, and others go on
        return {"error": f"{type(error).__name__}: {error}"[:300], "cpu_fit": sum(os.times()[:4]) - times[0]}
    cost = {"cpu_fit": times[1] - times[0], "cpu_predict": times[2] - times[1], "wall": time.perf_counter() - clock}
    scores |= {name: round(value, 3) for name, value in cost.items()} | {"new_rows": len(test)}
    return scores | {f"reported_{name}": value for name, value in getattr(predict, "reported", {}).items()}


def _find_versions(method: Rival) -> dict[str, str] | None:
    """Versions of what a method needs, of ours with the commit; none where something is not installed."""
    try:
        versions = {package: version(package) for package in method.packages}
    except PackageNotFoundError:
        return None
    if method.packages == _OUR_PACKAGES:  # a version number is not enough: the last commit that changed the library
        import mercer

        command = ["git", "-C", str(Path(mercer.__file__).resolve().parent), "log", "-1", "--format=%h", "--", "."]
        versions["commit"] = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return versions


class _Ours:
    """Our model, with the scores that its fit reported."""

    def __init__(self, x: pd.DataFrame, y: Array, c: int, trees: bool | str) -> None:
        from mercer.tabular import TabularModel

        name = "the target of this bench"
        self.model = TabularModel(task="classification" if c else "regression", trees=trees)
        self.model.fit(x.assign(**{name: y}), name)
        self.reported = {
            key: self.model.scores[key] for key in ("accuracy", "log_loss", "r2") if key in self.model.scores
        }
        self.names = [f"p_{i}" for i in range(c)] or ["prediction", "low", "high"]

    def __call__(self, frame: pd.DataFrame) -> Array:
        return self.model.predict(frame, level=LEVEL)[self.names].to_numpy(dtype=float)


_OUR_PACKAGES = ("mercer", "torch", "scikit-learn")
METHODS = {
    OURS: Rival(partial(_Ours, trees="auto"), _OUR_PACKAGES, "defaults", raw=True),
    KERNELS: Rival(partial(_Ours, trees=False), _OUR_PACKAGES, "trees=False", raw=True),
    **RIVALS,
}
