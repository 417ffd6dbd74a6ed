"""Boosted trees as arrays: grown by scikit-learn, stored without pickle, evaluated by bit masks."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..storage.savable import Savable, SavableModule

LINKS = ("identity", "logistic", "softmax")
ROUNDS = 60
_AT_ONCE = 256  # trees whose masks are looked up together
_LEAVES = 62  # leaves of a tree that fit the bits of one whole number

Array = NDArray[Any]


class Trees(SavableModule):
    r"""Sum of trees behind a link: :math:`f_j(x) = g(b_j + \sum_t v_t(\text{leaf of tree } t \text{ that holds } x))`.

    Tree t belongs to the output ``t % c``. Its nodes are ``start[t] .. start[t + 1] - 1``, the first one its root; a
    row goes left where its value is not above the threshold.

    To evaluate, each inner node has a mask of the leaves that stay possible if a row goes right there. The leaf of a
    row is the first one left after all masks of nodes where it went right (QuickScorer, lucchese2015). Sorted by
    threshold, the masks of one column are joined in advance: a row looks up one mask for each column and tree.

    Args:
        start: First node of each tree, and the number of nodes, ``(t + 1,)``.
        feature: Column of each node, ``(n,)``.
        threshold: ``(n,)``.
        left: Child of each node in its own tree, ``(n,)``.
        right: ``(n,)``.
        value: What a leaf adds, ``(n,)``.
        is_leaf: ``(n,)``.
        missing_left: Whether a row goes left where it has no number in this column, ``(n,)``.
        baseline: b, ``(c,)``.
        link: g: ``identity``; ``logistic`` for two classes, of which the second one is predicted; ``softmax``.
    """

    start: Tensor
    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    is_leaf: Tensor
    missing_left: Tensor
    baseline: Tensor

    def __init__(
        self,
        start: Tensor,
        feature: Tensor,
        threshold: Tensor,
        left: Tensor,
        right: Tensor,
        value: Tensor,
        is_leaf: Tensor,
        missing_left: Tensor,
        baseline: Tensor,
        link: str = "identity",
    ) -> None:
        super().__init__()
        self.hold(start=start, feature=feature, threshold=threshold, left=left, right=right, value=value)
        self.hold(is_leaf=is_leaf, missing_left=missing_left, baseline=baseline)
        self.link = checks.choice("Trees", "link", link, LINKS)

    @classmethod
    def of_boosting(cls, model: Any) -> Trees:
        """The trees of a fitted ``HistGradientBoosting`` of scikit-learn without columns of categories."""
        grown = [tree.nodes for together in model._predictors for tree in together]
        nodes = np.concatenate(grown)
        names = {"feature": "feature_idx", "threshold": "num_threshold", "left": "left", "right": "right"}
        names |= {"value": "value", "is_leaf": "is_leaf", "missing_left": "missing_go_to_left"}
        arrays = {name: np.ascontiguousarray(nodes[field]) for name, field in names.items()}
        kinds = {"feature": np.int64, "left": np.int64, "right": np.int64, "is_leaf": bool, "missing_left": bool}
        start = torch.tensor([0, *np.cumsum([len(tree) for tree in grown])])
        baseline = torch.from_numpy(np.asarray(model._baseline_prediction, dtype=np.float64).reshape(-1).copy())
        link = "identity"
        if hasattr(model, "classes_"):
            link = "logistic" if len(baseline) == 1 else "softmax"
        tensors = {name: torch.from_numpy(array.astype(kinds.get(name, np.float64))) for name, array in arrays.items()}
        return cls(start=start, **tensors, baseline=baseline, link=link)

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, d) -> (n, c)
        rows = x.double().numpy()
        c = len(self.baseline)
        total = np.tile(self.baseline.numpy(), (len(rows), 1))
        for trees, columns, leaves in self._tables():
            # one bit for each leaf of each tree that no column has ruled out yet
            possible = np.full((len(rows), len(trees)), -1, dtype=np.int64)
            for column, (thresholds, masks) in columns.items():
                values = rows[:, column]
                place = np.searchsorted(thresholds, values)  # thresholds below the value: there it goes right
                place[np.isnan(values)] = len(thresholds) + 1
                # at 0 no threshold is below, and all leaves stay: most rows of a column that marks one word
                passed = place.nonzero()[0]
                if 2 * len(passed) < len(place):
                    possible[passed] &= masks[place[passed]]
                else:
                    possible &= masks[place]
            # the first leaf left is the lowest bit: its place is the exponent of m & -m
            first = np.frexp((possible & -possible).astype(np.float64))[1] - 1
            values = leaves[np.arange(len(trees)), first]
            for j in range(c):
                total[:, j] += values[:, trees % c == j].sum(1)
        scores = torch.from_numpy(total)
        if self.link == "softmax":
            return scores.softmax(1)
        return scores.sigmoid() if self.link == "logistic" else scores

    def _tables(self) -> list[tuple[Array, dict[int, tuple[Array, Array]], Array]]:
        """For some trees at a time: their numbers, the masks of each column, and the values of their leaves."""
        if "_looked_up" in self.__dict__:
            known: list[tuple[Array, dict[int, tuple[Array, Array]], Array]] = self.__dict__["_looked_up"]
            return known
        feature, threshold, value = self.feature.numpy(), self.threshold.numpy(), self.value.numpy()
        left, right, missing_left = self.left.numpy(), self.right.numpy(), self.missing_left.numpy()
        is_leaf, start = self.is_leaf.numpy(), self.start.tolist()
        tables = []
        for first in range(0, len(start) - 1, _AT_ONCE):
            trees = np.arange(first, min(first + _AT_ONCE, len(start) - 1))
            leaves = np.zeros((len(trees), _LEAVES))
            splits: list[tuple[int, float, int, int, bool]] = []  # column, threshold, tree, mask, missing left
            for t, tree in enumerate(trees):
                # number the leaves from left to right; the leaves under a left child are ruled out by going right
                count = 0
                walk: list[tuple[int, int | None]] = [(start[tree], None)]
                while walk:
                    node, begun = walk.pop()
                    if is_leaf[node]:
                        leaves[t, count] = value[node]
                        count += 1
                    elif begun is None:
                        walk += [(start[tree] + right[node], None), (node, count), (start[tree] + left[node], None)]
                    else:
                        mask = ~((1 << count) - (1 << begun))
                        splits.append((int(feature[node]), float(threshold[node]), t, mask, bool(missing_left[node])))
            columns = {}
            for column in sorted({split[0] for split in splits}):
                own = sorted(split[1:] for split in splits if split[0] == column)
                masks = np.full((len(own) + 2, len(trees)), -1, dtype=np.int64)
                for i, (_, t, mask, goes_left) in enumerate(own):
                    masks[i + 1 : -1, t] &= mask
                    if not goes_left:
                        masks[-1, t] &= mask
                columns[column] = (np.array([split[0] for split in own]), masks)
            tables.append((trees, columns, leaves))
        self.__dict__["_looked_up"] = tables
        return tables

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_looked_up"}


class Boosting(Savable):
    """Boosted trees for targets as of :class:`StackedRidge`: scores ``(n, c)``.

    Args:
        models: One for each column of numbers; one for classes, or none where the rows had a single class.
        columns: Classes that the rows had, ``(k,)``; empty for numbers.
        c: Columns of the targets.
    """

    def __init__(self, models: list[Trees], columns: Tensor, c: int) -> None:
        self.models, self.columns, self.c = models, columns, c

    @classmethod
    def grow(
        cls,
        x: Tensor,
        y: Tensor,
        weight: Tensor | None = None,
        *,
        rounds: int = ROUNDS,
        leaves: int = 15,
        rate: float = 0.12,
        stopping: bool = False,
        seed: int = 0,
    ) -> Boosting:  # (n, d), (n, c), (n,)
        """Grow them by scikit-learn.

        Args:
            x: Rows.
            y: Targets. Columns of 0 and 1 are classes: one column stands for two classes, else each class has its own.
            weight: Weights of the rows; None for 1.
            rounds: Trees of each output.
            leaves: Leaves of a tree, at most.
            rate: Share of each tree that is added.
            stopping: Leave out a tenth of the rows, and stop when ten rounds have not helped them.
            seed: Of these rows, and of those that set the bins of long tables.
        """
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        c = y.shape[1]
        columns = torch.zeros(0, dtype=torch.int64)
        make, outputs = HistGradientBoostingRegressor, list(y.mT)
        if are_classes(y):
            labels = y[:, 0].long() if c == 1 else y.argmax(1)
            columns = labels.unique()
            make, outputs = HistGradientBoostingClassifier, [labels] * (len(columns) > 1)
        models = []
        for output in outputs:
            model = make(
                max_iter=rounds, max_leaf_nodes=leaves, learning_rate=rate, early_stopping=stopping, random_state=seed
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of columns with fewer values than bins
                model.fit(x.numpy(), output.numpy(), None if weight is None else weight.numpy())
            models.append(Trees.of_boosting(model))
        return cls(models, columns, c)

    @property
    def rounds(self) -> int:
        """Rounds that were grown, the most of all outputs; at least 1."""
        return max([1, *((len(model.start) - 1) // len(model.baseline) for model in self.models)])

    def predict(self, x: Tensor) -> Tensor:  # (n, d) -> (n, c)
        """Numbers, or probabilities of classes; a class that the rows did not have gets 0."""
        if not len(self.columns):
            return torch.cat([model(x) for model in self.models], 1)
        p = self.models[0](x) if self.models else torch.ones(len(x), 1, dtype=torch.float64)
        if len(self.columns) == 2:
            p = torch.cat((1 - p, p), 1)
        out = torch.zeros(len(x), max(self.c, 2), dtype=torch.float64)
        out[:, self.columns] = p
        return out[:, 1:] if self.c == 1 else out

    def get_state(self) -> dict[str, object]:
        """All of it is in the arguments."""
        return {}


def check_trees(where: str, trees: object) -> bool | str:
    """Whether trees may join kernel machines: ``auto``, True or False."""
    if isinstance(trees, bool | np.bool_):
        return bool(trees)
    if trees != "auto":
        raise ValueError(checks.sentence(where, "trees must be 'auto', True or False", repr(trees)))
    return "auto"


def are_classes(y: Tensor) -> bool:  # (n, c)
    """Whether columns of targets stand for classes: all are 0 or 1, and of several columns just one is 1."""
    return bool(((y == 0) | (y == 1)).all()) and (y.shape[1] == 1 or bool((y.sum(1) == 1).all()))


def shrunk_share(base: Tensor, other: Tensor, y: Tensor, weight: Tensor | None = None) -> float:
    r"""The share t of ``other`` in :math:`(1 - t) p + t q` with the least squared error, less its uncertainty.

    With :math:`r = y - p`, :math:`\delta = q - p` least squares gives :math:`\hat t = \sum r \delta / \sum \delta^2`,
    whose standard error s comes from the rows. :math:`t = (\hat t - s)_+`, at most 1, is 0 where the rows cannot tell
    that ``other`` adds anything.

    Args:
        base: Predictions p of rows left out, ``(n, c)``.
        other: Predictions q.
        y: Targets.
        weight: Weights of the rows, ``(n,)``; None for 1.
    """
    residual, step = y - base, other - base
    w = torch.ones(len(y), dtype=y.dtype) if weight is None else weight
    curvature = float(w @ step.square().sum(1))
    if not curvature > 0:
        return 0.0
    share = float(w @ (residual * step).sum(1)) / curvature
    if not share > 0:
        return 0.0
    pull = w * ((residual - share * step) * step).sum(1) / curvature
    return min(1.0, max(0.0, share - float(pull.square().sum().sqrt())))
