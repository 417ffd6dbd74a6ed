"""masoomi2020, literal and slow: every sum written as the poster has it, n x n matrices and all."""

import math

import torch


def gamma(y, c):
    """Gamma = H Y Y^T H, under Eq. 1."""
    n = len(y)
    Y = torch.zeros(n, c, dtype=torch.float64)
    for i in range(n):
        Y[i, y[i]] = 1
    H = torch.eye(n, dtype=torch.float64) - torch.ones(n, n, dtype=torch.float64) / n
    return H @ Y @ Y.T @ H


def gaussian(a, b, sigma):
    K = torch.empty(len(a), len(b), dtype=torch.float64)
    for i in range(len(a)):
        for j in range(len(b)):
            K[i, j] = math.exp(-float(((a[i] - b[j]) ** 2).sum()) / (2 * sigma**2))
    return K


def hsic(K, y, c):
    """The objective of Eq. 1."""
    return torch.trace(gamma(y, c) @ K)


def hsic_of_w(W, R, y, c, sigma):
    """Eq. 1 as a differentiable function of W."""
    Z = R @ W
    K = torch.exp(-((Z[:, None] - Z[None]) ** 2).sum(-1) / (2 * sigma**2))
    return (gamma(y, c) * K).sum()


def normalized_hsic(K, y, c):
    n = len(y)
    H = torch.eye(n, dtype=torch.float64) - 1 / n
    G = gamma(y, c)
    return float((G * K).sum() / (torch.linalg.norm(H @ K @ H) * torch.linalg.norm(G)))


def q_matrix(K, R, y, c):
    """Eq. 9."""
    hat = gamma(y, c) * K
    return R.T @ (hat - torch.diag(hat @ torch.ones(len(y), dtype=torch.float64))) @ R


def w_s_outputs(anchors, y, c, sigma, rows):
    """R W_s for the class-wise norm: column k is <psi(row), sum_i psi(anchor_i)> / ||sum_i psi(anchor_i)||, Eq. 2."""
    out = torch.zeros(len(rows), c, dtype=torch.float64)
    for k in range(c):
        members = [anchors[i : i + 1] for i in range(len(y)) if y[i] == k]
        norm = math.sqrt(sum(float(gaussian(a, b, sigma)) for a in members for b in members))
        for i in range(len(rows)):
            out[i, k] = sum(float(gaussian(rows[i : i + 1], a, sigma)) for a in members) / norm
    return out


def w_s_held_out(anchors, y, c, sigma):
    """The same for the training rows without each row's own term: a mean over the others, over the class's norm."""
    out = torch.zeros(len(anchors), c, dtype=torch.float64)
    for i in range(len(anchors)):
        for k in range(c):
            others = [j for j in range(len(y)) if y[j] == k and j != i]
            values = [float(gaussian(anchors[i : i + 1], anchors[j : j + 1], sigma)) for j in others]
            out[i, k] = sum(values) / max(1, len(others))
    norms = [math.sqrt(float(out[y == k, k].mean())) for k in range(c)]
    return out / torch.tensor(norms, dtype=torch.float64)


def ism(R, y, c, sigma, q, iterations):
    """Claim 5: the top eigenvectors of Q(W), again and again, from K = 1."""
    K = torch.ones(len(y), len(y), dtype=torch.float64)
    for _ in range(iterations):
        W = torch.linalg.eigh(q_matrix(K, R, y, c))[1][:, -q:]
        Z = R @ W
        K = torch.exp(-((Z[:, None] - Z[None]) ** 2).sum(-1) / (2 * sigma**2))
    return W


def scatter_ratio(features, y, c):
    """Eq. 6 with explicit features: Tr S_w / Tr S_b."""
    mean = features.mean(0)
    s_w = s_b = 0.0
    for k in range(c):
        rows = features[y == k]
        centre = rows.mean(0)
        s_w += float(((rows - centre) ** 2).sum())
        s_b += len(rows) * float(((centre - mean) ** 2).sum())
    return s_w / s_b


def separation(K, y):
    """C: mean between-class over mean within-class kernel value."""
    same = y[:, None] == y[None]
    return float(K[~same].mean() / K[same].mean())


def translated_mse(z, y):
    """Corollary 2.1: squared distance to the label once labels are translated to class means."""
    return float(torch.stack([((z[i] - z[y == y[i]].mean(0)) ** 2).sum() for i in range(len(z))]).mean())


def basis_cross_entropy(features, y, c):
    """Corollary 2.2: coordinates by least squares in the basis of class means, then cross-entropy."""
    basis = torch.stack([features[y == k].mean(0) for k in range(c)]).T
    coordinates = torch.linalg.lstsq(basis, features.T).solution.T.clamp_min(0)
    shares = coordinates / coordinates.sum(1, keepdim=True)
    return float(-shares[torch.arange(len(y)), y].clamp_min(1e-12).log().mean())


def penalties(R, W, y, c, sigma):
    """Eq. 10 with signed Gamma, row by row."""
    G, K = gamma(y, c), gaussian(R @ W, R @ W, sigma)
    return torch.stack([sum(G[i, j] * K[i, j] for j in range(len(y))) for i in range(len(y))]) / sigma**2
