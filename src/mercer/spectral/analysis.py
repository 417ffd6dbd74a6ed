"""`analyze`: a kernel, rows and targets in, a `Spectrum` out."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from .. import checks
from ..kernels import Kernel, Precomputed, ReLUGram
from ..kernels.functionals import sign_columns
from ..kernels.user_kernels import check_indices
from ..rows.agreement import has_several_ranks, map_shared_rows, unite_values
from ..rows.loading import Data, load_labelled_rows, load_rows
from ..rows.rows import Rows
from .gram_matrices import gram_matrices, read_matrix
from .spectrum import Factor, Proof, Spectrum, proof

DEFAULT_K = 50
_SMALLEST = 1e-140


def analyze(
    kernel: Kernel | nn.Module | Tensor,
    x: Data,
    targets: ArrayLike | Tensor | None = None,
    *,
    k: int = DEFAULT_K,
    floor: float | None = None,
    storage: str = "auto",
    tolerance: float = 1e-8,
    dense_rows: int | None = None,
    max_products: int = 1000,
) -> Spectrum:
    r"""Read targets by the spectrum of H: how fast a network learns them, and how well it generalizes.

    Args:
        kernel: H itself: a kernel of the library such as ``ReLUGram()``. A feature map stands for the
            two-layer network on top of it, ``ReLUGram(map)``. A Gram matrix ``(n, n)`` is taken with indices
            for ``x``.
        x: Rows, ``(n, d)``, or what the kernel takes; or a ``DataLoader``, whose first element is the rows
            and, where ``targets`` is None, whose second is the targets. With several ranks, each passes its rows and
            targets; H is held and multiplied in shares, so that all ranks must ask the spectrum for the same numbers.
        targets: Floating ``(n,)`` or ``(n, c)``, used as they are; whole-number classes ``(n,)`` become one
            -1/+1 column each (two classes: one column, +1 for the larger), as do names and booleans.
        k: Number of eigenvalues; at most n, with a warning if you asked for more.
        floor: A lower bound on the least eigenvalue, where one is known; for ``ReLUGram`` one is proved.
        storage: ``"float64"``, ``"float32"`` or ``"int16"`` tiles of the upper triangle; ``"auto"`` takes the
            finest that fits half of the free memory. The memory is logged before it is taken.
        tolerance: Relative accuracy of ``.complexity``.
        dense_rows: Number of rows up to which the complexity comes from a Cholesky factor; None: while that is cheaper.
        max_products: Largest number of products with H in one Lanczos process.

    Example:
        >>> import torch
        >>> from mercer.kernels import ReLUGram
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> spectrum = analyze(ReLUGram(), x, torch.tensor([1.0, -1.0]))
        >>> round(spectrum.complexity, 6)  # H is half the identity
        4.0
    """
    # Rows and targets of all ranks, and the numbers checked.
    where = "analyze"
    x, targets = gather(where, x, targets)
    k = check_k(where, k, len(x))
    columns = target_columns(where, targets, len(x)).to(x.device)
    if floor is not None:
        checks.positive(where, "floor", floor)
    checks.positive(where, "tolerance", tolerance)
    checks.integer(where, "max_products", max_products, 1)

    # H: the user's matrix at the rows' indices, or the kernel on the rows, with a floor under its eigenvalues.
    if isinstance(kernel, Tensor):
        matrix = _check_symmetric(where, kernel)
        indices = _Indices(matrix)
        gram = read_matrix(where, matrix, check_indices(where, indices, indices.prepare("x", x)), storage)
        bound: float | Proof | None = floor
    else:
        kernel, points = resolve(where, kernel, x)
        gram = gram_matrices(where, [kernel], points, storage)[0]
        bound = floor or proof(kernel, points, gram)
    factor = Factor(gram, tolerance, dense_rows)
    return Spectrum(gram, columns, k=k, floor=bound, tolerance=tolerance, factor=factor, max_products=max_products)


def resolve(where: str, kernel: object, x: Tensor) -> tuple[Kernel, Tensor]:
    """The kernel that is H and the float64 rows it reads: a map's features are computed once, here."""
    # ReLUGram(map) is the network on top of the map: compute the map's features once.
    if isinstance(kernel, ReLUGram) and kernel.base is not None and not isinstance(kernel.base, Kernel):
        kernel = kernel.base
    if isinstance(kernel, Kernel):
        points = kernel.prepare("x", x)
        if not points.is_floating_point():
            return kernel, check_indices(where, kernel, points)
        return kernel, checks.squarable(where, "x", points.double())
    if not isinstance(kernel, nn.Module):
        need = "kernel must be a kernel, a feature map or a Gram matrix"
        raise TypeError(checks.sentence(where, need, type(kernel).__name__))
    with torch.no_grad():
        features = checks.matrix(where, "features", map_shared_rows(kernel, x)).double()
    return ReLUGram(), checks.squarable(where, "features", features)


