r"""Eigenfunctions as combinations of the kernel at landmarks: all rows, a compressed sample, or the user's landmarks.

Of eigenvectors of the Gram matrix, :math:`\psi_j(x) = \frac{\sqrt n}{\lambda_j} \sum_i k(x, x_i) v_{ij}`.
"""

from __future__ import annotations

import logging
import math
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks
from ..kernels import Kernel
from ..kernels.tiled_gram import NOISE, STORAGE, TiledGram
from ..linalg.cholesky import cholesky, shift_diagonal
from ..linalg.eigen import lanczos_eigh, top_eigh
from ..linalg.operators import SymmetricOperator
from ..rows.agreement import has_several_ranks, map_shared_rows
from ..rows.rows import Rows
from ..rows.stored import Readable
from .bases import LandmarkBasis
from .landmarks import LandmarkFeatures, resolution, sample, select, widen
from .neuralef import Training
from .rayleigh_ritz import Pairs, Task, measure_center_and_spread, normalize_functions, ritz

_EXACT_ROWS = 20_000  # by `mercer bench eigen`: up to here Lanczos is cheaper than Nystrom at equal error
_SAMPLE_ROWS = 4096
_FEW_LANDMARKS = 256  # each is a kernel value for every row: by trial 512 lower the error by 0.1 % at twice the cost
_FINE_ROWS = 2048  # float64 rows are held in float64 up to here
_FINE_RATIO = 1e-4  # eigenvalues below this share of the largest are noisy in float32
_ARRAY_ROWS = 256, 4096  # between these the Gram matrix is one array, and one vector is quicker than a block
_ACCURACY = 1e-3  # residual of a pair, relative to its eigenvalue
_SMOOTH = 0.15  # error of the landmarks over the error of rank k up to which their own functions are enough
_HELD_ROWS = 512
_PROBED_ROWS = 64  # rows at which the operator of all rows is applied, for the residuals
_log = logging.getLogger("mercer")


def fit_landmarks(task: Task) -> tuple[LandmarkBasis, Pairs]:
    """Landmarks of the user's number or choice where given; else all rows, or a sample where they are many."""
    if getattr(task.kernel, "matrix_valued", False):
        fix = "Use method='distill' or outputs='trace'."
        need = "landmarks need a kernel with one number for each pair"
        raise ValueError(checks.sentence("NeuralEigenfunctions", need, "outputs='full'", fix))
    if task.landmarks is not None or task.training.steps or not task.ritz:
        return fit_given(task)
    if task.n > _EXACT_ROWS or not _tiles_fit(task.n, "float32"):
        return fit_sample(task)

    # Lanczos on the Gram matrix of all rows, which are the landmarks.
    exact = decompose(task.kernel, Rows(task.rows).gather(), task.k)
    return LandmarkBasis(task.kernel, exact.rows), exact.pairs


def fit_given(task: Task) -> tuple[LandmarkBasis, Pairs]:
    """Rayleigh-Ritz on the span of landmarks, after ``steps`` of gradient ascent on them."""
    # The landmarks: the user's; else centers of k-means, or uniform rows for pictures and for indices.
    kernel, x = task.kernel, task.rows
    if isinstance(task.landmarks, Tensor):
        z = kernel.prepare("landmarks", task.landmarks).detach().clone()
    else:
        m = min(task.n, task.landmarks or max(128, 8 * task.k))
        selection = "uniform"
        if x.is_floating_point() and x.ndim == 2 and m < task.n:
            selection = "kmeans"
        z = select(kernel, x, m, selection, task.generator).detach().clone()
    if task.training.steps and z.is_floating_point():
        z = _move_landmarks(kernel, x, z, task.k, task.training, task.generator)
    z = widen(kernel, z)

    # Their features on the sample, and the best pairs that these span.
    features = LandmarkFeatures.at(kernel, z, where="NeuralEigenfunctions")
    phi = map_shared_rows(lambda part: features(part).double(), widen(kernel, task.sample))
    n = len(phi)
    operator = task.operator
    if not task.ritz:  # Nystrom: the operator of the approximate kernel
        operator = SymmetricOperator(lambda v: phi @ (phi.mT @ v) / n, n, device=phi.device)
    pairs = ritz(operator, phi, task.k, rows=n, floor=max(n, len(z)) * torch.finfo(torch.float64).eps)
    basis = LandmarkBasis(kernel, z)
    rotation = features.whitener @ pairs.rotation
    return basis, normalize_functions(basis, Pairs(pairs.values, rotation, pairs.residuals), x)


