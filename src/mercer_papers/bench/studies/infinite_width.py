"""The cost and the use of infinite-width kernels, on CIFAR-10.

    OMP_NUM_THREADS=1 MERCER_DATA=... python -m mercer_papers.bench.studies.infinite_width cost [NAME ...]
    ... ridge [--rows 100 500 5000] [--only NAME] | ranking [--rows 500] | drift | tables PAGE

Every line is printed as JSON and appended to src/mercer_papers/bench/results/infinite_width.jsonl.

cost     the Gram matrix of 1,000 pictures for five architectures: CPU seconds and what it added to the peak memory
ridge    kernel ridge with the NTK of a small CNN, the same CNN trained, and the Laplacian kernel
ranking  the complexity of the labels under the NTK of 12 architectures, before training, beside their trained accuracy
drift    how far the empirical NTK of a finite network is from the limit, before and after training, by width
tables   write the stored lines into the tables of a page, docs/tutorials/infinite-width.md

Finite networks at widths 256 to 4,096 beside the limit, rule by rule: infinite_width_rules.py.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional as F

from mercer import spectral
from mercer.kernels import FunctionKernel, Laplacian, infinite_width
from mercer.machines import KernelRidge
from mercer_papers.bench.record import append_row, read_rows
from mercer_papers.bench.studies.infinite_width_rules import WIDTHS, Residual, draw_weights, empirical_ntk
from mercer_papers.data import load

RESULTS = Path(__file__).parents[1] / "results" / "infinite_width.jsonl"


def dense(depth: int, act: Callable[[], nn.Module] = nn.ReLU, *, norm: bool = False, pool: int = 1) -> Any:
    """A fully connected network of pictures, averaged over pool x pool pixels first."""

    def make(width: int) -> nn.Module:
        d = 3 * (32 // pool) ** 2
        layers: list[nn.Module] = [nn.AvgPool2d(pool), nn.Flatten()]
        for _ in range(depth):
            layers.append(nn.Linear(d, width))
            if norm:
                layers.append(nn.LayerNorm(width))
            layers.append(act())
            d = width
        return nn.Sequential(*layers, nn.Linear(width, 10))

    return make


def cnn(
    strides: tuple[int, ...],
    *,
    act: Callable[[], nn.Module] = nn.ReLU,
    pool: int = 1,
    size: int = 3,
    mean: bool = False,
) -> Any:
    """A convolutional network with a flattened or averaged readout."""

    def make(width: int) -> nn.Module:
        layers: list[nn.Module] = [nn.AvgPool2d(pool)]
        channels, side = 3, 32 // pool
        for stride in strides:
            layers += [nn.Conv2d(channels, width, size, stride, size // 2), act()]
            channels, side = width, -(-side // stride)
        if mean:
            layers.append(nn.AdaptiveAvgPool2d(1))
            side = 1
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * side**2, 10))

    return make


def resnet(blocks: int, *, pool: int = 1) -> Any:
    """A residual network with pre-activation blocks, group norm and a flattened readout, at half of the size."""

    def make(width: int) -> nn.Module:
        layers: list[nn.Module] = [nn.AvgPool2d(pool), nn.Conv2d(3, width, 3, 2, 1)]
        for _ in range(blocks):
            norm, first = nn.GroupNorm(1, width), nn.Conv2d(width, width, 3, padding=1)
            body = (norm, nn.ReLU(), first, nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
            layers.append(Residual(*body, factor=1.0))
        return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(width * (32 // pool // 2) ** 2, 10))

    return make


COST = {
    "FC, 4 hidden layers, ReLU": dense(4),
    "FC, 4 hidden layers, LayerNorm, tanh": dense(4, nn.Tanh, norm=True),
    "CNN, 3 layers, strides 1 2 2, flatten": cnn((1, 2, 2)),
    "ResNet, 3 blocks at 16 x 16, flatten": resnet(3),
    "CNN on 8 x 8, 2 layers, mean over pixels": cnn((1, 1), pool=4, mean=True),
}
RANKED = {
    "FC 1 ReLU": dense(1, pool=2),
    "FC 3 ReLU": dense(3, pool=2),
    "FC 6 ReLU": dense(6, pool=2),
    "FC 2 tanh": dense(2, nn.Tanh, pool=2),
    "FC 3 GELU, LayerNorm": dense(3, nn.GELU, norm=True, pool=2),
    "CNN 1": cnn((1,), pool=2),
    "CNN 2": cnn((1, 1), pool=2),
    "CNN 3": cnn((1, 1, 1), pool=2),
    "CNN 3, strides 2 1 2": cnn((2, 1, 2), pool=2),
    "CNN 2, 5 x 5": cnn((1, 2), pool=2, size=5),
    "CNN 2, GELU": cnn((1, 2), pool=2, act=nn.GELU),
    "ResNet 2": resnet(2, pool=2),
}


def write(line: dict[str, Any], arguments: list[str] | None = None) -> None:
    """Print a line and keep it with how it was made: by these arguments, or by those of this process."""
    module = f"mercer_papers.bench.studies.{Path(sys.argv[0]).stem}"
    if arguments is None:
        arguments = sys.argv[1:]
    line |= {
        "command": " ".join(["python", "-m", module, *arguments]),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(line), flush=True)
    append_row(RESULTS, line)


def pictures(train: int, test: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Standardized pictures and labels."""
    data = load("cifar10", rows=(train, test))
    mean, deviation = data.x_train.mean((0, 2, 3), keepdim=True), data.x_train.std((0, 2, 3), keepdim=True)
    return (data.x_train - mean) / deviation, data.y_train, (data.x_test - mean) / deviation, data.y_test


