"""What the lines of ``bench.tables`` say: mean ranks, wins and losses, CPU seconds, intervals.

Methods are compared on the folds that all of them have: a table's score is the mean over those, and a table that one of
them lacks is left out for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from .record import read_rows
from .table_rivals import RIVALS
from .tables import KERNELS, OURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = {"accuracy": "accuracy", "log_loss": "log loss", "auroc": "AUROC", "r2": "R2"}
_LESS_IS_BETTER = {"log_loss", "interval_score"}
BANDS = {
    "below 3,000 rows": (0, 3_000),
    "3,000 to 12,000 rows": (3_000, 12_000),
    "above 12,000 rows": (12_000, 10**9),
}
EVERYWHERE = (0, 10**9)
_FEWEST = 5  # tables that a panel of the picture must have


def read(path: Path) -> pd.DataFrame:
    """The lines, of two with the same table, fold and method the later one."""
    lines = pd.DataFrame(read_rows(path))
    for field in (*METRICS, "coverage", "interval_score", "cpu_fit", "cpu_predict", "error"):
        if field not in lines:  # no line has it yet
            lines[field] = np.nan
    lines["cpu"] = lines["cpu_fit"] + lines["cpu_predict"]
    return lines.drop_duplicates(["table", "fold", "method"], keep="last")


def scores(
    lines: pd.DataFrame, metric: str, methods: Sequence[str], rows: tuple[int, int] = EVERYWHERE
) -> pd.DataFrame:
    """A table's mean over the folds that all ``methods`` have, by table and method."""
    used = lines[lines["rows"].between(rows[0], rows[1] - 1) & lines["method"].isin(methods)]
    folds = used.pivot(index=["table", "fold"], columns="method", values=metric).reindex(columns=list(methods)).dropna()
    return folds.groupby("table").mean()


def mean_ranks(
    lines: pd.DataFrame, metric: str, methods: Sequence[str], rows: tuple[int, int] = EVERYWHERE
) -> pd.Series:
    """Mean rank by method, 1 is best; those of equal scores share the mean of their places."""
    return scores(lines, metric, methods, rows).rank(axis=1, ascending=metric in _LESS_IS_BETTER).mean()


def wins(lines: pd.DataFrame, metric: str, rival: str, ours: str = OURS) -> tuple[int, int, int]:
    """On how many tables ours is better, the rival is better, and both are equal."""
    both = scores(lines, metric, [ours, rival])
    gain = (both[ours] - both[rival]) * (-1 if metric in _LESS_IS_BETTER else 1)
    return int((gain > 0).sum()), int((gain < 0).sum()), int((gain == 0).sum())


def cost_ratios(lines: pd.DataFrame, rival: str, ours: str = OURS, cost: str = "cpu_fit") -> pd.Series:
    """CPU seconds of our fit over the rival's, by table, on the folds that both have; ``cpu`` is with predicting."""
    fits = scores(lines, cost, [ours, rival])
    return (fits[ours] / fits[rival]).sort_values()


def ranks_by_length(lines: pd.DataFrame, methods: Sequence[str]) -> str:
    """Mean ranks of ``methods``, a table for each band of rows that has any, the best first by the mean of the four."""
    parts = []
    for band, rows in BANDS.items():
        counts = {name: len(scores(lines, metric, methods, rows)) for metric, name in METRICS.items()}
        if not any(counts.values()):
            continue
        ranks = pd.DataFrame({name: mean_ranks(lines, metric, methods, rows) for metric, name in METRICS.items()})
        cells = []
        for method in ranks.mean(axis=1).sort_values(kind="stable").index:
            row = [
                f"**{rank:.2f}**" if rank == ranks[name].min() else f"{rank:.2f}"
                for name, rank in ranks.loc[method].items()
            ]
            cells.append([method, *(cell.replace("nan", "") for cell in row)])
        tables = f"{counts['log loss']} tables of classes, {counts['R2']} of numbers"
        parts.append(f"**{band[0].upper()}{band[1:]}** ({tables}):\n\n" + _grid(["mean rank", *ranks], cells))
    return "\n\n".join(parts) or "No table that all of them have."