def fit_sample(task: Task, *, rows: int = _SAMPLE_ROWS) -> tuple[LandmarkBasis, Pairs]:
    r"""2 k functions of a sample's Gram matrix, seen from landmarks, rotated to be orthogonal over all rows.

    The kernel :math:`\sum_{j \le 2k} \mu_j \psi_j(x) \psi_j(y)` of the sample stands for k; its eigenfunctions for all
    rows follow from one 2k x 2k moment, summed over rows. Of a smooth kernel the landmarks' own functions, Nystrom's,
    stand for it, and no sample is decomposed. The residuals are those of the operator of all rows, at 64 of them.
    """
    k, kernel = task.k, task.kernel
    x = sample(task.rows, rows, task.generator)
    m = min(len(x), max(_FEW_LANDMARKS, 16 * k))
    order = torch.randperm(len(x), generator=task.generator).to(x.device)
    z, judged = x[order[:m]], x[order[m:]][-_HELD_ROWS:]

    # Smooth: on held-out rows the landmarks' features leave less of K than rank k does.
    smooth = False
    if len(judged) == _HELD_ROWS and bool(kernel(widen(kernel, z)).isfinite().all()):
        features = LandmarkFeatures.at(kernel, z, where="NeuralEigenfunctions", cut=len(z) * resolution(z))
        phi = features(widen(kernel, judged)).double()
        beyond = phi @ torch.linalg.eigh(phi.mT @ phi)[1][:, :-k]
        missing = kernel(widen(kernel, judged)).double() - phi @ phi.mT
        smooth = _measure_off_diagonal(missing) < _SMOOTH * _measure_off_diagonal(beyond @ beyond.mT)
        weights = features.whitener
    if not smooth:
        z, weights = _decompose_sample(task, x, m)

    # One pass over all rows: the moment of the features f = K(., z) A, and K times them at a few rows.
    basis, probe = LandmarkBasis(kernel, z), x[order[-_PROBED_ROWS:]]

    def sum_moments(part: Tensor) -> Tensor:  # (b, ...) -> (r + p, r)
        values = basis(part)
        phi = values @ weights.to(values.dtype)
        return torch.cat((phi.mT @ phi, LandmarkBasis(kernel, part)(probe).to(phi.dtype) @ phi)).double()

    means = Rows(task.rows).mean(sum_moments, row_bytes=4 * len(z) * 8)
    r = weights.shape[1]
    values, vectors = torch.linalg.eigh(means[:r])
    values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
    alive = values > len(x) * torch.finfo(torch.float32).eps * values[:1].clamp_min(0)
    turn = vectors * alive / torch.where(alive, values, 1.0).sqrt()
    rotation = weights @ turn

    # K psi / n - mu psi at the probed rows; few rows cannot vouch for less than float32's resolution.
    psi = basis(probe).double() @ rotation
    residuals = (means[r:] @ turn - psi * values).norm(dim=0) / math.sqrt(len(probe))
    residuals = torch.maximum(residuals, torch.finfo(torch.float32).eps * values)
    return basis, Pairs(values * alive, rotation, residuals * alive)


