"""What was published: every entry of the five papers, read from ``published/<paper>.toml``."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from .claims import Claim

PUBLISHED = Path(__file__).parent / "published"


@dataclass(frozen=True)
class Number:
    """One published number of a table; ``deviation`` is None where the paper gives none."""

    row: str
    column: str
    value: float
    deviation: float | None = None


@dataclass(frozen=True)
class Entry:
    """One result or check of a paper, as published.

    Args:
        id: ``<paper>/<entry>``.
        kind: ``"result"`` or ``"check"`` (of a theorem or a claim).
        title: what it shows, in words.
        source: where in the paper: table, figure, section.
        claim: the paper's claim in words, where the numbers of a figure are lost.
        metric: what the numbers are, with the unit.
        better: ``"higher"``, ``"lower"`` or ``""``.
        data: the paper's data sets.
        needs: data sets of which one must be found for a cell to run at ``small`` scale; empty where a cell needs none.
        scale: the least scale with cells: ``"smoke"`` or ``"paper"`` (a GPU, or data of that size, is needed).
        settings: the paper's settings, as printed.
        stand_ins: what ours uses in place of what the paper used.
        not_the_papers: stand-ins as data: ``says``, and ``where``, the settings of runs that have it; without
            ``where``, all runs below ``paper`` scale. ``always``: at ``paper`` scale, too.
        doubts: where the paper is unclear or does not follow.
        numbers: the published numbers.
        claims: what is compared for the verdict (`mercer_papers.claims`).
        paper_size: the paper's settings that make a training's size, ``{"rows": 50_000, "epochs": 450}``.
        run: ``module``, the module of the paper's folder that runs the entry, and what that module asks for.
    """

    id: str
    paper: str
    kind: str
    title: str
    source: str
    claim: str = ""
    metric: str = ""
    better: str = ""
    data: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    scale: str = "smoke"
    settings: Mapping[str, Any] = field(default_factory=dict)
    stand_ins: tuple[str, ...] = ()
    not_the_papers: tuple[Mapping[str, Any], ...] = ()
    doubts: tuple[str, ...] = ()
    numbers: tuple[Number, ...] = ()
    claims: tuple[Claim, ...] = ()
    paper_size: Mapping[str, float] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """The name of the module that runs the entry."""
        return f"{__package__}.{self.paper}.{self.run.get('module', '')}"

    @property
    def built(self) -> bool:
        """Whether that module is there; it is not imported to find out."""
        return bool(self.run) and importlib.util.find_spec(self.module) is not None

    def load(self) -> ModuleType:
        """The module, imported: ``cells(entry, scale)``, ``run(cell)`` and perhaps ``draw(results)``."""
        return importlib.import_module(self.module)


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Every entry of every paper, in the papers' own order."""
    catalogue = []
    for path in sorted(PUBLISHED.glob("*.toml")):
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        for table in document["entry"]:
            # ``shared = "x"`` takes what ``[shared.x]`` holds, and adds its own lines to the lists
            shared = document.get("shared", {}).get(table.get("shared"), {})
            fields: dict[str, Any] = {name: value for name, value in {**shared, **table}.items() if name != "shared"}
            for name in ("stand_ins", "not_the_papers", "doubts"):
                fields[name] = (*shared.get(name, ()), *table.get(name, ()))
            fields["data"] = tuple(fields.get("data", ()))
            fields["needs"] = tuple(table.get("needs", ()))
            fields["settings"] = {**shared.get("settings", {}), **table.get("settings", {})}
            fields["claims"] = tuple(Claim(**claim) for claim in table.get("claims", ()))
            # ``columns = [...]`` over ``rows = {row = [...]}``; an item is a number, [number, deviation] or "" for none
            numbers = []
            for row, items in table.get("numbers", {}).get("rows", {}).items():
                for column, item in zip(table["numbers"]["columns"], items, strict=True):
                    if isinstance(item, list):
                        numbers.append(Number(row, column, float(item[0]), float(item[1])))
                    elif item != "":
                        numbers.append(Number(row, column, float(item)))
            fields["numbers"] = tuple(numbers)
            catalogue.append(Entry(**{**fields, "id": f"{path.stem}/{table['id']}", "paper": path.stem}))
    return tuple(catalogue)


def entry(name: str) -> Entry:
    """The entry with this id."""
    return select([name])[0]


def select(names: Iterable[str]) -> list[Entry]:
    """The entries of these ids and papers, in catalogue order, each once; no names mean all.

    Raises:
        ValueError: for a name that is neither, with the closest ids.
    """
    wanted: set[str] = set()
    for name in names:
        matches = {e.id for e in entries() if name in (e.id, e.paper)}
        if not matches:
            # the ids that end so, whatever the paper, else those that are spelled alike
            ids = [e.id for e in entries()]
            close = [i for i in ids if i.split("/")[1].lower() == name.lower()]
            close = close or difflib.get_close_matches(
                name, ids + sorted({e.paper for e in entries()}), n=3, cutoff=0.5
            )
            fix = "`mercer list` shows them all."
            if close:
                fix = f"Did you mean {' or '.join(close)}?"
            raise ValueError(f"ID must be an entry or a paper; got {name!r}. {fix}")
        wanted |= matches
    return [e for e in entries() if e.id in wanted or not wanted]
