"""One line that gives a trained or fresh classifier a kernelised head."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
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
        rectify: False, and True alike, leave the ReLU on the embedding where the model has one: nothing but the last
            layer changes. ``"off"`` takes it off, so that embeddings use the whole sphere (jayasumana2021, Appendix
            D.4). It must be a module that is called once and stand before the head, with nothing but pooling, dropout
            and flattening between them. The layer before it becomes linear then.
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

    # The layer to swap.
    inner = unwrap(model)
    if layer is None:
        name, old = _find_readout(inner)
    else:
        name, named = layer, layer_named(inner, layer)
        if not isinstance(named, nn.Linear):
            raise TypeError(checks.sentence("kernelize", f"layer {name!r} must be an nn.Linear", type(named).__name__))
        old = named

    # The new head, in the old layer's place: its device, dtype and mode.
    pooled = place == "head"
    if head is not None:
        new = head(old.in_features, old.out_features)
    elif pooled:
        new = KernelClassifier(old.in_features, old.out_features)
    else:
        new = KernelClassifier(old.in_features, old.out_features, shared=_UNITS)
    if not isinstance(new, nn.Module):
        raise TypeError(checks.sentence("kernelize", "head must return an nn.Module", type(new).__name__))
    outer = new
    if not pooled:
        outer = BeforePooling(new, old.in_features)
    outer.to(device=old.weight.device, dtype=old.weight.dtype)
    outer.train(old.training)
    start = "new"
    if _take_over_weights(new, old):
        start = "taken over"

    # Swap it in; the ReLU before it stays unless it was asked off.
    relu = "left as it is"
    if rectify == "off":
        relu = take_relu_off(inner, name)
    parent, _, own_name = name.rpartition(".")
    setattr(inner.get_submodule(parent), own_name, outer)
    if isinstance(outer, BeforePooling):
        outer.attach_to(inner)

    # Put its weights where the classes are.
    if loader is not None:
        _start_from_rows(inner, name, loader)
        start = "from the loader"
    _log.info(
        "kernelize: %s, Linear(%d, %d), became %s; weights %s; ReLU before it: %s.",
        name, old.in_features, old.out_features, type(new).__name__, start, relu,
    )  # fmt: skip
    if isinstance(model, DistributedDataParallel):
        return _wrap_again(model)
    return model


def _start_from_rows(model: nn.Module, name: str, loader: Data) -> None:
    """Run the model over training rows, find the places, and put the head's weights where the classes are."""
    outer = model.get_submodule(name)
    copy = private_copy(model)
    reader = copy.get_submodule(name)

    # Listen to what the copy's head reads: embeddings, or a few places of every row.
    embeddings: list[Tensor] = []
    logits: list[Tensor] = []  # of the batch that runs
    labels: list[Tensor] = []
    reads_places = isinstance(reader, BeforePooling)
    target, argument, method = reader, 0, "forward"
    if isinstance(reader, BeforePooling):
        target, argument, method = reader.head, 1, "at_places"
    original = getattr(target, method)

    def read(*args: Tensor) -> Tensor:
        z = args[argument].detach()
        if reads_places:
            index = torch.linspace(0, z.shape[1] - 1, min(_PLACES, z.shape[1])).long()
            z = z[:, index.to(z.device)]
        embeddings.append(z)
        logits.append(original(*args))
        return logits[-1]

    setattr(target, method, read)

    # Run batches until there are enough rows.
    batches: Iterable[Any] = [loader]
    if isinstance(loader, Iterable) and not isinstance(loader, tuple):
        batches = loader
    with torch.no_grad():
        for batch in batches:
            output = run_model("kernelize", copy, batch)
            if not reads_places and len(embeddings) == len(labels) + 1 and embeddings[-1].ndim == 3:
                embeddings[-1] = _choose_answering_tokens(embeddings[-1], logits[-1], as_logits(output))
            logits.clear()
            labels.append(torch.as_tensor(_read_labels(batch)))
            if sum(map(len, labels)) >= _ROWS:
                break

    # The copy has found the places: name them to the head that stays, and start that one.
    head = outer
    if isinstance(outer, BeforePooling) and isinstance(reader, BeforePooling):
        head = outer.head
        if reader.source is not None:
            outer.settle(reader.source, reader.mask)
    if isinstance(head, KernelClassifier):
        z, y = torch.cat(embeddings), torch.cat(labels)
        if reads_places:
            z, y = z.flatten(0, 1), y.repeat_interleave(z.shape[1])
        head.init_from(z, y)


