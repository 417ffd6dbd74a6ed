r"""Which representation suits the labels, before anything is trained.

Every candidate is a machine that ``fit`` chooses from, a kernel on a view of the columns, or a kernel on an embedding.
Its Gram matrix K is read twice. By the five folds that ``fit`` is scored by: how well kernel ridge predicts rows that
it has not seen; that ranks the table. By its spectrum (spectral2019), scaled to a mean diagonal of 1: how complex the
labels look to :math:`H = K + \epsilon I`, how fast gradient descent would learn them. The same labels in random order
are the control of both.

The :math:`\epsilon` of 0.01 is room for noise in the labels: without it two equal rows with different labels make every
complexity infinite, and a kernel so narrow that all rows are alike to it looks simplest of all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from ... import checks
from ...kernels.functionals import sign_columns
from ...spectral import Spectrum, analyze
from ..columns import Column
from ..training import Training
from .candidates import Candidate, of_embeddings, of_stack
from .held_out import leave_folds_out
from .problem import Problem, problem
from .verdict import Verdict, judge

NOISE = 0.01
"""Epsilon: added to the diagonal of H, in units of its mean."""
STEPS = 1000
"""Steps of gradient descent that are predicted."""
DRAWN = 3
"""Candidates whose eigenvalues are kept for the pictures."""

SHUFFLES = 20
"""Random orders of the labels: the least p-value is 1 in 21."""
_NULL = 1e-6  # an eigenvalue of K below it is 0, beside a mean diagonal of 1
_ALIKE = 0.005  # a difference in ``explained`` that nobody would act on


@dataclass(frozen=True)
class Reading:
    """One line of the table: what a candidate's Gram matrix says about the labels.

    Attributes:
        name: Name of the candidate.
        meaning: What it assumes.
        call: The Python that makes its kernel.
        family: Family of the kernel.
        source: The embedding it reads; empty for the table's columns.
        share: Share of the answer of ``fit``, which averages machines; 0 for one that it leaves out.
        explained: Share of the labels' variance that is predicted on rows left out (R squared).
        accuracy: Share of rows left out that get their class; None for regression.
        tied: Whether its held-out error is within two standard errors, or half a percent, of the best one's.
        control: ``explained`` of the labels in random order, the largest of several.
        alignment: Kernel-target alignment.
        complexity: :math:`y^T H^{-1} y`.
        bracket: Bounds on it.
        shuffled: The same of the labels in random order.
        ratio: ``complexity / shuffled``; 1 means that the labels look like noise.
        steps: Steps of gradient descent, at half the largest stable rate, that halve the loss; None for over 1,000.
        shuffled_steps: The same of the labels in random order.
        effective_dimension: Effective dimension of H.
        curve: Loss left after 0..1,000 steps, 1 at the start.
        shuffled_curve: The same of the labels in random order.
    """

    name: str
    meaning: str
    call: str
    family: str
    source: str
    share: float
    explained: float
    accuracy: float | None
    tied: bool
    control: float
    alignment: float
    complexity: float
    bracket: tuple[float, float]
    shuffled: float
    ratio: float
    steps: int | None
    shuffled_steps: int | None
    effective_dimension: float
    curve: list[float]
    shuffled_curve: list[float]


@dataclass(frozen=True)
class Eigen:
    """The largest eigenvalues of K and the cumulated share of the labels on their vectors."""

    values: list[float]
    shares: list[float]


@dataclass(frozen=True)
class Diagnosis:
    """The result of :func:`diagnose`.

    Attributes:
        target: Name of the column to predict.
        task: ``classification`` or ``regression``.
        why: How the task was chosen.
        classes: Names of the classes; none for regression.
        counts: Rows of each class.
        rows: Rows that were read by the kernels.
        features: Columns of the prepared table.
        columns: What was done with each column.
        notes: What the reader should know about the data.
        readings: The table, the most promising first.
        eigen: Eigenvalues and projections of the first few, by name.
        shuffled_shares: The cumulated share of the labels in random order, for the first.
        p_value: p-value of the best candidate, by the shuffled labels.
        fit_score: Accuracy or R2 of what ``fit`` makes of these rows, as it would print it; None without columns.
        verdict: The conclusion in plain words.
        seconds: Time taken.
    """

    target: str
    task: str
    why: str
    classes: list[str]
    counts: list[int]
    rows: int
    features: int
    columns: list[Column]
    notes: list[str]
    readings: list[Reading]
    eigen: dict[str, Eigen]
    shuffled_shares: list[float]
    p_value: float
    fit_score: float | None
    verdict: Verdict
    seconds: float

    def table(self) -> pd.DataFrame:
        """The readings as a table, by name."""
        rows = [asdict(reading) for reading in self.readings]
        left_out = ["name", "meaning", "curve", "shuffled_curve"]
        names = pd.Index([row["name"] for row in rows])
        return pd.DataFrame([{k: v for k, v in row.items() if k not in left_out} for row in rows], index=names)

    def record(self) -> dict[str, Any]:
        """Everything but the curves as plain JSON values; what is infinite is None."""
        left_out = ("curve", "shuffled_curve")
        readings = [{k: v for k, v in asdict(r).items() if k not in left_out} for r in self.readings]
        own = {
            k: v
            for k, v in vars(self).items()
            if k not in ("columns", "readings", "eigen", "shuffled_shares", "verdict")
        }
        columns = [{"name": c.name, "kind": c.kind, "how": c.how} for c in self.columns]
        found: dict[str, Any] = _finite(
            {"verdict": asdict(self.verdict), **own, "columns": columns, "readings": readings}
        )
        return found


def diagnose(
    frame: pd.DataFrame,
    target: str,
    *,
    task: str = "auto",
    embeddings: Mapping[str, Any] | None = None,
    rows: int = 1500,
    random_state: int = 0,
    source: str = "DATA",
    notes: Sequence[str] = (),
    jobs: int = 1,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Read a table's target by the spectra of kernels on its columns and of embeddings of its rows.

    Args:
        frame: The table, target included.
        target: Name of the column to predict.
        task: ``auto``, ``classification`` or ``regression``.
        embeddings: By name, arrays ``(n, m)`` with a row for each row of the table.
        rows: Largest number of rows to read, drawn at random from a longer table.
        random_state: Random seed of those rows and of the control.
        source: Name of the table in the advice.
        notes: Sentences about the table to pass on.
        jobs: Number of threads, each with a candidate; useful if torch itself uses one thread.
        progress: Called with the name of each candidate before it is read.

    >>> frame = pd.DataFrame({"x": [i / 2 for i in range(40)], "z": [0, 1] * 20, "y": ["a"] * 20 + ["b"] * 20})
    >>> found = diagnose(frame.sample(frac=1, random_state=0), "y")
    >>> found.task, found.readings[0].accuracy >= 0.9
    ('classification', True)
    """
    began = time.perf_counter()
    generator = torch.Generator().manual_seed(checks.integer("diagnose", "random_state", random_state, 0, 2**32 - 1))
    training = Training(task, random_state, progress or _quiet)
    asked = problem(
        frame, target, task=task, embeddings=embeddings or {}, rows=rows, generator=generator, training=training
    )
    columns = centred_columns(asked.y)
    menu = of_embeddings(asked.embeddings, columns)
    if asked.x is not None:
        menu = [*of_stack(training.stack(asked.x, asked.y, compare=True)), *menu]
    orders = [torch.randperm(len(columns), generator=generator) for _ in range(SHUFFLES)]

    def one(place: int, candidate: Candidate) -> _Read:
        if progress is not None:
            progress(f"kernel {place} of {len(menu)}: {candidate.name}")
        return _read(candidate, asked, columns, orders)

    with ThreadPoolExecutor(checks.integer("diagnose", "jobs", jobs, 1)) as pool:
        found = list(pool.map(one, range(1, len(menu) + 1), menu))
    readings = _ranked(found)
    chance = torch.stack([read.controls for read in found]).amax(0)  # (s,) each shuffle's best candidate
    p_value = (1 + int((chance >= readings[0].explained).sum())) / (1 + len(chance))
    drawn = [next(candidate for candidate in menu if candidate.name == r.name) for r in readings[:DRAWN]]
    return Diagnosis(
        asked.target.name,
        asked.target.task,
        asked.target.why,
        asked.classes,
        asked.counts,
        len(asked.y),
        0 if asked.x is None else asked.x.shape[1],
        asked.columns,
        [*notes, *asked.notes],
        readings,
        {candidate.name: _eigen(candidate, columns) for candidate in drawn},
        _eigen(drawn[0], columns[orders[0]]).shares,
        p_value,
        _fit_score(asked),
        judge(asked, readings, p_value, _fit_scores(asked), source),
        time.perf_counter() - began,
    )


