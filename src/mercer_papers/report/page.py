"""A run folder in, one self-contained ``report.html`` out: nothing on the page comes from the network."""

from __future__ import annotations

import base64
import hashlib
import logging
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mercer import __version__
from mercer.figures import numbers, plots
from mercer.figures.pages import Picture, fill, inline, own_text, words
from mercer.storage.files import atomic_write

from ..catalogue import entries
from ..results import Result, read_results, read_run
from ..verdict import VERDICTS
from .sections import STATES, VERDICT_MARKS, Section, sections, unknown_entries

PAPERS = {
    "jayasumana2021": "Kernelized classification",
    "chen2022": "Kernel SGD",
    "deng2022": "NeuralEF: kernels decomposed into eigenfunctions",
    "masoomi2020": "Layer-wise learning by kernel embedding",
    "spectral2019": "Spectral analysis of kernel and neural embeddings",
}
_HERE = Path(__file__).parent
_log = logging.getLogger("mercer")


@dataclass(frozen=True)
class Paper:
    """One paper's entries on the page."""

    key: str
    title: str
    anchor: str
    sections: tuple[Section, ...]

    @property
    def shown(self) -> list[Section]:
        """The entries with a part of the page of their own."""
        return [section for section in self.sections if section.shown]

    @property
    def absent(self) -> bool:
        """Whether there is nothing to show of any of them."""
        return not self.shown

    @property
    def seconds(self) -> str:
        """Time in the cells of all of them."""
        return numbers.duration(sum(section.seconds for section in self.sections))


def build(run_folder: Path, page: Path | None = None) -> Path:
    """Write the page of a run and return its path.

    Args:
        run_folder: holds ``run.json`` and ``results.jsonl``, as ``mercer reproduce`` leaves them.
        page: the file; None for ``report.html`` in the run's folder.
    """
    run_folder = Path(run_folder)
    run, results = read_run(run_folder), read_results(run_folder)
    catalogue = [*entries(), *unknown_entries(entries(), results)]
    found = sections(catalogue, results, run.get("planned"))
    page = page or run_folder / "report.html"
    atomic_write(page, render(found, run).encode())
    return page


