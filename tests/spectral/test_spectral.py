"""`analyze` against dense float64 decompositions and the paper's equations."""

import copy
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import DataConversionWarning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mercer
from mercer import NumericalWarning
from mercer.kernels import RBF, Linear, Precomputed, ReLUGram
from mercer.spectral import analyze
from tests import reference_spectral2019 as reference


@pytest.fixture(params=["dense", "lanczos"])
def way(request):
    """Both ways to the complexity: a Cholesky factor, and Lanczos as for many rows."""
    return {} if request.param == "dense" else {"dense_rows": 0}


def problem(n=40, d=6, seed=0, columns=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, dtype=torch.float64, generator=generator)
    y = torch.randn(n, columns, dtype=torch.float64, generator=generator)
    return x / x.norm(dim=1, keepdim=True), y[:, 0] if columns == 1 else y


@pytest.mark.parametrize("columns", [1, 3])
def test_equals_the_papers_equations(columns, way):
    x, y = problem(12, 4, columns=columns)
    h = reference.gram(x)
    spectrum = analyze(ReLUGram(), x, y, **way)
    assert spectrum.complexity == pytest.approx(reference.complexity(h, y), rel=1e-8)
    expected = reference.convergence(h, y, 0.1, 30)
    torch.testing.assert_close(spectrum.convergence(0.1, 30), expected, rtol=1e-8, atol=0)


@pytest.mark.parametrize("lr_share", [0.02, 0.5, 0.99])
def test_curve_equals_the_dense_decomposition(lr_share):
    x, y = problem(700, 12)  # more than one tile's worth of work, fewer products than rows
    h = ReLUGram()(x)
    values, vectors = torch.linalg.eigh(h)
    lr = lr_share * 2 / float(values[-1])
    steps = torch.arange(201, dtype=torch.float64)
    exact = ((1 - lr * values[:, None]).abs() ** (2 * steps) * (vectors.mT @ y)[:, None].square()).sum(0).sqrt()
    spectrum = analyze(ReLUGram(), x, y)
    torch.testing.assert_close(spectrum.convergence(lr, 200), exact, rtol=1e-8, atol=0)
    assert spectrum.largest_stable_lr == pytest.approx(2 / float(values[-1]), rel=1e-9)


def test_eigenvalues_and_projections_equal_the_dense_ones():
    x, y = problem(600, 8)
    values, vectors = torch.linalg.eigh(ReLUGram()(x))
    spectrum = analyze(ReLUGram(), x, y, k=20)
    torch.testing.assert_close(spectrum.eigenvalues, values.flip(0)[:20], rtol=1e-9, atol=0)
    shares = ((vectors.mT @ y).square() / y.square().sum()).flip(0)[:20]
    torch.testing.assert_close(spectrum.projections, shares, rtol=1e-6, atol=1e-12)
    whole = analyze(ReLUGram(), x[:50], y[:50], k=50)
    assert float(whole.projections.sum()) == pytest.approx(1.0)


def test_a_spectrum_is_copied_and_pickled():
    x, y = problem()
    spectrum = analyze(ReLUGram(), x, y)
    for twin in (copy.deepcopy(spectrum), pickle.loads(pickle.dumps(spectrum))):  # noqa: S301
        assert twin.complexity == pytest.approx(spectrum.complexity, rel=1e-12)
        assert twin.bracket == pytest.approx(spectrum.bracket, rel=1e-12)


def test_dimension_and_alignment_follow_their_definitions():
    x, y = problem(columns=2)
    h = ReLUGram()(x)
    spectrum = analyze(ReLUGram(), x, y)
    assert spectrum.effective_dimension == pytest.approx(float(h.trace() ** 2 / h.square().sum()))
    outer = y @ y.mT
    assert spectrum.alignment == pytest.approx(float((h * outer).sum() / (h.norm() * outer.norm())))
    assert spectrum.bound == pytest.approx(math.sqrt(2 * spectrum.complexity / 40))
    assert spectrum.mean_diagonal == pytest.approx(0.5)


def test_bracket_holds_the_exact_value_in_200_problems(way):
    generator, tight = torch.Generator().manual_seed(1), 0
    for trial in range(200):
        n, d = (int(torch.randint(low, high, (1,), generator=generator)) for low, high in ((5, 90), (2, 30)))
        x = torch.randn(n, d, dtype=torch.float64, generator=generator)
        y = torch.randn(n, 1 + trial % 2, dtype=torch.float64, generator=generator)
        kernel = (ReLUGram(), ReLUGram(RBF(0.1)))[trial % 2]
        exact = reference.complexity(kernel(x), y)
        low, high = analyze(kernel, x, y, **way).bracket
        assert low <= exact <= high, (trial, n, d)
        tight += high <= 1.01 * low
    assert tight >= 180


