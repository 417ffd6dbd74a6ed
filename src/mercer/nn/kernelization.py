"""One line that gives a trained or fresh classifier a kernelised head."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .. import checks
from ..rows.loading import Data
from ..signals.embedding import run_model
from ..signals.layers import as_logits, find_layers, unwrap
from ..signals.layers import layer as layer_named
from ..signals.private_copy import private_copy
from .before_pooling import BeforePooling
from .kernel_classifier import KernelClassifier
from .rectification import take_relu_off
from .shared_units import SharedUnits

_log = logging.getLogger("mercer")
_UNITS = 128  # shared units before pooling, where no head is given
_ROWS = 20_000  # that the start of a head looks at
_PLACES = 4  # of each of them
_SPREAD = 1e-2  # how far the prototypes of one class start from each other, relative to their length


def kernelize(
    model: nn.Module,
    *,
    layer: str | None = None,
    head: Callable[[int, int], nn.Module] | None = None,
    rectify: bool | str = False,
    place: str = "head",
    loader: Data | None = None,
) -> nn.Module:
    """Swap the last linear layer of a classifier for a kernelised one, in place; nothing else of the model changes.

    The new head lives on the device and in the dtype of the old layer and starts from its weights where the shapes
    allow; it trains, also where the model was frozen. What was done is logged to ``mercer`` at level INFO.

    A model wrapped in ``DistributedDataParallel`` comes back in a new wrapper (the old one would not sum the new
    gradients): use the returned model.

    Args:
        model: A classifier of torch, timm or transformers, or your own.
        layer: The name, in ``model.named_modules()``, of the ``nn.Linear`` to swap; None to find it: the one that
            timm's ``get_classifier()`` gives, else the last of the model.
        head: ``head(in_features, num_classes)`` makes the new one; None for ``KernelClassifier``, before pooling with
            128 shared units.
        rectify: False (and True) leave the embedding as the model has it: nothing but the last layer changes.
            ``"off"`` takes the last ReLU off, so that embeddings use the whole sphere (jayasumana2021, Appendix D.4).
            It must be a module that is called once and stand before the head, with nothing but pooling, dropout and
            flattening between them. The layer before it becomes linear then.
        place: ``"head"``: the head reads the pooled embedding. ``"before_pooling"``: kernel values are taken at every
            place of a map, or at every token that is not masked, and averaged; the first pass finds where (a plain one,
            not a compiled one). The head is then found at ``<layer>.head``. A model whose head reads every token, and
            which then picks the logits of one, gets the same average at each token.
        loader: Batches ``(x, y)``, or dictionaries with ``labels``, of training rows. The head's weights then start
            where the classes are (``head.init_from``), and ``prototypes="auto"`` is settled. Where the head reads every
            token, a row is the token whose logits the model answers with: the last, in GPT-2 and Llama.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    >>> kernelize(model)[2].weight.shape
    torch.Size([3, 16])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(checks.sentence("kernelize", "model must be an nn.Module", type(model).__name__))
    checks.choice("kernelize", "place", place, ("head", "before_pooling"))
    if not isinstance(rectify, bool) and rectify != "off":
        raise ValueError(checks.sentence("kernelize", "rectify must be False or 'off'", repr(rectify)))
    inner = unwrap(model)
    name, old = _find(inner) if layer is None else (layer, _checked(inner, layer))
    pooled = place == "head"
    make = head if head is not None else KernelClassifier if pooled else partial(KernelClassifier, shared=_UNITS)
    new = make(old.in_features, old.out_features)
    if not isinstance(new, nn.Module):
        raise TypeError(checks.sentence("kernelize", "head must return an nn.Module", type(new).__name__))
    outer = new if pooled else BeforePooling(new, old.in_features)
    outer.to(device=old.weight.device, dtype=old.weight.dtype)
    outer.train(old.training)
    warm = _warm_start(new, old)
    relu = take_relu_off(inner, name) if rectify == "off" else "left as it is"
    parent, _, own = name.rpartition(".")
    setattr(inner.get_submodule(parent), own, outer)
    if isinstance(outer, BeforePooling):
        outer.attach_to(inner)
    if loader is not None:
        _start_from(inner, name, loader)
    _log.info(
        "kernelize: %s, Linear(%d, %d), became %s; weights %s; ReLU before it: %s.",
        name, old.in_features, old.out_features, type(new).__name__,
        "from the loader" if loader is not None else "taken over" if warm else "new", relu,
    )  # fmt: skip
    return _wrapped_again(model) if isinstance(model, DistributedDataParallel) else model


