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
from ..machines.landmarks import add_rows
from ..machines.solution import Solution
from ..rows.agreement import has_several_ranks
from ..storage.savable import Savable
from .network import FittedNetwork, KernelNetwork

_log = logging.getLogger("mercer")
Array = NDArray[Any]


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

    def to_module(self) -> nn.Module:
        """The network as a torch module with the same outputs, in float64, every weight a parameter.

        Classifier: ``softmax(module(x))`` is ``predict_proba(x)``; regressor: ``module(x)`` is ``predict(x)`` as
        columns. It is a copy: training it does not change the estimator.
        """
        check_is_fitted(self)
        return copy.deepcopy(self.network_).make_trainable()

    def _outputs(self, X: ArrayLike) -> Tensor:  # (n, d) -> (n, c)
        check_is_fitted(self)
        checked = validate_data(self, to_array(X), reset=False, dtype=np.float64, ensure_min_samples=1)
        x = torch.from_numpy(np.array(checked, order="C"))
        checks.squarable(type(self).__name__, "X", x)
        with torch.no_grad():
            return checks.finite(type(self).__name__, "the outputs", self.network_(x))

    def _extend(self, x: Tensor, targets: Tensor) -> None:
        """Put more rows into the last layer: (n, d), (n, c)."""
        assert self.machine_ is not None
        with torch.no_grad():
            z = nn.Sequential(*self.stem_)(x)
            self.machine_ = add_rows(self.machine_, z, targets, where="KernelNetwork")
        old, head = self.network_, self.machine_.bare()
        self.network_ = KernelNetwork([*self.stem_, head], old.width, old.scale, old.shift, old.floor)
        self.layers_ = [*self.layers_[:-1], head]

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

    def _finish(self, fit: FittedNetwork, network: KernelNetwork) -> None:
        self.layers_, self.n_layers_ = fit.layers, len(fit.layers)
        self.history_, self.network_ = fit.history, network
        self.stem_, self.machine_, self.penalty_ = list(fit.stem), fit.machine, fit.penalty
        for depth, row in enumerate(fit.history, 1):
            self._report(f"layer {depth}: " + ", ".join(f"{name} {value:.4g}" for name, value in row.items()))


def to_array(X: Any) -> Any:
    """Tensors as arrays, detached; everything else as it came."""
    if not isinstance(X, Tensor):
        return X
    X = X.detach().cpu()
    if X.dtype == torch.bfloat16:  # numpy has none
        X = X.float()
    return X.numpy()


def least_rows(one_process: int) -> int:
    """The least rows that a fit asks of this process: with several ranks some may have none."""
    return 0 if has_several_ranks() else one_process
