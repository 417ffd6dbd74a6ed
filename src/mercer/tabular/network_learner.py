"""The kernel network that models saved before version 0.2 hold: they load and predict as they did."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from ..kernels import RBF
from ..layerwise import KernelNetworkClassifier, KernelNetworkRegressor
from ..linalg import block_rows, blockwise
from ..storage import Savable, SavableModule

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
        mean, scale = self._columns()
        draws = torch.randn(_DRAWN, len(mean), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return mean + scale * draws

    @property
    def width(self) -> int:
        """Features of a row, d."""
        return len(self._columns()[0])

    def _columns(self) -> tuple[Tensor, Tensor]:  # (d,), (d,)
        first = next(layer for layer in self.estimator.network_.layers if hasattr(layer, "scale"))
        mean, scale = first.mean, first.scale
        assert isinstance(mean, Tensor) and isinstance(scale, Tensor)
        return mean, scale

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

    def half_widths(self, x: Tensor, level: float) -> Tensor:  # (n, d) -> (n,)
        """These models kept no errors: the interval is everything."""
        return torch.full((len(x),), math.inf, dtype=torch.float64)

    def why_endless(self, level: float) -> str:
        """Why intervals are infinite."""
        return "low and high are infinite: a model of version 0.1 kept no errors; fit it again for intervals"

    def get_state(self) -> dict[str, object]:
        """All of it is in the arguments."""
        return {}


class NetworkFamiliarity(SavableModule):
    r"""How far a row is from the network's landmarks: :math:`v(z) = 1 - \|k(z)^T R\|^2`, on the scale of left-out rows.

    Args:
        landmarks: m training rows, ``(m, d)``, as the kernel machine sees them.
        root: R, ``(m, r)``.
        bandwidth: :math:`\sigma` of the Gaussian kernel.
        middle: Median of v over left-out training rows.
        tail: Their 95 % quantile.
    """

    landmarks: Tensor
    root: Tensor

    def __init__(self, landmarks: Tensor, root: Tensor, bandwidth: float, middle: float, tail: float) -> None:
        super().__init__()
        self.hold(landmarks=landmarks, root=root)
        self.bandwidth, self.middle, self.tail = bandwidth, middle, tail
        self._kernel = RBF(1 / (2 * bandwidth**2))

    @override
    def forward(self, z: Tensor) -> Tensor:  # (n, d) -> (n,)
        def variance(part: Tensor) -> Tensor:
            return 1 - (self._kernel(part, self.landmarks) @ self.root).square().sum(1)

        v = blockwise(variance, z.to(self.root), block=block_rows(3 * len(self.landmarks) * 8))
        return scaled(v.clamp(0, 1), self.middle, self.tail)


def scaled(v: Tensor, middle: float, tail: float) -> Tensor:  # (n,)
    """Variances as 0 up to the middle, 0.5 at the tail, 1 at 1; linear in between."""
    near = ((v - middle) / max(tail - middle, 1e-12)).clamp(0, 1)
    far = ((v - tail) / (1 - tail)).clamp(0, 1)
    return (near + far) / 2
