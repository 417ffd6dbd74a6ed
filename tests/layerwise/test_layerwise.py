"""The poster's two solvers equal its equations; claims and theorems are tested where they hold."""

import itertools
import math

import pytest
import torch

from mercer import NumericalWarning
from mercer.layerwise import dependence as dep
from mercer.layerwise.bandwidths import median_distance, most_dependent, walk_down
from mercer.layerwise.closed_form import ClosedFormLayer, class_norms, fit_closed_form
from mercer.layerwise.record import measure_features, measure_gram
from mercer.layerwise.spectral import SpectralLayer, fit_spectral, ism, riemannian_gradient
from tests import reference_masoomi2020 as literal

C = 3


@pytest.fixture
def rows(generator):
    x = torch.randn(18, 4, dtype=torch.float64, generator=generator)
    y = torch.tensor([0] * 9 + [1] * 5 + [2] * 4)
    x[:, 0] += 1.5 * y
    return x, y


@pytest.fixture
def features(generator):
    return torch.randn(18, 11, dtype=torch.float64, generator=generator) / 3


def blobs(n, generator, spread=0.6):
    y = torch.arange(n) % C
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    return centres[y] + spread * torch.randn(n, 2, dtype=torch.float64, generator=generator), y


def test_gamma_is_a_table_over_classes(rows):
    _, y = rows
    torch.testing.assert_close(dep.gamma_table(y, C)[y][:, y], literal.gamma(y, C))


def test_gram_path_equals_the_poster(rows):
    x, y = rows
    K = dep.gaussian(1.3)(x)
    torch.testing.assert_close(K, literal.gaussian(x, x, 1.3))
    torch.testing.assert_close(dep.hsic(K, y, C), literal.hsic(K, y, C))
    torch.testing.assert_close(dep.degrees(K, y, C), (literal.gamma(y, C) * K).sum(1))
    torch.testing.assert_close(dep.ism_matrix(K, x, y, C), literal.q_matrix(K, x, y, C))


def test_feature_path_equals_the_gram_path_to_1e_8(rows, features):
    x, y = rows
    K = features @ features.T
    close = {"rtol": 1e-8, "atol": 1e-8}
    torch.testing.assert_close(dep.feature_hsic(features, y, C), dep.hsic(K, y, C), **close)
    torch.testing.assert_close(dep.feature_degrees(features, y, C), dep.degrees(K, y, C), **close)
    torch.testing.assert_close(dep.feature_ism_matrix(features, x, y, C), dep.ism_matrix(K, x, y, C), **close)


def test_feature_path_never_forms_n_by_n(generator):
    n = 60_000  # n x n would be 27 GiB
    x, y = blobs(n, generator)
    f = torch.randn(n, 8, dtype=torch.float64, generator=generator)
    assert dep.feature_ism_matrix(f, x, y, C).shape == (2, 2)


def test_the_linear_matrix_is_a_gradient(rows, generator):
    x, y = rows
    w = torch.linalg.qr(torch.randn(4, 2, dtype=torch.float64, generator=generator))[0].requires_grad_()
    G = literal.gamma(y, C)
    z = x @ w
    (grad,) = torch.autograd.grad((G * (z @ z.T)).sum(), w)
    torch.testing.assert_close(grad, 2 * dep.linear_ism_matrix(x, y, C) @ w)


def test_records_by_gram_and_by_features_equal_the_definitions(rows, features):
    x, y = rows
    K = features @ features.T
    by_gram = measure_gram(K, x, y, C, 0.7)
    by_features = measure_features(features, x, y, C, 0.7)
    for name, value in by_gram.row().items():
        assert value == pytest.approx(by_features.row()[name], rel=1e-9), name
    assert by_gram.hsic == pytest.approx(literal.normalized_hsic(K, y, C))
    assert by_gram.t == pytest.approx(literal.scatter_ratio(features, y, C))
    assert by_gram.c == pytest.approx(literal.separation(K, y))
    assert by_gram.mse == pytest.approx(literal.translated_mse(x, y))
    assert by_gram.ce == pytest.approx(literal.basis_cross_entropy(features, y, C))
    assert (by_gram.bandwidth, by_gram.width) == (0.7, 4)


# --- W_s ----------------------------------------------------------------------------------------------------


