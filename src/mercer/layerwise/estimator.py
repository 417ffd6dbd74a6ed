"""What the classifier and the regressor share: scikit-learn's conventions around a fitted network."""

from __future__ import annotations

import copy
import logging
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from .. import checks
from ..distributed import world_size
from ..storage import Savable
from .landmarks import Sums, extend
from .network import KernelLayer, KernelNetwork

__all__ = ["KernelNetworkEstimator", "least_rows", "rows_of", "seeded"]

_log = logging.getLogger("mercer")
Array = NDArray[Any]


class KernelNetworkEstimator(Savable, BaseEstimator):  # type: ignore[misc]
    """Checks of input, prediction by the fitted network, and its export.

    A tensor that requires a gradient is detached: an estimator is no part of the graph. Use :meth:`to_module` there.
    """

    network_: KernelNetwork
    layers_: list[nn.Module]
    history_: list[dict[str, float]]
    sums_: Sums | None
    penalty_: float

    def to_module(self) -> nn.Module:
        """The network as a torch module with the same outputs, in float64, every weight a parameter.

        Classifier: ``softmax(module(x))`` is ``predict_proba(x)``; regressor: ``module(x)`` is ``predict(x)`` as
        columns. It is a copy: training it does not change the estimator.
        """
        check_is_fitted(self)
        return copy.deepcopy(self.network_).trainable()

    def _outputs(self, X: ArrayLike) -> Tensor:  # (n, d) -> (n, c)
        check_is_fitted(self)
        checked = validate_data(self, rows_of(X), reset=False, dtype=np.float64, ensure_min_samples=1)
        x = torch.from_numpy(np.array(checked))
        checks.squarable(type(self).__name__, "X", x)
        with torch.no_grad():
            return self.network_(x)

    def _extend(self, x: Tensor, targets: Tensor, offset: Tensor) -> None:
        """Put more rows into the kernel machine: (n, d), centred targets (n, c), what was taken off them (c,)."""
        *before, head = self.network_.layers
        assert isinstance(head, KernelLayer)
        with torch.no_grad():
            fresh, self.sums_ = extend(head, self.sums_, self.penalty_, nn.Sequential(*before)(x), targets)
            fresh.intercept = fresh.intercept + offset.to(fresh.intercept)
        network = KernelNetwork([*before, fresh], self.network_.width, self.network_.scale, self.network_.shift)
        self.layers_, self.network_ = [*self.layers_[:-1], fresh], network

    def _check_arguments(self, where: str) -> None:
        checks.integer(where, "max_layers", self.max_layers, 1)
        if self.landmarks is not None:
            checks.integer(where, "landmarks", self.landmarks, 1)
        checks.integer(where, "verbose", int(self.verbose), 0)

    def _report(self, message: str) -> None:
        _log.log(logging.INFO if self.verbose else logging.DEBUG, "%s: %s", type(self).__name__, message)

    def _finish(self, layers: list[nn.Module], history: list[dict[str, float]], network: KernelNetwork) -> None:
        self.layers_, self.n_layers_ = layers, len(layers)
        self.history_, self.network_ = history, network
        for depth, row in enumerate(history, 1):
            self._report(f"layer {depth}: " + ", ".join(f"{name} {value:.4g}" for name, value in row.items()))


def rows_of(X: Any) -> Any:
    """Tensors as arrays, detached; everything else as it came."""
    if isinstance(X, Tensor):
        X = X.detach().cpu()
        return (X.float() if X.dtype == torch.bfloat16 else X).numpy()
    return X


def least_rows(one_process: int) -> int:
    """The rows that a fit asks of this process: of several ranks some may have none."""
    return one_process if world_size() == 1 else 0


def seeded(random_state: Any) -> torch.Generator:
    """A torch generator from scikit-learn's ``random_state``."""
    return torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
