"""What a diagnosis ranks: the machines that ``fit`` chooses from, and kernels on each embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels import RBF, Kernel, Laplacian, Matern, ReLUGram
from ...machines import StackedRidge
from ...machines.dual import dual_path
from ...machines.selection import table_kernels
from ...machines.trials import Trial
from ...machines.views import View

_FEW = 3  # embeddings up to which each gets several kernels
_PILOT = 500  # rows that choose an embedding's ridge
_WIDTHS = {"near": "close by only", "mid": "at the typical distance", "far": "far around"}


@dataclass(frozen=True)
class Candidate:
    """One representation of the rows with one kernel on it.

    Attributes:
        name: For the table.
        meaning: What it assumes, for a reader who does not know kernels.
        call: The Python that makes the kernel.
        family: ``linear``, ``gaussian``, ``laplacian``, ``matern`` or ``network``.
        kernel: It.
        x: The rows it reads, ``(n, d)``.
        penalty: Its ridge.
        source: The embedding's name; empty for the table's columns.
        share: Share of the answer of ``fit``; 0 for a machine that does not stay, or on an embedding.
        honest: Row numbers, and the rows ``(n, d)`` as they are read to predict these, whose labels taught ``x``.
    """

    name: str
    meaning: str
    call: str
    family: str
    kernel: Kernel
    x: Tensor
    penalty: float
    source: str = ""
    share: float = 0.0
    honest: tuple[tuple[Tensor, Tensor], ...] = ()

    def gram(self) -> Tensor:
        """Its Gram matrix ``(n, n)``, scaled to a mean diagonal of 1."""
        with torch.no_grad():
            gram = self.kernel(self.x)
        size = float(gram.diagonal().mean())
        return gram / size if size > 0 else gram


def of_stack(stack: StackedRidge) -> list[Candidate]:
    """Every machine that a stack has tried on its rows."""
    shares = {id(m.kernel): float(s) for m, s in zip(stack.machines_, stack.shares_, strict=True)}
    seen = [look.view(stack.rows_) for look in stack.looks]
    honest = [tuple((rows, view(stack.rows_)) for rows, view in look.honest) for look in stack.looks]
    words = [_words([trial.kernel for trial in stack.trials if trial.look == i]) for i in range(len(seen))]
    found = []
    for trial in stack.trials:
        name, meaning, call, family = words[trial.look].pop(0)
        what, how = _view(stack, trial)
        share = shares.get(id(trial.kernel), 0.0)
        found.append(
            Candidate(
                f"{name}{what}",
                f"{meaning}{how}.",
                call,
                family,
                trial.kernel,
                seen[trial.look],
                trial.penalty,
                "",
                share,
                honest[trial.look],
            )
        )
    return found


def of_embeddings(embeddings: Mapping[str, Tensor], columns: Tensor) -> list[Candidate]:
    """Kernels on each embedding ``(n, m)``, centred with one scale: three of them, or one where there are many.

    Args:
        embeddings: By name.
        columns: Centred targets, ``(n, c)``, for the ridge.
    """
    found = []
    for name, rows in embeddings.items():
        centred = rows - rows.mean(0)
        x = centred / (float(centred.square().mean().sqrt()) or 1.0)
        network = "A wide network with one hidden layer whose first weights learn; the length of a row does not count."
        menu: list[tuple[Kernel, str, str, str, str]] = [
            (ReLUGram(), "Two-layer ReLU network", network, "ReLUGram()", "network")
        ]
        if len(embeddings) <= _FEW:
            kernels = table_kernels(x)
            known = zip(kernels, _words(kernels), strict=True)
            menu += [(k, n, f"{m}.", c, f) for k, (n, m, c, f) in known][-2:]  # the Gaussian, and the linear one
        for kernel, title, meaning, call, family in menu:
            with torch.no_grad():
                penalty = dual_path(kernel(x[:_PILOT]), columns[:_PILOT]).penalty
            found.append(Candidate(f"{name}: {title}", meaning, call, family, kernel, x, penalty, name))
    return found


def _words(kernels: list[Kernel]) -> list[tuple[str, str, str, str]]:
    """Name, meaning, call and family of each kernel of :func:`~mercer.machines.table_kernels`."""
    widths = {Laplacian: ["near", "mid", "far"], Matern: ["mid", "far"], RBF: ["near", "mid"]}
    found = []
    for kernel in kernels:
        if isinstance(kernel, Laplacian):
            width = widths[Laplacian].pop(0)
            name, how = f"Laplacian {width}", f", column by column, with sharp edges, {_WIDTHS[width]}"
            call, family = f"Laplacian(gamma={kernel.gamma.number:.4g})", "laplacian"
        elif isinstance(kernel, Matern):
            width = widths[Matern].pop(0)
            name, how = f"Matern {width}", f", with sharp edges, {_WIDTHS[width]}"
            call, family = f"Matern(nu=0.5, lengthscale={kernel.lengthscale.number:.4g})", "matern"
        elif isinstance(kernel, RBF):
            width = widths[RBF].pop(0)
            name, how = f"Gaussian {width}", f", smoothly, {_WIDTHS[width]}"
            call, family = f"RBF(gamma={kernel.gamma.number:.4g})", "gaussian"
        else:
            found.append(("Linear", "A weighted sum of the columns", "Linear()", "linear"))
            continue
        found.append((name, f"Near rows have near labels{how}", call, family))
    return found


def _view(stack: StackedRidge, trial: Trial) -> tuple[str, str]:
    """What its view does, for the name and for the meaning."""
    view: View = stack.looks[trial.look].view
    if view.weight.ndim == 2:
        return ", rotated", "; sums of columns that matter count more"
    if stack.looks[trial.look].honest:
        return ", weighted", "; columns that matter count more"
    return (", straight", "; long tails are straightened") if len(view.columns) else ("", "")
