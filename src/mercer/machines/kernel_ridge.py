"""Kernel ridge regression on any kernel, as an estimator: three solvers, one machine."""

from __future__ import annotations

import copy
import functools
from typing import Any, Self

import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils.metadata_routing import UNUSED
from torch import Tensor

from .. import checks
from ..distributed import gather_rows, global_slice, shard, shared_generator, sum_over_ranks, take_rows
from ..kernels import FunctionKernel, Kernel
from ..kernels.reading import read_rows
from ..linalg.blocks import block_rows, slices
from ..linalg.cholesky import cholesky_in_place, inverse_diagonal, solve_factored
from ..rows.loading import Data
from ..storage.savable import Savable
from .dual import left_out, relative_norm, solve_in_place, tune_penalty
from .eigenpro import eigenpro
from .landmarks import LandmarkMachine, LandmarkSolution, landmark_count, landmark_machine
from .selection import CHOOSING_ROWS, choose_kernel
from .validation import TrainingRows, read_training

EXACT_ROWS = 5000
"""Rows up to which ``"auto"`` holds the Gram matrix."""

_PAIR = 30  # what one kernel value costs beside its features: an exponential, a product with the weights
_WORK = 2e12  # such operations in a pass over all pairs up to which ``"auto"`` uses every row: a minute of one core
_VARIANCE_ROWS, _VARIANCE_PENALTY = 2000, 1e-3  # of ``"eigenpro"``, which has neither factor nor penalty
_SOLVERS = ("auto", "exact", "landmarks", "eigenpro")


