"""The rivals' algorithms, literal and slow; the entries' fast code must equal them in float64."""

import copy
import math

import torch
from torch.nn import functional as F


def adahessian_steps(model, x, y, *, lr, steps, seed, betas=(0.9, 0.999), eps=1e-4):
    """Yao et al. 2021, Algorithm 1: one parameter and one element at a time; z from torch's global generator."""
    model = copy.deepcopy(model)
    theta = list(model.parameters())
    m = [torch.zeros_like(p) for p in theta]
    v = [torch.zeros_like(p) for p in theta]
    torch.manual_seed(seed)
    for t in range(1, steps + 1):
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), theta, create_graph=True)
        z = [torch.randint(0, 2, p.shape, dtype=p.dtype) * 2 - 1 for p in theta]
        inner = sum((g * zi).sum() for g, zi in zip(gradients, z, strict=True))
        products = torch.autograd.grad(inner, theta)
        for i, p in enumerate(theta):
            d = (z[i] * products[i]).abs()
            if d.ndim == 4:  # Eq. 10: the mean over the places of each filter
                for a in range(d.shape[0]):
                    for b in range(d.shape[1]):
                        d[a, b] = d[a, b].mean()
            m[i] = betas[0] * m[i] + (1 - betas[0]) * gradients[i].detach()
            v[i] = betas[1] * v[i] + (1 - betas[1]) * d * d
            mean = m[i] / (1 - betas[0] ** t)
            root = v[i].sqrt() / math.sqrt(1 - betas[1] ** t)
            with torch.no_grad():
                p -= lr * mean / (root + eps)
    return [p.detach() for p in theta]


def second_order_pooled(maps):
    """Lin et al. 2015: mean outer product over places, signed root, length 1; off-diagonal pairs once, times root 2."""
    rows = []
    for z in maps:
        d, height, width = z.shape
        outer = torch.zeros(d, d, dtype=z.dtype)
        for i in range(height):
            for j in range(width):
                outer += torch.outer(z[:, i, j], z[:, i, j]) / (height * width)
        rooted = outer.sign() * outer.abs().sqrt()
        upper = torch.triu_indices(d, d)
        weight = torch.where(upper[0] == upper[1], 1.0, math.sqrt(2.0)).to(z.dtype)
        row = rooted[upper[0], upper[1]] * weight
        rows.append(row / row.norm())
    return torch.stack(rows)


def nystrom_of_all_rows(k, x, new, count):
    """The slides' formula: psi_j(x) = sum_n k(x, x_n) psi_j(x_n) / (N mu_j), one kernel value at a time."""
    n = len(x)
    gram = torch.tensor([[float(k(a, b)) for b in x] for a in x], dtype=torch.float64)
    values, vectors = torch.linalg.eigh(gram / n)
    values, vectors = values.flip(0)[:count], vectors.flip(1)[:, :count] * math.sqrt(n)
    functions = torch.zeros(len(new), count, dtype=torch.float64)
    for i in range(len(new)):
        for j in range(count):
            functions[i, j] = sum(float(k(new[i], x[m])) * vectors[m, j] for m in range(n)) / (n * values[j])
    return values, functions


def annealed_map(make, x, y, steps, seed):
    """MAP of a run: half the steps at rate 0.05, then a cosine from 0.05 to 0; momentum and decay by hand."""
    torch.manual_seed(seed)
    model = make()
    theta = list(model.parameters())
    half = steps // 2
    for part, count in ((0, half), (1, steps - half)):
        velocity = [None] * len(theta)
        generator = torch.Generator().manual_seed(seed + part)
        for t in range(count):
            rate = 0.05 if part == 0 else 0.05 * 0.5 * (1 + math.cos(math.pi * t / count))
            rows = torch.randint(len(x), (64,), generator=generator)
            gradients = torch.autograd.grad(F.cross_entropy(model(x[rows]), y[rows]), theta)
            with torch.no_grad():
                for i, (p, g) in enumerate(zip(theta, gradients, strict=True)):
                    g = g + 5e-4 * p
                    velocity[i] = g if velocity[i] is None else 0.9 * velocity[i] + g
                    p -= rate * velocity[i]
    return model
