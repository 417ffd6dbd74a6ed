"""Kernel ridge regression on any kernel, as an estimator: the solver by its name, one solution."""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils.metadata_routing import UNUSED
from torch import Tensor

from .. import checks
from ..kernels import Kernel
from ..kernels.user_kernels import read_rows
from ..rows.agreement import share_generator
from ..rows.loading import Data
from ..rows.rows import Rows
from ..storage.savable import Savable
from .eigenpro import EigenPro
from .exact import Exact
from .landmarks import Landmarks, add_rows
from .selection import CHOOSING_ROWS, rank_kernels
from .solution import Solution
from .validation import TrainingRows, read_training

EXACT_ROWS = 5000
"""Rows up to which ``"auto"`` holds the Gram matrix."""

_PAIR = 30  # what one kernel value costs beside its features: an exponential, a product with the weights
_WORK = 2e12  # such operations in a pass over all pairs up to which ``"auto"`` uses every row: a minute of one core
_SOLVERS = ("auto", "exact", "landmarks", "eigenpro")


class KernelRidge(Savable, MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    r"""The f that minimises :math:`\sum_i w_i (y_i - f(x_i))^2 + \lambda |f|^2`; targets are centred by their mean.

    Use it for one kernel of your own, error bars and leave-one-out predictions; for a raw table take
    `mercer.tabular.TabularRegressor`.

    By the representer theorem :math:`f(x) = \bar y + \sum_i \alpha_i k(x_i, x)` with
    :math:`(K + \lambda W^{-1}) \alpha = y - \bar y`. The same numbers are the mean of a Gaussian process with
    covariance k and noise :math:`\lambda / w_i`, whose variance is :meth:`variance`. Without weights W is I. A row of
    weight 2 is two equal rows, but where leave-one-out chooses: of two equal rows it leaves out one.

    Args:
        kernel: k; None chooses kernel and bandwidth by leave-one-out on few rows.
        penalty: :math:`\lambda`, or ``"loo"``: the one of least leave-one-out error.
        solver: ``"exact"``: Cholesky factors of K, some thousand rows. ``"landmarks"``: f from m rows, fitted to all by
            sums over them, in parts and from files too. ``"eigenpro"``: all rows by preconditioned mini-batches, never
            a Gram matrix; when it stops is its regularisation. ``"auto"``: the one of least cost.
        landmarks: Number m of landmarks; None for a number that grows with the rows.
        random_state: Seed of subsets and landmarks; None for fresh randomness.

    Attributes:
        solution_: The solved machine, a torch module: anchors, weights, mean, penalty, left-out predictions.
        solver_: The solver in use.
        n_features_in_: Columns of the rows.
        feature_names_in_: Their names, where ``fit`` was given a frame with names that are strings.

    >>> import torch
    >>> from mercer.kernels import RBF
    >>> x = torch.linspace(0, 3, 40, dtype=torch.float64)[:, None]
    >>> machine = KernelRidge(RBF(1.0)).fit(x, x[:, 0].sin())
    >>> bool((machine.predict(x) - x[:, 0].sin()).abs().max() < 1e-3)
    True
    """

    solution_: Solution
    solver_: str
    flat_: bool
    from_tensor_: bool
    # The rows, which scikit-learn calls X, are no metadata.
    __metadata_request__fit = __metadata_request__partial_fit = __metadata_request__predict = {"x": UNUSED}  # noqa: RUF012

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        penalty: str | float = "loo",
        solver: str = "auto",
        landmarks: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.penalty = penalty
        self.solver = solver
        self.landmarks = landmarks
        self.random_state = random_state

    def fit(self, x: Data, y: Data | None = None, sample_weight: Any = None) -> Self:
        """Learn from rows ``(n, ...)`` and targets ``(n,)`` or ``(n, c)``, or from a loader of pairs.

        With several ranks, each passes its own rows; the attributes describe all rows. ``sample_weight`` ``(n,)`` is
        how much each row counts, 0 or more.
        """
        return self._learn(x, y, sample_weight, self.solver)

    def partial_fit(self, x: Data, y: Data | None = None, sample_weight: Any = None) -> Self:
        """Add rows, exactly: the weights afterwards are the ridge's of all rows so far.

        The first call chooses kernel, penalty and landmarks; later calls keep them. After an exact :meth:`fit` all rows
        so far are landmarks. ``loo_`` is None afterwards.
        """
        if not hasattr(self, "solution_"):
            return self._learn(x, y, sample_weight, "landmarks")
        with torch.no_grad():
            new = read_training(self, self.kernel_, x, y, sample_weight, reset=False)
            self.solution_ = add_rows(self.solution_, new.x, new.y, new.weight)
        self.solver_, self.from_tensor_ = "landmarks", isinstance(x, Tensor)
        return self

    def set_params(self, **params: Any) -> Self:
        """Set arguments; those of the kernel, as in ``kernel__gamma=2.0``, change a copy, not the fitted kernel."""
        if isinstance(self.kernel, Kernel) and any(name.startswith("kernel__") for name in params):
            self.kernel = copy.deepcopy(self.kernel)
        super().set_params(**params)
        return self

    def predict(self, x: Data) -> Any:
        """f(x), shaped like the targets: ``(n,)`` or ``(n, c)``; a tensor for a tensor, else an array."""
        rows = self._read_rows(x)
        with torch.no_grad():
            out = self.solution_(rows)
        return self._answer(x, rows, self._flatten(out))

    def variance(self, x: Data) -> Any:
        r"""Posterior variance over the prior's: :math:`1 - k_x^T (K + \lambda I)^{-1} k_x / k(x, x)`, ``(n,)``.

        In 0..1: 1 far from all rows, near 0 among many rows, and 0 where k(x, x) is 0. With landmarks it is the
        variance of the deterministic training conditional. After ``"eigenpro"`` it is an upper bound, computed from
        2,000 of the rows and a penalty of at least 1e-3 of k(x, x).
        """
        rows = self._read_rows(x)
        with torch.no_grad():
            variance = (1 - self.solution_.explain_variance(rows)).clamp(0, 1)
        return self._answer(x, rows, variance)

    @property
    def kernel_(self) -> Kernel:
        """The kernel in use."""
        return self.solution_.kernel

    @property
    def penalty_(self) -> float:
        """The penalty in use."""
        return self.solution_.penalty

    @property
    def residual_(self) -> float:
        """Relative residual of the linear system that was solved."""
        return self.solution_.residual

    @property
    def anchors_(self) -> Tensor:
        """Rows that carry weights, ``(m, ...)``."""
        return self.solution_.anchors

    @property
    def weights_(self) -> Tensor:
        """Their weights, ``(m, c)``."""
        return self.solution_.weights

    @property
    def loo_(self) -> Any:
        """Leave-one-out predictions, shaped like y, where the solver has them; else None.

        With ``"exact"`` and a fixed penalty they are computed when first asked for, at the cost of another fit.
        """
        self._check_fitted()
        with torch.no_grad():
            left_out = self.solution_.predict_left_out()
        if left_out is None:
            return None
        left_out = self._flatten(left_out)
        return left_out if self.from_tensor_ else left_out.cpu().numpy()

    def to(self, device: torch.device | str) -> Self:
        """Move the kernel and what was learned to a device, in place. Later rows must be on that device, too."""
        if self.kernel is not None:
            self.kernel.to(device)
        if hasattr(self, "solution_"):
            self.solution_.to(device)
        return self

    def _learn(self, x: Data, y: Data | None, sample_weight: Any, name: str) -> Self:
        self._check_arguments()
        with torch.no_grad():
            data = read_training(self, self.kernel, x, y, sample_weight, reset=True)
            generator = share_generator(seeded(self.random_state))
            kernel = self._choose(data, generator) if self.kernel is None else self.kernel
            if name == "auto":
                name = "landmarks"
                if self.landmarks is None and isinstance(data.x, Tensor):
                    name = cheapest_solver(Rows(data.x).n, data.x[:1].numel())
            penalty = None if isinstance(self.penalty, str) else float(self.penalty)
            solver: Exact | Landmarks | EigenPro = Exact(penalty)
            if name == "landmarks":
                solver = Landmarks(self.landmarks, penalty, generator)
            if name == "eigenpro":
                solver = EigenPro(penalty, generator=generator)
            self.solution_ = solver.solve(kernel, data.x, data.y, data.weight)
        self.solver_, self.flat_, self.from_tensor_ = name, data.flat, isinstance(x, Tensor)
        return self

    def _choose(self, data: TrainingRows, generator: torch.Generator | None) -> Kernel:
        rows = Rows(data.x, data.y)
        order = torch.randperm(rows.n, generator=generator)[:CHOOSING_ROWS].to(data.y.device)
        x, y = rows.take(order)
        weight = None if data.weight is None else Rows(data.weight).take(order)
        return rank_kernels(x.double(), y, weight=weight)[0].kernel

    def _read_rows(self, x: Data) -> Tensor:
        self._check_fitted()
        return read_rows(self, self.kernel_, x, reset=False)[:]

    def _flatten(self, out: Tensor) -> Tensor:  # (n, c) -> (n,) or (n, c), as the targets came
        return out[:, 0] if self.flat_ else out

    def _answer(self, x: Data, rows: Tensor, out: Tensor) -> Any:
        """A tensor in the rows' dtype for a tensor, else an array."""
        if not isinstance(x, Tensor):
            return out.numpy()
        return out.to(rows.dtype) if rows.is_floating_point() else out

    def _check_fitted(self) -> None:
        if not hasattr(self, "solution_"):
            raise NotFittedError(checks.sentence("KernelRidge", "must be fitted first", "no fit", "Call fit(x, y)."))

    def _check_arguments(self) -> None:
        where = "KernelRidge"
        checks.choice(where, "solver", self.solver, _SOLVERS)
        if self.kernel is not None and not isinstance(self.kernel, Kernel):
            need, fix = "kernel must be a kernel of mercer.kernels", "Use FunctionKernel(f) for a function of (x, y)."
            raise TypeError(checks.sentence(where, need, type(self.kernel).__name__, fix))
        if isinstance(self.penalty, str):
            checks.choice(where, "penalty", self.penalty, ("loo",))
        else:
            checks.non_negative(where, "penalty", self.penalty)
        if self.landmarks is not None:
            checks.integer(where, "landmarks", self.landmarks, 1)


def cheapest_solver(n: int, d: int) -> str:
    """For n rows of d numbers in memory: a Gram matrix, every row by mini-batches, or landmarks."""
    if n <= EXACT_ROWS:
        return "exact"
    return "eigenpro" if n**2 * (d + _PAIR) <= _WORK else "landmarks"


def seeded(random_state: Any) -> torch.Generator:
    """A torch generator from scikit-learn's ``random_state``."""
    return torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