def _decompose_sample(task: Task, x: Tensor, m: int) -> tuple[Tensor, Tensor]:  # -> (m, ...), (m, 2k)
    r"""M landmarks z and A with :math:`K(x, z) A \approx \sqrt\mu \psi(x)`, the sample's 2 k functions: least squares.

    The log says :math:`\|\hat\Phi \hat\Phi^\top - \Phi \Phi^\top\|_F / \|K\|_F` on rows that were not fitted.
    """
    kernel, n = task.kernel, len(x)
    exact = decompose(kernel, x, min(2 * task.k, n))
    x, functions, roots = exact.rows, exact.functions, exact.pairs.values.sqrt()

    # Fit the functions on some rows.
    order = torch.randperm(n, generator=task.generator).to(x.device)
    features = LandmarkFeatures.at(kernel, widen(kernel, x[order[:m]]), where="NeuralEigenfunctions", cut=m * 1e-12)
    fitted, judged = order[: max(2 * m, _FINE_ROWS)], order[-_FINE_ROWS:]
    phi = features(widen(kernel, x[fitted])).double()
    moment = phi.mT @ phi
    moment.diagonal().add_(1e-12 * moment.diagonal().max())
    coefficients = torch.linalg.solve(moment, phi.mT @ functions[fitted]) * roots

    # Measure the loss on others.
    fit, true = features(widen(kernel, x[judged])).double() @ coefficients, functions[judged] * roots
    gap = (true.mT @ true).square().sum() + (fit.mT @ fit).square().sum() - 2 * (true.mT @ fit).square().sum()
    loss = math.sqrt(max(float(gap), 0.0)) * (n / len(judged)) / math.sqrt(exact.squared_norm)
    _log.info(
        "NeuralEigenfunctions: %d of %d rows decomposed, compressed to %d landmarks at a loss of %.1e of K.",
        n, task.n, m, loss,
    )  # fmt: skip
    return features.landmarks, features.whitener @ coefficients


def _measure_off_diagonal(matrix: Tensor) -> float:
    """Frobenius norm without the diagonal, which weighs more in few rows than in many."""
    return math.sqrt(max(float(matrix.square().sum() - matrix.diagonal().square().sum()), 0.0))


class Exact(NamedTuple):
    """The leading pairs of a Gram matrix, as combinations of K(., rows)."""

    rows: Tensor  # (n, ...), in the dtype that the kernel was computed in
    squared_norm: float  # of the Gram matrix
    pairs: Pairs
    functions: Tensor  # (n, k): the eigenfunctions at the rows


def decompose(kernel: Kernel, x: Tensor, k: int) -> Exact:
    r"""The k leading pairs on rows that all ranks hold.

    The Gram matrix is held in float32, or in float64 where rows are few, and where the k-th eigenvalue turns out too
    small for float32.
    """
    is_short = len(x) <= _FINE_ROWS
    if is_short and (not x.is_floating_point() or x.dtype == torch.float64):
        return _decompose_in(kernel, x, k, "float64")
    exact = _decompose_in(kernel, x, k, "float32")
    values = exact.pairs.values
    # Small eigenvalues are noise in float32: again in float64, where that fits the memory.
    if float(values[-1]) < _FINE_RATIO * float(values[0]) and (is_short or _tiles_fit(len(x), "float64")):
        return _decompose_in(kernel, widen(kernel, x), k, "float64")
    return exact


