"""The equations of chen2022 and of its rivals, literal and slow, in NumPy and float64."""

import numpy as np


def rbf(x, gamma):
    """k(x_i, x_j) = exp(-gamma ||x_i - x_j||^2), entry by entry (Section 4.1)."""
    m = len(x)
    return np.array([[np.exp(-gamma * np.sum((x[i] - x[j]) ** 2)) for j in range(m)] for i in range(m)])


def linear(x):
    return np.array([[float(np.dot(a, b)) for b in x] for a in x])


def polynomial(x, degree):
    return np.array([[(float(np.dot(a, b)) + 1.0) ** degree for b in x] for a in x])


def pseudo_inverse(h, cutoff):
    """H^+ by the eigendecomposition; eigenvalues of at most cutoff times the largest count as 0."""
    values, vectors = np.linalg.eigh(h)
    limit = cutoff * np.abs(values).max()
    inverse = np.zeros_like(h)
    for value, vector in zip(values, vectors.T, strict=True):
        if abs(value) > limit:
            inverse += np.outer(vector, vector) / value
    return inverse


def reshaped_inverse(inverse, d_c, pad):
    """Section 3.1: zeros around it where m < d_c; the last m - d_c rows and columns off where m > d_c."""
    m = len(inverse)
    out = np.zeros((d_c, d_c))
    for i in range(d_c):
        for j in range(d_c):
            if i < m and j < m:
                out[i, j] = inverse[i, j]
            elif i == j and pad == "identity":
                out[i, j] = 1.0
    return out


def softmax(f):
    e = np.exp(f - f.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def network_gradients(weights, biases, x, y):
    """Gradients of the mean cross-entropy of a ReLU network, by hand: lists over the layers."""
    activations, inputs = [x], x
    for t, (w, b) in enumerate(zip(weights, biases, strict=True)):
        inputs = inputs @ w.T + b
        if t < len(weights) - 1:
            inputs = np.maximum(inputs, 0)
        activations.append(inputs)
    delta = (softmax(activations[-1]) - np.eye(activations[-1].shape[1])[y]) / len(x)
    gradients = []
    for t in reversed(range(len(weights))):
        gradients.insert(0, (delta.T @ activations[t], delta.sum(0)))
        delta = (delta @ weights[t]) * (activations[t] > 0)
    return gradients


def inverse_or_pseudo_inverse(h):
    """H^-1; "when the inverse of the kernel matrix H does not exist, we use the pseudoinverse" (Section 3.1)."""
    rounding = len(h) * np.finfo(h.dtype).eps
    return np.linalg.inv(h) if np.linalg.cond(h, 1) * rounding < 1 else pseudo_inverse(h, rounding)


def kernel_sgd_step(weights, biases, x, y, h, lr, layers, pad):
    """One iteration of Algorithm 1 from the kernel matrix h of the mini-batch."""
    inverse = inverse_or_pseudo_inverse(h)
    last = len(weights) - 1
    new_weights, new_biases = [], []
    for t, (grad_w, grad_b) in enumerate(network_gradients(weights, biases, x, y)):
        if t == last or layers == "all":
            grad_w = grad_w @ reshaped_inverse(inverse, grad_w.shape[1], pad)  # Eq. 8
        new_weights.append(weights[t] - lr * grad_w)
        new_biases.append(biases[t] - lr * grad_b)
    return new_weights, new_biases


def function_space_direction(d, g, damping):
    """D^T (G G^T / m + lambda I)^-1 G, lambda = damping times the mean eigenvalue of G^T G / m."""
    m, width = g.shape
    lam = damping * np.trace(g.T @ g / m) / width
    return d.T @ np.linalg.inv(g @ g.T / m + lam * np.eye(m)) @ g


def equilibrated_steps(theta, hessian, normals, lr, damping):
    """ESGD on a quadratic 1/2 theta^T H theta, an estimate at every step (Dauphin et al. 2015, Algorithm 1)."""
    total = np.zeros_like(theta)
    for i, v in enumerate(normals, 1):
        total = total + (hessian @ v) ** 2
        theta = theta - lr * (hessian @ theta) / (np.sqrt(total / i) + damping)
    return theta


def bfgs_inverse(pairs, n):
    """L-BFGS's inverse Hessian as a matrix: BFGS updates of H_0 = (s^T y / y^T y) I, oldest pair first."""
    s, y = pairs[-1]
    h = (s @ y) / (y @ y) * np.eye(n)
    for s, y in pairs:
        rho = 1 / (s @ y)
        v = np.eye(n) - rho * np.outer(y, s)
        h = v.T @ h @ v + rho * np.outer(s, s)
    return h


def eigenpro_direction(gradient, moment, k):
    """gradient (I - sum_{i <= k} (1 - lambda_{k+1} / lambda_i) e_i e_i^T) (Ma and Belkin 2017)."""
    values, vectors = np.linalg.eigh(moment)
    values, vectors = values[::-1], vectors[:, ::-1]
    p = np.eye(len(moment))
    for i in range(k):
        p -= (1 - values[k] / values[i]) * np.outer(vectors[:, i], vectors[:, i])
    return gradient @ p


def eigenpro_rate(moment, batch, k):
    """m / (beta + (m - 1) lambda_{k+1}), beta the largest x^T P x over the batch (Ma, Bassily and Belkin 2018)."""
    values, vectors = np.linalg.eigh(moment)
    values, vectors = values[::-1], vectors[:, ::-1]
    scale = np.where(np.arange(len(values)) < k, values[k] / values, 1.0)
    beta = max(sum(scale[i] * (vectors[:, i] @ row) ** 2 for i in range(len(values))) for row in batch)
    return len(batch) / (beta + (len(batch) - 1) * values[k]), beta / values[k]
