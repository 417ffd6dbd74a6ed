"""Eigenfunctions: the gradient to the letter, theorem 1, what each method promises, and how it fails."""

import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mercer
from mercer.features import NeuralEigenfunctions, Nystrom
from mercer.features.landmark_fit import fit_sample
from mercer.features.neuralef import Training, compute_gradient, deflate, train
from mercer.features.parallel_networks import L2BatchNorm, ParallelNetworks
from mercer.features.rayleigh_ritz import Task
from mercer.kernels import (
    NNGP,
    RBF,
    EmpiricalNTK,
    FunctionKernel,
    Kernel,
    Laplacian,
    Linear,
    MonteCarloNNGP,
    Polynomial,
    Precomputed,
    Trajectory,
)
from mercer_papers.rivals import SpectralInference
from mercer_papers.rivals.spin import mask_gradients
from tests.reference_deng2022 import neuralef_gradient, rayleigh


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def uniform(n=400, reach=2.0, seed=0, dtype=torch.float64):
    return ((2 * torch.rand(n, 1, generator=seeded(seed), dtype=torch.float64) - 1) * reach).to(dtype)


def spectrum(kernel, x):
    values, vectors = torch.linalg.eigh(kernel(x.double()) / len(x))
    return values.flip(0), vectors.flip(1)


def cosines(f, x, vectors):
    psi = f.eigenfunctions(x).double()
    return (F.normalize(psi, dim=0) * vectors[:, : psi.shape[1]]).sum(0).abs()


def kernel_error(f, kernel, x):
    gram = kernel(x)
    return float((f.kernel(x) - gram).norm() / gram.norm())


def mlp(d=3, c=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, 16), nn.Tanh(), nn.Linear(16, c))


# -- Algorithm 1 ---------------------------------------------------------------------------------


def test_one_step_equals_the_slides_gradient():
    x = torch.randn(12, 2, generator=seeded(), dtype=torch.float64)
    gram = RBF(0.7)(x)
    network = ParallelNetworks(2, 4, width=5, generator=seeded()).double()
    norm = L2BatchNorm(4).double()
    raw = network(x).detach().requires_grad_()
    psi = norm(raw)
    psi.backward(compute_gradient(psi.detach(), gram))
    torch.testing.assert_close(raw.grad, neuralef_gradient(raw, gram), rtol=1e-10, atol=1e-12)


def test_a_training_step_moves_the_weights_along_that_gradient():
    x = torch.randn(12, 2, generator=seeded(), dtype=torch.float64)
    network = ParallelNetworks(2, 3, width=4, generator=seeded()).double()
    before = [p.detach().clone() for p in network.parameters()]
    raw = network(x)
    expected = torch.autograd.grad(raw, list(network.parameters()), neuralef_gradient(raw, RBF()(x)))
    running = train(network, L2BatchNorm(3).double(), RBF(), x, Training(1, 12, 1e-3), seeded())
    for old, new, gradient in zip(before, network.parameters(), expected, strict=True):
        step = -1e-3 * gradient / (gradient.abs() + 1e-8)  # Adam's first step
        torch.testing.assert_close(new.detach() - old, step, rtol=1e-6, atol=1e-9)
    psi = L2BatchNorm(3).double()(raw.detach())
    quotients = torch.tensor([rayleigh(RBF()(x), psi[:, j], psi[:, j]) for j in range(3)], dtype=torch.float64)
    torch.testing.assert_close(running, quotients)  # the moving average starts at the first batch


def test_a_kernel_of_networks_runs_them_once_in_a_training_and_finds_the_same():
    x = torch.randn(30, 2, generator=seeded(), dtype=torch.float64)
    made = []

    def make():
        made.append(None)
        return torch.nn.Linear(2, 3).double()

    kernel = MonteCarloNNGP(make, 4, generator=seeded())
    found = []
    for k in (kernel, FunctionKernel(lambda a, b: kernel(a, b))):
        network = ParallelNetworks(2, 2, width=4, generator=seeded()).double()
        found.append(train(network, L2BatchNorm(2).double(), k, x, Training(5, 12, 1e-3), seeded()))
        found.append(network(x).detach())
        if k is kernel:
            assert len(made) == 2 * 4  # one row to see how large the features are, then all of them
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[1], found[3])


