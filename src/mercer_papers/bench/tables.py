"""Tables as people have them: ours beside what they would fit instead, on the same five folds.

The tables are those of the folder ``tables`` in ``MERCER_DATA``, listed in its ``index.csv``. ``bench.studies.tables``
prints accuracy, log loss, AUROC, R2 and the mean ranks from the same folds and rivals.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..data import MissingData
from .table_rivals import RIVALS, readable
from .timing import Case, Peer

Array = NDArray[Any]
OURS = "mercer"
_LEAST = 1e-15  # a probability of 0 would make the log loss infinite


@dataclass(frozen=True)
class Table:
    """A table, its target and its folds.

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
    """The tables: name, target, task, rows; none where the folder is not there."""
    folder = folder or Path(os.environ.get("MERCER_DATA", "")) / "tables"
    path = folder / "index.csv"
    if not path.is_file():
        return pd.DataFrame({"table": [], "target": [], "task": [], "rows": []})
    return pd.read_csv(path).assign(folder=str(folder)).sort_values("rows")


def load(folder: str | Path, name: str, target: str, task: str, seed: int = 0) -> Table:
    """Read a table and deal its rows into five folds, stratified by class."""
    from sklearn.model_selection import KFold, StratifiedKFold

    path = Path(folder) / f"{name}.csv.gz"
    if not path.is_file():
        raise MissingData(f"{path.name} is not in the folder tables of MERCER_DATA.")
    frame = pd.read_csv(path, low_memory=False)
    frame = frame[frame[target].notna()].reset_index(drop=True)
    if task == "classification":
        labels, y = np.unique(frame[target].astype(str), return_inverse=True)
        dealt: Any = StratifiedKFold(5, shuffle=True, random_state=seed).split(y, y)
        return Table(frame.drop(columns=target), y, len(labels), list(dealt))
    y = frame[target].to_numpy(dtype=float)
    return Table(frame.drop(columns=target), y, 0, list(KFold(5, shuffle=True, random_state=seed).split(y)))


def answers(table: Table, who: str) -> list[Array]:
    """Predictions of each fold's held-out rows: probabilities ``(n, c)`` or numbers ``(n,)``."""
    frame = table.frame if who == OURS else readable(table.frame)
    work = _ours if who == OURS else RIVALS[who].work
    found = []
    for train, test in table.pairs:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a rival that does not converge says so at each fold
            found.append(work(frame.iloc[train], table.y[train], frame.iloc[test], table.classes))
    return found


def score(table: Table, predicted: list[Array]) -> dict[str, float]:
    """Mean over the folds of accuracy, log loss and AUROC (classes against the rest), or of R2."""
    from sklearn.metrics import r2_score, roc_auc_score

    rows = []
    for p, (_, test) in zip(predicted, table.pairs, strict=True):
        y = table.y[test]
        if table.classes == 0:
            rows.append({"r2": float(r2_score(y, p))})
            continue
        p = np.clip(p, _LEAST, 1)
        p = p / p.sum(1, keepdims=True)
        hard = roc_auc_score(y, p[:, 1] if table.classes == 2 else p, multi_class="ovr")
        losses = -np.log(p[np.arange(len(y)), y])
        right = float((p.argmax(1) == y).mean())
        rows.append({"accuracy": right, "log_loss": float(losses.mean()), "auroc": float(hard)})
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def _ours(x: pd.DataFrame, y: Array, new: pd.DataFrame, c: int) -> Array:
    import mercer  # by the front door, as a user would: bench and tabular stand on one line

    name = "the target of this bench"
    task = "classification" if c else "regression"
    model = mercer.tabular.TabularModel(task=task).fit(x.assign(**{name: y}), name)
    found = model.predict(new)
    if c == 0:
        return found["prediction"].to_numpy(dtype=float)
    return found[[f"p_{i}" for i in range(c)]].to_numpy(dtype=float)


def _by(who: str) -> Callable[[Table], list[Array]]:
    return lambda table: answers(table, who)


def _case(folder: str, name: str, target: str, task: str, rows: int) -> Case:
    metric = "log_loss" if task == "classification" else "r2"
    boosting = "HistGradientBoosting"
    peers = {
        who: Peer(_by(who), needs=rival.needs, goals={"cpu": 1 / 3} if who == boosting else {}, once=True)
        for who, rival in RIVALS.items()
    }
    return Case(
        f"{name}, {rows} rows, {task}",
        setup=lambda: load(folder, name, target, task),
        ours=_by(OURS),
        peers=peers,
        accuracy=lambda table, answer: score(table, answer)[metric],
        accuracy_name="log loss" if metric == "log_loss" else "R2",
        better="lower" if metric == "log_loss" else "higher",
        repeats=1,
        memory=False,
    )


def _missing() -> Table:
    raise MissingData("The folder tables is not in MERCER_DATA.")


CASES = [
    _case(str(row["folder"]), str(row["table"]), str(row["target"]), str(row["task"]), int(row["rows"]))
    for row in index().to_dict("records")
] or [Case("tables", setup=_missing, ours=_by(OURS))]
