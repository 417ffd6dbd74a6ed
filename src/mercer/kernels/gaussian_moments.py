r"""Second moments of an activation and of its derivative under a Gaussian pair: one layer of NNGP and NTK.

For :math:`(u, v) \sim N(0, ((q_x, s), (s, q_y)))` each function gives :math:`E[\phi(u) \phi(v)]` and
:math:`E[\phi'(u) \phi'(v)]`, elementwise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import checks
from ..linalg import angles, safe_sqrt

ACTIVATIONS = ("relu", "erf")
_RESOLUTION = 8.0  # units in the last place within which a cosine cannot be told from 1


def moments(
    activation: str, s: Tensor, qx: Tensor, qy: Tensor, *, slope: bool = True
) -> tuple[Tensor, Tensor | None]:  # broadcastable
    """Both moments of a pair with covariance ``s`` and variances ``qx``, ``qy``; without ``slope``, the first."""
    return _relu(s, qx, qy, slope) if activation == "relu" else _erf(s, qx, qy, slope)


def variances(activation: str, q: Tensor) -> tuple[Tensor, Tensor]:  # (n,) -> (n,), (n,)
    """Both moments of a variable with itself, exact: the diagonal."""
    if activation == "relu":
        return q / 2, torch.full_like(q, 0.5)
    return (2 / math.pi) * torch.asin(2 * q / (1 + 2 * q)), (4 / math.pi) * (1 + 4 * q).rsqrt()


def _relu(s: Tensor, qx: Tensor, qy: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    r""":math:`\sqrt{q_x q_y} (\sin\theta + (\pi - \theta) \cos\theta) / 2\pi` and :math:`(\pi - \theta) / 2\pi`."""
    rx, ry = safe_sqrt(qx), safe_sqrt(qy)
    t = snapped(s * _inverse(rx) * _inverse(ry))
    reach = math.pi - angles(t)
    moment = (safe_sqrt(1 - t * t) + reach * t) * (rx / (2 * math.pi)) * ry
    return moment, reach / (2 * math.pi) if slope else None


def relu_step(t: Tensor) -> tuple[Tensor, Tensor]:
    r"""Of correlations t: :math:`J(t) = (\sin\theta + (\pi - \theta) t) / \pi` and :math:`1 - \theta / \pi`.

    It is `moments` of relu where :math:`q_x = q_y = 2`, in the fewest passes; it has no gradient.
    """
    edge = 1.0 - _RESOLUTION * torch.finfo(t.dtype).eps
    t = torch.where(t > edge, 1.0, t).clamp(min=-1.0)
    reach = torch.acos(t).mul_(-1 / math.pi).add_(1.0)
    gap = 1 - t
    sine = (2 - gap).mul_(gap).sqrt_()
    return t.mul_(reach).add_(sine, alpha=1 / math.pi), reach


def _erf(s: Tensor, qx: Tensor, qy: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    r""":math:`\tfrac2\pi \arcsin(2 s / a)`, :math:`\tfrac4\pi (a^2 - 4 s^2)^{-1/2}`; a^2 = (1 + 2 q_x)(1 + 2 q_y).

    The difference is taken as :math:`1 + 2 q_x + 2 q_y + 4 q_x q_y (1 - \rho^2)`: as it stands it loses every digit
    where the variances are large. The arcsine follows from it as an angle.
    """
    rx, ry = safe_sqrt(qx), safe_sqrt(qy)
    rho = snapped(s * _inverse(rx) * _inverse(ry))
    root = (1 + 2 * qx + 2 * qy + 4 * qx * qy * ((1 - rho) * (1 + rho))).sqrt()
    moment = (2 / math.pi) * torch.atan2(2 * s, root)
    return moment, (4 / math.pi) / root if slope else None


def snapped(t: Tensor) -> Tensor:
    """Cosines in [-1, 1], with what cannot be told from +-1 put there; the gradient passes as if untouched."""
    edge = 1.0 - _RESOLUTION * torch.finfo(t.dtype).eps
    fixed = torch.where(t.detach().abs() > edge, t.detach().sign(), t.detach())
    return t + (fixed - t.detach()) if t.requires_grad else fixed


def _inverse(r: Tensor) -> Tensor:
    return torch.where(r > 0, 1 / torch.where(r > 0, r, torch.ones_like(r)), torch.zeros_like(r))


def check_activation(where: str, activation: str) -> str:
    """One of the activations with closed moments."""
    return checks.choice(where, "activation", activation, ACTIVATIONS)