class KernelRidge(Savable, MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    r"""The f that minimises :math:`\sum_i w_i (y_i - f(x_i))^2 + \lambda |f|^2`; targets are centred by their mean.

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
        kernel_: The kernel in use.
        penalty_: :math:`\lambda` in use.
        solver_: The solver in use.
        residual_: Relative residual of the linear system that was solved.
        n_features_in_: Columns of the rows.
        feature_names_in_: Their names, where ``fit`` was given a frame with names that are strings.
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
    held_out_: tuple[Tensor, Tensor] | None
    machine_: LandmarkMachine | None
    anchors_: Tensor
    weights_: Tensor
    mean_: Tensor
    flat_: bool
    from_tensor_: bool
    scale_: Tensor | None = None  # (n,): square roots of the anchors' weights; None for 1
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
        if not hasattr(self, "weights_"):
            return self._learn(x, y, sample_weight, "landmarks")
        with torch.no_grad():
            new = read_training(self, self.kernel_, x, y, sample_weight, reset=False)
            machine = self.machine_ if self.machine_ is not None else self._as_landmarks()
            self._take(machine.add(self.kernel_, new.x, new.y, new.weight), self.penalty_)
        self._finish("landmarks", isinstance(x, Tensor))
        return self

    def set_params(self, **params: Any) -> Self:
        """Set arguments; those of the kernel, as in ``kernel__gamma=2.0``, change a copy, not the fitted kernel."""
        if isinstance(self.kernel, Kernel) and any(name.startswith("kernel__") for name in params):
            self.kernel = copy.deepcopy(self.kernel)
        super().set_params(**params)
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

    @functools.cached_property
    def loo_(self) -> Any:
        """Leave-one-out predictions, shaped like y, where the solver has them; else None.

        With ``"exact"`` and a fixed penalty they are computed when first asked for, at the cost of another fit.
        """
        if not hasattr(self, "weights_"):
            raise NotFittedError(checks.sentence("KernelRidge", "must be fitted first", "no fit", "Call fit(x, y)."))
        if self.solver_ != "exact" or len(self.anchors_) == 1:
            return None
        with torch.no_grad():
            # With A = L L^T: alpha = S A^-1 S (y - mean), so that y is S^-1 A S^-1 alpha + mean.
            factor = torch.tril(self._system_factor())
            root = self.weights_.new_ones(len(factor)) if self.scale_ is None else self.scale_
            safe = torch.where(root > 0, root, 1.0)[:, None]
            solved = self.weights_ / safe
            y = factor @ (factor.mT @ solved) / safe + self.mean_
            ones = solve_factored(factor, root[:, None])
            found = left_out(torch.cat((solved, ones), 1), inverse_diagonal(factor), y, root.square())
            found = self._with_unweighted(found)
        found = found[:, 0] if self.flat_ else found
        return found if self.from_tensor_ else found.cpu().numpy()

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
            self.scale_ = None if self.scale_ is None else self.scale_.to(device)
            if self.machine_ is not None:
                self.machine_ = self.machine_.to(device)
        return self

    def held_out(self) -> tuple[Tensor, Tensor]:
        """Numbers of training rows, and predictions ``(v, c)`` of them by fits that did not see them.

        All rows by leave-one-out, or the rows that told ``"eigenpro"`` when to stop.
        """
        if self.held_out_ is not None:
            return self.held_out_
        if self.loo_ is None:
            need = "held-out predictions need a fit to rows in memory"
            raise ValueError(checks.sentence("KernelRidge", need, "none", "Call fit(x, y) with tensors or arrays."))
        found = torch.as_tensor(self.loo_)
        return torch.arange(len(found)), found[:, None] if self.flat_ else found

    def _learn(self, x: Data, y: Data | None, sample_weight: Any, solver: str) -> Self:
        self._check_arguments()
        with torch.no_grad():
            training = read_training(self, self.kernel, x, y, sample_weight, reset=True)
            data, self.flat_ = training.x, training.flat
            generator = shared_generator(seeded(self.random_state))
            self.kernel_ = self._choose(training, generator) if self.kernel is None else self.kernel
            if solver == "auto":
                held = self.landmarks is None and isinstance(data, Tensor)
                solver = cheapest_solver(global_slice(len(data))[1], data[:1].numel()) if held else "landmarks"
            self.machine_, self.held_out_, self.scale_ = None, None, None
            self.__dict__.pop("loo_", None)
            if solver == "exact":
                self._fit_exact(training)
            elif solver == "landmarks":
                self._fit_landmarks(training, generator)
            else:
                self._fit_eigenpro(training, generator)
        self._finish(solver, isinstance(x, Tensor))
        return self

    def _fit_exact(self, training: TrainingRows) -> None:
        x, y = gather_rows(training.x[:]), gather_rows(training.y)
        weight = None if training.weight is None else gather_rows(training.weight)
        fixed = not isinstance(self.penalty, str)
        fix = "Use solver='landmarks' or 'eigenpro'."
        copies = 1.2 if fixed else 4  # a fixed penalty is solved in the memory of the Gram matrix
        checks.memory("KernelRidge", f"the Gram matrix of {len(x)} rows", int(copies * len(x) ** 2 * 8), fix)
        gram = self._fresh_gram(x.double() if x.is_floating_point() else x)
        self.anchors_, self.scale_ = x, None if weight is None else weight.sqrt()
        if fixed:
            solution = solve_in_place(gram, y, float(self.penalty), weight)
            self.weights_, self.mean_, self.penalty_, self.residual_ = solution
            return
        fit = tune_penalty(gram, y, weight=weight)
        self.weights_, self.mean_, self.penalty_ = fit.weights, fit.mean, fit.penalty
        self.loo_ = self._with_unweighted(fit.held_out) if len(x) > 1 else None
        noise = fit.penalty * fit.weights if weight is None else fit.penalty * fit.weights / weight[:, None]
        left = (gram @ fit.weights + noise - (y - fit.mean)).nan_to_num(0.0)  # rows of weight 0 are no equations
        self.residual_ = relative_norm(left, y - fit.mean)

    def _fit_landmarks(self, training: TrainingRows, generator: torch.Generator | None) -> None:
        x, y, weight, _ = training
        if weight is not None and not isinstance(x, Tensor) and not bool((weight > 0).all()):
            need, fix = "weights of rows in a file must be above 0", "Leave those rows out of the file."
            raise ValueError(checks.sentence("KernelRidge", need, float(weight.min()), fix))
        m = landmark_count(global_slice(len(x))[1], self.landmarks)
        checks.memory("KernelRidge", f"{m} landmarks", 6 * m * m * 8, "Give fewer landmarks.")
        penalty = None if isinstance(self.penalty, str) else float(self.penalty)
        machine, solution = landmark_machine(self.kernel_, x, y, m, penalty, generator, weight)
        self._take(machine, solution.penalty, solution)
        if isinstance(x, Tensor):  # rows in a file would be read once more
            worth = y.new_ones(len(y)) if weight is None else weight
            found = [
                machine.held_out(solution, phi, y[part], worth[part]) for part, phi in machine.features(self.kernel_, x)
            ]
            self.loo_ = gather_rows(torch.cat([*found, y[:0]])) if global_slice(len(x))[1] > 1 else None

    def _fit_eigenpro(self, training: TrainingRows, generator: torch.Generator | None) -> None:
        x, y, weight = training.x[:], training.y, training.weight
        worth = y.new_ones(len(y)) if weight is None else weight
        self.mean_ = sum_over_ranks(worth @ y) / sum_over_ranks(worth.sum())
        penalty = None if isinstance(self.penalty, str) else float(self.penalty)
        fit = eigenpro(self.kernel_, x, y - self.mean_, penalty=penalty, generator=generator, weight=weight)
        self.anchors_, self.weights_ = gather_rows(x), gather_rows(fit.weights)
        self.scale_ = None if weight is None else gather_rows(weight).sqrt()
        self.penalty_, self.residual_, self.loo_ = penalty or 0.0, fit.residual, None
        if len(fit.rows):
            self.held_out_ = (fit.rows, fit.held_out + self.mean_.to(fit.held_out))

    def _take(self, machine: LandmarkMachine, penalty: float, solution: LandmarkSolution | None = None) -> None:
        solution = machine.solve(penalty) if solution is None else solution
        left = machine.second @ solution.coefficients + penalty * solution.coefficients - solution.right
        self.machine_, self.penalty_, self.residual_ = machine, penalty, relative_norm(left, solution.right)
        self.anchors_, self.mean_ = machine.landmarks, machine.mean
        self.weights_, self.loo_ = machine.whitener @ solution.coefficients[:, :-1], None

    def _as_landmarks(self) -> LandmarkMachine:
        """The exact machine's rows as landmarks: its system gives their targets back."""
        gram = self.kernel_(self._anchors()).to(self.weights_)
        weight = self.weights_.new_ones(len(gram)) if self.scale_ is None else self.scale_.square().to(self.weights_)
        noise = self.penalty_ * self.weights_ / torch.where(weight > 0, weight, 1.0)[:, None]
        known = (gram @ self.weights_ + noise + self.mean_).double()
        own = shard(len(known))  # every rank holds all rows
        machine = LandmarkMachine.at(self.kernel_, self.anchors_, known.shape[1])
        return machine.add(self.kernel_, self.anchors_[own], known[own], weight[own].double())

    def _choose(self, training: TrainingRows, generator: torch.Generator | None) -> Kernel:
        x, y, weight, _ = training
        order = torch.randperm(global_slice(len(x))[1], generator=generator)[:CHOOSING_ROWS].to(y.device)
        worth = None if weight is None else take_rows(weight, order)
        return choose_kernel(take_rows(x, order).double(), take_rows(y, order), worth).kernel

    def _with_unweighted(self, found: Tensor) -> Tensor:  # (n, c) -> (n, c)
        """Leave-one-out predictions with those of rows of weight 0, which the fit does not see anyway."""
        if self.scale_ is None or bool((self.scale_ > 0).all()):
            return found
        rows, unseen = self._anchors(), self.scale_ == 0
        fitted = self.kernel_.matmul(rows[unseen], rows, self.weights_) + self.mean_
        return found.masked_scatter(unseen[:, None], fitted)

    def _finish(self, solver: str, tensor: bool) -> None:
        self.solver_, self.from_tensor_ = solver, tensor
        self.__dict__.pop("_factor", None)
        if self.__dict__.get("loo_") is not None:
            found = self.loo_[:, 0] if self.flat_ else self.loo_
            self.loo_ = found if tensor else found.cpu().numpy()

    def _known_share(self, rows: Tensor) -> Tensor:  # (r, ...) -> (r,)
        """Share of the prior variance that the training rows explain."""
        anchors, root = self._conditioned()
        cross = self.kernel_(anchors, rows.to(self._dtype(rows, torch.float64))).double()
        cross = cross if root is None else root[:, None] * cross
        half = torch.linalg.solve_triangular(self._system_factor(), cross, upper=False)
        prior = self.kernel_.diag(rows).to(half)
        return torch.where(prior > 0, half.square().sum(0) / prior.where(prior > 0, torch.ones_like(prior)), 1.0)

    def _fresh_gram(self, rows: Tensor) -> Tensor:  # (n, ...) -> (n, n)
        """The Gram matrix in float64, to be overwritten: a user's kernel may give out a matrix that it holds itself."""
        gram = self.kernel_(rows).double()
        users = isinstance(self.kernel_, FunctionKernel) or not type(self.kernel_).__module__.startswith("mercer.")
        return gram.clone() if users else gram

    def _system_factor(self) -> Tensor:
        """Cholesky factor of the system, made when first asked for: it is n x n, and not saved."""
        if "_factor" not in self.__dict__:
            anchors, root = self._conditioned()
            gram = self._fresh_gram(anchors)
            if root is not None:
                gram.mul_(root[:, None]).mul_(root)
            least = _VARIANCE_PENALTY * float(gram.diagonal().mean()) if self.solver_ == "eigenpro" else 0.0
            gram.diagonal().add_(max(self.penalty_, least))
            self.__dict__["_factor"] = cholesky_in_place(gram, where="KernelRidge").factor
        factor: Tensor = self.__dict__["_factor"]
        return factor

    def _known_root(self, machine: LandmarkMachine) -> Tensor:
        """What :meth:`variance` needs of the landmarks, made when first asked for, and not saved."""
        held = self.__dict__.get("_root")
        if held is None or held[0] is not machine.second or held[1] != self.penalty_:
            held = self.__dict__["_root"] = (machine.second, self.penalty_, machine.known_root(self.penalty_))
        root: Tensor = held[2]
        return root

    def _conditioned(self) -> tuple[Tensor, Tensor | None]:
        """The rows that the variance knows of, with their S: all, or 2,000 of those that ``"eigenpro"`` used."""
        anchors, root = self.anchors_, self.scale_
        if self.solver_ == "eigenpro":
            few = min(len(anchors), _VARIANCE_ROWS)
            numbers = torch.linspace(0, len(anchors) - 1, few, device=anchors.device).round().long()
            anchors, root = anchors[numbers], None if root is None else root[numbers]
        return anchors.to(self._dtype(anchors, torch.float64)), root

    def _anchors(self) -> Tensor:
        return self.anchors_.to(self._dtype(self.anchors_))

    def _dtype(self, rows: Tensor, dtype: torch.dtype | None = None) -> torch.dtype:
        """Weights alternate in sign and may be large, so kernels are computed in the dtype the weights have."""
        return (dtype or self.weights_.dtype) if rows.is_floating_point() else rows.dtype

    def _rows_at(self, x: Data) -> Tensor:
        if not hasattr(self, "weights_"):
            need, fix = "must be fitted first", "Call fit(x, y)."
            raise NotFittedError(checks.sentence("KernelRidge", need, "no fit", fix))
        return read_rows(self, self.kernel_, x, reset=False)[:]

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


def seeded(random_state: Any) -> torch.Generator:
    """A torch generator from scikit-learn's ``random_state``."""
    return torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
