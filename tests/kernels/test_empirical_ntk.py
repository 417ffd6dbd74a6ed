"""Kernels of finite networks: Jacobian products, blocks, sampled directions, low rank, trajectories."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

from mercer.kernels import EmpiricalNTK, MonteCarloNNGP, Trajectory
from mercer.kernels.tangents import Tangents
from tests.memory import peak_bytes


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.block(x).mean(1))


def mlp():
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


NETWORKS = {
    "mlp": (mlp, (4,)),
    "cnn": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)),
        (2, 6, 6),
    ),
    "transformer": (Block, (4, 8)),
}


@pytest.fixture(params=NETWORKS, ids=str)
def network(request):
    torch.manual_seed(0)
    make, shape = NETWORKS[request.param]
    return make(), torch.randn(6, *shape, dtype=torch.float64)


def dense_jacobian(model, x):  # -> (n, c, p), row by row
    plain = copy.deepcopy(model).double().train(False)
    parameters = {k: v.detach() for k, v in plain.named_parameters() if v.requires_grad}
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        rows = []
        with sdpa_kernel(SDPBackend.MATH):
            for row in x:
                found = jacrev(lambda p, row=row: functional_call(plain, p, (row[None],))[0])(parameters)
                rows.append(torch.cat([j.flatten(1) for j in found.values()], 1))
        return torch.stack(rows)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@pytest.mark.parametrize("block", [None, 4])
def test_exact_kernel_is_the_product_of_jacobians(network, block):
    model, x = network
    j = dense_jacobian(model, x)
    full = torch.einsum("ncp,mdp->nmcd", j, j)
    kernel = EmpiricalNTK(model, block=block)
    torch.testing.assert_close(kernel(x), full.diagonal(dim1=2, dim2=3).sum(-1))
    torch.testing.assert_close(kernel(x, x[:4]), full[:, :4].diagonal(dim1=2, dim2=3).sum(-1))
    torch.testing.assert_close(kernel.diag(x), kernel(x).diagonal())
    torch.testing.assert_close(EmpiricalNTK(model, outputs=1, block=block)(x), full[:, :, 1, 1])
    matrix = EmpiricalNTK(model, outputs="full", block=block)
    torch.testing.assert_close(matrix(x), full)
    torch.testing.assert_close(matrix.diag(x), torch.einsum("ncp,ndp->ncd", j, j))
    v = torch.randn(6, 3, dtype=torch.float64)
    torch.testing.assert_close(matrix.matmul(x, None, v, block=2), torch.einsum("nmcd,md->nc", full, v))
    assert model.training


def test_jacobians_of_at_most_a_block_of_rows_are_held(monkeypatch):
    seen = []
    gradient, jacobian = Tangents.gradient, Tangents.jacobian

    def watched(self, x, output):
        found = gradient(self, x, output)
        seen.append(sum(part.numel() for part in found))
        return found

    def watched_whole(self, x):
        found = jacobian(self, x)
        seen.append(sum(part.numel() for part in found))
        return found

    monkeypatch.setattr(Tangents, "gradient", watched)
    monkeypatch.setattr(Tangents, "jacobian", watched_whole)
    model, x = mlp(), torch.randn(20, 4)
    size = sum(p.numel() for p in model.parameters())
    EmpiricalNTK(model, block=3)(x)
    assert max(seen) == 3 * size
    seen.clear()
    EmpiricalNTK(model, block=3, outputs="full")(x)
    assert max(seen) == 3 * 3 * size


def test_peak_memory_follows_block_not_n():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 400), nn.Tanh(), nn.Linear(400, 5))
    size = 4 * sum(p.numel() for p in model.parameters())
    few, many = torch.randn(12, 20), torch.randn(36, 20)
    kernel = EmpiricalNTK(model, block=4)
    kernel(few[:5])
    small, large = peak_bytes(lambda: kernel(few)), peak_bytes(lambda: kernel(many))
    bound = 5 * 4 * size  # two blocks of rows and what autograd holds while it makes one
    assert small < bound
    assert large < bound + 4 * 4 * 36 * 36  # and the Gram matrix itself
    assert large < 36 * 5 * size / 4  # far from all n c Jacobian rows


def test_frozen_parameters_are_left_out_and_the_model_is_not_registered():
    model = mlp()
    model[0].requires_grad_(False)
    kernel = EmpiricalNTK(model)
    x = torch.randn(5, 4, dtype=torch.float64)
    j = dense_jacobian(model, x)
    assert j.shape[2] == 16 * 3 + 3
    torch.testing.assert_close(kernel(x), torch.einsum("ncp,mcp->nm", j, j))
    assert not list(kernel.parameters())
    assert set(kernel.state_dict()) == {"directions"}


def test_finite_differences_equal_the_slides_formula_and_jvp():
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(5, 4, dtype=torch.float64)
    kernel = EmpiricalNTK(
        model, method="finite_difference", samples=7, epsilon=1e-6, generator=torch.Generator().manual_seed(1)
    )
    signs = Tangents(model, x, kernel.choose).random_signs(7, kernel.seed, x)
    plain = copy.deepcopy(model).double()
    theta = nn.utils.parameters_to_vector(plain.parameters()).detach()
    expected = torch.zeros(5, 5, dtype=torch.float64)
    with torch.no_grad():
        base = plain(x)
        for s in range(7):
            nn.utils.vector_to_parameters(theta + 1e-6 * signs[:, s], plain.parameters())
            difference = (plain(x) - base) / 1e-6
            expected += difference @ difference.mT / 7
    torch.testing.assert_close(kernel(x), expected)
    along = EmpiricalNTK(model, method="jvp", samples=7, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(along(x), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(kernel(x[:2], x[2:]), kernel(x)[:2, 2:], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ["finite_difference", "jvp"])
def test_random_directions_converge(network, method):
    model, x = network
    x = x[:4]
    exact = EmpiricalNTK(model)(x)
    samples = 400
    gram = EmpiricalNTK(model, method=method, samples=samples, generator=torch.Generator().manual_seed(0))(x)
    # Var of the estimate of k(x, y) with random signs is at most (k(x, x) k(y, y) + k(x, y)^2) / S for one output.
    error = ((exact.diagonal()[:, None] * exact.diagonal()[None] + exact**2) / samples).sqrt()
    assert ((gram - exact).abs() < 4 * error).all()


def test_low_rank_is_exact_at_full_rank_and_below_the_kernel_otherwise(network):
    model, x = network
    exact = EmpiricalNTK(model)(x)
    torch.testing.assert_close(EmpiricalNTK(model, method="low_rank", samples=100)(x), exact)
    few = EmpiricalNTK(model, method="low_rank", samples=6).fit(x)
    assert torch.linalg.eigvalsh(exact - few(x)).min() > -1e-9 * exact.trace()
    values = torch.linalg.svdvals(dense_jacobian(model, x).flatten(0, 1)).square()
    captured = float(few.diag(x).sum() / exact.trace())
    assert captured > 0.9 * float(values[:6].sum() / values.sum())
    torch.testing.assert_close(few(x[:2], x[2:]), few(x)[:2, 2:])
    fresh = EmpiricalNTK(model, method="low_rank", samples=6)
    fresh.load_state_dict(few.state_dict())
    torch.testing.assert_close(fresh(x), few(x))


def test_low_rank_in_blocks_finds_the_same_directions():
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(9, 4, dtype=torch.float64)
    make = [
        EmpiricalNTK(model, method="low_rank", samples=5, block=block, generator=torch.Generator().manual_seed(0))
        for block in (None, 4)
    ]
    torch.testing.assert_close(make[0].fit(x)(x), make[1].fit(x)(x))


def test_kernels_of_networks_are_kernels(network):
    model, x = network
    for kernel in (
        EmpiricalNTK(model),
        EmpiricalNTK(model, method="jvp", samples=5),
        EmpiricalNTK(model, method="low_rank", samples=5).fit(x),
        Trajectory([model, copy.deepcopy(model), NETWORKS_AGAIN(model)], outputs=0),
    ):
        gram = kernel(x)
        torch.testing.assert_close(gram, gram.mT)
        assert torch.linalg.eigvalsh(gram).min() > -1e-12 * gram.trace()
        torch.testing.assert_close(kernel.diag(x), gram.diagonal())
        torch.testing.assert_close(kernel(x[:2], x[2:]), gram[:2, 2:])
        torch.testing.assert_close(kernel.matmul(x, None, gram, block=4), gram @ gram)
        assert kernel(x.float()).dtype == torch.float32
        torch.testing.assert_close((kernel + 2.0 * kernel)(x), 3 * gram)


def NETWORKS_AGAIN(model):
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.3)
    return other


def test_gradients_flow_to_the_rows():
    torch.manual_seed(0)
    model = mlp()
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    for method in ("exact", "jvp"):
        kernel = EmpiricalNTK(model, method=method, samples=4, generator=torch.Generator().manual_seed(0))
        assert torch.autograd.gradcheck(kernel, (x, x.detach().clone().requires_grad_()))


def test_trajectory_is_the_covariance_of_the_outputs():
    torch.manual_seed(0)
    models, x = [mlp() for _ in range(4)], torch.randn(5, 4)
    with torch.no_grad():
        outputs = torch.stack([model(x) for model in models])  # (M, n, c)
    centred = outputs - outputs.mean(0)
    expected = torch.zeros(5, 5, 3, 3)
    for one in centred:
        expected += torch.einsum("nc,md->nmcd", one, one) / 4
    torch.testing.assert_close(Trajectory(models, outputs="full")(x), expected)
    torch.testing.assert_close(Trajectory(models)(x), expected.diagonal(dim1=2, dim2=3).sum(-1))
    torch.testing.assert_close(Trajectory(models).mean(x), outputs.mean(0))


def test_tokens_stay_whole_numbers():
    model = nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(12, 2))
    x = torch.randint(11, (5, 3))
    gram = EmpiricalNTK(model)(x)
    assert gram.shape == (5, 5)
    assert gram.dtype == torch.float32
    torch.testing.assert_close(EmpiricalNTK(model).diag(x), gram.diagonal())


def test_sentences():
    frozen = mlp().requires_grad_(False)
    for make, error, match in [
        (lambda: EmpiricalNTK(frozen), ValueError, r"EmpiricalNTK: model must have parameters that require grad"),
        (lambda: EmpiricalNTK(mlp(), outputs="sum"), ValueError, r"outputs must be one of 'trace', 'full'; got 'sum'"),
        (lambda: EmpiricalNTK(mlp(), outputs=3)(torch.ones(2, 4)), ValueError, r"outputs must be in 0..2.*got 3\."),
        (lambda: EmpiricalNTK(mlp(), method="fd"), ValueError, r"method must be one of 'exact', .*; got 'fd'\."),
        (lambda: EmpiricalNTK(mlp(), samples=0), ValueError, r"samples must be a whole number of at least 1; got 0"),
        (lambda: EmpiricalNTK(mlp(), block=0), ValueError, r"block must be a whole number of at least 1; got 0"),
        (lambda: EmpiricalNTK(mlp())(torch.ones(4)), ValueError, r"x must have shape \(n, ...\); got \(4,\)"),
        (lambda: EmpiricalNTK(mlp())(torch.ones(2, 4, device="meta")), ValueError, "must be on one device"),
        (lambda: EmpiricalNTK("net"), TypeError, r"model must be an nn.Module; got str"),
        (
            lambda: EmpiricalNTK(mlp(), method="low_rank").fit(torch.full((2, 4), torch.nan)),
            ValueError,
            "x must be finite",
        ),
        (lambda: Trajectory([mlp()]), ValueError, r"Trajectory: models must hold at least 2 networks; got 1 items"),
        (lambda: MonteCarloNNGP(mlp()), TypeError, r"MonteCarloNNGP: make_model must be a function without arguments"),
    ]:
        with pytest.raises(error, match=match):
            make()


class Squeezed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))

    def forward(self, x):
        return self.net(x).squeeze()


@pytest.mark.parametrize("method", ["exact", "jvp", "finite_difference", "low_rank"])
def test_one_logit_however_it_is_shaped(method):
    torch.manual_seed(0)
    model, x = Squeezed().double(), torch.randn(5, 4, dtype=torch.float64)
    seeded = [torch.Generator().manual_seed(0) for _ in range(2)]
    squeezed = EmpiricalNTK(model, method=method, samples=4, generator=seeded[0])
    kept = EmpiricalNTK(model.net, method=method, samples=4, generator=seeded[1])
    torch.testing.assert_close(squeezed(x), kept(x))
    torch.testing.assert_close(squeezed(x[:1]), kept(x[:1]))


def test_batches_of_named_tensors_and_mixed_rows_are_refused():
    kernel = EmpiricalNTK(mlp())
    with pytest.raises(TypeError, match=r"EmpiricalNTK: x must be a tensor; got dict\. .*wrap the network"):
        kernel({"input_ids": torch.ones(2, 4)})
    with pytest.raises(ValueError, match=r"the model must give an output for each of 2 rows; got \(8,\)\. Wrap"):
        EmpiricalNTK(nn.Sequential(nn.Linear(4, 4), nn.Flatten(0)), method="jvp")(torch.ones(2, 4))


@pytest.mark.parametrize("method", ["exact", "jvp", "low_rank"])
def test_threads_never_see_the_model_changed(method, network):
    model, x = network
    model.train()
    kernel = EmpiricalNTK(model, method=method, samples=4, generator=torch.Generator().manual_seed(0)).fit(x)
    expected = kernel(x)
    seen, stop = [], threading.Event()

    def watch():
        while not stop.is_set():
            modes = all(m.training for m in model.modules())
            seen.append(modes and all(p.requires_grad for p in model.parameters()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(3) as pool:
            for gram in pool.map(lambda _: kernel(x), range(6)):
                torch.testing.assert_close(gram, expected)
    finally:
        stop.set()
        watcher.join()
    assert all(seen) and torch.backends.mha.get_fastpath_enabled()
