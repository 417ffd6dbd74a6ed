"""Uncertainty of a ResNet-20 of CIFAR-10 with 270,000 weights: log-loss beside a temperature, strangers beside rivals.

    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.uncertainty_of_resnet20 [--rows N] [--test N] [--all]

The network has seen the training part: 1,000 rows of the test part choose, others are scored. Strangers are pictures of
CIFAR-100, noise, and the scored rows blurred and rotated. There is one set of weights, so no ensemble. --all adds the
Laplace posterior of all weights (k = 20 by a small network), which takes minutes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer import metrics
from mercer.bayes import Familiarity, LinearizedLaplace, TemperatureScaling
from mercer_papers import data
from mercer_papers.data import CifarResNet

MEAN = torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1)


def blurred(x: Tensor, spread: float = 2.0) -> Tensor:
    """A Gaussian blur, nine pixels wide."""
    weights = torch.exp(-torch.arange(-4.0, 5.0).square() / (2 * spread**2))
    column = (weights / weights.sum()).reshape(1, 1, 9, 1).repeat(x.shape[1], 1, 1, 1)
    down = F.conv2d(F.pad(x, (0, 0, 4, 4), mode="reflect"), column, groups=x.shape[1])
    return F.conv2d(F.pad(down, (4, 4, 0, 0), mode="reflect"), column.mT, groups=x.shape[1])


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(part) for part in x.split(250)])


def timed(work: Callable[[], object]) -> tuple[object, float]:
    start = time.process_time()
    return work(), time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1500, help="training rows of the fits")
    parser.add_argument("--test", type=int, default=1500, help="test rows scored")
    parser.add_argument("--strangers", type=int, default=300, help="rows of each kind")
    parser.add_argument("--all", action="store_true", help="the Laplace posterior of all weights, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pictures = data.load("cifar10", rows=(options.rows, 1000 + options.test))
    x, test = ((part - MEAN) / DEVIATION for part in (pictures.x_train, pictures.x_test))
    model = CifarResNet(20)
    model.load_state_dict(data.resnet20_weights(), strict=False)
    model.eval()
    train, val = (x, pictures.y_train), (test[:1000], pictures.y_test[:1000])
    scored, truth = test[1000:], pictures.y_test[1000:]
    logits, forward = timed(lambda: outputs(model, scored))

    posteriors = {
        "temperature": TemperatureScaling(model),
        "Laplace, last layer": LinearizedLaplace(model, parameters="last", generator=torch.Generator().manual_seed(0)),
    }
    if options.all:
        posteriors["Laplace, all weights"] = LinearizedLaplace(
            model, parameters="all", eigenfunctions="network", iterations=0, generator=torch.Generator().manual_seed(0)
        )
    probabilities = {"network": logits.softmax(1)}
    cost = {}
    for name, posterior in posteriors.items():
        _, fit = timed(lambda posterior=posterior: posterior.fit(train, val))
        probabilities[name], predict = timed(lambda posterior=posterior: posterior.predict_proba(scored))
        cost[name] = {"fit, CPU s": round(fit, 1), "predict, forward passes": round(predict / forward, 2)}
    losses = {name: -p.gather(1, truth[:, None]).log()[:, 0] for name, p in probabilities.items()}
    below = {name: losses["temperature"] - loss for name, loss in losses.items()}
    print(
        json.dumps(
            {
                name: {
                    "NLL": round(float(loss.mean()), 4),
                    "below temperature's": [
                        round(float(below[name].mean()), 4), round(float(below[name].std() / len(truth) ** 0.5), 4)
                    ],
                    "ECE": round(metrics.ece(probabilities[name], truth), 4),
                    **cost.get(name, {}),
                }
                for name, loss in losses.items()
            },
            indent=1,
        )
    , flush=True)  # fmt: skip
    print(json.dumps(unfamiliar(model, train, val, scored, logits, forward, options.strangers), indent=1))


def unfamiliar(
    model: nn.Module,
    train: tuple[Tensor, Tensor],
    val: tuple[Tensor, Tensor],
    scored: Tensor,
    logits: Tensor,
    forward: float,
    n: int,
) -> dict[str, object]:
    """AUROC of the familiar rows against each kind of strangers."""
    plain = scored[:n] * DEVIATION + MEAN
    noise = torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    strangers = {
        "CIFAR-100": (data.load("cifar100_subset", rows=(1, n)).x_test[:n] - MEAN) / DEVIATION,
        "noise": (noise - MEAN) / DEVIATION,
        "blurred": (blurred(plain) - MEAN) / DEVIATION,
        "rotated": scored[:n].rot90(1, (2, 3)),
    }
    found = {name: outputs(model, rows) for name, rows in strangers.items()}
    familiarity, fit = timed(lambda: Familiarity(model, generator=torch.Generator().manual_seed(0)).fit(train, val))
    own, score = timed(lambda: familiarity.score(scored))
    scores: dict[str, Callable[[Tensor], Tensor]] = {
        "max probability": lambda f: -f.softmax(1).amax(1),
        "entropy": lambda f: torch.distributions.Categorical(logits=f).entropy(),
        "energy": lambda f: -f.logsumexp(1),
    }
    rows = {
        name: {kind: round(metrics.auroc(measure(logits), measure(f)), 3) for kind, f in found.items()}
        for name, measure in scores.items()
    }
    rows["Familiarity"] = {
        kind: round(metrics.auroc(own, familiarity.score(rows)), 3) for kind, rows in strangers.items()
    }
    return {
        **rows,
        "Familiarity's familiar rows above 0.5": round(float((own > 0.5).float().mean()), 3),
        "fit, CPU s": round(fit, 1), "score, forward passes": round(score / forward, 2),
    }  # fmt: skip


if __name__ == "__main__":
    main()
