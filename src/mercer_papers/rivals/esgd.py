"""Equilibrated SGD (Dauphin, de Vries and Bengio 2015), a rival of chen2022."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import override

from mercer import checks
from mercer.linalg.torch_internals import add_in_place
from mercer.optim.base import CheckedOptimizer, Closure, descend

CURVATURE = "curvature"  # sum of (H v)^2 over the estimates, with every parameter
ESTIMATES = "estimates"  # how many, with the first


class ESGD(CheckedOptimizer):
    r"""Equilibrated SGD, :math:`\theta' = \theta - \eta\, g / (\sqrt{D / i} + \lambda)`, D a running sum of (H v)^2.

    After i estimates :math:`D / i` tends to the squared row norms of the Hessian H, for v normal; their inverse roots
    equilibrate it (Dauphin et al. 2015, Algorithm 1).

    H v needs more than one gradient. Call ``loss.backward(create_graph=opt.due)``, which gives it exactly; or pass
    ``step`` a closure, which is then evaluated once more at a shifted point, with the same random numbers. Under DDP,
    which refuses ``create_graph``, pass a closure. With a ``GradScaler``, leave unscaling to ``scaler.step(opt)``: it
    tells the optimizer the scale of the loss.

    Args:
        params: Parameters, named parameters or groups.
        lr: :math:`\eta`.
        damping: :math:`\lambda`.
        update_every: Steps between two estimates; the first step has one.
        generator: Randomness of v. None seeds it by the step's number, so that ranks agree and a resumed run repeats
            itself.
        foreach: Update parameters by torch's fused loops.
        maximize: Ascend.
    """

    _step_supports_amp_scaling = True  # a GradScaler then sets grad_scale and found_inf, and leaves unscaling to us
    grad_scale: Tensor | None
    found_inf: Tensor

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        damping: float = 1e-4,
        update_every: int = 20,
        generator: torch.Generator | None = None,
        foreach: bool = True,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "foreach": foreach}
        super().__init__(params, options, maximize=maximize)
        self.damping = checks.positive("ESGD", "damping", damping)
        self.update_every = checks.integer("ESGD", "update_every", update_every, 1)
        self.generator = generator
        self._random_state: Tensor | None = None

    @property
    def due(self) -> bool:
        """Whether the next step estimates curvature: pass it as ``create_graph``."""
        return self.steps % self.update_every == 0

    @override
    def step(self, closure: Closure | None = None) -> Any:
        """One step; a closure is evaluated twice where curvature is due and the gradient has no graph."""
        if bool(getattr(self, "found_inf", False)):
            return None
        self._random_state = torch.get_rng_state() if self.due else None
        return super().step(closure)

    @override
    def update(self, live: list[Tensor], closure: Closure | None) -> None:
        if self.due:
            self._estimate(live, closure)
            self._first_state()[ESTIMATES] = self._estimates + 1
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            for p in live:
                p.grad = p.grad.detach() / scale  # type: ignore[union-attr]
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            descend(parameters, [self._direction(p) for p in parameters], group)

    @property
    def _estimates(self) -> int:
        return int(self._first_state().get(ESTIMATES, 0))

    def _direction(self, p: Tensor) -> Tensor:
        assert p.grad is not None
        total = self.state_of(p).get(CURVATURE)
        mean = torch.zeros_like(p) if total is None else total / self._estimates
        return p.grad / (mean.sqrt() + self.damping)

    def _estimate(self, live: list[Tensor], closure: Closure | None) -> None:
        generator = self.generator
        if generator is None:
            generator = torch.Generator().manual_seed(self.steps)
        v = [torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) for p in live]
        if all(p.grad is not None and p.grad.requires_grad for p in live):  # the gradients have their graph
            products = self._exact(live, v)
        else:
            products = self._difference(live, v, closure)
        for p, product in zip(live, products, strict=True):
            total = self.state_of(p).setdefault(CURVATURE, torch.zeros_like(p))
            total.addcmul_(product, product)

    def _exact(self, live: list[Tensor], v: list[Tensor]) -> list[Tensor]:
        scale = getattr(self, "grad_scale", 1.0)  # the graph is that of the scaled loss
        if scale is None:
            fix = "Leave scaler.unscale_(opt) out where opt.due, or pass step a closure."
            need = "a step with curvature needs the scale of the loss"
            raise RuntimeError(checks.sentence("ESGD", need, "gradients unscaled before", fix))
        gradients = [p.grad for p in live if p.grad is not None]
        with torch.enable_grad():
            products = torch.autograd.grad(gradients, live, v, allow_unused=True)
        for p in live:  # the graph and the parameters hold each other: cut it, or memory leaks
            assert p.grad is not None
            p.grad = p.grad.detach()
        return [torch.zeros_like(p) if h is None else h / scale for p, h in zip(live, products, strict=True)]

    def _difference(self, live: list[Tensor], v: list[Tensor], closure: Closure | None) -> list[Tensor]:
        r""":math:`H v \approx (g(\theta + \varepsilon v) - g(\theta)) / \varepsilon`."""
        if closure is None:
            fix = "Call loss.backward(create_graph=opt.due), or pass step a closure."
            raise RuntimeError(checks.sentence("ESGD", "a step with curvature needs H v", "a plain gradient", fix))
        # move along v by a small step
        before = [(p.detach().clone(), p.grad) for p in live]
        largest = max(float(p.abs().max()) for p in live)
        size = torch.finfo(live[0].dtype).eps ** 0.5 * (1 + largest)
        add_in_place(live, v, size)
        # the gradient there, with the same random numbers
        now = torch.get_rng_state()
        if self._random_state is not None:
            torch.set_rng_state(self._random_state)  # dropout must drop the same units
        for p in live:
            p.grad = None
        with torch.enable_grad():
            closure()
        torch.set_rng_state(now)
        # the quotient; parameters and gradients as they were
        products = []
        for p, (value, gradient) in zip(live, before, strict=True):
            assert gradient is not None
            products.append((torch.zeros_like(p) if p.grad is None else p.grad - gradient) / size)
            p.copy_(value)
            p.grad = gradient
        return products
