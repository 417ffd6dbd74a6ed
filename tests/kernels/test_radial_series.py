"""The Schoenberg series: equal to the paper's equation, positive definite where it says so."""

import math

import pytest
import torch

import mercer
from mercer.kernels import RadialSeries
from mercer.kernels.radial_series import truncation_bound
from tests import reference_jayasumana2021 as reference


def rows(n, d, seed=0, dtype=torch.float64):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def with_random_alpha(kernel, seed=3):
    generator = torch.Generator().manual_seed(seed)
    kernel.double()
    with torch.no_grad():
        kernel.alpha.copy_(torch.rand(kernel.alpha.shape, generator=generator, dtype=torch.float64) + 0.1)
    return kernel


@pytest.mark.parametrize("indicators", ["off", "exact"])
def test_equals_equation_7(indicators):
    kernel = with_random_alpha(RadialSeries(6, indicators=indicators))
    x = rows(4, 3)
    y = torch.cat((rows(3, 3, seed=1), 2 * x[:1], -3 * x[1:2]))  # cosines of exactly 1 and -1 with x
    alpha = kernel.coefficients.tolist()
    expected = [[reference.equation_6(reference.unit(u), reference.unit(v), alpha) for v in y] for u in x]
    torch.testing.assert_close(kernel(x, y), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("dim", [2, 3, 5, 20])
def test_gegenbauer_equals_scipy(dim):
    kernel = with_random_alpha(RadialSeries(8, basis="gegenbauer", dim=dim))
    x, y, alpha = rows(4, dim), rows(3, dim, seed=1), kernel.coefficients.tolist()
    expected = [[reference.gegenbauer_series(reference.unit(u), reference.unit(v), alpha, dim) for v in y] for u in x]
    torch.testing.assert_close(kernel(x, y), torch.tensor(expected, dtype=torch.float64))
    t = torch.linspace(-1, 1, 7, dtype=torch.float64)
    point = torch.zeros(1, dim, dtype=torch.float64)
    point[0, 0] = 1
    circle = torch.zeros(7, dim, dtype=torch.float64)
    circle[:, 0], circle[:, 1] = t, (1 - t * t).sqrt()
    torch.testing.assert_close(kernel.profile(t), kernel(circle, point)[:, 0])


def test_blocks_do_not_change_the_answer():
    kernel = with_random_alpha(RadialSeries())
    x, y = rows(250, 4), rows(300, 4, seed=1)  # more cosines than one block has
    whole = torch.cat([kernel(part, y) for part in x.split(50)])
    grads = torch.autograd.grad(whole.square().sum(), kernel.alpha)
    torch.testing.assert_close(kernel(x, y), whole)
    torch.testing.assert_close(torch.autograd.grad(kernel(x, y).square().sum(), kernel.alpha), grads)


@pytest.mark.parametrize("basis", ["monomial", "gegenbauer"])
def test_second_derivatives(basis):
    kernel = RadialSeries(5, basis=basis, dim=3).double()
    alpha = torch.rand(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1

    def gram(x, y, a):
        return torch.func.functional_call(kernel, {"alpha": a}, (x, y))

    inputs = [v.requires_grad_() for v in (rows(3, 3), rows(2, 3, seed=1), alpha)]
    assert torch.autograd.gradcheck(gram, inputs)
    assert torch.autograd.gradgradcheck(gram, inputs)


@pytest.mark.parametrize("positivity", ["relu", "softplus", "sigmoid", "softmax"])
@pytest.mark.parametrize("init", ["unit", "ones"])
def test_coefficients_start_non_negative_and_are_certified(positivity, init):
    kernel = RadialSeries(positivity=positivity, init=init)
    alpha = kernel.coefficients
    assert alpha.shape == (13,)
    assert (alpha[:2] == 0).all() and (alpha[2:] > 0).all()
    verdict = kernel.certificate()
    assert verdict.positive_definite and verdict.proof == "monomials" and verdict.dim is None


def test_the_papers_start_and_ours():
    ones = RadialSeries(init="ones", indicators="exact")
    torch.testing.assert_close(ones.coefficients, torch.ones(13))
    t = torch.tensor(1.0, dtype=torch.float64)
    slope = torch.func.grad(lambda s: RadialSeries(init="ones").profile(s))
    assert slope(t).item() == pytest.approx(55)
    ours = torch.func.grad(lambda s: RadialSeries().profile(s))
    assert RadialSeries().coefficients.sum().item() == pytest.approx(4, rel=1e-5)
    assert ours(t).item() < 55 / 4
    assert RadialSeries(positivity="softmax").coefficients.sum().item() == pytest.approx(1)
    assert RadialSeries(positivity="sigmoid").temperature == 0.1
    assert RadialSeries(positivity="softmax").temperature == 0.005


def test_certificates_of_series_with_negative_coefficients():
    legendre = RadialSeries(2, positivity="none", dim=3)  # P_2 = (3 t^2 - 1) / 2: a kernel in dimension 3, not in all
    with torch.no_grad():
        legendre.alpha.copy_(torch.tensor([-0.5, 0.0, 1.5]))
    verdict = legendre.certificate()
    assert verdict.positive_definite and verdict.proof == "gegenbauer" and verdict.dim == 3
    assert not legendre.certificate(dim=4).positive_definite
    unknown = RadialSeries(2, positivity="none")
    unknown.load_state_dict(legendre.state_dict())
    assert unknown.certificate(generator=torch.Generator().manual_seed(0)).proof == "eigenvalues"
    with torch.no_grad():
        unknown.alpha.copy_(torch.tensor([0.0, -1.0, 0.5]))
    found = unknown.certificate(generator=torch.Generator().manual_seed(0))
    assert not found.positive_definite and found.least < -0.1


def test_the_gegenbauer_class_is_larger_on_one_sphere():
    """Schoenberg: a Gegenbauer series of d = 3 is positive definite there, though it has negative powers."""
    kernel = RadialSeries(2, basis="gegenbauer", dim=3)
    with torch.no_grad():
        kernel.alpha.copy_(torch.tensor([0.0, 0.0, 1.0]))
    gram = kernel(rows(40, 3)).detach()
    assert torch.linalg.eigvalsh(gram).min() > -1e-12 * gram.trace()
    assert kernel.certificate().proof == "gegenbauer"
    x = rows(40, 6)
    t = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(x).T
    assert torch.linalg.eigvalsh(kernel.profile(t).detach()).min() < -0.1


def test_a_vector_with_itself_has_the_exact_indicator():
    """In floating point <u, u> is 1 for about half of unit vectors; the stated tolerance catches the rest."""
    kernel = RadialSeries(2, indicators="exact")
    with torch.no_grad():
        kernel.alpha.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]))
    for d in (3, 64, 512):
        x = rows(200, d, dtype=torch.float32)
        gram = kernel(x, x.clone())
        assert (gram.diagonal() == 1).all() and (kernel(x, -x).diagonal() == 1).all()
        assert gram.sum() == 200


