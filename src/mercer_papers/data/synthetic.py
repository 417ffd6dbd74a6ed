"""The small synthetic sets of masoomi2020: spiral, random labels, adversarial pairs.

The poster names these sets and gives no generator; ours are stated here. Its test scores have a deviation of about
0.2 over ten folds, that of guessing six to ten points, so the two sets made to deceive have 80 rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mercer import checks
from mercer.tabular.folds import StableRandom

from .splits import Dataset, split_rows


def spiral(
    n: int = 300, *, classes: int = 3, turns: float = 0.75, noise: float = 0.02, fold: int | None = None, seed: int = 0
) -> Dataset:
    r"""Arms :math:`r (\cos\theta, \sin\theta)`, :math:`\theta = 2\pi (\text{turns} \cdot r + j / c)`, r in [.05, 1].

    Args:
        n: rows in all; the arms' sizes differ by at most one.
        classes: number c of arms.
        turns: how far an arm winds, in full circles.
        noise: deviation of the Gaussian noise on each coordinate.
        fold: 1..10 makes that fold the test part; None holds a fifth of each class out.
        seed: decides rows and split.
    """
    c = checks.integer("spiral", "classes", classes, 2)
    checks.integer("spiral", "n", n, 2 * c)
    checks.positive("spiral", "turns", turns)
    checks.non_negative("spiral", "noise", noise)
    draws = StableRandom(seed)
    y = torch.arange(n) % c
    r = 0.05 + 0.95 * draws.uniform(n)
    theta = 2 * math.pi * (turns * r + y / c)
    x = r[:, None] * torch.stack([theta.cos(), theta.sin()], 1) + noise * draws.normal(n, 2)
    return _split("spiral", x, y, fold, seed)


def random_labels(n: int = 80, d: int = 2, *, fold: int | None = None, seed: int = 0) -> Dataset:
    """Rows uniform in [-1, 1]^d with labels that have nothing to do with them: half 0, half 1, in random order.

    No classifier can do better than 0.5 on new rows; one that memorizes scores 1 on its own.

    Args:
        n: rows in all.
        d: columns.
        fold: 1..10 makes that fold the test part; None holds a fifth of each class out.
        seed: decides rows, labels and split.
    """
    checks.integer("random_labels", "n", n, 4)
    checks.integer("random_labels", "d", d, 1)
    draws = StableRandom(seed)
    x = 2 * draws.uniform(n, d) - 1
    y = (torch.arange(n) % 2)[draws.permutation(n)]
    return _split("random_labels", x, y, fold, seed)


def adversarial(n: int = 80, d: int = 2, *, gap: float = 0.01, fold: int | None = None, seed: int = 0) -> Dataset:
    """Pairs of near-identical rows with opposite labels: a row's nearest neighbor is its twin, of the other class.

    The first row of a pair is uniform in [-1, 1]^d, the second lies at distance ``gap`` in a random direction, and a
    coin decides which of them is class 0. A smooth function cannot fit it, and a twin in the training part pulls a row
    to the wrong label: expect scores below 0.5 on the test part. Two pairs may by chance lie closer than ``gap``.

    Args:
        n: rows in all, even.
        d: columns.
        gap: distance within a pair.
        fold: 1..10 makes that fold the test part; None holds a fifth of each class out.
        seed: decides rows, labels and split.
    """
    checks.integer("adversarial", "n", n, 4)
    if n % 2:
        raise ValueError(checks.sentence("adversarial", "n must be even, for rows come in pairs", n))
    checks.integer("adversarial", "d", d, 1)
    checks.positive("adversarial", "gap", gap)
    draws = StableRandom(seed)
    first = 2 * draws.uniform(n // 2, d) - 1
    direction = draws.normal(n // 2, d)
    second = first + gap * direction / direction.norm(dim=1, keepdim=True)
    coin = draws.below(2, n // 2)
    return _split("adversarial", torch.cat([first, second]), torch.cat([coin, 1 - coin]), fold, seed)


def _split(name: str, x: Tensor, y: Tensor, fold: int | None, seed: int) -> Dataset:
    train, test = split_rows(y, None, fold, seed)
    classes = tuple(str(label) for label in range(int(y.max()) + 1))
    features = tuple(f"x{j}" for j in range(x.shape[1]))
    note = "Our generator: masoomi2020 names this set and gives none."
    parts = (x[train].float(), y[train], x[test].float(), y[test])
    return Dataset(name, *parts, classes=classes, features=features, note=note)
