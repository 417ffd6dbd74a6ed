"""The study of honest scores: new rows come after the rows learned from, and its control is scored in the same way."""

import json

import numpy as np
import pandas as pd

from mercer_papers.bench.studies.honest_scores import draw, score_control, summarize


def sold(rows=600):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"day": rng.permutation(rows), "size": rng.normal(size=rows), "shop": rng.integers(0, 30, rows)}
    )
    return frame.assign(sales=frame["size"] + 0.1 * rng.normal(size=rows))


def test_new_rows_are_later_or_of_other_groups():
    frame = sold()
    old, new = draw(frame, "sales", ("time", "day"), 200, 0)
    assert old["day"].max() < new["day"].min() and len(old) == 200
    old, new = draw(frame, "sales", ("groups", "shop"), 200, 0)
    assert not set(old["shop"]) & set(new["shop"]) and len(new) > 100


def test_the_control_is_scored_on_the_last_fifth_and_on_later_rows():
    old, new = draw(sold(), "sales", ("time", "day"), 400, 0)
    last = old["day"] >= old["day"].sort_values().iloc[320]
    spoiled = old.assign(sales=np.where(last, np.random.default_rng(1).permutation(old["sales"]), old["sales"]))
    calm, wild = (score_control(rows, new, "sales", "regression", ("time", "day"))["r2"] for rows in (old, spoiled))
    assert min(calm) > 0.9 and wild[0] < 0.2 < wild[1]  # the last fifth is noise, what comes after it is not
    classes = old.assign(sales=np.where(old["sales"] > 0, "many", "few"))
    later = new.assign(sales=np.where(new["sales"] > 0, "many", "few"))
    assert min(score_control(classes, later, "sales", "classification", ("time", "day"))["accuracy"]) > 0.85


def test_the_error_of_a_mean_is_that_of_tables(tmp_path, capsys):
    """Twelve cases of two tables are two tables."""
    with (tmp_path / "lines.jsonl").open("w") as file:
        for table, off in (("a", 0.1), ("b", 0.3)):
            for seed in range(6):
                case = {"table": table, "seed": seed, "split": "time", "rows": 700, "study": "honest", "r2": [off, 0.0]}
                file.write(json.dumps(case) + "\n")
    summarize(tmp_path / "lines.jsonl")
    assert "+0.2000 +- 0.1000, largest 0.3000, 12 cases of 2 tables" in capsys.readouterr().out
