"""Cross-entropy over a sample of very many classes."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import checks
from .kernel_classifier import KernelClassifier
from .prototypes import check_labels


def sampled_cross_entropy(
    head: KernelClassifier, z: Tensor, labels: Tensor, *, samples: int = 1000, generator: torch.Generator | None = None
) -> Tensor:
    r"""Cross-entropy over the labels of the batch and a random sample of the other classes, for 10^5 classes.

    .. math:: -\frac{1}{n} \sum_i \log \frac{e^{l_{i y_i}}}
        {\sum_{j \in Y} e^{l_{ij}} + \frac{c - |Y|}{m} \sum_{j \in S} e^{l_{ij}}}

    Y are the classes of the batch, S a sample of m of the c - \|Y\| others, all equally likely: the denominator has
    the whole sum's expectation, and with ``samples >= num_classes`` the loss is the exact one. It costs a head of
    \|Y\| + m classes in place of c.

    Args:
        head: With weights for each class, not with shared units.
        z: Embeddings ``(n, d)``.
        labels: ``(n,)`` whole numbers in 0..c - 1.
        samples: m.
        generator: Draws S, on the CPU.
    """
    where = "sampled_cross_entropy"
    if not isinstance(head, KernelClassifier) or head.shared is not None:
        got = type(head).__name__
        if isinstance(head, KernelClassifier):
            got = "shared units"
        raise TypeError(checks.sentence(where, "head must be a KernelClassifier with weights for each class", got))
    labels = check_labels(where, labels, z, head.num_classes)
    # Y, the classes of the batch, and S, drawn from the others.
    present = labels.unique()  # sorted
    is_absent = torch.ones(head.num_classes, dtype=torch.bool, device=z.device)
    is_absent[present] = False
    absent = is_absent.nonzero()[:, 0]
    count = min(checks.integer(where, "samples", samples, 1), len(absent))
    sample = absent[torch.randperm(len(absent), generator=generator)[:count].to(absent.device)]
    # Each class of S stands for (c - |Y|) / m classes.
    logits = head.of_classes(z, torch.cat((present, sample)))  # (n, |Y| + m)
    if count:
        weight = math.log(len(absent) / count)
        logits = torch.cat((logits[:, : len(present)], logits[:, len(present) :] + weight), 1)
    return F.cross_entropy(logits, torch.searchsorted(present, labels))
