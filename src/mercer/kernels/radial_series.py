r"""The learnable Schoenberg series: every radial kernel on the sphere, cut off at an order.

Schoenberg (1942): a function of :math:`t = \langle u, v \rangle` is positive definite on the sphere of :math:`R^d`
exactly when its series in the Gegenbauer polynomials of d has no negative coefficient. Positive definite in *every*
dimension are only the series in powers of t without a negative coefficient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from typing_extensions import override

from .. import checks
from ..linalg.distances import norms_and_units, unit_rows
from .base import Kernel

Factors = tuple[tuple[float, float], ...] | None  # of the Gegenbauer recurrence; None for powers
TEMPERATURES = {"sigmoid": 0.1, "softmax": 0.005}  # divisors of bounded kernels in jayasumana2021, Appendix D.5
_ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {  # and their inverses
    "relu": (torch.relu, torch.clone),
    "softplus": (F.softplus, lambda alpha: alpha.expm1().log()),
    "sigmoid": (torch.sigmoid, lambda alpha: alpha.clamp(max=0.99).logit()),
    "softmax": (lambda raw: raw.softmax(0), torch.log),
    "none": (lambda raw: raw + 0.0, torch.clone),
}
_UNIT_SUM = 4.0  # k(1) of init="unit" where the activation is unbounded
_TOLERANCE = 16.0  # units in the last place within which a cosine counts as +-1 for the exact indicators


@dataclass(frozen=True)
class Certificate:
    """Whether a radial series is positive definite, and how that is known.

    Args:
        positive_definite: the verdict; True from ``"eigenvalues"`` means that no counter-example was found.
        proof: ``"monomials"`` (no negative power: every dimension), ``"gegenbauer"`` (Schoenberg, in this dimension,
            both ways) or ``"eigenvalues"`` (a Gram matrix of random unit vectors).
        dim: the dimension d that the verdict is for; None for every one.
        least: the smallest coefficient, or the smallest eigenvalue over the largest.
    """

    positive_definite: bool
    proof: str
    dim: int | None
    least: float


class RadialSeries(Kernel):
    r"""Learnable radial kernel on the unit sphere, with :math:`t = \langle x, y \rangle / (\|x\| \|y\|)`.

    .. math:: k(x, y) = \alpha_{-2} [t = \pm 1] + \alpha_{-1} ([t = 1] - [t = -1]) + \sum_{m=0}^{M} \alpha_m P_m(t)

    (jayasumana2021, Eq. 6-7.) With :math:`P_m(t) = t^m` and no negative :math:`\alpha_m` these are, as M grows, the
    kernels that are positive definite on the sphere of *every* dimension. On the sphere of one :math:`R^d` there are
    more: the series in the Gegenbauer polynomials of d, each scaled to :math:`P_m(1) = 1` (Schoenberg, 1942).

    Rows are put on the sphere first; a row of zeros keeps the constant term only. Half precision is computed in
    float32.

    Args:
        order: M.
        basis: ``"monomial"`` or ``"gegenbauer"``.
        positivity: How the parameter :math:`\alpha'` becomes :math:`\alpha \ge 0`. ``"none"`` leaves the class of
            kernels; ask :meth:`certificate`. ``"sigmoid"`` and ``"softmax"`` bound k(1), so that a classifier needs a
            temperature: 0.1 and 0.005 in the paper (Appendix D.5).
        init: ``"unit"`` starts at :math:`\alpha_m \propto 1 / (m + 1)` with a moderate k(1) (4 where it is unbounded,
            else 1): slopes stay small, so that a narrow network survives its first steps. ``"ones"`` is the paper's
            :math:`\alpha = 1`, with slope M (M + 1) / 2 at t = 1.
        indicators: ``"off"``; ``"exact"``, where t counts as 1 within 16 units in the last place and the gradient with
            respect to t is 0; or ``"limit"``, the powers 4 M and 4 M + 1 in their place, which have one.
        dim: d, for ``"gegenbauer"``; :class:`mercer.nn.KernelClassifier` fills it in.

    Use it in a head: it learns its own shape from the labels.

    >>> RadialSeries(3)(torch.eye(2)).shape
    torch.Size([2, 2])
    """

    _factors: Factors

    def __init__(
        self,
        order: int = 10,
        *,
        basis: str = "monomial",
        positivity: str = "relu",
        init: str = "unit",
        indicators: str = "off",
        dim: int | None = None,
    ) -> None:
        super().__init__()
        where = "RadialSeries"
        self.order = checks.integer(where, "order", order, 0)
        self.basis = checks.choice(where, "basis", basis, ("monomial", "gegenbauer"))
        self.positivity = checks.choice(where, "positivity", positivity, _ACTIVATIONS)
        self.init = checks.choice(where, "init", init, ("unit", "ones"))
        self.indicators = checks.choice(where, "indicators", indicators, ("off", "exact", "limit"))
        self.dim: int | None = None
        self._factors = None
        if dim is not None:
            self.fill_dim(dim)
        self.alpha = nn.Parameter(self._start())

    def reset_parameters(self) -> None:
        """Set the coefficients to their start values."""
        with torch.no_grad():
            self.alpha.copy_(self._start())

    def _start(self) -> Tensor:
        """The parameter whose activation gives the wanted start."""
        if self.init == "ones":  # of the parameter, as the paper has it; softplus is made to give 1
            start, count = 1.0, self.order + 1
            if self.positivity == "softplus":
                start = math.log(math.expm1(1.0))
            if self.indicators != "off":
                count += 2
            return torch.full((count,), start)
        # alpha_m in proportion to 1 / (m + 1), indicators as the last of them, with the wanted sum.
        shape = 1.0 / torch.arange(1, self.order + 2, dtype=torch.float64)
        if self.indicators != "off":
            shape = torch.cat((shape[-1:], shape[-1:], shape))
        total = _UNIT_SUM
        if self.positivity in TEMPERATURES:  # bounded
            total = 1.0
        _, invert = _ACTIVATIONS[self.positivity]
        return invert(shape / shape.sum() * total).float()

    def _activate(self) -> Tensor:  # (order + 1,), or (order + 3,) with indicators
        activation, _ = _ACTIVATIONS[self.positivity]
        return activation(self.alpha)

    @property
    def coefficients(self) -> Tensor:  # (order + 3,)
        r"""The :math:`\alpha` in the paper's order [-2, -1, 0, ..., M]; without indicators the first two are 0."""
        active = self._activate()
        if self.indicators == "off":
            return torch.cat((active.new_zeros(2), active))
        return active

    @property
    def is_polynomial(self) -> bool:
        """Whether k is a sum of powers of t and nothing else."""
        return self.basis == "monomial" and self.indicators == "off"

    @property
    def temperature(self) -> float:
        """The temperature by which the paper divides this kernel in a classifier (jayasumana2021, Appendix D.5)."""
        return TEMPERATURES.get(self.positivity, 1.0)

    def fill_dim(self, dim: int) -> None:
        """Set the dimension of the rows, unless it is known already."""
        if self.dim is None:
            self.dim = checks.integer("RadialSeries", "dim", dim, 2)
            if self.basis == "gegenbauer":
                self._factors = recurrence(self.order, dim)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        if self.basis == "gegenbauer" and not isinstance(x, fx.Proxy) and self.dim != x.shape[1]:
            need = f"x has {x.shape[1]} features, and the basis 'gegenbauer' belongs to one sphere"
            fix = f"Use RadialSeries({self.order}, basis='gegenbauer', dim={x.shape[1]})."
            raise ValueError(checks.sentence("RadialSeries", need, f"dim = {self.dim}", fix))
        alpha = self._activate().to(x.dtype)
        if self.indicators == "off":
            return gram_of_series(x, y, alpha, self._factors)
        value = gram_of_series(x, y, alpha[2:], self._factors)
        edges = _compute_indicators(unit_rows(x) @ unit_rows(y).mT, self.indicators, self.order)
        return value + alpha[0] * edges[0] + alpha[1] * edges[1]

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        alpha = self.coefficients.to(x.dtype)
        directed = norms_and_units(x.detach())[0] > 4 * torch.finfo(x.dtype).tiny  # shorter rows count as 0, as in gram
        return torch.where(directed, alpha.sum(), alpha[2])

    def profile(self, t: Tensor) -> Tensor:
        """K as a function of the cosine t, of any shape."""
        alpha = self.coefficients.to(t.dtype)
        even, odd = _compute_indicators(t, self.indicators, self.order)
        return series(t, alpha[2:], self._factors) + alpha[0] * even + alpha[1] * odd

    def certificate(self, *, dim: int | None = None, samples: int = 200, generator: Any = None) -> Certificate:
        r"""Whether k is positive definite: by its coefficients where they decide, else by a Gram matrix.

        Args:
            dim: d, the dimension asked about; the kernel's own where None.
            samples: Random unit vectors of the Gram matrix.
            generator: Draws them.
        """
        if dim is None:
            dim = self.dim
        else:
            checks.integer("RadialSeries.certificate", "dim", dim, 2)

        # No negative power: positive definite in every dimension.
        alpha = self.coefficients.detach().double().cpu()
        powers = alpha[2:]
        if self.basis == "gegenbauer":
            if self.dim is None:
                raise ValueError(checks.sentence("RadialSeries", "basis 'gegenbauer' needs dim", None))
            powers = monomials(self.order, self.dim).mT @ alpha[2:]
        indicators = float(alpha[:2].min())
        if indicators >= 0 and float(powers.min()) >= 0:
            return Certificate(True, "monomials", None, float(min(powers.min(), alpha[:2].min())))

        # No negative Gegenbauer coefficient: positive definite on the sphere of R^dim, and only then.
        if dim is not None and indicators >= 0:
            if self.basis == "gegenbauer" and dim == self.dim:
                lowest, rounding = float(alpha[2:].min()), 0.0
            else:
                table = monomials(self.order, dim).mT
                lowest = float(torch.linalg.solve_triangular(table, powers[:, None], upper=True).min())
                rounding = 1e-10 * float(powers.abs().max())
            # An indicator lifts the diagonal alone, so that a negative coefficient then decides nothing.
            if lowest >= -rounding or float(alpha[:2].max()) == 0:
                return Certificate(lowest >= -rounding, "gegenbauer", dim, lowest)

        # Undecided: the least eigenvalue of the Gram matrix of random unit vectors.
        width, samples = dim or 3, checks.integer("RadialSeries.certificate", "samples", samples, 2)
        x = unit_rows(torch.randn(samples, width, dtype=torch.float64, generator=generator))
        t = (x @ x.mT).fill_diagonal_(1.0)
        with torch.no_grad():
            gram = self.profile(t.to(self.alpha.device)).cpu()
        values = torch.linalg.eigvalsh(gram)
        lowest = float(values[0] / values.abs().max().clamp(min=torch.finfo(torch.float64).tiny))
        return Certificate(lowest > -1e-10, "eigenvalues", width, lowest)

    @override
    def get_arguments(self) -> dict[str, Any]:
        return {**super().get_arguments(), "dim": self.dim}

    def extra_repr(self) -> str:
        """Arguments and the coefficients in force."""
        shown = ", ".join(f"{a:.3g}" for a in self.coefficients.detach().tolist())
        return f"order={self.order}, basis={self.basis!r}, positivity={self.positivity!r}, alpha=[{shown}]"