def cost(names: list[str]) -> None:
    """Each architecture in a process of its own that is given the pictures in a file, so that the peak is its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pictures.npy"
        np.save(file, pictures(1000, 10)[0].numpy())
        for name in names or COST:
            if name not in COST:
                raise SystemExit(f"no architecture {name!r}; there are {', '.join(COST)}")
            subprocess.run([sys.executable, __file__, "cost_of", name, str(file)], check=True)


def cost_of(name: str, file: str) -> None:
    """CPU seconds of one Gram matrix, and what it added to the peak memory of the process."""
    x = torch.from_numpy(np.load(file))
    kernel = infinite_width(COST[name](64), example=x[:1])
    kernel(x[:8])
    before, start = read_peak_kib(), time.process_time()
    gram = kernel(x)
    seconds = time.process_time() - start
    peak = read_peak_kib()
    least = float(torch.linalg.eigvalsh(gram.double())[0] / gram.diagonal().mean())
    write({"what": "cost", "name": name, "n": 1000, "dtype": "float32", "cpu_s": round(seconds, 2),
           "peak_mib": round(peak / 1024), "added_mib": round((peak - before) / 1024),
           "least_eigenvalue_over_mean_diagonal": least}, ["cost", name])  # fmt: skip


def read_peak_kib() -> int:
    """Peak memory of this program; that of getrusage is inherited from the process that started it."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1])


def trained_accuracy(model: nn.Module, data: tuple[Tensor, Tensor, Tensor, Tensor], epochs: int, rate: float) -> float:
    """Adam, batches of 50, a cosine schedule, no augmentation; test accuracy at the end."""
    x, y, x_test, y_test = data
    optimizer = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(x) // 50))
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return float((model(x_test).argmax(1) == y_test).float().mean())


def ridge(sizes: list[int], only: str) -> None:
    """Kernel ridge (penalty by leave-one-out) beside the trained network of the same architecture.

    The Gram matrices are computed in float32 and solved in float64. Beyond 2,000 rows only the tangent kernels and the
    Laplacian kernel of a bandwidth near the median distance are run: each costs minutes.
    """
    make = cnn((2, 2, 1))
    for n in sizes:
        data = pictures(n, 1000)
        x, y, x_test, y_test = data
        targets = F.one_hot(y, 10).double() - 0.1
        flat, flat_test = x.flatten(1), x_test.flatten(1)
        # the kernels, each with the rows as it reads them
        spread = float((flat[:200, None] - flat[None, :200]).abs().sum(-1).median())
        kernels = {
            "NTK of the CNN": (infinite_width(make(64), example=x[:1]), x, x_test),
            "NNGP of the CNN": (infinite_width(make(64), kind="nngp", example=x[:1]), x, x_test),
            "NTK of the FC network": (infinite_width(dense(3)(64), example=x[:1]), x, x_test),
        } | {f"Laplacian, {s:g} / median distance": (Laplacian(s / spread), flat, flat_test) for s in (0.1, 0.3, 1, 3)}
        if n > 2000:
            names = ("NTK of the CNN", "NTK of the FC network", "Laplacian, 1 / median distance")
            kernels = {name: kernels[name] for name in names}
        for name, (kernel, rows, new) in kernels.items():
            if not name.startswith(only):
                continue
            start = time.process_time()
            # both blocks in float32; the machine then asks for them by the pictures' numbers
            blocks = torch.cat((kernel(rows), kernel(new, rows)))  # (n + test rows, n)
            gram_s = time.process_time() - start
            stored = FunctionKernel(lambda a, b, blocks=blocks: blocks[a[:, 0].long()][:, b[:, 0].long()])
            numbers = torch.arange(len(blocks), dtype=torch.float64)[:, None]
            machine = KernelRidge(stored, solver="exact").fit(numbers[:n], targets)
            scores = blocks[n:].double() @ machine.weights_ + machine.solution_.mean
            accuracy = float((scores.argmax(1) == y_test).float().mean())
            left_out = float((machine.loo_.argmax(1) == y).float().mean())
            write({"what": "ridge", "name": name, "n": n, "test_rows": len(x_test), "accuracy": round(accuracy, 4),
                   "left_out_accuracy": round(left_out, 4), "penalty": float(machine.penalty_),
                   "gram_cpu_s": round(gram_s, 1), "cpu_s": round(time.process_time() - start, 1)})  # fmt: skip
        if only and not "trained".startswith(only):
            continue
        start, scores = time.process_time(), []
        for seed in range(2):
            torch.manual_seed(seed)
            scores.append(trained_accuracy(make(48), data, 30, 2e-3))
        write({"what": "ridge", "name": "the CNN of width 48, trained, 2 seeds", "n": n, "test_rows": len(x_test),
               "accuracy": round(statistics.mean(scores), 4), "each": [round(s, 4) for s in scores],
               "cpu_s": round(time.process_time() - start, 1)})  # fmt: skip


