"""Efficient probing: learned queries that choose which places of a map, or which tokens, a linear layer reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mercer import checks


class EfficientProbing(nn.Module):
    r"""A linear layer on what learned queries pool (Psomas et al. 2025, "Attention, Please!").

    .. math:: a_{im} = \mathrm{softmax}_i (q_m^T x_i / \sqrt d), \quad
        \text{logits} = W \Bigl[ \sum_i a_{im} x_i^{(m)} \Bigr]_m + b

    The queries q meet the places x as they are: there is no projection to keys. :math:`x^{(m)}` are the channels that
    the m-th query pools.

    Args:
        in_features: d.
        num_classes: c.
        queries: m of them.
        split: Each query pools its own d / m channels; otherwise all of them, for m times the weights of W.
        values: Pool V x in place of x, with a learned square V, and standardise what was pooled by its batch before the
            linear layer. The authors' published code has both, with 32 queries.
    """

    def __init__(
        self, in_features: int, num_classes: int, *, queries: int = 8, split: bool = True, values: bool = False
    ) -> None:
        super().__init__()
        self.queries = checks.integer("EfficientProbing", "queries", queries, 1)
        self.split = split
        if split and in_features % queries:
            need = f"queries must divide in_features, {in_features}"
            raise ValueError(checks.sentence("EfficientProbing", need, queries, "Use split=False."))
        # Queries near 0 look at all places alike: the start is a linear layer on their mean.
        self.query = nn.Parameter(0.02 * torch.randn(queries, in_features))
        pooled_features = in_features if split else queries * in_features
        self.value: nn.Linear | None = None
        self.standardise: nn.Module = nn.Identity()
        if values:
            self.value = nn.Linear(in_features, in_features, bias=False)
            self.standardise = nn.BatchNorm1d(pooled_features, eps=1e-6, affine=False)
        self.linear = nn.Linear(pooled_features, num_classes)

    def at_places(self, z: Tensor, places: Tensor, mask: Tensor | None = None) -> Tensor:  # (n, s, d) -> (n, c)
        """Logits of what was pooled; ``z``, the mean, is not read."""
        # How much each query looks at each place; places that do not count get nothing.
        scores = places @ self.query.mT / places.shape[2] ** 0.5  # (n, s, m)
        if mask is not None:
            scores = scores.masked_fill(~mask.bool().unsqueeze(2), float("-inf"))
        attention = scores.softmax(1)
        # Each query's weighted mean. V of the mean is the mean of V's values, and there are fewer queries than places.
        pooled = attention.mT @ places  # (n, m, d)
        if self.value is not None:
            pooled = self.value(pooled)
        if self.split:  # its own channels
            pooled = pooled.unflatten(2, (self.queries, -1)).diagonal(dim1=1, dim2=2).mT  # (n, m, d / m)
        logits: Tensor = self.linear(self.standardise(pooled.flatten(1)))
        return logits