def sentence(lines: pd.DataFrame, methods: Sequence[str]) -> str:
    """``log loss 1.31 (CatBoost 2.06), ...``: over all tables, ours and the best other."""
    parts = []
    for metric, name in METRICS.items():
        ranks = mean_ranks(lines, metric, methods).sort_values()
        other = next(method for method in ranks.index if method not in (OURS, KERNELS))
        parts.append(f"{name} {ranks[OURS]:.2f} ({other} {ranks[other]:.2f})")
    return ", ".join(parts)


def times(ratio: float) -> str:
    """A ratio with two digits before or after the point: ``0.07``, ``1.7``, ``130``."""
    return f"{ratio:.2g}" if ratio < 100 else f"{ratio:.0f}"


def duels(lines: pd.DataFrame, rivals: Sequence[str], ours: str = OURS) -> str:
    """Ours against one rival at a time: tables won and lost, in bold where chance would rarely do it, and CPU.

    The bold ones have a sign test below 5 %: so uneven a count would come in fewer than one of twenty cases if either
    were as likely to win a table.
    """
    from scipy.stats import binomtest

    cells = []
    for rival in rivals:
        both = pd.concat([scores(lines, metric, [ours, rival]) for metric in ("log_loss", "r2")])
        if both.empty:
            continue
        row = [rival, str(len(both)), str(_folds(lines, [ours, rival]))]
        for metric in METRICS:
            won, lost, equal = wins(lines, metric, rival, ours)
            count = f"{won} : {lost}"
            if won + lost and binomtest(won, won + lost).pvalue < 0.05:
                count = f"**{count}**"
            if equal:
                count += f" ({equal} equal)"
            row.append(count if won + lost + equal else "")
        # what ours cost beside it, and where it cost most
        ratio = cost_ratios(lines, rival, ours, "cpu")
        row += [times(ratio.median()), f"{times(ratio.iloc[-1])} (`{ratio.index[-1]}`)"]
        cells.append(row)
    head = ["against", "tables", "folds", *METRICS.values(), "our CPU over its, median", "at worst"]
    return _grid(head, cells)


def changing_winners(lines: pd.DataFrame, rival: str, ours: str = OURS) -> str:
    """``3 of 15``: tables of two folds or more where not every fold names the same winner by log loss or R2."""
    tables = changes = 0
    for metric in ("log_loss", "r2"):
        used = lines[lines["method"].isin([ours, rival])]
        folds = used.pivot(index=["table", "fold"], columns="method", values=metric).dropna()
        signs = (folds[ours] - folds[rival]).map(np.sign).groupby("table").agg(["size", "nunique"])
        several = signs[signs["size"] > 1]
        tables += len(several)
        changes += int((several["nunique"] > 1).sum())
    return f"{changes} of {tables}"


def losses(lines: pd.DataFrame, methods: Sequence[str], count: int = 5) -> str:
    """For each metric the tables where ours is farthest behind the best of the other methods."""
    others = [method for method in methods if method not in (OURS, KERNELS)]
    cells = []
    for metric, name in METRICS.items():
        table = scores(lines, metric, [OURS, *others])
        sign = -1 if metric in _LESS_IS_BETTER else 1
        gap = ((sign * table[others]).max(axis=1) - sign * table[OURS]).sort_values(ascending=False)
        behind = gap[gap > 0]
        for one in map(str, behind.index[:count]):
            winner = str((sign * table.loc[one, others]).idxmax())
            rows = int(lines.loc[lines["table"] == one, "rows"].iloc[0])
            values = table.loc[one].to_dict()
            other = f"{values[winner]:.4f} ({winner})"
            metric_cell = f"{name}: behind on {len(behind)} of {len(table)}"
            cells.append([metric_cell, f"`{one}`", f"{rows:,}", f"{values[OURS]:.4f}", other])
    return _grid(["metric", "table", "rows", OURS, "best other"], cells)