def truncation_bound(alphas: Tensor, order: int) -> float:
    r"""Bound on the change by cutting :math:`\psi(t) = \sum_m \alpha_m t^m` after the order M.

    .. math:: |k - k_M| \le \frac{1}{(M + 1)!} \max_{|t| < 1} |\psi^{(M+1)}(t)|
        = \sum_{m > M} \binom{m}{M + 1} \alpha_m

    (jayasumana2021, Theorem E.1; the sum holds for :math:`\alpha \ge 0`, and with :math:`|\alpha_m|` bounds the other
    case.) Since :math:`|t| \le 1` the plain tail :math:`\sum_{m > M} |\alpha_m|` bounds it too, and is never larger.

    Args:
        alphas: :math:`\alpha_0, \alpha_1, ...` of the whole series, as far as it matters.
        order: M.
    """
    checks.integer("truncation_bound", "order", order, 0)
    if alphas.ndim != 1:
        raise ValueError(checks.sentence("truncation_bound", "alphas must have shape (m,)", tuple(alphas.shape)))
    checks.finite("truncation_bound", "alphas", alphas)
    return math.fsum(math.comb(m, order + 1) * abs(float(a)) for m, a in enumerate(alphas) if m > order)


def gram_of_series(x: Tensor, y: Tensor, a: Tensor, factors: Factors) -> Tensor:  # (n, d), (m, d) -> (n, m)
    """The series at the cosines between rows; a row of zeros has the value a_0 with every row."""
    # Rows too short to have a direction count as 0, as in gram_diag: their gradients would overflow.
    shortest = 4 * torch.finfo(x.dtype).tiny
    long_x, long_y = (norms_and_units(rows.detach())[0][:, None] > shortest for rows in (x, y))
    x, y = torch.where(long_x, x, 0.0), torch.where(long_y, y, 0.0)
    t = unit_rows(x) @ unit_rows(y).mT
    t = t + (t.detach().clamp(-1, 1) - t.detach())  # rounding leads out of [-1, 1]; gradients pass
    value = series(t, a, factors)
    return torch.where(long_x & long_y.mT, value, a[0])