def _choose_answering_tokens(z: Tensor, logits: Tensor, output: Tensor) -> Tensor:
    """The token of each row whose logits the model gives as its output: (n, s, d), (n, s, c), (n, c) -> (n, d)."""
    if output.shape == (len(z), logits.shape[-1]):
        same = (logits == output.to(logits.dtype)[:, None]).all(2)  # (n, s)
        if bool(same.any(1).all()):
            # Tokens with equal logits: the last, where padding on the right does not come into play.
            last = same.shape[1] - 1 - same.flip(1).int().argmax(1)
            return z[torch.arange(len(z), device=z.device), last]
    need = "with loader= the head must read one embedding a row, or the model answer with the logits of one token"
    came = f"embeddings {tuple(z.shape)} and an output {tuple(output.shape)} that is none of their logits"
    raise ValueError(checks.sentence("kernelize", need, came, "Leave loader out, or call the head's init_from."))


def _read_labels(batch: Any) -> Any:
    """The labels of a batch: the second of a pair, or what a dictionary calls labels or label."""
    if isinstance(batch, Mapping):
        labels = batch.get("labels", batch.get("label"))
        if labels is not None:
            return labels
    elif isinstance(batch, tuple | list) and len(batch) > 1:
        return batch[1]
    need = "loader must give pairs (x, y), or dictionaries with labels"
    raise ValueError(checks.sentence("kernelize", need, type(batch).__name__, "Use DataLoader(TensorDataset(x, y))."))


def _find_readout(model: nn.Module) -> tuple[str, nn.Linear]:
    """The layer that makes the logits: timm's own answer, else the last linear layer, if none stands beside it."""
    # A timm model knows.
    answers: Any = None
    ask = getattr(model, "get_classifier", None)
    if callable(ask):
        answers = ask()
    if not isinstance(answers, tuple | list):
        answers = [answers]
    names = {id(module): name for name, module in model.named_modules()}
    linear = [module for module in answers if isinstance(module, nn.Linear)]
    if len(linear) == 1 and names.get(id(linear[0])):
        return names[id(linear[0])], linear[0]
    if len(linear) > 1:
        _refuse_several([names.get(id(module), "?") for module in linear])

    # Another model: its last linear layer.
    layers = {name: m for name, m in find_layers(model, nn.Linear).items() if isinstance(m, nn.Linear) and name}
    if not layers:
        kinds = ", ".join(sorted({type(m).__name__ for m in model.modules()})[:8])
        fix = "A model that is one Linear has nothing to swap in: put it into an nn.Sequential."
        raise ValueError(checks.sentence("kernelize", "model must hold an nn.Linear to swap", kinds, fix))
    last_name, last = list(layers.items())[-1]

    # A second head reads the same embedding and nothing reads it in turn: the user has to say which one is meant.
    widths_read = {m.in_features for m in layers.values()}
    beside = []
    for name, module in layers.items():
        as_deep = name.count(".") <= last_name.count(".")
        read_in_turn = module.out_features in widths_read
        same_embedding = module.in_features == last.in_features and module.weight is not last.weight
        if name != last_name and as_deep and same_embedding and not read_in_turn:
            beside.append(name)
    if beside:
        _refuse_several([*beside, last_name])
    return last_name, last


def _refuse_several(names: list[str]) -> None:
    need = "model must have one read-out layer, or layer= must name it"
    raise ValueError(checks.sentence("kernelize", need, " and ".join(names), f"Use layer={names[-1]!r}."))


def _take_over_weights(new: nn.Module, old: nn.Linear) -> bool:
    """Start the new head from the old layer's weights, where the shapes allow; whether they did."""
    if old.weight.is_meta:
        return False
    if isinstance(new, SharedUnits):
        # Shared units start silent beside the old layer, so that a trained model gives its old logits.
        if new.temperature is not None:
            return False
        with torch.no_grad():
            new.skip.weight.copy_(old.weight)
            new.readout.weight.zero_()
            if new.bias is not None and old.bias is not None:
                new.bias.copy_(old.bias)
        return True
    weight = getattr(new, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return False
    copies, remainder = divmod(len(weight), old.out_features)
    if remainder or copies == 0 or weight.shape[1] != old.in_features:
        return False
    with torch.no_grad():
        # As directions, once for each prototype, with a little noise to tell the prototypes apart.
        directions = old.weight.detach().repeat_interleave(copies, 0)
        if copies > 1:
            length = directions.float().norm(dim=1, keepdim=True).to(directions.dtype) / directions.shape[1] ** 0.5
            directions = directions + _SPREAD * length * torch.randn_like(directions)
        weight.copy_(directions)
        linear = getattr(new, "linear", None)
        if isinstance(new, KernelClassifier) and isinstance(linear, Tensor):
            linear.copy_(old.weight)
        bias = getattr(new, "bias", None)
        if isinstance(bias, Tensor) and old.bias is not None and bias.shape == old.bias.shape:
            bias.copy_(old.bias)
    return True


def _wrap_again(model: DistributedDataParallel) -> DistributedDataParallel:
    """A new wrapper around the model, with the old one's options: the old one would not sum the new gradients."""
    wrapper = DistributedDataParallel(
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
    setattr(wrapper, name, getattr(model, name))
    return wrapper
