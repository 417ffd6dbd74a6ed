"""Every public feature map: a new one joins the whole contract by one line here."""

import torch

from mercer.features import NeuralEigenfunctions, Nystrom, PositiveRandomFeatures, RandomFourier
from mercer.kernels import RBF, Laplacian, Matern
from mercer_papers.rivals import SpectralInference

N, D, M = 40, 3, 8


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


CASES = {
    "fourier": lambda: RandomFourier(RBF(0.5), M, generator=seeded()),
    "fourier_odd": lambda: RandomFourier(Matern(1.5), M + 1, generator=seeded()),
    "fourier_orthogonal": lambda: RandomFourier(RBF(0.5), M, orthogonal=True, generator=seeded()),
    "positive": lambda: PositiveRandomFeatures(M, generator=seeded()),
    "nystrom": lambda: Nystrom(RBF(0.5), M, generator=seeded()),
    "nystrom_kmeans": lambda: Nystrom(RBF(0.5), M, selection="kmeans", generator=seeded()),
    "nystrom_leverage": lambda: Nystrom(Laplacian(0.5), M, selection="leverage", generator=seeded()),
    "nystrom_own": lambda: Nystrom(RBF(0.5), M, selection=rows(seed=9)[:M]),
    "eigen_rows": lambda: NeuralEigenfunctions(RBF(0.5), M, generator=seeded()),
    "eigen_landmarks": lambda: NeuralEigenfunctions(RBF(0.5), M, landmarks=16, generator=seeded()),
    "eigen_neuralef": lambda: NeuralEigenfunctions(RBF(0.5), M, method="neuralef", steps=5, generator=seeded()),
    "eigen_raw": lambda: NeuralEigenfunctions(RBF(0.5), M, method="neuralef", ritz=False, steps=60, generator=seeded()),
    "eigen_distill": lambda: NeuralEigenfunctions(RBF(0.5), M, method="distill", steps=5, generator=seeded()),
    "spin": lambda: SpectralInference(RBF(0.5), M, steps=3, generator=seeded()),
}


def rows(n: int = N, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(n, D, generator=seeded(seed), dtype=torch.float64).to(dtype) * 0.7
