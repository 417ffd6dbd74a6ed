"""The default head beside nn.Linear at rates from small to too large: does it collapse, does it ever end behind?

    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.head_safety [sphere mlp3 mlp8 cnn transformer] [--seeds 20]
    python -m mercer_papers.bench.studies.head_safety --show

Every head trains with every seed at every rate of SGD (momentum 0.9) and AdamW. A seed draws the training, validation
and test rows, the start of the network and the order of the batches, alike for all heads. The rate of a head is the one
with the best mean accuracy on validation rows; the test rows (1,000 or more) of that rate are compared seed by seed.
"linear again" is a linear layer from another start with other batches: how far two equal heads are apart.

One run can be a point behind by chance, so each head is judged by paired tests over the seeds of a setting: the mean
gain with its 95 % interval, and one-sided t tests with Holm's correction over the settings. A small probability under
"worse" or "worse by 1" says that the head is behind linear, or by more than a point; a small one under "within 1" says
that it is not behind by a point. The share of runs that end more than a point below linear, over all settings, stands
beside that of "linear again", each with its 95 % interval (Wilson).

A run collapses where it ends 10 points behind the linear layer of the same seed and rate, or is not finite, while that
linear layer is within 10 points of the best that linear layers reach on the task.

Runs train side by side (torch.func). Each finished group of seeds is appended to
src/mercer_papers/bench/results/head_safety.jsonl, and a second call goes on where the first one stopped; ``--show``
prints the stored lines, trains nothing and stores the comparison in head_safety_summary.jsonl, which
docs/which-head.md quotes. A run counts as trained where it ends within 10 points of linear layers at their best rate.
The data sets come with the library.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

from mercer.nn import KernelClassifier
from mercer_papers.bench.record import append_row, read_rows, replace_rows
from mercer_papers.data import load, sphere

RESULTS = Path(__file__).parents[1] / "results" / "head_safety.jsonl"
SUMMARY = RESULTS.with_name("head_safety_summary.jsonl")
RATES = {"SGD": (0.05, 0.1, 0.2, 0.5, 1.0), "AdamW": (1e-4, 1e-3, 3e-3, 1e-2)}
STEPS = {"sphere": 300, "mlp3": 400, "mlp8": 400, "cnn": 300, "transformer": 150}
DECAY = {"SGD": 1e-4, "AdamW": 1e-2}
BATCH = 50
GROUP = 20  # seeds that train side by side
FAR = 10.0  # points that make a collapse

Head = Callable[[int, int, int], nn.Module]  # of width, classes and prototypes
HEADS: dict[str, Head] = {
    "linear": lambda d, c, p: nn.Linear(d, c),
    "linear again": lambda d, c, p: nn.Linear(d, c),
    "default": lambda d, c, p: KernelClassifier(d, c, prototypes=p),
}


class Transformer(nn.Module):
    """Two encoder layers over the eight lines of a digit, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Linear(8, 32), nn.Parameter(0.02 * torch.randn(8, 32))
        self.packed = nn.ModuleList(nn.Linear(32, 96) for _ in range(2))
        self.joined = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(4))
        self.hidden = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:  # (n, 64) -> (n, 32)
        """Embeddings; attention is written out, because torch.func does not see through the fused one."""
        h = self.embed(x.unflatten(1, (8, 8))) + self.places
        for layer in range(2):
            parts = [part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.packed[layer](h).chunk(3, -1)]
            weights = (parts[0] @ parts[1].mT / math.sqrt(8)).softmax(-1)
            attended = self.joined[layer]((weights @ parts[2]).transpose(1, 2).flatten(2))
            h = self.norms[2 * layer](h + attended)
            h = self.norms[2 * layer + 1](h + self.hidden[layer](h))
        embedding: Tensor = h.mean(1)
        return embedding


def make_model(task: str, head: Head) -> nn.Module:
    """A fresh network; its body is made before the head, so that a seed gives every head the same body."""
    if task == "sphere":
        return nn.Sequential(head(3, 2, 10))
    if task.startswith("mlp"):
        d = int(task[3:])
        return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, d), head(d, 10, 1))
    if task == "cnn":
        blocks = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()]
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head(16, 10, 1)
        )
    return nn.Sequential(Transformer(), head(32, 10, 1))


Rows = list[tuple[Tensor, Tensor]]  # rows and labels: training, validation, test


def draw_rows(task: str, seed: int) -> Rows:
    """A draw of the sphere (1,000 training, 500 validation, 2,000 test rows), or of the digits (500, 250, 1,047)."""
    if task == "sphere":
        points = sphere(1500, 2000, seed=1 + seed)
        x, y = points.x_train, points.y_train
        return [(x[:1000], y[:1000]), (x[1000:], y[1000:]), (points.x_test, points.y_test)]
    digits = load("digits")
    x, y = torch.cat((digits.x_train, digits.x_test)).flatten(1), torch.cat((digits.y_train, digits.y_test))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, validation, test = order[:500], order[500:750], order[750:]
    x = (x - x[train].mean(0)) / x[train].std()
    return [(x[part], y[part]) for part in (train, validation, test)]


