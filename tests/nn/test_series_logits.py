"""The fused logits of the head: equal to the plain ones in value and gradients."""

import pytest
import torch

from mercer.nn import series_logits as module
from mercer.nn.series_logits import plain_series_logits, series_logits


def rows(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("block", [2**15, 12])  # one block, whose powers are kept, and several
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("order", [0, 1, 2, 10, 13])
def test_fast_and_plain_ways_agree_in_value_and_gradients(order, whole, block, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", block)
    z, w, a = rows(5, 4), rows(6, 4, seed=1), rows(order + 1, 1, seed=2)[:, 0]
    z[2], w[0], w[1] = 0, 0, z[0]
    wanted, options = [z, w, a], {"lift": 0.0, "radius": 0.0, "normalized": False}
    start = center = None
    if whole:  # gate, bias, linear part, center, lift and coefficients below 0 that keep a gradient
        wanted += [rows(6, 1, seed=3)[:, 0], rows(6, 1, seed=5)[:, 0], rows(6, 4, seed=6)]
        start, center = rows(1, 1, seed=8)[0], rows(4, 1, seed=7)[:, 0]
        options = {"lift": 0.5, "radius": 1.5, "normalized": True}
    wanted = [each.clone().requires_grad_() for each in wanted]
    arguments = [*wanted, *[None] * (6 - len(wanted)), start, center]
    weights = rows(5, 6, seed=4)
    fast, plain = series_logits(*arguments, **options), plain_series_logits(*arguments, **options)
    torch.testing.assert_close(fast, plain)
    ways = [torch.autograd.grad((v * weights).sum(), wanted, materialize_grads=True) for v in (fast, plain)]
    for ours, expected in zip(*ways, strict=True):
        torch.testing.assert_close(ours, expected)


def test_rows_of_any_length_have_the_same_cosines():
    z, w, a = rows(3, 4).float(), rows(2, 4, seed=1).float(), torch.tensor([0.5, 1.0, 0.25])
    expected = series_logits(z, w, a)
    for size in (1e-30, 1e25):
        torch.testing.assert_close(series_logits(size * z, size * w, a), expected)
        torch.testing.assert_close(series_logits(size * z, w, a), expected)


def test_the_lift_shortens_cosines_of_short_rows_and_bounds_their_gradients():
    w, a = rows(2, 4, seed=1).float(), torch.tensor([0.0, 1.0])
    long, short = rows(3, 4).float(), torch.full((1, 4), 1e-30)
    torch.testing.assert_close(series_logits(1e25 * long, w, a, lift=0.5), series_logits(long, w, a))
    short.requires_grad_()
    value = series_logits(short, w, a, lift=0.5)
    assert value.abs().max() < 1e-25
    (slope,) = torch.autograd.grad(value[0, 0], short)
    torch.testing.assert_close(slope[0], 2 * w[0] / w[0].norm())
