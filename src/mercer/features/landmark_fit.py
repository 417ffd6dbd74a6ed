"""Eigenfunctions as combinations of the kernel at landmarks: all rows, a compressed sample, or landmarks asked for."""

from __future__ import annotations

import torch

from .. import checks
from ..distributed import map_rows
from ..linalg import SymmetricOperator, inverse_root
from .bases import LandmarkBasis
from .exact_extension import EXACT_ROWS, fit_all_rows, fit_sample, tiles_fit
from .learned_landmarks import choose, learn
from .rayleigh_ritz import Pairs, ritz
from .standardisation import centre_and_spread
from .task import Task, normalised, wide

__all__ = ["fit_landmarks"]


def fit_landmarks(task: Task) -> tuple[LandmarkBasis, Pairs]:
    """Landmarks of the user's number or choice where given; else all rows, or a sample where they are many."""
    if getattr(task.kernel, "matrix_valued", False):
        fix = "Use method='distill' or outputs='trace'."
        need = "landmarks need a kernel with one number for each pair"
        raise ValueError(checks.sentence("NeuralEigenfunctions", need, "outputs='full'", fix))
    if task.landmarks is not None or task.training.steps or not task.ritz:
        return _fit_chosen(task)
    exact = task.n <= EXACT_ROWS and tiles_fit(task.n, "float32")
    return fit_all_rows(task) if exact else fit_sample(task)


def _fit_chosen(task: Task) -> tuple[LandmarkBasis, Pairs]:
    """Rayleigh-Ritz on the span of landmarks, which are moved uphill first where steps are asked for."""
    kernel, sample, wanted = task.kernel, task.sample, task.landmarks
    if isinstance(wanted, torch.Tensor):
        z = kernel.prepare("landmarks", wanted).detach().clone()
    else:
        z = choose(kernel, task.rows, min(task.n, wanted or max(128, 8 * task.k)), task.generator)
    if task.training.steps and z.is_floating_point():
        spread = float(centre_and_spread(task.rows)[1])
        z = learn(kernel, task.rows, z, task.k, task.training, spread, task.generator)
    z = wide(kernel, z)
    eps = torch.finfo(torch.float64).eps
    white = inverse_root(kernel(z).double(), len(z) * eps, where="NeuralEigenfunctions")
    phi = map_rows(lambda part: kernel(part, z).double() @ white, wide(kernel, sample))
    n = len(sample)
    operator = task.operator
    if not task.ritz:  # Nystrom: the operator of the approximate kernel
        operator = SymmetricOperator(lambda v: phi @ (phi.mT @ v) / n, n, device=phi.device)
    pairs = ritz(operator, phi, task.k, rows=n, floor=max(n, len(z)) * eps)
    basis = LandmarkBasis(kernel, z)
    return basis, normalised(basis, Pairs(pairs.values, white @ pairs.rotation, pairs.residuals), task.rows)