def test_parallel_networks_are_k_networks():
    networks = ParallelNetworks(3, 4, outputs=2, width=5, depth=2, generator=seeded())
    x = torch.randn(6, 3, generator=seeded(1))
    for j in range(4):
        h = x
        for layer, (weight, bias) in enumerate(zip(networks.weights, networks.biases, strict=True)):
            h = h @ weight[j] + bias[j]
            if layer < 2:
                h = torch.cat((h.sin(), h.cos()), 1)
        torch.testing.assert_close(networks(x)[..., j], h)


def test_cholesky_deflation_is_gram_schmidt_in_the_kernels_inner_product():
    x = torch.randn(15, 2, generator=seeded(), dtype=torch.float64)
    gram = RBF(2.0)(x)
    psi = torch.randn(15, 4, generator=seeded(1), dtype=torch.float64)
    expected = []
    for j in range(4):
        residual = psi[:, j]
        for earlier in expected:
            residual = residual - (earlier @ gram @ residual) / (earlier @ gram @ earlier) * earlier
        expected.append(residual)
    found = deflate(psi, gram, "cholesky")
    torch.testing.assert_close(found, torch.stack(expected, 1), rtol=1e-4, atol=1e-4)
    first = deflate(psi, gram, "first_order")
    torch.testing.assert_close(first[:, :2], torch.stack(expected, 1)[:, :2])  # they part from the third on
    assert (first[:, 3] - expected[3]).abs().max() > 1e-2


def test_theorem_1_on_a_finite_measure():
    n, k = 9, 4
    x = torch.randn(n, 2, generator=seeded(), dtype=torch.float64)
    gram = RBF(0.8)(x)
    values, vectors = spectrum(RBF(0.8), x)
    psi = vectors[:, :k] * math.sqrt(n)
    for j in range(k):
        assert rayleigh(gram, psi[:, j], psi[:, j]) == pytest.approx(float(values[j]))
        for i in range(j):
            assert rayleigh(gram, psi[:, i], psi[:, j]) == pytest.approx(0, abs=1e-12)
        for seed in range(20):  # no feasible function has a larger quotient
            other = torch.randn(n, generator=seeded(seed), dtype=torch.float64)
            for i in range(j):
                constraint = gram @ psi[:, i]
                other = other - (constraint @ other) / (constraint @ constraint) * constraint
            other = other / other.square().mean().sqrt()
            assert all(abs(rayleigh(gram, psi[:, i], other)) < 1e-12 for i in range(j))
            assert rayleigh(gram, other, other) < float(values[j])


def test_neuralef_alone_learns_the_leading_functions():
    x = uniform(256)
    _, vectors = spectrum(RBF(0.5), x)
    for deflation in ("first_order", "cholesky"):
        f = NeuralEigenfunctions(
            RBF(0.5), 3, method="neuralef", ritz=False, steps=300, deflation=deflation, generator=seeded()
        ).fit(x)
        assert (cosines(f, x, vectors) > 0.98).all()
        torch.testing.assert_close(f.eigenfunctions(x).square().mean(0), torch.ones(3, dtype=torch.float64))


# -- what every method promises ------------------------------------------------------------------