def gather(where: str, x: Data, targets: ArrayLike | Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows and targets of all ranks as tensors, out of a loader where one was given."""
    if isinstance(x, Tensor):
        x = x.detach()  # the indices of a Gram matrix stay whole numbers
    elif targets is None:
        x, targets = load_labelled_rows(where, x)
    else:
        x = load_rows(where, x)
    if targets is None:
        raise ValueError(checks.sentence(where, "targets must be given with a tensor x", "None"))
    if x.ndim == 0 or Rows(x).n == 0:
        raise ValueError(checks.sentence(where, "x must have at least one row", tuple(x.shape)))
    if isinstance(targets, Tensor):
        y = targets.detach()
    else:
        y = _read_targets(where, targets)
    if has_several_ranks() and (y.ndim not in (1, 2) or len(y) != len(x)):
        need = f"targets must have as many rows as x on each rank, {len(x)}"
        raise ValueError(checks.sentence(where, need, tuple(y.shape)))
    return Rows(x).gather(), Rows(y).gather()


def _read_targets(where: str, targets: ArrayLike) -> Tensor:
    """Targets out of an array or a list; names become the numbers of their classes, in sorted order."""
    array = np.asarray(targets)
    if array.dtype.kind == "O":  # objects: numbers are numbers, names names
        array = np.array(array.tolist())
    if array.dtype.kind in "US":
        names = unite_values(np.unique(array).tolist())
        if len(names) == 1:
            raise ValueError(checks.sentence(where, "targets must hold at least two classes", f"only {names[0]}"))
        return torch.as_tensor(np.searchsorted(np.array(names), array).reshape(array.shape))
    if array.dtype.kind not in "biuf":
        need = "targets must be numbers or names of classes"
        raise TypeError(checks.sentence(where, need, f"{type(targets).__name__} of {array.dtype}"))
    return torch.as_tensor(np.array(array))


def target_columns(where: str, targets: Tensor, n: int) -> Tensor:  # (n,) or (n, c) -> (n, c)
    """Targets as float64 columns, with what cannot be read refused."""
    if targets.ndim not in (1, 2) or len(targets) != n:
        raise ValueError(checks.sentence(where, f"targets must have shape ({n},) or ({n}, c)", tuple(targets.shape)))
    if targets.is_complex():
        raise TypeError(checks.sentence(where, "targets must be real", targets.dtype, "Use targets.real."))
    if targets.is_floating_point():
        checks.finite(where, "targets", targets)
        # Their squares must be numbers, because projections and complexity are sums of squares.
        largest = float(targets.abs().max())
        if largest == 0:
            raise ValueError(checks.sentence(where, "targets must not all be 0", "zeros"))
        if not _SMALLEST <= largest <= 1 / _SMALLEST:
            need = f"the largest target must be in {_SMALLEST:g}..{1 / _SMALLEST:g}, so that its square is a number"
            raise ValueError(checks.sentence(where, need, f"{largest:.1e}", "Divide the targets by it."))
        return sign_columns(targets).double()
    if targets.ndim == 2 and targets.shape[1] != 1:
        fix = "Use targets.double() for columns of numbers."
        raise ValueError(checks.sentence(where, f"classes must have shape ({n},)", tuple(targets.shape), fix))
    if targets.ndim == 2:
        from sklearn.exceptions import DataConversionWarning

        message = f"{where}: classes in a column of shape {tuple(targets.shape)} were read as ({n},)."
        warnings.warn(message, DataConversionWarning, stacklevel=3)
    # Classes: at least two, as columns of -1 and +1.
    targets = targets.reshape(-1).long()
    if int(targets.min()) == int(targets.max()):
        raise ValueError(checks.sentence(where, "targets must hold at least two classes", f"only {int(targets[0])}"))
    return sign_columns(targets).double()


def check_k(where: str, k: int, n: int) -> int:
    """At most n eigenvalues, with a warning where the user wants more."""
    checks.integer(where, "k", k, 1)
    if n < k != DEFAULT_K:
        checks.warn(where, f"k = {k} is more than the {n} rows of x; reduced to {n}.", stacklevel=4)
    return min(k, n)


class _Indices(Precomputed):
    """The index checks of :class:`Precomputed` for a matrix that is not to be copied."""

    def __init__(self, matrix: Tensor) -> None:
        Kernel.__init__(self)
        self.register_buffer("matrix", matrix)


def _check_symmetric(where: str, matrix: Tensor) -> Tensor:
    """A Gram matrix that passed: square, finite, symmetric."""
    matrix = checks.floating(checks.matrix(where, "kernel", matrix.detach()))
    if matrix.shape[0] != matrix.shape[1]:
        fix = "Pass embeddings as x, with ReLUGram() as the kernel."
        raise ValueError(checks.sentence(where, "a Gram matrix must have shape (n, n)", tuple(matrix.shape), fix))
    # One random product with H and one with its transpose show a difference; NaN and infinity reach the first.
    fixed = torch.Generator(device=matrix.device).manual_seed(0)
    probe = torch.randn(len(matrix), dtype=matrix.dtype, device=matrix.device, generator=fixed)
    product = matrix @ probe
    if not bool(product.isfinite().all()):
        checks.finite(where, "kernel", matrix)
    gap = float((product - matrix.mT @ probe).abs().max())
    if gap > 1e-5 * float(matrix.diagonal().abs().max()) * len(matrix) ** 0.5:
        fix = "Use (gram + gram.T) / 2 if the difference is noise."
        raise ValueError(checks.sentence(where, "the Gram matrix must be symmetric", f"a gap of {gap:.1e}", fix))
    return matrix
