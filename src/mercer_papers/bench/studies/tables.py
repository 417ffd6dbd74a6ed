"""Accuracy, log loss, AUROC and R2 of ours and of eight rivals on the same five folds of every table, and mean ranks.

    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.tables lines.jsonl    # all methods; resumes
    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.tables lines.jsonl mercer linear    # these methods only
    python -m mercer_papers.bench.studies.tables lines.jsonl --ranks    # what the lines say so far
    python -m mercer_papers.bench.studies.tables lines.jsonl --picture docs/img/tables.svg    # mean ranks, drawn

MERCER_DATA names the folder that holds ``tables``; ``--folder`` names another folder of tables with an ``index.csv``.
CPU seconds are those of fitting and predicting five folds on one thread.
"""

import argparse
import json
import time
from pathlib import Path

import pandas as pd

from mercer import figures
from mercer_papers.bench.table_rivals import RIVALS
from mercer_papers.bench.tables import OURS, answers, index, load, score

METRICS = {"accuracy": False, "log_loss": True, "auroc": False, "r2": False}  # whether less is better


def measure(path: Path, methods: list[str], folder: Path | None, tables: list[str]) -> None:
    done = {(row["table"], row["method"]) for row in lines(path)}
    for row in index(folder).itertuples():
        if tables and row.table not in tables:
            continue
        for method in methods:
            if (row.table, method) in done:
                continue
            table = load(row.folder, row.table, row.target, row.task)
            start = time.process_time()
            try:
                found = score(table, answers(table, method))
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {error}"[:300]}
            cpu = time.process_time() - start
            with path.open("a") as file:
                file.write(json.dumps({"table": row.table, "rows": row.rows, "method": method, "cpu": cpu} | found))
                file.write("\n")
            print(row.table, method, {k: round(v, 4) for k, v in found.items() if k != "error"} or found, f"{cpu:.1f}")


def lines(path: Path) -> list[dict]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def ranks(path: Path) -> None:
    every = pd.DataFrame(lines(path))
    for name, found in {"all tables": every, "5,000 rows and more": every[every["rows"] >= 5000]}.items():
        for metric, less in METRICS.items():
            if metric not in found or found[metric].isna().all():
                continue
            scores = found.dropna(subset=[metric]).pivot_table(index="table", columns="method", values=metric).dropna()
            rank = scores.rank(axis=1, ascending=less).mean().sort_values()
            print(
                f"{name}, {metric}, {len(scores)} tables: mean rank "
                + ", ".join(f"{k} {v:.2f}" for k, v in rank.items())
            )
    cpu = every.pivot_table(index="table", columns="method", values="cpu")
    for metric in METRICS:
        if metric in every:
            print(
                f"\n{metric}\n" + every.pivot_table(index="table", columns="method", values=metric).round(4).to_string()
            )
    print("\nCPU s\n" + cpu.round(1).to_string())


def picture(path: Path, out: Path) -> None:
    """Mean rank over the tables on which every method ran, by log loss for classes and by R2 for numbers."""
    every = pd.DataFrame(lines(path))
    both = []
    for metric, less in (("log_loss", True), ("r2", False)):
        scores = every.dropna(subset=[metric]).pivot_table(index="table", columns="method", values=metric).dropna()
        both.append(scores.rank(axis=1, ascending=less))
    rank = pd.concat(both).mean().sort_values()
    label = f"mean rank of {len(rank)} methods on {sum(map(len, both))} tables, by log loss or R2 (1 is best)"
    figures.write_svg(figures.bars({"": rank.to_dict()}, x_label=label), out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path)
    parser.add_argument("methods", nargs="*", default=[])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--tables", nargs="*", default=[])
    parser.add_argument("--ranks", action="store_true")
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    if asked.picture:
        picture(asked.lines, asked.picture)
    elif not asked.ranks:
        measure(asked.lines, asked.methods or [OURS, *RIVALS], asked.folder, asked.tables)
    ranks(asked.lines)
