"""Six tables as CSV files, to try the commands on. Run: python examples/tables.py FOLDER

Wine, breast cancer and digits ship with scikit-learn; car (UCI) is taken from the folder that MERCER_DATA names. Two
are made up. Messy has words, dates, yes and no, numbers with holes, a constant column, an identifier, a remark; orders
has money, a word of 400 levels, dates with hours, holes, and a rare class to predict.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets

from mercer_papers import data
from mercer_papers.data.readers import CAR_LEVELS

TARGETS = {
    "car": "class",
    "wine": "class",
    "breast_cancer": "class",
    "digits": "digit",
    "messy": "churned",
    "orders": "fraud",
}


def shipped(name: str, target: str) -> pd.DataFrame:
    """A set of scikit-learn with its own column names."""
    bunch = getattr(datasets, f"load_{name}")(as_frame=True)
    frame = bunch.data.copy()
    labels = np.array([str(label) for label in bunch.target_names])[bunch.target]
    frame[target] = labels if name != "digits" else bunch.target
    return frame


def car() -> pd.DataFrame:
    """The 1,728 cars in words, as UCI has them."""
    table = data.load("car")
    codes = np.concatenate([table.x_train.numpy(), table.x_test.numpy()]).astype(int)
    labels = np.concatenate([table.y_train.numpy(), table.y_test.numpy()])
    frame = pd.DataFrame({name: np.array(levels)[codes[:, i]] for i, (name, levels) in enumerate(CAR_LEVELS.items())})
    frame["class"] = np.array(table.classes)[labels]
    return frame


def messy(rows: int = 1200, seed: int = 0) -> pd.DataFrame:
    """Customers, who leave more often the fewer calls they make, in some plans, in winter, and if they complained."""
    rng = np.random.default_rng(seed)
    plan = rng.choice(["basic", "plus", "family", "business"], rows, p=[0.45, 0.3, 0.2, 0.05])
    city = rng.choice([f"city {i}" for i in range(60)], rows, p=np.arange(60, 0, -1) / 1830)
    joined = pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 1800, rows), unit="D")
    calls, spent = rng.poisson(12, rows), rng.lognormal(3.5, 0.8, rows)
    complained = rng.random(rows) < 0.25
    winter = np.cos(2 * np.pi * joined.day_of_year / 365.25)
    score = 1.6 * complained - 0.25 * (calls - 12) + 1.2 * winter + 0.02 * np.minimum(spent, 120)
    score += pd.Series(plan).map({"basic": 1.0, "plus": -0.5, "family": -1.5, "business": 0.5}).to_numpy()
    frame = pd.DataFrame(
        {
            "customer": [f"C{i:05}" for i in rng.permutation(rows)],
            "plan": plan,
            "city": city,
            "joined": joined.strftime("%d.%m.%Y"),
            "calls": calls.astype(float),
            "spent": spent.round(2),
            "complained": np.where(complained, "yes", "no"),
            "country": "CH",
            "remark": [f"call {i} was about a bill and a change of address" for i in range(rows)],
            "churned": np.where(score + rng.logistic(0, 0.8, rows) > 0.8, "left", "stayed"),
        }
    ).astype({"calls": object, "spent": object, "plan": object})
    for column, share, mark in (("calls", 0.08, "?"), ("spent", 0.15, ""), ("plan", 0.05, "NA"), ("joined", 0.03, "")):
        frame.loc[rng.random(rows) < share, column] = mark
    return frame


def orders(rows: int = 3000, seed: int = 0) -> pd.DataFrame:
    """Orders of a shop, 4 % of them fraud: more of it at night, for large amounts, and with a few of 400 sellers."""
    rng = np.random.default_rng(seed)
    seller, amount = rng.integers(0, 400, rows), rng.lognormal(5, 1.2, rows)
    placed = pd.Timestamp("2025-01-06") + pd.to_timedelta(rng.integers(0, 300 * 24 * 60, rows), unit="min")
    night = np.isin(placed.hour, (23, 0, 1, 2, 3, 4))
    score = 4 * (seller < 15) + 1.5 * night + np.log(amount / 150) + rng.logistic(0, 0.6, rows)
    frame = pd.DataFrame(
        {
            "order": [f"A-{i:06}" for i in rng.permutation(rows)],
            "placed": placed.strftime("%m/%d/%Y %I:%M %p"),
            "amount": [f"${value:,.2f}" for value in amount],
            "seller": [f"seller {i:03}" for i in seller],
            "items": rng.poisson(2, rows) + 1,
            "express": rng.choice(["yes", "no"], rows),
            "currency": "USD",
            "fraud": np.where(score > np.quantile(score, 0.96), "yes", "no"),
        }
    ).astype({"items": object})
    for column, share, mark in (
        ("amount", 0.07, ""),
        ("seller", 0.03, "N/A"),
        ("placed", 0.02, ""),
        ("items", 0.1, "?"),
    ):
        frame.loc[rng.random(rows) < share, column] = mark
    return frame


def write(folder: Path) -> list[Path]:
    """All tables that can be had; the files."""
    folder.mkdir(parents=True, exist_ok=True)
    makers = {name: lambda name=name: shipped(name, TARGETS[name]) for name in ("wine", "breast_cancer", "digits")}
    makers |= {"messy": messy, "orders": orders}
    if data.available("car"):
        makers["car"] = car
    files = []
    for name, make in makers.items():
        files.append(folder / f"{name}.csv")
        make().to_csv(files[-1], index=False)
    return files


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "tables")
    for path in write(folder):
        print(f"mercer fit {path} --target {TARGETS[path.stem]} -o {folder / path.stem}")
    if not data.available("car"):
        print(f"car.csv is left out. {data.how_to_get('car')}")


if __name__ == "__main__":
    main()