METHODS = {
    "landmarks": lambda kernel, k: NeuralEigenfunctions(kernel, k, generator=seeded()),
    "neuralef": lambda kernel, k: NeuralEigenfunctions(kernel, k, method="neuralef", steps=20, generator=seeded()),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rbf_toy_is_solved(method, dtype):
    x = uniform(dtype=dtype)
    kernel = RBF(0.5)
    values, vectors = spectrum(kernel, x)
    f = METHODS[method](kernel, 10).fit(x)
    assert (cosines(f, x, vectors) > 0.99).all()
    assert kernel_error(f, kernel, x) < (1e-5 if dtype == torch.float32 else 1e-6)
    torch.testing.assert_close(f.eigenvalues.double(), values[:10], rtol=1e-3, atol=1e-12)
    assert (f.eigenvalues.diff() <= 0).all()
    psi = f.eigenfunctions(x).double()
    torch.testing.assert_close(psi.mT @ psi / len(x), torch.eye(10, dtype=torch.float64), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(f(x), f.eigenfunctions(x) * f.eigenvalues.sqrt().to(dtype))
    assert f.rank == 10
    new = uniform(50, seed=5, dtype=dtype)
    torch.testing.assert_close(f.kernel(new), kernel(new), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_rank_of_a_polynomial_is_found(method):
    x = uniform(300, reach=1.0)
    kernel = Polynomial(4, 1.0, 1.5)
    _, vectors = spectrum(kernel, x)
    with pytest.warns(mercer.NumericalWarning, match="rank 5 on these rows, below k = 8; the other") as caught:
        f = METHODS[method](kernel, 8).fit(x)
    assert len(caught) == 1
    assert f.rank == 5
    assert (f.eigenvalues[5:] == 0).all()
    assert (f.eigenfunctions(x)[:, 5:] == 0).all()
    f = NeuralEigenfunctions(kernel, 5, generator=seeded()).fit(x)
    assert (cosines(f, x, vectors) > 0.99).all()
    assert kernel_error(f, kernel, x) < 1e-10


def test_residuals_certify_the_eigenvalues():
    x = torch.randn(200, 3, generator=seeded(), dtype=torch.float64)
    kernel = RBF(0.3)
    values, _ = spectrum(kernel, x)
    f = NeuralEigenfunctions(kernel, 6, landmarks=12, generator=seeded()).fit(x)
    psi = f.eigenfunctions(x)
    expected = (kernel(x) @ psi / 200 - psi * f.eigenvalues).square().mean(0).sqrt()
    torch.testing.assert_close(f.residuals, expected)
    for mu, residual in zip(f.eigenvalues, f.residuals, strict=True):
        assert (values - mu).abs().min() <= residual
    assert f.residuals.max() > 1e-6  # 12 landmarks are too few, and it says so


def test_degenerate_eigenvalues_are_right_as_subspaces():
    angle = torch.arange(60, dtype=torch.float64) * (2 * math.pi / 60)
    x = torch.stack((angle.cos(), angle.sin()), 1)
    values, vectors = spectrum(RBF(1.0), x)
    torch.testing.assert_close(values[1], values[2])
    f = NeuralEigenfunctions(RBF(1.0), 5, generator=seeded()).fit(x)
    psi = f.eigenfunctions(x) / math.sqrt(60)
    for pair in (slice(1, 3), slice(3, 5)):
        assert torch.linalg.svdvals(vectors[:, pair].mT @ psi[:, pair]).min() > 0.999


def test_learned_landmarks_capture_more():
    x = torch.randn(300, 4, generator=seeded(), dtype=torch.float64)
    kernel = RBF(0.2)
    errors = []
    for steps in (0, 60):
        f = NeuralEigenfunctions(kernel, 6, landmarks=10, steps=steps, generator=seeded()).fit(x)
        errors.append(kernel_error(f, kernel, x))
    assert errors[1] < 0.97 * errors[0]


def test_without_ritz_landmarks_are_nystroms_functions():
    x = torch.randn(100, 2, generator=seeded(), dtype=torch.float64)
    ours = NeuralEigenfunctions(RBF(0.5), 4, landmarks=x[:20], ritz=False).fit(x)
    theirs = Nystrom(RBF(0.5), 20, selection=x[:20]).fit(x)
    torch.testing.assert_close(ours.eigenvalues, theirs.eigenvalues[:4])
    torch.testing.assert_close(ours.eigenfunctions(x).abs(), theirs.eigenfunctions(x)[:, :4].abs())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [200, 790])
def test_a_sample_of_many_rows_gives_functions_of_all(dtype, rows, caplog):
    x = uniform(800, dtype=dtype)
    caplog.set_level(logging.INFO, "mercer")
    task = Task(RBF(0.5), x, 4, True, Training(0), seeded(), None, None)
    basis, pairs = fit_sample(task, rows=rows)
    said = "200 of 800 rows decomposed, compressed to 200 landmarks at a loss of"
    assert (said in caplog.text) == (rows == 200)  # too few to hold some out; else the landmarks' own functions do
    values, vectors = spectrum(RBF(0.5), x)
    psi = basis(x).double() @ pairs.rotation
    torch.testing.assert_close(psi.mT @ psi / 800, torch.eye(4, dtype=torch.float64), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(pairs.values, values[:4], rtol=5e-3, atol=0)  # 2 k functions of 200 rows
    assert ((F.normalize(psi, dim=0) * vectors[:, :4]).sum(0).abs() > 0.999).all()


def test_a_sample_of_a_rough_kernel_is_decomposed(caplog):
    caplog.set_level(logging.INFO, "mercer")
    x = torch.randn(800, 6, generator=seeded(), dtype=torch.float64)
    fit_sample(Task(Laplacian(0.5), x, 4, True, Training(0), seeded(), None, None), rows=790)
    assert "790 of 800 rows decomposed, compressed to 256 landmarks" in caplog.text


def test_rough_kernels_keep_all_rows():
    x = torch.randn(4200, 3, generator=seeded(), dtype=torch.float32)
    f = NeuralEigenfunctions(Laplacian(0.3), 16, generator=seeded()).fit(x)
    assert len(f.basis.landmarks) == 4200
    psi = f.eigenfunctions(x).double()
    gaps = Laplacian(0.3).matmul(x.double(), None, psi) / 4200 - psi * f.eigenvalues
    assert (gaps.square().mean(0).sqrt() < 2e-3 * f.eigenvalues).all()


def test_indices_of_a_precomputed_gram_have_eigenfunctions():
    x = torch.randn(40, 3, generator=seeded(), dtype=torch.float64)
    values, vectors = spectrum(RBF(0.3), x)
    f = NeuralEigenfunctions(Precomputed(RBF(0.3)(x)), 3, landmarks=40, generator=seeded()).fit(torch.arange(40))
    torch.testing.assert_close(f.eigenvalues, values[:3])
    assert (cosines(f, torch.arange(40), vectors) > 0.999).all()


# -- kernels of networks -------------------------------------------------------------------------


def test_distillation_of_a_sampled_kernel():
    x = torch.randn(200, 3, generator=seeded())
    kernel = MonteCarloNNGP(
        lambda: nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 4)), 20, generator=seeded()
    )
    f = NeuralEigenfunctions(kernel, 4, steps=300, generator=seeded()).fit(x)
    gram = kernel(x).double()
    values = torch.linalg.eigvalsh(gram / 200).flip(0)
    best = values[4:].square().sum().sqrt() / values.square().sum().sqrt()
    assert kernel_error(f, kernel, x) < 1.1 * best + 0.02
    torch.testing.assert_close(f.eigenvalues[0], values[0], rtol=1e-2, atol=0)


@pytest.mark.parametrize("method", ["distill", "neuralef"])
def test_matrix_valued_kernels_have_functions_with_outputs(method):
    x = torch.randn(60, 3, generator=seeded())
    kernel = EmpiricalNTK(mlp(), outputs="full")
    f = NeuralEigenfunctions(kernel, 6, method=method, steps=150, generator=seeded()).fit(x)
    psi = f.eigenfunctions(x)
    assert psi.shape == (60, 2, 6)
    torch.testing.assert_close(psi.square().sum(1).mean(0), torch.ones(6), rtol=1e-4, atol=1e-4)
    gram = kernel(x)
    whole = gram.transpose(1, 2).reshape(120, 120).double()
    values = torch.linalg.eigvalsh(whole).flip(0)
    best = float(values[6:].norm() / values.norm())
    assert f.kernel(x).shape == gram.shape
    assert float((f.kernel(x) - gram).norm() / gram.norm()) < 1.3 * best + 0.02
    torch.testing.assert_close(f.eigenvalues[:2].double(), values[:2] / 60, rtol=2e-2, atol=0)


def test_factorised_strategy_is_exact_where_the_kernel_factorises():
    x = torch.randn(50, 3, generator=seeded())
    kernel = EmpiricalNTK(nn.Linear(3, 2), outputs="full")  # (1 + <x, y>) I: it does
    make = lambda: NeuralEigenfunctions(kernel, 6, strategy="factorized", steps=400, generator=seeded())  # noqa: E731
    f = make().fit(x)
    assert f.eigenfunctions(x).shape == (50, 2, 6)
    whole = kernel(x).transpose(1, 2).reshape(100, 100).double()
    values = torch.linalg.eigvalsh(whole).flip(0) / 50
    torch.testing.assert_close(f.eigenvalues, values[:6], rtol=2e-2, atol=0)
    best = float(values[6:].norm() / values.norm())
    assert float((f.kernel(x) - kernel(x)).norm() / kernel(x).norm()) < best + 0.05
    fresh = make()
    fresh.load_state_dict(f.state_dict())
    torch.testing.assert_close(fresh(x), f(x))


def test_a_network_of_the_users_own_is_trained_and_its_hidden_layer_used():
    x = uniform(150)
    network = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 3)).double()
    f = NeuralEigenfunctions(RBF(0.5), 3, network=network, steps=50, generator=seeded())
    assert f.resolve_method() == "neuralef"
    f.fit(x)
    assert f.network is network
    assert f.projection.shape == (64, 3)
    assert (cosines(f, x, spectrum(RBF(0.5), x)[1]) > 0.99).all()


