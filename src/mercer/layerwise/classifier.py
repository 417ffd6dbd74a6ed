"""The classifier: three solvers behind scikit-learn's interface."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor, nn

from .. import checks
from ..distributed import (
    gather_json,
    gather_rows,
    global_slice,
    shared_generator,
    sum_over_ranks,
    take_rows,
    world_size,
)
from ..linalg import ridge_loo
from .auto import fit_auto
from .calibration import inverse_temperature
from .closed_form import Chain, fit_closed_form
from .dependence import gaussian_gram, one_hot
from .estimator import Array, KernelNetworkEstimator, least_rows, rows_of, seeded
from .kernel_ridge import median_of_rows
from .network import KernelLayer, KernelNetwork, LinearLayer, Standardize
from .record import measure_gram
from .spectral import SpectralLayer, fit_spectral

__all__ = ["KernelNetworkClassifier"]

_SOLVERS = ("auto", "spectral", "closed_form")
_RIDGES = [10.0**e for e in range(-6, 3)]
_RECORDED = 1000  # rows on which the default solver's layers are measured


def _is_auto(estimator: KernelNetworkClassifier) -> bool:
    return bool(estimator.solver == "auto")


class KernelNetworkClassifier(ClassifierMixin, KernelNetworkEstimator):  # type: ignore[misc]
    r"""A network of kernels, learned layer by layer in closed form: no gradient descent, nothing to tune.

    Args:
        solver: ``"auto"`` is kernel ridge in a metric that it learns where that helps. ``"spectral"`` and
            ``"closed_form"`` are the poster's :math:`W^*` and :math:`W_s` (masoomi2020, Eq. 9 and 2) with a ridge head.
        max_layers: Most layers.
        rule: How ``closed_form`` chooses bandwidths: ``"leave_one_out"``, or ``"authors"``: the first that raises HSIC.
        extra_dimensions: Columns of ``closed_form`` for the wrongly assigned rows of each class.
        features: Random Fourier features of a layer of ``spectral``.
        landmarks: Anchors of ``auto``; None: every row up to 3,000 rows; beyond, 2,000 and 8 % of the rows, at most
            6,500.
        random_state: Randomness of features, subsets and landmarks.
        verbose: Log the layers at level INFO rather than DEBUG, to ``logging.getLogger("mercer")``.

    Attributes:
        classes_: Labels, sorted.
        layers_: The layers as torch modules.
        n_layers_: Their number.
        history_: One dictionary a layer: bandwidth, width, hsic (normalised), mse, ce, c, t
            (:class:`~mercer.layerwise.LayerRecord`).
        network_: The whole network, from raw rows to calibrated logits.

    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> bool(KernelNetworkClassifier(random_state=0).fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.95)
    True
    """

    def __init__(
        self,
        *,
        solver: str = "auto",
        max_layers: int = 12,
        rule: str = "leave_one_out",
        extra_dimensions: bool = False,
        features: int = 300,
        landmarks: int | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.solver = solver
        self.max_layers = max_layers
        self.rule = rule
        self.extra_dimensions = extra_dimensions
        self.features = features
        self.landmarks = landmarks
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from rows ``(n, d)`` and labels ``(n,)`` of any kind; of several ranks each gives its own rows."""
        x, labels = self._checked(X, y)
        self._fit(x, labels)
        return self

    def decision_function(self, X: ArrayLike) -> Array:
        """Calibrated logits ``(n, c)``; for two classes ``(n,)``, above 0 for the second."""
        logits = self._outputs(X).numpy()
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probabilities ``(n, c)``, calibrated on leave-one-out scores."""
        return self._outputs(X).softmax(1).numpy()

    def predict(self, X: ArrayLike) -> Array:
        """The most probable label of each row."""
        outputs = self._outputs(X)
        labels: Array = self.classes_[outputs.argmax(1).numpy()]
        return labels

    @available_if(_is_auto)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Add rows, exactly: the ridge afterwards is that of all rows so far.

        The first call, or :meth:`fit`, chooses standardisation, metric, bandwidth, ridge, landmarks and temperature,
        which stay; after :meth:`fit` on few rows all of them are landmarks.

        Args:
            X: Rows.
            y: Labels.
            classes: All labels there will be; needed at the first call where its rows do not show them all.
        """
        where = type(self).__name__
        first = not hasattr(self, "sums_")
        if first:
            x, labels = self._checked(X, y, classes)
            self._fit(x, labels, landmarks=self.landmarks or min(global_slice(len(x))[1], 2000))
            return self
        checked = validate_data(
            self, rows_of(X), rows_of(y), reset=False, dtype=np.float64, ensure_min_samples=least_rows(1)
        )
        x = checks.squarable(where, "X", torch.from_numpy(np.array(checked[0])), empty=True)
        labels = self._encode(np.asarray(checked[1]))
        self._extend(x, one_hot(labels, len(self.classes_)) - self.target_mean_, self.target_mean_)
        return self

    def _checked(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> tuple[Tensor, Tensor]:
        where = type(self).__name__
        checks.choice(where, "solver", self.solver, _SOLVERS)
        self._check_arguments(where)
        checks.integer(where, "features", self.features, 1)
        rows, target = validate_data(self, rows_of(X), rows_of(y), dtype=np.float64, ensure_min_samples=least_rows(2))
        if len(target):
            check_classification_targets(target)
        self.classes_ = _of_all_ranks(np.unique(target if classes is None else np.asarray(classes)))
        if len(self.classes_) < 2:
            fix = "A classifier needs rows of at least two classes."
            got = f"one class, {str(self.classes_[0])!r}"
            raise ValueError(checks.sentence(where, "y must hold at least two classes", got, fix))
        x = checks.squarable(where, "X", torch.from_numpy(np.array(rows)), empty=True)
        return x, self._encode(np.asarray(target))

    def _encode(self, y: Array) -> Tensor:
        y = y.astype(self.classes_.dtype) if not len(y) else y
        places = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        wrong = self.classes_[places] != y
        if wrong.any():
            need = f"labels must be among {', '.join(map(str, self.classes_))}"
            raise ValueError(checks.sentence(type(self).__name__, need, repr(y[wrong][0])))
        return torch.from_numpy(places.astype(np.int64))

    def _fit(self, x: Tensor, labels: Tensor, landmarks: int | None = None) -> None:
        with torch.no_grad():
            if self.solver == "auto":
                self._fit_auto(x, labels, self.landmarks if landmarks is None else landmarks)
            else:
                self._fit_chain(x, labels)

    def _fit_auto(self, x: Tensor, labels: Tensor, landmarks: int | None) -> None:
        c = len(self.classes_)
        targets = one_hot(labels, c)
        mean = sum_over_ranks(targets.sum(0)) / global_slice(len(x))[1]
        fit = fit_auto(
            x,
            targets - mean,
            task="classes",
            max_layers=self.max_layers,
            landmarks=landmarks,
            generator=shared_generator(seeded(self.random_state)),
        )
        fit.head.intercept = fit.head.intercept + mean
        beta = inverse_temperature(fit.held_out + mean, take_rows(labels, fit.rows))
        network = KernelNetwork([*fit.layers, fit.head], x.shape[1], torch.full((1,), beta).double(), mean.new_zeros(c))
        self.sums_, self.target_mean_, self.penalty_ = fit.sums, mean, fit.penalty
        self._finish(*_auto_history(fit.layers, fit.head, x, labels, c), network)

    def _fit_chain(self, x: Tensor, labels: Tensor) -> None:
        c = len(self.classes_)
        x, labels = gather_rows(x), gather_rows(labels)  # kernels between all pairs of rows: every rank learns the same
        first = Standardize.of(x)
        chain = self._chain(first(x), labels, c)
        last = chain.layers[-1]
        representation = last.features(chain.outputs) if isinstance(last, SpectralLayer) else chain.outputs
        spread = float(representation.std()) or 1.0
        ridge = ridge_loo(representation / spread, one_hot(labels, c), _RIDGES)
        head = LinearLayer(ridge.coefficients / spread, ridge.intercept)
        beta = inverse_temperature(ridge.held_out, labels)
        layers = [first, *chain.layers, head]
        network = KernelNetwork(layers, x.shape[1], torch.full((1,), beta).double(), x.new_zeros(c))
        self._finish(chain.layers, [record.row() for record in chain.history], network)

    def _chain(self, z: Tensor, labels: Tensor, c: int) -> Chain:
        if self.solver == "spectral":
            generator = shared_generator(seeded(self.random_state))
            return fit_spectral(z, labels, c, max_layers=self.max_layers, features=self.features, generator=generator)
        return fit_closed_form(z, labels, c, rule=self.rule, max_layers=self.max_layers, extra=self.extra_dimensions)


def _of_all_ranks(classes: Array) -> Array:
    """The labels that any rank has seen, sorted."""
    if world_size() == 1:
        return classes
    seen = [label for labels in gather_json(classes.tolist()) for label in labels]
    return np.unique(np.array(seen))


def _auto_history(
    before: list[nn.Module], head: KernelLayer, x: Tensor, labels: Tensor, c: int
) -> tuple[list[nn.Module], list[dict[str, float]]]:
    """The metrics and the kernel machine as layers, each with its record on at most 1,000 rows."""
    n = global_slice(len(x))[1]
    rows = torch.linspace(0, n - 1, min(n, _RECORDED)).round().long()
    z, labels = take_rows(x, rows), take_rows(labels, rows)
    depth = next(i for i, layer in enumerate(before) if isinstance(layer, Standardize)) + 1
    z = nn.Sequential(*before[:depth])(z)
    layers, history = [*before[depth:], head], []
    for layer in layers:
        z = layer(z)
        spread = median_of_rows(z)
        sigma = head.bandwidth if layer is head else spread
        history.append(measure_gram(gaussian_gram(z, z, spread), z, labels, c, sigma).row())
    return layers, history