def test_closed_form_layers_equal_the_poster(rows):
    x, y = rows
    chain = fit_closed_form(x, y, C, rule="authors", max_layers=3)
    z = x
    for layer, record in zip(chain.layers, chain.history, strict=True):
        expected = literal.w_s_outputs(z, y, C, record.bandwidth, z)
        new = x[:2] if z is x else z[:2] + 0.1
        torch.testing.assert_close(layer(new), literal.w_s_outputs(z, y, C, record.bandwidth, new))
        z = layer(z)
        torch.testing.assert_close(z, expected)
    torch.testing.assert_close(z, chain.outputs)


def test_scalar_norm_is_equation_2(rows):
    x, y = rows
    K = literal.gaussian(x, x, 1.0)
    whole = sum(float(K[y == k][:, y == k].sum()) for k in range(C))
    norms = class_norms(K, y, C, "scalar")
    torch.testing.assert_close(norms, torch.full((C,), math.sqrt(whole), dtype=torch.float64))


def test_leave_one_out_takes_each_row_out_of_its_own_sums(rows):
    x, y = rows
    chain = fit_closed_form(x, y, C, rule="leave_one_out", max_layers=1)
    expected = literal.w_s_held_out(x, y, C, chain.history[0].bandwidth)
    torch.testing.assert_close(chain.outputs, expected)
    counts = torch.bincount(y).double()
    full = literal.gaussian(x, x, chain.history[0].bandwidth) @ dep.one_hot(y, C) / counts
    norms = torch.stack([(full * counts - 1)[y == k, k].mean() / (counts[k] - 1) for k in range(C)]).sqrt()
    torch.testing.assert_close(chain.layers[0](x), full / norms)


def test_extra_dimensions_add_a_column_for_the_wrongly_assigned(generator):
    x, y = blobs(60, generator, spread=1.5)
    chain = fit_closed_form(x, y, C, rule="authors", extra=True, max_layers=3)
    assert isinstance(chain.layers[0], ClosedFormLayer)
    assert [layer.weights.shape[1] > C for layer in chain.layers][:2] == [False, True]


def test_theorem_1_hsic_grows_strictly(generator):
    x, y = blobs(60, generator)
    chain = fit_closed_form(x, y, C, rule="authors", max_layers=8, enough=0.999)
    H = [record.hsic for record in chain.history]
    assert len(H) >= 2 and all(b > a for a, b in itertools.pairwise(H))
    start = most_dependent(x, y, C)
    assert H[0] > literal.normalized_hsic(dep.gaussian(start)(x), y, C)


def test_theorem_1_small_bandwidths_come_within_any_delta(generator):
    x = torch.rand(24, 2, dtype=torch.float64, generator=generator)
    y = torch.randint(0, 2, (24,), generator=generator)  # labels that have nothing to do with the rows
    chain = fit_closed_form(x, y, 2, rule="authors", max_layers=20, enough=0.99, restarts=8)
    assert chain.history[-1].hsic >= 0.99


def test_theorem_2_the_kernel_becomes_the_label_kernel(generator):
    x, y = blobs(45, generator, spread=0.3)
    chain = fit_spectral(x, y, C, generator=generator, enough=0.995, max_layers=8)
    last = chain.layers[-1].features(chain.outputs)
    K, same = last @ last.T, y[:, None] == y
    assert chain.history[-1].t < 0.05 < chain.history[0].t
    assert float(K[same].mean()) > 0.9 and abs(float(K[~same].mean())) < 0.1


# --- W* -----------------------------------------------------------------------------------------------------


def test_ism_equals_the_literal_iteration(rows):
    x, y = rows
    found = ism(x, y, C, 1.5, width=2, max_iterations=60, tolerance=1e-12)
    expected = literal.ism(x, y, C, 1.5, 2, 1000)  # full turns only: it swings about the same point for long
    torch.testing.assert_close(found.w @ found.w.T, expected @ expected.T, rtol=1e-6, atol=1e-6)
    assert found.residual < 1e-8


