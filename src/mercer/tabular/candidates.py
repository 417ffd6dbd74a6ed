"""The menu of a diagnosis: which kernels are tried on a table's columns and on each embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels import NNGP, NTK, RBF, Kernel, Laplacian, Linear, Matern, Polynomial, ReLUGram
from ..layerwise import Standardize

__all__ = ["Candidate", "of_columns", "of_embeddings"]

_NEAR, _FAR = 4.0, 0.25  # times the median's gamma: half and twice its width
_MEDIAN_ROWS = 400
_WIDE = 256  # features above which distances in the 1-norm cost more than they tell
_FEW = 3  # embeddings up to which each gets several kernels
_BIAS = 0.1  # variance of the biases of the infinitely wide networks


@dataclass(frozen=True)
class Candidate:
    """One representation of the rows with one kernel on it.

    Attributes:
        name: For the table.
        meaning: What it assumes, for a reader who does not know kernels.
        call: The Python that makes the kernel.
        family: ``linear``, ``polynomial``, ``gaussian``, ``laplacian``, ``matern`` or ``network``.
        kernel: It.
        x: The rows it reads, ``(n, d)``.
        source: The embedding's name; empty for the table's columns.
    """

    name: str
    meaning: str
    call: str
    family: str
    kernel: Kernel
    x: Tensor
    source: str = ""

    def gram(self) -> Tensor:
        """Its Gram matrix ``(n, n)``, scaled to a mean diagonal of 1."""
        with torch.no_grad():
            gram = self.kernel(self.x)
        size = float(gram.diagonal().mean())
        return gram / size if size > 0 else gram


def of_columns(x: Tensor) -> list[Candidate]:  # (n, d)
    """Every kernel of the menu on the table's prepared columns, each standardised."""
    x = Standardize.of(x)(x)
    d = x.shape[1]
    gamma = _gamma(x)
    width = gamma**-0.5
    menu = [
        _linear(x),
        *(
            Candidate(
                f"Polynomial, degree {degree}",
                f"Products of up to {degree} columns.",
                f"Polynomial(degree={degree}, gamma={1 / d:.4g})",
                "polynomial",
                Polynomial(degree, 1 / d, 1.0),
                x,
            )
            for degree in (2, 3)
        ),
        *(_gaussian(x, factor * gamma, word) for factor, word in ((_FAR, "wide"), (1.0, "medium"), (_NEAR, "narrow"))),
        *(
            Candidate(
                f"Matern {name}",
                f"Near rows have near labels; {how}.",
                f"Matern(nu={nu}, lengthscale={width:.4g})",
                "matern",
                Matern(nu, width),
                x,
            )
            for nu, name, how in ((1.5, "3/2", "rougher than the Gaussian"), (2.5, "5/2", "a little rougher"))
        ),
        *_networks(x),
    ]
    if d <= _WIDE:
        menu += _laplacians(x)
    return menu


def of_embeddings(embeddings: Mapping[str, Tensor]) -> list[Candidate]:
    """Kernels on each embedding ``(n, m)``, centred with one scale: three of them, or one where there are many."""
    found = []
    for name, rows in embeddings.items():
        x = Standardize.of(rows).with_one_scale(rows)(rows)
        menu = [_relu(x)]
        if len(embeddings) <= _FEW:
            menu += [_linear(x), _gaussian(x, _gamma(x), "medium")]
        found += [Candidate(f"{name}: {c.name}", c.meaning, c.call, c.family, c.kernel, c.x, name) for c in menu]
    return found


def _linear(x: Tensor) -> Candidate:
    return Candidate("Linear", "A weighted sum of the columns.", "Linear()", "linear", Linear(), x)


def _gaussian(x: Tensor, gamma: float, word: str) -> Candidate:
    how = {
        "wide": "far around, so only slow changes",
        "medium": "at the typical distance",
        "narrow": "close by only, so fast changes too",
    }[word]
    meaning = f"Near rows have near labels, {how}."
    return Candidate(f"Gaussian, {word}", meaning, f"RBF(gamma={gamma:.4g})", "gaussian", RBF(gamma), x)


def _relu(x: Tensor) -> Candidate:
    meaning = "A wide network with one hidden layer whose first weights learn; the length of a row does not count."
    return Candidate("Two-layer ReLU network", meaning, "ReLUGram()", "network", ReLUGram(), x)


def _networks(x: Tensor) -> list[Candidate]:
    deep = f"(depth=3, bias_var={_BIAS})"
    return [
        _relu(x),
        Candidate(
            "Neural tangent, 1 layer",
            "A wide network with one hidden layer, every weight trained.",
            f"NTK(depth=1, bias_var={_BIAS})",
            "network",
            NTK(1, bias_var=_BIAS),
            x,
        ),
        Candidate(
            "Neural tangent, 3 layers",
            "A wide network with three hidden layers, every weight trained.",
            f"NTK{deep}",
            "network",
            NTK(3, bias_var=_BIAS),
            x,
        ),
        Candidate(
            "Random network, 3 layers",
            "A wide network with three hidden layers of which only the last is trained.",
            f"NNGP{deep}",
            "network",
            NNGP(3, bias_var=_BIAS),
            x,
        ),
    ]


def _laplacians(x: Tensor) -> list[Candidate]:
    gamma = 1 / _median_of_sums(x)
    how = {"medium": "at the typical distance", "wide": "far around"}
    return [
        Candidate(
            f"Laplacian, {word}",
            f"Near rows have near labels, column by column, with sharp edges, {how[word]}.",
            f"Laplacian(gamma={factor * gamma:.4g})",
            "laplacian",
            Laplacian(factor * gamma),
            x,
        )
        for word, factor in (("medium", 1.0), ("wide", _FAR))
    ]


def _gamma(x: Tensor) -> float:
    return float(RBF.from_data(x, generator=torch.Generator().manual_seed(0)).gamma(x))


def _median_of_sums(x: Tensor) -> float:
    """Median distance in the 1-norm of evenly spaced rows; 1 where all are equal."""
    rows = x[torch.linspace(0, len(x) - 1, min(len(x), _MEDIAN_ROWS)).round().long()]
    apart = torch.cdist(rows, rows, p=1)
    apart = apart[apart > 0]
    return float(apart.median()) if len(apart) else 1.0
