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
from ..linalg.ridge import ridge_loo
from ..machines.calibration import Calibration
from ..machines.kernel_ridge import seeded
from ..rows import Rows
from ..rows.agreement import has_several_ranks, share_generator, unite_values
from .auto import EXACT_ROWS, fit_auto
from .closed_form import Chain, fit_closed_form
from .dependence import one_hot
from .estimator import Array, KernelNetworkEstimator, least_rows, to_array
from .network import FittedNetwork, KernelNetwork, LinearLayer, Standardize
from .spectral import fit_spectral

_RIDGES = [10.0**e for e in range(-6, 3)]
_SOLVERS = ("auto", "spectral", "closed_form")


def _is_auto(estimator: KernelNetworkClassifier) -> bool:
    return bool(estimator.solver == "auto")


class KernelNetworkClassifier(ClassifierMixin, KernelNetworkEstimator):  # type: ignore[misc]
    r"""A network of kernels, learned layer by layer in closed form: no gradient descent, nothing to tune.

    Use it where you want a network of kernel layers, one to go on training in torch; for a raw table take
    `mercer.tabular.TabularClassifier`.

    Args:
        solver: ``"auto"`` is kernel ridge in a metric that it learns where that helps. ``"spectral"`` and
            ``"closed_form"`` are the poster's :math:`W^*` and :math:`W_s` (masoomi2020, Eq. 9 and 2) with a ridge head.
        kernel: Of ``auto``: a kernel of the library for the last layer, or ``"auto"``: chosen by leave-one-out among
            Laplacian (by column and Euclidean), Matern, Gaussian, network, polynomial and linear kernels, the best few
            averaged. ``"gaussian"`` keeps to the Gaussian.
        max_layers: Most layers.
        rule: How ``closed_form`` chooses bandwidths: ``"leave_one_out"``, or ``"authors"``: the first that raises HSIC.
        extra_dimensions: Columns of ``closed_form`` for the wrongly assigned rows of each class.
        features: Random Fourier features of a layer of ``spectral``.
        landmarks: Number of rows that carry weights in ``auto``; None: all of them.
        exact_rows: Rows up to which the Gram matrix is held; beyond, all rows take part by EigenPro.
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
        kernel: Any = "auto",
        max_layers: int = 12,
        rule: str = "leave_one_out",
        extra_dimensions: bool = False,
        features: int = 300,
        landmarks: int | None = None,
        exact_rows: int = EXACT_ROWS,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.solver = solver
        self.kernel = kernel
        self.max_layers = max_layers
        self.rule = rule
        self.extra_dimensions = extra_dimensions
        self.features = features
        self.landmarks = landmarks
        self.exact_rows = exact_rows
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from rows ``(n, d)`` and labels ``(n,)`` of any kind; with several ranks, each passes its own rows."""
        x, labels = self._check_input(X, y)
        self._fit(x, labels)
        return self

    def decision_function(self, X: ArrayLike) -> Array:
        """Calibrated logits ``(n, c)``; for two classes ``(n,)``, above 0 for the second."""
        logits = self._outputs(X).numpy()
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probabilities ``(n, c)``, calibrated on the scores of rows left out; none below 1 / (2 (rows + classes))."""
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
        first = not hasattr(self, "machine_")
        if first:
            x, labels = self._check_input(X, y, classes)
            self._fit(x, labels, landmarks=self.landmarks or min(Rows(x).n, 2000))
            return self
        checked = validate_data(
            self, to_array(X), to_array(y), reset=False, dtype=np.float64, ensure_min_samples=least_rows(1)
        )
        x = checks.squarable(where, "X", torch.from_numpy(np.array(checked[0], order="C")), empty=True)
        labels = self._encode(np.asarray(checked[1]))
        self._extend(x, one_hot(labels, len(self.classes_)))
        return self

    def _check_input(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> tuple[Tensor, Tensor]:
        where = type(self).__name__
        checks.choice(where, "solver", self.solver, _SOLVERS)
        self._check_arguments(where)
        checks.integer(where, "features", self.features, 1)
        rows, target = validate_data(self, to_array(X), to_array(y), dtype=np.float64, ensure_min_samples=least_rows(2))
        if len(target):
            check_classification_targets(target)
        self.classes_ = np.unique(target if classes is None else np.asarray(classes))
        if has_several_ranks():  # the labels that any rank has seen
            self.classes_ = np.array(unite_values(self.classes_.tolist()))
        if len(self.classes_) < 2:
            fix = "A classifier needs rows of at least two classes."
            got = f"one class, {str(self.classes_[0])!r}"
            raise ValueError(checks.sentence(where, "y must hold at least two classes", got, fix))
        x = checks.squarable(where, "X", torch.from_numpy(np.array(rows, order="C")), empty=True)
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
        c, generator = len(self.classes_), share_generator(seeded(self.random_state))
        n = Rows(x).n
        with torch.no_grad():
            if self.solver == "auto":
                fit = fit_auto(
                    x,
                    one_hot(labels, c),
                    task="classes",
                    max_layers=self.max_layers,
                    landmarks=landmarks or self.landmarks,
                    exact_rows=self.exact_rows,
                    kernel=self.kernel,
                    generator=generator,
                )
            else:
                # Kernels between all pairs of rows: every rank learns the same.
                every_x, every_label = Rows(x, labels).gather()
                first = Standardize.of(every_x)
                z, most = first(every_x), self.max_layers
                if self.solver == "spectral":
                    chain = fit_spectral(
                        z, every_label, c, max_layers=most, features=self.features, generator=generator
                    )
                else:
                    extra = self.extra_dimensions
                    chain = fit_closed_form(z, every_label, c, rule=self.rule, max_layers=most, extra=extra)
                fit = _end_with_ridge(first, chain, every_label, c)
            known = Rows(labels).gather() if len(fit.rows) == n else Rows(labels).take(fit.rows)
            calibration = Calibration.of(fit.left_out, known, rows=n)
        scale = torch.full((1,), calibration.scale, dtype=torch.float64)
        self._finish(fit, KernelNetwork(fit.modules, x.shape[1], scale, calibration.bias, calibration.floor))


def _end_with_ridge(first: Standardize, chain: Chain, labels: Tensor, c: int) -> FittedNetwork:
    """The poster's chain with a linear ridge on its representation, by leave-one-out."""
    spread = float(chain.representation.std()) or 1.0
    ridge = ridge_loo(chain.representation / spread, one_hot(labels, c), _RIDGES)
    head = LinearLayer(ridge.coefficients / spread, ridge.intercept)
    history = [record.row() for record in chain.history]
    numbers = torch.arange(len(labels))
    modules: list[nn.Module] = [first, *chain.layers, head]
    return FittedNetwork(modules, list(chain.layers), history, ridge.held_out, numbers, ridge.penalty)
