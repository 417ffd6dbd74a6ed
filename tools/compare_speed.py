"""CPU of this version beside an older one, case by case, in one run.

    git worktree add --detach OLD COMMIT
    OMP_NUM_THREADS=1 python tools/compare_speed.py OLD/src [CASE ...] [--rounds 5]

Each round starts one process for each version and case, in turns; a process warms up, then repeats the work and reports
its least CPU time. The ratio is the least of the new version over the least of the old one: a shared machine makes
single times longer, never shorter. A case uses only names that both versions have.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from torch import nn

Work = Callable[[], object]


def head(classes: int) -> Work:
    """Forward and backward of the default head on 128 embeddings of width 64."""
    from mercer.nn import KernelClassifier

    layer, x, y = KernelClassifier(64, classes), torch.randn(128, 64, requires_grad=True), torch.arange(128) % classes

    def step() -> None:
        nn.functional.cross_entropy(layer(x), y).backward()

    return step


def optimizer(network: str) -> Work:
    """Twenty steps of FunctionSpaceSGD at its default."""
    from mercer.optim import FunctionSpaceSGD

    if network == "mlp":
        x = torch.rand(64, 784)
        layers = [nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)]
    else:
        x = torch.rand(64, 1, 16, 16)
        layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1)]
        layers += [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    model, y = nn.Sequential(*layers), torch.arange(64) % 10
    optimizer = FunctionSpaceSGD(model.parameters(), model=model)

    def steps() -> None:
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    return steps


def ridge(solver: str) -> Work:
    """Fit and predict digits one against the rest; ``loo`` chooses the penalty and the kernel."""
    from mercer.kernels import RBF
    from mercer.machines import KernelRidge

    x, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(x) / 16, nn.functional.one_hot(torch.tensor(labels)).double()
    if solver == "loo":
        return lambda: KernelRidge(penalty="loo", solver="exact").fit(x, y).predict(x)
    return lambda: KernelRidge(RBF(0.1), penalty=1e-2, solver=solver, random_state=0).fit(x, y).predict(x)


def posterior(kind: str) -> Work:
    """Fit a posterior of a small network to digits and predict them."""
    from mercer.bayes import Familiarity, KroneckerLaplace, LinearizedLaplace

    x, y = map(torch.tensor, load_digits(return_X_y=True))
    x = x.float() / 16
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    adam = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100):
        adam.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        adam.step()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 256)
    if kind == "familiarity":
        return lambda: Familiarity(model).fit(loader).score(x)
    if kind == "kronecker":
        return lambda: KroneckerLaplace(model, prior_precision=1.0).fit(loader).predict_proba(x)
    return lambda: (
        LinearizedLaplace(model, k=20, parameters=kind, prior_precision=1.0).fit(loader).predict_proba(x[:500])
    )


def table(name: str) -> Work:
    """Fit a table that comes with scikit-learn."""
    from mercer.tabular import TabularClassifier, TabularRegressor

    load = {"wine": load_wine, "cancer": load_breast_cancer, "diabetes": load_diabetes}[name]
    estimator = TabularRegressor if name == "diabetes" else TabularClassifier
    x, y = load(return_X_y=True, as_frame=True)
    return lambda: estimator().fit(x, y)


def network_of_kernels() -> Work:
    """Fit the default layer-wise classifier to digits."""
    from mercer.layerwise import KernelNetworkClassifier

    x, y = load_digits(return_X_y=True)
    return lambda: KernelNetworkClassifier(random_state=0).fit(x, y)


def spectrum() -> Work:
    """Spectrum and complexity of digits under a Gaussian kernel."""
    from mercer.kernels import RBF
    from mercer.spectral import analyze

    x, y = map(torch.tensor, load_digits(return_X_y=True))

    def read() -> None:
        result = analyze(RBF(0.1), x / 16, y)
        _ = result.projections, result.complexity

    return read


def tangent_kernel() -> Work:
    """The analytic NTK of 1,797 digits."""
    from mercer.kernels import NTK

    x = torch.tensor(load_digits(return_X_y=True)[0]) / 16
    return lambda: NTK(3, bias_var=0.1)(x)


CASES: dict[str, Callable[[], Work]] = {
    "head, 100 classes": lambda: head(100),
    "head, 1,000 classes": lambda: head(1000),
    "head, 4,000 classes": lambda: head(4000),
    "FunctionSpaceSGD, MLP": lambda: optimizer("mlp"),
    "FunctionSpaceSGD, CNN": lambda: optimizer("cnn"),
    "ridge, exact": lambda: ridge("exact"),
    "ridge, loo": lambda: ridge("loo"),
    "ridge, landmarks": lambda: ridge("landmarks"),
    "ridge, eigenpro": lambda: ridge("eigenpro"),
    "Laplace, all": lambda: posterior("all"),
    "Laplace, last": lambda: posterior("last"),
    "Laplace, Kronecker": lambda: posterior("kronecker"),
    "Familiarity": lambda: posterior("familiarity"),
    "table, wine": lambda: table("wine"),
    "table, cancer": lambda: table("cancer"),
    "table, diabetes": lambda: table("diabetes"),
    "layer-wise, digits": network_of_kernels,
    "spectrum": spectrum,
    "NTK": tangent_kernel,
}


def measure(case: str) -> float:
    """Least CPU seconds of a case in this process, over about a second and three repeats at least."""
    torch.manual_seed(0)
    work = CASES[case]()
    work()  # warm up: imports, caches
    seconds: list[float] = []
    while len(seconds) < 3 or sum(seconds) < 1:
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def main() -> None:
    """Run the cases in turns and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="src folder of the older version")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="beginnings of names of cases; all unless named")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # a case to time in this process
    asked = parser.parse_args()
    if asked.measure:
        sys.stdout.write(f"{measure(asked.measure)}\n")
        return
    sources = {"old": asked.old, "new": str(Path(__file__).parents[1] / "src")}
    sys.stdout.write(f"{'case':24}{'old s':>10}{'new s':>10}{'new / old':>11}\n")
    for case in CASES:
        if asked.cases and not case.startswith(tuple(asked.cases)):
            continue
        seconds: dict[str, list[float]] = {"old": [], "new": []}
        for turn in range(asked.rounds):
            for version in sorted(sources, reverse=turn % 2 == 0):
                command = [sys.executable, __file__, "-", "--measure", case]
                environment = {**os.environ, "PYTHONPATH": sources[version], "PYTHONWARNINGS": "ignore"}
                answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                seconds[version].append(float(answer.stdout))
        old, new = min(seconds["old"]), min(seconds["new"])
        sys.stdout.write(f"{case:24}{old:10.4f}{new:10.4f}{new / old:11.2f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
