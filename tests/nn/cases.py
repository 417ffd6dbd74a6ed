"""Every head, for the tests that run over all of them."""

import torch

from mercer.kernels import RBF, RadialSeries
from mercer.nn import CosineClassifier, KernelClassifier, SecondOrderPooling

D, C = 5, 3

HEADS = {  # a new head joins the whole suite by adding one line here
    "kernel": lambda: KernelClassifier(D, C),
    "kernel_full": lambda: KernelClassifier(D, C, RadialSeries(4, basis="gegenbauer"), prototypes=2, temperature=0.5),
    "kernel_prototypes": lambda: KernelClassifier(D, C, RadialSeries(4), prototypes=2),
    "kernel_shared": lambda: KernelClassifier(D, C, RadialSeries(4), shared=4),
    "kernel_rbf": lambda: KernelClassifier(D, C, RBF(2.0, learnable=True)),
    "cosine": lambda: CosineClassifier(D, C),
    "second_order": lambda: SecondOrderPooling(D, C),
}


def rows(n=6, d=D, seed=0, dtype=torch.float64):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def randomised(head):
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.1)
    return head
