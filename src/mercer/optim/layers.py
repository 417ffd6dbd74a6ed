"""What a layer is to an optimizer: a matrix of weights with a column for the bias, and the rows that it multiplies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import checks, distributed
from ..signals.layers import unwrap
from .directions import Direction, Part, Whole
from .recording import Record


class Layer:
    r"""A linear layer or convolution as :math:`\tilde W`, ``(c, d)``: outputs are :math:`G \tilde W^\top`.

    Args:
        name: In the model.
        module: ``nn.Linear`` or ``nn.Conv2d`` without groups.
        bias: The layer's bias where it is trained with the weight, else None.
    """

    def __init__(self, name: str, module: nn.Module, bias: Tensor | None) -> None:
        self.name = name
        self.module = module
        self.weight: Tensor = module._parameters["weight"]  # type: ignore[assignment]
        self.bias = bias

    def gradient(self) -> Tensor:  # (c, d)
        """The gradient of weight and bias as one matrix."""
        weight, bias = self.gradients()
        return weight if bias is None else torch.cat((weight, bias[:, None]), 1)

    def gradients(self) -> tuple[Tensor, Tensor | None]:  # (c, d - 1), (c,)
        """The gradients of weight and bias."""
        assert self.weight.grad is not None
        weight = self.weight.grad.reshape(len(self.weight), -1)
        if self.bias is None:
            return weight, None
        return weight, self.bias.grad if self.bias.grad is not None else torch.zeros_like(self.bias)

    def whole(self, direction: Tensor, product: Tensor) -> Direction:  # (c, d)
        """A direction of weight and bias, given as one matrix."""
        if self.bias is None:
            return Direction(Whole(direction), None, product)
        return Direction(Whole(direction[:, :-1]), Whole(direction[:, -1]), product)

    def keyed(self, direction: Direction) -> dict[int, tuple[Part, float]]:
        """The direction of each parameter that has a gradient and its scale, by the parameter's ``id``."""
        found = {id(self.weight): (direction.weight, direction.scale)}
        if self.bias is not None and self.bias.grad is not None and direction.bias is not None:
            found[id(self.bias)] = (direction.bias, direction.scale)
        return found

    def rows(self, record: Record, most: int) -> Tensor:  # (n, d)
        """What weight and bias multiply, scaled so that the mean over rows is a sum over places, mean over samples.

        The gradient of a layer that sees a sample at many places (pixels, tokens) is a sum over them, and so must be
        its curvature: a mean made convolutions' steps as many times too long.

        Args:
            record: The passes since the last step.
            most: About so many rows of all ranks are enough; fewer places are then taken, the same of every sample.
        """
        most = max(1, most // distributed.world_size())
        parts = []
        for x, gradient in zip(record.inputs, record.gradients, strict=True):
            g = layer_rows(self.module, x, bias=self.bias is not None, most=most)
            parts.append(g * self.places(x, gradient) ** 0.5)
        return torch.cat(parts)

    def output_gradients(self, record: Record) -> Tensor:  # (n, c)
        """The gradients at the layer's output, one row for each place of each sample."""
        return torch.cat([self._output_rows(g) for g in record.gradients])

    def places(self, x: Tensor, gradient: Tensor) -> int:
        """Outputs of one sample."""
        samples = len(x) if x.ndim > (3 if isinstance(self.module, nn.Conv2d) else 1) else 1
        return max(1, len(self._output_rows(gradient)) // max(1, samples))

    def _output_rows(self, gradient: Tensor) -> Tensor:  # (n, c)
        if isinstance(self.module, nn.Conv2d):
            gradient = gradient.movedim(-3, -1)
        return gradient.reshape(-1, gradient.shape[-1])


def trained_layers(
    where: str,
    model: nn.Module,
    parameters: Sequence[Tensor],
    kinds: tuple[type[nn.Module], ...],
    exclude: Sequence[str] | None = (),
) -> dict[str, nn.Module]:
    """The layers of these kinds whose weight is one of ``parameters``, requires grad, and is nobody else's.

    Args:
        where: The optimizer's name, for messages.
        model: The user's model, plain or wrapped.
        parameters: What the optimizer was given.
        kinds: Classes with a ``weight``.
        exclude: Names of layers, or of modules that hold them, to leave out; None where the optimizer cannot.

    Raises:
        ValueError: Two modules share a weight, or ``exclude`` names nothing.
    """
    root = unwrap(model)
    names = dict(root.named_modules())
    for name in exclude or ():
        checks.choice(where, "a name in exclude", name, list(names))
    owned = {id(p) for p in parameters if p.requires_grad}
    found = {}
    for name, module in names.items():
        left_out = any(name == e or name.startswith(f"{e}.") for e in exclude or ())
        weight = module._parameters.get("weight")
        if isinstance(module, kinds) and not left_out and weight is not None and id(weight) in owned:
            holders = [holder for holder, p in root.named_parameters(remove_duplicate=False) if p is weight]
            if len(holders) > 1:
                fix = 'Use layers="last".' if exclude is None else f"Leave it to plain SGD with exclude=[{name!r}]."
                need = "a preconditioned layer must not share its weight"
                raise ValueError(checks.sentence(where, need, " and ".join(holders), fix))
            found[name] = module
    return found


def layer_rows(module: nn.Module, x: Tensor, *, bias: bool, most: int | None = None) -> Tensor:
    r"""The rows G that a layer's weight multiplies, :math:`(n, d)`: outputs are :math:`G \tilde W^\top`.

    Args:
        module: ``nn.Linear`` or ``nn.Conv2d`` without groups; of the latter a row is one patch.
        x: The layer's input.
        bias: Add a column of ones for the bias.
        most: Take every second, third, ... token or patch, until about so many rows are left; the same places in
            every sample, so that the order of samples does not matter.
    """
    if isinstance(module, nn.Conv2d):
        x = _patches(module, x, most)
    elif x.ndim > 2 and most is not None:
        places = x.reshape(len(x), -1, x.shape[-1])
        x = places[:, :: min(places.shape[1], max(1, len(places) * places.shape[1] // most))]
    g = x.reshape(-1, x.shape[-1])  # (n, d)
    return torch.cat((g, g.new_ones(len(g), 1)), 1) if bias else g


def _patches(module: nn.Conv2d, x: Tensor, most: int | None) -> Tensor:  # (n, c, h, w) -> (n, places, d)
    x = x if x.ndim == 4 else x[None]
    around = module._reversed_padding_repeated_twice
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    if any(around):
        x = F.pad(x, around, mode=mode)
    size, dilation = tuple(module.kernel_size), tuple(module.dilation)
    stride = [int(s) for s in module.stride]
    places = len(x) * x.shape[-1] * x.shape[-2] / (stride[0] * stride[1])
    wider = 1 if most is None else max(1, round((places / most) ** 0.5))
    down, across = stride[0] * wider, stride[1] * wider
    if size == (1, 1):  # a patch is a pixel
        return x[:, :, ::down, ::across].flatten(2).mT
    return F.unfold(x, size, dilation, 0, (down, across)).mT