def render(found: Sequence[Section], run: Mapping[str, Any]) -> str:
    """The page's text. All that comes from results or published files is escaped by the template."""
    script = own_text("sort.js", _HERE) + own_text("run.js", _HERE)
    # the entries by paper, in the papers' order
    keys = dict.fromkeys([*PAPERS, *(section.entry.paper for section in found)])
    grouped = {key: tuple(section for section in found if section.entry.paper == key) for key in keys}
    values = {
        "verdicts": [
            {
                "word": word,
                "tone": word.replace(" ", "_"),
                "mark": VERDICT_MARKS[word],
                "sections": [section for section in found if section.verdict.word == word],
            }
            for word in VERDICTS
        ],
        "counts": [(state, sum(section.state == state for section in found)) for state in STATES.values()],
        "total": len(found),
        "ran": sum(section.ran for section in found),
        "facts": _facts(run, found),
        "papers": [
            Paper(key, PAPERS.get(key, key), f"paper-{number}", own)
            for number, (key, own) in enumerate(grouped.items())
            if own
        ],
        "pictures": {section.entry.id: pictures(section) for section in found},
        "states": STATES,
        "style": own_text("style.css") + own_text("run.css", _HERE),
        "script": script,
        "script_digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    return fill("mercer_papers.report", "run.html", values)


def _facts(run: Mapping[str, Any], found: Sequence[Section]) -> dict[str, Any]:
    """The request, its outcome, place and time, as pairs to show; facts that ``run.json`` lacks are left out."""
    past = run.get("sessions") or [{}]
    session, asked = past[-1], run.get("asked", {})
    results = [result for section in found for result in section.results]
    starts = [result.started for result in results if result.started]
    statuses = [result.status for result in results]
    seconds, cpu = (sum(getattr(result, name) for result in results) for name in ("seconds", "cpu_seconds"))
    shown = {
        "Asked": ", ".join(asked.get("ids", ())) or "every entry",
        "Scale": str(asked.get("scale", "")),
        "Cells": f"{statuses.count('done')} done, {statuses.count('failed')} failed, "
        f"{statuses.count('missing')} not run",
        "Time": f"{numbers.duration(seconds)} in the cells, {numbers.duration(cpu)} CPU",
        "Started": min(starts, default=str(session.get("started", ""))).replace("T", " ").replace("+00:00", " UTC"),
        "Machine": numbers.machine(session.get("machine", {})),
        "Threads": words(session.get("threads", "")),
        "Versions": words(session.get("versions", "")),
        "Sessions": f"{len(past)}; machine and versions are the last one's" if len(past) > 1 else "",
    }
    # how the comparisons came out, and how many of our numbers stand beside a published one
    texts = []
    outcomes = [c.outcome for section in found for c in section.verdict.comparisons if not c.claim.finding]
    if outcomes:
        fails, still_open = outcomes.count("fails"), outcomes.count("open")
        holds = f"{outcomes.count('holds')} of {len(outcomes)} comparisons hold"
        texts.append(f"{holds}, {fails} fail, {still_open} are open")
    pairs = [section.matrix.pairs for section in found]
    if any(pairs):
        texts.append(f"{sum(pairs)} numbers of ours stand beside a published one, in {sum(map(bool, pairs))} tables")
    facts = [(name, value) for name, value in shown.items() if value]
    return {"version": __version__, "scale": str(asked.get("scale", "unknown")), "shown": facts, "found": texts}


def pictures(section: Section) -> list[Picture]:
    """Every figure of an entry; none where it has neither ``draw`` nor curves."""
    done = [result for result in section.results if result.status == "done"]
    entry = section.entry
    if not done:
        return []
    # what a reader who cannot see the figure should know: each curve with its first and last height
    curves = mean_curves(done)
    heights = [f"{name} from {c['y'][0]:.4g} to {c['y'][-1]:.4g}" for name, c in curves.items() if c.get("y")]
    alt = f"{entry.title}: {'; '.join(heights) or 'drawn from the numbers below'}"
    try:
        figure, draw = None, None
        if entry.built:
            draw = getattr(entry.load(), "draw", None)
        if draw is not None:
            figure = draw(done)
        elif curves:
            figure = plots.lines(curves, y_label=entry.metric)
        if figure is None:
            return []
        caption = f"Ours, for {entry.source}." if entry.source else "Ours."
        return [Picture(alt, caption, inline(figure, section.anchor, alt))]
    except Exception as error:  # one entry's drawing must not cost the reader the whole page
        _log.warning("%s: the figure could not be drawn", entry.id, exc_info=error)
        return [Picture(alt, "", why=f"{type(error).__name__}: {error}")]


def mean_curves(done: Iterable[Result]) -> dict[str, dict[str, list[float]]]:
    """The curves by row, column and name; over seeds with the same x, the mean with a band of one deviation."""
    groups: dict[tuple[str, str, str], list[dict[str, list[float]]]] = {}
    for result in done:
        for name, curve in result.curves.items():
            place = (result.row, result.column, name)
            groups.setdefault(place, []).append({key: list(values) for key, values in curve.items()})
    # what tells the curves apart: a part of the name that all of them share is left out
    differs = [len(set(parts)) > 1 for parts in zip(*groups, strict=True)]
    kept = differs if any(differs) else [True] * 3
    means = {}
    for place, curves in groups.items():
        first = curves[0]
        alike = [curve for curve in curves if curve["x"] == first["x"]]
        if len(alike) > 1:
            heights = list(zip(*(curve["y"] for curve in alike), strict=True))
            mean = [statistics.fmean(ys) for ys in heights]
            band = [statistics.stdev(ys) for ys in heights]
            low = [y - spread for y, spread in zip(mean, band, strict=True)]
            high = [y + spread for y, spread in zip(mean, band, strict=True)]
            first = {"x": first["x"], "y": mean, "low": low, "high": high}
        label = ", ".join(part for part, keep in zip(place, kept, strict=False) if keep and part)
        means[label] = first
    return means