def series(t: Tensor, a: Tensor, factors: Factors) -> Tensor:
    """The series at given t, by plain differentiable operations: Horner for powers, Clenshaw for Gegenbauer."""
    order = len(a) - 1
    if factors is None:
        value = torch.zeros_like(t) + a[order]
        for m in range(order - 1, -1, -1):
            value = value * t + a[m]
        return value
    # Clenshaw: b_m = a_m + A_m t b_{m+1} - B_{m+1} b_{m+2}, with b = 0 beyond the order; P_1 has the factors (1, 0).
    if order == 0:
        return torch.zeros_like(t) + a[0]
    factors = ((1.0, 0.0), *factors, (0.0, 0.0), (0.0, 0.0))
    later, value = torch.zeros_like(t), torch.zeros_like(t)
    for m in range(order, -1, -1):
        later, value = value, a[m] + factors[m][0] * t * value - factors[m + 1][1] * later
    return value


def _compute_indicators(t: Tensor, indicators: str, order: int) -> tuple[Tensor, Tensor]:
    if indicators == "limit":
        even = 2 * math.ceil(2 * max(order, 1))
        return t**even, t ** (even + 1)
    edge = t.detach().abs() >= 1 - _TOLERANCE * torch.finfo(t.dtype).eps
    even_part = edge.to(t.dtype)
    return even_part, even_part * t.detach().sign()


