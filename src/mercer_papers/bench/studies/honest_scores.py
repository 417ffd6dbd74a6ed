"""Is the score that a model prints the score on new rows? Printed minus held-out score, coverage, order of rows.

    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.honest_scores lines.jsonl --seeds 2    # resumes
    ... honest_scores lines.jsonl --rows 13000 --tables diamonds baseball    # long tables, by local machines
    ... honest_scores lines.jsonl --apart --rows 700 --seeds 3    # new groups and later rows alone
    ... honest_scores lines.jsonl --order    # the same rows in another order: largest change of a score
    ... honest_scores lines.jsonl --noise 20    # shuffled targets: does it score as chance?

Each case draws rows to learn from; up to 4,000 others are new. By groups, no new row belongs to a group learned from;
by time, all new rows are later. MERCER_DATA names the folder that holds ``tables`` and ``tables_long``.

A score of the past cannot know how the next period differs. How much of a gap is of that kind, boosted trees of
scikit-learn tell, scored by hand on the same last rows by a model of the rows before them: ``control``.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from mercer.tabular import TabularModel
from mercer.tabular.columns import Preparation
from mercer.tabular.reading import read
from mercer.tabular.scoring import score_classes, score_values
from mercer.tabular.splits import choose_scored_rows, read_moments

NEW_ROWS = 4000
GROUPS = {  # columns that name groups of rows
    "exam": "school",
    "life_expectancy": "country",
    "baseball": "team",
    "police_force": "neighborhood",
    "inspections": "business_name",
}
TIMES = {  # columns that rows come by
    "chicago": "date",
    "births": "date",
    "incomes": "year",
    "films": "year",
    "life_expectancy": "year",
    "baseball": "year",
    "inspections": "Year",
    "birthdays": "date",
    "grinnell_houses": "Date",
    "doctor_visits": "year",
    "arrests": "year",
    "police_force": "response_datetime",
    "bird_strikes": "date",
}
SPLITS = {"groups": GROUPS, "time": TIMES}
METRICS = ("r2", "accuracy", "log_loss", "auroc", "coverage")


def tables() -> pd.DataFrame:
    """Name, target, task and file of every table."""
    data = Path(os.environ["MERCER_DATA"])
    parts = [
        pd.read_csv(data / folder / "index.csv").assign(folder=data / folder) for folder in ("tables", "tables_long")
    ]
    return pd.concat(parts).set_index("table")


def draw(
    frame: pd.DataFrame, target: str, split: tuple[str, str] | None, rows: int, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to learn from and new ones."""
    rng = np.random.default_rng(1000 + seed)
    if split is None:
        order = rng.permutation(len(frame))
        rows = min(rows, round(0.7 * len(frame)))
        return frame.iloc[order[:rows]], frame.iloc[order[rows : rows + NEW_ROWS]]
    kind, column = split
    if kind == "time":  # later rows are new, as many as the model scores itself on
        place = pd.Series(read_moments(frame, column, target, None)).rank(method="first").to_numpy()
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


def score_control(old: pd.DataFrame, new: pd.DataFrame, target: str, task: str, time: str) -> dict[str, list[float]]:
    """Boosted trees: the score of the last fifth by a model of the rows before, and of new rows by a model of all."""
    late = choose_scored_rows(None, read_moments(old, time, target, None), 0)
    scores = []
    for learned, asked in ((old[~late], old[late]), (old, new)):
        preparation = Preparation().fit(learned.drop(columns=target))
        x, z = (preparation.prepare(rows.drop(columns=target)).x.numpy() for rows in (learned, asked))
        if task == "regression":
            trees = HistGradientBoostingRegressor(random_state=0).fit(x, learned[target])
            scores.append(score_values(torch.from_numpy(trees.predict(z)), torch.tensor(asked[target].to_numpy(float))))
        else:
            trees = HistGradientBoostingClassifier(random_state=0).fit(x, learned[target].astype(str))
            known = asked[target].astype(str).isin(trees.classes_).to_numpy()
            truth = torch.from_numpy(np.searchsorted(trees.classes_, asked[target].astype(str)[known]))
            scores.append(score_classes(torch.from_numpy(trees.predict_proba(z[known])), truth))
    return {m: [scores[0][m], scores[1][m]] for m in ("r2", "accuracy", "log_loss") if m in scores[0]}


def measure(asked: argparse.Namespace) -> None:
    """One line for each table, seed and split that has none yet."""
    keys = ("table", "seed", "split", "rows", "study")
    done = {tuple(line[key] for key in keys) for line in lines(asked.lines)}
    study = "noise" if asked.noise else "order" if asked.order else "honest"
    for name, about in tables().iterrows():
        if asked.tables and name not in asked.tables:
            continue
        splits = [] if asked.apart else [None]
        if study == "honest":
            splits += [(kind, named[str(name)]) for kind, named in SPLITS.items() if str(name) in named]
        for split in splits:
            for seed in range(asked.noise or asked.seeds):
                case = dict(
                    zip(keys, (name, seed, "rows" if split is None else split[0], asked.rows, study), strict=True)
                )
                if tuple(case.values()) in done:
                    continue
                frame = read(about["folder"] / f"{name}.csv.gz")
                frame = frame[frame[about["target"]].notna()]
                old, new = draw(frame, about["target"], split, asked.rows, seed)
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
                if split is not None and split[0] == "time":
                    case["control"] = score_control(old, new, about["target"], about["task"], split[1])
                    case |= {f"{m}_off_of_trees": a - b for m, (a, b) in case["control"].items()}
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
    """For each study and split: the mean difference of each score, its standard error and the largest.

    Cases of one table are alike, so the error is that of the tables' means.
    """
    groups: dict[tuple, dict[str, list[float]]] = {}
    for line in lines(path):
        found = {metric: line.get(metric) for metric in METRICS}
        found |= {f"{metric} of trees": pair for metric, pair in line.get("control", {}).items()}
        for metric, pair in found.items():
            if pair is not None and (metric == "coverage" or pair[0] is not None):  # no area without rows of a class
                value = pair[1] if metric == "coverage" else pair[0] - pair[1]
                tables = groups.setdefault((line["study"], line["split"], line["rows"], metric), {})
                tables.setdefault(line["table"], []).append(value)
    for (study, split, rows, metric), tables in sorted(groups.items()):
        means = [float(np.mean(values)) for values in tables.values()]
        every = np.concatenate(list(tables.values()))
        error = np.std(means, ddof=1) / len(means) ** 0.5 if len(means) > 1 else np.nan
        mean, worst = f"{np.mean(means):+.4f} +- {error:.4f}", f"largest {np.abs(every).max():.4f}"
        count = f"{len(every)} cases of {len(means)} tables"
        print(f"{study:7s} {split:7s} {rows:6d} rows {metric:17s} {mean}, {worst}, {count}")


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
