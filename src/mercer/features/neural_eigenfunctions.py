"""Eigenfunctions of a kernel as an explicit map: trained networks, landmarks, or distillation."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..distributed import gather_rows, global_slice, map_rows, shard, sum_over_ranks
from ..kernels import Kernel, NetworkKernel
from ..linalg import slices
from ..modules import Readable
from .base import FeatureMap
from .distillation import distill
from .factorization import output_matrix, top_products, traced
from .hidden_features import hidden_features
from .l2_batch_norm import L2BatchNorm
from .landmarks import sample as draw
from .learned_landmarks import choose, learn, whitener
from .neuralef import DEFLATIONS, Training, train
from .parallel_networks import ParallelNetworks, Trunk
from .rayleigh_ritz import Operator, Pairs, operator, ritz, spectrum
from .standardisation import centre_and_spread

STRATEGIES = ("joint", "factorized")
METHODS = ("auto", "neuralef", "landmarks", "distill")
_STEPS = {"neuralef": 2000, "landmarks": 0, "distill": 1000}
_RATES = {"neuralef": 1e-2, "landmarks": 1e-2, "distill": 2e-3}
_RITZ_ROWS = 8192  # the operator is applied on at most so many rows: its cost is their square
_BLOCK = 4096
_HIDDEN = 1024  # functions that Rayleigh-Ritz takes from a network at most
_log = logging.getLogger("mercer")


class NeuralEigenfunctions(FeatureMap):
    r"""The k leading eigenfunctions of a kernel for the data's empirical measure.

    .. math:: \tfrac1n \sum_i k(x, x_i) \psi_j(x_i) = \mu_j \psi_j(x), \qquad
        \tfrac1n \sum_i \psi_j(x_i) \psi_l(x_i) = 1[j = l], \qquad
        \varphi(x) = (\sqrt{\mu_j} \, \psi_j(x))_{j \le k}

    (deng2022, slides "Kernel approximation" and "NeuralEF"). Methods:

    - ``"neuralef"``: Algorithm 1; one network for each function, trained on minibatches.
    - ``"landmarks"``: functions :math:`\sum_l a_l k(x, z_l)` of landmarks z, k-means centres, then moved by ``steps``
      of gradient ascent. For kernels that are cheap to evaluate.
    - ``"distill"``: the exact eigenvectors on the rows, then a network trained to take their values. For kernels of
      networks, which cost many passes for each new row.
    - ``"auto"``: ``"distill"`` for kernels of networks, ``"neuralef"`` where a network is given for another kernel,
      ``"landmarks"`` otherwise. The log says which and why.

    With ``ritz`` the functions are then the best ones in the span of the network's hidden features (of the landmarks):
    Rayleigh-Ritz on at most 8,192 rows. Without it a method's own outputs are used, scaled to mean square 1.
    Where the kernel has rank below k, the surplus eigenvalues and functions are 0, and one warning says so.

    Args:
        kernel: k. A matrix-valued one (``outputs="full"``) has eigenfunctions with c outputs, ``(n, c, k)``.
        k: Number of eigenfunctions.
        network: ``(n, ...) -> (n, k)`` (``(n, c, k)`` for a matrix-valued kernel), trained in place; None takes k
            parallel networks for ``"neuralef"``, one network (convolutional for pictures) for ``"distill"``.
        method: As above.
        ritz: Rayleigh-Ritz after training.
        generator: Source of randomness.
        landmarks: Their number, or the landmarks themselves; None takes max(128, 8 k).
        steps: Training steps; None takes 2000 for ``"neuralef"``, 1000 for ``"distill"``, 0 for ``"landmarks"``.
        batch_size: Rows of a minibatch.
        lr: Step size of Adam, for landmarks relative to the data's spread; None takes 1e-2, for ``"distill"`` 2e-3.
        strategy: For matrix-valued kernels: ``"joint"`` learns functions with c outputs; ``"factorized"`` assumes
            :math:`k(x, y) \approx \mathrm{tr} k(x, y) A` and learns those of the trace (strategies 1, 2).
        deflation: Of ``"neuralef"``: ``"first_order"``, as in the paper, or ``"cholesky"``, exact.

    Attributes:
        eigenvalues: :math:`\mu` ``(k,)``, descending, of K / n.
        residuals: :math:`\|K \psi_j / n - \mu_j \psi_j\|`, root mean square over rows: a certificate, for a
            true eigenvalue lies within that distance of :math:`\mu_j`.
    """

    FITTED = ("eigenvalues", "residuals", "landmarks", "projection", "centre", "spread", "mixing", "picks")
    eigenvalues: Tensor
    residuals: Tensor
    landmarks: Tensor
    projection: Tensor
    centre: Tensor  # of a row's shape
    spread: Tensor  # (c,), all alike: shapes travel in the state_dict, and can be read on the meta device

    mixing: Tensor  # (c, k), the directions of outputs of a factorised kernel
    picks: Tensor  # (k,), which function of the trace kernel each is made of

    def __init__(
        self,
        kernel: Kernel,
        k: int,
        *,
        network: nn.Module | None = None,
        method: str = "auto",
        ritz: bool = True,
        generator: torch.Generator | None = None,
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
        self.network = network
        self.ritz = bool(ritz)
        if isinstance(landmarks, int):
            checks.integer(where, "landmarks", landmarks, 1)
        self.given_landmarks = landmarks
        self.strategy = checks.choice(where, "strategy", strategy, STRATEGIES)
        self.inner: NeuralEigenfunctions | None = None
        chosen = self.resolved()
        self.plan = Training(
            _STEPS[chosen] if steps is None else checks.integer(where, "steps", steps, 0),
            checks.integer(where, "batch_size", batch_size, 1),
            _RATES[chosen] if lr is None else checks.positive(where, "lr", lr),
            checks.choice(where, "deflation", deflation, DEFLATIONS),
        )

    def resolved(self) -> str:
        """The method in force: what ``"auto"`` stands for with this kernel and network."""
        if self.method != "auto":
            return self.method
        if isinstance(self.exact, NetworkKernel):
            return "distill"
        return "landmarks" if self.network is None else "neuralef"

    @property
    def rank(self) -> int:
        """The number of eigenvalues above 0."""
        self._check_fitted()
        return int((self.eigenvalues > 0).sum())

    @override
    def learn(self, x: Readable) -> None:  # (n, ...)
        self._learn(x)
        if self.rank < self.k:
            rank = f"the kernel has rank {self.rank} on these rows, below k = {self.k}"
            checks.warn("NeuralEigenfunctions", f"{rank}; the other eigenvalues and functions are 0.", stacklevel=4)

    def _learn(self, x: Readable) -> None:
        chosen = self.resolved()
        if self.method == "auto":
            why = {
                "distill": "a kernel of networks costs many passes for each new row",
                "neuralef": "a network was given",
                "landmarks": "the kernel is explicit and cheap at new rows",
            }[chosen]
            _log.info("NeuralEigenfunctions: auto picks %r for %s: %s.", chosen, type(self.exact).__name__, why)
        n = global_slice(len(x))[1]
        sample = gather_rows(x[:]) if n <= _RITZ_ROWS else draw(x, _RITZ_ROWS, self.generator)
        if n > _RITZ_ROWS:
            _log.info("NeuralEigenfunctions: the operator is applied on %d of %d rows.", _RITZ_ROWS, n)
        op = operator(self.exact, _wide(self.exact, sample))
        self.landmarks, self.mixing = sample.new_empty(0), sample.new_empty(0)
        self.picks = torch.empty(0, dtype=torch.int64, device=x.device)
        self._standardise(x, op.outputs)
        fit = {"landmarks": self._fit_landmarks, "neuralef": self._fit_neuralef, "distill": self._fit_distilled}
        if op.outputs > 1 and self.strategy == "factorized":
            self._fit_factorized(x, sample, op)
        else:
            fit[chosen](x, sample, op)
            self._normalise(x)

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, k) or (n, c, k)
        functions = self._functions(x)
        return functions * self.eigenvalues.clamp_min(0).sqrt().to(functions.dtype)

    def eigenfunctions(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, k) or (n, c, k)
        r""":math:`\psi_j(x)`, with mean square 1 over the fitted rows; 0 where the eigenvalue is."""
        self._check_fitted()
        return self._functions(self._checked(x))

    @override
    def kernel(self, x: Tensor, y: Tensor | None = None) -> Tensor:  # -> (n, m), or (n, m, c, c)
        """The approximate Gram matrix."""
        left = self(x)
        right = left if y is None else self(y)
        return left @ right.mT if left.ndim == 2 else torch.einsum("nck,mdk->nmcd", left, right)

    def _functions(self, x: Tensor) -> Tensor:
        dtype = x.dtype if x.is_floating_point() else self.projection.dtype
        if self.inner is not None:
            scalar = self.inner._functions(x)[:, self.picks]  # (n, k)
            return scalar[:, None] * self.mixing.to(scalar.dtype)
        if self.landmarks.numel():
            z = self.landmarks
            gram = self.exact.gram(*((x.double(), z.double()) if x.is_floating_point() else (x, z)))
            return (gram.double() @ self.projection).to(dtype)
        basis = self._basis(x)  # (n c, m)
        functions = (basis @ self.projection.to(basis.dtype)).to(dtype)
        c = len(self.spread)
        return functions if c == 1 else functions.reshape(len(x), c, self.k)

    def _fit_landmarks(self, x: Readable, sample: Tensor, op: Operator) -> None:
        if op.outputs > 1:
            fix = "Use method='distill' or outputs='trace'."
            need = "landmarks need a kernel with one number for each pair"
            raise ValueError(checks.sentence("NeuralEigenfunctions", need, "outputs='full'", fix))
        wanted = self.given_landmarks
        if isinstance(wanted, Tensor):
            z = self.exact.prepare("landmarks", wanted).detach().clone()
        else:
            z = choose(self.exact, x, min(global_slice(len(x))[1], wanted or max(128, 8 * self.k)), self.generator)
        if self.plan.steps and z.is_floating_point():
            z = learn(self.exact, x, z, self.k, self.plan, float(self.spread[0]), self.generator)
        z = _wide(self.exact, z)
        white = whitener(self.exact, z)
        phi = map_rows(lambda part: self.exact(part, z).double() @ white, _wide(self.exact, sample))
        floor = max(len(sample), len(z)) * torch.finfo(torch.float64).eps
        if self.ritz:
            pairs = ritz(op, phi, self.k, floor=floor)
        else:  # Nystrom: the operator of the approximate kernel
            pairs = ritz(Operator(lambda v: phi @ (phi.mT @ v) / op.n, op.n, 1), phi, self.k, floor=floor)
        self.landmarks = z
        self._store(pairs, white @ pairs.rotation)

    def _fit_neuralef(self, x: Readable, sample: Tensor, op: Operator) -> None:
        c = op.outputs
        if self.network is None:
            self.network = self._default_network(self.centre.shape, c)
        norm = L2BatchNorm(self.k, momentum=self.plan.ema).to(x.device)
        own = _Standardised(self.network, self.centre, self.spread[:1])
        values = train(own, norm, self.exact, x, self.plan, self.generator)
        self._freeze(x.dtype)
        if self.ritz:
            self._ritz(sample, op)
            return
        order = values.argsort(descending=True)
        self.projection = torch.eye(self.k, dtype=torch.float64, device=x.device)[:, order]
        self.eigenvalues = values[order].clamp_min(0)
        self._normalise(sample[shard(len(sample))])
        psi = self._functions(_wide(self.exact, sample)).double().reshape(len(sample) * c, self.k)
        self.residuals = (op.apply(psi) - psi * self.eigenvalues).norm(dim=0) / len(sample) ** 0.5

    def _fit_distilled(self, x: Readable, sample: Tensor, op: Operator) -> None:
        floor = self._resolution(x) * len(sample)
        values, functions = spectrum(op, self.k, floor=floor)
        if self.network is None:
            self.network = self._default_network(self.centre.shape, op.outputs)
        shape = (len(sample), self.k) if op.outputs == 1 else (len(sample), op.outputs, self.k)
        weights = (values / values[:1].clamp_min(torch.finfo(torch.float64).tiny)).sqrt()
        own = _Standardised(self.network, self.centre, self.spread[:1])
        distill(own, sample, functions.reshape(shape), weights, self.plan, self.generator)
        self._freeze(x.dtype)
        if self.ritz:
            self._ritz(sample, op)
            return
        self.projection = torch.eye(self.k, dtype=torch.float64, device=x.device) * (values > 0)
        self.eigenvalues = values
        self._normalise(sample[shard(len(sample))])
        psi = self._functions(sample).double().reshape(-1, self.k)
        self.residuals = (op.apply(psi) - psi * values).norm(dim=0) / len(sample) ** 0.5

    def _inner(self) -> NeuralEigenfunctions:
        assert isinstance(self.exact, NetworkKernel)
        inner = NeuralEigenfunctions(
            traced(self.exact), self.k, network=self.network, method=self.method, ritz=self.ritz,
            generator=self.generator, landmarks=self.given_landmarks,
        )  # fmt: skip
        inner.plan = self.plan
        return inner

    def _fit_factorized(self, x: Readable, sample: Tensor, op: Operator) -> None:
        assert isinstance(self.exact, NetworkKernel)
        self.inner = None
        inner = self._inner()
        inner._learn(x)
        values, self.picks, mixing = top_products(inner.eigenvalues, output_matrix(self.exact, sample), self.k)
        self.mixing = mixing * (values > 0)
        self.inner, self.eigenvalues, self.projection = inner, values, mixing.new_empty(0)
        psi = self._functions(sample).double().reshape(-1, self.k)
        self.residuals = (op.apply(psi) - psi * values).norm(dim=0) / len(sample) ** 0.5

    def _ritz(self, sample: Tensor, op: Operator) -> None:
        basis = self._basis(sample)
        pairs = ritz(op, basis, self.k, floor=self._resolution(basis) * 100)
        self._store(pairs, pairs.rotation)

    def _store(self, pairs: Pairs, projection: Tensor) -> None:
        self.projection, self.eigenvalues, self.residuals = projection, pairs.values, pairs.residuals

    def _normalise(self, x: Readable) -> None:
        """Mean square exactly 1 over the rows of all ranks, whatever sample the functions were found on."""
        squares = torch.zeros(self.k, dtype=torch.float64, device=x.device)
        for part in slices(len(x), _BLOCK):
            squares += self._functions(x[part]).double().square().reshape(-1, self.k).sum(0)
        size = (sum_over_ranks(squares) / global_slice(len(x))[1]).sqrt()
        self.projection = self.projection * torch.where(size > 0, 1 / torch.where(size > 0, size, 1.0), 0.0)

    def _basis(self, x: Tensor) -> Tensor:  # (n, ...) -> (n c, m)
        """What ``projection`` combines: hidden features for Rayleigh-Ritz where few enough, else outputs."""
        network = self.network
        assert network is not None
        weight = next(network.parameters())
        if x.is_floating_point():  # in float64: a spread of 1e-50 is 0 in float32
            x = ((x.double() - self.centre) / self.spread[0]).to(weight.dtype)
        c = len(self.spread)
        values = hidden_features(network, x) if self.ritz else None
        if values is not None and values.shape[1] * c <= max(_HIDDEN, self.k):
            eye = torch.eye(c, dtype=values.dtype, device=values.device)
            return values if c == 1 else torch.einsum("nm,cd->ncmd", values, eye).flatten(2).flatten(0, 1)
        output: Tensor = network(x)
        return output.reshape(-1, self.k)

    def _standardise(self, x: Readable, c: int) -> None:
        if x.is_floating_point():
            self.centre, spread = centre_and_spread(x)
            self.spread = spread.repeat(c)
            return
        self.centre = torch.zeros(x.shape[1:], dtype=torch.float64, device=x.device)
        self.spread = self.centre.new_ones(c)  # indices and tokens are no numbers

    def _default_network(self, shape: torch.Size, c: int) -> nn.Module:
        device = self.eigenvalues.device
        if self.resolved() == "distill":
            return Trunk(shape, self.k, outputs=c, generator=self.generator).to(device)
        width = 32 if 2 * 32 * self.k <= _HIDDEN else max(4, _HIDDEN // (2 * self.k))
        network = ParallelNetworks(shape.numel(), self.k, outputs=c, width=width, generator=self.generator)
        return network.to(device)

    def _freeze(self, dtype: torch.dtype) -> None:
        """Our own networks become constants; small ones in float64, for Rayleigh-Ritz takes small differences."""
        assert self.network is not None
        self.network.eval()
        if isinstance(self.network, ParallelNetworks | Trunk):
            self.network.requires_grad_(False)
            wide = dtype == torch.float64 or isinstance(self.network, ParallelNetworks)
            self.network.to(torch.float64 if wide else torch.float32)

    def _resolution(self, x: Readable) -> float:
        return float(torch.finfo(x.dtype if x.is_floating_point() else torch.float32).eps)

    @override
    def _width(self) -> int | None:
        return self.centre.shape[0] if self.centre.ndim == 1 else None

    @override
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        if self.inner is None and any(key.startswith(prefix + "inner.") for key in state_dict):
            self.inner = self._inner()
        weights = [value for key, value in state_dict.items() if key.startswith(prefix + "network.")]
        if self.network is None and weights:  # torch loads the children after their parent
            shape, c = state_dict[prefix + "centre"].shape, len(state_dict[prefix + "spread"])
            self.network = self._default_network(shape, c)
            self._freeze(weights[0].dtype)
        super()._load_from_state_dict(state_dict, prefix, *args)


class _Standardised(nn.Module):
    """The network on standardised rows, as it is trained; shares its weights."""

    def __init__(self, network: nn.Module, centre: Tensor, spread: Tensor) -> None:
        super().__init__()
        self.network, self.centre, self.spread = network, centre, spread

    @override
    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            x = ((x.double() - self.centre) / self.spread).to(x.dtype)
        return self.network(x)  # type: ignore[no-any-return]


def _wide(kernel: Kernel, x: Tensor) -> Tensor:
    """Rows in float64, but for kernels of networks, which would be twice as dear, and for indices."""
    return x if isinstance(kernel, NetworkKernel) or not x.is_floating_point() else x.double()
