"""Is the score that a model prints the score on new rows? Printed minus held-out score, coverage, order of rows.

    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.honest_scores lines.jsonl --seeds 2    # resumes
    ... honest_scores lines.jsonl --rows 13000 --tables diamonds baseball    # long tables, by local machines
    ... honest_scores lines.jsonl --apart --seeds 3    # new groups and later rows alone
    ... honest_scores lines.jsonl --order    # the same rows in another order: largest change of a score
    ... honest_scores lines.jsonl --noise 20    # shuffled targets: does it score as chance?

Each case draws rows to learn from; up to 4,000 others are new. By groups, no new row belongs to a group learned from;
by time, all new rows are later. MERCER_DATA names the folder that holds ``tables`` and ``tables_long``.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from mercer.tabular import TabularModel
from mercer.tabular.reading import read
from mercer.tabular.scoring import score_classes, score_values

NEW_ROWS = 4000
SPLITS = {  # columns that name groups of rows, or that rows come by
    "exam": ("groups", "school"),
    "life_expectancy": ("groups", "country"),
    "baseball": ("groups", "team"),
    "police_force": ("groups", "neighborhood"),
    "inspections": ("groups", "business_name"),
    "chicago": ("time", "date"),
    "births": ("time", "date"),
    "incomes": ("time", "year"),
    "films": ("time", "year"),
}
METRICS = ("r2", "accuracy", "log_loss", "auroc", "coverage")


def tables() -> pd.DataFrame:
    """Name, target, task and file of every table."""
    data = Path(os.environ["MERCER_DATA"])
    parts = [
        pd.read_csv(data / folder / "index.csv").assign(folder=data / folder) for folder in ("tables", "tables_long")
    ]
    return pd.concat(parts).set_index("table")


def draw(frame: pd.DataFrame, split: tuple[str, str] | None, rows: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to learn from and new ones."""
    rng = np.random.default_rng(1000 + seed)
    if split is None:
        order = rng.permutation(len(frame))
        rows = min(rows, round(0.7 * len(frame)))
        return frame.iloc[order[:rows]], frame.iloc[order[rows : rows + NEW_ROWS]]
    kind, column = split
    if kind == "time":  # later rows are new, as many as the model scores itself on
        place = frame[column].rank(method="first").to_numpy()
        start = rng.uniform(0, 0.2) * len(frame)
        length = 0.8 * (len(frame) - start)
        early = (place > start) & (place <= start + length)
        late = (place > start + length) & (place <= start + 1.2 * length)
        old, new = frame[early], frame[late]
    else:
        names = rng.permutation(frame[column].astype(str).unique())
        chosen = frame[column].astype(str).isin(set(names[: len(names) // 3]))
        old, new = frame[~chosen], frame[chosen]
    return tuple(part.sample(min(len(part), most), random_state=seed) for part, most in ((old, rows), (new, NEW_ROWS)))


def score_new(model: TabularModel, new: pd.DataFrame) -> dict[str, float]:
    """Scores of a model on new rows."""
    new = new[model.target.known(new[model.target.name])]
    answers, _ = model.predict_with_surprises(new)
    truth = model.target.encode(new[model.target.name])
    if model.target.classes is None:
        inside = (answers["low"] <= truth.numpy()) & (truth.numpy() <= answers["high"])
        return score_values(torch.tensor(answers["prediction"].to_numpy()), truth) | {"coverage": float(inside.mean())}
    p = torch.tensor(answers[[f"p_{name}" for name in model.target.classes]].to_numpy())
    return score_classes(p, truth)


def measure(asked: argparse.Namespace) -> None:
    """One line for each table, seed and split that has none yet."""
    keys = ("table", "seed", "split", "rows", "study")
    done = {tuple(line[key] for key in keys) for line in lines(asked.lines)}
    study = "noise" if asked.noise else "order" if asked.order else "honest"
    for name, about in tables().iterrows():
        if asked.tables and name not in asked.tables:
            continue
        splits = [] if asked.apart else [None]
        if str(name) in SPLITS and study == "honest":
            splits.append(SPLITS[str(name)])
        for split in splits:
            for seed in range(asked.noise or asked.seeds):
                case = dict(
                    zip(keys, (name, seed, "rows" if split is None else split[0], asked.rows, study), strict=True)
                )
                if tuple(case.values()) in done:
                    continue
                frame = read(about["folder"] / f"{name}.csv.gz")
                frame = frame[frame[about["target"]].notna()]
                old, new = draw(frame, split, asked.rows, seed)
                if study == "noise":
                    shuffled = np.random.default_rng(seed).permutation(old[about["target"]].to_numpy())
                    old = old.assign(**{about["target"]: shuffled})
                start = time.process_time()
                given = {} if split is None else {split[0]: split[1]}
                model = TabularModel(task=about["task"], **given).fit(old, about["target"])
                case["cpu"] = round(time.process_time() - start, 2)
                own = model.scores
                if study == "order":
                    other = (
                        TabularModel(task=about["task"]).fit(old.sample(frac=1, random_state=1), about["target"]).scores
                    )
                elif study == "noise":
                    other = {"r2": 0.0, "auroc": 0.5, "accuracy": own.get("always_most_frequent")}
                else:
                    other = score_new(model, new)
                case |= {m: [own.get(m), other.get(m)] for m in METRICS if other.get(m) is not None}
                # as single numbers, too, which documents can quote
                for metric in METRICS:
                    own_score, other_score = case.get(metric, (None, None))
                    if metric == "coverage" and other_score is not None:
                        case["covered"] = other_score
                    elif own_score is not None and other_score is not None:
                        case[f"{metric}_off"] = own_score - other_score
                with asked.lines.open("a") as file:
                    file.write(json.dumps(case) + "\n")
                print(case, flush=True)


def lines(path: Path) -> list[dict]:
    """What was measured so far."""
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def summarize(path: Path) -> None:
    """For each study and split: the mean difference of each score, its standard error and the largest."""
    groups: dict[tuple, list[float]] = {}
    for line in lines(path):
        for metric in METRICS:
            if metric in line:
                own, other = line[metric]
                value = other if metric == "coverage" else own - other
                groups.setdefault((line["study"], line["split"], line["rows"], metric), []).append(value)
    for (study, split, rows, metric), values in sorted(groups.items()):
        error = np.std(values) / len(values) ** 0.5
        mean, worst = f"{np.mean(values):+.4f} +- {error:.4f}", f"largest {np.max(np.abs(values)):.4f}"
        print(f"{study:7s} {split:7s} {rows:6d} rows {metric:9s} {mean}, {worst}, {len(values)} cases")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--tables", nargs="*", default=[])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--apart", action="store_true", help="only cases by groups or by time")
    parser.add_argument("--order", action="store_true")
    parser.add_argument("--noise", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    measure(chosen)
    summarize(chosen.lines)