@pytest.mark.parametrize("offset", [0.0, 1000.0], ids=["cosines", "rbf-of-an-offset"])
def test_bracket_holds_the_true_value_of_rows_that_are_nearly_equal(offset, way):
    for apart in 2.0 ** -torch.arange(1.0, 27.0, dtype=torch.float64):  # to where the rows cannot be told apart
        if offset:  # exp(-apart^2), whose angle loses digits to the norms
            x = torch.full((2, 8), offset, dtype=torch.float64)
            x[1, 0] += apart
            kernel = ReLUGram(RBF(1.0))
            sine = torch.sqrt(-torch.expm1(-((x[1, 0] - offset) ** 2)) / 2)
            angle = 2 * torch.asin(sine)
        else:
            x = torch.tensor([[3.0, 4.0, 0.0], [21.0, 28.0, 35.0 * apart]], dtype=torch.float64)
            kernel, angle = ReLUGram(), torch.atan(apart)
        gap = (torch.pi * 2 * torch.sin(angle / 2) ** 2 + angle * torch.cos(angle)) / (2 * torch.pi)  # 1/2 - h
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)  # singular to rounding
            low, high = analyze(kernel, x, torch.tensor([1.0, -1.0]), **way).bracket
        assert low <= 2 / float(gap) <= high, float(apart)
        assert high <= 1.01 * low or apart < (1e-2 if offset else 1e-4)


def test_bracket_closes_before_the_space_is_exhausted():
    x, y = problem(900, 30)
    spectrum = analyze(ReLUGram(), x, y, tolerance=1e-3, dense_rows=0)
    low, high = spectrum.bracket
    assert low <= reference.complexity(ReLUGram()(x), y) <= high <= 1.01 * low
    assert spectrum._run.steps < 200


def test_without_a_floor_there_is_no_upper_bound_and_a_given_floor_gives_one(way):
    x, y = problem()
    kernel = RBF(3.0)
    h = kernel(x)
    low, high = analyze(kernel, x, y, **way).bracket
    assert math.isinf(high)
    assert low <= reference.complexity(h, y) <= low * (1 + 1e-6)
    least = float(torch.linalg.eigvalsh(h)[0])
    spectrum = analyze(kernel, x, y, floor=0.9 * least, **way)
    assert spectrum.bracket[0] <= reference.complexity(h, y) <= spectrum.bracket[1] < 1.01 * low
    with pytest.raises(ValueError, match="floor must not lie above the least eigenvalue; got 50, where a Rayleigh"):
        _ = analyze(kernel, x, y, floor=50.0, **way).bracket


@pytest.mark.parametrize("storage", ["auto", "float32", "int16"])
def test_duplicates_with_opposite_targets_are_infinitely_complex_and_it_is_said(storage, way):
    x, _ = problem(60)
    x = torch.cat((x, x[:1]))
    y = torch.where(torch.arange(61) < 30, 1.0, -1.0)
    spectrum = analyze(ReLUGram(), x, y, storage=storage, **way)
    with pytest.warns(NumericalWarning, match="singular to rounding along the targets"):
        assert spectrum.complexity == math.inf
    low, high = spectrum.bracket
    assert 0 < low < high == math.inf
    assert spectrum.bound == math.inf


def test_duplicates_with_equal_targets_are_not():
    x, y = problem(60)
    x, y = torch.cat((x, x[:1])), torch.cat((y, y[:1]))
    exact = float(y @ torch.linalg.pinv(ReLUGram()(x), hermitian=True) @ y)
    assert analyze(ReLUGram(), x, y).complexity == pytest.approx(exact, rel=1e-6)


def test_classes_become_sign_columns():
    x, _ = problem()
    labels = torch.arange(40) % 2
    signs = torch.where(labels == 1, 1.0, -1.0)
    two = analyze(ReLUGram(), x, labels)
    assert two.complexity == pytest.approx(analyze(ReLUGram(), x, signs).complexity)
    assert analyze(ReLUGram(), x, labels.bool()).complexity == pytest.approx(two.complexity)
    three = torch.arange(40) % 3 * 5
    columns = torch.stack([torch.where(three == c, 1.0, -1.0) for c in (0, 5, 10)], 1)
    many = analyze(ReLUGram(), x, three)
    assert many.complexity == pytest.approx(reference.complexity(ReLUGram()(x), columns))
    assert float(many.convergence(0.1, 0)[0]) == pytest.approx(math.sqrt(3 * 40))


