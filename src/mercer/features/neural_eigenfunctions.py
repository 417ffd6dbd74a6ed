"""Eigenfunctions of a kernel as an explicit map: trained networks, landmarks, or distillation."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..kernels import Kernel, NetworkKernel
from ..rows.stored import Readable
from .base import FeatureMap
from .bases import Basis, LandmarkBasis, NetworkBasis, ProductBasis
from .landmark_fit import fit_landmarks
from .network_fit import blank_network_basis, fit_distilled, fit_neuralef
from .neuralef import DEFLATIONS, Training
from .rayleigh_ritz import Pairs, Task

STRATEGIES = ("joint", "factorized")
METHODS = ("auto", "neuralef", "landmarks", "distill")
_FITTERS = {"neuralef": fit_neuralef, "landmarks": fit_landmarks, "distill": fit_distilled}
_STEPS = {"neuralef": 2000, "landmarks": 0, "distill": 1000}
_RATES = {"neuralef": 1e-2, "landmarks": 1e-2, "distill": 2e-3}
_WHY = {
    "distill": "a kernel of networks costs many passes for each new row",
    "neuralef": "a network was given",
    "landmarks": "the kernel is explicit and cheap at new rows",
}
_log = logging.getLogger("mercer")


class NeuralEigenfunctions(FeatureMap):
    r"""The k leading eigenfunctions of a kernel for the data's empirical measure.

    .. math:: \tfrac1n \sum_i k(x, x_i) \psi_j(x_i) = \mu_j \psi_j(x), \qquad
        \tfrac1n \sum_i \psi_j(x_i) \psi_l(x_i) = 1[j = l], \qquad
        \varphi(x) = (\sqrt{\mu_j} \, \psi_j(x))_{j \le k}

    (deng2022, slides "Kernel approximation" and "NeuralEF"). Methods:

    - ``"neuralef"``: Algorithm 1; one network for each function, trained on minibatches.
    - ``"landmarks"``: functions :math:`\sum_l a_l k(x, z_l)`. Up to 20,000 rows z are the rows: Lanczos on their Gram
      matrix, exactly extended. Beyond, the same for a sample, compressed to fewer landmarks, made orthogonal over all
      rows. With ``landmarks`` or ``steps``: k-means centers, moved by ``steps`` of
      gradient ascent. For kernels that are cheap to evaluate.
    - ``"distill"``: the exact eigenvectors on the rows, then a network trained to take their values. For kernels of
      networks, which cost many passes for each new row.
    - ``"auto"``: ``"distill"`` for kernels of networks, ``"neuralef"`` where a network is given for another kernel,
      ``"landmarks"`` otherwise. The log says which and why.

    With ``ritz`` the functions are then the best ones in the span of the network's hidden features (of the landmarks
    asked for): Rayleigh-Ritz on at most 8,192 rows. Without it a method's own outputs are used, at mean square 1.
    If the kernel's rank is below k, the surplus eigenvalues and functions are 0, with one warning.

    Args:
        kernel: k. A matrix-valued one (``outputs="full"``) has eigenfunctions with c outputs, ``(n, c, k)``.
        k: Number of eigenfunctions.
        network: ``(n, ...) -> (n, k)`` (``(n, c, k)`` for a matrix-valued kernel), trained in place; None takes k
            parallel networks for ``"neuralef"``, one network (convolutional for pictures) for ``"distill"``.
        method: As above.
        ritz: Rayleigh-Ritz after training.
        generator: Source of randomness, or a seed.
        landmarks: Their number, or the landmarks themselves; None takes the rows, or as many as the loss needs.
        steps: Training steps; None takes 2000 for ``"neuralef"``, 1000 for ``"distill"``, 0 for ``"landmarks"``.
        batch_size: Rows of a minibatch.
        lr: Step size of Adam, for landmarks relative to the data's spread; None takes 1e-2, for ``"distill"`` 2e-3.
        strategy: For matrix-valued kernels: ``"joint"`` learns functions with c outputs; ``"factorized"`` assumes
            :math:`k(x, y) \approx \mathrm{tr} k(x, y) A` and learns those of the trace (strategies 1, 2).
        deflation: Of ``"neuralef"``: ``"first_order"``, as in the paper, or ``"cholesky"``, exact.

    Attributes:
        eigenvalues: :math:`\mu` ``(k,)``, descending, of K / n.
        residuals: :math:`\|K \psi_j / n - \mu_j \psi_j\|`, root mean square over the rows that K was applied on: a
            certificate, since a true eigenvalue of those lies within that distance of :math:`\mu_j`. Landmarks of more
            than 20,000 rows give an estimate: K is that of all rows, the mean is over 64 of them.

    Use it for the few directions that a kernel sees best, also on new rows.

    >>> from mercer.kernels import RBF
    >>> x = torch.randn(60, 2, dtype=torch.float64)
    >>> NeuralEigenfunctions(RBF(0.5), 5).fit(x).eigenfunctions(x).shape
    torch.Size([60, 5])
    """

    FITTED = ("eigenvalues", "residuals", "projection")
    eigenvalues: Tensor
    residuals: Tensor
    projection: Tensor  # (m, k): the functions of the basis times it are the eigenfunctions

    def __init__(
        self,
        kernel: Kernel,
        k: int,
        *,
        network: nn.Module | None = None,
        method: str = "auto",
        ritz: bool = True,
        generator: torch.Generator | int | None = None,
        landmarks: int | Tensor | None = None,
        steps: int | None = None,
        batch_size: int = 256,
        lr: float | None = None,
        deflation: str = "first_order",
        strategy: str = "joint",
    ) -> None:
        super().__init__(kernel, generator)
        where = "NeuralEigenfunctions"
        self.k = self.m = checks.integer(where, "k", k, 1)
        self.method = checks.choice(where, "method", method, METHODS)
        self.given_network = [network]  # in a list: it becomes a part of this module when it is fitted
        self.ritz = bool(ritz)
        if isinstance(landmarks, int):
            checks.integer(where, "landmarks", landmarks, 1)
        self.given_landmarks = landmarks
        self.strategy = checks.choice(where, "strategy", strategy, STRATEGIES)
        self.basis: Basis | None = None
        # Settings of the method in force.
        if steps is None:
            steps = _STEPS[self.resolve_method()]
        if lr is None:
            lr = _RATES[self.resolve_method()]
        self.plan = Training(
            checks.integer(where, "steps", steps, 0),
            checks.integer(where, "batch_size", batch_size, 1),
            checks.positive(where, "lr", lr),
            checks.choice(where, "deflation", deflation, DEFLATIONS),
        )

    @property
    def network(self) -> nn.Module | None:
        """The network in use: the user's, or the one that was trained; None for landmarks."""
        basis = self.basis
        if isinstance(basis, ProductBasis):
            basis = basis.scalar
        if isinstance(basis, NetworkBasis):
            return basis.network
        return self.given_network[0]

    def resolve_method(self) -> str:
        """The method in force: what ``"auto"`` stands for with this kernel and network."""
        if self.method != "auto":
            return self.method
        if isinstance(self.exact, NetworkKernel):
            return "distill"
        if self.given_network[0] is not None:
            return "neuralef"
        return "landmarks"

    @property
    def rank(self) -> int:
        """The number of eigenvalues above 0."""
        self._check_fitted()
        return int((self.eigenvalues > 0).sum())

    @override
    def learn(self, x: Readable) -> None:  # (n, ...)
        method = self.resolve_method()
        if self.method == "auto":
            kind = type(self.exact).__name__
            _log.info("NeuralEigenfunctions: auto picks %r for %s: %s.", method, kind, _WHY[method])

        # The fitter answers with a basis of functions, and with the pairs as combinations of them.
        network = self.given_network[0]
        task = Task(self.exact, x, self.k, self.ritz, self.plan, self.generator, network, self.given_landmarks)
        if self._factorizes():
            self.basis, pairs = fit_factorized(task, _FITTERS[method])
        else:
            self.basis, pairs = _FITTERS[method](task)
        self.eigenvalues, self.projection, self.residuals = pairs.values, pairs.rotation, pairs.residuals
        if self.rank < self.k:
            rank = f"the kernel has rank {self.rank} on these rows, below k = {self.k}"
            checks.warn("NeuralEigenfunctions", f"{rank}; the other eigenvalues and functions are 0.", stacklevel=4)

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, k) or (n, c, k)
        functions = self._functions(x)
        return functions * self.eigenvalues.clamp_min(0).sqrt().to(functions.dtype)

    def eigenfunctions(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, k) or (n, c, k)
        r""":math:`\psi_j(x)`, with mean square 1 over the fitted rows; 0 where the eigenvalue is."""
        self._check_fitted()
        return self._functions(self._check_rows(x))

    @override
    def kernel(self, x: Tensor, y: Tensor | None = None) -> Tensor:  # -> (n, m), or (n, m, c, c)
        """The approximate Gram matrix."""
        rows = columns = self(x)
        if y is not None:
            columns = self(y)
        if rows.ndim == 3:  # functions with c outputs: a matrix for each pair of rows
            return torch.einsum("nck,mdk->nmcd", rows, columns)
        return rows @ columns.mT

    def _functions(self, x: Tensor) -> Tensor:
        assert self.basis is not None
        dtype = checks.floating_dtype(x, self.projection.dtype)
        values = self.basis(x)  # (n c, m)
        functions = (values @ self.projection.to(values.dtype)).to(dtype)
        if self.basis.outputs == 1:
            return functions
        return functions.reshape(len(x), self.basis.outputs, self.k)

    def _factorizes(self) -> bool:
        return self.strategy == "factorized" and getattr(self.exact, "matrix_valued", False)

    @override
    def _width(self) -> int | None:
        if self.basis is None:
            return None
        return self.basis.width

    @override
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        start = prefix + "basis."
        basis = {key.removeprefix(start): value for key, value in state_dict.items() if key.startswith(start)}
        if basis:  # torch loads the children after their parent
            self.basis = self._blank_basis(basis)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _blank_basis(self, state: dict[str, Tensor]) -> Basis:
        """The basis that ``fit`` would end with, for a state to be loaded into."""
        if not self._factorizes():
            return self._blank_scalar(state, self.exact)
        assert isinstance(self.exact, NetworkKernel)
        inner = {key.removeprefix("scalar."): value for key, value in state.items() if key.startswith("scalar.")}
        scalar = self._blank_scalar(inner, trace_outputs(self.exact))
        return ProductBasis(scalar, *(torch.empty_like(state[name]) for name in ("rotation", "picks", "mixing")))

    def _blank_scalar(self, state: dict[str, Tensor], kernel: Kernel) -> Basis:
        if self.resolve_method() == "landmarks":
            return LandmarkBasis(kernel, torch.empty_like(state["landmarks"]))
        dtype = next(value for key, value in state.items() if key.startswith("network.")).dtype
        network, method = self.given_network[0], self.resolve_method()
        return blank_network_basis(network, method, self.k, self.ritz, state["centre"], state["spread"], dtype)


