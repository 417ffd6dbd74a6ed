"""Scores of predictions: tensors in, one float out, computed in float64.

>>> probabilities = torch.tensor([[0.9, 0.1], [0.4, 0.6]])
>>> accuracy(probabilities, torch.tensor([0, 0]))
0.5
"""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import finite, integer, same_device, same_length, sentence

__all__ = ["accuracy", "auroc", "brier", "calibration", "ece", "nll"]


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """The share of rows whose largest score is their label's.

    Args:
        scores: Logits or probabilities ``(n, c)``, or predicted labels ``(n,)``.
        labels: Classes ``0..c-1``, ``(n,)``.
    """
    if scores.ndim == 1:
        same_length("accuracy", "scores", scores, "labels", labels)
        _check_some_rows("accuracy", labels)
        return float((scores == labels).double().mean())
    scores = _check_scores("accuracy", scores, labels)
    return float((scores.argmax(1) == labels).double().mean())


def nll(probabilities: Tensor, labels: Tensor) -> float:
    r"""Negative log-likelihood :math:`-\frac{1}{n} \sum_i \log p_{i, y_i}`.

    A probability of 0 counts as the spacing of its dtype at 1 (scikit-learn's ``log_loss`` does the same), because a
    softmax in floats rounds to 0 what is merely small.

    Args:
        probabilities: ``(n, c)``, rows that sum to 1.
        labels: Classes ``0..c-1``, ``(n,)``.
    """
    p = _check_probabilities("nll", probabilities, labels)
    floor = 0.0
    if probabilities.is_floating_point():
        floor = torch.finfo(probabilities.dtype).eps
    return float(-p.gather(1, labels[:, None].long()).clamp(min=floor).log().mean())


def brier(probabilities: Tensor, labels: Tensor) -> float:
    r"""Brier score :math:`\frac{1}{n} \sum_i \sum_j (p_{ij} - [y_i = j])^2`, from 0 to 2.

    Args:
        probabilities: ``(n, c)``, rows that sum to 1.
        labels: Classes ``0..c-1``, ``(n,)``.
    """
    p = _check_probabilities("brier", probabilities, labels)
    hit = torch.nn.functional.one_hot(labels.long(), p.shape[1])
    return float((p - hit).square().sum(1).mean())


def ece(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    r"""Expected calibration error :math:`\sum_b \frac{n_b}{n} |\mathrm{acc}_b - \mathrm{conf}_b|`.

    Args:
        probabilities: ``(n, c)``, rows that sum to 1.
        labels: Classes ``0..c-1``, ``(n,)``.
        bins: How many bins of equal width over the confidence, each closed above.
    """
    count, confidence, accuracy_ = calibration(probabilities, labels, bins)
    filled = count > 0
    gap = (accuracy_ - confidence).abs()[filled]
    return float((count[filled] / count.sum() * gap).sum())


def calibration(probabilities: Tensor, labels: Tensor, bins: int = 15) -> tuple[Tensor, Tensor, Tensor]:
    """What a reliability diagram shows: rows, mean confidence and accuracy of each bin, each ``(bins,)``.

    The last two are NaN where a bin is empty.
    """
    p = _check_probabilities("calibration", probabilities, labels)
    bins = integer("calibration", "bins", bins, 1)
    confidence, predicted = p.max(1)
    edges = torch.linspace(0, 1, bins + 1, dtype=p.dtype, device=p.device)
    which = torch.bucketize(confidence, edges[1:-1])  # (n,); edges[i-1] < confidence <= edges[i]
    count = torch.bincount(which, minlength=bins).double()
    sums = [torch.bincount(which, v.double(), minlength=bins) for v in (confidence, predicted == labels)]
    return count, sums[0] / count, sums[1] / count


def auroc(familiar: Tensor, unfamiliar: Tensor) -> float:
    r"""Area under the ROC curve, :math:`P(s' > s) + \frac{1}{2} P(s' = s)`, by ranks; ties count half.

    Args:
        familiar: Scores :math:`s` of rows from the training distribution (the negatives), ``(n,)``.
        unfamiliar: Scores :math:`s'` of rows from elsewhere (the positives), ``(m,)``; high means unfamiliar.
    """
    for name, scores in (("familiar", familiar), ("unfamiliar", unfamiliar)):
        if scores.ndim != 1 or not len(scores):
            raise ValueError(sentence("auroc", f"{name} must have shape (n,), n > 0", tuple(scores.shape)))
        if scores.isnan().any():
            raise ValueError(sentence("auroc", f"{name} must not hold NaN", f"{int(scores.isnan().sum())} of them"))
    negatives = familiar.sort().values
    # Negatives below each positive count 1, equal ones half: the mean of both counts.
    below = torch.searchsorted(negatives, unfamiliar.to(negatives.dtype), right=False)
    up_to = torch.searchsorted(negatives, unfamiliar.to(negatives.dtype), right=True)
    return float((below + up_to).double().mean() / (2 * len(negatives)))


def _check_probabilities(where: str, p: Tensor, labels: Tensor) -> Tensor:
    p = _check_scores(where, p, labels)
    off = float((p.sum(1) - 1).abs().max())
    if off > 1e-3 or float(p.min()) < 0:
        got = f"{float(p.min()):.1e}"
        if off > 1e-3:
            got = f"a row that is off by {off:.1e}"
        fix = "Pass probabilities, not logits: logits.softmax(1)."
        raise ValueError(sentence(where, "rows of probabilities must be 0 or more and sum to 1", got, fix))
    return p


def _check_scores(where: str, scores: Tensor, labels: Tensor) -> Tensor:
    if scores.ndim != 2 or labels.ndim != 1:
        got = f"{tuple(scores.shape)} and {tuple(labels.shape)}"
        raise ValueError(sentence(where, "scores and labels must have shapes (n, c) and (n,)", got))
    same_length(where, "scores", scores, "labels", labels)
    same_device(where, "scores", scores.device, "labels", labels.device)
    _check_some_rows(where, labels)
    if labels.is_floating_point() or int(labels.min()) < 0 or int(labels.max()) >= scores.shape[1]:
        got = f"{labels.dtype} from {labels.min().item()} to {labels.max().item()}"
        raise ValueError(sentence(where, f"labels must be whole numbers in 0..{scores.shape[1] - 1}", got))
    return finite(where, "scores", scores.detach().double())


def _check_some_rows(where: str, labels: Tensor) -> None:
    if not len(labels):
        raise ValueError(sentence(where, "labels must have at least one row", tuple(labels.shape)))
