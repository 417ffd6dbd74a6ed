"""Kernel ridge regression on any kernel, as an estimator: three solvers, one machine."""

from __future__ import annotations

from typing import Any, Self

import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from torch import Tensor

from .. import checks
from ..distributed import gather_rows, global_slice, shard, shared_generator, sum_over_ranks, take_rows
from ..kernels import Kernel
from ..linalg import block_rows, cholesky, slices
from ..modules import Data, Readable
from ..storage import Savable
from .dual import dual_fit, tune_penalty
from .eigenpro import eigenpro
from .landmarks import LandmarkMachine, LandmarkSolution, landmark_count, landmark_machine
from .selection import CHOOSING_ROWS, choose_kernel
from .validation import checked_rows, checked_training

EXACT_ROWS = 5000
"""Rows up to which ``"auto"`` holds the Gram matrix."""

_PAIR = 30  # what one kernel value costs beside its features: an exponential, a product with the weights
_WORK = 2e12  # such operations in a pass over all pairs up to which ``"auto"`` uses every row: a minute of one core
_VARIANCE_ROWS, _VARIANCE_PENALTY = 2000, 1e-3  # of ``"eigenpro"``, which has neither factor nor penalty
_SOLVERS = ("auto", "exact", "landmarks", "eigenpro")


