"""Three ways to learn a classifier's network, each a settings object with one method, ``fit``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..kernels import Kernel
from ..linalg.ridge import ridge_loo
from ..machines.landmarks import LandmarkMachine
from ..machines.selection import median_distance
from ..rows import Rows
from .auto import AutoFit, fit_auto
from .closed_form import Chain, fit_closed_form
from .dependence import gaussian, one_hot
from .network import LinearLayer, Standardize
from .record import measure_gram
from .spectral import fit_spectral

_RIDGES = [10.0**e for e in range(-6, 3)]
_RECORDED = 1000  # rows on which the default solver's layers are measured


class Solved(NamedTuple):
    """A network's modules, before calibration.

    Attributes:
        modules: From raw rows to one score a class.
        layers: Those that count as layers.
        history: One dictionary a layer.
        scores: ``(r, c)``, of rows left out.
        rows: ``(r,)``, which rows those are, numbered over all ranks.
        penalty: Ridge of the last layer.
        sums: What an exact update needs; None where there is none.
    """

    modules: list[nn.Module]
    layers: list[nn.Module]
    history: list[dict[str, float]]
    scores: Tensor
    rows: Tensor
    penalty: float
    sums: LandmarkMachine | None = None


class Solver(Protocol):
    """What a solver offers."""

    def fit(self, x: Tensor, labels: Tensor, c: int, generator: torch.Generator | None) -> Solved:
        """Learn from this rank's rows ``(n, d)`` and classes ``0..c - 1``."""


@dataclass(frozen=True)
class AutoSolver:
    """Kernel machines with chosen kernels, in a metric that is learned where that helps."""

    kernel: Kernel | str
    max_layers: int
    landmarks: int | None
    exact_rows: int

    def fit(self, x: Tensor, labels: Tensor, c: int, generator: torch.Generator | None) -> Solved:
        """See :func:`~mercer.layerwise.auto.fit_auto`."""
        fit = fit_auto(
            x,
            one_hot(labels, c),
            task="classes",
            max_layers=self.max_layers,
            landmarks=self.landmarks,
            exact_rows=self.exact_rows,
            kernel=self.kernel,
            generator=generator,
        )
        end, history = fit.ending, _measure_layers(fit, x, labels, c)
        return Solved(fit.modules, fit.layers, history, end.held_out, end.rows, end.penalty, end.sums)


@dataclass(frozen=True)
class SpectralSolver:
    """The poster's eigenvectors W* with random Fourier features (masoomi2020, Eq. 9), and a ridge."""

    max_layers: int
    features: int

    def fit(self, x: Tensor, labels: Tensor, c: int, generator: torch.Generator | None) -> Solved:
        """See :func:`~mercer.layerwise.fit_spectral`."""
        x, labels = Rows(x, labels).gather()  # kernels between all pairs of rows: every rank learns the same
        first = Standardize.of(x)
        chain = fit_spectral(
            first(x), labels, c, max_layers=self.max_layers, features=self.features, generator=generator
        )
        return _add_ridge(first, chain, labels, c)


@dataclass(frozen=True)
class ClosedFormSolver:
    """The poster's sums W_s of kernel embeddings (masoomi2020, Eq. 2), and a ridge."""

    rule: str
    max_layers: int
    extra: bool

    def fit(self, x: Tensor, labels: Tensor, c: int, generator: torch.Generator | None) -> Solved:
        """See :func:`~mercer.layerwise.fit_closed_form`; nothing is random."""
        x, labels = Rows(x, labels).gather()
        first = Standardize.of(x)
        chain = fit_closed_form(first(x), labels, c, rule=self.rule, max_layers=self.max_layers, extra=self.extra)
        return _add_ridge(first, chain, labels, c)


def _add_ridge(first: Standardize, chain: Chain, labels: Tensor, c: int) -> Solved:
    spread = float(chain.representation.std()) or 1.0
    ridge = ridge_loo(chain.representation / spread, one_hot(labels, c), _RIDGES)
    head = LinearLayer(ridge.coefficients / spread, ridge.intercept)
    history = [record.row() for record in chain.history]
    modules: list[nn.Module] = [first, *chain.layers, head]
    return Solved(modules, list(chain.layers), history, ridge.held_out, torch.arange(len(labels)), ridge.penalty)


def _measure_layers(fit: AutoFit, x: Tensor, labels: Tensor, c: int) -> list[dict[str, float]]:
    """The metrics and the last layer, each with its record on at most 1,000 rows."""
    rows = Rows(x, labels)
    x, labels = rows.take(torch.linspace(0, rows.n - 1, min(rows.n, _RECORDED)).round().long())
    z, history = nn.Sequential(*fit.encoding)(x), []
    for metric in fit.metrics:
        z = metric(z)
        sigma = median_distance(z)
        history.append(measure_gram(gaussian(sigma)(z), z, labels, c, sigma).row())
    out = nn.Sequential(*fit.modules)(x).double()
    gram = gaussian(median_distance(out))(out)
    return [*history, measure_gram(gram, out, labels, c, fit.ending.head.bandwidth).row()]