def test_a_hidden_width_of_k_is_still_a_hidden_layer():
    x = uniform(150)
    network = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    f = NeuralEigenfunctions(RBF(0.5), 3, network=network, steps=20, generator=seeded()).fit(x)
    psi = f.eigenfunctions(x)
    torch.testing.assert_close(psi.mT @ psi / 150, torch.eye(3, dtype=torch.float64), rtol=1e-6, atol=1e-6)
    residuals = (RBF(0.5)(x) @ psi / 150 - psi * f.eigenvalues).square().mean(0).sqrt()
    torch.testing.assert_close(f.residuals, residuals, rtol=1e-6, atol=1e-9)  # the certificate is of these functions


class Yielding(nn.Tanh):
    """Lets another thread run in the middle of a forward pass."""

    def forward(self, x):
        time.sleep(1e-4)
        return super().forward(x)


def test_a_map_over_the_users_network_is_called_from_threads():
    x = uniform(60)
    network = nn.Sequential(nn.Linear(1, 32), Yielding(), nn.Linear(32, 3), Yielding()).double()
    f = NeuralEigenfunctions(RBF(0.5), 3, network=network, steps=5, generator=seeded()).fit(x)
    parts = [x[i : i + 3] for i in range(57)]
    expected = [f(part) for part in parts]
    with ThreadPoolExecutor(3) as pool:
        for found, wanted in zip(pool.map(f, parts), expected, strict=True):
            torch.testing.assert_close(found, wanted)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


