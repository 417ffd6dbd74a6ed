"""What a head learned: its kernel as a function of the cosine, before and after, and the weight of each power.

Run: python examples/learned_kernel.py [OUT.svg]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

from mercer.figures.narrow import write_svg
from mercer.figures.theme import LIGHT, canvas
from mercer.nn import KernelClassifier

OUT = Path(__file__).parent.parent / "docs" / "img" / "gallery" / "learned_kernel.svg"


def trained(head: KernelClassifier, z: torch.Tensor, y: torch.Tensor) -> KernelClassifier:
    optimizer = torch.optim.Adam(head.param_groups(weight_decay=1e-4), lr=0.02)
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(head(z), y).backward()
        optimizer.step()
    return head


def main() -> None:
    torch.manual_seed(0)
    X, labels = load_digits(return_X_y=True)
    z, y = torch.tensor((X - X.mean(0))[::2], dtype=torch.float32), torch.tensor(labels[::2])
    figure, (left, right) = canvas(1, 2, width=8.6, height=3.4)
    t = torch.linspace(-1, 1, 100)
    fresh = KernelClassifier(64, 10)
    heads = {"at the start": fresh}
    for prototypes in (1, 3):
        head = KernelClassifier(64, 10, prototypes=prototypes)
        head.init_from(z, y, generator=torch.Generator().manual_seed(0))
        heads[f"digits, {prototypes} prototype{'s' * (prototypes > 1)} a class"] = trained(head, z, y)
    with torch.no_grad():
        for i, (name, head) in enumerate(heads.items()):
            left.plot(t, head.profile(t), label=name)
            right.bar(
                [power + 0.27 * (i - 1) for power in range(11)], head.kernel.coefficients[2:].tolist(), width=0.25
            )
    left.set(title="the kernel of the cosine", xlabel="cosine of embedding and class weight")
    right.set(title="weight of each power in the series", xlabel="power")
    left.legend(frameon=False, fontsize=8, labelcolor=LIGHT.ink)
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    write_svg(figure, out)
    print(out)


if __name__ == "__main__":
    main()