def ranking(rows: int) -> None:
    """Complexity before training, left-out accuracy of kernel ridge, and trained accuracy."""
    data = pictures(rows, 2000)
    x, y = data[0], data[1]
    targets = F.one_hot(y, 10).float() - 0.1
    for name, make in RANKED.items():
        start = time.process_time()
        # before training: complexity, and kernel ridge with the NTK
        kernel = infinite_width(make(64), example=x[:1]).normalized()
        row = spectral.compare({name: kernel}, x, y).iloc[0]
        complexity, ratio = float(row["complexity"]), float(row["ratio"])
        machine = KernelRidge(kernel, solver="exact").fit(x, targets)
        left_out = float((machine.loo_.argmax(1) == y).float().mean())
        kernel_s, scores = time.process_time() - start, []
        for seed in range(2):
            torch.manual_seed(seed)
            scores.append(trained_accuracy(make(48), data, 25, 2e-3))
        write({"what": "ranking", "name": name, "n": rows, "complexity": complexity, "ratio": ratio,
               "left_out_accuracy": left_out,
               "trained_accuracy": round(statistics.mean(scores), 4), "each": [round(s, 4) for s in scores],
               "kernel_cpu_s": round(kernel_s, 1), "cpu_s": round(time.process_time() - start, 1)})  # fmt: skip


def drift() -> None:
    """Full-batch gradient descent on squared loss; the tangent kernel before and after, beside the limit."""
    x, y = pictures(40, 10)[:2]
    targets = (2.0 * (y < 5) - 1)[:, None]
    make = dense(2, pool=8)
    limit = infinite_width(make(64), example=x[:1], weight_var=2.0, bias_var=0.0)
    exact = limit(x)
    # a stable rate, by the largest eigenvalue of the limit
    rate = 0.5 / float(torch.linalg.eigvalsh(exact.double())[-1])
    for width in (32, 128, 512):
        rows = []
        for seed in range(3):
            torch.manual_seed(seed)
            model = make(width)
            factors = draw_weights(model, limit.layers)
            first = empirical_ntk(model, model(x), factors)
            parameters = [(factors[name], p) for name, p in model.named_parameters() if factors[name] > 0]
            for _ in range(400):  # steps of the NTK parametrization: each rate times the squared factor
                loss = (model(x)[:, :1] - targets).square().sum() / 2
                gradients = torch.autograd.grad(loss, [p for _, p in parameters])
                with torch.no_grad():
                    for (factor, p), g in zip(parameters, gradients, strict=True):
                        p -= rate * factor * g
            last = empirical_ntk(model, model(x), factors)
            rows.append([float((first - exact).norm() / exact.norm()), float((last - first).norm() / first.norm()),
                         float((last - exact).norm() / exact.norm()), float(loss)])  # fmt: skip
        before, moved, after, loss_ = (statistics.mean(column) for column in zip(*rows, strict=True))
        write({"what": "drift", "width": width, "from_limit_at_start": round(before, 4), "moved": round(moved, 4),
               "from_limit_after": round(after, 4), "loss_after": loss_, "seeds": len(rows)})  # fmt: skip