def _start_from(model: nn.Module, name: str, loader: Data) -> None:
    """Run the model over training rows, find the places, and put the head's weights where the classes are."""
    outer = model.get_submodule(name)
    own = private_copy(model)
    reader = own.get_submodule(name)
    embeddings: list[Tensor] = []
    logits: list[Tensor] = []  # of the batch that runs
    labels: list[Tensor] = []
    # What the head reads: embeddings, or a few places of every row.
    target, at = (reader.head, 1) if isinstance(reader, BeforePooling) else (reader, 0)
    method = "at_places" if at else "forward"
    original = getattr(target, method)

    def read(*args: Tensor) -> Tensor:
        z = args[at].detach()
        if at:
            chosen = torch.linspace(0, z.shape[1] - 1, min(_PLACES, z.shape[1])).long()
            z = z[:, chosen.to(z.device)]
        embeddings.append(z)
        logits.append(original(*args))
        return logits[-1]

    setattr(target, method, read)
    with torch.no_grad():
        for batch in loader if isinstance(loader, Iterable) and not isinstance(loader, tuple) else [loader]:
            output = run_model("kernelize", own, batch)
            if not at and len(embeddings) == len(labels) + 1 and embeddings[-1].ndim == 3:
                embeddings[-1] = _answering_tokens(embeddings[-1], logits[-1], as_logits(output))
            logits.clear()
            labels.append(torch.as_tensor(_labels(batch)))
            if sum(map(len, labels)) >= _ROWS:
                break
    if isinstance(outer, BeforePooling) and isinstance(reader, BeforePooling) and reader.source is not None:
        outer.settle(reader.source, reader.mask)
    inside = outer.head if isinstance(outer, BeforePooling) else outer
    if isinstance(inside, KernelClassifier):
        z, y = torch.cat(embeddings), torch.cat(labels)
        if at:
            z, y = z.flatten(0, 1), y.repeat_interleave(z.shape[1])
        inside.init_from(z, y)


def _answering_tokens(z: Tensor, logits: Tensor, output: Tensor) -> Tensor:  # (n, s, d), (n, s, c), (n, c) -> (n, d)
    """The token of each row whose logits the model gives as its output, unchanged."""
    if output.shape == (len(z), logits.shape[-1]):
        same = (logits == output.to(logits.dtype)[:, None]).all(2)  # (n, s)
        if bool(same.any(1).all()):
            # Tokens with equal logits: the last, where padding on the right does not come into play.
            last = same.shape[1] - 1 - same.flip(1).int().argmax(1)
            return z[torch.arange(len(z), device=z.device), last]
    need = "with loader= the head must read one embedding a row, or the model answer with the logits of one token"
    came = f"embeddings {tuple(z.shape)} and an output {tuple(output.shape)} that is none of their logits"
    raise ValueError(checks.sentence("kernelize", need, came, "Leave loader out, or call the head's init_from."))


