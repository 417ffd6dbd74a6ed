"""Several representations against the same targets: kernels, maps, embeddings, the layers of a network."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from .. import checks
from ..kernels import Kernel, ReLUGram
from ..rows.loading import Data, load_labelled_rows, load_rows
from ..rows.rows import Rows
from ..signals.attention import plain_attention
from ..signals.capture import capture
from ..signals.embedding import run_model
from ..signals.private_copy import private_copy
from .analysis import DEFAULT_K, gather, resolve, target_columns
from .gram_matrices import gram_matrices
from .spectrum import Spectrum, complexity_ratio, proof

Candidate: TypeAlias = Kernel | nn.Module | Tensor | NDArray[Any]

_STEPS = 100  # of the predicted residual
_BATCH = 256
_log = logging.getLogger("mercer")


def spectra(
    candidates: Mapping[str, Candidate],
    x: Data,
    targets: ArrayLike | Tensor | None = None,
    *,
    k: int = DEFAULT_K,
    storage: str = "auto",
    tolerance: float = 1e-6,
    where: str = "spectra",
) -> dict[str, Spectrum]:
    """The spectrum of every candidate; those that read the same rows share one pass over their scalar products.

    Args:
        candidates: By name: a kernel is H itself, as in :func:`analyze`; a feature map, or embeddings ``(n, m)`` of
            the rows of ``x``, stand for the two-layer ReLU network on top of them, ``ReLUGram``.
        x: Rows, or a loader.
        targets: As in :func:`analyze`.
        k: Eigenvalues of each, at most n.
        storage: As in :func:`analyze`.
        tolerance: Relative accuracy of each complexity.
        where: The caller's name, for messages.
    """
    x, targets = gather(where, x, targets)
    if not candidates:
        raise ValueError(checks.sentence(where, "candidates must name at least one", "none"))
    if x.is_floating_point():
        x = x.double()  # cast once, so that kernels see that they share it
    columns = target_columns(where, targets, len(x)).to(x.device)

    # The kernel that is H, and the rows that it reads; embeddings are rows of their own.
    resolved: dict[str, tuple[Kernel, Tensor]] = {}
    for name, candidate in candidates.items():
        if isinstance(candidate, Tensor | np.ndarray):
            embeddings = Rows(checks.matrix(where, name, load_rows(where, candidate, name))).gather()
            checks.same_length(where, name, embeddings, "x", x)
            resolved[name] = ReLUGram(), checks.squarable(where, name, embeddings.double())
        else:
            resolved[name] = resolve(where, candidate, x)

    # Candidates that read the same rows share one pass over the tiles.
    groups: dict[int, list[str]] = {}
    for name, (_, points) in resolved.items():
        groups.setdefault(id(points), []).append(name)
    named: dict[str, Spectrum] = {}
    for names in groups.values():
        points = resolved[names[0]][1]
        grams = gram_matrices(where, [resolved[name][0] for name in names], points, storage)
        for name, gram in zip(names, grams, strict=True):
            floor = proof(resolved[name][0], points, gram)
            named[name] = Spectrum(gram, columns, k=min(k, len(x)), floor=floor, tolerance=tolerance)
    return {name: named[name] for name in candidates}


def compare(
    candidates: Mapping[str, Candidate],
    x: Data,
    targets: ArrayLike | Tensor | None = None,
    *,
    storage: str = "auto",
    tolerance: float = 1e-6,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """A table of representations, the most promising first: the number to read is ``ratio``.

    It is the complexity of the targets over that of the same targets in random order: 1 means that they look like noise
    to the representation, 0 that they are nothing but its leading directions. It does not change when a kernel is
    multiplied by a number.

    Args:
        candidates: By name, as in :func:`spectra`.
        x: Rows, or a loader.
        targets: As in :func:`analyze`.
        storage: As in :func:`analyze`.
        tolerance: Relative accuracy of each complexity.
        generator: Order of the shuffled targets; None is a fixed seed.

    Returns:
        One row a candidate, by name, sorted by ``ratio``; then ``complexity``, ``shuffled`` (the same with the targets
        in random order), ``scaled`` (complexity times the mean of H's diagonal), ``bound`` (Arora et al.), ``residual``
        (predicted after 100 steps at half the largest stable rate), ``largest_stable_lr``, ``alignment``,
        ``effective_dimension``. Singular kernels come last.
    """
    # Rank by the ratio, which needs two complexities; then what a reader may want to know beside it.
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    named = spectra(candidates, x, targets, storage=storage, tolerance=tolerance, where="compare")
    frame = rank_spectra(named, generator)
    ranked = [named[name] for name in frame.index.tolist()]
    curves = [spectrum.convergence(0.5 * spectrum.largest_stable_lr, _STEPS) for spectrum in ranked]
    return frame.assign(
        scaled=[spectrum.complexity * spectrum.mean_diagonal for spectrum in ranked],
        bound=[spectrum.bound for spectrum in ranked],
        residual=[float(curve[-1] / curve[0]) for curve in curves],
        largest_stable_lr=[spectrum.largest_stable_lr for spectrum in ranked],
        alignment=[spectrum.alignment for spectrum in ranked],
        effective_dimension=[spectrum.effective_dimension for spectrum in ranked],
    )


def rank_spectra(named: Mapping[str, Spectrum], generator: torch.Generator) -> pd.DataFrame:
    """``ratio`` and the two numbers it is made of, by name; sorted by ``ratio``, singular kernels last."""
    # The generator starts each spectrum's shuffle in the same state, so that all meet the same order.
    state, table = generator.get_state(), {}
    for name, spectrum in named.items():
        generator.set_state(state)
        control = spectrum.shuffled(generator).complexity
        ratio = complexity_ratio(spectrum.complexity, control)
        table[name] = {"ratio": ratio, "complexity": spectrum.complexity, "shuffled": control}
    frame = pd.DataFrame.from_dict(table, orient="index")
    singular = frame["complexity"].isin([math.inf])
    order = frame.assign(_singular=singular).sort_values(["_singular", "ratio"], kind="stable").index
    return frame.loc[order]


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
    if generator is None:
        generator = torch.Generator().manual_seed(0)

    # Of many rows some, this rank's share of them.
    n = Rows(x).n
    if rows is not None and n > checks.integer("layers", "rows", rows, 1):
        index = torch.randperm(len(x), generator=generator)[: max(1, rows * len(x) // n)].sort().values
        _log.info("layers: %d of %d rows are read.", len(index), len(x))
        x, targets = x[index], targets[index]
    if x.ndim == 1:
        x = x[:, None]

    # One pass: what comes out of each layer, (n, d).
    private = private_copy(model)
    if names is None:
        layer_names = find_blocks(private)
    else:
        layer_names = list(names)
    parts: dict[str, list[Tensor]] = {name: [] for name in layer_names}
    with torch.no_grad(), plain_attention(), capture(private, layer_names) as signals:
        for batch in x.split(_BATCH):
            run_model("layers", private, batch)
            for name, signal in signals.items():
                if signal.outputs and signal.output.ndim > 1 and len(signal.output) == len(batch):
                    parts[name].append(flatten_output(signal.output, pool))
                signal.inputs.clear()
                signal.outputs.clear()

    # Layers that the user named must have given an output for every row.
    outputs = {name: torch.cat(part) for name, part in parts.items() if sum(map(len, part)) == len(x)}
    missing = [name for name in layer_names if name not in outputs]
    if missing and (names is not None or not outputs):
        need = f"layer {missing[0]!r} must run in forward and give one output for each row"
        fix = f"Leave names out, or choose among {', '.join(find_blocks(model))}."
        raise ValueError(checks.sentence("layers", need, "no such output", fix))
    named = spectra(outputs, x, targets, storage=storage, tolerance=tolerance, where="layers")
    return rank_spectra(named, generator)


def find_blocks(model: nn.Module) -> list[str]:
    """Names of the blocks that a model is a sequence of: those with weight matrices, in order of definition.

    The model itself, ``nn.Sequential`` and whatever holds an ``nn.ModuleList`` are opened; other modules are blocks.

    >>> find_blocks(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.TransformerEncoderLayer(3, 1)))
    ['0', '2']
    """
    blocks: list[str] = []

    def open_module(module: nn.Module, name: str) -> None:
        # Whatever holds a list of blocks is itself a sequence of them.
        lists = any(isinstance(part, nn.ModuleList | nn.ModuleDict) for part in module.modules())
        if module is model or isinstance(module, nn.Sequential) or lists:
            for child, part in module.named_children():
                open_module(part, f"{name}.{child}".lstrip("."))
        elif any(parameter.ndim > 1 for parameter in module.parameters()):
            blocks.append(name)

    open_module(model, "")
    if not blocks:
        need, fix = "model must hold blocks with weights", "Give names."
        raise ValueError(checks.sentence("layers", need, type(model).__name__, fix))
    return blocks


def flatten_output(output: Tensor, pool: bool) -> Tensor:  # (n, ...) -> (n, d)
    """A layer's output as rows; ``pool`` averages sequences over tokens and maps over places."""
    if pool and output.ndim == 3:
        return output.mean(1)
    if pool and output.ndim > 3:
        return output.flatten(2).mean(2)
    return output.flatten(1)
