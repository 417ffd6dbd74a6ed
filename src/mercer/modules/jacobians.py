"""Products with a network's Jacobian over its parameters, without the Jacobian."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..checks import same_device, sentence
from .layers import as_logits, trainable, unwrap

__all__ = ["jvp", "vjp"]

Parameters = Mapping[str, Tensor]


def jvp(
    model: nn.Module, params: Parameters | None, x: Tensor, v: Parameters
) -> tuple[Tensor, Tensor]:  # (n, ...) -> (n, c), (n, c)
    r"""Output :math:`f(x; \theta)` and :math:`J_\theta(x) v`, in one forward pass.

    Args:
        model: The network :math:`f`, in ``eval`` mode where it has batch normalisation; it is not changed.
        params: :math:`\theta` by name; None for the model's parameters that require grad. All others stay fixed.
        x: Inputs ``(n, ...)``.
        v: A direction: a tensor of the parameter's shape for each name; a name left out counts as zero.
    """
    params = _checked("jvp", model, params, x)
    wrong = [k for k in v if k not in params or v[k].shape != params[k].shape]
    if wrong:
        fix = "Use the names and shapes of modules.trainable(model)."
        raise ValueError(sentence("jvp", "v must fit the parameters that require grad", ", ".join(wrong), fix))
    tangent = {k: v[k].to(p.dtype) if k in v else torch.zeros_like(p) for k, p in params.items()}
    output, derivative, *_ = torch.func.jvp(lambda p: _call(model, p, x), (params,), (tangent,))
    return output, derivative


def vjp(model: nn.Module, params: Parameters | None, x: Tensor, u: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    r"""Output :math:`f(x; \theta)` and :math:`J_\theta(x)^\top u` by parameter name, in one backward pass.

    Args:
        model: The network :math:`f`, in ``eval`` mode where it has batch normalisation; it is not changed.
        params: :math:`\theta` by name; None for the model's parameters that require grad.
        x: Inputs ``(n, ...)``.
        u: One number for each output, ``(n, c)``; summed over rows.
    """
    params = _checked("vjp", model, params, x)
    output, pull, *_ = torch.func.vjp(lambda p: _call(model, p, x), params)
    if u.shape != output.shape:
        raise ValueError(sentence("vjp", f"u must have the output's shape {tuple(output.shape)}", tuple(u.shape)))
    (gradient,) = pull(u.to(output.dtype))
    return output, dict(gradient)


def _checked(where: str, model: nn.Module, params: Parameters | None, x: Tensor) -> dict[str, Tensor]:
    chosen = trainable(model) if params is None else dict(params)
    if not chosen:
        fix = "Unfreeze some with requires_grad_(True)."
        raise ValueError(sentence(where, "model must have parameters that require grad", "none", fix))
    same_device(where, "x", x.device, "model", next(iter(chosen.values())).device)
    return chosen


def _call(model: nn.Module, params: Parameters, x: Tensor) -> Tensor:
    output: Any = functional_call(unwrap(model), dict(params), (x,))
    return as_logits(output)
