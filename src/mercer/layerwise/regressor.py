"""The regressor: the default solver for continuous targets."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data
from torch import nn

from .. import checks
from .auto import fit_auto
from .estimator import Array, KernelNetworkEstimator, rows_of, seeded
from .network import KernelNetwork, Standardize

__all__ = ["KernelNetworkRegressor"]


class KernelNetworkRegressor(RegressorMixin, KernelNetworkEstimator):  # type: ignore[misc]
    """Kernel ridge in a metric that it learns where that helps; everything by leave-one-out.

    Args:
        max_layers: Most layers.
        landmarks: Anchors; None: every row up to 3,000 rows; beyond, 2,000 and 8 % of the rows, at most 6,500.
        random_state: Randomness of subsets and landmarks.
        verbose: Log the layers at level INFO rather than DEBUG, to ``logging.getLogger("mercer")``.

    Attributes:
        layers_: The layers as torch modules.
        n_layers_: Their number.
        history_: One dictionary a layer: width and, of the last, bandwidth, penalty and mse, the mean squared
            leave-one-out error of the standardised targets.
        network_: The whole network, from raw rows to predictions.
    """

    def __init__(
        self, *, max_layers: int = 12, landmarks: int | None = None, random_state: Any = None, verbose: bool = False
    ) -> None:
        self.max_layers = max_layers
        self.landmarks = landmarks
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from rows ``(n, d)`` and targets ``(n,)``."""
        where = type(self).__name__
        self._check_arguments(where)
        rows, target = validate_data(
            self, rows_of(X), rows_of(y), dtype=np.float64, y_numeric=True, ensure_min_samples=2
        )
        x = checks.squarable(where, "X", torch.from_numpy(np.array(rows)))
        targets = torch.from_numpy(np.array(target, dtype=np.float64))[:, None]
        checks.squarable(where, "y", targets)
        mean, spread = targets.mean(0), float(targets.std(correction=0)) or 1.0
        with torch.no_grad():
            fit = fit_auto(
                x,
                (targets - mean) / spread,
                task="values",
                max_layers=self.max_layers,
                landmarks=self.landmarks,
                generator=seeded(self.random_state),
            )
        depth = next(i for i, layer in enumerate(fit.layers) if isinstance(layer, Standardize)) + 1
        layers: list[nn.Module] = [*fit.layers[depth:], fit.head]
        history = [{"width": float(x.shape[1])} for _ in fit.layers[depth:]]
        history.append({"bandwidth": fit.head.bandwidth, "width": 1.0, "penalty": fit.penalty, "mse": fit.error})
        scale = torch.full((1,), spread, dtype=torch.float64)
        self._finish(layers, history, KernelNetwork([*fit.layers, fit.head], x.shape[1], scale, mean))
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Predicted targets ``(n,)``."""
        return self._outputs(X)[:, 0].numpy()
