r"""Many rows: a kernel machine in each leaf of a shallow tree, several such trees, and boosted trees beside them.

A Gram matrix of n rows costs :math:`n^3`. Shallow trees cut the rows into leaves of some 2,500, others into leaves of
half as many; in each leaf a machine is solved exactly. Each tree sees half of the columns, so the trees cut at
different places and their average has no sharp edges. A metric that turns the columns joins where few rows say that it
helps. Rows left out weigh the members, and those that they can do without go. They can calibrate and score the whole,
too: no member learned from them. Where they are more than a twentieth of the table, the members that stay learn once
more, from all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from ..kernels import RBF, Kernel, Laplacian, Matern
from ..storage.savable import Savable, SavableModule
from .dual import dual_path, weighted_mean
from .solution import table_product
from .stacking import CHOOSING_ROWS, ridge_factor
from .trees import Boosting, are_classes
from .trials import convex_weights, try_machines, try_metric, weight_of
from .views import View

LEAF = 2500
_CURVED = (Laplacian, Matern, RBF)  # of the kernels for tables, all but the linear one
_MOST = 2  # times LEAF: rows of a leaf that are learned from
_TUNING_ROWS = 400  # of a leaf, that choose its ridge and length scale
_SCALES = (1.0, 0.5)  # of the length scale of all rows: leaves are narrower than the table
_METRIC_ROWS = 1000  # that teach a metric
_SHRINK = 0.2  # of the weights towards equal ones: few rows weigh
# small trees that see half of the columns at each split are best on most tables, large ones on some
_BOOSTED: tuple[dict[str, Any], ...] = (
    {"rounds": 600, "leaves": 12, "rate": 0.06, "columns": 0.5, "ridge": 5.0},
    {"rounds": 400, "leaves": 31, "rate": 0.06, "columns": 0.5},
    {"rounds": 400, "leaves": 62, "rate": 0.04},
)
_FEW_TREES = 2  # of these, for several classes: each round grows a tree for each
_NEEDLESS = 0.002  # share of the loss by which it may rise when a member goes
_STEPS = 3  # of weights towards the least log loss
_LEAST = 0.001  # probability below which a class counts no more in it
_LEARN_AGAIN = 0.05  # share of the rows left out from which on they are worth learning from
_FOLDS = 5
_AT_ONCE = 4096  # rows of a leaf that are predicted together
_KEPT = 4000  # training rows that are kept for distances


class Cut(SavableModule):
    """A binary tree that sends each row to one of its leaves.

    Args:
        feature: Column of each node, ``(n,)``; -1 for a leaf.
        threshold: A row goes left where its value is not above it, ``(n,)``.
        left: Child of each node, ``(n,)``.
        right: ``(n,)``.
        leaf: Number of each leaf, ``(n,)``; -1 for other nodes.
    """

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    leaf: Tensor

    def __init__(self, feature: Tensor, threshold: Tensor, left: Tensor, right: Tensor, leaf: Tensor) -> None:
        super().__init__()
        self.hold(feature=feature, threshold=threshold, left=left, right=right, leaf=leaf)

    @classmethod
    def grow(cls, x: Tensor, y: Tensor, rows: int, generator: torch.Generator, weight: Tensor | None = None) -> Cut:
        """A tree of half of the columns whose leaves have about so many rows: ``(n, d)``, ``(n, c)``."""
        from sklearn.tree import DecisionTreeRegressor

        columns = torch.randperm(x.shape[1], generator=generator)[: (x.shape[1] + 1) // 2].sort().values
        grown = DecisionTreeRegressor(
            min_samples_leaf=max(1, rows // 2), max_leaf_nodes=max(2, round(len(x) / rows)), random_state=0
        ).fit(x[:, columns].numpy(), y.numpy(), None if weight is None else weight.numpy())
        tree = grown.tree_
        inner = tree.children_left >= 0
        feature = np.where(inner, columns.numpy()[np.maximum(tree.feature, 0)], -1)
        leaf = np.where(inner, -1, np.cumsum(~inner) - 1)
        arrays = (feature, tree.threshold, tree.children_left, tree.children_right, leaf)
        return cls(*(torch.from_numpy(np.array(array)) for array in arrays))

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        node = torch.zeros(len(x), dtype=torch.int64)
        rows = torch.arange(len(x))
        while True:
            feature = self.feature[node]
            if bool((feature < 0).all()):
                return self.leaf[node]
            right = x[rows, feature.clamp_min(0)] > self.threshold[node]
            child = torch.where(right, self.right[node], self.left[node])
            node = torch.where(feature < 0, node, child)


class LocalMachine(Savable):
    r"""One machine for each leaf: :math:`f(x) = \bar y_l + \sum_{i \in l} \alpha_i k_l(v(x_i), v(x))`, l the leaf of x.

    Args:
        view: v.
        cut: The tree.
        kernels: Kernel of each leaf.
        penalties: Ridge of each leaf.
        anchors: Rows of each leaf through the view, ``(n_l, d)``; in float32 where its rounding is far below the ridge.
        weights: :math:`\alpha` of each leaf, ``(n_l, c)``.
        means: Mean targets of the leaves, ``(l, c)``.
    """

    def __init__(
        self,
        view: View,
        cut: Cut,
        kernels: list[Kernel],
        penalties: list[float],
        anchors: list[Tensor],
        weights: list[Tensor],
        means: Tensor,
    ) -> None:
        self.view, self.cut, self.kernels, self.penalties = view, cut, kernels, penalties
        self.anchors, self.weights, self.means = anchors, weights, means

    def predict(self, x: Tensor) -> Tensor:  # (n, d) -> (n, c)
        """Each row by the machine of its leaf."""
        leaf, z = self.cut(x), self.view(x)
        out = self.means[leaf].clone()
        with torch.no_grad():
            for number in leaf.unique().tolist():
                kernel, anchors, weights = self.kernels[number], self.anchors[number], self.weights[number]
                for some in (leaf == number).nonzero()[:, 0].split(_AT_ONCE):
                    out[some] += table_product(kernel, z[some].to(anchors), anchors, weights).double()
        return out

    def get_state(self) -> dict[str, object]:
        """All of it is in the arguments."""
        return {}


@dataclass(frozen=True)
class Local:
    """Solver: a tree cuts the rows, and each leaf is solved by a Cholesky factor.

    Attributes:
        rows: Rows of a leaf, about; a leaf of more than twice as many learns from so many of them.
        seed: Of the columns that the tree sees and of the rows that stay.
        device: Where matrices are factored.
    """

    rows: int = LEAF
    seed: int = 0
    device: str = "cpu"

    def solve(
        self, view: View, kernel: Kernel, x: Tensor, y: Tensor, weight: Tensor | None = None
    ) -> LocalMachine:  # (n, d), (n, c), (n,)
        """The machines of all leaves, each with the ridge and the length scale of least leave-one-out error there."""
        generator = torch.Generator().manual_seed(self.seed)
        cut = Cut.grow(x, y, self.rows, generator, weight)
        leaf = cut(x)
        kernels, penalties, anchors, weights, means = [], [], [], [], []
        for number in range(int(cut.leaf.max()) + 1):
            # at most twice the rows that were asked for: the cost of a leaf does not grow with the table
            rows = (leaf == number).nonzero()[:, 0]
            rows = rows[torch.randperm(len(rows), generator=generator)[: _MOST * self.rows]]
            z, target, own = view(x[rows]), y[rows], weight_of(weight, rows)
            mean = weighted_mean(target, own)
            target = target - mean
            # few rows choose the ridge and the length scale of the leaf
            few = slice(0, _TUNING_ROWS)
            some = None if own is None else own[few]
            choices = [k for k in (kernel.rescaled(scale) for scale in _SCALES) if k is not None] or [kernel]
            fits = [dual_path(k(z[few]), target[few], weight=some, rough=True) for k in choices]
            best = min(range(len(fits)), key=lambda i: fits[i].error)
            # all its rows teach it, in float32 where rounding is a hundredth of the ridge
            kernel_here, penalty = choices[best], fits[best].penalty
            factor = ridge_factor(kernel_here, z.to(self.device), penalty, len(z), weight=own)
            kernels.append(kernel_here)
            penalties.append(penalty)
            anchors.append(z.to(factor.dtype))
            weights.append(torch.cholesky_solve(target.to(factor), factor).contiguous().cpu())
            means.append(mean)
        return LocalMachine(view, cut, kernels, penalties, anchors, weights, torch.stack(means))


Member = LocalMachine | Boosting
Plan = Callable[..., Member]  # from rows (n, d), targets (n, c) and weights (n,)


class LocalStack(Savable):
    """Local machines and boosted trees, weighed on rows that none of them learned from.

    Args:
        members: What is averaged: :class:`LocalMachine`, and :class:`Boosting` where trees may join.
        shares: Their weights, ``(m,)``.
        rows: Some training rows, ``(r, d)``.

    Attributes:
        left_out_: Numbers of the rows left out, ``(r,)``; not saved.
        held_out_: Their predictions, by members that did not learn from them and shares that come from other rows,
            ``(r, c)``; not saved.
    """

    left_out_: Tensor
    held_out_: Tensor

    def __init__(self, members: list[Member], shares: Tensor, rows: Tensor) -> None:
        self.members, self.shares, self.rows_ = members, shares, rows

    @classmethod
    def fit(
        cls,
        x: Tensor,
        y: Tensor,
        weight: Tensor | None = None,
        *,
        left_out: Tensor,
        trees: bool = True,
        leaf: int = LEAF,
        seed: int = 0,
        device: str = "cpu",
    ) -> LocalStack:  # (n, d), (n, c), (n,)
        """Choose, learn from all rows but those left out, weigh by these, and learn from them, too, if they count.

        Args:
            x: Rows in an order that says nothing about them.
            y: Targets, one column of 0 and 1 for each class.
            weight: Weights of the rows; None for 1.
            left_out: Numbers of the rows that weigh the members, ``(r,)``.
            trees: Whether boosted trees join.
            leaf: Rows of a leaf.
            seed: Random seed.
            device: Where matrices are factored.
        """
        stay = torch.ones(len(x), dtype=torch.bool)
        stay[left_out] = False
        rows, target, w = x[stay], y[stay], weight_of(weight, stay)
        with torch.no_grad():
            # few rows choose two kernels on views of the columns; a sum of columns has no use for leaves
            order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
            centred = target - weighted_mean(target, w)
            looks, trials = try_machines(rows, centred, order[:CHOOSING_ROWS], w)
            metric = try_metric(rows, centred, order[:_METRIC_ROWS], CHOOSING_ROWS, looks, trials, w)
        curved = sorted((t for t in trials if isinstance(t.kernel, _CURVED)), key=lambda trial: trial.error)
        chosen = [curved[0], next((t for t in curved if type(t.kernel) is not type(curved[0].kernel)), curved[0])]
        if metric is not None:
            looks.append(metric[0])
            chosen.append(min((t for t in metric[1] if isinstance(t.kernel, _CURVED)), key=lambda trial: trial.error))

        # boosted trees, and each kernel in small leaves; in large ones, too, where small ones help
        classes = are_classes(y)
        few = _FEW_TREES if classes and y.shape[1] > 1 else len(_BOOSTED)
        plans: list[Plan] = [
            partial(Boosting.grow, **how, stopping=True, seed=seed + i) for i, how in enumerate(_BOOSTED[:few] * trees)
        ]
        members = [learn(rows, target, w) for learn in plans]
        truth, own = y[left_out], weight_of(weight, left_out)
        predictions = [member.predict(x[left_out]) for member in members]
        for size in (max(1, leaf // 2), leaf):
            for i, trial in enumerate(chosen):
                plans.append(partial(Local(size, seed + i, device).solve, looks[trial.look].view, trial.kernel))
                members.append(plans[-1](rows, target, w))
                predictions.append(members[-1].predict(x[left_out]))
            # the rows left out weigh; a local machine that is hardly missed goes, for it costs most of a prediction
            kept = list(range(len(members)))
            shares, loss = weigh(predictions, truth, own, classes=classes)
            most = (1 + _NEEDLESS) * loss
            while len(kept) > 1:
                tried = []
                for gone in kept:
                    if isinstance(members[gone], LocalMachine):
                        fewer = [i for i in kept if i != gone]
                        tried.append((fewer, *weigh([predictions[i] for i in fewer], truth, own, classes=classes)))
                best = min(tried, key=lambda one: one[2], default=None)
                if best is None or best[2] > most:
                    break
                kept, shares, _ = best
            plans, members = [plans[i] for i in kept], [members[i] for i in kept]
            predictions = [predictions[i] for i in kept]
            if not any(isinstance(member, LocalMachine) for member in members):
                break

        # each row left out is predicted by shares from the others
        part = torch.arange(len(truth)) % _FOLDS
        held_out = torch.zeros_like(truth)
        for i in part.unique():
            others = part != i
            weights, _ = weigh([p[others] for p in predictions], truth[others], weight_of(own, others), classes=classes)
            held_out[part == i] = torch.einsum("m,mrc->rc", weights, torch.stack(predictions))[part == i]

        # of a shorter table they are worth learning from, too; boosted trees then know when to stop
        if len(left_out) > _LEARN_AGAIN * len(x):
            for i, (learn, member) in enumerate(zip(plans, members, strict=True)):
                if isinstance(member, Boosting):
                    learn = partial(learn, rounds=member.rounds, stopping=False)
                members[i] = learn(x, y, weight)
        some_rows = rows[torch.linspace(0, len(rows) - 1, min(len(rows), _KEPT)).round().long()]
        stack = cls(members, shares, some_rows.contiguous())
        stack.left_out_, stack.held_out_ = left_out, held_out
        return stack

    def predict(self, x: Tensor) -> Tensor:  # (n, d) -> (n, c)
        """The average of the members."""
        total = torch.zeros(len(x), 1, dtype=torch.float64)
        for share, member in zip(self.shares.tolist(), self.members, strict=True):
            total = total + share * member.predict(x)
        return total

    def get_arguments(self) -> dict[str, object]:
        """As they are now."""
        return {"members": self.members, "shares": self.shares, "rows": self.rows_}

    def get_state(self) -> dict[str, object]:
        """All of it is in the arguments."""
        return {}


def weigh(
    predictions: Sequence[Tensor], y: Tensor, weight: Tensor | None, *, classes: bool
) -> tuple[Tensor, float]:  # (n, c), (n,) -> (m,)
    r"""Convex weights of the members, shrunk towards equal ones, and the loss of their average.

    Of numbers it is the squared error. Of classes it is the log loss, which :math:`\sum (y - p)^2 / v` with the
    variances :math:`v = p (1 - p)` (of several classes p) follows near its least: the average p of one step gives v of
    the next. A rare class counts as it should: its squares alone are as good as none.

    Args:
        predictions: Of rows left out, ``(n, c)`` each.
        y: Targets.
        weight: Weights of the rows; None for 1.
        classes: Whether targets are classes.
    """
    shares = convex_weights(predictions, y, weight, shrink=_SHRINK)
    blend = torch.einsum("m,mrc->rc", shares, torch.stack(list(predictions)))
    if not classes:
        return shares, float(weighted_mean((y - blend).square(), weight).sum())
    single = y.shape[1] == 1
    for _ in range(_STEPS):
        p = blend.clamp(_LEAST, 1 - _LEAST)
        root = (p * (1 - p) if single else p).rsqrt()
        shares = convex_weights([root * one for one in predictions], root * y, weight, shrink=_SHRINK)
        blend = torch.einsum("m,mrc->rc", shares, torch.stack(list(predictions)))
    p, truth = blend, y
    if single:
        p, truth = torch.cat((1 - p, p), 1), torch.cat((1 - y, y), 1)
    p = p.clamp_min(_LEAST)
    losses = -(truth * (p / p.sum(1, keepdim=True)).log()).sum(1, keepdim=True)
    return shares, float(weighted_mean(losses, weight))
