"""Is the score that a model prints the score on new rows? Printed minus held-out score, coverage, order of rows.

    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.honest_scores lines.jsonl --seeds 2    # resumes
    ... honest_scores lines.jsonl --rows 13000 --tables diamonds baseball    # long tables, by local machines
    ... honest_scores lines.jsonl --apart --rows 700 --seeds 3    # new groups and later rows alone
    ... honest_scores lines.jsonl --made --rows 700 --seeds 4    # the same without drift: made-up groups and times
    ... honest_scores lines.jsonl --order    # the same rows in another order: largest change of a score
    ... honest_scores lines.jsonl --noise 20    # shuffled targets: does it score as chance?

Each case draws rows to learn from; up to 4,000 others are new. By groups, no new row belongs to a group learned from;
by time, all new rows are later. MERCER_DATA names the folder that holds ``tables`` and ``tables_long``.

A score of the past cannot know how the next period differs. How much of a gap is of that kind, boosted trees of
scikit-learn tell, scored by hand on the same rows by models of the same others: ``control``.

With ``--made`` there is nothing of that kind. A real table gets a time at random, so later rows are drawn as earlier
ones are; or groups that share an effect in columns and target, all drawn alike. What is left of printed minus new is
``optimism``, and luck: some scored rows are easier than others. How much easier, one fixed model tells, boosted trees
that learned from a third set of rows; on average it is right about both, so its gap is taken off.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from mercer.tabular import TabularModel
from mercer.tabular.columns import Preparation
from mercer.tabular.reading import read
from mercer.tabular.scoring import deal_groups, score_classes, score_values
from mercer.tabular.splits import choose_scored_rows, name_groups, read_moments
from mercer.tabular.training import Sizes, Training

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
GROUP_ROWS = 10  # of a made-up group, on average
GROUP_SHARE = 0.5  # of the target's standard deviation that a made-up group moves it; of the rows, for classes
MADE_UP = ("came", "group", "site", "owner")  # columns that tell a fixed model nothing of other rows
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


def draw_alike(
    frame: pd.DataFrame, target: str, task: str, kind: str, rows: int, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Rows to learn from, new ones and a third set, all of one distribution but for the names of groups or the time.

    By time, column ``came`` is drawn at random; new rows come in the quarter of that time that follows, as far ahead as
    the last fifth is of the rows before it. By groups, column ``group`` names groups of very different sizes, each with
    its own effect on the target, with a number ``site`` and a word ``owner`` that are the same in all its rows, and
    with a number ``level`` that tells something of the effect.
    """
    rng = np.random.default_rng(2000 + seed)
    frame = frame.iloc[rng.permutation(len(frame))[: rows + 2 * NEW_ROWS]].reset_index(drop=True)
    rows = min(rows, len(frame) // 2)
    half = (len(frame) - rows) // 2
    part = np.repeat([0, 1, 2], [rows, half, len(frame) - rows - half])
    if kind == "time":
        frame["came"] = rng.uniform(0, 1, len(frame))
        frame.loc[part == 1, "came"] = rng.uniform(1, 1.25, half)
    if kind == "groups":
        # rows come in an order drawn at random: the next ones are a group
        sizes = np.ceil(rng.lognormal(np.log(GROUP_ROWS) - 0.5, 1, len(frame))).astype(int)
        group = np.repeat(np.arange(len(sizes)), sizes)[: len(frame)]
        count = group.max() + 1
        first_new, first_other = (group[part == which].min() + 1 for which in (1, 2))  # no group is in two parts
        part = np.where(group < first_new, 0, np.where(group < first_other, 1, 2))
        effect = rng.normal(size=count)
        frame["group"] = [f"g{number}" for number in rng.permutation(count)[group]]
        frame["site"] = rng.normal(size=count)[group]
        frame["owner"] = rng.choice([f"owner {number}" for number in range(60)], count)[group]
        frame["level"] = (0.7 * effect + 0.7 * rng.normal(size=count))[group] + rng.normal(size=len(frame))
        if task == "regression":
            values = frame[target].astype(float)
            frame[target] = values + GROUP_SHARE * values.std() * effect[group]
        else:  # a group with an effect above 0 draws rows to a class of its own
            of_group = frame[target].to_numpy()[rng.integers(0, len(frame), count)][group]
            drawn = rng.uniform(size=len(frame)) < GROUP_SHARE * (effect[group] > 0)
            frame[target] = np.where(drawn, of_group, frame[target].to_numpy())
    old, new, other = (frame[part == which] for which in range(3))
    return old, new, other.drop(columns=[name for name in MADE_UP if name in frame])


def score_fixed(
    other: pd.DataFrame, scored: pd.DataFrame, new: pd.DataFrame, target: str, task: str
) -> dict[str, list[float]]:
    """Scores of boosted trees that learned from ``other`` rows: on those our model scores itself on, and new ones."""
    preparation = Preparation().fit(other.drop(columns=target))
    x, *asked = (preparation.prepare(rows.drop(columns=target)).x.numpy() for rows in (other, scored, new))
    scores = []
    if task == "regression":
        trees = HistGradientBoostingRegressor(max_iter=60, random_state=0).fit(x, other[target])
        for rows, z in zip((scored, new), asked, strict=True):
            scores.append(score_values(torch.from_numpy(trees.predict(z)), torch.tensor(rows[target].to_numpy(float))))
    else:
        trees = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(x, other[target].astype(str))
        for rows, z in zip((scored, new), asked, strict=True):
            known = rows[target].astype(str).isin(trees.classes_).to_numpy()
            truth = torch.from_numpy(np.searchsorted(trees.classes_, rows[target].astype(str)[known]))
            scores.append(score_classes(torch.from_numpy(trees.predict_proba(z[known])), truth))
    return {m: [scores[0][m], scores[1][m]] for m in ("r2", "accuracy", "log_loss", "auroc") if m in scores[0]}


def rows_scored(old: pd.DataFrame, target: str, kind: str) -> NDArray[np.bool_]:  # (n,)
    """Which rows a model scores itself on; all, where they are drawn from all or are scored in turn."""
    if kind == "time":
        return choose_scored_rows(None, read_moments(old, "came", target, None), 0)
    if kind == "groups" and len(old) > Sizes().every_row:
        return choose_scored_rows(old["group"].to_numpy(dtype=str), None, 0)
    return np.ones(len(old), dtype=bool)


def learn_second(rows: pd.DataFrame, target: str, task: str, split: tuple[str, str]) -> TabularModel:
    """The model that scores are of where they are of later rows or of other groups."""
    kind, column = split
    training = Training(task, 0, lambda what: None, trees="auto")
    if kind == "time":
        training.learn(rows, target, moments=read_moments(rows, column, target, None))
    else:
        names = rows[column].to_numpy(dtype=str)
        training.learn(rows.drop(columns=column), target, groups=names if len(rows) <= Sizes().exact else None)
    model = TabularModel(task=task)
    model.set_state(training.state())
    return model


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


def score_control(
    old: pd.DataFrame, new: pd.DataFrame, target: str, task: str, split: tuple[str, str]
) -> dict[str, list[float]]:
    """Boosted trees scored as ours are: rows left out by models of the others, and new rows by a model of all."""
    kind, column = split
    if kind == "time":
        parts = [choose_scored_rows(None, read_moments(old, column, target, None), 0)]
    else:
        names = name_groups(old, column)
        fold = deal_groups(names, 0).numpy()
        parts = [fold == number for number in range(fold.max() + 1)]
        if len(old) > Sizes().every_row:
            parts = [choose_scored_rows(names, None, 0)]
        old, new = old.drop(columns=column), new.drop(columns=column)
    classes = np.unique(old[target].astype(str))
    scores = []
    for fits in ([(old[~part], old[part]) for part in parts], [(old, new)]):
        outputs, truths = [], []
        for learned, asked in fits:
            preparation = Preparation().fit(learned.drop(columns=target))
            if task != "regression":
                asked = asked[asked[target].astype(str).isin(classes)]
            x, z = (preparation.prepare(rows.drop(columns=target)).x.numpy() for rows in (learned, asked))
            if task == "regression":
                trees = HistGradientBoostingRegressor(random_state=0).fit(x, learned[target])
                outputs.append(trees.predict(z))
                truths.append(asked[target].to_numpy(float))
            else:
                trees = HistGradientBoostingClassifier(random_state=0).fit(x, learned[target].astype(str))
                p = np.full((len(z), len(classes)), 1e-6)  # of a class that they did not meet
                p[:, np.searchsorted(classes, trees.classes_)] = trees.predict_proba(z).clip(1e-6)
                outputs.append(p / p.sum(1, keepdims=True))
                truths.append(np.searchsorted(classes, asked[target].astype(str)))
        score = score_values if task == "regression" else score_classes
        scores.append(score(torch.from_numpy(np.concatenate(outputs)), torch.from_numpy(np.concatenate(truths))))
    return {m: [scores[0][m], scores[1][m]] for m in ("r2", "accuracy", "log_loss") if m in scores[0]}


def measure(asked: argparse.Namespace) -> None:
    """One line for each table, seed and split that has none yet."""
    keys = ("table", "seed", "split", "rows", "study")
    done = {tuple(line[key] for key in keys) for line in lines(asked.lines)}
    study = "noise" if asked.noise else "order" if asked.order else "made" if asked.made else "honest"
    for name, about in tables().iterrows():
        if asked.tables and name not in asked.tables:
            continue
        splits = [] if asked.apart else [None]
        if study == "honest":
            splits += [(kind, named[str(name)]) for kind, named in SPLITS.items() if str(name) in named]
        if study == "made":
            splits = [None, ("time", "came"), ("groups", "group")]
        for split in splits:
            if asked.splits and ("rows" if split is None else split[0]) not in asked.splits:
                continue
            for seed in range(asked.noise or asked.seeds):
                case = dict(
                    zip(keys, (name, seed, "rows" if split is None else split[0], asked.rows, study), strict=True)
                )
                if tuple(case.values()) in done:
                    continue
                frame = read(about["folder"] / f"{name}.csv.gz")
                frame = frame[frame[about["target"]].notna()]
                if study == "made":
                    old, new, third = draw_alike(frame, about["target"], about["task"], case["split"], asked.rows, seed)
                else:
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
                if study == "made":
                    scored = rows_scored(old, about["target"], case["split"])
                    case["fixed"] = score_fixed(third, old[scored], new, about["target"], about["task"])
                    if split is not None:  # models that are scored learn from fewer rows than the one of all
                        learned = ~scored
                        if scored.all():
                            learned = deal_groups(old["group"].to_numpy(dtype=str), 0).numpy() != 1
                        asked_of = new if split[0] == "groups" else new.assign(came=0.8 * new["came"])  # as far ahead
                        second = score_new(learn_second(old[learned], about["target"], about["task"], split), asked_of)
                        case["second"] = {m: second[m] for m in METRICS if second.get(m) is not None}
                        case |= {f"{m}_of_fewer_rows": value - other[m] for m, value in case["second"].items()}
                    case["new_rows"] = len(new)
                    case |= {
                        f"{m}_optimism": own[m] - other[m] - (a - b)
                        for m, (a, b) in case["fixed"].items()
                        if None not in (own.get(m), other.get(m), a, b)
                    }
                elif split is not None:
                    case["control"] = score_control(old, new, about["target"], about["task"], split)
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


def summarize(path: Path, stored: Path | None = None) -> None:
    """For each study and split: the mean difference of each score, its standard error and the largest.

    Cases of one table are alike, so the error is that of the tables' means. ``stored`` gets them as lines.
    """
    groups: dict[tuple, dict[str, list[float]]] = {}
    for line in lines(path):
        found = {metric: line.get(metric) for metric in METRICS}
        found |= {f"{m} optimism": [line[f"{m}_optimism"], 0.0] for m in METRICS if f"{m}_optimism" in line}
        found |= {f"{m} fewer rows": [line[f"{m}_of_fewer_rows"], 0.0] for m in METRICS if f"{m}_of_fewer_rows" in line}
        found |= {f"{metric} of trees": pair for metric, pair in line.get("control", {}).items()}
        for metric, pair in found.items():
            if pair is not None and (metric == "coverage" or pair[0] is not None):  # no area without rows of a class
                value = pair[1] if metric == "coverage" else pair[0] - pair[1]
                tables = groups.setdefault((line["study"], line["split"], line["rows"], metric), {})
                tables.setdefault(line["table"], []).append(value)
    texts = []
    for (study, split, rows, metric), tables in sorted(groups.items()):
        means = [float(np.mean(values)) for values in tables.values()]
        every = np.concatenate(list(tables.values()))
        error = np.std(means, ddof=1) / len(means) ** 0.5 if len(means) > 1 else np.nan
        mean, worst = f"{np.mean(means):+.4f} +- {error:.4f}", f"largest {np.abs(every).max():.4f}"
        count = f"{len(every)} cases of {len(means)} tables"
        print(f"{study:7s} {split:7s} {rows:6d} rows {metric:19s} {mean}, {worst}, {count}")
        of = {"study": study, "split": split, "rows": rows, "metric": metric, "cases": len(every), "tables": len(means)}
        found = {"mean": float(np.mean(means)), "error": None if len(means) < 2 else float(error)}
        texts.append(json.dumps(of | found | {"largest": float(np.abs(every).max())}) + "\n")
    if stored is not None:
        stored.write_text("".join(texts))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--tables", nargs="*", default=[])
    parser.add_argument("--splits", nargs="*", default=[], help="rows, time, groups; all without it")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--apart", action="store_true", help="only cases by groups or by time")
    parser.add_argument("--made", action="store_true", help="made-up times and groups: no drift")
    parser.add_argument("--order", action="store_true")
    parser.add_argument("--summary", type=Path, help="where to write the means and errors as lines")
    parser.add_argument("--show", action="store_true", help="no new case")
    parser.add_argument("--noise", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if not chosen.show:
        measure(chosen)
    summarize(chosen.lines, chosen.summary)
