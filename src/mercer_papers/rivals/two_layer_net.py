"""The two-layer ReLU network whose training the spectrum predicts, and embeddings trained for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from mercer import checks
from mercer.distributed import global_slice, shared_generator, sum_over_ranks, take_rows
from mercer.linalg.distances import unit_rows


class TwoLayerNet(nn.Module):
    r"""Two-layer ReLU network :math:`f(x) = \tfrac{1}{\sqrt m} \sum_r a_r \max(0, w_r^T x)` (spectral2019, Eq. 1-2).

    Drawn as :math:`w_r \sim N(0, \kappa^2 I)`, :math:`a_r = \pm 1` (Eq. 7). The signs a stay fixed, as in Arora et
    al. (2019); H-infinity is the kernel of the weights W alone.

    Args:
        in_features: d.
        width: m.
        outputs: Columns of the targets; each has signs of its own.
        scale: :math:`\kappa`.
        generator: Randomness of W and a.
        dtype: Dtype of W; None is torch's default.
    """

    signs: Tensor
    __call__: Callable[..., Tensor]

    def __init__(
        self,
        in_features: int,
        width: int,
        *,
        outputs: int = 1,
        scale: float = 1e-2,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.integer("TwoLayerNet", "width", width, 1)
        self.scale = checks.positive("TwoLayerNet", "scale", scale)
        normal = torch.randn(width, in_features, generator=generator, dtype=dtype)
        self.weight = nn.Parameter(scale * normal)
        coins = torch.randint(0, 2, (outputs, width), generator=generator)
        self.register_buffer("signs", (2 * coins - 1).to(self.weight.dtype))

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, d) -> (n, c)
        return (x @ self.weight.mT).relu() @ self.signs.mT / math.sqrt(len(self.weight))


class Descent(NamedTuple):
    r"""The course of full-batch descent: :math:`\|Y - u(t)\|`, t = 0..steps; the same and accuracy on test rows."""

    residual: Tensor
    test_residual: Tensor | None
    test_accuracy: Tensor | None


@torch.no_grad()
def train_two_layer(
    network: TwoLayerNet,
    x: Tensor,
    targets: Tensor,
    *,
    lr: float = 2e-4,
    steps: int = 100,
    test: tuple[Tensor, Tensor] | None = None,
) -> Descent:
    r"""Full-batch gradient descent on :math:`\tfrac12 \sum_i (y_i - f(x_i))^2` over W (spectral2019, Eq. 8).

    The gradient is written out, :math:`\tfrac{1}{\sqrt m} a_r \sum_i (f(x_i) - y_i) 1\{w_r^T x_i \ge 0\} x_i`: two
    matrix products a step.

    Args:
        network: Trained in place.
        x: Unit rows, ``(n, d)``; with several ranks, each passes its own, and the networks start alike.
        targets: ``(n,)`` or ``(n, c)``.
        lr: :math:`\eta`.
        steps: How many steps.
        test: Rows and targets to follow the test error on.
    """
    checks.positive("train_two_layer", "lr", lr)
    checks.integer("train_two_layer", "steps", steps, 0)
    checks.same_length("train_two_layer", "x", x, "targets", targets)
    y = _as_columns(targets).to(x.dtype)
    weight, signs, root = network.weight, network.signs, math.sqrt(len(network.weight))
    residuals, tests, hits = [], [], []
    for step in range(steps + 1):
        # forward, with the residual of all ranks' rows
        hidden = (x @ weight.mT).relu_()  # (n, m)
        gap = hidden @ signs.mT / root - y  # (n, c)
        residuals.append(sum_over_ranks(gap.square().sum()).sqrt())
        if test is not None:
            out, y_test = network(test[0]), _as_columns(test[1]).to(x.dtype)
            right = out.argmax(1) == y_test.argmax(1)
            if y_test.shape[1] == 1:
                right = ((out > 0) == (y_test > 0))[:, 0]
            tests.append((out - y_test).norm())
            hits.append(right.to(x.dtype).mean())
        if step < steps:
            # the gradient, written out
            back = (gap @ signs).mul_(hidden > 0)  # (n, m)
            weight.sub_(sum_over_ranks(back.mT @ x), alpha=lr / root)
    return Descent(torch.stack(residuals), torch.stack(tests) if tests else None, torch.stack(hits) if hits else None)


def neural_embedding(
    x: Tensor,
    targets: Tensor,
    *,
    width: int = 10_000,
    hidden: int = 100,
    lr: float = 1e-3,
    epochs: int = 10,
    batch: int = 128,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """A first layer trained inside a three-layer network, then frozen: ``x -> unit ReLU features`` (Section 3.2).

    The paper adds a hidden layer of 10,000 units below the two-layer network, trains all three layers, keeps the first
    and draws the rest again. The paper does not say how it trained them; we use Adam in mini-batches.

    Args:
        x: Rows to train on, ``(n, d)``: other rows than those to be analyzed, or of another domain.
        targets: Their targets, -1/+1, ``(n,)`` or ``(n, c)``.
        width: Units of the embedding.
        hidden: Units of the layer above, thrown away.
        lr: Adam's rate.
        epochs: Passes over the rows.
        batch: Rows a step.
        generator: Randomness of the weights and of the order of rows.
    """
    checks.same_length("neural_embedding", "x", x, "targets", targets)
    y = _as_columns(targets).to(x.dtype)
    n, generator = global_slice(len(x))[1], shared_generator(generator)
    # three layers, of which the first is kept
    first = _linear(x.shape[1], width, x.dtype, generator)
    above = nn.Sequential(_linear(width, hidden, x.dtype, generator), nn.ReLU())
    last = _linear(hidden, y.shape[1], x.dtype, generator)
    body = nn.Sequential(first, nn.ReLU(), *above, last)
    optimizer = torch.optim.Adam(body.parameters(), lr=lr)
    for _ in range(epochs):
        for rows in torch.randperm(n, generator=generator).split(batch):
            optimizer.zero_grad()
            (body(take_rows(x, rows)) - take_rows(y, rows)).square().mean().backward()
            optimizer.step()
    return nn.Sequential(first, nn.ReLU(), _Unit()).requires_grad_(False).eval()


class _Unit(nn.Module):
    @override
    def forward(self, x: Tensor) -> Tensor:
        return unit_rows(x)


def _as_columns(targets: Tensor) -> Tensor:  # (n,) or (n, c) -> (n, c)
    if targets.ndim == 1:
        return targets[:, None]
    return targets.flatten(1)


def _linear(d: int, m: int, dtype: torch.dtype, generator: torch.Generator | None) -> nn.Linear:
    layer = nn.Linear(d, m, dtype=dtype, device="meta").to_empty(device="cpu")  # its own draws are not asked for
    with torch.no_grad():
        layer.weight.copy_(torch.randn(m, d, dtype=dtype, generator=generator) * math.sqrt(2 / d))
        layer.bias.zero_()
    return layer
