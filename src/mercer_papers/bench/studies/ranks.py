"""Two ranks on two cores beside one process with one thread, for the methods that are sums over rows.

    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.ranks
    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.ranks --scale 0.1 --repeats 1

The ranks meet by a file. Each method runs once to warm up, then ``--repeats`` times; a run lasts from a collective that
all ranks have reached to the end of the last rank, and the shortest counts. Data are random: only the sizes matter. The
goal is a ratio of 1.4 on a quiet machine. ``CPU ratio`` is the CPU time of one process over that of the busier rank:
what two cores could give. ``largest difference`` is that between the answers, relative to the largest; the classifier
sums in float32 beyond 5,000 rows, and then differs by as much when one process takes other blocks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch import distributed as dist

from mercer import bayes, distributed, layerwise, spectral
from mercer.features import NeuralEigenfunctions, Nystrom
from mercer.kernels import RBF, ReLUGram

GOAL = 1.4
Work = Callable[[], Tensor]


def works(scale: float) -> dict[str, Work]:
    """Each method on this rank's rows; what it gives is the same on all ranks."""
    draw = torch.Generator().manual_seed(0)

    def rows(n: int, d: int) -> Tensor:
        return torch.randn(round(n * scale), d, generator=draw, dtype=torch.float64)

    # the rows of each method and a network, drawn alike on all ranks
    many, x, wide, z = rows(20_000, 32), rows(8000, 64), rows(60_000, 32), rows(20_000, 20)
    labels = (many[:, :4].argmax(1) + (many[:, 4] > 0)).numpy()
    network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)).double()
    for p in network.parameters():
        nn.init.normal_(p, 0, 0.2, generator=draw)
    answers = network(z).argmax(1)

    def make_generator() -> torch.Generator:
        return torch.Generator().manual_seed(0)

    def own(data: Tensor) -> slice:
        return distributed.shard(len(data))

    def matmul() -> Tensor:
        mine = RBF(0.02).matmul(x[own(x)], None, x[own(x), :8].contiguous(), over_ranks=True)
        return distributed.gather_rows(mine)

    def analyze() -> Tensor:
        spectrum = spectral.analyze(ReLUGram(), x[own(x)], x[own(x), 0].contiguous(), k=20)
        return torch.tensor([spectrum.complexity, *spectrum.eigenvalues.tolist()], dtype=torch.float64)

    def nystrom() -> Tensor:
        return Nystrom(RBF(0.02), 512, generator=make_generator()).fit(wide[own(wide)]).eigenvalues

    def eigenfunctions() -> Tensor:
        return (
            NeuralEigenfunctions(RBF(0.02), 16, landmarks=256, generator=make_generator())
            .fit(wide[own(wide)])
            .eigenvalues
        )

    def classifier() -> Tensor:
        model = layerwise.KernelNetworkClassifier(random_state=0).fit(many[own(many)].numpy(), labels[own(many)])
        return torch.from_numpy(model.predict_proba(many[:500].numpy()))

    def laplace() -> Tensor:
        model = bayes.LinearizedLaplace(
            network, parameters="all", k=20, prior_precision=1.0, batch_size=256, generator=make_generator()
        )
        return model.fit((z[own(z)], answers[own(z)])).eigenvalues_

    return {
        f"kernel matmul, n = {len(x)}": matmul,
        f"spectral.analyze, n = {len(x)}": analyze,
        f"Nystrom, n = {len(wide)}, m = 512": nystrom,
        f"NeuralEigenfunctions by landmarks, n = {len(wide)}": eigenfunctions,
        f"KernelNetworkClassifier, n = {len(many)}": classifier,
        f"LinearizedLaplace, n = {len(z)}, k = 20": laplace,
    }


def measure(folder: Path, rank: int, ranks: int, scale: float, repeats: int) -> None:
    """Every work as one of the ranks; seconds and answers in ``<ranks>.<rank>.json``."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    store = dist.FileStore(str(folder / f"store{ranks}"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    lines = {}
    # each work once to warm up, then timed between two barriers
    for name, work in works(scale).items():
        answer, times, spent = work(), [], []
        for _ in range(repeats):
            dist.barrier()
            start, cpu = time.perf_counter(), time.process_time()
            work()
            spent.append(time.process_time() - cpu)
            dist.barrier()
            times.append(time.perf_counter() - start)
        busiest = max(distributed.gather_json(min(spent)))
        lines[name] = {"seconds": min(times), "cpu": busiest, "answer": answer.double().flatten().tolist()}
    (folder / f"{ranks}.{rank}.json").write_text(json.dumps(lines))
    dist.destroy_process_group()


def run(folder: Path, ranks: int, scale: float, repeats: int) -> dict[str, dict]:
    """Start so many ranks and return the numbers of rank 0."""
    command = [sys.executable, __file__, "--scale", str(scale), "--repeats", str(repeats), "--folder", str(folder)]
    started = [subprocess.Popen([*command, "--rank", str(rank), "--ranks", str(ranks)]) for rank in range(ranks)]
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit(f"ranks: every rank must end well; got exit codes {codes}.")
    return json.loads((folder / f"{ranks}.0.json").read_text())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of rows")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank is not None:
        measure(asked.folder, asked.rank, asked.ranks, asked.scale, asked.repeats)
        return
    # one process, then two ranks
    with tempfile.TemporaryDirectory() as folder:
        single, two = (run(Path(folder), ranks, asked.scale, asked.repeats) for ranks in (1, 2))
    heads = (
        f"{'1 process':>12}{'2 ranks':>12}{'ratio':>8}  {f'goal {GOAL}':<10}{'CPU ratio':>10}{'largest difference':>20}"
    )
    print(f"{'':48}{heads}")
    # times, and how far the answers of both are apart
    for name, alone in single.items():
        shared = two[name]
        ratio = alone["seconds"] / shared["seconds"]
        a, b = (torch.tensor(side["answer"], dtype=torch.float64) for side in (alone, shared))
        gap = float((a - b).abs().max() / a.abs().max())
        reached = "reached" if ratio >= GOAL else "missed"
        times = f"{alone['seconds']:10.2f} s{shared['seconds']:10.2f} s{ratio:8.2f}  {reached:<10}"
        print(f"{name:48}{times}{alone['cpu'] / shared['cpu']:10.2f}{gap:20.1e}")


if __name__ == "__main__":
    main()
