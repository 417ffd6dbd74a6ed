"""The classifier and the regressor: scikit-learn's conventions around a fitted network."""

from __future__ import annotations

import copy
import logging
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from .. import checks
from ..kernels import Kernel
from ..linalg.ridge import ridge_loo
from ..machines.calibration import Calibration
from ..machines.kernel_ridge import seeded
from ..machines.landmarks import add_rows
from ..machines.solution import Solution
from ..rows.agreement import has_several_ranks, share_generator, unite_values
from ..rows.rows import Rows
from ..storage.savable import Savable
from .auto import EXACT_ROWS, fit_auto
from .closed_form import fit_closed_form
from .dependence import one_hot
from .network import FittedNetwork, KernelNetwork, LinearLayer, LogProbabilities, Rescale, Standardize
from .spectral import fit_spectral

Array = NDArray[Any]
_log = logging.getLogger("mercer")
_RIDGES = [10.0**e for e in range(-6, 3)]
_LANDMARKS = 2000  # rows of a first partial_fit that carry weights


class KernelNetworkEstimator(Savable, BaseEstimator):  # type: ignore[misc]
    """Checks of input, prediction by the fitted network, and its export.

    A tensor that requires a gradient is detached: an estimator is no part of the graph. Use :meth:`to_module` there.
    """

    network_: KernelNetwork
    layers_: list[nn.Module]
    history_: list[dict[str, float]]
    stem_: list[nn.Module]  # the modules before the machine that later rows are added to
    machine_: Solution | None
    penalty_: float

    def __init__(
        self, kernel: Any, max_layers: int, landmarks: int | None, exact_rows: int, random_state: Any, verbose: bool
    ) -> None:
        self.kernel = kernel
        self.max_layers = max_layers
        self.landmarks = landmarks
        self.exact_rows = exact_rows
        self.random_state = random_state
        self.verbose = verbose

    def to_module(self) -> nn.Module:
        """The network as a torch module with the same outputs, in float64, every weight a parameter.

        Classifier: ``softmax(module(x))`` is ``predict_proba(x)``; regressor: ``module(x)`` is ``predict(x)`` as
        columns. It is a copy: training it does not change the estimator.
        """
        check_is_fitted(self)
        return copy.deepcopy(self.network_).make_trainable()

    def _predict_outputs(self, X: ArrayLike) -> Tensor:  # (n, d) -> (n, c)
        check_is_fitted(self)
        checked = validate_data(self, _to_array(X), reset=False, dtype=np.float64, ensure_min_samples=1)
        x = torch.from_numpy(np.array(checked, order="C"))
        checks.squarable(type(self).__name__, "X", x)
        with torch.no_grad():
            return checks.finite(type(self).__name__, "the outputs", self.network_(x))

    def _check_input(self, X: ArrayLike, y: ArrayLike, *, first: bool, **arguments: Any) -> tuple[Tensor, Array]:
        """Rows and targets, and the estimator's own arguments; a rank of several may have no rows."""
        where = type(self).__name__
        checks.integer(where, "max_layers", self.max_layers, 1)
        if self.landmarks is not None:
            checks.integer(where, "landmarks", self.landmarks, 1)
        checks.integer(where, "exact_rows", self.exact_rows, 1)
        if not isinstance(self.kernel, Kernel):
            checks.choice(where, "kernel", self.kernel, ("auto", "gaussian"))
        checks.integer(where, "verbose", int(self.verbose), 0)
        fewest = 1 + int(first)  # rows can be added one by one; the first fit needs two
        if has_several_ranks():
            fewest = 0
        arguments |= {"reset": first, "dtype": np.float64, "ensure_min_samples": fewest}
        rows, target = validate_data(self, _to_array(X), _to_array(y), **arguments)
        x = checks.squarable(where, "X", torch.from_numpy(np.array(rows, order="C")), empty=True)
        return x, np.asarray(target)

    def _fit_auto(self, x: Tensor, y: Tensor, task: str, landmarks: int | None) -> FittedNetwork:
        with torch.no_grad():
            return fit_auto(
                x,
                y,
                task=task,
                max_layers=self.max_layers,
                landmarks=landmarks,
                exact_rows=self.exact_rows,
                kernel=self.kernel,
                generator=share_generator(seeded(self.random_state)),
            )

    def _store(self, fit: FittedNetwork, network: KernelNetwork) -> None:
        """Keep what was learned, and log each layer."""
        self.layers_, self.n_layers_ = fit.layers, len(fit.layers)
        self.history_, self.network_ = fit.history, network
        self.stem_, self.machine_, self.penalty_ = list(fit.stem), fit.machine, fit.penalty
        level = logging.DEBUG
        if self.verbose:
            level = logging.INFO
        for depth, row in enumerate(fit.history, 1):
            text = ", ".join(f"{name} {value:.4g}" for name, value in row.items())
            _log.log(level, "%s: layer %d: %s", type(self).__name__, depth, text)

    def _extend(self, x: Tensor, targets: Tensor) -> None:
        """Put more rows into the last layer: (n, d), (n, c)."""
        # The stem, and with it the metric and the bandwidth, stays; the ridge of old and new rows is solved exactly.
        assert self.machine_ is not None
        with torch.no_grad():
            z = nn.Sequential(*self.stem_)(x)
            self.machine_ = add_rows(self.machine_, z, targets, where="KernelNetwork")
        old, head = self.network_, self.machine_.bare()
        self.network_ = KernelNetwork([*self.stem_, head], old.width, old.answer)
        self.layers_ = [*self.layers_[:-1], head]


