"""Splits: stratified, disjoint, and the same for ever."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mercer.tabular.folds import StableRandom
from mercer_papers.data import stratified_folds, stratified_split

LABELS = torch.arange(1000) ** 2 % 7 % 3  # three classes of unequal size


def digest(*tensors):
    return hashlib.sha256(b"".join(t.numpy().astype("<i8").tobytes() for t in tensors)).hexdigest()[:16]


def test_splits_never_change():
    parts = stratified_split(LABELS, test=0.2, validation=0.1, seed=3)
    assert digest(parts.train, parts.val, parts.test) == "204ebdc579d80f3f"
    assert digest(stratified_folds(LABELS, folds=10, seed=3)) == "379ecd0e0b3a6711"


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(-3, 5), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.1, 0.2, 0.5]),
    st.sampled_from([0.0, 0.2, 0.45]),
    st.integers(0, 2**31),
)
def test_parts_cover_every_row_once_and_every_class_trains(labels, test, validation, seed):
    y = torch.tensor(labels)
    parts = stratified_split(y, test=test, validation=validation, seed=seed)
    together = torch.cat([parts.train, parts.val, parts.test])
    assert together.sort().values.tolist() == list(range(len(y)))
    for label in y.unique():
        count, held_out = int((y == label).sum()), int((y[parts.test] == label).sum())
        assert abs(held_out - count * test) <= 1
        assert (y[parts.train] == label).any()
        assert held_out > 0 or test == 0 or count == 1


def test_folds_deal_rows_and_classes_evenly():
    folds = stratified_folds(LABELS, folds=7, seed=1)
    counts = torch.stack([torch.bincount(LABELS[folds == fold], minlength=3) for fold in range(1, 8)])
    assert (counts.amax(0) - counts.amin(0)).max() <= 1
    assert counts.sum(1).max() - counts.sum(1).min() <= 1


def test_seed_decides():
    one, two, other = (stratified_split(LABELS, seed=seed).train for seed in (5, 5, 6))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (torch.zeros(3), {}, "y must be whole-number labels"),
        (torch.zeros(3, 1, dtype=torch.long), {}, r"got torch.int64 \(3, 1\)"),
        ([0, 1], {}, "got list"),
        (torch.zeros(0, dtype=torch.long), {}, "y must have at least one row"),
        (LABELS, {"test": 1.0}, "test must be a share below 1; got 1.0"),
        (LABELS, {"test": -0.1}, "test must be 0 or more; got -0.1"),
        (LABELS, {"test": 0.6, "validation": 0.5}, r"test \+ validation must be below 1"),
        (LABELS, {"seed": -1}, "seed must be a whole number of at least 0; got -1"),
    ],
)
def test_bad_arguments_are_named(y, options, message):
    with pytest.raises(ValueError, match=message):
        stratified_split(y, **options)


def test_too_many_folds():
    with pytest.raises(ValueError, match=r"folds must be in 2\.\.4, the rows of y; got 5"):
        stratified_folds(torch.tensor([0, 1, 0, 1]), folds=5)


def test_draws_follow_their_laws():
    draws = StableRandom(0)
    normal, uniform, below = draws.normal(40_000), draws.uniform(40_000), draws.below(5, 40_000)
    assert abs(float(normal.mean())) < 0.025
    assert abs(float(normal.var()) - 1) < 0.035  # five standard errors
    assert 0 < float(uniform.min()) < 1e-3
    assert 1 - 1e-3 < float(uniform.max()) < 1
    assert abs(float(uniform.mean()) - 0.5) < 0.0073
    assert (torch.bincount(below, minlength=5) - 8000).abs().max() < 400
    assert draws.permutation(100).sort().values.tolist() == list(range(100))


def test_draws_stay_inside_the_open_interval_at_both_ends(monkeypatch):
    draws = StableRandom(0)
    ends = np.array([0, 2**64 - 1], dtype=np.uint64)
    monkeypatch.setattr(draws, "_raw", lambda n: ends)
    assert torch.isfinite(draws.normal(2)).all()
    assert draws.below(10, 2).tolist() == [0, 9]
