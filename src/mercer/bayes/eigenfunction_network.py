"""A small network that gives Psi(x), and the size of what lies outside, in one forward pass; distilled."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from ..features.distillation import distill
from ..features.neuralef import Training
from ..kernels.network import evaluating
from ..modules import as_logits, capture, find_layers, last_linear
from ..storage import Savable


class EigenfunctionNetwork(Savable, nn.Module):
    r"""The slides' :math:`\hat\psi(x, w)`: a row's embedding in, :math:`\Psi(x)` and :math:`s(x)` out.

    :math:`s_i^2` is the diagonal of :math:`K(x, x) - \Psi \Psi^\top`. Two hidden layers; s goes through a softplus:
    never negative, and growing as :math:`|x|` does far away, which is how Jacobians of a ReLU network grow.

    Args:
        in_features: Numbers of what it reads, see :func:`with_embedding`.
        outputs: c.
        k: Directions.
        width: Of the hidden layers.
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
        found = self(x) * self.unit
        return found[..., : self.k], found[..., self.k].square()

    def learn(self, x: Tensor, psi: Tensor, outside: Tensor, *, steps: int, generator: torch.Generator) -> None:
        """Least squares over the rows, each number in units of its root mean square."""
        self.shift.copy_(x.mean(0))
        self.scale.copy_(x.std(0).clamp_min(1e-3 * float(x.std())))
        targets = torch.cat((psi, outside.sqrt()[..., None]), 2)  # (n, c, k + 1)
        # A direction that says little about the data has a small Psi: it is not blown up to count as much.
        self.unit.copy_(targets.square().mean(0).sqrt().clamp_min(1e-2 * float(targets.square().mean().sqrt())))
        weights = x.new_ones(self.k + 1)
        weights[self.k] = max(1.0, self.k / 4)
        plan = Training(steps=steps, batch_size=256, lr=2e-3)
        distill(self, x, targets / self.unit, weights, plan, generator)
        self.eval().requires_grad_(False)


def with_embedding(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:  # (n, ...) -> (n, c), (n, d)
    """Outputs, and what the small network reads: the input of the last linear layer, its norm and the row's.

    The norms are what K(x, x) of a linear layer is made of. A network without linear layers is read by its rows.
    """
    name = last_linear(model)[0] if find_layers(model, nn.Linear) else None
    with torch.no_grad(), evaluating(model), capture(model, [] if name is None else [name]) as seen:
        f = as_logits(model(x))
        embedding = x.flatten(1) if name is None else seen[name].input.flatten(1)
    norms = [embedding.norm(dim=1, keepdim=True)]
    if x.is_floating_point():
        norms.append(x.flatten(1).norm(dim=1, keepdim=True))
    return f.reshape(len(f), -1), torch.cat((embedding, *norms), 1)


def spread_rows(x: Tensor, most: int, generator: torch.Generator) -> Tensor:  # (n, ...) -> (at most 2 most, ...)
    """Rows to distil on: some of those given and as many beside them, mixed in pairs and shaken.

    The small network is asked about rows that are not like the data, too; it should have seen how Psi goes on there.
    """
    if not x.is_floating_point():
        return x[:most]
    chosen = x[torch.randperm(len(x), generator=generator)[:most]]
    other = x[torch.randint(len(x), (len(chosen),), generator=generator)]
    shape = (len(chosen), *[1] * (x.ndim - 1))
    share = torch.rand(shape, generator=generator, dtype=x.dtype)
    noise = torch.randn(chosen.shape, generator=generator, dtype=x.dtype) * x.std()
    strength = torch.rand(shape, generator=generator, dtype=x.dtype)
    return torch.cat((chosen, share * chosen + (1 - share) * other + strength * noise))
