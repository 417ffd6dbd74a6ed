"""What ``mercer fit`` scores beside scikit-learn's boosting with default settings: same rows, same five folds.

    OMP_NUM_THREADS=1 MERCER_DATA=... python benchmarks/fit_beside_boosting.py [--seeds 3] [TABLE ...]

The tables are those of examples/tables.py, read back from CSV. Columns are told apart by the same rules for both.
Boosting then gets what suits it: numbers with their holes, categories as its own categorical type, dates as the same
parts. Seconds are CPU seconds of one thread for the five fits and predictions, columns already read.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from mercer.data import stratified_folds
from mercer.layerwise import KernelNetworkClassifier
from mercer.tabular import Preparation, Target, read
from mercer.tabular.scoring import FOLDS, cross_validate, score_classes
from mercer.tabular.values import numbers, truths, words

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from tables import TARGETS, write


def ours(x, y, seed):
    """Exactly what ``mercer fit`` prints."""
    classes, start = np.arange(int(y.max()) + 1), time.process_time()

    def make():
        return KernelNetworkClassifier(random_state=seed)

    scores = cross_validate(make, x, y, classes, seed=seed, progress=lambda message: None)
    return scores["accuracy"], scores["log_loss"], time.process_time() - start


def boosting(x, y, seed, categorical):
    """scikit-learn's defaults on the same folds."""
    fold, start = stratified_folds(y, folds=FOLDS, seed=seed).numpy(), time.process_time()
    p = torch.zeros(len(y), int(y.max()) + 1, dtype=torch.float64)
    for i in range(1, FOLDS + 1):
        model = HistGradientBoostingClassifier(categorical_features=categorical, random_state=seed)
        p[fold == i] = torch.from_numpy(model.fit(x[fold != i], y[fold != i].numpy()).predict_proba(x[fold == i]))
    scores = score_classes(p, y)
    return scores["accuracy"], scores["log_loss"], time.process_time() - start


def natively(preparation, frame):
    """Columns as boosting likes them, and which of them are categories."""
    parts, categorical = [], []
    for column in (column for column in preparation.columns if not column.dropped):
        series = frame[column.name]
        if column.kind == "categorical":
            codes = words(series).astype("category").cat.codes.to_numpy(dtype=float)
            part = np.where(codes < 0, np.nan, codes)[:, None]
        elif column.kind == "date":
            part = column.encoder(series).x
        else:
            part = (truths if column.kind == "boolean" else numbers)(series)[:, None]
        parts.append(part)
        categorical += [column.kind == "categorical"] * part.shape[1]
    return np.hstack(parts), np.array(categorical)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("tables", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| table | rows | who | accuracy, % | log loss | CPU s |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(write(Path(folder))):
            if options.tables and path.stem not in options.tables:
                continue
            frame = read(path)
            target = Target.of(frame[TARGETS[path.stem]])
            y = target.encode(frame[target.name])
            frame = frame.drop(columns=target.name)
            preparation = Preparation().fit(frame)
            native, categorical = natively(preparation, frame)
            matrix, seeds = preparation.transform(frame), range(options.seeds)
            runs = {
                "mercer": [ours(matrix, y, seed) for seed in seeds],
                "boosting": [boosting(native, y, seed, categorical) for seed in seeds],
            }
            for who, found in runs.items():
                accuracy, loss, seconds = ([run[i] for run in found] for i in range(3))
                spread = f" ± {100 * statistics.stdev(accuracy):.1f}" if len(found) > 1 else ""
                cells = f"{100 * statistics.mean(accuracy):.1f}{spread} | {statistics.mean(loss):.3f}"
                print(f"| {path.stem} | {len(y)} | {who} | {cells} | {statistics.mean(seconds):.1f} |", flush=True)


if __name__ == "__main__":
    main()