def _fit_scores(asked: Problem) -> dict[str, Any] | None:
    """The scores of what ``fit`` makes of these rows; None without columns, or where the rows were too few."""
    if asked.x is None or not asked.training.scores["folds"]:
        return None
    return asked.training.scores


def _fit_score(asked: Problem) -> float | None:
    found: float | None = (_fit_scores(asked) or {}).get("accuracy" if asked.classes else "r2")
    return found


def _quiet(message: str) -> None:
    """No progress is reported."""


def centred_columns(y: Tensor) -> Tensor:  # (n,) -> (n, c)
    """Classes as -1/+1 columns without their mean; numbers without mean and scale."""
    columns = sign_columns(y).double()
    columns = columns - columns.mean(0)
    return columns / columns.std(0, correction=0) if y.is_floating_point() else columns


def spectrum_of(gram: Tensor, columns: Tensor) -> Spectrum:  # (n, n), (n, c)
    r"""Targets by :math:`H = K + \epsilon I`, K of mean diagonal 1, whose least eigenvalue is known to be above 0."""
    h = gram.clone()
    h.diagonal().add_(NOISE)
    return analyze(h, torch.arange(len(h)), columns, floor=0.99 * NOISE, tolerance=1e-4)


class _Read(NamedTuple):
    reading: Reading
    lost: Tensor  # (n,) each row's held-out squared error
    controls: Tensor  # (s,) ``explained`` of every shuffle