class KernelRidge(Savable, MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    r"""The f that minimises :math:`\|y - f\|^2 + \lambda |f|^2`; targets are centred by their mean.

    By the representer theorem :math:`f(x) = \bar y + \sum_i \alpha_i k(x_i, x)` with
    :math:`(K + \lambda I) \alpha = y - \bar y`. The same numbers are the mean of a Gaussian process with covariance k
    and noise :math:`\lambda`, whose variance is :meth:`variance`.

    Args:
        kernel: k; None chooses kernel and bandwidth by leave-one-out on few rows.
        penalty: :math:`\lambda`, or ``"loo"``: the one of least leave-one-out error.
        solver: ``"exact"``: Cholesky factors of K, some thousand rows. ``"landmarks"``: f from m rows, fitted to all by
            sums over them, in parts and from files too. ``"eigenpro"``: all rows by preconditioned mini-batches, never
            a Gram matrix; when it stops is its regularisation. ``"auto"``: the one of least cost.
        landmarks: Number m of landmarks; None for a number that grows with the rows.
        random_state: Seed of subsets and landmarks.

    Attributes:
        kernel_: The kernel in use.
        penalty_: :math:`\lambda` in use.
        solver_: The solver in use.
        residual_: Relative residual of the linear system that was solved.
        loo_: Leave-one-out predictions, shaped like y, where the solver has them; else None.
        anchors_: Rows that carry weights, ``(m, ...)``.
        weights_: :math:`\alpha`, ``(m, c)``.

    >>> import torch
    >>> from mercer.kernels import RBF
    >>> x = torch.linspace(0, 3, 40, dtype=torch.float64)[:, None]
    >>> machine = KernelRidge(RBF(1.0)).fit(x, x[:, 0].sin())
    >>> bool((machine.predict(x) - x[:, 0].sin()).abs().max() < 1e-3)
    True
    """

    kernel_: Kernel
    penalty_: float
    solver_: str
    residual_: float
    loo_: Any
    held_out_: tuple[Tensor, Tensor] | None
    machine_: LandmarkMachine | None
    anchors_: Tensor
    weights_: Tensor
    mean_: Tensor
    flat_: bool

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

    def fit(self, x: Data, y: Data | None = None) -> Self:
        """Learn from rows ``(n, ...)`` and targets ``(n,)`` or ``(n, c)``, or from a loader of pairs.

        With several ranks, each passes its own rows; the attributes describe all rows.
        """
        return self._learn(x, y, self.solver)

    def partial_fit(self, x: Data, y: Data | None = None) -> Self:
        """Add rows, exactly: the weights afterwards are the ridge's of all rows so far.

        The first call chooses kernel, penalty and landmarks; later calls keep them. After an exact :meth:`fit` all rows
        so far are landmarks. ``loo_`` is None afterwards.
        """
        if not hasattr(self, "weights_"):
            return self._learn(x, y, "landmarks")
        with torch.no_grad():
            data, targets, _ = checked_training("KernelRidge", self.kernel_, x, y)
            machine = self.machine_ if self.machine_ is not None else self._as_landmarks()
            self._take(machine.add(self.kernel_, data, targets), self.penalty_)
        self._finish("landmarks", isinstance(x, Tensor))
        return self

    def predict(self, x: Data) -> Any:
        """f(x), shaped like the targets: ``(n,)`` or ``(n, c)``; a tensor for a tensor, else an array."""
        rows = self._rows_at(x)
        with torch.no_grad():
            out = self.kernel_.matmul(rows.to(self._dtype(rows)), self._anchors(), self.weights_) + self.mean_
        out = out[:, 0] if self.flat_ else out
        return self._like(x, rows, out)

    def variance(self, x: Data) -> Any:
        r"""Posterior variance over the prior's: :math:`1 - k_x^T (K + \lambda I)^{-1} k_x / k(x, x)`, ``(n,)``.

        In 0..1: 1 far from all rows, near 0 among many rows, and 0 where k(x, x) is 0. With landmarks it is the
        variance of the deterministic training conditional. After ``"eigenpro"`` it is an upper bound, computed from
        2,000 of the rows and a penalty of at least 1e-3 of k(x, x).
        """
        rows = self._rows_at(x)
        with torch.no_grad():
            data = rows.to(self._dtype(rows))
            if self.machine_ is not None:
                share = self.machine_.known_share(self.kernel_, self._known_root(self.machine_), data)
            else:
                parts = slices(len(data), block_rows(24 * len(self.anchors_)))
                share = torch.cat([self._known_share(data[part]) for part in parts])
        return self._like(x, rows, (1 - share).clamp(0, 1))

    def to(self, device: torch.device | str) -> Self:
        """Move the kernel and what was learned to a device, in place. Later rows must be on that device, too."""
        for kernel in (self.kernel, getattr(self, "kernel_", None)):
            if kernel is not None:
                kernel.to(device)
        if hasattr(self, "weights_"):
            self.__dict__.pop("_factor", None)
            self.anchors_, self.weights_, self.mean_ = (
                part.to(device) for part in (self.anchors_, self.weights_, self.mean_)
            )
            if self.machine_ is not None:
                self.machine_ = self.machine_.to(device)
        return self

    def held_out(self) -> tuple[Tensor, Tensor]:
        """Numbers of training rows, and predictions ``(v, c)`` of them by fits that did not see them.

        All rows by leave-one-out, or the rows that told ``"eigenpro"`` when to stop.
        """
        if self.held_out_ is not None:
            return self.held_out_
        if not hasattr(self, "loo_") or self.loo_ is None:
            need = "held-out predictions need a fit to rows in memory"
            raise ValueError(checks.sentence("KernelRidge", need, "none", "Call fit(x, y) with tensors or arrays."))
        found = torch.as_tensor(self.loo_)
        return torch.arange(len(found)), found[:, None] if self.flat_ else found

    def _learn(self, x: Data, y: Data | None, solver: str) -> Self:
        self._check_arguments()
        with torch.no_grad():
            data, targets, self.flat_ = checked_training("KernelRidge", self.kernel, x, y)
            generator = shared_generator(seeded(self.random_state))
            self.kernel_ = self._choose(data, targets, generator) if self.kernel is None else self.kernel
            if solver == "auto":
                held = self.landmarks is None and isinstance(data, Tensor)
                solver = cheapest_solver(global_slice(len(data))[1], data[:1].numel()) if held else "landmarks"
            self.machine_, self.held_out_, self.loo_ = None, None, None
            if solver == "exact":
                self._fit_exact(gather_rows(data[:]), gather_rows(targets))
            elif solver == "landmarks":
                self._fit_landmarks(data, targets, generator)
            else:
                self._fit_eigenpro(data[:], targets, generator)
        self._finish(solver, isinstance(x, Tensor))
        return self

    def _fit_exact(self, x: Tensor, y: Tensor) -> None:
        checks.memory(
            "KernelRidge",
            f"the Gram matrix of {len(x)} rows",
            4 * len(x) ** 2 * 8,
            "Use solver='landmarks' or 'eigenpro'.",
        )
        gram = self.kernel_(x.double() if x.is_floating_point() else x).double()
        fit = tune_penalty(gram, y) if isinstance(self.penalty, str) else dual_fit(gram, y, float(self.penalty))
        self.anchors_, self.weights_, self.mean_ = x, fit.weights, fit.mean
        self.penalty_ = fit.penalty
        self.loo_ = fit.held_out if len(x) > 1 else None
        centred = y - fit.mean
        left = gram @ fit.weights + fit.penalty * fit.weights - centred
        self.residual_ = _relative(left, centred)

    def _fit_landmarks(self, x: Readable, y: Tensor, generator: torch.Generator | None) -> None:
        m = landmark_count(global_slice(len(x))[1], self.landmarks)
        checks.memory("KernelRidge", f"{m} landmarks", 6 * m * m * 8, "Give fewer landmarks.")
        penalty = None if isinstance(self.penalty, str) else float(self.penalty)
        machine, solution = landmark_machine(self.kernel_, x, y, m, penalty, generator)
        self._take(machine, solution.penalty, solution)
        if isinstance(x, Tensor):  # rows in a file would be read once more
            found = [machine.held_out(solution, phi, y[part]) for part, phi in machine.features(self.kernel_, x)]
            self.loo_ = gather_rows(torch.cat([*found, y[:0]])) if machine.n > 1 else None

    def _fit_eigenpro(self, x: Tensor, y: Tensor, generator: torch.Generator | None) -> None:
        self.mean_ = sum_over_ranks(y.sum(0)) / global_slice(len(x))[1]
        penalty = None if isinstance(self.penalty, str) else float(self.penalty)
        fit = eigenpro(self.kernel_, x, y - self.mean_, penalty=penalty, generator=generator)
        self.anchors_, self.weights_ = gather_rows(x), gather_rows(fit.weights)
        self.penalty_, self.residual_ = penalty or 0.0, fit.residual
        if len(fit.rows):
            self.held_out_ = (fit.rows, fit.held_out + self.mean_.to(fit.held_out))

    def _take(self, machine: LandmarkMachine, penalty: float, solution: LandmarkSolution | None = None) -> None:
        solution = machine.solve(penalty) if solution is None else solution
        left = machine.second @ solution.coefficients + penalty * solution.coefficients - solution.right
        self.machine_, self.penalty_, self.residual_ = machine, penalty, _relative(left, solution.right)
        self.anchors_, self.mean_ = machine.landmarks, machine.mean
        self.weights_, self.loo_ = machine.whitener @ solution.coefficients[:, :-1], None

    def _as_landmarks(self) -> LandmarkMachine:
        """The exact machine's rows as landmarks: its system gives their targets back."""
        gram = self.kernel_(self._anchors()).to(self.weights_)
        known = gram @ self.weights_ + self.penalty_ * self.weights_ + self.mean_
        own = shard(len(known))  # every rank holds all rows
        machine = LandmarkMachine.at(self.kernel_, self.anchors_, known.shape[1])
        return machine.add(self.kernel_, self.anchors_[own], known[own].double())

    def _choose(self, x: Readable, y: Tensor, generator: torch.Generator | None) -> Kernel:
        order = torch.randperm(global_slice(len(x))[1], generator=generator)[:CHOOSING_ROWS].to(y.device)
        return choose_kernel(take_rows(x, order).double(), take_rows(y, order)).kernel

    def _finish(self, solver: str, tensor: bool) -> None:
        self.solver_ = solver
        self.__dict__.pop("_factor", None)
        if self.loo_ is not None:
            found = self.loo_[:, 0] if self.flat_ else self.loo_
            self.loo_ = found if tensor else found.cpu().numpy()

    def _known_share(self, rows: Tensor) -> Tensor:  # (r, ...) -> (r,)
        """Share of the prior variance that the training rows explain."""
        cross = self.kernel_(self._conditioned(), rows.to(self._dtype(rows, torch.float64))).double()
        half = torch.linalg.solve_triangular(self._system_factor(), cross, upper=False)
        prior = self.kernel_.diag(rows).to(half)
        return torch.where(prior > 0, half.square().sum(0) / prior.where(prior > 0, torch.ones_like(prior)), 1.0)

    def _system_factor(self) -> Tensor:
        """Cholesky factor of the system, made when first asked for: it is n x n, and not saved."""
        if "_factor" not in self.__dict__:
            gram = self.kernel_(self._conditioned()).double()
            least = _VARIANCE_PENALTY * float(gram.diagonal().mean()) if self.solver_ == "eigenpro" else 0.0
            gram.diagonal().add_(max(self.penalty_, least))
            self.__dict__["_factor"] = cholesky(gram, where="KernelRidge").factor
        factor: Tensor = self.__dict__["_factor"]
        return factor

    def _known_root(self, machine: LandmarkMachine) -> Tensor:
        """What :meth:`variance` needs of the landmarks, made when first asked for, and not saved."""
        held = self.__dict__.get("_root")
        if held is None or held[0] is not machine.second or held[1] != self.penalty_:
            held = self.__dict__["_root"] = (machine.second, self.penalty_, machine.known_root(self.penalty_))
        root: Tensor = held[2]
        return root

    def _conditioned(self) -> Tensor:
        """The rows that the variance knows of: all, or 2,000 of those that ``"eigenpro"`` used."""
        anchors = self.anchors_
        if self.solver_ == "eigenpro":
            few = min(len(anchors), _VARIANCE_ROWS)
            anchors = anchors[torch.linspace(0, len(anchors) - 1, few, device=anchors.device).round().long()]
        return anchors.to(self._dtype(anchors, torch.float64))

    def _anchors(self) -> Tensor:
        return self.anchors_.to(self._dtype(self.anchors_))

    def _dtype(self, rows: Tensor, dtype: torch.dtype | None = None) -> torch.dtype:
        """Weights alternate in sign and may be large, so kernels are computed in the dtype the weights have."""
        return (dtype or self.weights_.dtype) if rows.is_floating_point() else rows.dtype

    def _rows_at(self, x: Data) -> Tensor:
        if not hasattr(self, "weights_"):
            need, fix = "must be fitted first", "Call fit(x, y)."
            raise NotFittedError(checks.sentence("KernelRidge", need, "no fit", fix))
        rows = checked_rows("KernelRidge", self.kernel_, x)[:]
        if rows.ndim == 2 and rows.shape[1] != self.anchors_.shape[1]:
            need = f"x has {rows.shape[1]} features, expecting {self.anchors_.shape[1]}"
            raise ValueError(checks.sentence("KernelRidge", need, tuple(rows.shape)))
        return rows

    def _like(self, x: Data, rows: Tensor, out: Tensor) -> Any:
        if isinstance(x, Tensor):
            return out.to(rows.dtype) if rows.is_floating_point() else out
        return out.numpy()

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

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_factor", None)
        return state


def cheapest_solver(n: int, d: int) -> str:
    """For n rows of d numbers in memory: a Gram matrix, every row by mini-batches, or landmarks."""
    if n <= EXACT_ROWS:
        return "exact"
    return "eigenpro" if n**2 * (d + _PAIR) <= _WORK else "landmarks"


def _relative(left: Tensor, right: Tensor) -> float:
    size = float(right.norm())
    return float(left.norm()) / size if size > 0 else float(left.norm())


def seeded(random_state: Any) -> torch.Generator:
    """A torch generator from scikit-learn's ``random_state``."""
    return torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
