"""The regressor: the default solver for continuous targets."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data
from torch import Tensor

from .. import checks
from ..machines.kernel_ridge import seeded
from ..rows import Rows
from ..rows.agreement import share_generator
from .auto import EXACT_ROWS, fit_auto
from .estimator import Array, KernelNetworkEstimator, least_rows, to_array
from .network import KernelNetwork


class KernelNetworkRegressor(RegressorMixin, KernelNetworkEstimator):  # type: ignore[misc]
    """Kernel ridge, with a learned metric where that helps; leave-one-out makes every choice.

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
        self.kernel = kernel
        self.max_layers = max_layers
        self.landmarks = landmarks
        self.exact_rows = exact_rows
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from rows ``(n, d)`` and targets ``(n,)``; with several ranks, each passes its own rows."""
        self._fit(*self._check_input(X, y, first=True), self.landmarks)
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Add rows, exactly: the ridge afterwards is that of all rows so far.

        The first call, or :meth:`fit`, chooses standardisation, metric, bandwidth, ridge and landmarks; later calls
        keep them. After :meth:`fit` on few rows all rows are landmarks.

        Args:
            X: Rows.
            y: Targets.
        """
        first = not hasattr(self, "machine_")
        x, targets = self._check_input(X, y, first=first)
        if first:
            self._fit(x, targets, self.landmarks or min(Rows(x).n, 2000))
        else:
            centred = (targets - self.network_.shift) / self.network_.scale
            self._extend(x, centred)
        return self

    def _check_input(self, X: ArrayLike, y: ArrayLike, *, first: bool) -> tuple[Tensor, Tensor]:
        where = type(self).__name__
        self._check_arguments(where)
        rows, target = validate_data(
            self,
            to_array(X),
            to_array(y),
            reset=first,
            dtype=np.float64,
            y_numeric=True,
            ensure_min_samples=least_rows(2 if first else 1),
        )
        x = checks.squarable(where, "X", torch.from_numpy(np.array(rows, order="C")), empty=True)
        targets = torch.from_numpy(np.array(target, dtype=np.float64))[:, None]
        return x, checks.squarable(where, "y", targets, empty=True)

    def _fit(self, x: Tensor, targets: Tensor, landmarks: int | None) -> None:
        rows = Rows(targets)
        mean = rows.mean(lambda part: part.sum(0))
        spread = float(rows.mean(lambda part: (part - mean).square().sum()).sqrt()) or 1.0
        with torch.no_grad():
            fit = fit_auto(
                x,
                (targets - mean) / spread,
                task="values",
                max_layers=self.max_layers,
                landmarks=landmarks,
                exact_rows=self.exact_rows,
                kernel=self.kernel,
                generator=share_generator(seeded(self.random_state)),
            )
        scale = torch.full((1,), spread, dtype=torch.float64)
        self._finish(fit, KernelNetwork(fit.modules, x.shape[1], scale, mean))

    def predict(self, X: ArrayLike) -> Array:
        """Predicted targets ``(n,)``."""
        return self._outputs(X)[:, 0].numpy()
