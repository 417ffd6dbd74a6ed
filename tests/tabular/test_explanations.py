"""What a model does with dates, words and single rows, in words that a reader knows."""

import numpy as np
import pandas as pd
import pytest

from mercer.tabular import TabularModel
from mercer.tabular.effects import effect_curves, reasons
from mercer.tabular.pages import model_page
from mercer.tabular.pages.model_page import reason_lines


@pytest.fixture(scope="module")
def rides():
    """Rides rise in the morning and fall on Sundays; one town of twelve has most of them."""
    rng = np.random.default_rng(0)
    when = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 24 * 120, 260), unit="h")
    town = rng.choice([f"t{i:02}" for i in range(12)], 260, p=[0.03] * 11 + [0.67])
    riders = 5000 + 900 * np.sin(2 * np.pi * when.hour / 24) - 1200 * (when.day_of_week == 6) + 400 * (town == "t11")
    frame = pd.DataFrame({"when": when.strftime("%Y-%m-%d %H:%M"), "town": town})
    return frame.assign(riders=riders + 50 * rng.normal(size=260)), TabularModel()


@pytest.fixture(scope="module")
def model(rides):
    frame, model = rides
    return model.fit(frame, "riders")


def test_a_date_moves_by_trend_weekday_and_hour(model):
    parts = {effect.part: effect for effect in effect_curves(model) if effect.column == "when"}
    assert {"trend", "weekday", "hour"} <= set(parts)
    hours = parts["hour"]
    assert hours.values == [float(i) for i in range(24)]
    assert 3 <= int(np.argmax(hours.mean)) <= 9 and max(hours.mean) - min(hours.mean) > 1000
    days = dict(zip(parts["weekday"].values, parts["weekday"].mean, strict=True))
    assert min(days, key=days.get) == "Sun"
    assert parts["trend"].values[0].startswith("2024-01")


def test_words_come_with_counts_the_frequent_ones_first(model, rides):
    towns = next(effect for effect in effect_curves(model) if effect.column == "town")
    counted = rides[0]["town"].value_counts()
    assert len(towns.values) == 8 and "t11" in towns.values and towns.values == sorted(towns.values)
    assert towns.counts == [counted[town] for town in towns.values]


def test_reasons_have_the_rows_values_and_sensible_digits(model, rides):
    frame = rides[0][:1].drop(columns="riders")
    why = reasons(model, frame)[0]
    assert why.cells == {"when": frame["when"].iloc[0], "town": frame["town"].iloc[0]}
    title, lines = reason_lines(why)
    assert sorted(name.split(" = ")[1] for name, _ in lines) == sorted(frame.iloc[0])
    number = float(title.split(": ")[1].split(" ")[0].replace(",", ""))
    average = float(title.split("average ")[1].rstrip(")").replace(",", ""))
    assert number == pytest.approx(average + sum(float(text.replace(",", "")) for _, text in lines), abs=2.5)


def test_the_page_draws_the_parts_of_a_date(model, tmp_path):
    page = model_page(model, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "How the prediction moves with the hour of when." in page
    assert "How the prediction moves with the weekday of when." in page
    assert "could not be drawn" not in page


def test_the_average_that_reasons_start_from_is_that_of_the_table():
    rng = np.random.default_rng(0)
    y = np.arange(150) % 3
    frame = pd.DataFrame(
        {"a": y + 0.2 * rng.normal(size=150), "b": rng.normal(size=150), "kind": np.array(list("uvw"))[y]}
    )
    model = TabularModel().fit(frame, "kind")
    for reason in reasons(model, frame[:9]):  # three rows of each class
        assert abs(reason.average - 1 / 3) < 0.02
        assert abs(reason.average + sum(reason.parts.values()) - reason.value) < 1e-9
