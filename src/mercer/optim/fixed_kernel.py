"""A fixed kernel on the model's inputs in place of a layer's own features."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks, distributed
from ..kernels import Kernel
from .inverses import damped_inverse
from .layers import Layer, layer_rows
from .recording import Record


def sample_inverse(kernel: Kernel, model_inputs: Record, damping: float) -> Tensor:  # (n, n)
    r""":math:`(K / n + \lambda I)^{-1}` over the samples of the step, of all ranks, in float64."""
    x = distributed.gather_rows(torch.cat(model_inputs.inputs))
    try:
        gram = kernel(x.double())
    except ValueError:  # a kernel on vectors; network kernels take pictures as they are
        gram = kernel(x.double().flatten(1))
    return damped_inverse(gram.detach() / len(gram), damping, where="FunctionSpaceSGD")


def fixed_kernel_direction(layer: Layer, record: Record, inverse: Tensor) -> Tensor:  # (c, d)
    r""":math:`D^\top (K / n + \lambda I)^{-1} G` for a kernel matrix K of the model's inputs.

    D is seen by a hook, before clipping and unscaling; what these did to the gradient is done to the direction.

    Args:
        layer: The layer.
        record: Its inputs and output gradients.
        inverse: From `sample_inverse`, of the n samples of all ranks.
    """
    gradient = layer.gradient()
    n = len(inverse)
    every = [layer_rows(layer.module, x, bias=layer.bias is not None) for x in record.inputs]
    g = distributed.gather_rows(torch.cat(every).double())
    d = distributed.gather_rows(layer.output_gradients(record).double())
    if len(g) % n or len(g) != len(d):
        need = f"with kernel= layer {layer.name!r} must see the {n} samples of the model's input"
        fix = f"Leave it to plain SGD with exclude=[{layer.name!r}]."
        raise ValueError(checks.sentence("FunctionSpaceSGD", need, f"{len(g)} rows", fix))
    mixed = (inverse @ d.reshape(n, -1)).reshape(d.shape)  # (n places, c)
    seen = d.mT @ g
    norm = seen.square().sum()
    scale = (seen * gradient.double()).sum() / torch.where(norm > 0, norm, torch.ones_like(norm))
    return (scale * (mixed.mT @ g)).to(gradient.dtype)