def test_auto_picks_by_the_kind_of_kernel_and_says_so(caplog):
    caplog.set_level(logging.INFO, "mercer")
    models = [mlp(), mlp(), nn.Sequential(nn.Linear(3, 2))]
    assert NeuralEigenfunctions(NNGP(2), 2).resolve_method() == "landmarks"
    assert NeuralEigenfunctions(Trajectory(models), 2).resolve_method() == "distill"
    assert NeuralEigenfunctions(EmpiricalNTK(mlp()), 2).resolve_method() == "distill"
    NeuralEigenfunctions(RBF(), 2, generator=seeded()).fit(uniform(20))
    assert "auto picks 'landmarks' for RBF: the kernel is explicit" in caplog.text


# -- the rival -----------------------------------------------------------------------------------


def test_masked_gradient_of_spin_is_that_of_each_function_with_earlier_ones_fixed():
    u = torch.randn(20, 3, generator=seeded(), dtype=torch.float64)
    gram = RBF(1.0)(torch.randn(20, 2, generator=seeded(1), dtype=torch.float64))
    sigma, pi = u.mT @ u / 20, u.mT @ gram @ u / 400
    by_pi, by_sigma = mask_gradients(sigma, pi)
    found = (gram @ u) @ by_pi / 400 + u @ by_sigma / 20  # gradient with respect to u, right factors only
    for j in range(3):
        mine = u[:, j].clone().requires_grad_()
        whole = torch.cat((u[:, :j], mine[:, None]), 1)
        factor = torch.linalg.cholesky(whole.mT @ whole / 20)
        psi = torch.linalg.solve_triangular(factor, whole.mT, upper=False)[j]
        (expected,) = torch.autograd.grad(psi @ gram @ psi / 400, mine)
        torch.testing.assert_close(2 * found[:, j], expected, rtol=1e-4, atol=1e-6)


def test_spin_finds_the_leading_functions():
    x = uniform(200)
    f = SpectralInference(RBF(0.5), 2, steps=200, generator=seeded()).fit(x)
    assert (cosines(f, x, spectrum(RBF(0.5), x)[1]) > 0.9).all()
    psi = f.eigenfunctions(x)
    torch.testing.assert_close(psi.mT @ psi / 200, torch.eye(2, dtype=torch.float64), rtol=1e-6, atol=1e-6)


# -- normalisation -------------------------------------------------------------------------------


