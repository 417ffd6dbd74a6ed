"""A small network that gives Psi(x), and the size of what lies outside, in one forward pass; distilled."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from ..features.network_fit import distill
from ..features.neuralef import Training
from ..linalg.blocks import slices
from ..signals.capture import capture
from ..signals.layers import find_layers, last_linear
from ..storage.savable import SavableModule
from .network import flat_logits

_ROWS = 2000


class EigenfunctionNetwork(SavableModule):
    r"""The slides' :math:`\hat\psi(x, w)`: a row's embedding in, :math:`\Psi(x)` and :math:`s(x)` out.

    :math:`s_i^2` is the diagonal of :math:`K(x, x) - \Psi \Psi^\top`. Two hidden layers; s goes through a softplus:
    never negative, and growing as :math:`|x|` does far away, which is how Jacobians of a ReLU network grow.

    Args:
        in_features: Numbers of what it reads, see :func:`read_embedding`.
        outputs: c.
        k: Directions.
        width: Width of the hidden layers.
    """

    shift: Tensor
    scale: Tensor
    unit: Tensor

    def __init__(self, in_features: int, outputs: int, k: int, width: int = 128) -> None:
        super().__init__()
        self.outputs, self.k = outputs, k
        self.body = nn.Sequential(
            nn.Linear(in_features, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, outputs * (k + 1)),
        )  # fmt: skip
        self.register_buffer("shift", torch.zeros(in_features))
        self.register_buffer("scale", torch.ones(in_features))
        self.register_buffer("unit", torch.ones(outputs, k + 1))

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, d) -> (n, c, k + 1), each number in units of its own spread
        raw = self.body((x - self.shift) / self.scale).reshape(len(x), self.outputs, self.k + 1)
        return torch.cat((raw[..., : self.k], F.softplus(raw[..., self.k :])), 2)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (n, d) -> (n, c, k), (n, c)
        r""":math:`\Psi(x)` and the diagonal of :math:`K(x, x) - \Psi \Psi^\top`."""
        values = self(x) * self.unit
        return values[..., : self.k], values[..., self.k].square()

    def learn(self, x: Tensor, psi: Tensor, outside: Tensor, *, steps: int, generator: torch.Generator) -> None:
        """Least squares over the rows, each number in units of its root mean square."""
        self.shift.copy_(x.mean(0))
        self.scale.copy_(x.std(0).clamp_min(1e-3 * float(x.std())))
        targets = torch.cat((psi, outside.sqrt()[..., None]), 2)  # (n, c, k + 1)
        # A direction that says little about the data has a small Psi: it is not blown up to count as much.
        smallest_unit = 1e-2 * float(targets.square().mean().sqrt()) or 1.0  # networks that agree: nothing to learn
        self.unit.copy_(targets.square().mean(0).sqrt().clamp_min(smallest_unit))
        # The variance outside counts as a quarter of all directions together.
        weights = x.new_ones(self.k + 1)
        weights[self.k] = max(1.0, self.k / 4)
        plan = Training(steps=steps, batch_size=256, lr=2e-3)
        distill(self, x, targets / self.unit, weights, plan, generator)
        self.eval().requires_grad_(False)


def read_embedding(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:  # (n, ...) -> (n, c), (n, d)
    """Outputs, and what the small network reads: the input of the last linear layer, its norm and the row's.

    The norms are what K(x, x) of a linear layer is made of. A network without linear layers is read by its rows, and so
    is one whose last linear layer does not see one row a line (time first, rows and times in one dimension).

    Args:
        network: A copy of one's own.
        x: Rows.
    """
    # Run the network, and listen to its last linear layer where it has one. A network that is one reads the rows.
    names = []
    if find_layers(network, nn.Linear):
        names = [name for name in [last_linear(network)[0]] if name]
    with torch.no_grad(), capture(network, names) as signals:
        f = flat_logits(network(x))
        inputs = [z for name in names for z in signals[name].inputs]
        embedding = x.flatten(1)
        if inputs and len(inputs[-1]) == len(x):
            # One row alone says whether the first dimension of a larger input is the rows'.
            first_is_rows = True
            if inputs[-1].ndim > 2 and len(x) > 0:
                network(x[:1])
                first_is_rows = len(signals[names[0]].inputs[-1]) == 1
            if first_is_rows:
                embedding = inputs[0].flatten(1)
    norms = [embedding.norm(dim=1, keepdim=True)]
    if x.is_floating_point():
        norms.append(x.flatten(1).norm(dim=1, keepdim=True))
    return f, torch.cat((embedding, *norms), 1)


def distill_network(
    x: Tensor,
    parts: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]],
    network: nn.Module,
    steps: int,
    batch_size: int,
    seed: int,
    *,
    mix: bool = True,
) -> EigenfunctionNetwork:
    """Fit a small network to Psi and the variance outside, on rows like the training rows and beside them.

    Args:
        x: Training rows, of all ranks.
        parts: Outputs ``(n, c)``, Psi ``(n, c, k)`` and the variance outside ``(n, c)`` of some rows.
        network: A copy of one's own, whose embeddings are read.
        steps: Training steps.
        batch_size: Rows at a time.
        seed: Decides everything random.
        mix: Whether rows may be mixed, as numbers may and tokens may not.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = x.cpu()
    if mix:
        rows = spread_rows(rows, _ROWS, generator)
    else:
        rows = rows[:_ROWS]
    rows = rows.to(x.device)

    # What it should give, and what it reads.
    blocks = [parts(rows[part]) for part in slices(len(rows), batch_size)]
    f, psi, outside = (torch.cat(column) for column in zip(*blocks, strict=True))
    embedding = torch.cat([read_embedding(network, rows[part])[1] for part in slices(len(rows), 4096)])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        student = EigenfunctionNetwork(embedding.shape[1], f.shape[1], psi.shape[2])
    student = student.to(embedding)
    student.learn(embedding, psi, outside, steps=steps, generator=generator)
    return student


def spread_rows(x: Tensor, m: int, generator: torch.Generator) -> Tensor:  # (n, ...) -> (at most 2 m, ...)
    """Rows to distil on: some of those given and as many beside them, mixed in pairs and shaken.

    The small network is asked about rows that are not like the data, too; it should have seen how Psi goes on there.
    """
    if not x.is_floating_point():
        return x[:m]
    # Half are rows as they are. The others lie between two rows, shaken by noise of random strength.
    rows = x[torch.randperm(len(x), generator=generator)[:m]]
    partners = x[torch.randint(len(x), (len(rows),), generator=generator)]
    shape = (len(rows), *[1] * (x.ndim - 1))
    mixture = torch.rand(shape, generator=generator, dtype=x.dtype)
    noise = torch.randn(rows.shape, generator=generator, dtype=x.dtype) * x.std()
    strength = torch.rand(shape, generator=generator, dtype=x.dtype)
    return torch.cat((rows, mixture * rows + (1 - mixture) * partners + strength * noise))