def _read(candidate: Candidate, asked: Problem, columns: Tensor, orders: list[Tensor]) -> _Read:
    gram = candidate.gram()
    held = leave_folds_out(candidate, columns, asked.training.fold(asked.y), orders)
    spectrum, control = spectrum_of(gram, columns), spectrum_of(gram, columns[orders[0]])
    rate = 0.5 * spectrum.largest_stable_lr
    curve, shuffled_curve = _loss(spectrum, rate), _loss(control, rate)
    reading = Reading(
        name=candidate.name,
        meaning=candidate.meaning,
        call=candidate.call,
        family=candidate.family,
        source=candidate.source,
        share=candidate.share,
        explained=held.explained,
        accuracy=asked.accuracy(held.predicted),
        tied=False,
        control=float(held.controls.max()),
        alignment=spectrum.alignment,
        complexity=spectrum.complexity,
        bracket=spectrum.bracket,
        shuffled=control.complexity,
        ratio=spectrum.complexity / control.complexity,
        steps=_halved(curve),
        shuffled_steps=_halved(shuffled_curve),
        effective_dimension=spectrum.effective_dimension,
        curve=curve,
        shuffled_curve=shuffled_curve,
    )
    return _Read(reading, (columns - held.predicted).square().sum(1), held.controls)


def _ranked(found: list[_Read]) -> list[Reading]:
    """By held-out error; a candidate is tied with the best where their rows' errors do not tell them apart."""
    found = sorted(found, key=lambda read: -read.reading.explained)
    best = found[0]
    ranked = []
    for reading, lost, _ in found:
        gap = lost - best.lost
        told_apart = float(gap.mean()) > 2 * float(gap.std()) / math.sqrt(len(gap))
        near = best.reading.explained - reading.explained <= _ALIKE
        ranked.append(replace(reading, tied=near or not told_apart))
    return ranked


def _eigen(candidate: Candidate, columns: Tensor) -> Eigen:
    """Of K: directions that only the added diagonal tells from 0 are left out, for any vector there is one of them."""
    spectrum = spectrum_of(candidate.gram(), columns)
    values = spectrum.eigenvalues - NOISE
    kept = max(1, int((values > _NULL).sum()))
    return Eigen(values[:kept].tolist(), spectrum.projections[:kept].cumsum(0).tolist())


def _loss(spectrum: Spectrum, rate: float) -> list[float]:
    """Predicted loss over the loss at the start."""
    curve = spectrum.convergence(rate, STEPS)
    return [float(value) for value in (curve / curve[0]).square()]


def _halved(curve: list[float]) -> int | None:
    return next((step for step, loss in enumerate(curve) if loss <= 0.5), None)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
