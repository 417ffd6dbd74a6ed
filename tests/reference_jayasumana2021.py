"""Equations of jayasumana2021, literal and slow: one number at a time, in float64."""

import math

import torch
from scipy import special


def unit(v):
    return [float(c) / math.sqrt(sum(float(b) ** 2 for b in v)) for c in v]


def dot(u, v):
    return sum(a * b for a, b in zip(u, v, strict=True))


def equation_6(u, v, alpha):
    """k(u, v) of unit vectors, alpha = [alpha_-2, alpha_-1, alpha_0, ..., alpha_M] (Eq. 6-7)."""
    t = dot(u, v)
    on_one, on_minus_one = abs(t - 1) < 1e-12, abs(t + 1) < 1e-12
    even = alpha[0] * (on_one or on_minus_one)
    odd = alpha[1] * (on_one - on_minus_one)
    return even + odd + sum(a * t**m for m, a in enumerate(alpha[2:]))


def gegenbauer_series(u, v, alpha, dim):
    """The same with Gegenbauer polynomials of dimension d, scaled to 1 at t = 1 (Schoenberg, 1942)."""
    t, half = dot(u, v), (dim - 2) / 2
    total = 0.0
    for m, a in enumerate(alpha[2:]):
        if dim == 2:
            total += a * float(special.eval_chebyt(m, t))
        else:
            total += a * float(special.eval_gegenbauer(m, half, t) / special.eval_gegenbauer(m, half, 1.0))
    return total


def logits(z, weight, alpha, *, prototypes=1, bias=None, temperature=1.0, dim=None):
    """Eq. 3-5 with prototypes joined by log-sum-exp: (n, c)."""
    rows = []
    for embedding in z.tolist():
        row = []
        for j in range(len(weight) // prototypes):
            values = []
            for w in weight[j * prototypes : (j + 1) * prototypes].tolist():
                pair = unit(embedding), unit(w)
                k = equation_6(*pair, alpha) if dim is None else gegenbauer_series(*pair, alpha, dim)
                values.append(k / temperature)
            row.append(math.log(sum(math.exp(value) for value in values)) + (bias[j] if bias is not None else 0.0))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def plain_logits(z, weight, alpha, *, prototypes=1, bias=None, temperature=1.0, dim=None):
    """The same by torch operations alone, for gradients: powers one by one, or the three-term recurrence."""
    t = torch.nn.functional.normalize(z, dim=1) @ torch.nn.functional.normalize(weight, dim=1).T
    terms = [torch.ones_like(t), t]
    for m in range(1, len(alpha) - 1):
        if dim is None:
            terms.append(t ** (m + 1))
        else:
            lam = (dim - 2) / 2
            terms.append(((2 * m + 2 * lam) * t * terms[m] - m * terms[m - 1]) / (m + 2 * lam))
    scores = sum(a * term for a, term in zip(alpha, terms, strict=False)) / temperature
    scores = torch.logsumexp(scores.reshape(len(z), -1, prototypes), 2)
    return scores if bias is None else scores + bias


def scaled_logits(z, weight, alpha, scale, center, linear, radius, *, lift=0.5, prototypes=1, bias=None, dim=None):
    """log sum_p exp(s_j k((w_jp, 0), (x, lift)) / k(1)) + v_j x / (1 + |x|^2 / radius^2)^(3/8) + b_j, x = z - mu."""
    result = []
    for embedding in z.tolist():
        moved, row = [value - shift for value, shift in zip(embedding, center.tolist(), strict=True)], []
        for j in range(len(weight) // prototypes):
            total = 0.0
            for w in weight[j * prototypes : (j + 1) * prototypes].tolist():
                pair = unit([*moved, lift]), unit([*w, 0.0])
                k = equation_6(*pair, alpha) if dim is None else gegenbauer_series(*pair, alpha, dim)
                total += math.exp(scale[j] * k / sum(alpha))
            shortened = [value * (1 + dot(moved, moved) / radius**2) ** (-3 / 8) for value in moved]
            row.append(math.log(total) + dot(linear[j].tolist(), shortened) + (0.0 if bias is None else bias[j]))
        result.append(row)
    return torch.tensor(result, dtype=torch.float64)


def plain_scaled_logits(
    z, weight, alpha, scale, center, linear, radius, *, lift=0.5, prototypes=1, bias=None, dim=None
):
    """The same by torch operations alone, for gradients."""
    x = z - center
    moved, weight = torch.nn.functional.pad(x, (0, 1), value=lift), torch.nn.functional.pad(weight, (0, 1))
    scores = plain_logits(moved, weight, alpha / alpha.sum(), dim=dim) * scale.repeat_interleave(prototypes)
    shortened = x * (1 + x.square().sum(1, keepdim=True) / radius**2) ** (-3 / 8)
    scores = torch.logsumexp(scores.reshape(len(z), -1, prototypes), 2) + shortened @ linear.T
    return scores if bias is None else scores + bias


def kernel_mean(places, mask, weight, alpha):
    """The mean of k(w, place) over the places that count, one number at a time: (n, m)."""
    result = []
    for row, counted in zip(places.tolist(), mask.tolist(), strict=True):
        kept = [place for place, counts in zip(row, counted, strict=True) if counts]
        means = [sum(equation_6(unit(place), unit(w), alpha) for place in kept) / len(kept) for w in weight.tolist()]
        result.append(means)
    return torch.tensor(result, dtype=torch.float64)


def read_units(values, z, norm_weight, norm_bias, readout, skip, bias, eps=1e-5):
    """A LN(values) + B z + b, one row at a time."""
    result = []
    for row, embedding in zip(values, z, strict=True):
        mean = sum(float(v) for v in row) / len(row)
        variance = sum((float(v) - mean) ** 2 for v in row) / len(row)
        scaled = [
            (float(v) - mean) / math.sqrt(variance + eps) * float(w) + float(b)
            for v, w, b in zip(row, norm_weight, norm_bias, strict=True)
        ]
        result.append(
            [
                dot(scaled, readout[j].tolist()) + dot(embedding.tolist(), skip[j].tolist()) + float(bias[j])
                for j in range(len(readout))
            ]
        )
    return torch.tensor(result, dtype=torch.float64)


def squared_outer_product(z):
    """Lin et al., 2015: the outer product, signed root, Frobenius length 1, written out."""
    outer = torch.einsum("ni,nj->nij", z, z)
    rooted = outer.sign() * outer.abs().sqrt()
    return rooted / rooted.flatten(1).norm(dim=1)[:, None, None]


def kervolution(x, weight, function):
    """k(patch, filter) for every patch, one at a time (Wang et al., 2019b); no padding, stride 1."""
    n, _, height, width = x.shape
    out, _, size, _ = weight.shape
    result = torch.empty(n, out, height - size + 1, width - size + 1, dtype=x.dtype)
    for i in range(height - size + 1):
        for j in range(width - size + 1):
            patch = x[:, :, i : i + size, j : j + size]
            for f in range(out):
                result[:, f, i, j] = function(patch.flatten(1), weight[f].flatten())
    return result
