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
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ... import checks
from ...kernels.functionals import sign_columns
from ...spectral import Spectrum, analyze
from ..columns import Column
from ..training import Training
from ..two_scales import TwoScales
from .candidates import Candidate, leave_folds_out, list_embedding_kernels, list_machines
from .problem import pose_problem
from .verdict import Verdict, judge

NOISE = 0.01
"""Epsilon: added to the diagonal of H, in units of its mean."""
STEPS = 1000
"""Steps of gradient descent that are predicted."""
DRAWN = 3
"""Candidates whose eigenvalues are kept for the pictures."""

SHUFFLES = 20
"""Random orders of the labels: the least p-value is 1 in 21."""
_NOT_PLAIN = ("columns", "readings", "eigen", "shuffled_shares", "verdict")
_CURVES = ("curve", "shuffled_curve")  # too long to print
_NULL = 1e-6  # an eigenvalue of K below it is 0, beside a mean diagonal of 1
_LEVEL = 0.005  # a difference in ``explained`` that nobody would act on


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
        table = pd.DataFrame([asdict(reading) for reading in self.readings]).set_index("name").rename_axis(None)
        return table.drop(columns=["meaning", *_CURVES])

    def record(self) -> dict[str, Any]:
        """Everything but the curves as plain JSON values; what is infinite is None."""
        fields: dict[str, Any] = {"verdict": asdict(self.verdict)}
        fields |= {name: value for name, value in vars(self).items() if name not in _NOT_PLAIN}
        fields["columns"] = [column.summary() for column in self.columns]
        readings = [asdict(reading) for reading in self.readings]
        fields["readings"] = [{k: v for k, v in row.items() if k not in _CURVES} for row in readings]
        document: dict[str, Any] = _replace_infinite(fields)
        return document


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
    # The rows and their labels.
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(checks.integer("diagnose", "random_state", random_state, 0, 2**32 - 1))
    report = progress or (lambda message: None)
    training = Training(task, random_state, report)
    problem = pose_problem(
        frame, target, task=task, embeddings=embeddings or {}, rows=rows, generator=generator, training=training
    )

    # The candidates: every machine that a fit of these rows tries, and kernels on the embeddings.
    columns = centre_columns(problem.y)
    menu = list_embedding_kernels(problem.embeddings, columns)
    fit_scores = fit_score = None
    features = 0
    if problem.x is not None:
        features = problem.x.shape[1]
        stack = training.stack(problem.x, problem.y, compare=True)
        whole = training.learner.machine
        share_of_stack = 1 - whole.share if isinstance(whole, TwoScales) else 1.0
        menu = [*list_machines(stack, share_of_stack), *menu]
        if training.scores["folds"]:  # else the rows were too few
            fit_scores = training.scores
            measure = "r2"
            if problem.classes:
                measure = "accuracy"
            fit_score = fit_scores.get(measure)
    fold = training.fold(problem.y)
    orders = [torch.randperm(len(columns), generator=generator) for _ in range(SHUFFLES)]

    def read(place: int, candidate: Candidate) -> tuple[Reading, Tensor, Tensor]:
        """The candidate's line, each row's held-out squared error ``(n,)``, and ``explained`` of every shuffle."""
        # What it predicts on rows left out, and its spectrum for the labels and for one shuffle of them.
        words = candidate.description
        report(f"kernel {place} of {len(menu)}: {words.name}")
        held_out = leave_folds_out(candidate, columns, fold, orders)
        gram = candidate.gram()
        spectrum, control = analyze_gram(gram, columns), analyze_gram(gram, columns[orders[0]])
        # Gradient descent at half the largest stable rate: the loss left after each step, and when it is halved.
        curves, halvings = [], []
        for analysis in (spectrum, control):
            norms = analysis.convergence(0.5 * spectrum.largest_stable_lr, STEPS)
            curves.append([float(loss) for loss in (norms / norms[0]).square()])
            halvings.append(next((step for step, loss in enumerate(curves[-1]) if loss <= 0.5), None))
        reading = Reading(
            name=words.name,
            meaning=words.meaning,
            call=words.call,
            family=words.family,
            source=candidate.source,
            share=candidate.share,
            explained=held_out.explained,
            accuracy=problem.measure_accuracy(held_out.predicted),
            tied=False,
            control=float(held_out.controls.max()),
            alignment=spectrum.alignment,
            complexity=spectrum.complexity,
            bracket=spectrum.bracket,
            shuffled=control.complexity,
            ratio=spectrum.complexity / control.complexity,
            steps=halvings[0],
            shuffled_steps=halvings[1],
            effective_dimension=spectrum.effective_dimension,
            curve=curves[0],
            shuffled_curve=curves[1],
        )
        return reading, (columns - held_out.predicted).square().sum(1), held_out.controls

    with ThreadPoolExecutor(checks.integer("diagnose", "jobs", jobs, 1)) as pool:
        lines = list(pool.map(read, range(1, len(menu) + 1), menu))

    # The p-value: how often the best candidate of a shuffle explains as much as the best of the labels.
    chance = torch.stack([controls for _, _, controls in lines]).amax(0)  # (s,)
    lines = sorted(lines, key=lambda line: -line[0].explained)
    best, best_errors, _ = lines[0]
    p_value = (1 + int((chance >= best.explained).sum())) / (1 + len(chance))

    # A candidate is tied with the best where their rows' errors do not tell them apart.
    readings = []
    for reading, errors, _ in lines:
        gap = errors - best_errors
        surely_worse = float(gap.mean()) > 2 * float(gap.std()) / math.sqrt(len(gap))
        readings.append(replace(reading, tied=not surely_worse or best.explained - reading.explained <= _LEVEL))

    # Eigenvalues of the first few, for the pictures.
    by_name = {candidate.description.name: candidate for candidate in menu}
    first = [by_name[reading.name] for reading in readings[:DRAWN]]
    return Diagnosis(
        target=problem.target.name,
        task=problem.target.task,
        why=problem.target.why,
        classes=problem.classes,
        counts=problem.counts,
        rows=len(problem.y),
        features=features,
        columns=problem.columns,
        notes=[*notes, *problem.notes],
        readings=readings,
        eigen={candidate.description.name: _decompose(candidate, columns) for candidate in first},
        shuffled_shares=_decompose(first[0], columns[orders[0]]).shares,
        p_value=p_value,
        fit_score=fit_score,
        verdict=judge(problem, readings, p_value, fit_scores, source),
        seconds=time.perf_counter() - start,
    )