def _decompose_in(kernel: Kernel, x: Tensor, k: int, storage: str) -> Exact:
    """The pairs with the Gram matrix in one storage, float32 or float64."""
    # The Gram matrix: one array where it is small and no other rank could hold a share of it, else tiles.
    n = len(x)
    array: Tensor | None = None
    operator: SymmetricOperator
    if _ARRAY_ROWS[0] < n <= _ARRAY_ROWS[1] and 3 * k < n and x.device.type == "cpu" and not has_several_ranks():
        array = gram = kernel(x).to(STORAGE[storage])
        operator = SymmetricOperator(lambda v: (v.mT.to(gram.dtype) @ gram).mT.double(), n)
        squared_norm = float(torch.linalg.vector_norm(gram)) ** 2
    else:
        operator = tiles = TiledGram.of(kernel, x, storage)
        squared_norm = tiles.squared_norm
    if not math.isfinite(squared_norm):
        need = "the kernel must be finite on x"
        raise ValueError(checks.sentence("NeuralEigenfunctions", need, "NaN or infinity", "Standardise x."))

    # Its top pairs, each to an accuracy of its own. Where k of them are all there is, that is not enough: again, to the
    # last digit.
    tolerance = 8 * NOISE[storage]
    for relative in (_ACCURACY, 0.0):
        top = None
        if array is not None:
            top = lanczos_eigh(array, k, tolerance=tolerance, relative=relative)
        if top is None:
            top = top_eigh(operator, min(k, n), tolerance=tolerance, relative=relative)
        captured = float(top.values.square().sum()) / max(squared_norm, torch.finfo(torch.float64).tiny)
        if math.sqrt(max(1 - captured, 1e-12)) >= _ACCURACY:
            break
    assert top is not None

    # Eigenvectors as functions of mean square 1, and as combinations of K(., x); 0 beyond the rank.
    floor = tolerance
    if storage == "float64":
        floor = n * float(torch.finfo(torch.float64).eps)
    alive = top.values > floor * top.values[:1].clamp_min(0)
    functions = top.vectors * alive * math.sqrt(n)  # a mask times a number would be float32
    rotation = functions / torch.where(alive, top.values, 1.0)
    pairs = Pairs(top.values * alive / n, rotation, top.residuals * alive / n).pad(k)
    return Exact(x, squared_norm, pairs, torch.nn.functional.pad(functions, (0, k - functions.shape[1])))


def _tiles_fit(n: int, storage: str) -> bool:
    """Whether a Gram matrix of n rows takes at most half of the free memory; few rows are not asked."""
    if n <= _ARRAY_ROWS[1]:
        return True
    free = checks.available_memory()
    return free is None or 2 * TiledGram.bytes_for(n, storage) <= free


def _move_landmarks(
    kernel: Kernel, x: Readable, z: Tensor, k: int, plan: Training, generator: torch.Generator | None
) -> Tensor:  # (n, d), (m, d) -> (m, d)
    r"""Landmarks moved to capture more of the kernel: maximize :math:`\sum_{j \le k} \hat\mu_j(z)^2`.

    :math:`\hat\mu_j` are the eigenvalues of the Nystrom operator on a minibatch; the squared error of the best rank-k
    approximation is what their squares leave of :math:`\|K / n\|^2`. The step size is in units of the data's
    spread. Ctrl-C ends the training, not the fit.
    """
    # Adam on the landmarks, with steps in units of the data's spread.
    spread = float(measure_center_and_spread(x)[1])
    z = z.double().requires_grad_()
    optimizer = torch.optim.Adam([z], lr=plan.lr * spread)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, plan.steps))
    size = min(plan.batch_size, Rows(x).n)
    try:
        for _ in range(plan.steps):
            batch = sample(x, size, generator).double()
            with torch.enable_grad():
                # The Nystrom features of a minibatch, L^-1 K(z, batch) with K(z, z) = L L^T, and their spectrum.
                inner = kernel(z)
                ridge = 1e-8 * inner.detach().diagonal().mean()
                factor = cholesky(shift_diagonal(inner, ridge)).factor
                phi = torch.linalg.solve_triangular(factor, kernel(z, batch), upper=False)  # (m, b)
                values = torch.linalg.eigvalsh(phi @ phi.mT / size)
                # Minus the sum of squares, relative to its own size, so that the step does not depend on the kernel's.
                loss = -values[-k:].square().sum() / values.detach()[-k:].square().sum()
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            schedule.step()
    except KeyboardInterrupt:
        _log.warning("landmarks: interrupted; the map keeps what was learned.")
    return z.detach()
