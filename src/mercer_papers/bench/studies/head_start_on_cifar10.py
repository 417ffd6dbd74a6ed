"""The start of the learned kernel's head, judged on held-out training pictures of CIFAR-10: no test picture is seen.

    MERCER_DATA=... OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.head_start_on_cifar10

Half-width ResNet-8, 2,000 pictures, 4 epochs, two seeds, 1,500 other training pictures. Heads at a longer budget:
``mercer reproduce jayasumana2021/table3 --set rows=25000 --set epochs=15 --seeds 2``.
"""

from __future__ import annotations

import statistics

import torch

from mercer.nn import KernelClassifier, kernelize
from mercer_papers.jayasumana2021.heads import backbone
from mercer_papers.jayasumana2021.trained import STAND_IN, accuracy, cifar, fit

STARTS = [(1.0, 1, 1.0), (4.0, 1, 1.0), (10.0, 1, 1.0), (4.0, 3, 1.0), (4.0, 3, 0.4), (1.0, 3, 0.1)]
ROWS = 2000


def main() -> None:
    torch.set_num_threads(1)
    x, y, _, _ = cifar("cifar10", ROWS + 1500, 10)
    print(f"{'k(1)':>6}{'prototypes':>12}{'temperature':>13}  held-out accuracy of two seeds, mean")
    for scale, prototypes, temperature in STARTS:
        scores = [held_out(x, y, scale, prototypes, temperature, seed) for seed in range(2)]
        shown = ", ".join(f"{score:.1f}" for score in [*scores, statistics.mean(scores)])
        print(f"{scale:>6g}{prototypes:>12}{temperature:>13g}  {shown}", flush=True)


def held_out(x, y, scale, prototypes, temperature, seed):
    def head(width, classes):
        made = KernelClassifier(width, classes, prototypes=prototypes, bias=prototypes > 1, temperature=temperature)
        with torch.no_grad():
            made.kernel.alpha *= scale / made.kernel.coefficients.sum()
        return made

    torch.manual_seed(seed)
    model = kernelize(backbone(STAND_IN, 10), head=head, rectify="off")
    fit(model, x[:ROWS], y[:ROWS], epochs=4, generator=torch.Generator().manual_seed(seed))
    return accuracy(model, x[ROWS:], y[ROWS:])


if __name__ == "__main__":
    main()
