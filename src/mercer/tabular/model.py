"""A model of a user's table: learn from it, say how well, predict with probabilities and a warning of strange rows."""

from __future__ import annotations

import html
import logging
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import NotFittedError

from .. import checks
from ..machines.trees import check_trees
from ..storage.savable import Savable
from ..user_text import shown
from .columns import TASKS, Column, Preparation, Prepared, Target, TargetMeans, Writing, find_target, name_by_text
from .familiarity import Familiarity
from .frames import as_pandas
from .holes import widen
from .learner import Learner
from .scoring import deal_groups
from .splits import choose_scored_rows, name_groups, read_moments, score_split, weigh_classes
from .training import LEVEL, STATE, Progress, Sizes, Training

_UNSEEN = 0.5  # a row with a category that no training row had, or with no value at all, is at least so unfamiliar
_NAMED = 5  # columns that a warning names
_log = logging.getLogger("mercer")


class TabularModel(Savable):
    """Classes or a number from a table's other columns, by stacked kernel machines and trees that need no tuning.

    Use it where you want the whole answer for each row as a frame, or to read files as ``mercer fit`` does;
    `TabularClassifier` and `TabularRegressor` are the same model as estimators of scikit-learn.

    Args:
        task: ``auto`` infers it from the target; or ``classification``, ``regression``.
        trees: Whether boosted trees may join the kernel machines. They get a share of the answer where rows left out
            say that they help: ``auto`` where they are affordable, True always, False never.
        random_state: Random seed of folds and subsets; None draws one.
        class_weight: ``balanced`` weights rows by the inverse of their class's frequency; a dict gives the weight of
            each class, 1 where it has none. Probabilities are then those of a table with such classes.
        time: Column by which rows come. Scores are of the last fifth of the rows, predicted by a second model that
            learned from the rows before them alone. Up to 10,000 rows machines are chosen by how they predict each of
            five periods from those before it.
        groups: Column that names groups of rows: a row is scored, and intervals are made, by a model that learned from
            other groups alone. Up to 4,000 rows every group is scored, by five such models, beyond a fifth of them, by
            one. Up to 10,000 rows machines are chosen by how they predict whole groups. It is not learned from.

    Attributes:
        preparation: What was made of the columns.
        means: Columns of many words as means of the target.
        target: The column to predict.
        learner: The machine on the prepared matrix, with its calibration.
        familiarity: What ``unfamiliar`` comes from.
        scores: Scores of rows left out, the confusion matrix and reliability bins, or pairs of value and prediction;
            ``beside``, where asked for: those of a linear model and of boosted trees.
        seconds: Time that ``fit`` took.
        rows: Number of rows learned from.
        notes: Sentences for the user.
        made_with: Versions of Python and the packages.

    >>> frame = pd.DataFrame({"x": [0, 1, 2, 3] * 10, "sort": ["low", "low", "high", "high"] * 10})
    >>> model = TabularModel().fit(frame, "sort")
    >>> model.predict(pd.DataFrame({"x": [0, 3]}))["prediction"].tolist()
    ['low', 'high']
    """

    preparation: Preparation
    means: TargetMeans
    target: Target
    learner: Learner
    familiarity: Familiarity
    scores: dict[str, Any]
    seconds: float
    rows: int
    notes: list[str]
    made_with: dict[str, str]

    def __init__(
        self,
        *,
        task: str = "auto",
        trees: bool | str = "auto",
        random_state: int | None = 0,
        class_weight: str | Mapping[Any, float] | None = None,
        time: str | None = None,
        groups: str | None = None,
    ) -> None:
        if isinstance(class_weight, str):
            checks.choice("TabularModel", "class_weight", class_weight, ("balanced",))
        if time is not None and groups is not None:
            raise ValueError(checks.sentence("TabularModel", "time or groups must be None", f"{time!r}, {groups!r}"))
        self.class_weight, self.time, self.groups = class_weight, time, groups
        self.task = checks.choice("TabularModel", "task", task, TASKS)
        self.trees = check_trees("TabularModel", trees)
        if random_state is None:
            random_state = secrets.randbelow(2**32)
        self.random_state = checks.integer("TabularModel", "random_state", random_state, 0, 2**32 - 1)

    def __repr__(self) -> str:
        fitted = ""
        if hasattr(self, "scores"):
            fitted = f", fitted to {self.rows} rows of {self.target.name!r}"
        return f"<TabularModel task={self.task!r}, random_state={self.random_state}{fitted}>"

    def _repr_html_(self) -> str:
        """For a notebook: the scores on held-out rows, and what was made of the columns."""
        if not hasattr(self, "scores"):
            return f"<code>{html.escape(repr(self))}</code>"
        numbers = {name: value for name, value in self.scores.items() if isinstance(value, float)}
        scores = pd.DataFrame({"held-out rows": pd.Series(numbers, dtype=float)})
        columns = pd.DataFrame([vars(c) for c in self.preparation.columns])[["name", "kind", "how"]]
        title = html.escape(f"{self.target.name}: {self.target.task}, {self.rows} rows")
        return f"<b>{title}</b>{scores.to_html(float_format='{:.4g}'.format)}{columns.to_html(index=False)}"

    def fit(
        self,
        frame: pd.DataFrame,
        target: str,
        sample_weight: Any = None,
        *,
        compare: bool = False,
        progress: Progress | None = None,
        sizes: Sizes | None = None,
        device: str = "cpu",
    ) -> Self:
        """Learn to predict the column ``target`` from the others; rows where it is missing are left out.

        Args:
            frame: The table, pandas or polars; with several ranks, all pass the same.
            target: Name of a column.
            sample_weight: Weights of the rows, ``(n,)``, 0 or more; only their ratios matter. A row of weight w has
                the ridge over w as noise and counts w times in means, errors and calibration; one of weight 0 is left
                out. Scales of columns and the scores count each row once.
            compare: Score a linear model and boosted trees on the same folds, too.
            progress: Callback that receives progress messages.
            sizes: Numbers of rows at which the way of learning changes; None for the defaults.
            device: Where matrices are factored; the model itself is on the CPU.
        """
        return self.learn(frame, target, sample_weight, compare, progress or _log.debug, sizes, device)

    def learn(
        self,
        frame: pd.DataFrame,
        target: str,
        weight: Any,
        compare: bool,
        progress: Progress,
        sizes: Sizes | None,
        device: str,
        writings: Mapping[str, Writing] | None = None,
    ) -> Self:
        """As :meth:`fit`, where ``writings`` says how the whole table, of which this is a part, writes its columns."""
        frame = name_by_text(as_pandas("TabularModel", frame))
        if self.class_weight is not None:
            weight = weigh_classes(frame[find_target(frame.columns, target)], self.class_weight, weight)
        table, names, moments = frame, None, None
        if self.groups is not None:
            names = name_groups(frame, self.groups)
            table = frame.drop(columns=find_target(frame.columns, self.groups, "groups"))
        if self.time is not None:
            moments = read_moments(frame, self.time, find_target(frame.columns, target), weight)
        sizes = sizes or Sizes()
        long = len(table) > sizes.exact
        groups = None if long else names
        # of a short table every group is scored, else a fifth of them; of rows by time the last fifth
        in_turn = groups is not None and len(table) <= sizes.every_row
        training = Training(self.task, self.random_state, progress, sizes, device, self.trees)
        training.learn(
            table,
            target,
            weight,
            writings=writings,
            compare=compare and (in_turn or (names is None and moments is None)),
            groups=groups,
            moments=moments,
        )
        self.set_state(training.state())
        if (names is not None or moments is not None) and self.scores["folds"]:
            # what is scored are other models, learned in the same way from the earlier rows or the other groups
            beside = self.scores.get("beside") if in_turn else None
            parts = [choose_scored_rows(names, moments, self.random_state)]
            which = f"a fifth of the groups of {self.groups}, by a model fitted without them"
            if moments is not None:
                share = parts[0].sum() / np.isfinite(moments).sum()
                which = f"the last {share:.0%} of the rows by {self.time}, predicted from those before them"
            elif in_turn:
                fold = deal_groups(np.asarray(names), self.random_state).numpy()
                parts = [fold == number for number in range(fold.max() + 1)]
                which = f"whole groups of {self.groups}, by models fitted without them"
            progress(f"scores of {which}")
            fewest = min(int((~scored).sum()) for scored in parts)
            sizes = replace(sizes, exact=min(sizes.exact, fewest - 1) if long else sizes.exact)
            self.scores, more = score_split(
                self,
                lambda: Training(
                    self.target.task, self.random_state, progress, sizes, device, self.trees, scored=False
                ),
                table,
                parts,
                weight,
                groups,
                moments,
                writings,
                compare=compare and not in_turn,
            )
            if self.scores["folds"]:
                self.scores |= {"of": which} | ({"beside": beside} if beside else {})
                self.notes.append(f"Scores are of {which}{'; ' * bool(more)}{more}.")
        if self.groups is not None:
            # in its own place: estimators read the columns of an array by place
            names_in_order = [name for name in frame.columns if name != self.target.name]
            place = names_in_order.index(find_target(frame.columns, self.groups, "groups"))
            self.preparation.columns.insert(place, Column(self.groups, "ignored", "dropped: it names the groups"))
        return self

    def predict(self, frame: pd.DataFrame, *, level: float = LEVEL) -> pd.DataFrame:
        """Columns ``prediction``, ``p_<class>`` for each class or ``low`` and ``high``, and ``unfamiliar`` from 0 to 1.

        Unexpected values (categories never seen, columns not needed) are logged as warnings.

        Args:
            frame: Rows with the columns of the training table.
            level: For numbers, the share of rows whose true value lies between ``low`` and ``high``.
        """
        answer, surprises = self.predict_with_surprises(frame, level=level)
        for what, rows in surprises.items():
            _log.warning("%s (%d rows)", what, rows)
        return answer

    def predict_with_surprises(self, frame: pd.DataFrame, *, level: float = LEVEL) -> tuple[pd.DataFrame, Counter[str]]:
        """The same, with a count of unexpected values: sentence -> rows."""
        self._check_fitted()
        frame = name_by_text(as_pandas("TabularModel", frame))
        # The rows as numbers, and their answers.
        prepared = self.preparation.prepare(frame)
        x = torch.cat((prepared.x, self.means.transform(frame)), 1)
        answer = self.learner.predict(x)
        if not bool(answer.isfinite().all()):
            fix = "Fit the model again, or take the file from where it was made."
            raise ValueError(checks.sentence("TabularModel", "predictions must be finite", "a damaged model", fix))
        low = high = torch.zeros(len(x), dtype=torch.float64)
        if self.target.classes is None:
            half = self.learner.half_widths(x, level)
            low, high = answer - half, answer + half
        strange = prepared.unseen | prepared.blank

        # Rows with a blank cell where training had none are answered again, by what is known without that cell.
        holes = self.holes(prepared)
        again = holes.any(1)
        if bool(again.any()):
            widened = widen(self.learner, x[again], holes[again], level)
            answer, low, high = answer.clone(), low.clone(), high.clone()
            answer[again], low[again], high[again] = widened.answer, widened.low, widened.high
            strange[again.numpy()] |= widened.mattered.numpy()
            x[again] = widened.completed  # no training row looked like the filler of a blank cell

        # The columns of the answer.
        if self.target.classes is None and self.learner.low >= 0:  # so were all targets
            low, high = low.clamp_min(0.0), high.clamp_min(0.0)
        columns: dict[str, Any] = {}
        if self.target.classes is not None:
            columns["prediction"] = self.target.decode(answer.argmax(1))
            columns |= {f"p_{name}": answer[:, i].numpy() for i, name in enumerate(self.target.classes)}
        else:
            columns |= {"prediction": answer.numpy(), "low": low.numpy(), "high": high.numpy()}
        unfamiliar = self.familiarity(self.learner.seen(x)).numpy()
        columns["unfamiliar"] = np.where(strange, np.maximum(unfamiliar, _UNSEEN), unfamiliar)
        surprises = self._count_surprises(prepared, frame)
        if self.target.classes is None:
            why_endless = self.learner.why_endless(level)
            if why_endless:
                surprises[why_endless] += len(frame)
        return pd.DataFrame(columns, index=frame.index), surprises

    def explain(self) -> pd.DataFrame:
        """How much each column moves the prediction: ``weight``, shares of 1, the largest first.

        ``correlated`` names columns that say nearly the same; any of them may carry the weight.
        """
        self._check_fitted()
        from .effects import correlated
        from .importance import column_weights

        weights = column_weights(self)
        group_of = {name: group for group in correlated(self, weights) for name in group}
        mates = [", ".join(mate for mate in group_of.get(name, []) if mate != name) for name in weights]
        index = pd.Index(list(weights), name="column")
        return pd.DataFrame({"weight": list(weights.values()), "correlated": mates}, index=index)

    def encode(self, frame: pd.DataFrame) -> torch.Tensor:
        """Rows as the machine sees them, ``(n, d)``."""
        frame = name_by_text(frame)
        return torch.cat((self.preparation.prepare(frame).x, self.means.transform(frame)), 1)

    @property
    def text_columns(self) -> list[str]:
        """Columns to read as text from a file: ``mercer.tabular.read(path, text=model.text_columns)``."""
        return [*self.preparation.text_columns, *self.target.text_columns]

    @property
    def feature_names(self) -> list[str]:
        """Names of the features the machine sees."""
        means = self.means.names(self.target.classes)
        return [*self.preparation.feature_names, *(name for names in means.values() for name in names)]

    def column_features(self) -> dict[str, list[int]]:
        """For each column in use the numbers of its features."""
        means = self.means.names(self.target.classes)
        place = {name: i for i, name in enumerate(self.feature_names)}
        used = [column for column in self.preparation.columns if not column.dropped]
        return {c.name: [place[f] for f in (*c.encoder.features, *means.get(c.name, []))] for c in used}

    def holes(self, prepared: Prepared) -> torch.Tensor:  # (n, d)
        """Which features of prepared rows are unknown, and not as training rows taught: see :func:`.holes.widen`."""
        mask = torch.zeros(prepared.x.shape[0], self.learner.width, dtype=torch.bool)
        if prepared.holes or prepared.blank.any():
            features = self.column_features()
            for name, rows in prepared.holes.items():
                mask[torch.from_numpy(np.flatnonzero(rows))[:, None], torch.tensor(features[name])] = True
            mask[torch.from_numpy(prepared.blank)] = True
        return mask

    def _count_surprises(self, prepared: Prepared, frame: pd.DataFrame) -> Counter[str]:
        """What the user should know of these rows: sentence -> rows."""
        surprises = Counter(prepared.surprises)
        partly_blank = {name: rows & ~prepared.blank for name, rows in prepared.holes.items()}
        names = [name for name, rows in partly_blank.items() if rows.any()]
        if names:
            listed = ", ".join(shown(name, 40) for name in names[:_NAMED])
            if len(names) > _NAMED:
                listed += f" and {len(names) - _NAMED} more"
            rows = int(np.any([partly_blank[name] for name in names], axis=0).sum())
            what = "blank, as in no training row; the answer averages over values of similar training rows"
            surprises[f"{listed}: {what}"] += rows
        for name in self.preparation.extra_columns(frame):
            if name != self.target.name:
                surprises[f"{name}: a column that the model does not know is ignored"] += len(frame)
        return surprises

    def get_arguments(self) -> dict[str, Any]:
        """What the model was made with; the seed is the one that was used."""
        weights = self.class_weight
        if weights is not None and not isinstance(weights, str):
            weights = {str(name): float(value) for name, value in weights.items()}
        options = {"class_weight": weights, "time": self.time, "groups": self.groups}
        return {"task": self.task, "trees": self.trees, "random_state": self.random_state, **options}

    def get_state(self) -> dict[str, Any]:
        """Everything that was learned."""
        self._check_fitted()
        return {name: getattr(self, name) for name in STATE}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`get_state` gave."""
        for name in STATE:
            setattr(self, name, state[name])
        count, width = len(self.feature_names), self.learner.width
        if count != width:
            fix = "The file was changed by hand: fit the model again."
            raise ValueError(checks.sentence("TabularModel", f"the columns must have {width} features", count, fix))

    def _check_fitted(self) -> None:
        if not hasattr(self, "familiarity"):
            need, got = "fit must come first", "a model that has not been fitted"
            raise NotFittedError(checks.sentence("TabularModel", need, got))
