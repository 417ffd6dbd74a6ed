"""How many random features, each a forward pass, reach the error of k = 10 learned eigenfunctions?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mercer.features import NeuralEigenfunctions
from mercer.figures import plots
from mercer.figures.theme import LIGHT, Figure
from mercer.kernels import MonteCarloNNGP

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..data import load
from ..results import Result
from .algorithm1 import algorithm_1, small_mlp
from .measures import SEEDS, best_rank, relative_error, rng

K = 10
ALGORITHM_1 = "digits, two-layer network, Algorithm 1"
SIZES = {"smoke": (60, 40, 64, 20), "small": (800, 300, 512, 500), "paper": (1400, 397, 4096, 5000)}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """The kernel of a random two-layer network on digits."""
    train, test, samples, steps = SIZES[scale]
    settings = {"rows": train, "test_rows": test, "samples": samples, "steps": steps, "k": K}
    alone = {"method": "Algorithm 1", "steps": 20 if scale == "smoke" else 2000}
    return [
        Cell(entry.id, row=row, column="passes", seeds=SEEDS[scale], settings={**settings, **changes})
        for row, changes in (("digits, two-layer network", {}), (ALGORITHM_1, alone))
    ]


def run(cell: Cell) -> Outcome:
    """The least power of two of random features that is as good on new rows; the claim holds where it exceeds k."""
    settings = cell.settings
    data = load("digits", rows=(settings["rows"], settings["test_rows"]), seed=cell.seed)
    x, test = (part.flatten(1).to(cell.device) for part in (data.x_train, data.x_test))
    samples = settings["samples"]
    kernel = MonteCarloNNGP(lambda: _network().to(x.device), samples, generator=rng(cell.seed))
    if "method" in settings:
        f = algorithm_1(kernel, K, lambda: small_mlp(64), steps=settings["steps"], seed=cell.seed).fit(x)
        name, text = "Algorithm 1, k = 10", f"{K} functions, one pass of a small network each"
    else:
        f = NeuralEigenfunctions(kernel, K, steps=settings["steps"], generator=rng(cell.seed)).fit(x)
        name, text = "Mercer, distilled, k = 10", f"{K} functions; one distilled network gives these in one pass"
    # the error of the functions, and of more and more random features
    with torch.no_grad():
        truth = _draw_outputs(test, 4 * samples, cell.seed + 200)  # networks that nothing was distilled from
        gram = truth @ truth.mT / truth.shape[1]
        our_error = relative_error(f.kernel(test), gram)
        fresh = _draw_outputs(test, samples, cell.seed + 100)
        sizes = [2**power for power in range(1, samples.bit_length())]
        errors = [relative_error(fresh[:, :s] @ fresh[:, :s].mT / s, gram) for s in sizes]
    # how many features are as good
    needed, count = 2 * samples, f"more than {samples}"
    for s, error in zip(sizes, errors, strict=True):
        if error <= our_error:
            needed, count = s, str(s)
            break
    return Outcome(
        value=float(needed),
        values={
            "error of k = 10": our_error,
            "best of rank 10": best_rank(gram, K),
            "random features, S = 8": errors[min(2, len(errors) - 1)],
        },
        curves={
            "random features": {"x": [float(s) for s in sizes], "y": errors},
            name: {"x": [float(K)], "y": [our_error]},
        },
        passed=needed > K,
        note=f"{count} random features for the error of {text}",
    )


def _draw_outputs(x: Tensor, count: int, seed: int) -> Tensor:  # (n, d) -> (n, count)
    """Outputs of so many random networks, one a column."""
    outputs: Tensor = (
        MonteCarloNNGP(lambda: _network().to(x.device), count, generator=rng(seed)).features(x)[:, 0] * count**0.5
    )
    return outputs


def _network() -> nn.Module:
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
    for layer in network:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=(2.0 / layer.in_features) ** 0.5)
            nn.init.zeros_(layer.bias)
    return network


def draw(results: list[Result]) -> Figure:
    """Kernel error against forward passes."""
    curves = {name: curve for result in results if result.seed == 0 for name, curve in result.curves.items()}
    figure = plots.lines(
        curves, x_label="forward passes", y_label="relative error of the kernel", x_log=True, y_log=True
    )
    for number, (name, point) in enumerate(curves.items()):
        if name.endswith("k = 10"):
            figure.axes[0].scatter(point["x"], point["y"], color=LIGHT.series[number], zorder=3)
    return figure
