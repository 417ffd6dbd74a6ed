"""Which layer of a network suits the labels, from one forward pass."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from .. import checks
from ..rows import Rows
from ..rows.loading import Data, load_labelled_rows
from ..signals.attention import plain_attention
from ..signals.capture import capture
from ..signals.embedding import run_model
from ..signals.private_copy import private_copy
from .comparison import ranked, ratio_row, spectra

_BATCH = 256
_log = logging.getLogger("mercer")


def layers(
    model: nn.Module,
    loader: Data,
    names: Sequence[str] | None = None,
    *,
    pool: bool = True,
    rows: int | None = 400,
    storage: str = "auto",
    tolerance: float = 1e-6,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """Rank the layers of a network by how well they suit the labels: read ``ratio``, the lowest first.

    The ratio of a layer is that of :func:`~mercer.spectral.compare` for the two-layer network on top of it. All layers
    are read in one forward pass of a private copy of the model in ``eval`` mode, with torch's fused attention switched
    off, since that skips layers.

    Args:
        model: Any module; it is not changed.
        loader: Batches ``(x, y)``.
        names: Names of ``model.named_modules()``; None takes the model's blocks, see :func:`find_blocks`.
        pool: Average maps ``(n, channels, ...)`` over places and sequences ``(n, tokens, d)`` over tokens; False
            flattens them.
        rows: At most this many rows, drawn at random; None takes all. A layer costs their cube.
        storage: As in :func:`~mercer.spectral.analyze`.
        tolerance: Relative accuracy of each complexity.
        generator: Draws the rows and the order of the shuffled labels; None is a fixed seed.

    Returns:
        One row a layer, by name: ``ratio``, ``complexity``, ``shuffled``.
    """
    x, targets = load_labelled_rows("layers", loader)
    seed = torch.Generator().manual_seed(0) if generator is None else generator

    # Of many rows some, this rank's share of them.
    n = Rows(x).n
    if rows is not None and n > checks.integer("layers", "rows", rows, 1):
        index = torch.randperm(len(x), generator=seed)[: max(1, rows * len(x) // n)].sort().values
        _log.info("layers: %d of %d rows are read.", len(index), len(x))
        x, targets = x[index], targets[index]
    x = x if x.ndim > 1 else x[:, None]

    # One pass: what comes out of each layer, (n, d).
    private = private_copy(model)
    wanted = find_blocks(private) if names is None else list(names)
    parts: dict[str, list[Tensor]] = {name: [] for name in wanted}
    with torch.no_grad(), plain_attention(), capture(private, wanted) as signals:
        for batch in x.split(_BATCH):
            run_model("layers", private, batch)
            for name, signal in signals.items():
                if signal.outputs and signal.output.ndim > 1 and len(signal.output) == len(batch):
                    parts[name].append(_flatten(signal.output, pool))
                signal.inputs.clear()
                signal.outputs.clear()

    # Layers that were not found by us must have answered for every row.
    outputs = {name: torch.cat(part) for name, part in parts.items() if sum(map(len, part)) == len(x)}
    missing = [name for name in wanted if name not in outputs]
    if missing and (names is not None or not outputs):
        need = f"layer {missing[0]!r} must run in forward and give one output for each row"
        fix = f"Leave names out, or choose among {', '.join(find_blocks(model))}."
        raise ValueError(checks.sentence("layers", need, "no such output", fix))
    found = spectra(outputs, x, targets, storage=storage, tolerance=tolerance, where="layers")
    return ranked(found, seed, ratio_row)


def find_blocks(model: nn.Module) -> list[str]:
    """Names of the blocks that a model is a sequence of: those with weight matrices, in order of definition.

    The model itself, ``nn.Sequential`` and whatever holds an ``nn.ModuleList`` are opened; other modules are blocks.

    >>> find_blocks(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.TransformerEncoderLayer(3, 1)))
    ['0', '2']
    """
    blocks: list[str] = []

    def open_module(module: nn.Module, name: str) -> None:
        lists = any(isinstance(part, nn.ModuleList | nn.ModuleDict) for part in module.modules())
        if module is model or isinstance(module, nn.Sequential) or lists:
            for child, part in module.named_children():
                open_module(part, f"{name}.{child}" if name else child)
        elif any(parameter.ndim > 1 for parameter in module.parameters()):
            blocks.append(name)

    open_module(model, "")
    if not blocks:
        need, fix = "model must hold blocks with weights", "Give names."
        raise ValueError(checks.sentence("layers", need, type(model).__name__, fix))
    return blocks


def _flatten(output: Tensor, pool: bool) -> Tensor:  # (n, ...) -> (n, d)
    if pool and output.ndim == 3:
        return output.mean(1)
    return output.flatten(2).mean(2) if pool and output.ndim > 3 else output.flatten(1)