def intervals(lines: pd.DataFrame, methods: Sequence[str]) -> str:
    """Intervals of level 0.9 on the tables that all ``methods`` have: coverage, score, mean rank by the score."""
    width = scores(lines, "interval_score", methods)
    inside = scores(lines, "coverage", methods)
    ranks = width.rank(axis=1).mean().sort_values()
    cells = []
    for method in map(str, ranks.index):
        share = f"{inside[method].mean():.1%}".replace("%", " %")
        cells.append([method, share, f"{width[method].mean():.3f}", f"{ranks[method]:.2f}"])
    title = f"{len(width)} tables of numbers: {', '.join(f'`{name}`' for name in width.index)}.\n\n"
    return title + _grid(["method", "coverage", "interval score", "mean rank"], cells)


def honesty(lines: pd.DataFrame) -> str:
    """``+0.002 in accuracy (16 tables), ...``: what our fits reported minus what held-out rows gave, the mean gap."""
    fits = lines[lines["method"] == OURS]
    parts = []
    for metric in ("accuracy", "log_loss", "r2"):
        if f"reported_{metric}" in fits:
            gap = (fits[f"reported_{metric}"] - fits[metric]).dropna().groupby(fits["table"]).mean()
            parts += [f"{gap.mean():+.3f} in {METRICS[metric]} ({len(gap)} tables)"] if len(gap) else []
    return ", ".join(parts)


def coverage(lines: pd.DataFrame) -> str:
    """``90.1 % of the held-out rows of 12 tables of numbers (...)``: of our intervals of level 0.9."""
    fits = lines[lines["method"] == OURS].dropna(subset=["coverage"])
    inside = fits.groupby("table")["coverage"].mean().sort_values()
    mean = (fits["coverage"] * fits["new_rows"]).sum() / fits["new_rows"].sum()
    ends = f"least {inside.iloc[0]:.1%} on `{inside.index[0]}`, most {inside.iloc[-1]:.1%} on `{inside.index[-1]}`"
    text = f"{mean:.1%} of {int(fits['new_rows'].sum()):,} held-out rows of {len(inside)} tables of numbers ({ends})"
    return text.replace("%", " %")


def runs(lines: pd.DataFrame) -> str:
    """What was run: tables, fits, versions and settings of each method, and the CPU of its fits."""
    cells = []
    for method in [OURS, KERNELS, *RIVALS]:
        fits = lines[lines["method"] == method]
        if fits.empty:
            continue
        finished = fits[fits["error"].isna()]
        count = f"{len(finished)}"
        if len(finished) < len(fits):
            count += f" ({len(fits) - len(finished)} failed)"
        of_classes = finished.loc[finished["classes"] > 0, "table"].nunique()
        of_numbers = finished.loc[finished["classes"] == 0, "table"].nunique()
        cpu = finished["cpu_fit"]
        cost = [f"{cpu.median():.2g}", f"{cpu.max():.3g}"]
        versions = {name: number for name, number in fits["versions"].iloc[-1].items() if name != "commit"}
        version = ", ".join(f"{name} {number}" for name, number in versions.items())
        commits = sorted({one.get("commit", "") for one in fits["versions"]} - {""})
        if commits:
            version += f", commit {', '.join(commits)}"
        settings = str(fits["settings"].iloc[-1])
        cells.append([method, f"{of_classes} + {of_numbers}", count, *cost, version, settings])
    head = [
        "method",
        "tables of classes + of numbers",
        "fits",
        "CPU s of a fit, median",
        "at most",
        "version",
        "settings",
    ]
    return _grid(head, cells)


def page(path: Path, methods: Sequence[str] = ()) -> str:
    """All of it for a terminal; ranks are of ``methods``, by default of those that ran on most tables."""
    lines = read(path)
    chosen = list(methods) or common_methods(lines)
    rivals = [method for method in RIVALS if (lines["method"] == method).any()]
    parts = [ranks_by_length(lines, chosen), duels(lines, rivals), losses(lines, chosen), runs(lines)]
    return "\n\n".join(parts)


def common_methods(lines: pd.DataFrame) -> list[str]:
    """Those that ran on at least nine tenths of the tables of ours."""
    tables = lines.dropna(subset=["cpu_predict"]).groupby("method")["table"].nunique()
    most = tables.get(OURS, tables.max())
    return [method for method in (OURS, KERNELS, *RIVALS) if tables.get(method, 0) >= 0.9 * most]