def test_limit_indicators_have_gradients_and_exact_ones_have_none():
    x, y = rows(2, 3).requires_grad_(), rows(2, 3, seed=1)
    for indicators, slope in (("exact", False), ("limit", True)):
        kernel = RadialSeries(3, indicators=indicators).double()
        with torch.no_grad():
            kernel.alpha.copy_(torch.tensor([1.0, 1.0, 0, 0, 0, 0]))
        (grad,) = torch.autograd.grad(kernel(x, y + x.detach()).sum(), x)
        assert bool((grad != 0).any()) == slope


def test_truncation_bound_of_theorem_e1():
    """psi = exp: the bound is max exp / (M + 1)! = e / (M + 1)!, and it holds."""
    alphas = torch.tensor([1 / math.factorial(m) for m in range(40)], dtype=torch.float64)
    t = torch.linspace(-1, 1, 101, dtype=torch.float64)
    for order in (0, 3, 10):
        bound = truncation_bound(alphas, order)
        assert bound == pytest.approx(math.e / math.factorial(order + 1))
        cut = sum(float(alphas[m]) * t**m for m in range(order + 1))
        assert float((t.exp() - cut).abs().max()) <= bound
        assert float(alphas[order + 1 :].sum()) <= bound
    with pytest.raises(ValueError, match=r"truncation_bound: alphas must have shape \(m,\); got \(1, 3\)"):
        truncation_bound(torch.ones(1, 3), 2)


@pytest.mark.parametrize("scale", [1e30, 1e-30, 1e-40])
def test_values_of_any_scale_give_no_nan(scale):
    kernel = RadialSeries()
    x = rows(4, 3, dtype=torch.float32)
    far = (x * scale).requires_grad_()
    gram = kernel(far, far)
    gram.sum().backward()
    assert torch.isfinite(gram).all() and torch.isfinite(far.grad).all()
    if scale > 1e-35:
        torch.testing.assert_close(gram, kernel(x))
    huge = rows(4, 3) * 1e200
    torch.testing.assert_close(kernel.double()(huge), kernel(rows(4, 3)))


def test_sentences():
    for make, match in [
        (lambda: RadialSeries(-1), r"RadialSeries: order must be a whole number of at least 0; got -1\."),
        (lambda: RadialSeries(basis="power"), r"basis must be one of 'monomial', 'gegenbauer'; got 'power'\."),
        (lambda: RadialSeries(positivity="exp"), r"positivity must be one of 'relu', 'softplus'"),
        (lambda: RadialSeries(dim=1), r"dim must be a whole number of at least 2; got 1\."),
        (
            lambda: RadialSeries(basis="gegenbauer")(rows(2, 5)),
            r"x has 5 features, and the basis 'gegenbauer' belongs to one sphere; got dim = None\. Use .*dim=5",
        ),
    ]:
        with pytest.raises(ValueError, match=match):
            make()


def test_saves_and_loads(tmp_path):
    kernel = with_random_alpha(RadialSeries(4, basis="gegenbauer", indicators="limit"))
    kernel.fill_dim(3)
    mercer.save(kernel, tmp_path)
    torch.testing.assert_close(mercer.load(tmp_path)(rows(3, 3)), kernel(rows(3, 3)))


def test_inference_mode_leaves_training_whole():
    kernel, x = RadialSeries(), rows(3, 4, dtype=torch.float32)
    with torch.inference_mode():
        inside = kernel(x)
    x.requires_grad_()
    kernel(x).sum().backward()
    torch.testing.assert_close(inside.clone(), kernel(x).detach())


def test_threads_do_not_share_their_workspace():
    from concurrent.futures import ThreadPoolExecutor

    kernel = RadialSeries().double()
    inputs = [rows(40, 6, seed=seed) for seed in range(8)]
    alone = [kernel(x).detach() for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda x: kernel(x).detach(), inputs))
    torch.testing.assert_close(together, alone)