def render() -> dict[str, str]:
    """The tables of docs/tutorials/infinite-width.md; of stored lines about one thing the last counts."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in read_rows(RESULTS):
        lines[line["what"], line.get("name"), line.get("n"), line.get("width")] = line

    def of(what: str) -> list[dict[str, Any]]:
        return [line for line in lines.values() if line["what"] == what]

    def table(*rows: list[str]) -> str:
        head, *body = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([head, "|" + "---|" * len(rows[0]), *body])

    # rules: the error of the empirical NTK by width, and how fast it falls
    rules = [["network", *(f"{w:,}" for w in WIDTHS), "slope", "slope, NNGP"]]
    for line in of("rule"):
        errors = [f"{error:.3f}" for error in line["ntk_errors"]]
        rules.append([line["name"], *errors, f"{line['ntk_slope']:.2f}", f"{line['nngp_slope']:.2f}"])
    costs = [["network", "1,000 pictures, measured", "peak memory added", "5,000, times 25", "20,000, times 400"]]
    for line in of("cost"):
        seconds, memory = line["cpu_s"], "not measured"
        if line.get("added_mib") is not None:
            memory = f"{line['added_mib']} MiB"
        costs.append([line["name"], *(format_time(times * seconds) for times in (1, 25, 400))])
        costs[-1].insert(2, memory)
    # ridge: one row for each number of pictures, of the Laplacian kernel the bandwidth with most left-out rows right
    ridges = of("ridge")
    names = ["NTK of the CNN", "NNGP of the CNN", "NTK of the FC network", "Laplacian", "the CNN"]
    accuracies = [["rows", *names[:3], "Laplacian, bandwidth by leave-one-out", "the CNN, width 48, trained"]]
    for n in sorted({line["n"] for line in ridges}):
        row = [f"{n:,}"]
        for name in names:
            runs = [line for line in ridges if line["n"] == n and line["name"].startswith(name)]
            cell = "not run"
            if runs:
                best = max(runs, key=lambda line: line.get("left_out_accuracy", 0.0))
                cell = f"{100 * best['accuracy']:.1f} %"
            row.append(cell)
        accuracies.append(row)
    # ranking: the networks by trained accuracy, and how well what is known before training ranks them
    ranked = sorted(of("ranking"), key=lambda line: -line["trained_accuracy"])
    rank_rows = [["network", "complexity", "ratio", "left out", "trained"]]
    for line in ranked:
        shares = [f"{100 * line[name]:.1f} %" for name in ("left_out_accuracy", "trained_accuracy")]
        rank_rows.append([line["name"], f"{line['complexity']:,.0f}", f"{line['ratio']:.3f}", *shares])
    correlations = []
    for name in ("complexity", "ratio", "left_out_accuracy"):
        test = spearmanr([line[name] for line in ranked], [line["trained_accuracy"] for line in ranked])
        correlations.append(f"{name.replace('_', ' ')} {test.statistic:.2f} (p = {test.pvalue:.2f})")
    sentence = f"Spearman's correlation with trained accuracy over {len(ranked)} networks: {', '.join(correlations)}."
    # drift: distances of tangent kernels by width
    drifts = [["width", "from the limit, at the start", "moved by training", "from the limit, after", "loss after"]]
    for line in of("drift"):
        distances = [f"{line[name]:.3f}" for name in ("from_limit_at_start", "moved", "from_limit_after")]
        drifts.append([str(line["width"]), *distances, f"{line['loss_after']:.2f}"])
    return {
        "rules": table(*rules),
        "cost": table(*costs),
        "ridge": table(*accuracies),
        "ranking": table(*rank_rows) + "\n\n" + sentence,
        "drift": table(*drifts),
    }


def format_time(seconds: float) -> str:
    """Seconds, minutes or hours, in three digits."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    if seconds < 6000:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


def fill(page: str) -> str:
    """The page with every table between ``<!-- infinite width: NAME -->`` and ``<!-- end -->`` written anew."""
    for name, text in render().items():
        marker = f"<!-- infinite width: {name} -->"
        before, after = page.split(f"{marker}\n")
        page = f"{before}{marker}\n\n{text}\n\n<!-- end -->{after.split('<!-- end -->', 1)[1]}"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cost", "cost_of", "ridge", "ranking", "drift", "tables"])
    parser.add_argument("names", nargs="*", help="architectures of cost, or the page of tables")
    parser.add_argument("--rows", nargs="*", type=int, default=[100, 500, 5000])
    parser.add_argument("--only", default="", help="kernels of ridge whose names start so")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "cost":
        cost(options.names)
    elif options.what == "cost_of":
        cost_of(*options.names)
    elif options.what == "ridge":
        ridge(options.rows, options.only)
    elif options.what == "ranking":
        ranking(options.rows[0] if len(options.rows) == 1 else 500)
    elif options.what == "drift":
        drift()
    else:
        page = Path(options.names[0])
        page.write_text(fill(page.read_text()))


if __name__ == "__main__":
    main()
