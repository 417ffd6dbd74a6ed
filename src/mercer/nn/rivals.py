"""The heads that jayasumana2021 compares with: the cosine classifier (LIN) and second-order pooling (SOP)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx, nn

from .. import checks
from ..linalg.distances import unit_rows
from ..storage.savable import SavableModule

fx.wrap("unit_rows")  # symbolic traces keep it whole

_SMALLEST = 1e-12


class CosineClassifier(SavableModule):
    r"""Logits :math:`s \, \langle w_j, z \rangle / (\|w_j\| \|z\|)`: the linear kernel with a learned coefficient.

    LIN of jayasumana2021 (Section 6.2); 1 / s is the temperature of its Table 7.

    Args:
        in_features: d.
        num_classes: L.
        scale: Where s starts.
        learnable: Learn s.
        device: Where the parameters are made, as for ``nn.Linear``.
        dtype: Their dtype.

    Use it as the plain rival of :class:`KernelClassifier`.

    >>> CosineClassifier(8, 3)(torch.randn(5, 8)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        scale: float = 10.0,
        learnable: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = checks.integer("CosineClassifier", "in_features", in_features, 1)
        self.num_classes = checks.integer("CosineClassifier", "num_classes", num_classes, 1)
        self.start = checks.positive("CosineClassifier", "scale", scale)
        self.weight = nn.Parameter(torch.empty(num_classes, in_features, device=device, dtype=dtype))
        self.scale = nn.Parameter(torch.empty(1, device=device, dtype=dtype), requires_grad=learnable)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights uniform on the sphere, s at its start."""
        with torch.no_grad():
            self.weight.normal_()
            self.weight.copy_(unit_rows(self.weight))
            self.scale.fill_(self.start)

    @property
    def out_features(self) -> int:
        """L, under the name that ``nn.Linear`` gives it."""
        return self.num_classes

    def forward(self, z: Tensor) -> Tensor:  # (..., d) -> (..., c)
        """Logits of embeddings."""
        weight: Tensor = self.weight
        if not isinstance(z, fx.Proxy):  # a symbol has no sizes to check
            if z.shape[-1] != self.in_features:
                need = f"z must have shape (..., {self.in_features})"
                raise ValueError(checks.sentence("CosineClassifier", need, tuple(z.shape)))
            z = checks.floating(z)
            common = torch.promote_types(z.dtype, weight.dtype)
            z, weight = z.to(common), weight.to(common)
        cosines = unit_rows(z) @ unit_rows(weight).mT
        return self.scale.to(cosines.dtype) * cosines


class SecondOrderPooling(SavableModule):
    r"""A linear classifier on the pooled outer product of the embedding with itself.

    Use it as a rival to `KernelClassifier` on feature maps, where pairs of channels tell classes apart.

    .. math:: A = \frac{1}{s} \sum_{\text{places}} z z^T, \quad
        B = \mathrm{sign}(A) \sqrt{|A|}, \quad \text{logits} = W \, \mathrm{vec}(B) / \|B\|_F + b

    (Lin et al., 2015; SOP of jayasumana2021.) B is symmetric: its lower half is left out and the rest weighted by
    :math:`\sqrt 2`, which keeps every scalar product at half the parameters.

    Args:
        in_features: d.
        num_classes: L.
        rank: r: a learned linear map to r features comes first, for r (r + 1) / 2 products; None for all d.
        bias: Learn b.
        device: Where the parameters are made, as for ``nn.Linear``.
        dtype: Their dtype.

    >>> head = SecondOrderPooling(8, 10)
    >>> head(torch.randn(4, 8, 6, 6)).shape  # feature maps of four pictures
    torch.Size([4, 10])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        rank: int | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = checks.integer("SecondOrderPooling", "in_features", in_features, 1)
        self.num_classes = checks.integer("SecondOrderPooling", "num_classes", num_classes, 1)
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.rank: int | None = None
        self.project: nn.Linear | None = None
        self.size = in_features  # r
        if rank is not None:
            self.rank = self.size = checks.integer("SecondOrderPooling", "rank", rank, 1)
            self.project = nn.Linear(in_features, rank, bias=False, **place)
        self.linear = nn.Linear(self.size * (self.size + 1) // 2, num_classes, bias=bias, **place)

    @property
    def out_features(self) -> int:
        """L, under the name that ``nn.Linear`` gives it."""
        return self.num_classes

    def forward(self, z: Tensor) -> Tensor:  # (n, d) or (n, d, *places) -> (n, c)
        """Logits of embeddings or of feature maps."""
        if not isinstance(z, fx.Proxy) and (z.ndim < 2 or z.shape[1] != self.in_features):
            need = f"z must have shape (n, {self.in_features}) or (n, {self.in_features}, height, width)"
            raise ValueError(checks.sentence("SecondOrderPooling", need, tuple(z.shape)))
        logits: Tensor = self.linear(self.pool(z).to(self.linear.weight.dtype))
        return logits

    def at_places(self, z: Tensor, places: Tensor, mask: Tensor | None = None) -> Tensor:  # (n, s, d) -> (n, c)
        """Logits of what was pooled; ``z``, the pooled embedding, is not read."""
        logits: Tensor = self.linear(self._products(places, mask).to(self.linear.weight.dtype))
        return logits

    def pool(self, z: Tensor) -> Tensor:  # (n, d, *places) -> (n, d (d + 1) / 2)
        """The pooled, rooted and normalised features, each row of length 1."""
        return self._products(z.unsqueeze(-1).flatten(2).mT, None)

    def _products(self, places: Tensor, mask: Tensor | None) -> Tensor:  # (n, s, d) -> (n, r (r + 1) / 2)
        if not isinstance(places, fx.Proxy):
            places = checks.floating(places)
        if self.project is not None:
            places = nn.functional.linear(places, self.project.weight.to(places.dtype))

        # The mean of z z^T over the places that count, its upper half.
        count: Any = places.shape[1]
        if mask is not None:
            places = places * mask.to(places.dtype).unsqueeze(2)
            count = mask.sum(1).clamp(min=1).to(places.dtype)[:, None, None]
        outer = places.mT @ places / count  # (n, r, r)
        upper = torch.triu_indices(self.size, self.size, device=places.device)
        half = outer[:, upper[0], upper[1]]
        # The root has no slope at 0, so that a feature that never fires sends no infinite gradient back.
        rooted = torch.where(half.abs() > _SMALLEST, half.sign() * half.abs().clamp(min=_SMALLEST).sqrt(), 0.0)
        weights = torch.where(upper[0] == upper[1], 1.0, math.sqrt(2.0)).to(rooted.dtype)
        return unit_rows(rooted * weights)