def test_claims_4_and_5_the_gradient_vanishes_at_w_star_only(rows):
    x, y = rows
    sigma = 1.5

    def along_the_constraint(w):
        w = w.detach().clone().requires_grad_()
        (grad,) = torch.autograd.grad(literal.hsic_of_w(w, x, y, C, sigma), w)
        return (grad - w @ (w.T @ grad)).detach(), grad

    star = ism(x, y, C, sigma, width=2, max_iterations=60, tolerance=1e-12).w
    zero, whole = along_the_constraint(star)
    assert float(zero.norm()) < 1e-7 * float(whole.norm())
    sums = dep.class_sums(x, y, C).T
    w_s = torch.linalg.qr(sums)[0][:, :2]
    gradient, whole = along_the_constraint(w_s)
    assert float(gradient.norm()) > 1e-2 * float(whole.norm())
    z = x @ w_s
    Q = dep.ism_matrix(dep.gaussian(sigma)(z), x, y, C)
    torch.testing.assert_close(gradient, 2 / sigma**2 * riemannian_gradient(Q, w_s))


def test_ism_never_ends_below_its_start(rows):
    x, y = rows
    for sigma in (0.3, 1.0, 3.0):
        start = ism(x, y, C, kernel="linear", width=2).w
        found = ism(x, y, C, sigma, width=2).w
        assert literal.hsic_of_w(found, x, y, C, sigma) >= literal.hsic_of_w(start, x, y, C, sigma) - 1e-12


def test_ism_with_more_features_than_rows_stays_in_their_span(generator):
    x, y = torch.randn(12, 30, dtype=torch.float64, generator=generator), torch.arange(12) % 2
    found = ism(x, y, 2, 3.0, width=2, max_iterations=60)
    torch.testing.assert_close(found.w.T @ found.w, torch.eye(2, dtype=torch.float64))
    z = x @ found.w
    Q = literal.q_matrix(literal.gaussian(z, z, 3.0), x, y, 2)
    assert float(riemannian_gradient(Q, found.w).norm()) < 1e-5 * float((Q @ found.w).norm())


def test_ism_by_features_agrees_with_ism_by_gram(rows, generator):
    x, y = rows
    layer = fit_spectral(x, y, C, features=4000, max_layers=1, generator=generator).layers[0]
    assert isinstance(layer, SpectralLayer)
    sigma = 1.0
    normal = torch.randn(2, 4000, dtype=torch.float64, generator=generator) / sigma
    phases = 2 * math.pi * torch.rand(4000, dtype=torch.float64, generator=generator)
    mapped = SpectralLayer(torch.eye(4, 2, dtype=torch.float64), normal, phases, torch.zeros(4, dtype=torch.float64))
    by_gram = ism(x, y, C, sigma, width=2).w
    by_features = ism(x, y, C, sigma, width=2, features=mapped.features, max_iterations=10).w
    z = x @ by_gram
    K, F = dep.gaussian(sigma)(z), mapped.features(z)
    assert float((K - F @ F.T).abs().max()) < 5 / math.sqrt(4000)  # the random features' own error
    reached = literal.hsic_of_w(by_features, x, y, C, sigma)
    assert float(reached) > 0.95 * float(literal.hsic_of_w(by_gram, x, y, C, sigma))


# --- bandwidths ---------------------------------------------------------------------------------------------


def test_most_dependent_is_the_maximum(generator):
    x, y = blobs(40, generator)
    best = most_dependent(x, y, C)
    values = [float(dep.hsic(dep.gaussian(s)(x), y, C)) for s in (0.8 * best, best, 1.25 * best)]
    assert max(values) == values[1]


def test_walk_down_is_geometric():
    assert walk_down(8.0, 1.0, 4) == pytest.approx([8, 4, 2, 1])
    assert walk_down(2.0, 1.0, 1) == [2.0]


def test_equal_rows_have_no_bandwidth():
    with pytest.warns(NumericalWarning, match="all rows are equal to rounding; the bandwidth is set to 1"):
        assert median_distance(torch.ones(3, 2, dtype=torch.float64), where="here") == 1.0


def test_unknown_options_list_the_valid_ones(rows):
    x, y = rows
    with pytest.raises(ValueError, match="rule must be one of 'leave_one_out', 'authors'; got 'best'"):
        fit_closed_form(x, y, C, rule="best")
    with pytest.raises(ValueError, match="kernel must be one of 'gaussian', 'linear'; got 'rbf'"):
        ism(x, y, C, width=2, kernel="rbf")
