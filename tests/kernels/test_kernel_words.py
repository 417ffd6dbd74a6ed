"""Kernels know their lengthscale, a rescaled copy of themselves, and their name in words."""

import pytest
import torch

from mercer.kernels import RBF, Constant, Laplacian, Linear, Matern, Periodic, Polynomial, RationalQuadratic, ReLUGram

RESCALED = {
    "rbf": lambda: RBF(0.7),
    "rbf_each": lambda: RBF([0.3, 0.7, 1.1]),
    "rbf_learned": lambda: RBF(0.7, learnable=True),
    "laplacian": lambda: Laplacian(0.4),
    "matern": lambda: Matern(2.5, 0.8),
    "matern_each": lambda: Matern(0.5, [0.8, 1.0, 2.0]),
    "rational_quadratic": lambda: RationalQuadratic(0.6, 1.3),
    "periodic": lambda: Periodic(1.7, 0.9),
    "sum": lambda: RBF(0.7) + 2.0,
    "product": lambda: 3.0 * RBF(0.7) * Laplacian(0.4),
    "power": lambda: (RBF(0.7) + Matern(1.5, 2.0)) ** 2,
    "normalized": lambda: (RBF(0.7) + 1.0).normalized(),
}


@pytest.mark.parametrize("case", RESCALED)
def test_rescaled_is_the_kernel_of_shorter_rows(case):
    kernel, x = RESCALED[case](), torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    longer = kernel.rescaled(1.7)
    torch.testing.assert_close(longer(x), kernel(x / 1.7))
    assert len(list(longer.parameters())) == len(list(kernel.parameters()))


@pytest.mark.parametrize("kernel", [Linear(), Polynomial(), ReLUGram(), RBF() + Linear(), Linear() ** 2])
def test_kernels_without_a_lengthscale_say_so(kernel):
    assert kernel.rescaled(2.0) is None


@pytest.mark.parametrize("kernel", [RBF(0.5), Laplacian(0.5), Matern(1.5, 2.0), RationalQuadratic(1.0, 2.0)])
def test_rescaling_multiplies_the_lengthscale(kernel):
    assert float(kernel.rescaled(3.0).lengthscale) == pytest.approx(3.0 * float(kernel.lengthscale))


def test_rescaling_stays_within_float32():
    assert 0 < float(RBF(1.0).rescaled(1e30).gamma) < 1e-37
    assert torch.isfinite(torch.tensor(float(RBF(1.0).rescaled(1e-30).gamma), dtype=torch.float32))


def test_a_kernel_describes_itself():
    assert RBF(0.12345678).describe() == ("Gaussian", "near rows have near answers, smoothly", "RBF(gamma=0.1235)")
    assert Matern(0.5, 2.0).describe().call == "Matern(nu=0.5, lengthscale=2)"
    assert "sharp edges" in Laplacian().describe().meaning
    assert Linear().describe() == ("Linear", "a weighted sum of the columns", "Linear()")
    assert (RBF([0.5, 2.0]) + Constant(3.0)).describe().call == "Sum(left=RBF(gamma=[0.5, 2]), right=Constant(value=3))"