def recurrence(order: int, dim: int) -> tuple[tuple[float, float], ...]:
    r"""Factors (a, b) of :math:`P_{m+1}(t) = a \, t P_m(t) - b P_{m-1}(t)` for m = 1 .. order - 1.

    With :math:`\lambda = (d - 2) / 2`: :math:`a = 2 (m + \lambda) / (m + 2 \lambda)`, :math:`b = m / (m + 2 \lambda)`.
    d = 2 gives Chebyshev's polynomials, d = 3 Legendre's.
    """
    twice = float(dim - 2)
    return tuple(((2 * m + twice) / (m + twice), m / (m + twice)) for m in range(1, order))


def monomials(order: int, dim: int) -> Tensor:
    """Row m holds the coefficients of :math:`P_m` in powers of t: ``(order + 1, order + 1)``, float64."""
    rows = torch.zeros(order + 1, order + 1, dtype=torch.float64)
    rows[0, 0] = 1.0
    if order >= 1:
        rows[1, 1] = 1.0
    for m, (a, b) in enumerate(recurrence(order, dim), start=1):
        rows[m + 1, 1:] = a * rows[m, :-1]
        rows[m + 1] -= b * rows[m - 1]
    return rows


# fx.symbolic_trace keeps a call to these whole: they ask for sizes and dtypes that a symbol does not have.
fx.wrap("gram_of_series")
fx.wrap("_compute_indicators")
fx.wrap("unit_rows")
