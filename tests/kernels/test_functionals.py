"""HSIC, CKA and alignment against their definitions, and for very few rows."""

import pytest
import torch

from mercer.kernels import RBF, Linear
from mercer.kernels.functionals import center, cka, hsic, target_alignment


@pytest.fixture
def grams(generator):
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.randn(3, 2, generator=generator, dtype=torch.float64)
    return RBF()(x), Linear()(y)


def test_biased_hsic_is_the_trace(grams):
    K, L = grams
    n = len(K)
    H = torch.eye(n, dtype=K.dtype) - 1 / n
    torch.testing.assert_close(hsic(K, L), (K @ H @ L @ H).trace() / (n - 1) ** 2)
    torch.testing.assert_close(center(K), H @ K @ H)
    expected = (K @ H @ L @ H).trace() / ((H @ K @ H).norm() * (H @ L @ H).norm())
    torch.testing.assert_close(cka(K, L), expected)
    torch.testing.assert_close(cka(K, L), expected)


def test_unbiased_hsic_is_the_mean_over_quadruples(generator):
    n = 6
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    K, L = RBF()(x), Linear()(x.flip(1))
    total, count = 0.0, 0
    for i in range(n):
        for j in range(n):
            for q in range(n):
                for r in range(n):
                    if len({i, j, q, r}) == 4:
                        total += K[i, j] * (L[i, j] + L[q, r] - 2 * L[i, q])
                        count += 1
    torch.testing.assert_close(hsic(K, L, unbiased=True), total / count)


def test_unbiased_cka_of_independent_variables_has_mean_zero():
    values = []
    for seed in range(200):
        g = torch.Generator().manual_seed(seed)
        K = Linear()(torch.randn(10, 4, generator=g, dtype=torch.float64))
        L = Linear()(torch.randn(10, 4, generator=g, dtype=torch.float64))
        values.append(hsic(K, L, unbiased=True))
    values = torch.stack(values)
    assert values.mean().abs() < 4 * values.std() / 200**0.5


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_rows_give_no_nan(n):
    K = RBF()(torch.arange(float(n))[:, None])
    for value in (hsic(K, K), cka(K, K), target_alignment(K, torch.arange(n))):
        assert torch.isfinite(value)
    assert cka(torch.ones(n, n), K) == 0
    with pytest.raises(ValueError, match=f"unbiased=True needs at least 4 rows; got {n}"):
        hsic(K, K, unbiased=True)


def test_alignment_is_one_for_the_ideal_kernel_and_invariant_to_scale(generator):
    y = torch.tensor([0, 1, 1, 0, 1])
    signs = torch.where(y == 1, 1.0, -1.0)
    ideal = signs[:, None] * signs[None]
    torch.testing.assert_close(target_alignment(3 * ideal, y), torch.tensor(1.0))
    torch.testing.assert_close(target_alignment(ideal, signs), torch.tensor(1.0))
    several = torch.tensor([0, 1, 2, 2, 1])
    columns = torch.where(several[:, None] == torch.arange(3)[None], 1.0, -1.0)
    torch.testing.assert_close(target_alignment(columns @ columns.mT, several), torch.tensor(1.0))
    assert target_alignment(torch.ones(5, 5) + ideal, y, centered=True) > 0.99


def test_wrong_shapes_are_named():
    with pytest.raises(TypeError, match=r"target_alignment: targets must be real; got torch.complex64"):
        target_alignment(torch.eye(2), torch.ones(2) + 0j)
    with pytest.raises(ValueError, match=r"hsic: K must have shape \(n, n\), n > 0; got \(2, 3\)"):
        hsic(torch.ones(2, 3), torch.ones(2, 2))
    with pytest.raises(ValueError, match="K and L must have as many rows; got 2 and 3"):
        cka(torch.eye(2), torch.eye(3))
