"""The equations of spectral2019, literal and slow, in float64."""

import math

import torch


def gram(x):
    """H-infinity, entry by entry: x_i.x_j (pi - arccos(x_i.x_j)) / (2 pi) for unit rows (Section 2)."""
    n = len(x)
    h = torch.empty(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            t = float(x[i].double() @ x[j].double())
            t = 1.0 if i == j else max(-1.0, min(1.0, t))
            h[i, j] = t * (math.pi - math.acos(t)) / (2 * math.pi)
    return h


def convergence(h, y, lr, steps):
    """Eq. 3: sqrt(sum_i (1 - eta lambda_i)^2k (v_i.y)^2), summed over columns of y."""
    values, vectors = torch.linalg.eigh(h)
    curve = []
    for step in range(steps + 1):
        total = 0.0
        for column in y.reshape(len(h), -1).mT.double():
            for value, vector in zip(values, vectors.mT, strict=True):
                total += float((1 - lr * value) ** (2 * step) * (vector @ column) ** 2)
        curve.append(math.sqrt(total))
    return torch.tensor(curve, dtype=torch.float64)


def complexity(h, y):
    """Eq. 5: y^T H^-1 y, summed over columns of y."""
    y = y.reshape(len(h), -1).double()
    return float((y * torch.linalg.solve(h, y)).sum())


def network(weights, signs, x):
    """Eq. 1: f(x) = 1 / sqrt(m) sum_r a_r max(0, w_r.x)."""
    outputs = []
    for row in x:
        outputs.append(sum(float(a) * max(0.0, float(w @ row)) for w, a in zip(weights, signs, strict=True)))
    return torch.tensor(outputs, dtype=torch.float64) / math.sqrt(len(weights))
