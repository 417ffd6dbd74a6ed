"""Distances and cosines against float64 differences: large means, copies, huge, tiny and bad rows, gradients."""

import pytest
import torch
from torch.func import grad, vmap

from mercer.kernels import RBF, Laplacian, Matern
from mercer.linalg.distances import (
    _find_codes,
    angles,
    clamp_cosines,
    cosines,
    manhattan_tiles,
    median_distance,
    safe_sqrt,
    squared_distances,
    unit_rows,
)
from mercer.linalg.torch_internals import forward_mode, in_batched_backward, is_transforming, may_be_differentiated

WIDTHS = [1, 4, 5, 40]  # up to four features by differences, beyond by a product


def differences(x, y):
    return (x.double()[:, None] - y.double()[None]).square().sum(-1)


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_differences_whatever_the_mean(d, dtype, generator):
    x = torch.randn(30, d, generator=generator, dtype=dtype) + 100
    y = torch.randn(20, d, generator=generator, dtype=dtype) + 100
    eps = torch.finfo(dtype).eps
    gap = (squared_distances(x, y).double() - differences(x, y)).abs()
    norms = differences(x, x.new_full((1, d), 100.0)) + differences(y, y.new_full((1, d), 100.0)).mT
    assert (gap < 20 * eps * norms).all()  # by |x|^2 + |y|^2 - 2 x.y without centring it would be 1e4 times as much


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_point_has_distance_0_to_its_copies_and_to_nothing_else(d, dtype, generator):
    x = torch.randn(30, d, generator=generator, dtype=dtype) + 100
    squared = squared_distances(x, x.clone())
    assert (squared.diagonal() == 0).all()
    assert (squared + torch.eye(30) > 0).all()


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e8, -1e30, 3e38])
def test_a_bad_row_is_near_to_nothing_and_spoils_nothing_else(d, bad, generator):
    x = torch.randn(6, d, generator=generator)
    good = squared_distances(x[1:], x[1:])
    x[0, 0] = bad
    squared = squared_distances(x, x)
    assert not (squared[0, 1:] < min(abs(bad), 1e17) ** 2 * 0.9).any()
    assert squared[0, 0] == 0 or not abs(bad) < float("inf")
    torch.testing.assert_close(squared[1:, 1:], good, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "kernel", [RBF(), RBF(torch.ones(6)), Matern(0.5), Matern(1.5), Matern(2.5), Laplacian()], ids=str
)
def test_a_kernel_of_a_bad_row_is_no_finite_lie(kernel, generator):
    x = torch.randn(5, 6, generator=generator)
    x[0, 0] = torch.nan
    assert kernel(x)[0].isnan().all()
    x[0, 0] = 0.5
    torch.testing.assert_close(kernel(x * 1e30), torch.eye(5))
    x[0, 0] = 1e30  # as far as can be: its squares overflow
    assert (kernel(x)[0, 1:] == 0).all()
    torch.testing.assert_close(kernel(x)[1:, 1:], kernel(x[1:]))


