"""What the classifier and the regressor share: scikit-learn's conventions around a fitted network."""

from __future__ import annotations

import copy
import logging
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from .. import checks
from ..kernels import Kernel
from ..machines.landmarks import LandmarkMachine
from ..rows.agreement import has_several_ranks
from ..storage.savable import Savable
from .landmarks import Sums, extend
from .network import KernelNetwork

_log = logging.getLogger("mercer")
Array = NDArray[Any]


class KernelNetworkEstimator(Savable, BaseEstimator):  # type: ignore[misc]
    """Checks of input, prediction by the fitted network, and its export.

    A tensor that requires a gradient is detached: an estimator is no part of the graph. Use :meth:`to_module` there.
    """

    network_: KernelNetwork
    layers_: list[nn.Module]
    history_: list[dict[str, float]]
    sums_: LandmarkMachine | Sums | None
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
        x = torch.from_numpy(np.array(checked, order="C"))
        checks.squarable(type(self).__name__, "X", x)
        with torch.no_grad():
            return checks.finite(type(self).__name__, "the outputs", self.network_(x))

    def _extend(self, x: Tensor, targets: Tensor) -> None:
        """Put more rows into the last layer: (n, d), (n, c)."""
        before, head = self.network_.without_head()
        with torch.no_grad():
            sums = self.sums_
            if isinstance(sums, Sums):  # of version 0.1, whose classifier took the mean off the targets
                offset = getattr(self, "target_mean_", torch.zeros(targets.shape[1]))
                sums = sums.whitened(head.heaviest()[0], head.anchors, offset)
            fresh, self.sums_ = extend(head, sums, self.penalty_, nn.Sequential(*before)(x), targets)
        old = self.network_
        self.network_ = KernelNetwork([*before, fresh], old.width, old.scale, old.shift, old.floor)
        self.layers_ = [*self.layers_[:-1], fresh]

    def _check_arguments(self, where: str) -> None:
        checks.integer(where, "max_layers", self.max_layers, 1)
        if self.landmarks is not None:
            checks.integer(where, "landmarks", self.landmarks, 1)
        checks.integer(where, "exact_rows", self.exact_rows, 1)
        if not isinstance(self.kernel, Kernel):
            checks.choice(where, "kernel", self.kernel, ("auto", "gaussian"))
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
    """The least rows that a fit asks of this process: with several ranks some may have none."""
    return 0 if has_several_ranks() else one_process
