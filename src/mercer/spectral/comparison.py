"""Several representations against the same targets: kernels, maps, embeddings, the layers of a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from .. import checks
from ..kernels import Kernel, ReLUGram
from ..rows import Rows
from ..rows.loading import Data, load_rows
from .analysis import DEFAULT_K, gather, resolve, target_columns
from .gram_matrices import gram_matrices
from .proof import proof
from .spectrum import Spectrum, complexity_ratio

Candidate: TypeAlias = Kernel | nn.Module | Tensor | NDArray[Any]

_STEPS = 100


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
            floor = proof(chosen[name][0], points, gram)
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
    found = spectra(candidates, x, targets, storage=storage, tolerance=tolerance, where="compare")
    return ranked(found, torch.Generator().manual_seed(0) if generator is None else generator, _row)


def _resolve(where: str, name: str, candidate: object, x: Tensor) -> tuple[Kernel, Tensor]:
    if not isinstance(candidate, Tensor | np.ndarray):
        return resolve(where, candidate, x)
    seen = Rows(checks.matrix(where, name, load_rows(where, candidate, name))).gather()
    checks.same_length(where, name, seen, "x", x)
    return ReLUGram(), checks.squarable(where, name, seen.double())


def ranked(
    found: Mapping[str, Spectrum],
    generator: torch.Generator,
    row: Callable[[Spectrum, torch.Generator], dict[str, float]],
) -> pd.DataFrame:
    """A row for each spectrum, all held against the same shuffle; sorted by ``ratio``, singular kernels last."""
    state, table = generator.get_state(), {}
    for name, spectrum in found.items():
        generator.set_state(state)
        table[name] = row(spectrum, generator)
    frame = pd.DataFrame.from_dict(table, orient="index")
    singular = frame["complexity"].isin([math.inf])
    order = frame.assign(_singular=singular).sort_values(["_singular", "ratio"], kind="stable").index
    return frame.loc[order]


def _row(spectrum: Spectrum, generator: torch.Generator) -> dict[str, float]:
    curve = spectrum.convergence(0.5 * spectrum.largest_stable_lr, _STEPS)
    return {
        **ratio_row(spectrum, generator),
        "scaled": spectrum.complexity * spectrum.mean_diagonal,
        "bound": spectrum.bound,
        "residual": float(curve[-1] / curve[0]),
        "largest_stable_lr": spectrum.largest_stable_lr,
        "alignment": spectrum.alignment,
        "effective_dimension": spectrum.effective_dimension,
    }


def ratio_row(spectrum: Spectrum, generator: torch.Generator) -> dict[str, float]:
    """The number to read and the two it is made of."""
    control = spectrum.shuffled(generator).complexity
    ratio = complexity_ratio(spectrum.complexity, control)
    return {"ratio": ratio, "complexity": spectrum.complexity, "shuffled": control}