def test_l2_batch_norm():
    norm = L2BatchNorm(3).double()
    h = torch.randn(10, 3, generator=seeded(), dtype=torch.float64) * 5
    h[:, 2] = 0
    out = norm(h)
    torch.testing.assert_close(out[:, :2], h[:, :2] / h[:, :2].square().mean(0).sqrt())
    assert (out[:, 2] == 0).all()
    torch.testing.assert_close(norm.eval()(h), out)  # one batch seen: its statistics are the running ones
    more = torch.randn(10, 3, generator=seeded(1), dtype=torch.float64)
    norm.train()(more)
    expected = (h.square().mean(0) + more.square().mean(0)) / 2
    torch.testing.assert_close(norm.mean_square, expected)
    assert torch.autograd.gradcheck(L2BatchNorm(2).double(), (h[:, :2].clone().requires_grad_(),))
    pictures = torch.randn(4, 3, 5, 5, generator=seeded(2))
    torch.testing.assert_close(L2BatchNorm(3)(pictures).square().mean((0, 2, 3)), torch.ones(3))
    with pytest.raises(ValueError, match=r"L2BatchNorm: the input must have shape \(n, 3, ...\); got \(10, 2\)\."):
        norm(h[:, :2])
    with pytest.raises(ValueError, match=r"L2BatchNorm: momentum must be in \(0, 1\] or None; got 2.0\."):
        L2BatchNorm(3, momentum=2.0)


# -- faults --------------------------------------------------------------------------------------


class Interrupting(Kernel):
    """As Ctrl-C would come: in the middle of the training."""

    def __init__(self, after):
        super().__init__()
        self.left, self.inner = after, RBF(0.5)

    def gram(self, x, y):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self.inner.gram(x, y)


@pytest.mark.parametrize("method", ["neuralef", "landmarks", "spin"])
def test_ctrl_c_leaves_a_usable_map(method, caplog):
    x = uniform(100)
    kernel = Interrupting(5)
    f = (
        SpectralInference(kernel, 2, steps=50, generator=seeded())
        if method == "spin"
        else NeuralEigenfunctions(kernel, 2, method=method, steps=50, generator=seeded())
    )
    f.fit(x)
    assert "interrupted" in caplog.text
    assert "the map keeps what was learned" in caplog.text
    assert torch.isfinite(f(x)).all()
    assert f.eigenvalues[0] > 0


def test_a_loss_that_turns_nan_stops_with_the_step():
    kernel = FunctionKernel(lambda x, y: torch.full((len(x), len(y)), torch.nan, dtype=x.dtype))
    with pytest.raises(FloatingPointError, match="the loss must stay finite; got NaN at step 0"):
        NeuralEigenfunctions(kernel, 2, method="neuralef", steps=5, generator=seeded()).fit(uniform(20))


def test_sentences():
    for make, match in [
        (
            lambda: NeuralEigenfunctions(RBF(), 0),
            r"NeuralEigenfunctions: k must be a whole number of at least 1",
        ),
        (lambda: NeuralEigenfunctions(RBF(), 2, method="spin"), r"method must be one of 'auto', .*; got 'spin'\."),
        (lambda: NeuralEigenfunctions(RBF(), 2, deflation="qr"), r"deflation must be one of .*; got 'qr'\."),
        (lambda: NeuralEigenfunctions(RBF(), 2, lr=-1.0), r"lr must be positive; got -1.0\."),
        (lambda: NeuralEigenfunctions(RBF(), 2, steps=-1), r"steps must be a whole number of at least 0; got -1\."),
        (lambda: SpectralInference(RBF(), 0), r"SpectralInference: k must be a whole number of at least 1; got 0\."),
        (
            lambda: NeuralEigenfunctions(EmpiricalNTK(mlp(), outputs="full"), 2, method="landmarks").fit(
                torch.ones(4, 3)
            ),
            r"landmarks need a kernel with one number for each pair; got outputs='full'\. Use method='distill'",
        ),
        (
            lambda: NeuralEigenfunctions(Linear(), 2).fit(torch.full((4, 2), 1e30)),
            r"x must stay below .* because its squares overflow; got 1.0e\+30\. Standardise x first\.",
        ),
    ]:
        with pytest.raises(ValueError, match=match):
            make()


def test_one_and_two_threads_agree():
    x = torch.randn(300, 3, generator=seeded(), dtype=torch.float64)
    before = torch.get_num_threads()
    answers = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            answers.append(NeuralEigenfunctions(RBF(0.3), 4, generator=seeded()).fit(x).kernel(x))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(answers[0], answers[1], rtol=1e-8, atol=1e-8)
