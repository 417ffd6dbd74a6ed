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
        got = "shared units" if isinstance(head, KernelClassifier) else type(head).__name__
        raise TypeError(checks.sentence(where, "head must be a KernelClassifier with weights for each class", got))
    labels = check_labels(where, labels, z, head.num_classes)
    own = labels.unique()  # sorted
    others = torch.ones(head.num_classes, dtype=torch.bool, device=z.device)
    others[own] = False
    rest = others.nonzero()[:, 0]
    count = min(checks.integer(where, "samples", samples, 1), len(rest))
    drawn = rest[torch.randperm(len(rest), generator=generator)[:count].to(rest.device)]
    logits = head.of_classes(z, torch.cat((own, drawn)))  # (n, |Y| + m)
    if count:
        weight = math.log(len(rest) / count)
        logits = torch.cat((logits[:, : len(own)], logits[:, len(own) :] + weight), 1)
    return F.cross_entropy(logits, torch.searchsorted(own, labels))
