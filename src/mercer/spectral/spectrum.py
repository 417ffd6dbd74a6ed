"""Targets read by a kernel's spectrum; each number is computed at its first use."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from .. import checks
from ..figures.theme import Figure, canvas
from ..kernels import Kernel, ReLUGram
from ..linalg.eigen import top_eigh
from ..linalg.lanczos import Lanczos, gauss, radau
from .gram_matrices import Gram

_STRIDE = 5  # products between two looks at a rule
_BRACKET = 1e-3  # relative width at which the bracket is called closed
_DENSE_ROWS = 6000  # up to here a factor costs less than one run of Lanczos, by `mercer bench spectral`,
_FINE_ROWS = 10_000  # and up to here less than two runs to an accuracy below _FINE: the targets and their control
_FINE = 1e-7
_PRODUCT = 8.0  # cost of a product's flop over that of a factor's: products wait for memory
_HALF_DIGITS = 2.0**-26  # of float64
_NULL = 1e-12  # share of the targets that must lie in the null space to call the complexity infinite


class Proof:
    """Bounds on a ``ReLUGram``, computed at their first use and shared by all targets of one H.

    Args:
        kernel: The kernel.
        x: Its rows, in float64.
        gram: H as it is stored.
    """

    def __init__(self, kernel: ReLUGram, x: Tensor, gram: Gram) -> None:
        self._kernel, self._x, self._gram = kernel, x, gram

    @functools.cached_property
    def _bounds(self) -> tuple[float, float]:
        floor, error = self._kernel.bounds(self._x)
        # No entry of the diagonal is above its true value, 1/2: together they are wrong by what the trace lacks.
        lacking = float(self._kernel.gram_diag(self._x).double().sum()) - self._gram.trace
        return floor, error + abs(lacking)

    @property
    def floor(self) -> float:
        """Lower bound on the least eigenvalue of the true H; 0 where none above 0 was found."""
        return self._bounds[0]

    @property
    def error(self) -> float:
        """Bound on the spectral norm of (H as computed in float64 - true H)."""
        return self._bounds[1]


def proof(kernel: Kernel, x: Tensor, gram: Gram) -> Proof | None:
    """Bounds where the kernel has some; None for kernels that have none."""
    if isinstance(kernel, ReLUGram):
        return Proof(kernel, x, gram)
    return None


class Factor:
    r"""H = L L^T in float64, computed when it pays: for few rows, or when as much was spent on products already.

    Args:
        gram: H.
        tolerance: Relative accuracy that products would have to reach.
        rows: Most rows for which the factor pays at once; None takes the measured number.
    """

    def __init__(self, gram: Gram, tolerance: float, rows: int | None = None) -> None:
        self._gram = gram
        if rows is None:
            rows = _DENSE_ROWS
            if tolerance < _FINE:
                rows = _FINE_ROWS
        self._rows = rows
        self._spent = 0.0

    def spend(self, products: int) -> None:
        """Count products with one column each that a factor would have saved."""
        self._spent += _PRODUCT * products * self._gram.n**2

    @property
    def pays(self) -> bool:
        """Whether the factor is there, or worth its n^3 / 3 flops and fits the free memory."""
        n, free = self._gram.n, checks.available_memory()
        worth = "lower" in self.__dict__ or n <= self._rows or self._spent >= n**3 / 3
        return worth and (free is None or 4 * 8 * n**2 <= free)

    @functools.cached_property
    def lower(self) -> Tensor | None:  # (n, n)
        """L; None where H is singular to rounding, which Lanczos handles."""
        lower: Tensor
        lower, failed = torch.linalg.cholesky_ex(self._gram.dense())
        if bool(failed):
            return None
        # A pivot that is rounding beside the largest one says that H is singular.
        pivots = lower.diagonal().square()
        if float(pivots.min()) <= 1e3 * self._gram.noise * float(pivots.max()):
            return None
        return lower

    def half(self, columns: Tensor) -> Tensor | None:  # (n, c) -> (n, c)
        """L^-1 Y; None where there is no factor."""
        if not self.pays or self.lower is None:
            return None
        half: Tensor = torch.linalg.solve_triangular(self.lower, columns, upper=False)
        return half

    def slack(self, floor: float, error: float) -> float:
        r"""Bound on the relative error of :math:`\|L^{-1} y\|^2` where no eigenvalue of H is below the floor.

        The factor is that of H + E with :math:`\|E\| \le \gamma \, \mathrm{tr} H`, the substitution adds
        :math:`2 \gamma \|L\|_F / \sqrt{\text{floor}}`, with :math:`\gamma = (n + 1) u / (1 - (n + 1) u)` (Higham 2002,
        Theorems 8.5 and 10.3).

        Args:
            floor: The least that an eigenvalue can be.
            error: Bound on the spectral norm of (H as stored - true H).
        """
        # u is the unit roundoff of float64.
        unit = (self._gram.n + 1) * 2.0**-53
        gamma = unit / (1 - unit)
        change = (gamma * self._gram.trace + error) / floor
        if change >= 0.5:
            return math.inf
        return 2 * change + 4 * gamma * math.sqrt(self._gram.trace / floor)


class Spectrum:
    r"""Spectral reading of targets Y by a Gram matrix :math:`H = \sum_i \lambda_i v_i v_i^T`.

    A Lanczos process started at the targets carries the convergence curve, the bracket and, where rows are many, the
    complexity, and grows only as far as each needs. Where rows are few the complexity comes from a Cholesky factor,
    which all targets of one H share. Made by :func:`~mercer.spectral.analyze`.

    Args:
        gram: H.
        columns: Y, ``(n, c)`` in float64; sums run over its columns.
        k: How many eigenvalues :attr:`eigenvalues` holds.
        floor: A true lower bound on the least eigenvalue, or a proof of one; None for none.
        tolerance: Relative accuracy asked of :attr:`complexity`.
        factor: Cholesky factor of H, or what decides whether there is one; None makes its own.
        max_products: Most products with H.
    """

    def __init__(
        self,
        gram: Gram,
        columns: Tensor,
        *,
        k: int,
        floor: float | Proof | None,
        tolerance: float,
        factor: Factor | None = None,
        max_products: int = 1000,
    ) -> None:
        self.k, self.tolerance, self.max_products = k, tolerance, max_products
        self._factor = factor or Factor(gram, tolerance)
        self._gram, self._columns, self._given_floor = gram, columns, floor
        self._run = Lanczos(gram, columns)

    def __repr__(self) -> str:
        n, c = self._columns.shape
        return f"Spectrum(n={n}, columns={c}, k={self.k}, products={self._run.steps})"

    # --- the decomposition -----------------------------------------------------------------------------------

    @property
    def eigenvalues(self) -> Tensor:
        r"""The k largest :math:`\lambda_i`, descending, ``(k,)``."""
        return self._top[0]

    @property
    def projections(self) -> Tensor:
        r"""Squared projections :math:`\sum_c (v_i^T y_c)^2 / \sum_c \|y_c\|^2`, ``(k,)``; all n would sum to 1."""
        return (self._top[1].mT @ self._columns).square().sum(1) / self._squared_norm

    @functools.cached_property
    def _top(self) -> tuple[Tensor, Tensor]:
        top = top_eigh(self._gram, self.k, start=self._start())
        return top.values, top.vectors

    def _start(self) -> Tensor:
        """Random directions with the targets among them, so that what the targets hold is found first."""
        device = self._columns.device
        fixed = torch.Generator(device=device).manual_seed(0)
        random = torch.randn(self._gram.n, 8, dtype=torch.float64, device=device, generator=fixed)
        return torch.cat((self._columns[:, :2], random), 1)[:, : min(8, self._gram.n)]

    # --- numbers ----------------------------------------------------------------------------------------------

    @functools.cached_property
    def complexity(self) -> float:
        r""":math:`\sum_c y_c^T H^{-1} y_c` (spectral2019, Eq. 5-6); ``inf`` where targets are in its null space.

        By the Cholesky factor of H where that is cheaper. Otherwise Lanczos runs until the estimated rest is below
        ``tolerance``; a run that stops earlier warns, with the size of the rest.
        """
        if self._dense is not None:
            return self._dense
        before = self._run.steps
        complexity = self._gauss
        self._factor.spend((self._run.steps - before) * self._columns.shape[1])
        return complexity

    @functools.cached_property
    def _dense(self) -> float | None:
        """The complexity by the factor; None where there was no factor at the first use."""
        half = self._factor.half(self._columns)
        if half is None:
            return None
        return float(half.square().sum())

    @functools.cached_property
    def _gauss(self) -> float:
        """The complexity by Lanczos: products are added until the estimated rest of the sum is small."""
        # Five products at a time, and a look at how the sum grows.
        sums: list[float] = []
        remainder = math.inf
        while remainder > self.tolerance and not self._run.is_exhausted and self._run.steps < self.max_products:
            self._run.extend(_STRIDE)
            sums.append(self._inverse_sum())
            if math.isinf(sums[-1]):
                why = "H is singular to rounding along the targets (duplicate rows with different targets?)"
                checks.warn("Spectrum", f"{why}: the complexity is infinite.", stacklevel=4)
                return math.inf

            # How much it may still grow, relative to its last value: twice a geometric series of its increments, of
            # which the larger ratio of two in a row stands for all that follow.
            if len(sums) < 4:
                continue
            older, old, new = (b - a for a, b in zip(sums[-4:], sums[-3:], strict=False))
            ratio = 0.0
            if older > 0:
                ratio = old / older
            if old > 0:
                ratio = max(ratio, new / old)
            remainder = math.inf
            if ratio < 1:
                remainder = 2 * new * ratio / (1 - ratio) / sums[-1]
        if remainder > self.tolerance and not self._run.is_exhausted:
            growth = f"it may grow by about {100 * remainder:.1g} % ({self._run.steps} products)"
            checks.warn("Spectrum", f"the complexity has not converged: {growth}.", stacklevel=4)
        return self._inverse_sum()

    @functools.cached_property
    def ratio(self) -> float:
        """The number to read: the complexity over that of the same targets in random order (one shuffle, fixed seed).

        1 means that the targets look like noise to H, 0 that they are nothing but its leading directions.
        """
        return complexity_ratio(self.complexity, self.shuffled(torch.Generator().manual_seed(0)).complexity)

    @functools.cached_property
    def bracket(self) -> tuple[float, float]:
        r"""Certain bounds ``(low, high)`` on the complexity.

        From a Cholesky factor: the value, and the worst effect of rounding. Otherwise the Gauss rule below and the
        Gauss-Radau rule above, moved outwards by the worst effect of rounded products and of the storage of H. For
        ``ReLUGram`` the rounding of H itself counts, too: rows that are nearly equal widen the bracket. ``high``
        is ``inf`` unless a floor on the least eigenvalue is known: given, or proved as for ``ReLUGram``.
        """
        floor = self.floor
        if math.isinf(self.complexity):
            return self._low(self._worst(0.0)), math.inf

        # By the factor, where rounding can have changed little.
        if floor is not None and self._dense is not None:
            slack = self._factor.slack(floor, self._error)
            if slack < _BRACKET:
                return self._dense * (1 - slack), self._dense * (1 + slack)
        if math.isinf(self._gauss):
            return self._low(self._worst(0.0)), math.inf

        # By Lanczos: the upper rule falls with every product, and is stopped when it is close to the lower one.
        high = math.inf
        while floor is not None:
            high = sum(float((weights / nodes).sum()) for nodes, weights in self._rules(floor))
            closed = high <= (1 + _BRACKET) * self._inverse_sum()
            if closed or self._run.is_exhausted or self._run.steps >= self.max_products:
                break
            self._run.extend(_STRIDE)
        worst = self._worst(floor or 0.0)
        if floor is not None:
            high *= 1 + worst / floor
        return self._low(worst), high

    @functools.cached_property
    def floor(self) -> float | None:
        """The known lower bound on the least eigenvalue; None if none above 0 is known.

        Raises:
            ValueError: the floor given is disproved by a Rayleigh quotient below it.
        """
        if self._given_floor is None:
            return None
        if isinstance(self._given_floor, Proof):
            floor = self._given_floor.floor
        else:
            # No Rayleigh quotient lies below the least eigenvalue: one below the floor disproves it.
            floor = self._given_floor
            self._run.extend(_STRIDE - min(self._run.steps, _STRIDE))
            quotient = min(float(nodes.min()) for nodes, _ in self._rules())
            if floor > quotient * (1 + 1e-9):
                need = "floor must not lie above the least eigenvalue"
                came = f"{floor:g}, where a Rayleigh quotient is {quotient:g}"
                raise ValueError(checks.sentence("Spectrum", need, came))
        floor -= self._error
        if floor <= 0:
            return None
        return floor

    @functools.cached_property
    def _error(self) -> float:
        """Bound on the spectral norm of (H as stored - true H)."""
        if isinstance(self._given_floor, Proof):
            return self._gram.error + self._given_floor.error
        return self._gram.error

    @functools.cached_property
    def largest_stable_lr(self) -> float:
        r""":math:`2 / \lambda_1`: gradient descent above this rate diverges."""
        return 2.0 / self._largest

    @property
    def mean_diagonal(self) -> float:
        """Mean of H's diagonal: the scale of the kernel."""
        return self._gram.trace / self._gram.n

    @property
    def effective_dimension(self) -> float:
        r""":math:`(\mathrm{tr} H)^2 / \mathrm{tr}(H^2)`: n for the identity, 1 for rank one."""
        return self._gram.trace**2 / self._gram.squared_norm

    @functools.cached_property
    def alignment(self) -> float:
        r"""Kernel-target alignment :math:`\langle H, Y Y^T \rangle / (\|H\|_F \|Y Y^T\|_F)`, in [0, 1]."""
        self._run.extend(1 - min(self._run.steps, 1))
        # <H, Y Y^T> = sum_c y_c^T H y_c, which the first Lanczos step of each column has.
        inner = float((self._run.alphas[:, 0] * self._run.norms.square()).sum())
        return inner / (math.sqrt(self._gram.squared_norm) * float((self._columns.mT @ self._columns).norm()))

    @property
    def bound(self) -> float:
        r""":math:`\sqrt{2 y^T H^{-1} y / n}`, the leading term of the test-error bound of Arora et al. (2019)."""
        return math.sqrt(2 * self.complexity / self._gram.n)

    # --- training ---------------------------------------------------------------------------------------------

    def convergence(self, lr: float, steps: int) -> Tensor:
        r"""Predicted :math:`\|Y - u(t)\|` for t = 0..steps under full-batch descent, ``(steps + 1,)``.

        :math:`\sqrt{\sum_c \sum_i (1 - \eta \lambda_i)^{2t} (v_i^T y_c)^2}` (spectral2019, Eq. 3-4), by the
        Gauss rule of the targets' Lanczos process, which is exact from steps + 1 products on and stops when
        it settles.

        Args:
            lr: :math:`\eta`, for the loss of half the sum of squares.
            steps: How many steps.
        """
        checks.positive("Spectrum.convergence", "lr", lr)
        checks.integer("Spectrum.convergence", "steps", steps, 0)
        self._run.extend(1 - min(self._run.steps, 1))
        powers = torch.arange(steps + 1, dtype=torch.float64, device=self._columns.device)
        curve = self._sum_until_settled(lambda nodes: (1 - lr * nodes[:, None]).abs() ** (2 * powers), steps + 1).sqrt()
        stable = 2 / self._largest_node()
        if lr > stable:
            checks.warn("Spectrum.convergence", f"lr {lr:g} is above the largest stable one, {stable:.4g}.")
        return curve

    def laziness(self, lr: float, steps: int, *, width: int, scale: float) -> float:
        r"""How far the network leaves the regime of the prediction: do not trust the curve above about 1.

        The predicted movement of a weight over its size at the start,
        :math:`\|W(t) - W(0)\|_F / (\kappa \sqrt{m})` with
        :math:`\|W(t) - W(0)\|_F^2 = \sum_i (1 - (1 - \eta \lambda_i)^t)^2 (v_i^T y)^2 / \lambda_i`: units
        whose weight moves by its own size switch on and off, and H moves with them. On MNIST the curve was off by
        0.1 % at 0.06, 0.6 % at 0.6, 1 % at 1.7 and 17 % at 5.7. If the network starts at u(0) far from 0, subtract
        u(0) from the targets first.

        Args:
            lr: :math:`\eta`.
            steps: t.
            width: m, the hidden units.
            scale: :math:`\kappa`, the standard deviation of the first weights.
        """
        checks.positive("Spectrum.laziness", "lr", lr)
        checks.positive("Spectrum.laziness", "scale", scale)
        checks.integer("Spectrum.laziness", "steps", steps, 1)
        checks.integer("Spectrum.laziness", "width", width, 1)
        self._run.extend(1 - min(self._run.steps, 1))

        # The squared movement along each direction, as a function of its eigenvalue; 0 in the null space.
        def squared_movement(nodes: Tensor) -> Tensor:
            learned = 1 - (1 - lr * nodes) ** steps
            return (learned.square() / torch.where(nodes > 0, nodes, torch.inf))[:, None]

        return math.sqrt(float(self._sum_until_settled(squared_movement, steps + 1))) / (scale * math.sqrt(width))

    def shuffled(self, generator: torch.Generator | None = None) -> Spectrum:
        """The same H against the same targets in random order, which have no structure."""
        # Shuffled on the CPU, so that the order does not depend on the device.
        order = torch.randperm(self._gram.n, generator=generator).to(self._columns.device)
        return self._replace_columns(self._columns[order])

    def against(self, targets: Tensor) -> Spectrum:
        """The same H against other targets, floating ``(n,)`` or ``(n, c)``; the factorization is reused."""
        checks.finite("Spectrum.against", "targets", targets)
        columns = targets.detach().double().reshape(len(targets), -1).to(self._columns.device)
        checks.same_length("Spectrum.against", "targets", columns, "H", self._columns)
        return self._replace_columns(columns)

    def _replace_columns(self, columns: Tensor) -> Spectrum:
        return Spectrum(
            self._gram, columns, k=self.k, floor=self._given_floor, tolerance=self.tolerance, factor=self._factor,
            max_products=self.max_products,
        )  # fmt: skip

    def plot(self) -> Figure:
        """Where H's mass lies, where the targets' mass lies, and how fast it is learned (spectral2019, Figure 1)."""
        figure, (values, shares, losses) = canvas(1, 3)
        index = range(1, self.k + 1)
        values.plot(index, self.eigenvalues.clamp_min(1e-300).cpu().numpy())
        values.set(xlabel="eigenvalue, by rank", title="Eigenvalues of H", xscale="log", yscale="log")
        shares.plot(index, self.projections.cumsum(0).cpu().numpy())
        shares.set(xlabel="eigenvalues counted", title="Share of the targets they hold", ylim=(0, 1.02))
        curve = self.convergence(0.5 * self.largest_stable_lr, 200)
        losses.plot((curve / curve[0]).cpu().numpy())
        losses.set(xlabel="step, at half the largest rate", title="Predicted residual", yscale="log")
        return figure

    # --- quadrature -------------------------------------------------------------------------------------------

    @functools.cached_property
    def _squared_norm(self) -> float:
        return float(self._columns.square().sum())

    @functools.cached_property
    def _largest(self) -> float:
        if "_top" in self.__dict__:
            return float(self.eigenvalues[0])
        return float(top_eigh(self._gram, 1, start=self._start()).values[0])

    def _rules(self, floor: float | None = None) -> list[tuple[Tensor, Tensor]]:
        """Nodes and weights of a rule for each column that is not 0; the weights sum to its squared norm.

        Gauss rules, or with a floor Gauss-Radau rules that have a node there; a column whose Krylov space is exhausted
        has an exact Gauss rule.
        """
        rules = []
        for column, norm in enumerate(self._run.norms):
            if float(norm) == 0:
                continue
            alphas, betas = self._run.tridiagonal(column)
            if floor is None or float(betas[-1]) == 0.0:
                nodes, weights = gauss(alphas, betas)
            else:
                nodes, weights = radau(alphas, betas, floor)
            rules.append((nodes, weights * norm.square()))
        return rules

    def _largest_node(self) -> float:
        return max(float(nodes.max()) for nodes, _ in self._rules())

    def _sum_until_settled(self, f: Callable[[Tensor], Tensor], exact: int) -> Tensor:
        """``sum_i w_i f(nodes)``, over rows of f, with products added until the rule settles or is exact."""
        previous: Tensor | None = None
        while True:
            total = torch.stack([weights @ f(nodes) for nodes, weights in self._rules()]).sum(0)
            if self._run.steps >= min(exact, self.max_products) or self._run.is_exhausted:
                return total
            if previous is not None and bool(((total - previous).abs() <= 1e-10 * total).all()):
                return total
            previous = total
            self._run.extend(_STRIDE)

    def _inverse_sum(self) -> float:
        """Gauss rule of 1 / x; ``inf`` where the targets have a share at nodes that are 0 to rounding."""
        total, null = 0.0, 0.0
        for nodes, weights in self._rules():
            # Nodes below the cut are 0 to rounding: what the targets have there makes the sum infinite. A negative node
            # shows that rounding is larger than that of products: of rows that are nearly parallel, an arc cosine has
            # half the digits of its cosine. More than that is not rounding.
            lowest, largest = float(nodes.min()), float(nodes.max())
            cut = self._gram.noise * largest
            if lowest < -max(1e3 * cut, _HALF_DIGITS * largest):
                got = f"a Rayleigh quotient of {lowest:.3e}"
                raise ValueError(checks.sentence("Spectrum", "H must be positive semi-definite", got))
            cut = max(cut, -lowest)
            above = nodes > cut
            null += float(weights[~above].sum())
            total += float((weights[above] / nodes[above]).sum())
        if null > _NULL * self._squared_norm:
            return math.inf
        return total

    def _worst(self, floor: float) -> float:
        """Largest change of an eigenvalue by rounding in products and by the error of H as it is stored."""
        return self._gram.rounding * (math.sqrt(self._gram.n) * floor + self._largest_node()) + self._error

    def _low(self, worst: float) -> float:
        """The Gauss rule of 1 / (x + worst): below the complexity of every matrix that is no farther than that."""
        total = 0.0
        for nodes, weights in self._rules():
            total += float((weights / (nodes.clamp_min(self._gram.noise * float(nodes.max())) + worst)).sum())
        return total


def complexity_ratio(complexity: float, control: float) -> float:
    """The complexity over that of shuffled targets; 1 where both are infinite."""
    if math.isinf(complexity) and math.isinf(control):
        return 1.0
    return complexity / control  # 0 where only the control is infinite
