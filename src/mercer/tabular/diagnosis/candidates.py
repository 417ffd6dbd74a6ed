"""What a diagnosis ranks: the machines that ``fit`` chooses from, and kernels on each embedding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels import RBF, Kernel, Laplacian, Matern, ReLUGram
from ...machines import StackedRidge
from ...machines.dual import dual_path
from ...machines.selection import table_kernels
from ...machines.stacking import ridge_factor, solve_left_out

_SEVERAL_KERNELS = 3  # embeddings up to which each gets several kernels
_PILOT = 500  # rows that choose an embedding's ridge
_CLEAR = 0.3  # share explained that no random order reaches
_STRONG = 1.0  # ridge, over the mean of k(x, x), that noise asks for
_WIDTHS = {"near": "close by only", "mid": "at the typical distance", "far": "far around"}
_NETWORK = "A wide network with one hidden layer whose first weights learn; the length of a row does not count."


class Description(NamedTuple):
    """A kernel in words.

    Attributes:
        name: For the table.
        meaning: What it assumes, for a reader who does not know kernels.
        call: The Python that makes it.
        family: ``linear``, ``gaussian``, ``laplacian``, ``matern`` or ``network``.
    """

    name: str
    meaning: str
    call: str
    family: str


_RELU_NETWORK = Description("Two-layer ReLU network", _NETWORK, "ReLUGram()", "network")


@dataclass(frozen=True)
class Candidate:
    """One representation of the rows with one kernel on it.

    Attributes:
        description: The kernel and the rows it reads, in words.
        kernel: k.
        x: The rows it reads, ``(n, d)``.
        penalty: Its ridge.
        source: The embedding's name; empty for the table's columns.
        share: Share of the answer of ``fit``; 0 for a machine that does not stay, or on an embedding.
        honest: Row numbers, and the rows ``(n, d)`` as they are read to predict these, whose labels taught ``x``.
    """

    description: Description
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
        return gram / (float(gram.diagonal().mean()) or 1.0)


def list_machines(stack: StackedRidge, share_of_stack: float = 1.0) -> list[Candidate]:
    """Every machine that a stack, which has this share of the answer, has tried on its rows."""
    parts = zip(stack.machines_, (share_of_stack * stack.shares_).tolist(), strict=True)
    shares = {id(machine.kernel): share for machine, share in parts}
    candidates = []
    for number, look in enumerate(stack.looks):
        # What the view does, for the name and for the meaning.
        title = explanation = ""
        if look.view.weight.ndim == 2:
            title, explanation = ", rotated", "; sums of columns that matter count more"
        elif look.honest:
            title, explanation = ", weighted", "; columns that matter count more"
        elif len(look.view.columns):
            title, explanation = ", straight", "; long tails are straightened"

        x = look.view(stack.rows_)
        honest = tuple((rows, view(stack.rows_)) for rows, view in look.honest)
        trials = [trial for trial in stack.trials if trial.look == number]
        descriptions = _describe_kernels([trial.kernel for trial in trials])
        for trial, kernel in zip(trials, descriptions, strict=True):
            description = kernel._replace(name=kernel.name + title, meaning=f"{kernel.meaning}{explanation}.")
            share = shares.get(id(trial.kernel), 0.0)
            candidates.append(Candidate(description, trial.kernel, x, trial.penalty, share=share, honest=honest))
    return candidates


def list_embedding_kernels(embeddings: Mapping[str, Tensor], columns: Tensor) -> list[Candidate]:
    """Kernels on each embedding ``(n, m)``, centred with one scale: three of them, or one where there are many.

    Args:
        embeddings: By name.
        columns: Centred targets, ``(n, c)``, for the ridge.
    """
    candidates = []
    for source, rows in embeddings.items():
        centred = rows - rows.mean(0)
        x = centred / (float(centred.square().mean().sqrt()) or 1.0)
        menu: list[tuple[Kernel, Description]] = [(ReLUGram(), _RELU_NETWORK)]
        if len(embeddings) <= _SEVERAL_KERNELS:
            kernels = table_kernels(x)
            descriptions = [words._replace(meaning=f"{words.meaning}.") for words in _describe_kernels(kernels)]
            menu += list(zip(kernels, descriptions, strict=True))[-2:]  # the Gaussian, and the linear one
        for kernel, words in menu:
            with torch.no_grad():
                penalty = dual_path(kernel(x[:_PILOT]), columns[:_PILOT]).penalty
            description = words._replace(name=f"{source}: {words.name}")
            candidates.append(Candidate(description, kernel, x, penalty, source))
    return candidates


def _describe_kernels(kernels: list[Kernel]) -> Iterator[Description]:
    """Each kernel of :func:`~mercer.machines.selection.table_kernels` in words; the meaning has no full stop yet."""
    widths = {Laplacian: ["near", "mid", "far"], Matern: ["mid", "far"], RBF: ["near", "mid"]}
    for kernel in kernels:
        if type(kernel) not in widths:
            yield Description("Linear", "A weighted sum of the columns", "Linear()", "linear")
            continue
        width = widths[type(kernel)].pop(0)
        words = kernel.describe()
        meaning = words.meaning.replace("near rows have near answers", "Near rows have near labels")
        yield Description(f"{words.name} {width}", f"{meaning}, {_WIDTHS[width]}", words.call, words.name.lower())


class HeldOut(NamedTuple):
    """What kernel ridge predicts of rows left out.

    Attributes:
        predicted: ``(n, c)``, each row by the fit without its fold.
        explained: Share of the columns' variance that it predicts.
        controls: ``(s,)``, the same for each random order of the columns.
    """

    predicted: Tensor
    explained: float
    controls: Tensor


def leave_folds_out(candidate: Candidate, columns: Tensor, fold: Tensor, orders: list[Tensor]) -> HeldOut:
    """The machine at its own ridge; where it predicts so badly that an order might compete, at a strong one too.

    Args:
        candidate: With its rows and its ridge.
        columns: Centred targets, ``(n, c)``.
        fold: Fold of each row, ``(n,)``, as ``fit`` scores.
        orders: s orders of the rows, ``(n,)`` each.
    """
    # The targets and their random orders are columns of one system.
    targets = torch.stack([columns, *(columns[order] for order in orders)], 1)  # (n, 1 + s, c)
    variance = columns.square().mean()

    def predict(x: Tensor, penalty: float) -> Tensor:  # (n, d) -> (n, 1 + s, c)
        with torch.no_grad():
            factor = ridge_factor(candidate.kernel, x, penalty)
            return solve_left_out(factor, targets.flatten(1), fold)[2].reshape(targets.shape)

    predictions, errors = [], []
    for penalty in (candidate.penalty, _STRONG * float(candidate.kernel.diag(candidate.x).mean())):
        predicted = predict(candidate.x, penalty)
        # Rows that taught the view are predicted through a view without them.
        for rows, x in candidate.honest:
            predicted[rows] = predict(x, penalty)[rows]
        predictions.append(predicted[:, 0])
        errors.append((targets - predicted).square().mean((0, 2)))
        if float(errors[0][0]) <= (1 - _CLEAR) * float(variance):
            break
    best = min(range(len(errors)), key=lambda i: float(errors[i][0]))
    explained = 1 - torch.stack(errors).amin(0) / variance
    return HeldOut(predictions[best], float(explained[0]), explained[1:])
