r"""Which columns a model looks at: by exchanging their values between training rows, or between given rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from .. import checks
from .columns import name_by_text, present

if TYPE_CHECKING:
    from .model import TabularModel

_POINTS = 300  # training rows whose values are exchanged
_ROUNDS = 2
_ALONE = 200  # columns up to which each is exchanged alone
_GROUPS, _SPLITS = 64, 64  # of more, groups; and how often the heaviest is halved
_ROWS = 500  # rows of given data that are shuffled
_COLUMNS = 40  # columns that are shuffled, those of largest weight


def column_weights(model: TabularModel) -> dict[str, float]:
    r"""Each column's share of :math:`E \|f(x) - f(x')\|^2`, x' being x with that column from another row; sum 1.

    f is the fitted function before calibration, x the training rows it keeps: no data is needed, and neither units nor
    scales matter. To first order it is :math:`2 \, \mathrm{Var}(x_j) (\partial f / \partial x_j)^2`. Largest first;
    columns not used are left out. Of more than 200 columns, groups are exchanged, and the heaviest group is halved time
    after time; columns that stay together share their group's weight.
    """
    rows = model.learner.rows
    rows = rows[torch.linspace(0, len(rows) - 1, min(len(rows), _POINTS)).round().long()]
    generator = torch.Generator().manual_seed(model.random_state)
    before = model.learner.scores(rows)
    features = model.column_features()

    def exchange(group: list[str]) -> float:
        """How far the function moves when a group's values come from other rows."""
        exchanged = [feature for name in group for feature in features[name]]
        total = 0.0
        for _ in range(_ROUNDS):
            changed = rows.clone()
            changed[:, exchanged] = rows[torch.randperm(len(rows), generator=generator)][:, exchanged]
            total += float((model.learner.scores(changed) - before).square().sum(1).mean())
        return total

    # One column each, or groups where there are many columns, of which the heaviest is halved time after time.
    names = list(features)
    size = 1
    if len(names) > _ALONE:
        size = -(-len(names) // _GROUPS)
    moves = [(group, exchange(group)) for group in (names[i : i + size] for i in range(0, len(names), size))]
    for _ in range(_SPLITS):
        divisible = [i for i, (group, _) in enumerate(moves) if len(group) > 1]
        if not divisible:
            break
        heaviest = max(divisible, key=lambda i: moves[i][1])
        group = moves[heaviest][0]
        halves = (group[: len(group) // 2], group[len(group) // 2 :])
        moves[heaviest : heaviest + 1] = [(half, exchange(half)) for half in halves]

    # Columns that stay together share their group's weight.
    weights = {name: move / len(group) for group, move in moves for name in group}
    total = sum(weights.values())
    if total > 0:
        shares = {name: weight / total for name, weight in weights.items()}
    else:
        shares = dict.fromkeys(weights, 1 / len(weights))
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def permutation_losses(
    model: TabularModel, frame: pd.DataFrame, *, random_state: int = 0, weights: Mapping[str, float] | None = None
) -> dict[str, float]:
    """How much the score on given rows falls when one column is shuffled, largest first.

    The score is accuracy or R squared. Over rows that the model was made of it shows what it uses, over others what
    it needs.

    Args:
        model: A fitted model.
        frame: Rows with the model's columns and its target; at most 500 of them are used.
        random_state: Seed of the rows and their order.
        weights: Its `column_weights`, where they are known.
    """
    # The rows that have a target, at most 500 of them.
    frame, name = name_by_text(frame), model.target.name
    if name not in map(str, frame.columns):
        got = ", ".join(map(str, frame.columns[:6]))
        raise ValueError(checks.sentence("explain", f"the data must have the target column {name!r}", got))
    frame = frame[present(frame[name])]
    frame = frame[model.target.known(frame[name])]
    if len(frame) < 2:
        need = f"at least two rows must have a known value in {name!r}"
        raise ValueError(checks.sentence("explain", need, len(frame)))
    draw = np.random.default_rng(checks.integer("explain", "random_state", random_state, 0))
    frame = frame.iloc[np.sort(draw.permutation(len(frame))[:_ROWS])]

    # Shuffle one column after the other, the heaviest first.
    if weights is None:
        weights = column_weights(model)
    before = _score(model, frame)
    losses = {}
    for column in list(weights)[:_COLUMNS]:
        shuffled = frame.copy()
        shuffled[column] = frame[column].to_numpy()[draw.permutation(len(frame))]
        losses[column] = before - _score(model, shuffled)
    return dict(sorted(losses.items(), key=lambda pair: -pair[1]))


def _score(model: TabularModel, frame: pd.DataFrame) -> float:
    """Accuracy or R squared."""
    predicted = model.predict_with_surprises(frame)[0]["prediction"]
    truth = model.target.encode(frame[model.target.name])
    if model.target.classes is not None:
        return float((predicted.to_numpy() == model.target.decode(truth)).mean())
    values = truth.numpy()
    return float(1 - np.square(values - predicted.to_numpy()).mean() / max(values.var(), 1e-300))
