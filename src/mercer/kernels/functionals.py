r"""Numbers read off Gram matrices: HSIC, CKA, target alignment. None returns NaN, however few the rows."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks

__all__ = ["center", "cka", "hsic", "target_alignment"]


def center(K: Tensor) -> Tensor:  # (n, n) -> (n, n)
    r""":math:`H K H` with :math:`H = I - \mathbf{1}\mathbf{1}^\top / n`: the Gram matrix of centered features."""
    K = _check_gram("center", "K", K)
    return K - K.mean(0, keepdim=True) - K.mean(1, keepdim=True) + K.mean()


def hsic(K: Tensor, L: Tensor, *, unbiased: bool = False) -> Tensor:  # (n, n), (n, n) -> ()
    r"""Hilbert-Schmidt independence criterion :math:`\mathrm{tr}(K H L H) / (n - 1)^2` (Gretton et al. 2005).

    Args:
        K: Gram matrix of the one variable.
        L: Gram matrix of the other.
        unbiased: The U-statistic of Song et al. (2012), which has no bias of order 1/n; needs at least 4 rows.
    """
    K, L = _check_grams("hsic", K, L)
    n = len(K)
    if not unbiased:
        return (center(K) * L).sum() / max(1, n - 1) ** 2
    if n < 4:
        raise ValueError(checks.sentence("hsic", "unbiased=True needs at least 4 rows", n, "Use unbiased=False."))
    K, L = K - K.diagonal().diag_embed(), L - L.diagonal().diag_embed()
    products = (K * L).sum()
    means = K.sum() * L.sum() / ((n - 1) * (n - 2))
    cross = 2 * (K.sum(0) @ L.sum(0)) / (n - 2)
    return (products + means - cross) / (n * (n - 3))


def cka(K: Tensor, L: Tensor, *, unbiased: bool = False) -> Tensor:  # (n, n), (n, n) -> ()
    r"""Centered kernel alignment :math:`\mathrm{HSIC}(K, L) / \sqrt{\mathrm{HSIC}(K, K) \mathrm{HSIC}(L, L)}`.

    It is normalized HSIC, :math:`\mathrm{tr}(K H L H) / (\|HKH\|_F \|HLH\|_F)` in [0, 1] unless ``unbiased``.
    0 where the denominator is 0 (a constant representation) or, unbiased, below 0.
    """
    K, L = _check_grams("cka", K, L)
    if not unbiased:  # centering once, not three times
        floors = [(8 * torch.finfo(G.dtype).eps) ** 2 * G.square().sum() for G in (K, L)]  # centering's rounding error
        K, L = center(K), center(L)
        return _divide((K * L).sum(), K.square().sum(), L.square().sum(), *floors)
    return _divide(hsic(K, L, unbiased=True), hsic(K, K, unbiased=True), hsic(L, L, unbiased=True))


def target_alignment(K: Tensor, targets: Tensor, *, centered: bool = False) -> Tensor:  # (n, n), (n,) -> ()
    r"""Alignment :math:`\langle K, T T^\top \rangle / (\|K\|_F \|T T^\top\|_F)` (Cristianini et al. 2001).

    Args:
        K: Gram matrix.
        targets: Floating ``(n,)`` or ``(n, c)``, used as they are; whole-number ``(n,)`` classes become one -1/+1
            column each (two classes: one column).
        centered: Center K and the targets first (Cortes et al. 2012), so that a constant offset of the
            kernel does not count.
    """
    K = _check_gram("target_alignment", "K", K)
    targets = torch.as_tensor(targets)
    if targets.is_complex():
        raise TypeError(checks.sentence("target_alignment", "targets must be real", targets.dtype, "Use targets.real."))
    checks.same_length("target_alignment", "K", K, "targets", targets)
    columns = sign_columns(targets).to(K.dtype)
    if centered:
        K, columns = center(K), columns - columns.mean(0)
    inner = (columns * (K @ columns)).sum()
    return _divide(inner, K.square().sum(), (columns.mT @ columns).square().sum())


def sign_columns(targets: Tensor) -> Tensor:  # (n,) or (n, c) -> (n, c)
    """Floating targets as columns; whole-number classes as -1/+1 columns, one for two classes."""
    if targets.is_floating_point():
        return targets.reshape(len(targets), -1)
    classes = targets.unique()
    if len(classes) == 2:
        classes = classes[1:]
    return torch.where(targets.reshape(-1, 1) == classes[None], 1.0, -1.0)


def _divide(
    inner: Tensor, first: Tensor, second: Tensor, floor: Tensor | float = 0.0, other_floor: Tensor | float = 0.0
) -> Tensor:
    ok = (first > floor) & (second > other_floor)
    safe = [torch.where(ok, norm, torch.ones_like(norm)).sqrt() for norm in (first, second)]
    return torch.where(ok, inner / (safe[0] * safe[1]), torch.zeros_like(inner))


def _check_gram(where: str, name: str, K: Tensor) -> Tensor:
    K = checks.floating(checks.matrix(where, name, K))
    if K.shape[0] != K.shape[1] or K.shape[0] == 0:
        raise ValueError(checks.sentence(where, f"{name} must have shape (n, n), n > 0", tuple(K.shape)))
    return K


def _check_grams(where: str, K: Tensor, L: Tensor) -> tuple[Tensor, Tensor]:
    K, L = _check_gram(where, "K", K), _check_gram(where, "L", L)
    checks.same_length(where, "K", K, "L", L)
    common = torch.promote_types(K.dtype, L.dtype)
    return K.to(common), L.to(common)
