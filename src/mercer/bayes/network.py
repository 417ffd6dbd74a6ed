"""The user's network as a posterior runs it: a copy of its own, so that the user's is never changed."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..checks import sentence
from ..rows.packing import PackedNetwork, Packing
from ..rows.rows import Rows
from ..rows.stored import Readable
from ..signals.attention import plain_attention
from ..signals.layers import as_logits, trainable, unwrap
from ..signals.private_copy import private_copy
from ..storage.savable import Savable

_LOCK = threading.RLock()


def own_network(model: nn.Module, counted: Collection[str] | None = None, packing: Packing | None = None) -> nn.Module:
    """A copy in ``eval`` mode, without hooks, whose weights share the model's memory; half precision becomes float32.

    The parameters are objects of their own: nothing that is done to the copy, in any thread, shows on the model.

    Args:
        model: The user's network.
        counted: Parameters that shall require grad; None for those of the model that do.
        packing: How a network of several arguments takes rows; the copy then takes packed ones.
    """
    network = private_copy(model)
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in network.parameters()):
        # Half precision is too coarse for derivatives: the copy then has weights of its own.
        network = copy.deepcopy(network).float()
    prefix = ""
    if packing is not None:
        network, prefix = PackedNetwork(network, packing), "model."
    if counted is None:  # asked of the model: a copy of TorchScript may have lost requires_grad
        counted = trainable(model)

    # New parameter objects that share the memory, one for each of the old, so that tied weights stay tied.
    fresh = {id(p): nn.Parameter(p.detach(), n.removeprefix(prefix) in counted) for n, p in network.named_parameters()}
    for module in network.modules():
        for name, p in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, name, fresh[id(p)])
    return network


def zero_row(x: Readable) -> Tensor:  # (n, ...) -> (1, ...)
    """A row of zeros like these: a rank without rows runs it to learn the shapes of what it must give."""
    return torch.zeros(1, *x.shape[1:], dtype=x.dtype, device=x.device)


def draw_seed(generator: torch.Generator | None) -> int:
    """A random seed, the first rank's on all ranks."""
    return int(Rows(torch.randint(2**31 - 1, (1,), generator=generator)).take(torch.tensor([0])))


@contextmanager
def one_thread_at_a_time() -> Iterator[None]:
    """Wait for other threads, and take attention in plain operations, which have all derivatives.

    torch keeps the level of forward-mode derivatives and its choice of attention in globals: two threads at once would
    spoil each other's numbers.
    """
    with _LOCK, plain_attention():
        yield


class Unattached(nn.Module):
    """Stands where the user's network will be, after ``mercer.load``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def error(self, where: str) -> RuntimeError:
        """What to do about it."""
        fix = "Call attach(model) with the network that it was fitted on."
        return RuntimeError(sentence(where, "a network must be attached first", "a posterior from a file", fix))


class SavedWithoutNetwork(Savable):
    """An object that is saved without the user's network: ``mercer.load(folder).attach(model)`` gives it one again."""

    model: nn.Module
    weights_: dict[str, list[float]]

    def attach(self, model: nn.Module) -> Self:
        """Give what came from ``mercer.load`` its network, which must hold the weights of the fit."""
        check_weights(f"{type(self).__name__}.attach", model, getattr(self, "weights_", {}), every=self._all_count())
        self.model = unwrap(model)
        return self

    def _all_count(self) -> bool:
        """Whether every parameter that requires grad is a weight that counts."""
        return True

    @override
    def get_arguments(self) -> dict[str, Any]:
        """All but the network, which is the user's to save."""
        return {name: value for name, value in super().get_arguments().items() if name != "model"}

    @classmethod
    @override
    def from_arguments(cls, arguments: Any) -> Self:
        """An object that waits for its network."""
        return super().from_arguments({"model": Unattached(), **arguments})


def weights_of(model: nn.Module, counted: Collection[str] | None = None) -> dict[str, list[float]]:
    """Number and norm of each parameter that counts, to know the network by."""
    parameters = trainable(model)
    if counted is not None:
        parameters = {n: p for n, p in model.named_parameters() if n in counted}
    return {name: [p.numel(), _norm(p)] for name, p in parameters.items()}


def check_weights(where: str, model: nn.Module, known: Mapping[str, list[float]], *, every: bool = True) -> None:
    """Refuse a network other than the one the posterior was fitted on.

    Args:
        where: Who asks.
        model: The network offered.
        known: What :func:`weights_of` said at the fit.
        every: The parameters that require grad must be these and no others.

    Raises:
        ValueError: Other parameters require grad, or their values differ.
    """
    parameters = trainable(model)
    if not every:
        parameters = {n: p for n, p in model.named_parameters() if n in known}
    unlike_fit = sorted(parameters.keys() ^ known.keys())
    if unlike_fit:
        need, fix = f"parameters that require grad must be {', '.join(known)}", "Freeze and unfreeze as it was at fit."
        raise ValueError(sentence(where, need, unlike_fit[0], fix))
    for name, (size, norm) in known.items():
        count, norm_now = parameters[name].numel(), _norm(parameters[name])
        if count != size or not math.isclose(norm_now, norm, rel_tol=1e-5, abs_tol=1e-12):
            got = f"{count} numbers of norm {norm_now:.6g}"
            fix = "Load the weights that the posterior was fitted at."
            raise ValueError(sentence(where, f"{name} must hold {size:.0f} numbers of norm {norm:.6g}", got, fix))


def _norm(p: Tensor) -> float:
    return float(p.detach().double().norm())


def flat_logits(output: Any) -> Tensor:  # -> (n, c)
    """A network's outputs as a matrix; one number a row is one column."""
    logits = as_logits(output)
    if logits.ndim == 1:
        return logits[:, None]
    return logits.reshape(len(logits), -1)
