"""Accuracy, log loss, AUROC, R2 and intervals of ours and of rivals on the same folds of every table, ranks and costs.

    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.tables lines.jsonl    # all that is installed; resumes
    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.tables lines.jsonl mercer linear --folds 0 --tables taxi
    python -m mercer_papers.bench.studies.tables lines.jsonl --ranks    # what the lines say so far

MERCER_DATA names the folder that holds ``tables`` and ``tables_long``; ``--folder`` names another folder of tables with
an ``index.csv``. A method that wants an environment of its own runs there and appends to the same file.
"""

import argparse
from pathlib import Path

from mercer_papers.bench.table_ranks import page
from mercer_papers.bench.tables import METHODS, measure

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=", ".join(METHODS))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--tables", nargs="*", default=[])
    parser.add_argument("--folds", nargs="*", type=int, default=[0, 1])
    parser.add_argument("--again", action="store_true", help="run also what has its line; the later line holds")
    parser.add_argument("--ranks", action="store_true", help="run nothing")
    asked = parser.parse_args()
    if not asked.ranks:
        measure(asked.lines, asked.methods, folder=asked.folder, tables=asked.tables, folds=asked.folds,
                again=asked.again, progress=print)  # fmt: skip
    print(page(asked.lines))
