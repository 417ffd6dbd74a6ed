"""deng2022 and the kernels it stands on, literal and slow: loops over pairs, pixels and functions, in float64."""

import math

import torch


def expectation(activation, s, qx, qy, points=80):
    """E[phi(u) phi(v)] and E[phi'(u) phi'(v)] of a Gaussian pair, by Gauss-Hermite points."""
    if activation == "relu":  # the kink needs the closed form of Cho and Saul
        norm = math.sqrt(qx * qy)
        theta = math.acos(max(-1.0, min(1.0, s / norm)))
        value = norm / (2 * math.pi) * (math.sin(theta) + (math.pi - theta) * math.cos(theta))
        return value, (math.pi - theta) / (2 * math.pi)
    import numpy as np

    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    t, w = torch.tensor(nodes), torch.tensor(weights) / math.sqrt(2 * math.pi)
    rho = s / qx
    u = math.sqrt(qx) * t[:, None].expand(points, points)
    v = rho * u + math.sqrt(max(qy - s * s / qx, 0.0)) * t[None]
    both = w[:, None] * w[None]

    def slope(z):
        return 2 / math.sqrt(math.pi) * (-z * z).exp()

    return float((both * u.erf() * v.erf()).sum()), float((both * slope(u) * slope(v)).sum())


def wide_network(x, y, depth, activation, weight_var, bias_var):
    """(NNGP, NTK) of one pair of rows, layer by layer."""

    def start(a, b):
        return weight_var * float(a @ b) / len(a) + bias_var

    s, qx, qy = start(x, y), start(x, x), start(y, y)
    ntk = s
    for _ in range(depth):
        value, slope = expectation(activation, s, qx, qy, 200)
        s = weight_var * value + bias_var
        ntk = s + ntk * weight_var * slope
        qx = weight_var * expectation(activation, qx, qx, qx, 200)[0] + bias_var
        qy = weight_var * expectation(activation, qy, qy, qy, 200)[0] + bias_var
    return s, ntk


def wide_conv_network(x, y, depth, activation, weight_var, bias_var, size, readout):
    """(NNGP, NTK) of one pair of pictures (c, h, w), by covariances of all pixels of one with all of the other."""
    channels, height, width = x.shape
    pixels = [(i, j) for i in range(height) for j in range(width)]
    r = size // 2

    def patch(values):
        out = {}
        for p in pixels:
            for q in pixels:
                total = 0.0
                for di in range(-r, r + 1):
                    for dj in range(-r, r + 1):
                        total += values.get(((p[0] + di, p[1] + dj), (q[0] + di, q[1] + dj)), 0.0)
                out[p, q] = total / size**2
        return out

    def affine(values):
        return {pair: weight_var * value + bias_var for pair, value in values.items()}

    def start(a, b):
        inner = {(p, q): float(a[:, p[0], p[1]] @ b[:, q[0], q[1]]) / channels for p in pixels for q in pixels}
        return affine(patch(inner))

    s, sx, sy = start(x, y), start(x, x), start(y, y)
    ntk = dict(s)
    for layer in range(depth):
        moment = {pq: expectation(activation, s[pq], sx[pq[0], pq[0]], sy[pq[1], pq[1]]) for pq in s}
        value = {pq: pair[0] for pq, pair in moment.items()}
        slope = {pq: ntk[pq] * pair[1] for pq, pair in moment.items()}
        if layer == depth - 1:
            chosen = [(p, q) for p in pixels for q in pixels if readout == "mean" or p == q]
            nngp = weight_var * sum(value[pq] for pq in chosen) / len(chosen) + bias_var
            return nngp, nngp + weight_var * sum(slope[pq] for pq in chosen) / len(chosen)
        for name, own in (("x", sx), ("y", sy)):
            new = affine(
                patch({pq: expectation(activation, own[pq], own[pq[0], pq[0]], own[pq[1], pq[1]])[0] for pq in own})
            )
            sx, sy = (new, sy) if name == "x" else (sx, new)
        s = affine(patch(value))
        propagated = patch(slope)
        ntk = {pq: s[pq] + weight_var * propagated[pq] for pq in s}
    raise AssertionError("depth is at least 1")


def neuralef_gradient(outputs, gram):
    """The slides' gradient for the raw outputs h (B, k) of the networks, function by function.

    l_j = -(R_jj - sum_{i<j} R_ij^2 / R_ii) with psi = L2BN(h), psi_i for i < j held constant; autograd does the rest.
    """
    b, k = outputs.shape
    gradient = torch.zeros_like(outputs)
    for j in range(k):
        h = outputs.detach().clone().requires_grad_()
        psi = h / (h.square().sum(0) / b).sqrt()
        mine = psi[:, j]
        objective = mine @ gram @ mine / b**2
        for i in range(j):
            other = psi[:, i].detach()
            objective = objective - (other @ gram @ mine / b**2) ** 2 / (other @ gram @ other / b**2)
        gradient[:, j] = torch.autograd.grad(-objective, h)[0][:, j]
    return gradient


def rayleigh(gram, psi_i, psi_j):
    """R_ij of Eq. 8 on the uniform measure of n points."""
    n = len(gram)
    total = 0.0
    for a in range(n):
        for b in range(n):
            total += float(psi_i[a]) * float(gram[a, b]) * float(psi_j[b])
    return total / n**2
