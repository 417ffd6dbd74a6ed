"""Words together with the value of another column."""

import numpy as np
import pandas as pd
import torch

import mercer
from mercer.tabular import TabularModel
from mercer.tabular.pair_means import PairMeans


def panel(rows=1500, seed=0, noise=False):
    """Shops of many names whose level differs from year to year."""
    rng = np.random.default_rng(seed)
    shop, year = rng.integers(0, 60, rows), rng.integers(2015, 2020, rows)
    level = 2 * rng.normal(size=(60, 5))
    y = level[shop, year - 2015] + 0.5 * rng.normal(size=rows)
    frame = pd.DataFrame({"shop": [f"shop {i:02d}" for i in shop], "year": year, "size": rng.normal(size=rows)})
    return frame.assign(sales=rng.permutation(y) if noise else y)


def test_pairs_are_found_where_word_and_value_do_not_add_up(tmp_path):
    frame, new = panel(), panel(3000)[1500:]
    model = TabularModel(trees=False).fit(frame[:1200], "sales")
    assert isinstance(model.means, PairMeans) and model.means.pairs_["shop"][0] == "year"
    assert "shop and year: mean" in model.feature_names
    rest = frame[1200:]
    error = float(((model.predict(rest)["prediction"] - rest["sales"]) ** 2).mean())
    assert 1 - error / rest["sales"].var() > 0.75  # words and years as a sum explain a fifth
    assert abs(model.scores["r2"] - (1 - error / rest["sales"].var())) < 0.05
    mercer.save(model, tmp_path / "model")
    again = mercer.load(tmp_path / "model")
    pd.testing.assert_frame_equal(again.predict(new), model.predict(new), check_exact=True)
    # numbers of any type are one value; a shop or a year that nobody saw has the word's mean
    pd.testing.assert_frame_equal(model.predict(new.assign(year=new["year"].astype(float))), model.predict(new))
    strange = model.encode(rest.assign(year=2050))
    place = [model.feature_names.index(name) for name in ("shop: mean", "shop and year: mean")]
    assert torch.equal(strange[:, place[0]], strange[:, place[1]])
    assert set(model.explain().index) == {"shop", "year", "size"}


def test_no_row_sees_its_own_target():
    frame = panel(400)
    means, plain = PairMeans(), TabularModel(trees=False).fit(frame, "sales")
    y = torch.tensor(frame["sales"].to_numpy())[:, None]
    fold = torch.arange(400) % 5
    columns = list(plain.preparation.columns)
    before = means.fit_transform(frame, columns, y, fold)
    assert means.pairs_
    moved = y.clone()
    moved[fold == 2] += torch.randn(80, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved[fold == 2] += y.mean() - moved.mean()  # the mean of all targets is no secret
    after = PairMeans().fit_transform(frame, columns, moved, fold)
    torch.testing.assert_close(before[fold == 2], after[fold == 2], rtol=0, atol=0.05)
    assert not torch.allclose(before[fold == 1], after[fold == 1], rtol=0, atol=0.05)


def test_noise_has_no_pairs():
    scores = []
    for seed in range(4):
        model = TabularModel().fit(panel(600, seed, noise=True), "sales")
        assert not model.means.pairs_
        scores.append(model.scores["r2"])
    assert np.mean(scores) < 0.02
