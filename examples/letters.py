"""Train a small CNN without tuning, set it beside Adam, and see it notice letters of another alphabet.

Run: python examples/letters.py [--out letters.png]

Seconds on a laptop, and nothing is fetched: the pictures, 28 x 28, are letters in fonts that come with matplotlib. Adam
gets the best of four rates, chosen on the test letters; FunctionSpaceSGD stands at its default.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn import functional as F

from mercer.bayes import Familiarity
from mercer.figures.narrow import write_svg
from mercer.figures.theme import LIGHT, canvas, png
from mercer.optim import FunctionSpaceSGD
from mercer_papers.data.letters import CYRILLIC, letters

OPTIMIZERS = {"FunctionSpaceSGD": lambda model: FunctionSpaceSGD(model.parameters(), model=model)} | {
    f"Adam, rate {rate}": lambda model, rate=rate: torch.optim.Adam(model.parameters(), rate)
    for rate in (0.001, 0.002, 0.004, 0.008)  # the first is Adam's default
}


def train(name, x, y, x_test, y_test, seed):
    """The network, its test accuracy after each of three epochs, and CPU seconds."""
    torch.manual_seed(seed)
    convolutions = (nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2))
    model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(800, 100), nn.ReLU(), nn.Linear(100, 26))
    optimizer, accuracy, start = OPTIMIZERS[name](model), [], time.process_time()
    for _ in range(3):
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            accuracy.append((model(x_test).argmax(1) == y_test).double().mean().item())
    return model, accuracy, time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("letters.png"), help="the picture, PNG or SVG")
    parser.add_argument("--rows", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", type=Path, help="file that the numbers are added to, a line of JSON each")
    options = parser.parse_args()
    n, seed = options.rows, 3 * options.seed
    x, y = letters(n, seed=seed)
    x_test, y_test = letters(n // 4, seed=seed + 1)
    strangers, _ = letters(n // 8, alphabet=CYRILLIC, seed=seed + 2)

    # Train.
    models, curves, lines = {}, {}, []
    for name in OPTIMIZERS:
        models[name], curves[name], cpu = train(name, x, y, x_test, y_test, options.seed)
        print(f"{name:18s}", *(f"{accuracy:6.1%}" for accuracy in curves[name]), f"  {cpu:.1f} CPU s", flush=True)
        lines.append({"who": name, "cpu": cpu} | {f"epoch {i}": a for i, a in enumerate(curves[name], 1)})
    best = max(lines[1:], key=lambda line: line["epoch 3"])
    lines.append({**best, "who": "Adam, best of four rates"})

    # Ask about new letters and about strangers; the network's own doubt is 1 - its largest probability.
    model = models["FunctionSpaceSGD"]
    familiarity = Familiarity(model, generator=torch.Generator().manual_seed(seed)).fit(x)
    both, strange = torch.cat((x_test, strangers)), torch.arange(len(x_test) + len(strangers)) >= len(x_test)
    with torch.no_grad():
        doubt = 1 - model(both).softmax(1).amax(1)
    for name, score in {"Familiarity": familiarity.score(both), "softmax": doubt}.items():
        caught = (score[strange] > score[~strange].quantile(0.95)).double().mean().item()
        lines.append({"who": name, "auroc": roc_auc_score(strange, score), "caught": caught})
        print(f"{name:12s} AUROC {lines[-1]['auroc']:.3f}, {caught:.0%} of the strangers at 5% false alarms")

    draw(options.out, curves, familiarity.score(both), strange, both)
    print(options.out)
    if options.lines:
        command = f"python examples/letters.py --rows {n} --seed {options.seed}"
        with options.lines.open("a") as file:
            file.writelines(
                json.dumps({"seed": options.seed, "rows": n, **line, "command": command}) + "\n" for line in lines
            )


def draw(out, curves, score, strange, pictures):
    first, *rest = list(curves)[1:]
    best = max((first, *rest), key=lambda name: curves[name][-1])
    figure, (left, middle, right) = canvas(1, 3, width=9.6, height=3.2)
    for name, dash in {"FunctionSpaceSGD": "-", best: "-", first: ":"}.items():
        left.plot(range(1, 4), curves[name], dash, marker="o", markersize=4, label=name)
    left.set(title="test accuracy", xlabel="epoch", xticks=range(1, 4))
    for rows, name in ((~strange, "new Latin letters"), (strange, "Cyrillic letters")):
        middle.hist(score[rows].numpy(), bins=20, range=(0, 1), density=True, alpha=0.6, label=name)
    middle.set(title="how unfamiliar they look", xlabel="Familiarity", yticks=[])
    chosen = torch.cat((pictures[~strange][:12], pictures[strange][:12]))[:, 0].reshape(4, 6, 28, 28)
    right.imshow(chosen.transpose(1, 2).reshape(112, 168).numpy(), cmap="gray_r", vmin=0, vmax=1)
    right.axhline(55.5, linewidth=1.5)
    right.set(title="known (top) and strange", xticks=[], yticks=[])
    right.grid(False)
    for ax in (left, middle):
        ax.legend(frameon=False, fontsize=8, labelcolor=LIGHT.ink)  # a color that turns with the screen
    if out.suffix == ".svg":
        write_svg(figure, out)
    else:
        out.write_bytes(png(figure))


if __name__ == "__main__":
    main()
