"""Optimizers, networks and batches that several test files share."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from mercer.kernels import RBF
from mercer.optim import EigenProSGD, FunctionSpaceSGD, KernelSGD
from mercer_papers.rivals import ESGD, MultiBatchLBFGS


@dataclass(frozen=True)
class Case:
    """An optimizer, and what its step needs beside a gradient."""

    make: Any  # (params, model, **options)
    closure: bool = False


CASES = {  # a new optimizer joins the whole suite by adding one line here
    "kernel_sgd": Case(lambda p, model, **o: KernelSGD(p, 0.05, model=model, **o)),
    "kernel_sgd_all": Case(
        lambda p, model, **o: KernelSGD(p, 0.05, model=model, kernel=RBF(0.3), layers="all", cache=True, **o)
    ),
    "function_space": Case(lambda p, model, **o: FunctionSpaceSGD(p, 0.1, model=model, update_every=2, **o)),
    "function_space_decay": Case(
        lambda p, model, **o: FunctionSpaceSGD(
            p, 0.1, model=model, damping=5.0, momentum=0.5, weight_decay=1.0, update_every=1, **o
        )
    ),
    "function_space_no_momentum": Case(lambda p, model, **o: FunctionSpaceSGD(p, 0.1, model=model, momentum=0.0, **o)),
    "function_space_last": Case(lambda p, model, **o: FunctionSpaceSGD(p, 0.1, model=model, layers="last", **o)),
    "eigenpro": Case(lambda p, model, **o: EigenProSGD(p, model=model, **o)),
    "esgd": Case(lambda p, model, **o: ESGD(p, 0.01, update_every=2, **o), closure=True),
    "multi_batch_lbfgs": Case(lambda p, model, **o: MultiBatchLBFGS(p, 0.1, history=2, **o), closure=True),
}


def network(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3)).to(dtype)


def batches(count=6, m=12, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(m, 6, generator=generator, dtype=dtype), torch.randint(3, (m,), generator=generator))
        for _ in range(count)
    ]


def advance(case, model, optimizer, x, y, *, change=lambda: None, parts=1):
    """One step in the user's loop: zero_grad, backward (in parts), whatever the user does to gradients, step."""

    def closure():
        optimizer.zero_grad()
        total = 0.0
        for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
            loss = F.cross_entropy(model(xs), ys) / parts
            loss.backward()
            total += float(loss.detach())
        change()
        return total

    if case.closure:
        return optimizer.step(closure)
    loss = closure()
    optimizer.step()
    return loss


def values(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])
