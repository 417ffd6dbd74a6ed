"""EigenPro: SGD with the leading directions of the features made as flat as the rest, and a rate of its own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT
from typing_extensions import override

from .. import checks, distributed
from ..linalg.eigen import longest_step, randomized_range, shrink_directions
from ..linalg.operators import SymmetricOperator
from .base import Closure, descend, step_factor
from .inverses import Directions, Inverse, choose_lengths, measure_outputs
from .layers import Layer, ListeningOptimizer, find_readout

# Keys of the state kept with a layer's weight; all of them are checkpointed.
TOTAL, ROWS, NEXT = "total", "rows", "next"  # sum of g g^T, rows in it, rows at the next decomposition
VECTORS, SHRINK, RATE = "vectors", "shrink", "rate"
SAFE = "safe"  # the largest rate at which the latest batch's own loss would not rise

_FRESH = 0.05  # weight of the latest batch in the size of outputs
_ROWS = 4096  # patches of a convolution, or tokens, that a batch gives


class EigenProSGD(ListeningOptimizer):
    r"""SGD with :math:`u = \nabla J\, (I - \sum_{i \le k} (1 - \lambda_{k+1} / \lambda_i)\, e_i e_i^\top)`, untuned.

    :math:`(\lambda_i, e_i)` is the eigensystem of the second moment of a layer's inputs (its features), learned from
    the batches as they come and decomposed again whenever the rows seen have doubled. k is the least number for which
    the critical batch size :math:`\beta / \lambda_{k+1}` reaches twice the batch, with :math:`\beta` the largest
    squared norm of a preconditioned row, and the rate is :math:`\eta = m / (\beta + (m - 1) \lambda_{k+1})` (Ma,
    Bassily and Belkin 2018, Theorem 4; the preconditioner of Ma and Belkin 2017). Made for a read-out on
    fixed features, where it needs no tuning; the loss should have curvature of at most 1 in its logits, as
    cross-entropy and half the squared error have. If the features change, the rate is at most what the latest batch
    allows.

    Args:
        params: Parameters, named parameters or groups.
        lr: A number, or ``"auto"`` for the rate above; the groups' ``lr`` is then a factor, 1, that schedulers may
            change.
        model: Where the features are seen, plain or wrapped in DDP.
        layers: The last linear layer, or all linear and 2-d convolutional layers, each with its own eigensystem. The
            rate is then the read-out's. The outputs of the other layers move, relative to their size, as far as the
            logits, but at most by a tenth: no rate is known to be safe below a read-out.
        k: Directions to flatten; None chooses as above.
        rest_lr: Rate of SGD steps for all other parameters; it is multiplied by the ``lr`` of their group over the
            ``lr`` given here.
        max_samples: Rows after which the eigensystem is final.
        exclude: Names of layers to leave to plain SGD.
        foreach: Update parameters by torch's fused loops.
        maximize: Ascend.

    Use it for one linear layer on fixed features; it finds its rate.

    >>> head = nn.Linear(4, 2)
    >>> optimizer = EigenProSGD(head.parameters(), model=head)
    >>> head(torch.randn(32, 4)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.close()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | str = "auto",
        *,
        model: nn.Module,
        layers: str = "last",
        k: int | None = None,
        rest_lr: float = 0.01,
        max_samples: int = 20_000,
        exclude: tuple[str, ...] = (),
        foreach: bool = True,
        maximize: bool = False,
    ) -> None:
        where = "EigenProSGD"
        if isinstance(lr, str):
            checks.choice(where, "lr", lr, ("auto",))
            lr = 1.0  # times the planned rate
            self.automatic = True
        else:
            self.automatic = False
        super().__init__(params, {"lr": lr, "foreach": foreach}, maximize=maximize)
        self.k = None if k is None else checks.integer(where, "k", k, 0)
        self.rest_lr = checks.non_negative(where, "rest_lr", rest_lr)
        self.max_samples = checks.integer(where, "max_samples", max_samples, 1)
        self._layers = self.choose_layers(model, layers, exclude)
        self._every, self._readout = layers == "all", find_readout(model)
        self.listen_to(model, {layer.name: (layer.module, layer.read) for layer in self._layers})

    @override
    def update(self, live: list[Tensor], closure: Closure | None) -> None:
        groups = {id(p): group for group in self.param_groups for p in group["params"]}
        # Learn from the rows of the layers that were heard. The rate is part of the inverse.
        layers, states, inverses, unheard = [], [], [], []
        for layer in self._layers:
            if layer.weight.grad is None:
                continue
            if self._recorder.inputs[layer.name]:
                self._learn(layer, self._recorder.inputs[layer.name])
            else:
                unheard.append(layer)
            state = self.state_of(layer.weight).get(layer.part)
            if state is not None:
                rate = 1.0
                if self.automatic:
                    rate = min(state[RATE], state[SAFE])
                layers.append(layer)
                states.append(state)
                inverses.append(Inverse(state[VECTORS] * state[SHRINK].sqrt(), 1 / rate))
        if unheard:
            self.warn_unheard(unheard)

        moved: set[int] = set()
        if layers:
            # Flatten the gradients. (I - E) A is at most lambda_{k+1}, and the rate times that at most 1: a product
            # bounds the change of the outputs here too.
            directions = Directions(layers, inverses)
            products = directions.products
            rates = [1 / inverse.outside for layer, inverse in zip(layers, inverses, strict=True) for _ in layer.parts]
            if self.automatic and self._every:
                means = (directions.average @ products).tolist()
                squares = [rate * mean for rate, mean in zip(rates, means, strict=True)]
                lrs = [float(groups[id(layer.weight)]["lr"]) for layer in layers]
                lengths = choose_lengths(layers, states, squares, lrs, self._readout, 1.0)
                rates = [rate * length for rate, length in zip(rates, lengths, strict=True)]

            # Move the layers.
            steps = []
            for layer, inverse in zip(layers, inverses, strict=True):
                steps.append([inverse.factor.new_zeros(layer.take(p).shape) for p in layer.targets()])
            directions.mix_into(steps, [0.0] * len(layers), products.new_tensor(rates)[directions.index])
            for layer, tensors in zip(layers, steps, strict=True):
                alpha = step_factor(groups[id(layer.weight)])
                for p, u in zip(layer.targets(), tensors, strict=True):
                    layer.take(p).add_(u, alpha=alpha)
                    moved.add(id(p))

        # Move all other parameters by SGD.
        full = float(self.defaults["lr"])  # 1 where the rate is automatic
        for group in self.param_groups:
            lr = 0.0
            if full:
                lr = self.rest_lr * float(group["lr"]) / full  # a schedule shortens these steps, too
            parameters = [p for p in group["params"] if p.grad is not None and id(p) not in moved]
            descend(parameters, [p.grad for p in parameters], group, lr)
        self._recorder.clear()

    def _learn(self, layer: Layer, inputs: list[Tensor]) -> None:
        """Add the rows of the passes since the last step, and decompose the moment where its rows have doubled."""
        g = layer.rows(inputs, _ROWS).double()  # (n, d)
        if bool(distributed.sum_over_ranks((~g.square().sum().isfinite()).long())):  # what one rank omits, all omit
            checks.warn("EigenProSGD", f"the input of layer {layer.name!r} is not finite; it was not learned from.")
            return
        state = self.state_of(layer.weight).setdefault(layer.part, {})
        measure_outputs(state, layer, inputs, g, _FRESH)
        # Add to the moment until it has enough rows; plan anew each time they have doubled.
        rows = distributed.sum_over_ranks(torch.tensor(float(len(g)), dtype=torch.float64, device=g.device))
        total = distributed.sum_over_ranks(g.mT @ g)
        if state.get(ROWS, 0) < self.max_samples:
            if TOTAL in state:
                state[TOTAL] = state[TOTAL] + total
            else:
                state[TOTAL] = total
            state[ROWS] = state.get(ROWS, 0) + int(rows)
            if state[ROWS] >= state.get(NEXT, 0):
                # The features are fixed where nothing is trained but the read-out.
                of_layers = {id(p) for trained in self._layers for p in (trained.weight, trained.bias)}
                trained_ids = [id(p) for p in self.parameters if p.requires_grad]
                fixed = len(self._layers) == 1 and of_layers.issuperset(trained_ids)
                state[NEXT] = 2 * state[ROWS]
                a, batch, dtype = state[TOTAL] / state[ROWS], distributed.gather_rows(g), layer.weight.dtype
                k, vectors, shrink, rate = eigenpro_plan(a, batch, state[ROWS], self.k, fixed=fixed)
                state.update({VECTORS: vectors[:, :k].to(dtype), SHRINK: shrink.to(dtype), RATE: rate})
        # The planned rate may be too long for features that have grown since.
        if self.automatic:
            state[SAFE] = safe_rate(total / float(rows), state[VECTORS], state[SHRINK])


