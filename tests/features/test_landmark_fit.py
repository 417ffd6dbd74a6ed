"""Eigenfunctions from landmarks: what the fit says of its own error, and the features that all landmarks share."""

import gc
from collections.abc import Callable

import pytest
import torch

from mercer.features import NeuralEigenfunctions
from mercer.features.landmark_fit import fit_sample
from mercer.features.landmarks import LandmarkFeatures
from mercer.features.neuralef import Training
from mercer.features.rayleigh_ritz import Task
from mercer.kernels import RBF, Kernel, Laplacian
from mercer.kernels.tiled_gram import TiledGram


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(("kernel", "d"), [(RBF(0.1), 6), (Laplacian(0.3), 4)])
def test_residuals_of_many_rows_are_near_the_truth(kernel: Kernel, d: int):
    n = 3000
    x = torch.randn(n, d, generator=seeded(), dtype=torch.float64)
    basis, pairs = fit_sample(Task(kernel, x, 6, True, Training(0), seeded(), None, None), rows=800)
    psi = basis(x) @ pairs.rotation
    true = (kernel(x) @ psi / n - psi * pairs.values).norm(dim=0) / n**0.5
    ratio = pairs.residuals / true
    assert (ratio > 1 / 3).all() and (ratio < 3).all()


def test_landmark_features_are_the_kernel_at_the_landmarks():
    x = torch.randn(40, 3, generator=seeded(), dtype=torch.float64)
    features = LandmarkFeatures.at(RBF(0.5), x[:10], where="test")
    gram = features(x) @ features(x[:10]).mT
    torch.testing.assert_close(gram, RBF(0.5)(x, x[:10]))


def make_circle(n: int) -> torch.Tensor:
    angle = torch.arange(n, dtype=torch.float64) / n * 2 * torch.pi
    return torch.stack((angle.cos(), angle.sin()), 1)


def make_grid(side: int, d: int) -> torch.Tensor:
    return torch.cartesian_prod(*[torch.linspace(-1, 1, side, dtype=torch.float64)] * d)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [lambda: make_circle(300), lambda: make_grid(7, 3), lambda: make_grid(5, 4)])
def test_multiple_eigenvalues_are_all_found(rows: Callable[[], torch.Tensor], dtype: torch.dtype):
    """Rows on a circle or a grid have eigenvalues of 2 to 12 functions each; one start sees one of each."""
    x = rows().to(dtype)
    values = torch.linalg.eigvalsh(RBF(1.0)(x.double()) / len(x)).flip(0)[:16]
    got = NeuralEigenfunctions(RBF(1.0), 16).fit(x).eigenvalues
    torch.testing.assert_close(got, values, rtol=1e-2, atol=1e-6 * float(values[0]))


def test_the_gram_matrix_goes_with_the_fit():
    """No cycle holds it: at 20,000 rows it would be 800 MB until Python collects."""
    gc.collect()
    gc.disable()
    try:
        for n in (500, 5000):
            NeuralEigenfunctions(RBF(1.0), 4).fit(torch.randn(n, 2, generator=seeded()))
            large = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.numel() > 300_000]
            grams = [t for t in gc.get_objects() if type(t) is TiledGram]
            assert not large and not grams
    finally:
        gc.enable()
