"""Several representations against the same targets: kernels, maps, embeddings, the layers of a network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from .. import checks
from ..distributed import gather_rows
from ..kernels import Kernel, ReLUGram
from ..modules import Data, embeddings, labelled_rows, rows
from .analysis import DEFAULT_K, gather, prover, resolve, target_columns
from .gram_matrices import gram_matrices
from .spectrum import Spectrum

__all__ = ["compare", "layers", "spectra"]

Candidate: TypeAlias = Kernel | nn.Module | Tensor | NDArray[Any]

_STEPS = 100
_BATCH = 256


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
    x = x.double() if x.is_floating_point() else x  # cast once, so that kernels see that they share it
    columns = target_columns(where, targets, len(x)).to(x.device)
    chosen = {name: _resolve(where, name, candidate, x) for name, candidate in candidates.items()}
    groups: dict[int, list[str]] = {}
    for name, (_, points) in chosen.items():
        groups.setdefault(id(points), []).append(name)
    found: dict[str, Spectrum] = {}
    for names in groups.values():
        points = chosen[names[0]][1]
        grams = gram_matrices(where, [chosen[name][0] for name in names], points, storage)
        for name, gram in zip(names, grams, strict=True):
            floor = prover(chosen[name][0], points)
            found[name] = Spectrum(gram, columns, k=min(k, len(x)), floor=floor, tolerance=tolerance)
    return {name: found[name] for name in candidates}


def compare(
    candidates: Mapping[str, Candidate],
    x: Data,
    targets: ArrayLike | Tensor | None = None,
    *,
    storage: str = "auto",
    tolerance: float = 1e-6,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """A table of representations, the most promising first.

    Ranked by ``scaled``, the complexity times the mean of H's diagonal, which does not change when a kernel is
    multiplied by a number (for ``ReLUGram`` it is half the complexity).

    Args:
        candidates: By name, as in :func:`spectra`.
        x: Rows, or a loader.
        targets: As in :func:`analyze`.
        storage: As in :func:`analyze`.
        tolerance: Relative accuracy of each complexity.
        generator: Order of the shuffled targets; None is a fixed seed.

    Returns:
        One row a candidate, by name: ``complexity``, ``scaled``, ``shuffled`` (the same with the targets in random
        order), ``ratio`` (complexity over shuffled: 1 means that the targets look like noise), ``bound`` (Arora et
        al.), ``residual`` (predicted after 100 steps at half the largest stable rate), ``largest_stable_lr``,
        ``alignment``, ``effective_dimension``.
    """
    found = spectra(candidates, x, targets, storage=storage, tolerance=tolerance, where="compare")
    seed = torch.Generator().manual_seed(0) if generator is None else generator
    state = seed.get_state()
    table = {}
    for name, spectrum in found.items():
        seed.set_state(state)  # every candidate is held against the same shuffle
        table[name] = _row(spectrum, seed)
    return pd.DataFrame.from_dict(table, orient="index").sort_values(["scaled", "residual"])


def layers(
    model: nn.Module,
    loader: Data,
    names: Sequence[str],
    *,
    storage: str = "auto",
    tolerance: float = 1e-6,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """The same table for what comes out of the named layers of a network, flattened.

    Args:
        model: Any module; it runs in ``eval`` mode and is not changed.
        loader: Batches ``(x, y)``, read once, so it may shuffle.
        names: Names of ``model.named_modules()``.
        storage: As in :func:`analyze`.
        tolerance: Relative accuracy of each complexity.
        generator: Order of the shuffled targets; None is a fixed seed.
    """
    x, targets = labelled_rows("layers", loader)
    batches = list(x.split(_BATCH)) if x.ndim > 1 else [x[:, None]]
    seen: dict[str, Candidate] = {name: embeddings(model, batches, name) for name in names}
    return compare(seen, x, targets, storage=storage, tolerance=tolerance, generator=generator)


def _resolve(where: str, name: str, candidate: object, x: Tensor) -> tuple[Kernel, Tensor]:
    if not isinstance(candidate, Tensor | np.ndarray):
        return resolve(where, candidate, x)
    seen = gather_rows(checks.matrix(where, name, rows(where, candidate, name)))
    checks.same_length(where, name, seen, "x", x)
    return ReLUGram(), checks.squarable(where, name, seen.double())


def _row(spectrum: Spectrum, generator: torch.Generator) -> dict[str, float]:
    control = spectrum.shuffled(generator)
    rate = 0.5 * spectrum.largest_stable_lr
    curve = spectrum.convergence(rate, _STEPS)
    return {
        "complexity": spectrum.complexity,
        "scaled": spectrum.complexity * spectrum.mean_diagonal,
        "shuffled": control.complexity,
        "ratio": _ratio(spectrum.complexity, control.complexity),
        "bound": spectrum.bound,
        "residual": float(curve[-1] / curve[0]),
        "largest_stable_lr": spectrum.largest_stable_lr,
        "alignment": spectrum.alignment,
        "effective_dimension": spectrum.effective_dimension,
    }


def _ratio(complexity: float, control: float) -> float:
    if math.isinf(control):
        return 1.0 if math.isinf(complexity) else 0.0
    return complexity / control
