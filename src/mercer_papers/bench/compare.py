"""From cases to lines: which goals are met, what is absent, what failed."""

from __future__ import annotations

import importlib
import logging
import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mercer import checks
from mercer.cli.process import threads_set

from ..data import MissingData
from .memory import run_alone
from .timing import OURS, Case, Sample, time_in_turns

if TYPE_CHECKING:
    from .record import Record

_log = logging.getLogger("mercer")
_MACHINERY = {
    "studies",
    "compare",
    "cost_methods",
    "cost_model",
    "head_fits",
    "memory",
    "record",
    "table_ranks",
    "table_rivals",
    "tables",
    "timing",
}


@dataclass(frozen=True)
class Line:
    """One contender in one case; on a peer's line the ratios are its cost over ours.

    Args:
        area: the file of cases.
        case: the case's name.
        who: ``mercer``, or the peer.
        state: ``measured``, ``absent`` (not installed), ``missing`` (no data) or ``failed``.
        version: of the contender's library.
        why: the reason where it, or its accuracy, was not measured.
        cpu: median CPU seconds, all threads together.
        wall: median seconds by the clock.
        memory: MiB added at the peak.
        accuracy: the score of its answer.
        accuracy_name: what the score is.
        better: ``lower`` or ``higher``.
        ratios: by measure, cost over ours, and of the scores; above 1 ours is cheaper, or better.
        goals: least ratios on a peer's line; bounds on our own line.
        met: by measure, whether the goal is.
        threads: threads of every pool.
        repeats: rounds that were timed.
        device: where the work was done.
    """

    area: str
    case: str
    who: str
    state: str
    version: str = ""
    why: str = ""
    cpu: float | None = None
    wall: float | None = None
    memory: float | None = None
    accuracy: float | None = None
    accuracy_name: str = ""
    better: str = "lower"
    ratios: Mapping[str, float] = field(default_factory=dict)
    goals: Mapping[str, float] = field(default_factory=dict)
    met: Mapping[str, bool] = field(default_factory=dict)
    threads: int = 1
    repeats: int = 0
    device: str = "cpu"


def area_names() -> list[str]:
    """Every area: the files beside this one that hold cases."""
    package = importlib.import_module(__package__ or "mercer_papers.bench")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.name not in _MACHINERY)


def run(
    areas: Sequence[str] = (),
    *,
    repeats: int = 5,
    threads: int = 1,
    memory: bool = True,
    progress: Callable[[Line], None] | None = None,
    record: Record | None = None,
    device: str = "cpu",
) -> list[Line]:
    """Every case of the areas named (all by default), contenders in turns.

    Args:
        areas: names from :func:`area_names`.
        repeats: rounds; a case may ask for fewer.
        threads: threads for torch, BLAS and OpenMP, ours and peers alike; a case may ask for its own.
        memory: whether to measure peak memory.
        progress: called with each line as it is ready.
        record: keeps each case's lines as they are measured; cases it has are not measured again.
        device: where torch does the work; cases that are the CPU's are *missing* elsewhere, with that reason.
    """
    checks.integer("bench", "repeats", repeats, 1)
    checks.integer("bench", "threads", threads, 1)
    checks.device("bench", device)
    names = [checks.choice("bench", "area", name, area_names()) for name in areas] or area_names()
    lines: list[Line] = []
    for name in names:
        module = f"{__package__}.{name}"
        for case in importlib.import_module(module).CASES:
            # a case that an earlier session measured is not measured again
            measured = record.kept(name, case.name) if record is not None else []
            if not measured:
                _log.info("bench: %s, %s", name, case.name)
                measured = run_case(case, module, repeats=repeats, threads=threads, memory=memory, device=device)
                if record is not None:
                    record.keep(measured)
            for line in measured:
                lines.append(line)
                if progress is not None:
                    progress(line)
    return lines