def draw(lines: pd.DataFrame, methods: Sequence[str]) -> Figure:
    """Mean rank by log loss for classes and by R2 for numbers, a panel for each band of five tables or more."""
    from matplotlib.ticker import MaxNLocator

    from mercer.figures.theme import LIGHT, canvas

    bands = {}
    for band, rows in BANDS.items():
        losses = scores(lines, "log_loss", methods, rows).rank(axis=1)
        shares = scores(lines, "r2", methods, rows).rank(axis=1, ascending=False)
        if len(losses) + len(shares) >= _FEWEST:
            bands[f"{band}\n{len(losses) + len(shares)} tables"] = pd.concat([losses, shares]).mean()
    figure, panels = canvas(1, len(bands), width=3.2 * len(bands), height=0.9 + 0.3 * len(methods))
    for ax, (band, ranks) in zip(panels, bands.items(), strict=True):
        mean = ranks.sort_values(kind="stable")
        colors = [LIGHT.series[0] if name in (OURS, KERNELS) else LIGHT.soft for name in mean.index]
        ax.barh(np.arange(len(mean)), mean.to_numpy(), 0.62, color=colors)
        for i, value in enumerate(mean):
            ax.annotate(f"{value:.1f}", (value, i), (3, 0), textcoords="offset points", va="center", fontsize=8.5,
                        color=LIGHT.ink)  # fmt: skip
        ax.set_yticks(range(len(mean)), list(mean.index))
        ax.set_ylim(len(mean) - 0.5, -0.5)
        ax.set_xlim(0, len(methods) + 0.4)  # room for the number of the last one
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.grid(False, axis="y")
        ax.set_title(band, loc="left", fontsize=9, color=LIGHT.ink)
        ax.set_xlabel("mean rank, 1 is best")
    return figure


def draw_duels(lines: pd.DataFrame, rivals: Sequence[str]) -> Figure:
    """Tables won, equal and lost against each rival by log loss or R2, as shares, with our CPU over its."""
    from mercer.figures.theme import LIGHT, canvas, legend_below

    counts = {}
    for rival in rivals:
        won, lost, equal = np.add(wins(lines, "log_loss", rival), wins(lines, "r2", rival))
        if won + lost + equal:
            counts[rival] = [int(won), int(equal), int(lost)]
    figure, (ax,) = canvas(width=8.8, height=1.2 + 0.3 * len(counts))
    colors = dict(zip(["won", "equal", "lost"], [LIGHT.series[0], LIGHT.line, LIGHT.series[1]], strict=True))
    handles = {}
    for i, (rival, parts) in enumerate(counts.items()):
        left = 0.0
        for (name, color), count in zip(colors.items(), parts, strict=True):
            share = count / sum(parts)
            if count:
                said = name if name == "equal" else f"{name} by {OURS}"
                handles[said] = ax.barh(i, share, 0.66, left=left, color=color)
                ink = LIGHT.ink if name == "equal" else LIGHT.paper
                ax.annotate(str(count), (left + share / 2, i), ha="center", va="center", fontsize=8.5, color=ink)
            left += share
        ratio = times(cost_ratios(lines, rival, cost="cpu").median())
        ax.annotate(f"{ratio} × its CPU", (1, i), (5, 0), textcoords="offset points", va="center", fontsize=8.5,
                    color=LIGHT.ink, annotation_clip=False)  # fmt: skip
    ax.set_yticks(range(len(counts)), list(counts))
    ax.set_ylim(len(counts) - 0.5, -0.5)
    ax.set_xlim(0, 1)
    ax.set_xticks([0, 0.5, 1], ["0", "half of the tables", "all"])
    ax.grid(False, axis="y")
    legend_below(figure, handles)
    return figure


def _folds(lines: pd.DataFrame, methods: Sequence[str]) -> int:
    """How many folds all ``methods`` have, over all tables."""
    used = lines[lines["method"].isin(methods)]
    fits = used.pivot(index=["table", "fold"], columns="method", values="cpu_predict")
    return len(fits.reindex(columns=list(methods)).dropna())


def _grid(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join(rows + ["| " + " | ".join(row) + " |" for row in cells])
