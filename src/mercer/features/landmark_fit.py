r"""Eigenfunctions as combinations of the kernel at landmarks: all rows, a compressed sample, or landmarks asked for.

Of eigenvectors of the Gram matrix, :math:`\psi_j(x) = \frac{\sqrt n}{\lambda_j} \sum_i k(x, x_i) v_{ij}`.
"""

from __future__ import annotations

import logging
import math
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks
from ..distributed import gather_rows, global_slice, map_rows, sum_over_ranks
from ..kernels import Kernel, TiledGram
from ..linalg import SymmetricOperator, block_rows, cholesky, inverse_root, shifted, slices, top_eigh
from ..rows.stored import Readable
from .bases import LandmarkBasis
from .landmarks import sample, select
from .neuralef import Training
from .rayleigh_ritz import Pairs, ritz
from .task import Task, centre_and_spread, normalised, wide

_EXACT_ROWS = 20_000  # by `mercer bench eigen`: up to here Lanczos is cheaper than Nystrom at equal error
_SAMPLE_ROWS = 4096
_FEW_LANDMARKS = 256  # each is a kernel value for every row: by trial 512 lower the error by 0.1 % at twice the cost
_FINE_ROWS = 2048  # float64 rows are held in float64 up to here
_FINE_RATIO = 1e-4  # eigenvalues below this share of the largest are noisy in float32
_ACCURACY = 1e-3  # residual of a pair, relative to its eigenvalue
_LOSS = 0.01  # what landmarks may lose of the kernel, relative to what rank k loses
_SMOOTH = 0.15  # what they may leave of it, relative to the same, where all functions of theirs are kept
_HELD_ROWS = 512
_log = logging.getLogger("mercer")


def fit_landmarks(task: Task) -> tuple[LandmarkBasis, Pairs]:
    """Landmarks of the user's number or choice where given; else all rows, or a sample where they are many."""
    if getattr(task.kernel, "matrix_valued", False):
        fix = "Use method='distill' or outputs='trace'."
        need = "landmarks need a kernel with one number for each pair"
        raise ValueError(checks.sentence("NeuralEigenfunctions", need, "outputs='full'", fix))
    if task.landmarks is not None or task.training.steps or not task.ritz:
        return _fit_chosen(task)
    exact = task.n <= _EXACT_ROWS and _tiles_fit(task.n, "float32")
    return _fit_all_rows(task) if exact else fit_sample(task)


def _fit_chosen(task: Task) -> tuple[LandmarkBasis, Pairs]:
    """Rayleigh-Ritz on the span of landmarks, which are moved uphill first where steps are asked for."""
    kernel, sample, wanted = task.kernel, task.sample, task.landmarks
    if isinstance(wanted, torch.Tensor):
        z = kernel.prepare("landmarks", wanted).detach().clone()
    else:
        z = _choose(kernel, task.rows, min(task.n, wanted or max(128, 8 * task.k)), task.generator)
    if task.training.steps and z.is_floating_point():
        spread = float(centre_and_spread(task.rows)[1])
        z = _learn(kernel, task.rows, z, task.k, task.training, spread, task.generator)
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


def _fit_all_rows(task: Task) -> tuple[LandmarkBasis, Pairs]:
    """Lanczos on the Gram matrix of all rows; landmarks in place of the rows where next to nothing is lost."""
    x = gather_rows(task.rows[:])
    found, pairs, functions = exact_pairs(task.kernel, x, task.k)
    basis = LandmarkBasis(task.kernel, found.rows)
    m = max(512, 16 * task.k)
    if len(x) < 2 * _FINE_ROWS or task.landmarks is not None:
        return basis, pairs
    z, projection, loss = _compressed(task.kernel, found, pairs, functions, m, task.generator)
    if loss > _LOSS * found.truncation:
        return basis, pairs
    _log.info("NeuralEigenfunctions: %d rows compressed to %d landmarks at a loss of %.1e of K.", len(x), m, loss)
    basis = LandmarkBasis(task.kernel, z)
    return basis, normalised(basis, Pairs(pairs.values, projection, pairs.residuals), task.rows)


