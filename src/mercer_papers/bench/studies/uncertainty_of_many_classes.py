"""Laplace posteriors beside laplace-torch at many classes: CPU time, memory, and how far the answers are apart.

    python -m mercer_papers.bench.studies.uncertainty_of_many_classes 128 512
    python -m mercer_papers.bench.studies.uncertainty_of_many_classes --show

A network 64-32-c on rows around c centers; four rows of a class to learn from. All posteriors have prior precision 1
and predict 100 new rows, ten at a time, by the probit link: those of the last layer's weights (laplace-torch with the
full matrix), and those of all weights by Kronecker factors (``--last`` leaves these out). Each runs in a process of its
own that may take 8 GB. Lines take the place of older ones of the same method and number of classes in
src/mercer_papers/bench/results/uncertainty_of_many_classes.jsonl. It runs where ``laplace`` can be imported.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.bayes import KroneckerLaplace, LinearizedLaplace
from mercer_papers.bench.record import read_rows, replace_rows

RESULTS = Path(__file__).parents[1] / "results" / "uncertainty_of_many_classes.jsonl"
CLASSES = (128, 512, 1000, 3100)
PAIRS = (("laplace-torch, last layer", "LinearizedLaplace"), ("laplace-torch, kron", "KroneckerLaplace"))
MEMORY = 8 * 2**30
LIMIT = 600.0  # seconds for one process
WIDTH = 32


def make_task(c: int) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A trained network, its rows and labels, and new rows."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(c, 64, generator=generator)
    y = torch.arange(4 * c) % c
    x, new = (centers[t] + 0.7 * torch.randn(len(t), 64, generator=generator) for t in (y, y[:100]))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, c))
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    for _ in range(200):
        rows = torch.randint(len(x), (256,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(network(x[rows]), y[rows]).backward()
        optimizer.step()
    return network.eval(), x, y, new


def measure(who: str, c: int, answers: str) -> dict[str, Any]:
    """CPU seconds to fit and to predict, GB added to the peak of memory; the probabilities go to a file."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    network, x, y, new = make_task(c)
    if who.startswith("laplace-torch"):
        from laplace import Laplace  # its import is not timed
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    if who.startswith("laplace-torch"):
        subset, structure = ("all", "kron") if who.endswith("kron") else ("last_layer", "full")
        # theirs: fitted on a loader, then probabilities by the probit link
        posterior: Any = Laplace(
            network, "classification", subset_of_weights=subset, hessian_structure=structure, prior_precision=1.0
        )
        posterior.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=256))
        fitted = time.process_time()
        with torch.no_grad():
            parts = [posterior(part, link_approx="probit") for part in new.split(10)]
    else:
        # ours
        kind = LinearizedLaplace if who == "LinearizedLaplace" else KroneckerLaplace
        posterior = kind(network, prior_precision=1.0).fit((x, y))
        fitted = time.process_time()
        parts = [posterior.predict_proba(part) for part in new.split(10)]
    end = time.process_time()
    save_file({"p": torch.cat(parts).double()}, answers)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    return {"who": who, "classes": c, "fit": fitted - start, "predict": end - fitted, "peak_gb": peak}


def show(lines: list[dict[str, Any]]) -> None:
    """One line of the table for each run."""
    for line in lines:
        where = f"{line['classes']:5d} classes, {line['who']:26s}"
        if "failed" in line:
            print(f"{where} {line['failed']}")
            continue
        distance = f", farthest probability {line['farthest']:.1e}" if "farthest" in line else ""
        print(f"{where} fit {line['fit']:.2f} CPU s, predict {line['predict']:.2f}, {line['peak_gb']:.2f} GB{distance}")


def main() -> None:
    """Measure all that is not stored, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", nargs="*", type=int, default=list(CLASSES))
    parser.add_argument("--one", nargs=3, metavar=("WHO", "CLASSES", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--last", action="store_true", help="The last layer alone, without Kronecker factors.")
    parser.add_argument("--show", action="store_true", help="Measure nothing.")
    arguments = parser.parse_args()
    if arguments.one:
        who, c, answers = arguments.one
        print(json.dumps(measure(who, int(c), answers)))
        return
    lines = read_rows(RESULTS)
    methods = PAIRS[:1] if arguments.last else PAIRS
    pairs = [(c, *pair) for c in arguments.classes for pair in methods if not arguments.show]
    for c, rival, ours in pairs:
        # each of a pair in a process of its own, which leaves its answers in a file
        with tempfile.TemporaryDirectory() as folder:
            answers = {who: Path(folder) / f"{i}.safetensors" for i, who in enumerate((rival, ours))}
            for who, answer in answers.items():
                line = {"who": who, "classes": c}
                command = [sys.executable, "-m", __spec__.name, "--one", who, str(c), str(answer)]
                try:
                    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
                    line = json.loads(run.stdout.splitlines()[-1])
                except subprocess.TimeoutExpired:
                    line["failed"] = f"not done after {LIMIT:g} s of the clock, beside other work"
                except subprocess.CalledProcessError as error:
                    line["failed"] = error.stderr.splitlines()[-1][:200]
                # how far the answers of both are apart, once both are there
                if who == ours and all(path.exists() for path in answers.values()):
                    p, q = (load_file(path)["p"] for path in answers.values())
                    line["farthest"] = float((p - q).abs().max())
                lines = [old for old in lines if (old["who"], old["classes"]) != (who, c)] + [line]
                replace_rows(RESULTS, lines)
    show(sorted(lines, key=lambda line: line["classes"]))


if __name__ == "__main__":
    main()
