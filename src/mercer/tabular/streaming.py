"""Files of any length: one pass to learn, one to predict, and never more than a part and a sample in memory.

The pass draws up to 200,000 rows by hashes of what they hold, fewer where columns are many, and watches how every row
of the file writes numbers and dates. What was drawn is learned from as a table. Under ``torchrun`` every rank reads the
file and ends with the same model.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from .. import checks
from ..distributed import sum_over_ranks, world_size
from ..storage.files import atomic_stream, sha256
from ..user_text import spreadsheet_safe
from .columns import Array, Column, Writing, find_target, is_text
from .model import TabularModel
from .reading import read, read_chunks
from .training import LEVEL, Sizes, add_hash, order_by_content

__all__ = ["Answers", "fingerprint", "fit_file", "predict_file"]

SAMPLE_ROWS = 200_000  # rows that are learned from
_SAMPLE_CELLS = 5_000_000  # values of these rows
_CELLS = 10_000_000  # values of a part
_FEWEST = 1000
_FIRST_ROWS = 2000  # rows of the first step where time is short
_EXACT_GROWTH, _LONG_GROWTH = 2.5, 1.5  # powers of the rows by which learning takes longer, at most
_STREAM = 0x6D65726365722E64  # of the random numbers that draw rows
_KNOWN_ROWS = (
    4_000_000  # different rows of which it is known how often they came; beyond, rows alike are drawn together
)
_ANSWERS = ("prediction", "low", "high", "unfamiliar")

Progress = Callable[[str], None]


@dataclass
class Answers:
    """What predicting a file came to.

    Attributes:
        rows: How many.
        surprises: Sentence -> rows.
        classes: Predicted class -> rows; empty for a regression.
        far: Rows at least as unfamiliar as the farthest 5 % of the training rows (0.5 or more).
        kept: Columns of the file that were copied.
        trained: Whether the file is the one the model was fitted on.
        scored: Rows whose true value was in the file.
        score: Their accuracy or R2; None where there are none.
    """

    rows: int = 0
    surprises: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    far: int = 0
    kept: list[str] = field(default_factory=list)
    trained: bool = False
    scored: int = 0
    score: float | None = None


def fit_file(
    model: TabularModel,
    path: str | Path,
    target: str,
    *,
    progress: Progress,
    weight: str | None = None,
    ignore: Sequence[str] = (),
    rows: int | None = None,
    sample: int | None = None,
    minutes: float | None = None,
    compare: bool = False,
    sizes: Sizes | None = None,
    device: str = "cpu",
) -> TabularModel:
    """Let a model learn from a file.

    Args:
        model: A model that has not been fitted.
        path: A csv, tsv, parquet or npz file.
        target: Name of a column.
        progress: Callback that receives progress messages.
        weight: Name of a column with the rows' weights, which is not learned from; None for 1.
        ignore: Columns that are not learned from.
        rows: Rows of a part; None for as many as ten million values have.
        sample: Rows that are learned from, at most; None for 200,000, or as many as five million values have.
        minutes: About how long learning may take: 2,000 rows teach, then 4 times as many, and so on, while the next
            step seems to end in time. None for all rows.
        compare: Score a linear model and boosted trees on the same folds.
        sizes: As of :meth:`TabularModel.fit`.
        device: As of :meth:`TabularModel.fit`.
    """
    columns = read(path, rows=1).columns
    find_target(columns, target)
    if weight is not None and find_target(columns, weight, "weight") == target:
        raise ValueError(checks.sentence("weight", "must be another column than the target", repr(weight)))
    for name in ignore:
        if find_target(columns, name, "ignore") in (target, weight):
            raise ValueError(checks.sentence("ignore", "must be another column than target and weight", repr(name)))
    ignored = [Column(name, "ignored", "dropped: as asked") for name in dict.fromkeys(ignore)]
    rows = rows or _affordable(len(columns), 50_000, _CELLS)
    sample = sample or _affordable(len(columns), SAMPLE_ROWS, _SAMPLE_CELLS)
    progress(f"reading {Path(path).name}")
    drawn, total, writings = _draw_file(path, rows, sample, model.random_state)
    progress(f"{total} rows, {len(columns)} columns")
    drawn, weights = _weighed(drawn.drop(columns=[column.name for column in ignored]), weight)
    steps = [len(drawn)]
    if minutes is not None:
        checks.positive("fit_file", "minutes", minutes)
        steps = [count for count in (_FIRST_ROWS * 4**i for i in range(20)) if count < len(drawn)] + steps
    order = order_by_content(drawn)  # so that each step has the same rows for any order of the file's
    order = order[np.random.default_rng((model.random_state, _STREAM, 1)).permutation(len(drawn))]
    start, learned = time.perf_counter(), 0
    for count in steps:
        # rows of each step are among those of the next; ranks measure differently, and must stop together
        seconds = time.perf_counter() - start
        seconds = float(sum_over_ranks(torch.tensor(seconds, dtype=torch.float64))) / world_size()
        growth = _EXACT_GROWTH if count <= (sizes or Sizes()).exact else _LONG_GROWTH
        if minutes is not None and learned and seconds * (1 + (count / learned) ** growth) > 60 * minutes:
            break
        part = np.sort(order[:count])
        some = None if weights is None else weights[part]
        known = writings if total > count else None  # of a whole table the learner sees for itself
        model.learn(drawn.iloc[part], target, some, compare, progress, sizes, device, known)
        learned = count
    if learned < total:
        why = ""
        if minutes is not None and learned < len(drawn):
            why = f" in {minutes:g} minutes"
        model.notes.insert(0, f"Of {total} rows, {learned} drawn at random were learned from{why}.")
    model.notes += [f"Rows are weighted by {weight}."] * (weight is not None)
    model.preparation.columns += ignored
    return model


def _draw_file(path: str | Path, rows: int, most: int, seed: int) -> tuple[pd.DataFrame, int, dict[str, Writing]]:
    """:func:`_draw` with how each column writes numbers and dates, over all parts.

    A column that is text in one part and numbers in another may have lost what its marks meant: 1.125 is a number alone
    and a thousand beside 2,5. The file is then read again, with such columns as text throughout.
    """
    text: list[str] = []
    while True:
        writings: dict[str, Writing] = {}
        as_words: set[str] = set()
        as_numbers: set[str] = set()
        drawn, total = _draw(
            _watch(read_chunks(path, rows=rows, text=text), writings, as_words, as_numbers), most, seed
        )
        mixed = (as_words & as_numbers) - set(text)
        if not mixed:
            return drawn, total, writings
        text = sorted({*text, *mixed})


def _watch(
    chunks: Iterator[pd.DataFrame], writings: dict[str, Writing], as_words: set[str], as_numbers: set[str]
) -> Iterator[pd.DataFrame]:
    """Pass the parts on; add up how columns are written, and in which type they came."""
    for chunk in chunks:
        for name, column in chunk.items():
            if is_text(column):
                as_words.add(str(name))
                writings[str(name)] = writings.get(str(name), Writing()) + Writing.of(column)
            elif column.dtype.kind in "biuf" and column.notna().any():
                as_numbers.add(str(name))
        yield chunk


def _draw(chunks: Iterator[pd.DataFrame], most: int, seed: int) -> tuple[pd.DataFrame, int]:
    """``most`` rows drawn without replacement, in their order, numbered as in the file; and the number of all rows.

    The rows of least keys stay. A key is a hash of what the row holds: the same rows are drawn from a file in another
    order, and in parts of any size. Rows alike are told apart by how many came before: each has its own chance.
    """
    total = 0
    kept: list[pd.DataFrame] = []
    keys = np.zeros(0, dtype=np.uint64)
    known = np.zeros(0, dtype=np.uint64)  # what rows so far hold, ascending
    counts = np.zeros(0, dtype=np.int64)  # how many of them
    start = pd.util.hash_array(np.array([seed], dtype=np.uint64) + np.uint64(_STREAM))
    for chunk in chunks:
        chunk = chunk.set_axis(pd.RangeIndex(total, total + len(chunk)), axis=0)
        total += len(chunk)
        # what each row holds; a column may be blank, or of whole numbers, in some of the parts
        content = np.repeat(start, len(chunk))
        for place in range(chunk.shape[1]):
            column = chunk.iloc[:, place]
            column = column.astype(np.float64) if column.dtype.kind in "biuf" else column
            blank = pd.Series(np.nan, index=column.index)
            content = np.where(column.isna(), add_hash(content, blank), add_hash(content, column))
        # how many rows alike came before, in this part and in others
        different, place_of, occurrences = np.unique(content, return_inverse=True, return_counts=True)
        spot = np.searchsorted(known, different)
        met = spot < len(known)
        met[met] = known[spot[met]] == different[met]
        before = np.zeros(len(different), dtype=np.int64)
        before[met] = counts[spot[met]]
        number = before[place_of] + pd.Series(place_of).groupby(place_of).cumcount().to_numpy()
        counts[spot[met]] += occurrences[met]
        fresh = (~met).nonzero()[0][: _KNOWN_ROWS - len(known)]
        known = np.insert(known, spot[fresh], different[fresh])
        counts = np.insert(counts, spot[fresh], occurrences[fresh])
        keys = np.concatenate((keys, pd.util.hash_array(content + np.uint64(_STREAM) * number.astype(np.uint64))))
        kept.append(chunk)
        if len(keys) > most:
            stay = np.sort(np.argpartition(keys, most)[:most])
            kept, keys = [pd.concat(kept).iloc[stay]], keys[stay]
    return pd.concat(kept), total


def _weighed(frame: pd.DataFrame, weight: str | None) -> tuple[pd.DataFrame, Array | None]:
    """The table without its column of weights, and the weights ``(n,)``; None where no column has them."""
    if weight is None:
        return frame, None
    values = pd.to_numeric(frame[weight], errors="coerce").to_numpy(dtype=np.float64)
    checks.weights("weight", f"the column {weight!r}", np.append(values, 1.0), len(frame) + 1)  # a part may have none
    return frame.drop(columns=weight), values


def fingerprint(path: str | Path) -> str:
    """What a file is recognised by: the start of its SHA-256."""
    return sha256(path)[:16]


def predict_file(
    model: TabularModel,
    path: str | Path,
    out: str | Path,
    *,
    progress: Progress,
    rows: int | None = None,
    keep: Sequence[str] | None = None,
    level: float = LEVEL,
    threshold: tuple[str, float] | None = None,
    spreadsheet: bool = False,
) -> Answers:
    """Predict every row of a file into the csv file ``out``, which appears whole or not at all.

    Args:
        model: Fitted.
        path: A csv, tsv, parquet or npz file.
        out: The csv file.
        progress: Callback that receives progress messages.
        rows: Rows held at once; None for as many as ten million values have.
        keep: Columns of the file to copy; None for those that name the row.
        level: For numbers, the share of rows whose true value lies between ``low`` and ``high``.
        threshold: A class, and the probability from which on it is predicted; None for the likeliest class.
        spreadsheet: Put a quote mark before texts that a spreadsheet would run as formulas.
    """
    columns = list(map(str, read(path, rows=1).columns))
    answers, moments = Answers(kept=_kept(model, columns, keep)), np.zeros(4)
    answers.trained = model.made_with.get("data") == fingerprint(path)
    rows = rows or _affordable(len(columns), 50_000, _CELLS)
    text = [*model.text_columns, *answers.kept]
    with atomic_stream(out) as file:
        for chunk in read_chunks(path, rows=rows, text=text):
            found, surprises = model.predict_with_surprises(chunk, level=level)
            if threshold is not None:
                found["prediction"] = decide(model, found, *threshold)
            _written(chunk[answers.kept], found, spreadsheet).to_csv(
                file, index=False, header=answers.rows == 0, lineterminator="\n"
            )
            answers.rows += len(chunk)
            answers.surprises += surprises
            answers.far += int((found["unfamiliar"] >= 0.5).sum())
            if model.target.classes is not None:
                answers.classes.update(map(str, found["prediction"]))
            moments += _moments(model, chunk, found)
            progress(f"{answers.rows} rows predicted")
    answers.scored = int(moments[0])
    if answers.scored and model.target.classes is not None:
        answers.score = float(moments[1] / moments[0])
    elif answers.scored > 1:
        spread = moments[3] - moments[2] ** 2 / moments[0]
        answers.score = float(1 - moments[1] / spread) if spread > 0 else None
    return answers


def decide(model: TabularModel, found: pd.DataFrame, name: str, threshold: float) -> Array:  # (n,)
    """The class ``name`` wherever its probability is at least ``threshold``; elsewhere the likeliest other class."""
    classes = model.target.classes
    known = [] if classes is None else [str(one) for one in classes]
    if classes is None or name not in known:
        need = f"the class must be one of {', '.join(known[:8])}" if known else "the target must have classes"
        raise ValueError(checks.sentence("threshold", need, repr(name) if known else "a regression"))
    place = known.index(name)
    p = found[[f"p_{one}" for one in classes]].to_numpy()
    others = np.where(np.arange(len(classes)) == place, -1.0, p).argmax(1)
    labels: Array = classes[np.where(p[:, place] >= threshold, place, others)]
    return labels


def _kept(model: TabularModel, columns: list[str], keep: Sequence[str] | None) -> list[str]:
    """The columns to copy, each once, in the order asked for or of the file."""
    if keep is None:
        naming = {column.name for column in model.preparation.columns if column.kind == "identifier"}
        return [name for name in columns if name in naming and name not in _ANSWERS]
    for name in keep:
        find_target(columns, name, "keep")
        if name in _ANSWERS or name.startswith("p_"):
            raise ValueError(
                checks.sentence("keep", "must not be a column of the predictions", repr(name), "Rename it.")
            )
    return list(dict.fromkeys(keep))


def _written(kept: pd.DataFrame, found: pd.DataFrame, spreadsheet: bool) -> pd.DataFrame:
    whole = pd.concat([found, kept], axis=1)
    if not spreadsheet:
        return whole
    texts = [name for name in whole.columns if whole[name].dtype.kind == "O"]
    safe = whole.assign(**{name: whole[name].map(spreadsheet_safe) for name in texts})
    return safe.rename(columns={name: str(spreadsheet_safe(name)) for name in safe.columns})


def _moments(model: TabularModel, chunk: pd.DataFrame, found: pd.DataFrame) -> Array:
    """Of the rows whose true value is there: rows, then right ones; or squared errors, values, squared values."""
    name = model.target.name
    if name not in chunk.columns:
        return np.zeros(4)
    known = model.target.known(chunk[name])
    if not known.any():
        return np.zeros(4)
    truth = model.target.decode(model.target.encode(chunk[name][known]))
    predicted = found["prediction"].to_numpy()[known]
    if model.target.classes is not None:
        return np.array([known.sum(), (truth == predicted).sum(), 0, 0], dtype=np.float64)
    return np.array([known.sum(), ((truth - predicted) ** 2).sum(), truth.sum(), (truth**2).sum()])


def _affordable(columns: int, most: int, cells: int) -> int:
    return max(_FEWEST, min(most, cells // columns))