def fit_sample(task: Task, *, rows: int = _SAMPLE_ROWS) -> tuple[LandmarkBasis, Pairs]:
    r"""2 k functions of a sample's Gram matrix, seen from landmarks, rotated to be orthogonal over all rows.

    The kernel :math:`\sum_{j \le 2k} \mu_j \psi_j(x) \psi_j(y)` of the sample stands for k; its eigenfunctions for all
    rows follow from one 2k x 2k moment, summed over rows. Of a smooth kernel the landmarks' own functions, Nystrom's,
    stand for it, and no sample is decomposed.
    """
    k, kernel = task.k, task.kernel
    x = sample(task.rows, rows, task.generator)
    m = min(len(x), max(_FEW_LANDMARKS, 16 * k))
    order = torch.randperm(len(x), generator=task.generator).to(x.device)
    z, held = x[order[:m]], x[order[m:]][-_HELD_ROWS:]
    exact = kernel(wide(kernel, held)).double()
    gram: Tensor | TiledGram = exact
    features = _whitened_if_smooth(kernel, z, held, exact, k)
    if features is None:
        found, pairs, functions = exact_pairs(kernel, x, min(2 * k, len(x)))
        z, projection, loss = _compressed(kernel, found, pairs, functions, m, task.generator)
        _log.info(
            "NeuralEigenfunctions: %d of %d rows decomposed, compressed to %d landmarks at a loss of %.1e of K.",
            len(x), task.n, m, loss,
        )  # fmt: skip
        features, held, gram = projection * pairs.values.sqrt(), found.rows, found.gram
    basis = LandmarkBasis(kernel, z)
    values, vectors = torch.linalg.eigh(_moment(basis, features, task.rows))
    values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
    alive = values > len(x) * torch.finfo(torch.float32).eps * values[:1].clamp_min(0)
    rotation = features @ vectors * alive / torch.where(alive, values, 1.0).sqrt()
    psi = basis(held).double() @ rotation
    residuals = (gram @ psi / len(held) - psi * values).norm(dim=0) / math.sqrt(len(held))
    return basis, Pairs(values * alive, rotation, residuals * alive)


def _whitened_if_smooth(kernel: Kernel, z: Tensor, held: Tensor, gram: Tensor, k: int) -> Tensor | None:  # -> (m, r)
    r""":math:`K(z, z)^{-1/2}` where K(., z) leaves less of K on held-out rows than rank k does; None elsewhere."""
    inner = kernel(wide(kernel, z)).double()
    if len(held) < _HELD_ROWS or not bool(inner.isfinite().all()):
        return None
    eps = torch.finfo(z.dtype if z.is_floating_point() else torch.float64).eps
    white: Tensor = inverse_root(inner, len(z) * eps, where="NeuralEigenfunctions")
    phi = kernel(held, z).double() @ white
    rest = phi @ torch.linalg.eigh(phi.mT @ phi)[1][:, :-k]
    return white if _off_diagonal(gram - phi @ phi.mT) < _SMOOTH * _off_diagonal(rest @ rest.mT) else None


def _off_diagonal(matrix: Tensor) -> float:
    """Frobenius norm without the diagonal, which weighs more in few rows than in many."""
    return math.sqrt(max(float(matrix.square().sum() - matrix.diagonal().square().sum()), 0.0))


class _Decomposed(NamedTuple):
    """Rows in the dtype that the kernel was computed in, their Gram matrix, and what rank k leaves of it, relative."""

    rows: Tensor
    gram: TiledGram
    truncation: float


def exact_pairs(kernel: Kernel, x: Tensor, k: int) -> tuple[_Decomposed, Pairs, Tensor]:
    r"""The k leading pairs on rows that all ranks hold: for functions of K(., x), and the functions at x ``(n, k)``.

    The Gram matrix is held as tiles in float32, or in float64 where rows are few, and where the k-th eigenvalue turns
    out too small for float32.
    """
    exact = not x.is_floating_point() or x.dtype == torch.float64
    storage = "float64" if exact and len(x) <= _FINE_ROWS else "float32"
    found = _decomposed(kernel, x, k, storage)
    fits = len(x) <= _FINE_ROWS or _tiles_fit(len(x), "float64")
    if storage == "float32" and fits and float(found[1].values[-1]) < _FINE_RATIO * float(found[1].values[0]):
        found = _decomposed(kernel, wide(kernel, x), k, "float64")
    return found


def _decomposed(kernel: Kernel, x: Tensor, k: int, storage: str) -> tuple[_Decomposed, Pairs, Tensor]:
    n = len(x)
    gram = TiledGram.of(kernel, x, storage)
    if not math.isfinite(gram.squared_norm):
        need = "the kernel must be finite on x"
        raise ValueError(checks.sentence("NeuralEigenfunctions", need, "NaN or infinity", "Standardise x."))
    top = top_eigh(gram, min(k, n), tolerance=8 * gram.noise, relative=_ACCURACY)
    if _left(gram, top.values) < _ACCURACY:  # k pairs are all there is: their own accuracy is what counts
        top = top_eigh(gram, min(k, n), tolerance=8 * gram.noise)
    floor = n * float(torch.finfo(torch.float64).eps) if storage == "float64" else 8 * gram.noise
    alive = top.values > floor * top.values[:1].clamp_min(0)
    functions = top.vectors * alive * math.sqrt(n)  # a mask times a number would be float32
    rotation = functions / torch.where(alive, top.values, 1.0)
    pairs = Pairs(top.values * alive / n, rotation, top.residuals * alive / n).padded(k)
    whole = Pairs(pairs.values, functions, pairs.values).padded(k).rotation
    return _Decomposed(x, gram, _left(gram, top.values)), pairs, whole