def fit_factorized(task: Task, fitter: Callable[[Task], tuple[Basis, Pairs]]) -> tuple[Basis, Pairs]:
    r"""Eigenfunctions of a matrix-valued kernel that is taken for its trace kernel times one matrix A of outputs.

    Those of :math:`\mathrm{tr} k(x, y) \, A` are :math:`\psi_i(x) e_l`, with the products :math:`\mu_i a_l` of the
    eigenvalues of the trace kernel, which any fitter finds, and of A.
    """
    # The eigenfunctions of the trace kernel.
    assert isinstance(task.kernel, NetworkKernel)
    basis, pairs = fitter(dataclasses.replace(task, kernel=trace_outputs(task.kernel)))

    # A: the mean of k(x, x) over the rows, of trace 1.
    mean = task.kernel.diag(task.sample).double().mean(0)  # (c, c)
    weights, vectors = torch.linalg.eigh(mean / torch.where(mean.trace() > 0, mean.trace(), 1.0))

    # The k largest products mu_i a_l, each with its i and its e_l.
    table = pairs.values.double()[:, None] * weights.clamp_min(0)[None]  # (k, c)
    best = table.flatten().topk(task.k)
    picks, mixing = best.indices // len(weights), vectors[:, best.indices % len(weights)]
    product = ProductBasis(basis, pairs.rotation, picks, mixing * (best.values > 0))

    # Their residuals on the matrix-valued kernel itself say how far it is from such a product.
    functions = product(task.sample).double()
    eye = torch.eye(task.k, dtype=torch.float64, device=functions.device)
    return product, Pairs(best.values, eye, task.residuals(functions, best.values))


def trace_outputs(kernel: NetworkKernel) -> NetworkKernel:
    """A copy of the kernel that sums over outputs."""
    scalar = copy.copy(kernel)
    scalar.outputs = "trace"
    return scalar
