"""Where is a trained network sure? Bands, maps of confidence, calibration.

Run: python examples/uncertainty.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits, make_moons
from torch import nn
from torch.nn import functional as F

from mercer import metrics
from mercer.bayes import LinearizedLaplace
from mercer.figures import plots
from mercer.figures.theme import png


def trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor, loss, steps: int, decay: float = 0.0) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=decay)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model


def line():
    """A regression on two stretches of a line: the bands open between them and beyond."""
    torch.manual_seed(0)
    x = torch.cat((torch.rand(40, 1) * 1.5 - 2.5, torch.rand(40, 1) * 1.5 + 1))
    y = (2 * x).sin() + 0.1 * torch.randn(80, 1)
    model = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1))
    trained(model, x, y, F.mse_loss, 1500, decay=1e-4)
    posterior = LinearizedLaplace(
        model, parameters="all", likelihood="regression", k=80, prior_precision="evidence"
    ).fit((x, y))
    at = torch.linspace(-4.5, 4.5, 200)[:, None]
    mean, variance = posterior.predict(at)
    title = "Regression: linearised Laplace, noise and prior by evidence"
    return plots.band(at[:, 0], mean[:, 0], variance[:, 0].sqrt(), (x[:, 0], y[:, 0]), title=title)


def plane():
    """Two moons: the network is certain up to its border, the posterior doubts a cone that opens beyond the data."""
    torch.manual_seed(0)
    points, labels = make_moons(600, noise=0.15, random_state=0)
    x, y = torch.as_tensor(points).float(), torch.as_tensor(labels)
    model = nn.Sequential(nn.Linear(2, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 2))
    trained(model, x[:200], y[:200], F.cross_entropy, 800)
    posterior = LinearizedLaplace(model, parameters="all", k=20).fit((x[:200], y[:200]), (x[200:400], y[200:400]))
    for name, proba in {"network": lambda r: model(r).softmax(1), "posterior": posterior.predict_proba}.items():
        ask = lambda rows, proba=proba: proba(torch.as_tensor(rows).float()).detach()  # noqa: E731
        title = {"network": "The network alone", "posterior": "Linearised Laplace, k = 20"}[name]
        yield f"plane-{name}", plots.confidence(ask, x[:200], y[:200], title=title)


def calibration():
    """Digits from 300 rows: confidence against accuracy, before and after."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images))
    x, y = torch.as_tensor(images)[order].float() / 16, torch.as_tensor(labels)[order]
    model = nn.Sequential(nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))
    trained(model, x[:300], y[:300], F.cross_entropy, 1000)
    posterior = LinearizedLaplace(model, parameters="all", k=20).fit((x[:300], y[:300]), (x[300:600], y[300:600]))
    test, truth = x[600:], y[600:]
    for name, proba in {"network": model(test).softmax(1), "posterior": posterior.predict_proba(test)}.items():
        title = f"{name}: NLL {metrics.nll(proba, truth):.3f}, ECE {metrics.ece(proba, truth):.3f}"
        yield f"calibration-{name}", plots.reliability(*metrics.calibration(proba, truth, 10), title=title)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in [("line", line()), *plane(), *calibration()]:
        (folder / f"{name}.png").write_bytes(png(figure))
        print(folder / f"{name}.png")


if __name__ == "__main__":
    main()
