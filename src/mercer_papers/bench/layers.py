"""Which layer suits the labels: the ranking of `spectral.layers` and its rivals against what a probe finds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from mercer.kernels.functionals import cka
from mercer.signals.capture import capture
from mercer.spectral import layers

from ..data import load, normalised, published_resnet20
from .timing import Case, Peer

BLOCKS = ["conv1", *(f"layer{stage}.{block}" for stage in (1, 2, 3) for block in (0, 1, 2))]


@dataclass(frozen=True)
class Probed:
    """A trained network, rows to read its blocks by, rows to score a probe on, and the probe's accuracy by block."""

    model: nn.Module
    x: Tensor
    y: Tensor
    new: tuple[Tensor, Tensor]
    found: dict[str, float]


def _prepare(name: str) -> Probed:
    model = published_resnet20().eval()
    if name == "cifar10":  # the network has seen the training part
        pictures = load(name, rows=(1, 5000))
        x, y = pictures.x_test[:2000], pictures.y_test[:2000]
        new = (pictures.x_test[2000:], pictures.y_test[2000:])
    else:
        pictures = load(name)
        x, y, new = pictures.x_train, pictures.y_train, (pictures.x_test, pictures.y_test)
    x, new = normalised(x), (normalised(new[0]), new[1])
    return Probed(model, x, y, new, _probe_scores(model, x, y, new))


def _pool_blocks(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    parts: dict[str, list[Tensor]] = {name: [] for name in BLOCKS}
    with torch.no_grad(), capture(model, BLOCKS) as captured:
        for batch in x.split(250):
            model(batch)
            for name in BLOCKS:
                parts[name].append(captured[name].output.mean((2, 3)))
                captured[name].outputs.clear()
                captured[name].inputs.clear()
    return {name: torch.cat(part) for name, part in parts.items()}


def _probe_scores(model: nn.Module, x: Tensor, y: Tensor, new: tuple[Tensor, Tensor]) -> dict[str, float]:
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train, test = _pool_blocks(model, x), _pool_blocks(model, new[0])
    scores = {}
    for name in BLOCKS:
        probe = make_pipeline(StandardScaler(), RidgeClassifierCV(np.logspace(-2, 4, 7)))
        scores[name] = float(probe.fit(train[name].numpy(), y.numpy()).score(test[name].numpy(), new[1].numpy()))
    return scores


def _by_cka(data: Probed) -> dict[str, float]:
    labels = nn.functional.one_hot(data.y).double()
    return {
        name: float(cka(z.double() @ z.double().mT, labels @ labels.mT))
        for name, z in _pool_blocks(data.model, data.x).items()
    }


def _logme(z: Tensor, y: Tensor) -> float:
    """Mean log evidence of a Bayesian linear model for each class (You et al. 2021)."""
    n, d = z.shape
    vectors, sizes, _ = torch.linalg.svd(z, full_matrices=False)
    squares, total = sizes.square(), 0.0
    # each class by itself: prior and noise precision by fixed-point steps, then the evidence
    for column in nn.functional.one_hot(y).double().mT:
        shares = (vectors.mT @ column).square()
        remainder = float(column.square().sum() - shares.sum())
        prior, noise = 1.0, 1.0
        for _ in range(11):
            ridge = prior / noise
            used = float((squares / (squares + ridge)).sum())
            weight = float((squares * shares / (squares + ridge).square()).sum())
            error = float((shares / (1 + squares / ridge).square()).sum()) + remainder
            prior, noise = used / (weight + 1e-9), (n - used) / (error + 1e-9)
        spread = 0.5 * float((prior + noise * squares).log().sum())
        evidence = 0.5 * (d * np.log(prior) + n * np.log(noise) - n * np.log(2 * np.pi))
        total += (evidence - spread - 0.5 * (noise * error + prior * weight)) / n
    return total / (int(y.max()) + 1)


def _rank_correlation(data: Probed, answer: dict[str, float]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr([answer[name] for name in BLOCKS], [data.found[name] for name in BLOCKS])[0])


CASES = [
    Case(
        f"blocks of ResNet-20, {name}: rank correlation with a ridge probe",
        setup=partial(_prepare, name),
        ours=lambda data: {
            str(name): -ratio for name, ratio in layers(data.model, (data.x, data.y), BLOCKS)["ratio"].items()
        },
        peers={
            "ridge probe": Peer(
                lambda data: _probe_scores(data.model, data.x, data.y, data.new), needs=("sklearn",), goals={"cpu": 1.0}
            ),
            "CKA with the labels": Peer(_by_cka),
            "LogME": Peer(
                lambda data: {name: _logme(z.double(), data.y) for name, z in _pool_blocks(data.model, data.x).items()}
            ),
        },
        accuracy=_rank_correlation,
        accuracy_name="Spearman",
        better="higher",
        limits={"accuracy": 0.9},
        repeats=1,
        memory=False,
    )
    for name in ("cifar10", "cifar100_subset")
]
