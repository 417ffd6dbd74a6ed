"""Eigenfunctions from landmarks: what the fit says of its own error, and the features that all landmarks share."""

import pytest
import torch

from mercer.features.landmark_fit import fit_sample
from mercer.features.landmarks import LandmarkFeatures
from mercer.features.neuralef import Training
from mercer.features.rayleigh_ritz import Task
from mercer.kernels import RBF, Kernel, Laplacian


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_array_gives_the_pairs_of_the_dense_solver(dtype: torch.dtype):
    """Between 256 and 4,096 rows ARPACK runs; a circle has double eigenvalues, which it must not miss."""
    from mercer.features import NeuralEigenfunctions

    angle = torch.arange(300, dtype=torch.float64) / 300 * 2 * torch.pi
    x = torch.stack((angle.cos(), angle.sin()), 1).to(dtype)
    values = torch.linalg.eigvalsh(RBF(1.0)(x.double()) / 300).flip(0)[:7]
    torch.testing.assert_close(NeuralEigenfunctions(RBF(1.0), 7).fit(x).eigenvalues, values, rtol=1e-4, atol=0)