def safe_rate(a: Tensor, vectors: Tensor, shrink: Tensor) -> float:  # (d, d), (d, k), (k,)
    r"""One over the largest eigenvalue of :math:`P^{1/2} A P^{1/2}`, found by four power steps on four columns.

    The planned rate is right for the features it was planned on; these may have grown since.
    """
    v, root = vectors.double(), 1 - (1 - shrink.double()).clamp(min=0).sqrt()

    def flat(x: Tensor) -> Tensor:
        return x - v @ (root[:, None] * (v.mT @ x))

    operator = SymmetricOperator(lambda x: flat(a @ flat(x)), len(a), device=a.device)
    start = torch.randn(len(a), min(4, len(a)), generator=torch.Generator().manual_seed(0), dtype=a.dtype).to(a.device)
    basis = randomized_range(operator, start, iterations=4)
    largest = float(torch.linalg.eigvalsh(basis.mT @ (operator @ basis))[-1])
    if largest <= 0:
        return math.inf
    return 1 / (1.1 * largest)  # four steps come within a tenth


def eigenpro_plan(
    a: Tensor, batch: Tensor, rows: int, k: int | None = None, *, fixed: bool = True
) -> tuple[int, Tensor, Tensor, float]:  # (d, d), (m, d)
    r"""k, the eigenvectors ``(d, d)``, the factors :math:`1 - \lambda_{k+1} / \lambda_i` ``(k,)``, and the rate.

    Args:
        a: Second moment of the features.
        batch: A batch of them.
        rows: How many rows the moment has: at most half as many directions are trusted.
        k: Directions to flatten; None takes the least for which the critical batch size is twice the batch.
        fixed: Whether the features stay as they are. Where they change, only directions above the mean eigenvalue are
            flattened: beyond it the read-out's weights, and with them the features' steps, would grow without bound.
    """
    # The spectrum of the moment, descending.
    values, vectors = torch.linalg.eigh(a)
    values, vectors = values.flip(0), vectors.flip(1)
    values = values.clamp(min=values[0].clamp(min=torch.finfo(values.dtype).tiny) * 1e-12)
    # The largest k that the rows, and moving features, allow.
    m, largest_k = len(batch), max(0, min(len(values) - 1, rows // 2))
    if not fixed:
        largest_k = min(largest_k, int((values > values.mean()).sum()))
    # The largest row once the first j directions are levelled to the next one, for every j.
    energies = (batch @ vectors).square()  # (m, d)
    shrink, beta = shrink_directions(values, energies, energies.sum(1), values)
    if k is None:
        k = largest_k
        reached = (beta / values >= 2 * m).nonzero()
        if len(reached):
            k = min(k, int(reached[0, 0]))
    k = min(k, len(values) - 1)
    return k, vectors, shrink[:k, k], longest_step(float(beta[k]), float(values[k]), m)
