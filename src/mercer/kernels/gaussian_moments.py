r"""Second moments of an activation and of its derivative under a Gaussian pair: one layer of NNGP and NTK.

For :math:`(u, v)` with standard deviations :math:`r_x, r_y` and correlation :math:`\rho`, all elementwise. Correlations
and deviations rather than covariances, because the squares of large inputs overflow.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import checks
from ..linalg import angles, differentiated, records_graph, safe_sqrt

ACTIVATIONS = ("relu", "erf")
_RESOLUTION = 8.0  # units in the last place within which a cosine cannot be told from 1


def pair_moments(activation: str, rho: Tensor, rx: Tensor, ry: Tensor) -> tuple[Tensor, Tensor]:  # broadcastable
    r""":math:`E[\phi(u) \phi(v)] / g_x g_y` and :math:`r_x r_y E[\phi'(u) \phi'(v)] / g_x g_y` with the `gain` g."""
    if activation == "relu":
        return relu_pair(rho)
    rho = snapped(rho)
    (cx, ix), (cy, iy) = _erf_parts(rx), _erf_parts(ry)
    cc = cx * cy
    root = _erf_root(rho, cc, ix, iy)
    return torch.atan2(rho * cc, root) * (2 / math.pi), cc * (2 / math.pi) / root


def own_moments(activation: str, r: Tensor) -> tuple[Tensor, Tensor]:  # (n,) -> (n,), (n,)
    """As `pair_moments` of a variable with itself, exact: the diagonal."""
    if activation == "relu":
        return torch.ones_like(r), torch.ones_like(r)
    c, inverse = _erf_parts(r)
    root = inverse * (2 - inverse * inverse).sqrt()
    return (2 / math.pi) * torch.atan2(c * c, root), (2 / math.pi) * (c * c) / root


def gain(activation: str, r: Tensor) -> Tensor:
    r"""What grows with the deviation of the input: :math:`r / \sqrt 2` for relu, 1 for erf."""
    return r / math.sqrt(2) if activation == "relu" else torch.ones_like(r)


def moments(
    activation: str, s: Tensor, qx: Tensor, qy: Tensor, *, slope: bool = True
) -> tuple[Tensor, Tensor | None]:  # broadcastable
    r""":math:`E[\phi(u) \phi(v)]` and, with ``slope``, :math:`E[\phi'(u) \phi'(v)]`, of covariances and variances."""
    rx, ry = safe_sqrt(qx), safe_sqrt(qy)
    rho = s * inverse_of(rx) * inverse_of(ry)
    if activation == "relu":
        value, reach = relu_pair(rho)
        return value * (rx / 2) * ry, reach / 2 if slope else None
    rho = snapped(rho)
    (cx, ix), (cy, iy) = _erf_parts(rx), _erf_parts(ry)
    cc = cx * cy
    root = _erf_root(rho, cc, ix, iy)
    return torch.atan2(rho * cc, root) * (2 / math.pi), ix * iy * (4 / math.pi) / root if slope else None


def variances(activation: str, q: Tensor) -> tuple[Tensor, Tensor]:  # elementwise
    """As `moments` of a variable of variance q with itself, exact."""
    if activation == "relu":
        return q / 2, torch.full_like(q, 0.5)
    return (2 / math.pi) * torch.asin(2 * q / (1 + 2 * q)), (4 / math.pi) * (1 + 4 * q).rsqrt()


def relu_pair(rho: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`(\sin\theta + (\pi - \theta) \rho) / \pi` and :math:`1 - \theta / \pi` for :math:`\rho = \cos\theta`."""
    if not differentiated(rho):
        return _relu_pair_in_place(rho)
    t = snapped(rho)
    reach = 1 - angles(t) / math.pi
    return t * reach + safe_sqrt((1 - t) * (1 + t)) / math.pi, reach


def _relu_pair_in_place(rho: Tensor) -> tuple[Tensor, Tensor]:
    """The same in the fewest passes over memory, without a gradient."""
    edge = 1.0 - _RESOLUTION * torch.finfo(rho.dtype).eps
    t = torch.where(rho > edge, 1.0, rho).clamp_(min=-1.0)
    reach = torch.acos(t).mul_(-1 / math.pi).add_(1.0)
    gap = 1 - t
    sine = (2 - gap).mul_(gap).sqrt_()
    return t.mul_(reach).add_(sine, alpha=1 / math.pi), reach


def _erf_parts(r: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`\sqrt{2} r / \sqrt{1 + 2 r^2}` and :math:`1 / \sqrt{1 + 2 r^2}`, without the square."""
    scaled = math.sqrt(2) * r
    inverse = 1 / hypotenuse(scaled, 1.0)
    return scaled * inverse, inverse


def _erf_root(rho: Tensor, cc: Tensor, ix: Tensor, iy: Tensor) -> Tensor:
    r""":math:`\sqrt{1 - \rho^2 c_x^2 c_y^2}` with :math:`1 - c^2 = i^2`; as it stands it loses all digits near 0."""
    ex, ey = ix * ix, iy * iy
    least = torch.finfo(rho.dtype).tiny
    return torch.addcmul(ex + ey - ex * ey, cc * cc, (1 - rho) * (1 + rho)).clamp_min(least).sqrt()


def snapped(t: Tensor) -> Tensor:
    """Cosines in [-1, 1], with what cannot be told from +-1 put there; the gradient passes as if untouched."""
    edge = 1.0 - _RESOLUTION * torch.finfo(t.dtype).eps
    fixed = torch.where(t.detach().abs() > edge, t.detach().sign(), t.detach())
    return t + (fixed - t.detach()) if differentiated(t) else fixed


def inverse_of(r: Tensor) -> Tensor:
    """1 / r, and 0 at 0."""
    return torch.where(r > 0, 1 / torch.where(r > 0, r, torch.ones_like(r)), torch.zeros_like(r))


def ratio_of(a: Tensor, r: Tensor) -> Tensor:
    """The ratio a / r, and 0 at 0; unlike a times `inverse_of` r it does not overflow where r is denormal."""
    return torch.where(r > 0, a / torch.where(r > 0, r, torch.ones_like(r)), torch.zeros_like(r))


def check_activation(where: str, activation: str) -> str:
    """One of the activations with closed moments."""
    return checks.choice(where, "activation", activation, ACTIVATIONS)


def hypotenuse(r: Tensor, b: float) -> Tensor:
    r""":math:`\sqrt{r^2 + b^2}` without overflow; a compiled graph says it in operations that every runtime has."""
    if records_graph():
        larger = r.abs().clamp_min(b)
        return larger * ((r / larger).square() + (b / larger).square()).sqrt()
    return torch.hypot(r, torch.full_like(r, b))