def _labels(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        found = batch.get("labels", batch.get("label"))
        if found is not None:
            return found
    elif isinstance(batch, tuple | list) and len(batch) > 1:
        return batch[1]
    need = "loader must give pairs (x, y), or dictionaries with labels"
    raise ValueError(checks.sentence("kernelize", need, type(batch).__name__, "Use DataLoader(TensorDataset(x, y))."))


def _find(model: nn.Module) -> tuple[str, nn.Linear]:
    """The read-out: timm's own answer, else the last linear layer, unless a second one stands beside it."""
    names = {id(module): name for name, module in model.named_modules()}
    ask = getattr(model, "get_classifier", None)
    answer = ask() if callable(ask) else None
    found = [m for m in (answer if isinstance(answer, tuple | list) else [answer]) if isinstance(m, nn.Linear)]
    if len(found) == 1 and names.get(id(found[0])):
        return names[id(found[0])], found[0]
    if len(found) > 1:
        _refuse_several([names.get(id(m), "?") for m in found])
    layers = {name: m for name, m in find_layers(model, nn.Linear).items() if isinstance(m, nn.Linear) and name}
    if not layers:
        kinds = ", ".join(sorted({type(m).__name__ for m in model.modules()})[:8])
        fix = "A model that is one Linear has nothing to swap in: put it into an nn.Sequential."
        raise ValueError(checks.sentence("kernelize", "model must hold an nn.Linear to swap", kinds, fix))
    name, last = list(layers.items())[-1]
    beside = [other for other, m in layers.items() if other != name and _is_beside(other, m, name, last, layers)]
    if beside:
        _refuse_several([*beside, name])
    return name, last


def _is_beside(name: str, module: nn.Linear, last_name: str, last: nn.Linear, layers: dict[str, nn.Linear]) -> bool:
    """Whether a layer reads the same embedding and nothing reads it in turn: a second head, not a layer on the way."""
    as_deep = name.count(".") <= last_name.count(".")
    read = any(m.in_features == module.out_features for m in layers.values())
    return as_deep and module.in_features == last.in_features and not read and module.weight is not last.weight


def _refuse_several(names: list[str]) -> None:
    need = "model must have one read-out layer, or layer= must name it"
    raise ValueError(checks.sentence("kernelize", need, " and ".join(names), f"Use layer={names[-1]!r}."))


def _checked(model: nn.Module, name: str) -> nn.Linear:
    found = layer_named(model, name)
    if not isinstance(found, nn.Linear):
        raise TypeError(checks.sentence("kernelize", f"layer {name!r} must be an nn.Linear", type(found).__name__))
    return found


def _warm_start(new: nn.Module, old: nn.Linear) -> bool:
    """Take over the old weights: as directions, once for each prototype with a little noise between them."""
    if isinstance(new, SharedUnits):
        return _as_the_old(new, old)
    weight = getattr(new, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or old.weight.is_meta:
        return False
    copies, rest = divmod(len(weight), old.out_features)
    if rest or copies == 0 or weight.shape[1] != old.in_features:
        return False
    with torch.no_grad():
        start = old.weight.detach().repeat_interleave(copies, 0)
        if copies > 1:
            length = start.float().norm(dim=1, keepdim=True).to(start.dtype) / start.shape[1] ** 0.5
            start = start + _SPREAD * length * torch.randn_like(start)
        weight.copy_(start)
        linear = getattr(new, "linear", None)
        if isinstance(new, KernelClassifier) and isinstance(linear, Tensor):
            linear.copy_(old.weight)
        bias = getattr(new, "bias", None)
        if isinstance(bias, Tensor) and old.bias is not None and bias.shape == old.bias.shape:
            bias.copy_(old.bias)
    return True


def _as_the_old(new: SharedUnits, old: nn.Linear) -> bool:
    """Shared units start silent beside the old layer, so that a trained model gives its old logits."""
    if old.weight.is_meta or new.temperature is not None:
        return False
    with torch.no_grad():
        new.skip.weight.copy_(old.weight)
        new.readout.weight.zero_()
        if new.bias is not None and old.bias is not None:
            new.bias.copy_(old.bias)
    return True


def _wrapped_again(model: DistributedDataParallel) -> DistributedDataParallel:
    wrapped = DistributedDataParallel(
        model.module,
        device_ids=model.device_ids,
        output_device=model.output_device,
        dim=model.dim,
        process_group=model.process_group,
        find_unused_parameters=model.find_unused_parameters,
        gradient_as_bucket_view=model.gradient_as_bucket_view,
        static_graph=model.static_graph,
    )
    # The argument for this was renamed between versions of torch; the attribute is there in all of them.
    name = "forward_sync_buffers" if hasattr(model, "forward_sync_buffers") else "broadcast_buffers"
    setattr(wrapped, name, getattr(model, name))
    return wrapped