@pytest.mark.parametrize("kind", [str, bool, object, "column"])
def test_classes_may_be_names_booleans_objects_or_a_column(kind):
    x, _ = problem()
    classes = torch.arange(40) % 2 * 7 - 3  # -3 and 4
    expected = analyze(ReLUGram(), x, classes).complexity
    if kind == "column":
        with pytest.warns(DataConversionWarning, match=r"analyze: classes in a column of shape \(40, 1\)"):
            assert analyze(ReLUGram(), x, classes[:, None]).complexity == expected
        return
    told = {
        str: np.array(["no", "yes"])[classes.gt(0).long()],
        bool: classes > 0,
        object: classes.numpy().astype(object),
    }
    assert analyze(ReLUGram(), x, told[kind]).complexity == expected


@pytest.mark.parametrize("storage", ["float64", "float32", "int16"])
def test_tiles_change_little(storage, way):
    x, y = problem(600, 20)
    exact = reference.complexity(ReLUGram()(x), y)
    spectrum = analyze(ReLUGram(), x, y, storage=storage, **way)
    accuracy = {"float64": 1e-8, "float32": 1e-5, "int16": 1e-3}[storage]
    assert spectrum.complexity == pytest.approx(exact, rel=accuracy)
    low, high = spectrum.bracket
    assert low <= exact <= high
    assert storage == "int16" or high <= 1.01 * low


def test_a_gram_matrix_is_read_in_place_or_packed():
    x, y = problem(60)
    h = ReLUGram()(x)
    index = torch.arange(60)
    expected = analyze(ReLUGram(), x, y).complexity
    for given in (h, Precomputed(h)):
        assert analyze(given, index, y).complexity == pytest.approx(expected)
        assert analyze(given, index, y, storage="float32").complexity == pytest.approx(expected, rel=1e-5)
    some = torch.tensor([5, 3, 40, 11])
    part = analyze(h, some, y[some])
    assert part.complexity == pytest.approx(reference.complexity(h[some][:, some], y[some]))


def test_feature_maps_stand_for_the_network_on_top_of_them():
    x, y = problem()
    network = nn.Linear(6, 9, dtype=torch.float64)
    expected = analyze(ReLUGram(), network(x).detach(), y).complexity
    assert analyze(network, x, y).complexity == pytest.approx(expected)
    assert analyze(ReLUGram(network), x, y).complexity == pytest.approx(expected)


def test_loaders_are_read():
    x, y = problem()
    loader = DataLoader(TensorDataset(x, y), batch_size=7)
    expected = analyze(ReLUGram(), x, y).complexity
    assert analyze(ReLUGram(), loader).complexity == pytest.approx(expected)
    assert analyze(ReLUGram(), loader, y).complexity == pytest.approx(expected)


def test_float32_rows_are_read_in_float64():
    x, y = problem()
    got = analyze(ReLUGram(), x.float(), y.float())
    assert got.complexity == pytest.approx(analyze(ReLUGram(), x, y).complexity, rel=1e-3)
    assert got.eigenvalues.dtype is torch.float64


def test_shuffled_targets_are_a_control():
    x, _ = problem(200, 3)
    y = torch.where(x[:, 0] > 0, 1.0, -1.0)
    spectrum = analyze(ReLUGram(), x, y)
    control = spectrum.shuffled(torch.Generator().manual_seed(0))
    again = spectrum.shuffled(torch.Generator().manual_seed(0))
    assert control.complexity == again.complexity > 1.3 * spectrum.complexity
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    assert control.complexity == pytest.approx(analyze(ReLUGram(), x, y[order]).complexity)


def test_targets_of_one_matrix_share_its_factor():
    x, y = problem(80, columns=3)
    spectrum = analyze(ReLUGram(), x, y)
    others = [spectrum.against(y[:, 0]), spectrum.shuffled(), spectrum.against(y).shuffled()]
    assert others[0].complexity == pytest.approx(reference.complexity(ReLUGram()(x), y[:, 0]), rel=1e-8)
    _ = [other.complexity for other in others]
    assert all(other._factor is spectrum._factor for other in others)
    many = analyze(ReLUGram(), x, y, dense_rows=0)
    steps = [many.shuffled(torch.Generator().manual_seed(seed)) for seed in range(12)]
    found = [one.complexity for one in steps]
    assert steps[0]._run.steps > 0 and steps[-1]._run.steps == 0  # products were spent until a factor had been cheaper
    order = torch.randperm(80, generator=torch.Generator().manual_seed(11))
    assert found[-1] == pytest.approx(reference.complexity(ReLUGram()(x), y[order]), rel=1e-8)
    with pytest.raises(ValueError, match="targets"):
        spectrum.against(y[:5])


def test_nothing_is_computed_before_it_is_asked_for():
    x, y = problem()
    spectrum = analyze(ReLUGram(), x, y)
    assert repr(spectrum) == "Spectrum(n=40, columns=1, k=40, products=0)"
    _ = spectrum.effective_dimension
    assert spectrum._run.steps == 0


