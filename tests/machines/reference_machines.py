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


def landmark_ridge(kernel, z, x, y, penalty, at):
    """f(at) = mean + k(at, z) a, where a solves the normal equations (Kzx Kxz + penalty Kzz) a = Kzx (y - mean)."""
    mean, cross = y.mean(0), kernel(x, z)
    system = cross.T @ cross + penalty * kernel(z, z)
    return mean + kernel(at, z) @ torch.linalg.solve(system, cross.T @ (y - mean))


def landmark_leave_one_out(kernel, z, x, y, penalty):
    """Each row predicted by a fit to the others, the landmarks as they are."""
    out = torch.empty_like(y)
    for i in range(len(x)):
        others = torch.arange(len(x)) != i
        out[i] = landmark_ridge(kernel, z, x[others], y[others], penalty, x[i : i + 1])[0]
    return out


def weighted_ridge(kernel, x, y, penalty, weight, at):
    """f(at) = mean + k(at, x) (K + penalty W^-1)^-1 (y - mean), with a weighted mean; rows of weight 0 are none."""
    x, y, weight = x[weight > 0], y[weight > 0], weight[weight > 0]
    mean = (weight[:, None] * y).sum(0) / weight.sum()
    return mean + kernel(at, x) @ torch.linalg.inv(kernel(x, x) + penalty * torch.diag(1 / weight)) @ (y - mean)