class KernelNetworkClassifier(ClassifierMixin, KernelNetworkEstimator):  # type: ignore[misc]
    r"""A network of kernels, learned layer by layer in closed form: no gradient descent, nothing to tune.

    Use it where you want a network of kernel layers, one to go on training in torch; for a raw table take
    `mercer.tabular.TabularClassifier`.

    Args:
        solver: ``"auto"`` is stacked kernel ridge (:class:`~mercer.machines.StackedRidge`), one view of which are
            metrics learned layer by layer where they help. ``"spectral"`` and ``"closed_form"`` are the poster's
            :math:`W^*` and :math:`W_s` (masoomi2020, Eq. 9 and 2) with a ridge head.
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
        super().__init__(kernel, max_layers, landmarks, exact_rows, random_state, verbose)
        self.solver = solver
        self.rule = rule
        self.extra_dimensions = extra_dimensions
        self.features = features

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from rows ``(n, d)`` and labels ``(n,)`` of any kind; with several ranks, each passes its own rows."""
        return self._fit(*self._check_labels(X, y), self.landmarks)

    def decision_function(self, X: ArrayLike) -> Array:
        """Calibrated logits ``(n, c)``; for two classes ``(n,)``, above 0 for the second."""
        logits: Array = self._predict_outputs(X).numpy()
        if len(self.classes_) == 2:
            logits = logits[:, 1] - logits[:, 0]
        return logits

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probabilities ``(n, c)``, calibrated on the scores of rows left out; none below 1 / (2 (rows + classes))."""
        return self._predict_outputs(X).softmax(1).numpy()

    def predict(self, X: ArrayLike) -> Array:
        """The most probable label of each row."""
        numbers = self._predict_outputs(X).argmax(1).numpy()
        labels: Array = self.classes_[numbers]
        return labels

    @available_if(lambda estimator: estimator.solver == "auto")  # type: ignore[untyped-decorator]
    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Add rows, exactly: the ridge afterwards is that of all rows so far.

        The first call, or :meth:`fit`, chooses standardisation, metric, bandwidth, ridge, landmarks and temperature,
        which stay; after :meth:`fit` on few rows all of them are landmarks.

        Args:
            X: Rows.
            y: Labels.
            classes: All labels there will be; needed at the first call where its rows do not show them all.
        """
        if not hasattr(self, "machine_"):
            x, labels = self._check_labels(X, y, classes)
            return self._fit(x, labels, self.landmarks or min(Rows(x).n, _LANDMARKS))
        x, target = self._check_input(X, y, first=False)
        self._extend(x, one_hot(self._encode(target), len(self.classes_)))
        return self

    def _check_labels(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> tuple[Tensor, Tensor]:
        """Rows, and their classes by number; sets ``classes_``."""
        where = type(self).__name__
        checks.choice(where, "solver", self.solver, ("auto", "spectral", "closed_form"))
        checks.integer(where, "features", self.features, 1)
        x, target = self._check_input(X, y, first=True)
        if len(target):
            check_classification_targets(target)

        # The classes: those given, else those of the rows.
        if classes is None:
            classes = target
        self.classes_ = np.unique(np.asarray(classes))
        if has_several_ranks():  # the labels that any rank has seen
            self.classes_ = np.array(unite_values(self.classes_.tolist()))
        if len(self.classes_) < 2:
            fix = "A classifier needs rows of at least two classes."
            got = f"one class, {str(self.classes_[0])!r}"
            raise ValueError(checks.sentence(where, "y must hold at least two classes", got, fix))
        return x, self._encode(target)

    def _encode(self, y: Array) -> Tensor:
        # The place of each label among the sorted classes; a label that is not there differs from its neighbour.
        if not len(y):
            y = y.astype(self.classes_.dtype)
        places = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        wrong = self.classes_[places] != y
        if wrong.any():
            need = f"labels must be among {', '.join(map(str, self.classes_))}"
            raise ValueError(checks.sentence(type(self).__name__, need, repr(y[wrong][0])))
        return torch.from_numpy(places.astype(np.int64))

    def _fit(self, x: Tensor, labels: Tensor, landmarks: int | None) -> Self:
        c, n = len(self.classes_), Rows(x).n
        if self.solver == "auto":
            fit = self._fit_auto(x, one_hot(labels, c), "classes", landmarks)
        else:
            every_x, every_label = Rows(x, labels).gather()  # kernels between all pairs: every rank learns the same
            fit = self._fit_chain(every_x, every_label, c)

        # Calibrate on the scores of rows left out, which may be a part of all. The poster's networks have a scale and
        # biases alone.
        ours = self.solver == "auto"
        calibration = Calibration.of(fit.left_out, Rows(labels).take(fit.rows), rows=n, shares=ours, mixes=ours)
        self._store(fit, KernelNetwork(fit.modules, x.shape[1], LogProbabilities(calibration)))
        return self

    def _fit_chain(self, x: Tensor, labels: Tensor, c: int) -> FittedNetwork:
        """The poster's chain, with a linear ridge on its representation, its penalty by leave-one-out."""
        with torch.no_grad():
            # The layers of the poster, one after the other.
            standardize = Standardize.of(x)
            z, depth = standardize(x), self.max_layers
            if self.solver == "spectral":
                generator = share_generator(seeded(self.random_state))
                chain = fit_spectral(z, labels, c, max_layers=depth, features=self.features, generator=generator)
            else:
                chain = fit_closed_form(z, labels, c, rule=self.rule, max_layers=depth, extra=self.extra_dimensions)

            # The head; one scale for the representation, so that the grid of penalties fits it.
            spread = float(chain.representation.std()) or 1.0
            ridge = ridge_loo(chain.representation / spread, one_hot(labels, c), _RIDGES)
        head = LinearLayer(ridge.coefficients / spread, ridge.intercept)
        history = [record.row() for record in chain.history]
        modules: list[nn.Module] = [standardize, *chain.layers, head]
        numbers = torch.arange(len(labels))
        return FittedNetwork(modules, list(chain.layers), history, ridge.held_out, numbers, ridge.penalty)


class KernelNetworkRegressor(RegressorMixin, KernelNetworkEstimator):  # type: ignore[misc]
    """Stacked kernel ridge, with a learned metric where that helps; leave-one-out makes every choice.

    Use it where you want the regression as a network in torch; for a raw table take `mercer.tabular.TabularRegressor`.

    Args:
        kernel: Of the last layer: a kernel of the library, or ``"auto"``: chosen by leave-one-out among Laplacian (by
            column and Euclidean), Matern, Gaussian, network, polynomial and linear kernels, the best few averaged.
            ``"gaussian"`` keeps to the Gaussian.
        max_layers: Most layers.
        landmarks: Number of rows that carry weights; None: all of them.
        exact_rows: Rows up to which the Gram matrix is held; beyond, all rows take part by EigenPro.
        random_state: Randomness of subsets and landmarks.
        verbose: Log the layers at level INFO rather than DEBUG, to ``logging.getLogger("mercer")``.

    Attributes:
        layers_: The layers as torch modules.
        n_layers_: Their number.
        history_: One dictionary a layer: width and, of the last, bandwidth, penalty and mse, the mean squared
            leave-one-out error of the standardised targets.
        network_: The whole network, from raw rows to predictions.

    >>> X = np.linspace(0, 3, 60)[:, None]
    >>> model = KernelNetworkRegressor(random_state=0).fit(X[::2], np.sin(X[::2, 0]))
    >>> bool(model.score(X[1::2], np.sin(X[1::2, 0])) > 0.99)
    True
    """

    def __init__(
        self,
        *,
        kernel: Any = "auto",
        max_layers: int = 12,
        landmarks: int | None = None,
        exact_rows: int = EXACT_ROWS,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(kernel, max_layers, landmarks, exact_rows, random_state, verbose)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from rows ``(n, d)`` and targets ``(n,)``; with several ranks, each passes its own rows."""
        return self._fit(*self._check_numbers(X, y, first=True), self.landmarks)

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Add rows, exactly: the ridge afterwards is that of all rows so far.

        The first call, or :meth:`fit`, chooses standardisation, metric, bandwidth, ridge and landmarks; later calls
        keep them. After :meth:`fit` on few rows all rows are landmarks.

        Args:
            X: Rows.
            y: Targets.
        """
        if not hasattr(self, "machine_"):
            x, targets = self._check_numbers(X, y, first=True)
            return self._fit(x, targets, self.landmarks or min(Rows(x).n, _LANDMARKS))
        x, targets = self._check_numbers(X, y, first=False)
        answer = self.network_.answer
        assert isinstance(answer, Rescale)
        self._extend(x, (targets - answer.shift) / answer.scale)
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Predicted targets ``(n,)``."""
        return self._predict_outputs(X)[:, 0].numpy()

    def _check_numbers(self, X: ArrayLike, y: ArrayLike, *, first: bool) -> tuple[Tensor, Tensor]:
        x, target = self._check_input(X, y, first=first, y_numeric=True)
        targets = torch.from_numpy(np.array(target, dtype=np.float64))[:, None]
        return x, checks.squarable(type(self).__name__, "y", targets, empty=True)

    def _fit(self, x: Tensor, targets: Tensor, landmarks: int | None) -> Self:
        # Targets of mean 0 and deviation 1, over the rows of all ranks.
        rows = Rows(targets)
        mean = rows.mean(lambda part: part.sum(0))
        spread = float(rows.mean(lambda part: (part - mean).square().sum()).sqrt()) or 1.0
        fit = self._fit_auto(x, (targets - mean) / spread, "values", landmarks)
        scale = torch.full((1,), spread, dtype=torch.float64)
        self._store(fit, KernelNetwork(fit.modules, x.shape[1], Rescale(scale, mean)))
        return self


def _to_array(X: Any) -> Any:
    """Tensors as arrays, detached; everything else as it came."""
    if not isinstance(X, Tensor):
        return X
    X = X.detach().cpu()
    if X.dtype == torch.bfloat16:  # numpy has none
        X = X.float()
    return X.numpy()