def train(task: str, head: str, optimizer: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """A line for each seed: accuracy in percent on validation and test rows at every rate."""
    rates, steps = RATES[optimizer], STEPS[task]
    rows = {seed: draw_rows(task, seed) for seed in seeds}
    runs = [(seed, rate) for seed in seeds for rate in rates]
    shift = 1000 if head == "linear again" else 0

    # One start for each seed, whatever the rate; all runs become one model with stacked parameters.
    models = []
    for seed, _ in runs:
        torch.manual_seed(seed + shift)
        models.append(make_model(task, HEADS[head]))
    stacked, buffers = stack_module_state(models)
    parameters = {name: p.detach().clone() for name, p in stacked.items()}
    base = models[0]

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(base, (p, b), (x,)), y)

    gradients = vmap(grad(loss))
    first = {name: torch.zeros_like(p) for name, p in parameters.items()}
    second = {name: torch.zeros_like(p) for name, p in parameters.items()}
    base_rate = torch.tensor([rate for _, rate in runs])
    generators = {seed: torch.Generator().manual_seed(1000 + seed + shift) for seed in seeds}
    for step in range(1, steps + 1):
        # A batch for each seed, which all its rates share.
        picked = {seed: torch.randint(len(rows[seed][0][0]), (BATCH,), generator=generators[seed]) for seed in seeds}
        x = torch.stack([rows[seed][0][0][picked[seed]] for seed, _ in runs])
        y = torch.stack([rows[seed][0][1][picked[seed]] for seed, _ in runs])
        slopes = gradients(parameters, buffers, x, y)
        # Cosine schedule after a short warm-up.
        share = 0.5 * (1 + math.cos(math.pi * step / steps)) * min(1.0, 20 * step / steps)
        for name, p in parameters.items():
            rate, slope = (base_rate * share).view(-1, *[1] * (p.ndim - 1)), slopes[name]
            if optimizer == "SGD":
                first[name].mul_(0.9).add_(slope + DECAY["SGD"] * p)
                p.sub_(rate * first[name])
            else:
                first[name].lerp_(slope, 0.1)
                second[name].lerp_(slope * slope, 1e-3)
                length = (second[name] / (1 - 0.999**step)).sqrt() + 1e-8
                p.mul_(1 - rate * DECAY["AdamW"]).sub_(rate * first[name] / (1 - 0.9**step) / length)

    # The accuracies of each run; those of a seed make a line.
    lines: dict[int, dict[str, Any]] = {}
    for run, (seed, _) in enumerate(runs):
        line = {"task": task, "optimizer": optimizer, "head": head, "seed": seed, "validation": [], "test": []}
        line = lines.setdefault(seed, line)
        state = ({k: p[run] for k, p in parameters.items()}, {k: b[run] for k, b in buffers.items()})
        for name, (x, y) in zip(("validation", "test"), rows[seed][1:], strict=True):
            with torch.no_grad():
                logits = functional_call(base, state, (x,))
            right = (logits.argmax(1) == y) & logits.isfinite().all(1)  # a row of NaN is never right
            line[name].append(round(100 * right.double().mean().item(), 2))
    return list(lines.values())


