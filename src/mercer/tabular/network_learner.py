"""The kernel network that models saved before version 0.2 hold: they load and predict as they did."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..layerwise import KernelNetworkClassifier, KernelNetworkRegressor
from ..storage import Savable

__all__ = ["NetworkLearner"]

_DRAWN = 300


class NetworkLearner(Savable):
    """What a :class:`~mercer.tabular.learner.Learner` offers, by a kernel network.

    Args:
        estimator: The classifier or regressor.
    """

    def __init__(self, estimator: KernelNetworkClassifier | KernelNetworkRegressor) -> None:
        self.estimator = estimator

    @property
    def rows(self) -> Tensor:
        """Rows to explain by, ``(300, d)``: normal draws with the columns' spreads, for these models kept none."""
        first = next(layer for layer in self.estimator.network_.layers if hasattr(layer, "scale"))
        mean, scale = first.mean, first.scale
        assert isinstance(mean, Tensor) and isinstance(scale, Tensor)
        draws = torch.randn(_DRAWN, len(mean), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return mean + scale * draws

    def predict(self, x: Tensor) -> Tensor:
        """Probabilities ``(n, c)``, or numbers ``(n,)``."""
        if isinstance(self.estimator, KernelNetworkRegressor):
            return torch.from_numpy(self.estimator.predict(x.numpy()))
        p = torch.from_numpy(self.estimator.predict_proba(x.numpy()))
        every = x.new_zeros(len(x), int(self.estimator.classes_.max()) + 1)
        every[:, torch.from_numpy(np.asarray(self.estimator.classes_))] = p
        return every

    def scores(self, x: Tensor) -> Tensor:
        """What is explained: the prediction itself."""
        found = self.predict(x)
        return found if found.ndim == 2 else found[:, None]

    def seen(self, x: Tensor) -> Tensor:
        """The rows as the kernel sees them."""
        with torch.no_grad():
            found: Tensor = nn.Sequential(*list(self.estimator.network_.layers)[:-1])(x)
        return found

    def parts(self) -> list[dict[str, Any]]:
        """The network as one part."""
        layers = len(self.estimator.layers_)
        return [{"what": f"A network of {layers} kernel layers.", "share": 1.0, "penalty": None, "error": None}]

    def half_width(self, level: float) -> float:
        """These models kept no errors: the interval is everything."""
        return math.inf

    def get_state(self) -> dict[str, object]:
        """All of it is in the arguments."""
        return {}
