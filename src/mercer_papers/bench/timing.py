r"""Ours against peers in one process, in turns: CPU and wall time, peak memory, accuracy of both.

To add an area, write ``bench/<area>.py`` with a list ``CASES``; nothing else has to be told. A case is

    def data() -> Data: ...                       # untimed, made once; may raise mercer_papers.data.MissingData
    def ours(data: Data) -> Tensor: ...           # the timed work; its answer goes to `accuracy`
    def theirs(data: Data) -> Tensor: ...         # the same work by the peer; import the library inside

    CASES = [
        Case(
            "complexity, n = 5000",
            setup=data,
            ours=ours,
            peers={"eigh": Peer(theirs, needs=("scipy.linalg",), goals={"cpu": 20.0, "memory": 4.0})},
            accuracy=lambda data, answer: abs(answer - data.exact) / data.exact,
            accuracy_name="relative error",
            limits={"accuracy": 1e-4},
        )
    ]

- A **ratio** is the peer's cost over ours, in one measure: above 1 ours is cheaper. Times are the median
  over rounds of the ratio within a round, since each round runs every contender, in rotating order, on a
  machine that drifts.
- ``Peer.goals`` are least ratios (``cpu``, ``wall``, ``memory``, and ``accuracy``, the quotient of the scores turned
  so that above 1 ours is better); ``Case.limits`` bound ours alone
  (``cpu`` and ``wall`` in seconds, ``memory`` in MiB, ``accuracy`` in its own unit). A goal not met is
  shown, never raised.
- ``Peer.needs`` names the modules the peer imports. If one cannot be imported the peer is shown as
  *absent*.
- Works shorter than 50 ms are repeated within a round until they are not. ``Case.repeats=1`` is for
  minutes-long works: no warm-up either. ``Peer.once`` is for a peer far slower than ours: one round, no warm-up.
- Peak memory is read in a process of its own, one for each contender (:mod:`mercer_papers.bench.memory`). It costs
  one more run, but for cases of a single round: there that process takes the time and the score as well.
- ``Case.move`` takes the data to another device; a case without it is measured on the CPU alone. Elsewhere the clock
  waits for the device, and peak memory is not read.
- ``Case.threads`` is for goals that speak of two cores; elsewhere every pool has what the caller asks for.

Call ``run(["features"], repeats=5, threads=1)``: a list of ``Line``, one for each contender of each case.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

OURS = "mercer"
_SHORTEST = 0.05  # seconds a timed sample should last, well above the clock's grain

Work = Callable[[Any], Any]


@dataclass(frozen=True)
class Peer:
    """Another way to the same answer.

    Args:
        work: takes the case's data, returns an answer that the case's ``accuracy`` can score.
        needs: modules it imports; the first one's distribution gives the version shown.
        goals: least ratio peer / ours by measure (``cpu``, ``wall``, ``memory``, ``accuracy``).
        once: one round and no warm-up, for a peer that takes far longer than ours.
    """

    work: Work
    needs: tuple[str, ...] = ()
    goals: Mapping[str, float] = field(default_factory=dict)
    once: bool = False


@dataclass(frozen=True)
class Case:
    """One work, done by us and by each peer on the same data.

    Args:
        name: what is measured, with its size; unique within the area.
        setup: makes the data, untimed; may raise :class:`mercer_papers.data.MissingData`.
        ours: our work on the data.
        peers: the others, by the name shown.
        accuracy: scores an answer, untimed: ``accuracy(data, answer)``.
        accuracy_name: what the score is.
        better: which way the score goes.
        limits: bounds on ours alone, by measure.
        repeats: at most so many rounds; 1 also skips the warm-up.
        memory: whether to measure peak memory.
        threads: threads of its own, where the goal says so.
        move: the data on a device, ``move(data, "cuda")``; None where the work is the CPU's.
    """

    name: str
    setup: Callable[[], Any]
    ours: Work
    peers: Mapping[str, Peer] = field(default_factory=dict)
    accuracy: Callable[[Any, Any], float] | None = None
    accuracy_name: str = ""
    better: str = "lower"
    limits: Mapping[str, float] = field(default_factory=dict)
    repeats: int | None = None
    memory: bool = True
    threads: int | None = None
    move: Callable[[Any, str], Any] | None = None

    def contenders(self) -> list[Contender]:
        """Ours first, then the peers, each with what it needs."""
        ours = Contender(OURS, Peer(self.ours, needs=("mercer",)))
        return [ours, *(Contender(name, peer) for name, peer in self.peers.items())]


@dataclass(frozen=True)
class Contender:
    """A peer, or ours, under the name shown."""

    name: str
    peer: Peer

    def absence(self) -> str:
        """Why it cannot take part, or nothing. Imports what it needs, so that no timing holds an import."""
        for module in self.peer.needs:
            try:
                importlib.import_module(module)
            except ImportError as error:
                return f"{module} cannot be imported: {error}"
        return ""

    def version(self) -> str:
        """Version of the first module it needs; empty where that is not a distribution."""
        if not self.peer.needs:
            return ""
        module = self.peer.needs[0].split(".")[0]
        names = importlib.metadata.packages_distributions().get(module, [])
        if names:
            return importlib.metadata.version(names[0])
        return str(getattr(importlib.import_module(module), "__version__", ""))


@dataclass
class Sample:
    """The times and the answer of one contender; ``why`` is set where it failed."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    answer: Any = None
    why: str = ""

    def median(self, measure: str) -> float | None:
        """Median seconds in ``cpu`` or ``wall``."""
        seconds = self.cpu if measure == "cpu" else self.wall
        return statistics.median(seconds) if seconds else None

    def ratio(self, ours: Sample, measure: str) -> float | None:
        """Median over the rounds of this contender's cost over ours in the same round."""
        theirs, mine = (self.cpu, ours.cpu) if measure == "cpu" else (self.wall, ours.wall)
        pairs = [a / b for a, b in zip(theirs, mine, strict=False) if b > 0]
        return statistics.median(pairs) if pairs else None


def time_in_turns(
    contenders: list[Contender], data: Any, *, repeats: int, warm: bool, wait: Callable[[], None] = lambda: None
) -> dict[str, Sample]:
    """Each round runs every contender once, beginning with another one each time; ``wait`` ends a timed sample."""
    samples = {contender.name: Sample() for contender in contenders}
    # warm up, and count how many calls make a sample that the clock can tell
    calls = dict.fromkeys(samples, 1)
    for one in contenders:
        if warm and not one.peer.once:
            trial = Sample()
            _once(one, data, trial, 1, wait)
            samples[one.name].why = trial.why
            if not trial.why:
                calls[one.name] = max(1, math.ceil(_SHORTEST / max(trial.wall[0], 1e-6)))
    # the rounds
    for turn in range(repeats):
        start = turn % len(contenders)
        for one in contenders[start:] + contenders[:start]:
            sample = samples[one.name]
            if not sample.why and not (one.peer.once and sample.cpu):
                _once(one, data, sample, calls[one.name], wait)
    return samples


def _once(contender: Contender, data: Any, sample: Sample, calls: int, wait: Callable[[], None]) -> None:
    sample.answer = None  # the old answer must not stay beside the new one in memory
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        for _ in range(calls):
            sample.answer = contender.peer.work(data)
        wait()
    except Exception as error:  # a peer's failure is a result: out of memory, no convergence, a refusal
        sample.why = f"{type(error).__name__}: {error}"
        return
    sample.cpu.append((time.process_time() - cpu) / calls)
    sample.wall.append((time.perf_counter() - wall) / calls)
