"""Which layer of a network suits the labels, from one forward pass."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from .. import checks
from ..distributed import global_slice
from ..rows.loading import Data, load_labelled_rows
from ..signals.capture import capture
from ..signals.embedding import run_model
from ..signals.private_copy import private_copy
from .comparison import ranked, ratio_row, spectra

_BATCH = 256
_log = logging.getLogger("mercer")


def layers(
    model: nn.Module,
    loader: Data,
    names: Sequence[str],
    *,
    pool: bool = True,
    rows: int | None = 1000,
    storage: str = "auto",
    tolerance: float = 1e-6,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """Rank the layers of a network by how well they suit the labels: read ``ratio``, the lowest first.

    The ratio of a layer is that of :func:`~mercer.spectral.compare` for the two-layer network on top of it. All layers
    are read in one forward pass of a private copy of the model in ``eval`` mode.

    Args:
        model: Any module; it is not changed.
        loader: Batches ``(x, y)``.
        names: Names of ``model.named_modules()``.
        pool: Average maps ``(n, channels, ...)`` over places and sequences ``(n, tokens, d)`` over tokens; False
            flattens them.
        rows: At most this many rows, drawn at random; None takes all.
        storage: As in :func:`~mercer.spectral.analyze`.
        tolerance: Relative accuracy of each complexity.
        generator: Draws the rows and the order of the shuffled labels; None is a fixed seed.

    Returns:
        One row a layer, by name: ``ratio``, ``complexity``, ``shuffled``.
    """
    x, targets = load_labelled_rows("layers", loader)
    if targets is None:
        raise ValueError(checks.sentence("layers", "loader must give labels", "rows only", "Use batches (x, y)."))
    seed = torch.Generator().manual_seed(0) if generator is None else generator
    n = global_slice(len(x))[1]
    if rows is not None and n > checks.integer("layers", "rows", rows, 1):
        kept = torch.randperm(len(x), generator=seed)[: max(1, rows * len(x) // n)].sort().values
        _log.info("layers: %d of %d rows are read.", len(kept), len(x))
        x, targets = x[kept], targets[kept]
    read = _outputs(model, x, names, pool)
    found = spectra(
        read, x if x.ndim > 1 else x[:, None], targets, storage=storage, tolerance=tolerance, where="layers"
    )
    return ranked(found, seed, ratio_row)


def _outputs(model: nn.Module, x: Tensor, names: Sequence[str], pool: bool) -> dict[str, Tensor]:
    """What comes out of each layer, ``(n, d)``, all from one pass over the rows."""
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    own = private_copy(model)
    with torch.no_grad(), capture(own, names) as seen:
        for batch in (x if x.ndim > 1 else x[:, None]).split(_BATCH):
            run_model("layers", own, batch)
            for name, part in parts.items():
                part.append(_flat(seen[name].output, pool))
                seen[name].inputs.clear()
                seen[name].outputs.clear()
    return {name: torch.cat(part) for name, part in parts.items()}


def _flat(output: Tensor, pool: bool) -> Tensor:  # (n, ...) -> (n, d)
    if pool and output.ndim == 3:
        return output.mean(1)
    return output.flatten(2).mean(2) if pool and output.ndim > 3 else output.flatten(1)
