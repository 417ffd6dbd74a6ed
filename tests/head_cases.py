"""Every head, for the tests that run over all of them."""

import torch

from mercer.kernels import RBF, RadialSeries
from mercer.nn import CosineClassifier, KernelClassifier, SecondOrderPooling

D, C = 5, 3

HEADS = {  # a new head joins the whole suite by adding one line here
    "kernel": lambda: KernelClassifier(D, C),
    "kernel_full": lambda: KernelClassifier(
        D, C, RadialSeries(4, basis="gegenbauer"), prototypes=2, bias=True, temperature=0.5
    ),
    "kernel_rbf": lambda: KernelClassifier(D, C, RBF(2.0, learnable=True), bias=True),
    "cosine": lambda: CosineClassifier(D, C),
    "second_order": lambda: SecondOrderPooling(D, C),
}


def rows(n=6, d=D, seed=0, dtype=torch.float64):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)
