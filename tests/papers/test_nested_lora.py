"""NestedLoRA against the objective of its authors, written out, and against exact eigenfunctions."""

import pytest
import torch
from torch import Tensor

from mercer.kernels import RBF
from mercer_papers.rivals import NestedLoRA
from mercer_papers.rivals.nested_lora import compute_gradient


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def approximation_loss(f: list[Tensor], gram: Tensor) -> Tensor:
    """L(f_1..f_l) of Ryu et al. 2024, sum by sum; inner products are means over the minibatch."""
    b = len(gram)
    energy = sum(fi @ gram @ fi / b**2 for fi in f)
    overlap = sum((fi @ fj / b) ** 2 for fi in f for fj in f)
    return torch.as_tensor(-2 * energy + overlap)


def make_batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(12, 2, generator=seeded(), dtype=torch.float64)
    return torch.randn(12, 4, generator=seeded(), dtype=torch.float64), RBF(0.5)(x)


def test_the_objective_is_the_error_of_a_low_rank_approximation():
    f, gram = make_batch()
    loss = approximation_loss(list(f.mT), gram)
    error = ((gram - f @ f.mT).square().sum() - gram.square().sum()) / len(gram) ** 2
    torch.testing.assert_close(loss, error)


def test_sequential_gradient_is_that_of_each_functions_own_objective():
    f, gram = make_batch()
    columns = []
    for last in range(4):
        # The functions before it are constants in the objective that ends with it.
        own = f[:, last].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(approximation_loss([*f.mT[:last], own], gram), own)
        columns.append(gradient)
    torch.testing.assert_close(compute_gradient(f, gram, "sequential"), torch.stack(columns, 1))


def test_joint_gradient_is_that_of_the_mean_of_all_objectives():
    f, gram = make_batch()
    f.requires_grad_()
    loss = sum(approximation_loss(list(f.mT[: last + 1]), gram) for last in range(4)) / 4
    (gradient,) = torch.autograd.grad(torch.as_tensor(loss), f)
    torch.testing.assert_close(compute_gradient(f.detach(), gram, "joint"), gradient)


def test_two_halves_give_each_the_overlaps_of_the_other():
    f, gram = make_batch()
    whole = compute_gradient(f, gram, "sequential", halves=True) - compute_gradient(f, gram, "sequential")
    # Column l is pulled off columns 1 to l, by as much as the other half says that they overlap.
    expected = torch.zeros_like(f)
    for row in range(12):
        other = f[6:] if row < 6 else f[:6]
        for last in range(4):
            for i in range(last + 1):
                overlap = other[:, i] @ other[:, last] / 6 - f[:, i] @ f[:, last] / 12
                expected[row, last] += 4 / 12 * f[row, i] * overlap
    torch.testing.assert_close(whole, expected)


def test_the_authors_training_finds_the_leading_functions_too():
    x = 4 * torch.rand(300, 1, generator=seeded(), dtype=torch.float64) - 2
    model = NestedLoRA(RBF(0.5), 2, generator=0, recipe="authors", steps=400, batch_size=128, lr=1e-3).fit(x)
    vectors = torch.linalg.eigh(RBF(0.5)(x) / 300)[1]
    psi = torch.nn.functional.normalize(model.eigenfunctions(x), dim=0)
    assert ((psi * vectors.flip(1)[:, :2]).sum(0).abs() > 0.98).all()


@pytest.mark.parametrize("nesting", ["sequential", "joint"])
def test_it_finds_the_leading_functions_in_order(nesting: str):
    x = 4 * torch.rand(300, 1, generator=seeded(), dtype=torch.float64) - 2
    model = NestedLoRA(RBF(0.5), 3, generator=0, nesting=nesting, steps=400, batch_size=128).fit(x)
    values, vectors = torch.linalg.eigh(RBF(0.5)(x) / 300)
    psi = torch.nn.functional.normalize(model.eigenfunctions(x), dim=0)
    assert ((psi * vectors.flip(1)[:, :3]).sum(0).abs() > 0.98).all()
    torch.testing.assert_close(model.eigenvalues, values.flip(0)[:3], rtol=0.05, atol=0)