def _left(gram: TiledGram, values: Tensor) -> float:
    """What the pairs leave of the matrix, relative, in Frobenius norm."""
    held = float(values.square().sum()) / max(gram.squared_norm, torch.finfo(torch.float64).tiny)
    return math.sqrt(max(1 - held, 1e-12))


def _compressed(
    kernel: Kernel, found: _Decomposed, pairs: Pairs, functions: Tensor, m: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, float]:
    r"""M landmarks z and A with :math:`K(x, z) A \approx \psi(x)`: least squares on some rows, the loss on others.

    The loss is :math:`\|\hat\Phi \hat\Phi^\top - \Phi \Phi^\top\|_F / \|K\|_F`.
    """
    x, n = found.rows, len(found.rows)
    order = torch.randperm(n, generator=generator).to(x.device)
    z = wide(kernel, x[order[:m]])
    white = inverse_root(kernel(z).double(), m * 1e-12, where="NeuralEigenfunctions")
    fitted, held = order[: max(2 * m, _FINE_ROWS)], order[-_FINE_ROWS:]
    phi = kernel(wide(kernel, x[fitted]), z).double() @ white
    moment = phi.mT @ phi
    moment.diagonal().add_(1e-12 * moment.diagonal().max())
    projection = white @ torch.linalg.solve(moment, phi.mT @ functions[fitted])
    roots = pairs.values.sqrt()
    seen = kernel(wide(kernel, x[held]), z).double() @ (projection * roots)
    true = functions[held] * roots
    gap = (true.mT @ true).square().sum() + (seen.mT @ seen).square().sum() - 2 * (true.mT @ seen).square().sum()
    return z, projection, math.sqrt(max(float(gap), 0.0)) * (n / len(held)) / math.sqrt(found.gram.squared_norm)


def _moment(basis: LandmarkBasis, features: Tensor, rows: Readable) -> Tensor:  # (m, r) -> (r, r)
    """The mean over rows of all ranks of f f^T for the features f = K(x, z) A."""
    total = features.new_zeros(features.shape[1], features.shape[1])
    for part in slices(len(rows), block_rows(4 * len(features) * 8)):
        values = basis(rows[part])
        phi = values @ features.to(values.dtype)
        total += (phi.mT @ phi).double()
    return sum_over_ranks(total) / global_slice(len(rows))[1]


def _tiles_fit(n: int, storage: str) -> bool:
    """Whether a Gram matrix of n rows takes at most half of the free memory."""
    free = checks.available_memory()
    return free is None or 2 * TiledGram.bytes_for(n, storage) <= free


def _choose(kernel: Kernel, x: Readable, m: int, generator: torch.Generator | None) -> Tensor:  # (n, ...) -> (m, ...)
    """Centres of k-means for rows of numbers, uniform rows for pictures and for indices."""
    plain = x.is_floating_point() and x.ndim == 2 and m < global_slice(len(x))[1]
    return select(kernel, x, m, "kmeans" if plain else "uniform", generator).detach().clone()


def _learn(
    kernel: Kernel, x: Readable, z: Tensor, k: int, plan: Training, spread: float, generator: torch.Generator | None
) -> Tensor:  # (n, d), (m, d) -> (m, d)
    r"""Landmarks moved to capture more of the kernel: maximise :math:`\sum_{j \le k} \hat\mu_j(z)^2`.

    :math:`\hat\mu_j` are the eigenvalues of the Nystrom operator on a minibatch; the squared error of the best rank-k
    approximation is what their squares leave of :math:`\|K / n\|^2`. The step size is in units of the data's
    ``spread``. Ctrl-C ends the training, not the fit.
    """
    z = z.double().requires_grad_()
    optimizer = torch.optim.Adam([z], lr=plan.lr * spread)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, plan.steps))
    size = min(plan.batch_size, global_slice(len(x))[1])
    try:
        for _ in range(plan.steps):
            batch = sample(x, size, generator).double()
            with torch.enable_grad():
                inner = kernel(z)
                ridge = 1e-8 * inner.detach().diagonal().mean()
                factor = cholesky(shifted(inner, ridge)).factor
                phi = torch.linalg.solve_triangular(factor, kernel(z, batch), upper=False)  # (m, b)
                values = torch.linalg.eigvalsh(phi @ phi.mT / size)
                loss = -values[-k:].square().sum() / values.detach()[-k:].square().sum()
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            schedule.step()
    except KeyboardInterrupt:
        _log.warning("landmarks: interrupted; the map keeps what was learned.")
    return z.detach()
