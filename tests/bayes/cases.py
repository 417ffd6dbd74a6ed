"""Networks, rows and literal formulas that the tests of posteriors share."""

import torch
from torch import nn
from torch.func import functional_call, jacrev


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def classifier(d=3, c=3, width=8, dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, width), nn.Tanh(), nn.Linear(width, c)).to(dtype)


def points(n=20, d=3, c=3, dtype=torch.float64):
    x = torch.randn(n, d, generator=seeded(), dtype=torch.float64)
    return x.to(dtype), (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long() * (c > 2)


def trained(model, x, y, loss, steps=150):
    optimizer = torch.optim.Adam(model.parameters(), 0.02, weight_decay=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model


def jacobian(model, x):  # -> (n, c, p)
    found = jacrev(lambda p: functional_call(model, p, (x,)))({k: v.detach() for k, v in model.named_parameters()})
    return torch.cat([part.flatten(2) for part in found.values()], 2)


def softmax_hessian(f):
    p = f.softmax(1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None]
