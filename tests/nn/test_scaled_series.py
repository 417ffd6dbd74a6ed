"""The fused series of the head: equal to the plain one in value and gradients."""

import pytest
import torch

from mercer.nn.scaled_series import _plain, scaled_series


def rows(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("order", [0, 1, 2, 10, 13])
def test_fast_and_plain_ways_agree_in_value_and_gradients(order, scaled):
    x, y, a = rows(5, 4), rows(6, 4, seed=1), rows(order + 1, 1, seed=2)[:, 0]
    x[2], y[0], y[1] = 0, 0, x[0]
    inputs = [each.clone().requires_grad_() for each in (x, y, a)]
    scale = rows(6, 1, seed=3)[:, 0].requires_grad_() if scaled else None
    wanted = inputs if scale is None else [*inputs, scale]
    weights = rows(5, 6, seed=4)
    fast, plain = scaled_series(*inputs, scale), _plain(*inputs, scale)
    torch.testing.assert_close(fast, plain)
    ways = [torch.autograd.grad((v * weights).sum(), wanted, materialize_grads=True) for v in (fast, plain)]
    for ours, expected in zip(*ways, strict=True):
        torch.testing.assert_close(ours, expected)


def test_rows_of_any_length_have_the_same_cosines():
    x, y, a = rows(3, 4).float(), rows(2, 4, seed=1).float(), torch.tensor([0.5, 1.0, 0.25])
    expected = scaled_series(x, y, a, None)
    for size in (1e-30, 1e25):
        torch.testing.assert_close(scaled_series(size * x, size * y, a, None), expected)
        torch.testing.assert_close(scaled_series(size * x, y, a, None), expected)