def compare(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each task, optimizer and head: what it reaches at its best rate, and its gains over linear."""
    rows: list[dict[str, Any]] = []
    for task, optimizer in dict.fromkeys((line["task"], line["optimizer"]) for line in lines):
        # validation and test accuracy of each head, (seeds, rates)
        scores: dict[str, tuple[Tensor, Tensor]] = {}
        for head in HEADS:
            runs = [x for x in lines if (x["task"], x["optimizer"], x["head"]) == (task, optimizer, head)]
            runs.sort(key=lambda line: line["seed"])
            if runs:
                validation, test = (torch.tensor([line[part] for line in runs]) for part in ("validation", "test"))
                scores[head] = (validation, test)
        if "linear" not in scores:
            continue
        # what the linear layer reaches at its best rate, and where it trains
        linear = scores["linear"][1]
        base = linear[:, scores["linear"][0].mean(0).argmax()]
        trains = linear > base.mean() - FAR
        for head, (validation, test) in scores.items():
            best, same = int(validation.mean(0).argmax()), min(len(test), len(linear))
            gain = test[:same, best] - base[:same]
            # Paired t: the interval of the mean gain, and how likely one as low as this is at true means of 0 and -1.
            mean, error = gain.mean().item(), max(gain.std().item() / math.sqrt(same), 1e-9)
            half = float(stats.t.ppf(0.975, same - 1)) * error
            worse, worse_by_1 = (float(stats.t.cdf((mean - true) / error, same - 1)) for true in (0.0, -1.0))
            collapsed = (test[:same] < linear[:same] - FAR) & trains[:same]  # (seeds, rates)
            rows.append({
                "setting": f"{task}, {optimizer}",
                "head": head,
                "runs": same,
                "rate": RATES[optimizer][best],
                "accuracy": round(test[:, best].mean().item(), 2),
                "gain": round(mean, 2),
                "low": round(mean - half, 2),
                "high": round(mean + half, 2),
                "worse": worse,
                "worse_by_1": worse_by_1,
                "within_1": 1 - worse_by_1,
                "least": round(gain.min().item(), 2),
                "below": int((gain < -1).sum()),
                "collapses": int(collapsed.sum()),
                "collapsed": [
                    {"seed": seed, "rate": RATES[optimizer][rate], "linear": round(linear[:, rate].mean().item(), 1)}
                    for seed, rate in collapsed.nonzero().tolist()
                ],
                "trained": int((test[:same] > base.mean() - FAR).sum()),  # of runs x rates
                "rates": [round(score, 1) for score in test.mean(0).tolist()],
            })  # fmt: skip
    # Holm, over the settings of a head: the k-th smallest of n probabilities counts n - k + 1 times.
    for head in HEADS:
        for name in ("worse", "worse_by_1", "within_1"):
            ordered = sorted((row for row in rows if row["head"] == head), key=lambda row: float(row[name]))
            running = 0.0
            for k, row in enumerate(ordered):
                running = max(running, min(1.0, (len(ordered) - k) * row[name]))
                row[name] = round(running, 4)
    return rows


def share_below(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each head but linear: the share of runs, in percent, that end more than a point below linear."""
    shares = []
    for head in HEADS:
        settings = [row for row in rows if row["head"] == head]
        if head == "linear" or not settings:
            continue
        below, runs = sum(row["below"] for row in settings), sum(row["runs"] for row in settings)
        # the share with its interval
        interval = stats.binomtest(below, runs).proportion_ci(method="wilson")
        shares.append({
            "setting": f"all {len(settings)} settings",
            "head": f"{head}, all",
            "runs": runs,
            "below": below,
            "share": round(100 * below / runs, 1),
            "low": round(100 * interval.low, 1),
            "high": round(100 * interval.high, 1),
            "collapses": sum(row["collapses"] for row in settings),
        })  # fmt: skip
    return shares


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print what was compared, with the mean accuracy at every rate."""
    for row in rows:
        print(
            f"{row['setting']:18s} {row['head']:12s} {' '.join(f'{score:5.1f}' for score in row['rates'])}"
            f"   at {row['rate']:g}: {row['accuracy']:.2f}, gain {row['gain']:+.2f} [{row['low']}, {row['high']}],"
            f" p {row['worse']:.2g} worse, {row['worse_by_1']:.2g} worse by 1, {row['within_1']:.2g} within 1,"
            f" least {row['least']:+.1f}, {row['below']} of {row['runs']} below -1;"
            f" {row['collapses']} collapses, {row['trained']} trained",
            flush=True,
        )
        for collapse in row["collapsed"]:
            # One may choose a rate where linear layers are, on average, near what they reach at their best rate.
            best = next(x for x in rows if (x["setting"], x["head"]) == (row["setting"], "linear"))
            who = "one may" if collapse["linear"] > best["accuracy"] - FAR else "nobody would"
            print(
                f"{'':18s}   collapse: seed {collapse['seed']}, rate {collapse['rate']:g}, a rate {who} choose: there"
                f" linear layers reach {collapse['linear']} on average, at their best rate {best['rate']:g}"
                f" {best['accuracy']}"
            )
    for share in share_below(rows):
        print(
            f"{share['setting']}, {share['head']}: {share['below']} of {share['runs']} runs below -1,"
            f" {share['share']} % [{share['low']}, {share['high']}]; {share['collapses']} collapses"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(STEPS), help="all by default")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = read_rows(arguments.results)
    if arguments.show:
        rows = compare([line for line in lines if line["task"] in arguments.tasks])
        show(rows)
        if arguments.results == RESULTS and set(arguments.tasks) == set(STEPS):
            replace_rows(SUMMARY, [*rows, *share_below(rows)])
        return
    # train what is not stored, a group of seeds at a time
    for task in arguments.tasks:
        for optimizer in RATES:
            for head in HEADS:
                stored = {x["seed"] for x in lines if (x["task"], x["optimizer"], x["head"]) == (task, optimizer, head)}
                missing = [seed for seed in range(arguments.seeds) if seed not in stored]
                for start in range(0, len(missing), GROUP):
                    for line in train(task, head, optimizer, missing[start : start + GROUP]):
                        append_row(arguments.results, line)
                        lines.append(line)
            show(compare([line for line in lines if (line["task"], line["optimizer"]) == (task, optimizer)]))


if __name__ == "__main__":
    main()
