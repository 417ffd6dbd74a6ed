"""Kernel machines, literal and slow: dense systems, and leave-one-out by fitting n times."""

import torch


def ridge(kernel, x, y, penalty, at):
    """f(at) = mean + k(at, x) (K + penalty I)^-1 (y - mean)."""
    mean = y.mean(0)
    eye = torch.eye(len(x), dtype=torch.float64)
    return mean + kernel(at, x) @ torch.linalg.inv(kernel(x, x) + penalty * eye) @ (y - mean)


def leave_one_out(kernel, x, y, penalty):
    """Each row predicted by a fit to the others."""
    out = torch.empty_like(y)
    for i in range(len(x)):
        others = torch.arange(len(x)) != i
        out[i] = ridge(kernel, x[others], y[others], penalty, x[i : i + 1])[0]
    return out


def variance(kernel, x, penalty, at):
    """(k(a, a) - k_a^T (K + penalty I)^-1 k_a) / k(a, a) for each row a."""
    eye = torch.eye(len(x), dtype=torch.float64)
    inverse = torch.linalg.inv(kernel(x, x) + penalty * eye)
    return torch.stack(
        [1 - (kernel(a[None], x) @ inverse @ kernel(x, a[None]) / kernel(a[None], a[None]))[0, 0] for a in at]
    )
