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
from ..linalg.blocks import slices
from ..storage.savable import Savable, SavableModule

LINKS = ("identity", "logistic", "softmax")
ROUNDS = 60
_AT_ONCE = 256  # trees whose masks are looked up together
_ROWS_AT_ONCE = 1024
_ROWS_FOR_THREADS = 10_000
_LEAVES = 62  # leaves of a tree that fit the bits of one whole number

Array = NDArray[Any]


class Trees(SavableModule):
    r"""Sum of trees behind a link: :math:`f_j(x) = g(b_j + \sum_t v_t(\text{leaf of tree } t \text{ that holds } x))`.

    Tree t belongs to the output ``t % c``. Its nodes are ``start[t] .. start[t + 1] - 1``, the first one its root; a
    row goes left where its value is not above the threshold.

    To evaluate, each inner node has a mask of the leaves that stay possible if a row goes right there. The leaf of a
    row is the first one left after all masks of nodes where it went right (QuickScorer, lucchese2015). Sorted by
    threshold, the masks of one column are joined in advance: a row looks up one mask for each column of a tree.

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
        thresholds, tables = self._tables()
        for part in slices(len(rows), _ROWS_AT_ONCE):
            # thresholds below each value: there it goes right
            places = {}
            for column, edges in thresholds.items():
                values = rows[part, column]
                places[column] = np.searchsorted(edges, values)
                places[column][np.isnan(values)] = len(edges) + 1
            for trees, columns, leaves in tables:
                # one bit for each leaf of each tree that no column has ruled out yet
                possible = np.full((len(trees), len(total[part])), -1, dtype=np.int64)
                for column, (split_here, masks) in columns.items():
                    possible[split_here] &= masks.take(places[column], axis=1)
                # the first leaf left is the lowest bit: its place is the exponent of m & -m
                first = np.frexp((possible & -possible).astype(np.float64))[1] - 1
                values = np.ascontiguousarray(np.take_along_axis(leaves, first, axis=1).T)
                for j in range(c):
                    total[part, j] += values[:, trees % c == j].sum(1)
        scores = torch.from_numpy(total)
        if self.link == "softmax":
            return scores.softmax(1)
        return scores.sigmoid() if self.link == "logistic" else scores

    def _tables(self) -> tuple[dict[int, Array], list[tuple[Array, dict[int, tuple[Array, Array]], Array]]]:
        """The thresholds of each column, and for some trees at a time what their forward pass looks up.

        That is their numbers; for each column those of them that split it ``(s,)``, with their masks for each place
        among the thresholds ``(s, p)``; and the values of their leaves.
        """
        if "_looked_up" in self.__dict__:
            known: tuple[dict[int, Array], list[tuple[Array, dict[int, tuple[Array, Array]], Array]]]
            known = self.__dict__["_looked_up"]
            return known
        feature, threshold, value = self.feature.numpy(), self.threshold.numpy(), self.value.numpy()
        left, right, missing_left = self.left.numpy(), self.right.numpy(), self.missing_left.numpy()
        is_leaf, start = self.is_leaf.numpy(), self.start.tolist()
        thresholds = {int(j): np.unique(threshold[(feature == j) & ~is_leaf]) for j in np.unique(feature[~is_leaf])}
        tables = []
        for first in range(0, len(start) - 1, _AT_ONCE):
            trees = np.arange(first, min(first + _AT_ONCE, len(start) - 1))
            leaves = np.zeros((len(trees), _LEAVES))
            splits: dict[int, list[tuple[int, int, int]]] = {}  # of a column: tree, node, mask
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
                        splits.setdefault(int(feature[node]), []).append((t, node, mask))
            columns = {}
            for column, own in splits.items():
                split_here, line = np.unique([t for t, _, _ in own], return_inverse=True)
                place = np.searchsorted(thresholds[column], threshold[[node for _, node, _ in own]])
                masks = np.full((len(split_here), len(thresholds[column]) + 2), -1, dtype=np.int64)
                for i, p, (_, node, mask) in zip(line, place, own, strict=True):
                    masks[i, p + 1 : -1] &= mask
                    if not missing_left[node]:
                        masks[i, -1] &= mask
                columns[column] = (split_here, masks)
            tables.append((trees, columns, leaves))
        self.__dict__["_looked_up"] = (thresholds, tables)
        return thresholds, tables

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
        columns: float = 1.0,
        ridge: float = 0.0,
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
            columns: Share of the columns, drawn anew for each split, that it chooses from.
            ridge: Penalty on the values of the leaves.
            stopping: Leave out a tenth of the rows, and stop when ten rounds have not helped them.
            seed: Of these rows, and of those that set the bins of long tables.
        """
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        c = y.shape[1]
        classes = torch.zeros(0, dtype=torch.int64)
        make, outputs = HistGradientBoostingRegressor, list(y.mT)
        if are_classes(y):
            labels = y[:, 0].long() if c == 1 else y.argmax(1)
            classes = labels.unique()
            make, outputs = HistGradientBoostingClassifier, [labels] * (len(classes) > 1)
        # Threads of a short table wait for one another at every leaf: a minute for 500 rows on a busy machine.
        models, threads = [], None
        if len(x) < _ROWS_FOR_THREADS:
            threads = 1
        with threadpool_limits(threads, "openmp"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of columns with fewer values than bins
            for output in outputs:
                model = make(
                    max_iter=rounds,
                    max_leaf_nodes=leaves,
                    learning_rate=rate,
                    max_features=columns,
                    l2_regularization=ridge,
                    early_stopping=stopping,
                    random_state=seed,
                )
                model.fit(x.numpy(), output.numpy(), None if weight is None else weight.numpy())
                models.append(Trees.of_boosting(model))
        return cls(models, classes, c)

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
