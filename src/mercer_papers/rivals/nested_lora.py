r"""NestedLoRA, the training of NeuralSVD (Ryu et al. 2024): the rival of NeuralEF that needs no deflation.

The low-rank approximation objective of Schmidt for a symmetric operator T and functions :math:`f_1 \dots f_l` is

.. math:: L(f_{1:l}) = -2 \sum_{i \le l} \langle f_i, T f_i \rangle + \sum_{i, j \le l} \langle f_i, f_j \rangle^2
    = \|T - \sum_{i \le l} f_i f_i^\top\|^2 - \|T\|^2

It knows the leading functions up to a rotation. Nesting orders them: :math:`f_i = \sqrt{\mu_i} \psi_i`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from mercer import checks
from mercer.distributed import gather_rows
from mercer.features.base import FeatureMap
from mercer.features.parallel_networks import ParallelNetworks
from mercer.features.rayleigh_ritz import kernel_operator, measure_center_and_spread
from mercer.kernels import Kernel
from mercer.rows.stored import Readable

NESTINGS = ("sequential", "joint")
RECIPES = ("Adam", "authors")


def compute_gradient(
    f: Tensor, gram: Tensor, nesting: str, *, halves: bool = False
) -> Tensor:  # (b, k), (b, b) -> (b, k)
    r"""Gradient of the nested objective on a minibatch with respect to the functions' values.

    ``"sequential"``: function l follows :math:`\partial_{f_l} L(f_{1:l})`, so that it never bends those before it.
    ``"joint"``: the gradient of :math:`\frac1k \sum_l L(f_{1:l})`, in which pair (i, j) counts
    :math:`1 - (\max(i, j) - 1) / k` times. The former is for networks that share nothing, the latter for one trunk.

    With ``halves`` the two factors of :math:`\langle f_i, f_j \rangle^2` are estimated from one half of the minibatch
    each, as the authors do, so that the estimate of the square is unbiased.
    """
    b, k = f.shape
    if nesting == "sequential":
        own, pairs = torch.ones(k, dtype=f.dtype), torch.triu(torch.ones(k, k, dtype=f.dtype))
    else:
        own = 1 - torch.arange(k, dtype=f.dtype) / k
        pairs = torch.minimum(own[:, None], own[None])
    parts = [f]
    if halves:
        parts = list(f.chunk(2))
    moments = [part.mT @ part / len(part) for part in parts]
    # Each part meets the moment of the other one; with a single part that is its own.
    overlaps = torch.cat([part @ (moment * pairs) for part, moment in zip(parts, reversed(moments), strict=True)])
    return -4 / b**2 * (gram @ f) * own + 4 / b * overlaps


class NestedLoRA(FeatureMap):
    """Eigenfunctions by nested low-rank approximation, with k networks that share nothing, as Algorithm 1 has them.

    Args:
        kernel: k, with one number for each pair.
        k: Number of eigenfunctions.
        generator: Source of randomness, or a seed.
        nesting: As in :func:`compute_gradient`.
        steps: Iterations.
        batch_size: Rows of a minibatch.
        lr: Largest step size.
        recipe: ``"Adam"``, whose step size falls to a tenth along a cosine, as for NeuralEF; or ``"authors"``, the
            training of their published code: RMSprop that forgets a thousandth a step, a cosine down to 0, overlaps
            from two halves of the minibatch, and at the end the mean of the weights over about 200 steps.

    Attributes:
        eigenvalues: ``(k,)`` Rayleigh quotients over all rows, in the order of the functions.
    """

    FITTED = ("eigenvalues", "sizes", "centre", "spread")
    eigenvalues: Tensor
    sizes: Tensor  # (k,): root mean squares of the networks over the rows
    centre: Tensor
    spread: Tensor

    def __init__(
        self,
        kernel: Kernel,
        k: int,
        *,
        generator: torch.Generator | int | None = None,
        nesting: str = "sequential",
        steps: int = 2000,
        batch_size: int = 256,
        lr: float = 1e-2,
        recipe: str = "Adam",
    ) -> None:
        super().__init__(kernel, generator)
        self.k = self.m = checks.integer("NestedLoRA", "k", k, 1)
        self.nesting = checks.choice("NestedLoRA", "nesting", nesting, NESTINGS)
        self.steps = checks.integer("NestedLoRA", "steps", steps, 0)
        self.batch_size = checks.integer("NestedLoRA", "batch_size", batch_size, 1)
        self.lr = checks.positive("NestedLoRA", "lr", lr)
        self.recipe = checks.choice("NestedLoRA", "recipe", recipe, RECIPES)
        self.network: ParallelNetworks | None = None

    @override
    def learn(self, x: Readable) -> None:  # (n, d)
        self.centre, spread = measure_center_and_spread(x)
        self.spread = spread.reshape(1)
        x = gather_rows(x[:])
        self.network = ParallelNetworks(self.centre.numel(), self.k, generator=self.generator)
        parameters = list(self.network.parameters())
        halves = self.recipe == "authors"
        optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters, lr=self.lr)
        last_rate = self.lr / 10
        if halves:
            optimizer = torch.optim.RMSprop(parameters, lr=self.lr, alpha=0.999, eps=1e-10)
            last_rate = 0.0
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, self.steps), last_rate)
        means = [p.detach().clone() for p in parameters]
        size = min(self.batch_size, len(x))
        for step in range(self.steps):
            # The functions on a minibatch, and the gradient of the objective with respect to their values there.
            batch = x[torch.randperm(len(x), generator=self.generator)[:size]]
            with torch.enable_grad():
                f = self._outputs(batch)
            gradient = compute_gradient(f.detach(), self.exact(batch).to(f.dtype), self.nesting, halves=halves)
            if not bool(torch.isfinite(gradient).all()):
                raise FloatingPointError(
                    checks.sentence("NestedLoRA", "the loss must stay finite", f"NaN at step {step}")
                )
            optimizer.zero_grad()
            f.backward(gradient)
            optimizer.step()
            schedule.step()
            # The mean of the weights over steps; it forgets faster at the start.
            forget = 1 - min(0.995, (2 + step) / (11 + step))
            for mean, p in zip(means, parameters, strict=True):
                mean.lerp_(p.detach(), forget)
        if halves:
            for mean, p in zip(means, parameters, strict=True):
                p.data.copy_(mean)

        # Functions of mean square 1 over all rows, and their Rayleigh quotients.
        self.network.eval().double().requires_grad_(False)
        f = self._outputs(x)
        self.sizes = f.square().mean(0).sqrt().clamp_min(torch.finfo(f.dtype).tiny)
        psi = f / self.sizes
        self.eigenvalues = (psi * (kernel_operator(self.exact, x.double()) @ psi)).mean(0)

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, d) -> (n, k)
        return (self._outputs(x) / self.sizes * self.eigenvalues.clamp_min(0).sqrt()).to(x.dtype)

    def eigenfunctions(self, x: Tensor) -> Tensor:  # (n, d) -> (n, k)
        """The functions, of mean square 1 over the fitted rows."""
        self._check_fitted()
        return (self._outputs(self._check_rows(x)) / self.sizes).to(x.dtype)

    def _outputs(self, x: Tensor) -> Tensor:  # (n, d) -> (n, k)
        assert self.network is not None
        return self.network(((x.double() - self.centre) / self.spread).to(self.network.weights[0].dtype))
