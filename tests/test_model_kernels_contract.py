"""The kernel contract for kernels that hold a user's models; the meta device is left out, for the models are his."""

import copy

import pytest
import torch
from torch import nn

from mercer.kernels import EmpiricalNTK, MonteCarloNNGP, Trajectory


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def rows() -> torch.Tensor:
    return torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def models(count: int) -> list[nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [mlp() for _ in range(count)]


CASES = {
    "exact": lambda: EmpiricalNTK(models(1)[0]),
    "low_rank": lambda: EmpiricalNTK(models(1)[0], method="low_rank", samples=5),
    "trajectory": lambda: Trajectory(models(3)),
    "monte_carlo": lambda: MonteCarloNNGP(mlp, samples=20, generator=torch.Generator().manual_seed(0)),
}


@pytest.fixture(params=CASES, ids=str)
def make(request):
    return CASES[request.param]


def fitted(make):
    kernel = make()
    return kernel.fit(rows()) if getattr(kernel, "method", "") == "low_rank" else kernel


def test_gram_diag_blocks_and_products(make):
    kernel, x = fitted(make), rows()
    gram = kernel(x)
    torch.testing.assert_close(gram, gram.mT)
    assert torch.linalg.eigvalsh(gram).min() > -1e-12 * gram.trace()
    torch.testing.assert_close(kernel.diag(x), gram.diagonal())
    torch.testing.assert_close(kernel(x[:2], x[2:]), gram[:2, 2:])
    torch.testing.assert_close(kernel.matmul(x, None, gram, block=2), gram @ gram)


def test_gradcheck(make):
    kernel = fitted(make)
    assert torch.autograd.gradcheck(kernel, (rows().requires_grad_(), rows().flip(0).requires_grad_()))


def test_compiles_copies_and_loads_its_state(make):
    torch._dynamo.reset()
    kernel, x = fitted(make), rows()
    gram = kernel(x)
    torch.testing.assert_close(torch.compile(kernel, backend="aot_eager")(x), gram)
    fresh = make()
    fresh.load_state_dict(kernel.state_dict())
    torch.testing.assert_close(fresh(x), gram)
    torch.testing.assert_close(copy.deepcopy(kernel)(x), gram)


def test_works_under_torch_func(make):
    kernel, x = fitted(make), rows()
    # MonteCarloNNGP draws its networks in the call: vmap must be told that all rows see the same ones.
    randomness = "same" if isinstance(kernel, MonteCarloNNGP) else "error"
    entry = torch.func.vmap(lambda row: kernel(row[None], x)[0], randomness=randomness)
    torch.testing.assert_close(entry(x), kernel(x))