def run_case(case: Case, module: str, *, repeats: int, threads: int, memory: bool, device: str = "cpu") -> list[Line]:
    """One case: a line for ours, then one for each peer. ``module`` is where ``CASES`` lives."""
    area = module.rsplit(".", 1)[-1]
    everyone = case.contenders()
    threads = case.threads or threads

    def skip_all(why: str) -> list[Line]:
        return [Line(area, case.name, one.name, "missing", why=why, threads=threads) for one in everyone]

    if device != "cpu" and case.move is None:
        return skip_all(f"This case is measured on the CPU alone, not on {device}.")
    memory = memory and device == "cpu" and case.memory
    absent = {one.name: why for one in everyone if (why := one.absence())}
    present = [one for one in everyone if one.name not in absent]
    scores: dict[str, float | None] = {}
    peaks: dict[str, float | None] = {}
    if memory and case.repeats == 1:
        # each once in a process of its own: time, memory and score of the same run
        runs = {one.name: run_alone(module, case.name, one.name, threads=threads) for one in present}
        missing = [found.missing for found in runs.values() if found.missing]
        if missing:
            return skip_all(missing[0])
        samples = {name: Sample([found.cpu], [found.wall], why=found.why) for name, found in runs.items()}
        scores = {name: found.score for name, found in runs.items()}
        peaks = {name: found.peak for name, found in runs.items()}
    else:
        # all in this process, in turns; then the peaks, each in a process of its own
        try:
            data = case.setup()
        except MissingData as reason:
            return skip_all(str(reason))
        if device != "cpu" and case.move is not None:
            data = case.move(data, device)
        rounds = min(repeats, case.repeats or repeats)
        with threads_set(threads):
            samples = time_in_turns(present, data, repeats=rounds, warm=case.repeats != 1, wait=partial(_wait, device))
            for name, sample in samples.items():
                scores[name] = None
                if case.accuracy is not None and not sample.why:
                    scores[name] = float(case.accuracy(data, sample.answer))
        for name, sample in samples.items():
            if memory and not sample.why:
                peaks[name] = run_alone(module, case.name, name, threads=threads).peak
    # a line for each: ours within its limits, a peer's ratios against their goals
    lines = []
    for one in everyone:
        if one.name in absent:
            lines.append(Line(area, case.name, one.name, "absent", why=absent[one.name], threads=threads))
            continue
        # its costs and its score
        sample, ours = samples[one.name], samples[OURS]
        goals = dict(case.limits if one.name == OURS else one.peer.goals)
        common: dict[str, Any] = {"version": one.version(), "threads": threads, "goals": goals}
        if sample.why:
            lines.append(Line(area, case.name, one.name, "failed", why=sample.why, **common))
            continue
        costs: dict[str, Any] = {kind: sample.median(kind) for kind in ("cpu", "wall")}
        costs["memory"] = peaks.get(one.name)
        score = scores[one.name]
        if score is not None and not math.isfinite(score):
            common["why"], score = f"{case.accuracy_name or 'accuracy'} is {score}", None
        # whether the goals are met, and a peer's costs over ours
        met: dict[str, bool] = {}
        ratios: dict[str, float] = {}
        if one.name == OURS:
            for measure, bound in goals.items():
                cost = score if measure == "accuracy" else costs.get(measure)
                if cost is not None:
                    higher = measure == "accuracy" and case.better == "higher"
                    met[measure] = cost >= bound if higher else cost <= bound
        else:
            found = {"cpu": sample.ratio(ours, "cpu"), "wall": sample.ratio(ours, "wall")}
            mine, peak = peaks.get(OURS), peaks.get(one.name)
            if mine and peak is not None:
                found["memory"] = peak / mine
            found["accuracy"] = compare_scores(scores[one.name], scores[OURS], case.better)
            ratios = {measure: ratio for measure, ratio in found.items() if ratio is not None}
            met = {measure: ratios[measure] >= goal for measure, goal in goals.items() if measure in ratios}
        lines.append(
            Line(
                area, case.name, one.name, "measured", **common, **costs,
                accuracy=score, accuracy_name=case.accuracy_name, better=case.better,
                ratios=ratios, met=met, repeats=len(sample.cpu), device=device,
            )
        )  # fmt: skip
    return lines


def _wait(device: str) -> None:
    """Wait until the device has done what it was given; a CPU is done when the call returns."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device.startswith("mps"):
        torch.mps.synchronize()


def compare_scores(theirs: float | None, ours: float | None, better: str) -> float | None:
    """How much better our score is; None where a score is absent, 0 or of the other sign."""
    if theirs is None or ours is None or not theirs * ours > 0:
        return None
    if better == "lower":
        return theirs / ours
    return ours / theirs
