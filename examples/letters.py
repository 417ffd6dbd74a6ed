"""Train a small CNN without tuning, set it beside Adam, and see it notice letters of another alphabet.

Run: python examples/letters.py [OUT.svg or OUT.png] [ROWS]

Seconds on a laptop, and nothing is fetched: the pictures, 28 x 28, are Latin letters in fonts that come with
matplotlib, each bent, shifted and noisy in its own way. Adam gets the best of four rates, chosen on the test letters.
"""

import sys
import time
from pathlib import Path

import matplotlib
import torch
from PIL import Image, ImageDraw, ImageFont
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn import functional as F

from mercer import figures
from mercer.bayes import Familiarity
from mercer.optim import FunctionSpaceSGD

LATIN, CYRILLIC = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "БГДЖЗИЛПФЦЧШЩЫЭЮЯ"
FONTS = [f"DejaVu{name}.ttf" for name in ("Sans", "Sans-Bold", "Sans-Oblique", "Serif", "Serif-Bold", "SansMono")]
RATES = (0.001, 0.002, 0.004, 0.008)  # Adam's; the first is its default
OUT = Path(__file__).parent.parent / "docs/img/gallery/letters.svg"


def draw(letters, n, seed):
    """n pictures of letters, ``(n, 1, 28, 28)``, and which letter each is."""
    generator, glyphs = torch.Generator().manual_seed(seed), []
    for font in FONTS:
        face = ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts/ttf", font)), 20)
        for letter in letters:
            image = Image.new("L", (28, 28))
            ImageDraw.Draw(image).text((14, 14), letter, 255, face, anchor="mm")
            glyphs.append(torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(1, 28, 28) / 255)
    which = torch.randint(len(glyphs), (n,), generator=generator)
    bend = torch.eye(2) + 0.12 * torch.randn(n, 2, 2, generator=generator)
    shift = 0.1 * torch.randn(n, 2, 1, generator=generator)
    grid = F.affine_grid(torch.cat((bend, shift), 2), [n, 1, 28, 28], align_corners=False)
    x = F.grid_sample(torch.stack(glyphs)[which], grid, align_corners=False)
    return x + 0.2 * torch.randn(x.shape, generator=generator), which % len(letters)


def train(make_optimizer, x, y, x_test, y_test, epochs=3):
    """The network, its accuracy on the test letters after each epoch, and CPU seconds."""
    torch.manual_seed(0)
    convolutions = (nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2))
    model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(800, 100), nn.ReLU(), nn.Linear(100, 26))
    optimizer, accuracy, start = make_optimizer(model), [], time.process_time()
    for epoch in range(epochs):
        for rows in torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch)).split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            accuracy.append((model(x_test).argmax(1) == y_test).double().mean().item())
    return model, accuracy, time.process_time() - start


def main():
    out, n = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT, int(sys.argv[2]) if len(sys.argv) > 2 else 5000
    x, y = draw(LATIN, n, seed=0)
    x_test, y_test = draw(LATIN, n // 4, seed=1)
    strangers, _ = draw(CYRILLIC, n // 8, seed=2)

    # Train: ours at its default, Adam at four rates.
    runs = {"FunctionSpaceSGD": lambda model: FunctionSpaceSGD(model.parameters(), model=model)}
    runs |= {f"Adam, rate {r:g}": lambda model, r=r: torch.optim.Adam(model.parameters(), r) for r in RATES}
    models, curves = {}, {}
    for name, make_optimizer in runs.items():
        models[name], curves[name], seconds = train(make_optimizer, x, y, x_test, y_test)
        print(f"{name:18s}", *(f"{accuracy:6.1%}" for accuracy in curves[name]), f"  {seconds:.1f} CPU s", flush=True)

    # Ask it about new letters and about strangers; the network's own doubt is 1 - its largest probability.
    model = models["FunctionSpaceSGD"]
    familiarity = Familiarity(model, generator=torch.Generator().manual_seed(0)).fit(x)
    scores = torch.cat((familiarity.score(x_test), familiarity.score(strangers)))
    with torch.no_grad():
        doubt = 1 - model(torch.cat((x_test, strangers))).softmax(1).amax(1)
    strange = torch.arange(len(scores)) >= len(x_test)
    for name, values in {"Familiarity": scores, "softmax": doubt}.items():
        caught = (values[strange] > values[~strange].quantile(0.95)).double().mean()
        auroc = roc_auc_score(strange, values)
        print(f"{name:12s} AUROC {auroc:.3f}, {caught:.0%} of the strangers at 5% false alarms")

    # Draw both.
    best = max(list(curves)[1:], key=lambda name: curves[name][-1])
    figure, (left, middle, right) = figures.canvas(1, 3, width=9.6, height=3.2)
    for name, dash in {"FunctionSpaceSGD": "-", best: "-", f"Adam, rate {RATES[0]:g}": ":"}.items():
        left.plot(range(1, 4), curves[name], dash, marker="o", markersize=4, label=name)
    left.set(title="test accuracy", xlabel="epoch", xticks=range(1, 4))
    for rows, name in ((~strange, "new Latin letters"), (strange, "Cyrillic letters")):
        middle.hist(scores[rows].numpy(), bins=20, range=(0, 1), density=True, alpha=0.6, label=name)
    middle.set(title="how unfamiliar they look", xlabel="Familiarity", yticks=[])
    pictures = torch.cat((x_test[:12], strangers[:12]))[:, 0].reshape(4, 6, 28, 28)
    right.imshow(pictures.transpose(1, 2).reshape(112, 168).numpy(), cmap="gray_r", vmin=0, vmax=1)
    right.axhline(55.5, linewidth=1.5)
    right.set(title="known (top) and strange", xticks=[], yticks=[])
    right.grid(False)
    for ax in (left, middle):
        ax.legend(frameon=False, fontsize=8)
    if out.suffix == ".png":
        out.write_bytes(figures.png(figure))
    else:
        figures.write_svg(figure, out)
    print(out)


if __name__ == "__main__":
    main()