def centre_columns(y: Tensor) -> Tensor:  # (n,) -> (n, c)
    """Classes as -1/+1 columns without their mean; numbers without mean and scale."""
    columns = sign_columns(y).double()
    columns = columns - columns.mean(0)
    if y.is_floating_point():
        columns = columns / columns.std(0, correction=0)
    return columns


def analyze_gram(gram: Tensor, columns: Tensor) -> Spectrum:  # (n, n), (n, c)
    r"""Targets by :math:`H = K + \epsilon I`, K of mean diagonal 1, whose least eigenvalue is known to be above 0."""
    h = gram.clone()
    h.diagonal().add_(NOISE)
    return analyze(h, torch.arange(len(h)), columns, floor=0.99 * NOISE, tolerance=1e-4)


def _decompose(candidate: Candidate, columns: Tensor) -> Eigen:
    """Eigenvalues of K above 0: beyond, only the added diagonal chooses the vectors."""
    spectrum = analyze_gram(candidate.gram(), columns)
    values = spectrum.eigenvalues - NOISE
    count = max(1, int((values > _NULL).sum()))
    return Eigen(values[:count].tolist(), spectrum.projections[:count].cumsum(0).tolist())


def _replace_infinite(value: Any) -> Any:
    """Plain JSON values, with None for a number that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): _replace_infinite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_infinite(item) for item in value]
    return value