@pytest.mark.parametrize("kernel", [RBF(0.3), Matern(1.5), Matern(2.5)], ids=str)
def test_gradients_of_wide_rows(kernel, generator):
    x = torch.randn(4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randn(3, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(kernel, (x, y))
    twice = torch.cat((x, x)).detach().requires_grad_()
    kernel(twice).sum().backward()
    assert torch.isfinite(twice.grad).all()
    each = vmap(grad(lambda row: kernel(row[None], y).sum()))(x)
    (whole,) = torch.autograd.grad(kernel(x, y).sum(), x)
    torch.testing.assert_close(each, whole)


def test_square_roots_and_angles_have_a_finite_gradient_at_their_ends():
    for f, points in ((safe_sqrt, [0.0, 4.0]), (angles, [-1.0, 0.0, 1.0])):
        t = torch.tensor(points, dtype=torch.float64, requires_grad=True)
        f(t).sum().backward()
        assert torch.isfinite(t.grad).all()
    assert safe_sqrt(torch.tensor([0.0, 4.0])).tolist() == [0.0, 2.0]
    torch.testing.assert_close(angles(torch.tensor([1.0, 0.0, -1.0])), torch.tensor([0.0, torch.pi / 2, torch.pi]))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_unit_rows_of_any_scale(scale, generator):
    x = torch.randn(5, 7, generator=generator)
    expected = (x.double() / x.double().norm(dim=1, keepdim=True)).float()
    torch.testing.assert_close(unit_rows(x * scale), expected)
    assert (unit_rows(torch.zeros(2, 3)) == 0).all()


def test_cosines_of_copies_are_exactly_1_and_stay_in_range(generator):
    x = torch.randn(200, 9, generator=generator)
    t = cosines(x, torch.cat((3 * x, -x)))
    assert (t[:, :200].diagonal() == 1).all() and (t[:, 200:].diagonal() == -1).all()
    assert t.abs().max() <= 1
    assert cosines(torch.zeros(1, 9), x).abs().max() == 0
    edge = torch.tensor([1 - 1e-7, 0.5], dtype=torch.float64)
    assert torch.equal(clamp_cosines(edge), edge)  # only what rounding cannot tell from 1 becomes 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_manhattan_tiles_equal_the_sums_of_differences(dtype, generator):
    numbers = torch.randn(40, 5, generator=generator, dtype=dtype)
    levels = torch.randint(4, (40, 6), generator=generator).to(dtype) * 0.7 - 1
    constant = torch.full((40, 1), 3.0, dtype=dtype)
    for x in (numbers, levels, torch.cat((numbers, levels, constant), 1)):
        x = x.clone()
        x[7] = x[3]
        y = x[:9] * 1.0
        for other in (x, y):
            exact = (x[:, None].double() - other[None].double()).abs().sum(-1)
            found = manhattan_tiles(x, other)(slice(0, 40), slice(0, len(other)))
            room = 100 * torch.finfo(dtype).eps * float(exact.max())
            torch.testing.assert_close(found.double(), exact, rtol=0, atol=room)
            assert (found[exact == 0] == 0).all()


def test_columns_of_different_scales_are_not_coded_together(generator):
    x = torch.randint(2, (30, 2), generator=generator) * torch.tensor([1e6, 1.0])
    exact = (x[:, None] - x[None]).abs().sum(-1)
    assert torch.equal(manhattan_tiles(x, x)(slice(0, 30), slice(0, 30)), exact)
    # a column of gaps not quite as small is left to differences, beside the product of the other
    x = torch.randint(2, (30, 2), generator=generator) * torch.tensor([1e3, 0.3])
    exact = (x[:, None].double() - x[None].double()).abs().sum(-1)
    codes = _find_codes(x, x)
    assert codes is not None and codes.x.shape == (30, 1) and codes.uncoded.tolist() == [1]
    found = manhattan_tiles(x, x)(slice(0, 30), slice(0, 30))
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=0)
    bad = torch.randint(2, (30, 2), generator=generator).float()
    bad[4, 1] = torch.nan
    found = manhattan_tiles(bad, bad)(slice(0, 30), slice(0, 30))
    assert found[4].isnan().all() and torch.isfinite(found[:4, :4]).all()


@pytest.mark.parametrize("p", [1, 2])
def test_median_distance(p, generator):
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    exact = float(torch.pdist(x, p=p).median())
    for scale in (1.0, 1e-200, 1e150):
        assert median_distance(x * scale, p=p) == pytest.approx(exact * scale, rel=1e-9)
    assert median_distance(torch.cat((x, x)), p=p) == pytest.approx(exact, rel=1e-9)
    assert median_distance(torch.ones(5, 2), p=p) == 0.0 == median_distance(torch.zeros(0, 2), p=p)


def test_torch_says_when_derivatives_are_taken():
    x, seen = torch.ones(2), []

    def look(z):
        seen.append((is_transforming(), forward_mode(), may_be_differentiated(z)))
        return z.sum()

    look(x)
    torch.func.vmap(look)(x[None])
    torch.func.grad(look)(x)
    torch.func.jvp(look, (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        look(torch.autograd.forward_ad.make_dual(x, x))
    look(x.clone().requires_grad_())
    with torch.no_grad():
        look(x.clone().requires_grad_())
    no, yes = (False,) * 3, (True,) * 3
    reverse = (True, False, True)
    assert seen == [no, reverse, reverse, yes, yes, (False, False, True), no]


def test_torch_says_what_a_backward_pass_carries():
    x, seen = torch.ones(2, requires_grad=True), []
    y = x * 2
    y.register_hook(lambda g: seen.append(in_batched_backward(g)))
    torch.autograd.grad(y, x, torch.ones(2), retain_graph=True)
    torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)
    assert seen == [False, True]