def test_a_rate_above_the_largest_stable_one_warns():
    x, y = problem()
    spectrum = analyze(ReLUGram(), x, y)
    with pytest.warns(NumericalWarning, match="above the largest stable one"):
        curve = spectrum.convergence(2 * spectrum.largest_stable_lr, 50)
    assert curve[-1] > curve[0]


def test_an_unfinished_complexity_warns_with_what_is_left():
    x, y = problem(300, 4)
    with pytest.warns(NumericalWarning, match=r"has not converged: it may grow by about .* % \(20 products\)"):
        value = analyze(ReLUGram(), x, y, dense_rows=0, max_products=20).complexity
    assert value < reference.complexity(ReLUGram()(x), y)


def test_indefinite_matrices_are_refused():
    h = torch.diag(torch.tensor([1.0, 2.0, -0.5, 1.0], dtype=torch.float64))
    with pytest.raises(ValueError, match="H must be positive semi-definite; got a Rayleigh quotient of -"):
        _ = analyze(h, torch.arange(4), torch.ones(4)).complexity


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"targets": torch.ones(3)}, ValueError, r"analyze: targets must have shape \(40,\) or \(40, c\); got \(3,\)"),
        ({"targets": torch.ones(40, dtype=torch.long)}, ValueError, "at least two classes; got only 1"),
        ({"targets": torch.full((40,), float("nan"))}, ValueError, "targets must be finite; got NaN, first bad row 0"),
        ({"targets": torch.zeros(40)}, ValueError, "targets must not all be 0"),
        ({"targets": torch.full((40,), 1e200, dtype=torch.float64)}, ValueError, "largest target must be .*; got 1.0e"),
        ({"targets": torch.full((40,), 1e-310, dtype=torch.float64)}, ValueError, "Divide the targets by it"),
        ({"targets": torch.ones(40) + 0j}, TypeError, "targets must be real; got torch.complex64"),
        ({"targets": ["even"] * 40}, ValueError, "at least two classes; got only even"),
        ({"targets": np.array([None] * 40)}, TypeError, "targets must be numbers or names of classes; got ndarray of"),
        ({"kernel": torch.eye(40), "x": torch.arange(40) - 1}, ValueError, r"indices in 0\.\.39, .*; got -1\.\.38"),
        ({"kernel": Precomputed(torch.eye(30)), "x": torch.arange(40)}, ValueError, r"indices in 0\.\.29"),
        ({"x": torch.full((40, 6), float("inf"))}, ValueError, "x must be finite; got infinity, first bad row 0"),
        ({"x": torch.zeros(0, 6)}, ValueError, r"x must have at least one row; got \(0, 6\)"),
        ({"x": torch.zeros(40)}, ValueError, r"x must have shape \(n, d\)"),
        ({"k": 0}, ValueError, "k must be a whole number of at least 1; got 0"),
        ({"floor": -1.0}, ValueError, r"floor must be positive; got -1\.0"),
        ({"tolerance": 0.0}, ValueError, r"tolerance must be positive; got 0\.0"),
        ({"storage": "int8"}, ValueError, "storage must be one of 'auto', 'float64', 'float32', 'int16'; got 'int8'"),
        ({"kernel": "rbf"}, TypeError, "kernel must be a kernel, a feature map or a Gram matrix; got str"),
        ({"kernel": torch.ones(40, 3)}, ValueError, r"a Gram matrix must have shape \(n, n\); got \(40, 3\)"),
        ({"kernel": torch.ones(40, 40).triu(), "x": torch.arange(40)}, ValueError, "must be symmetric; got a gap of"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(change, error, sentence):
    x, y = problem()
    arguments = {"kernel": ReLUGram(), "x": x, "targets": y, **change}
    kernel, rows, targets = (arguments.pop(name) for name in ("kernel", "x", "targets"))
    with pytest.raises(error, match=sentence):
        analyze(kernel, rows, targets, **arguments)


def test_too_many_eigenvalues_are_reduced_with_a_warning():
    x, y = problem()
    with pytest.warns(NumericalWarning, match="k = 60 is more than the 40 rows of x; reduced to 40"):
        assert len(analyze(ReLUGram(), x, y, k=60).eigenvalues) == 40
    assert len(analyze(ReLUGram(), x, y).eigenvalues) == 40


def test_inputs_stay_as_they_are():
    x, y = problem()
    before = x.clone(), y.clone()
    spectrum = analyze(Linear() + RBF(), x, y)
    _ = spectrum.complexity, spectrum.eigenvalues
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def test_public_names():
    assert {"Spectrum", "analyze", "compare", "layers"} <= set(mercer.spectral.__all__)


def test_plot_draws_three_panels():
    x, y = problem()
    figure = analyze(ReLUGram(), x, y, k=10).plot()
    assert len(figure.axes) == 3
    assert all(len(axis.lines) == 1 for axis in figure.axes)
