"""Targets with a long tail upwards, such as prices, populations and counts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..machines import StackedRidge
from ..machines.trees import shrunk_share
from ..storage.savable import Savable

_SKEWED = 1.5  # skewness of a target from which on its logarithm is tried
_BEYOND = 0.1  # of the targets' range, that the logarithm's answer may lie above it


class TwoScales(Savable):
    r"""A stack of the target and one of its logarithm: :math:`f = (1 - t) p + t (m e^q - s)`.

    The squares that p has least are mostly those of the largest targets; to q, an error of a tenth of the target is the
    same at a small one and at a large one.

    Args:
        plain: p, which learned the targets y.
        curved: q, which learned :math:`\log (y + s)`.
        share: t.
        factor: m, which takes the mean of :math:`e^q` over rows left out to that of :math:`y + s`.
        shift: s; 0 where no target is 0.
        most: The largest answer of q.

    Attributes:
        left_out_: Numbers of the rows that both left out, ``(r,)``; not saved.
        loo_: Their answers, each without its own row, ``(r, 1)``; not saved.
        held_out_: The same with the whole fold of the row left out; not saved.
    """

    left_out_: Tensor
    loo_: Tensor
    held_out_: Tensor

    def __init__(
        self, plain: StackedRidge, curved: StackedRidge, share: float, factor: float, shift: float, most: float
    ) -> None:
        self.plain, self.curved, self.share = plain, curved, share
        self.factor, self.shift, self.most = factor, shift, most

    @classmethod
    def of(  # (n,)
        cls, plain: StackedRidge, learn: Callable[[Tensor], StackedRidge], y: Tensor
    ) -> TwoScales | StackedRidge:
        """Learn the logarithm, too, and give it a share by the rows left out; ``plain`` alone where it has none.

        Args:
            plain: What was learned of the targets.
            learn: Learns other targets ``(n, 1)`` of the same rows in the same way.
            y: The targets.
        """
        shift = find_shift(y)
        if shift is None:
            return plain
        curved = learn((y + shift).log()[:, None])

        # Rows that both left out, and what both say of them.
        both = torch.isin(plain.left_out_, curved.left_out_)
        rows, theirs = plain.left_out_[both], torch.isin(curved.left_out_, plain.left_out_)
        if 2 * len(rows) < len(both):
            return plain
        truth, logs = y[rows, None], curved.held_out_[theirs]
        weight = None if plain.weight_ is None else plain.weight_[rows]
        w = torch.ones(len(rows), dtype=torch.float64) if weight is None else weight
        factor = float(w @ (truth[:, 0] + shift)) / float(w @ logs[:, 0].exp())
        most = float(y.max() + _BEYOND * (y.max() - y.min()))
        blend = cls(plain, curved, 1.0, factor, shift, most)

        # The share that rows left out give the logarithm.
        blend.share = shrunk_share(plain.held_out_[both], blend.mix(plain.held_out_[both], logs), truth, weight)
        if not blend.share:
            return plain
        blend.left_out_ = rows
        blend.loo_ = blend.mix(plain.loo_[both], curved.loo_[theirs])
        blend.held_out_ = blend.mix(plain.held_out_[both], logs)
        return blend

    @property
    def rows_(self) -> Tensor:
        """Training rows, ``(n, d)``."""
        return self.plain.rows_

    def predict(self, x: Tensor) -> Tensor:  # (n, d) -> (n, 1)
        """Both answers, mixed."""
        return self.mix(self.plain.predict(x), self.curved.predict(x))

    def without(self, rows: Tensor) -> Callable[[Tensor], Tensor]:  # (r,)
        """A function of ``(r, d)`` that predicts its i-th row by the machines without training row ``rows[i]``."""
        plain, curved = self.plain.without(rows), self.curved.without(rows)
        return lambda x: self.mix(plain(x), curved(x))

    def mix(self, plain: Tensor, logs: Tensor) -> Tensor:  # (n, 1), (n, 1) -> (n, 1)
        """The answer from those of both stacks."""
        other = (self.factor * logs.exp() - self.shift).clamp(0.0, self.most)
        return (1 - self.share) * plain + self.share * other

    def get_arguments(self) -> dict[str, object]:
        """As they are now."""
        names = ("plain", "curved", "share", "factor", "shift", "most")
        return {name: getattr(self, name) for name in names}

    def get_state(self) -> dict[str, object]:
        """All of it is in the arguments."""
        return {}


def find_shift(y: Tensor) -> float | None:  # (n,)
    """What is added to targets before their logarithm; None where they have no long tail upwards, or some are negative.

    Targets without a 0 need nothing, counts 1, others half of the middle one above 0.
    """
    low = float(y.min())
    away = y - y.mean()
    z = away / away.abs().max().clamp_min(torch.finfo(y.dtype).tiny)  # cubes of large targets would overflow
    if low < 0 or float(z.pow(3).mean()) <= _SKEWED * float(z.square().mean()) ** 1.5:
        return None
    if low > 0:
        return 0.0
    if bool((y % 1 == 0).all()):
        return 1.0
    return float(y[y > 0].median()) / 2
