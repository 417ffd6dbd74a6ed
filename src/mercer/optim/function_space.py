"""SGD in function space: each layer's gradient times the inverse second moment of the layer's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.optimizer import ParamsT
from typing_extensions import override

from .. import checks, distributed
from ..linalg.torch_internals import add_in_place, norms, scale_in_place
from ..signals.layers import find_layers
from .base import Closure, step_factor
from .inverses import (
    BATCH,
    NEW_STEP,
    Directions,
    Inverse,
    choose_lengths,
    invert_by_directions,
    invert_by_samples,
    measure_outputs,
)
from .layers import Layer, ListeningOptimizer, find_readout

# Constants, each chosen on validation rows of digits, usps and mnist (`mercer bench optim` measures it).
BALANCE = 4.0  # hidden outputs move so many times as far as the logits, relative to their size; 1 to 4 are level
MEMORY = 0.95  # of the moments, bias-corrected; they drift slowly, and one batch has too few rows
MAX_WIDTH = 4096  # a layer with more columns uses the latest batch alone, by samples: n d numbers in place of d^2
MAX_ROWS = 4096  # patches or tokens used for a moment, about: more change it by less than its drift
RANK_TOLERANCE = 2.0  # directions with an eigenvalue below this times lambda + the mean of the rest are treated alike
# A moment that moves by less than this share of its norm is renewed half as often; by more than twice it, twice as
# often.
DRIFT = 0.05
RAREST = 32  # times update_every: the longest time between two renewals
TABLE = 0.1  # the same for embeddings, times their size at the first step: most of their rows are met in few batches
LEVEL = 0.1  # of the mean over rows, added to a row's product: no row moves more than 3 times as far as it would
ADAPTIVE = 0.01  # rate of the adaptive steps over lr: 0.003 at the default, where AdamW does well on all these networks
BETAS, EPS = (0.9, 0.99), 1e-8  # of the adaptive steps

# Keys of a layer's state, kept with its weight under the name of the block; all of them are checkpointed.
REFRESHES = "refreshes"  # how often the moment was renewed
INTERVAL, NEXT = "interval", "next"  # steps between two renewals; the step of the next one
MOMENT = "moment"  # EMA of G^T G / n
FACTOR, OUTSIDE, ERROR = "factor", "outside", "error"  # its damped inverse: see Inverse
ROWS, STEPS = "rows", "steps"  # mean of the products of the direction's and the gradient's rows, over so many steps
MOMENTUM, MOMENTUM_OF_BIAS = "momentum", "momentum_of_bias"  # mean of the directions, older ones less and less
TERMS = "terms"  # weight of all directions in their mean, the latest 1: 1 + momentum + momentum^2 + ...
# Keys of another parameter's state.
FIRST, SECOND, COUNT = "first", "second", "count"  # moments of the gradient and number of adaptive steps
RATE = "rate"  # of an embedding's adaptive steps, over lr


class FunctionSpaceSGD(ListeningOptimizer):
    r"""SGD in function space, :math:`W' = W - \eta\, \nabla_W J\, (G^\top G / n + \lambda I)^{-1}`, for every network.

    G are the n rows that the layer's weight multiplies, a column of ones for the bias included; of a convolution the
    patches, of a layer on tokens the tokens. :math:`\lambda` is ``damping`` times the mean of the eigenvalues that a
    batch can have, :math:`\operatorname{tr}(G^\top G / n) / \min(n, d)`. By the push-through identity this is
    :math:`D^\top (G G^\top / n + \lambda I)^{-1} G` with :math:`D` the gradient at the layer's output: the kernel SGD
    of chen2022 with the kernel of the layer's own features, at the place where dimensions fit. The order of samples
    does not matter, the step descends, and for squared loss on a linear layer it is the Gauss-Newton step.

    Preconditioned are linear layers, 2-d convolutions without groups, the projections of ``nn.MultiheadAttention``
    (queries, keys and values apart), and of recurrent layers the weights whose inputs can be heard. All other
    parameters (embeddings, norms, positions, weights that two modules share, layers used through their weight alone)
    take Adam's steps at the rate ``0.01 lr``.

    Every layer but the read-out, which is the last linear layer, gets a direction of such a length that its outputs
    move, relative to their size, four times as far as the logits in the mean over steps, and rows of such lengths that
    all its units move nearly alike; each gate of a recurrent layer counts as a layer. No step moves hidden outputs by
    more than a tenth of their size, or logits by more than three times theirs (or 3).

    Steps on the loss of a softmax become longer, relative to their gradient, while the gradient falls, because its
    curvature falls, too; and longer with batches of more than 128 rows. Other losses have none of this.

    It needs a plain ``backward()`` and acts on ``p.grad``: clipping, accumulation, loss scaling, frozen parameters and
    DDP keep their meaning. Layers are chosen at construction; parameters of groups added later take Adam's steps
    unless ``model`` had them then.

    Args:
        params: Parameters, named parameters or groups.
        lr: :math:`\eta`. The default needs no tuning; a schedule that ends at 0 gains a little more.
        model: Where the layers' inputs are seen, plain or wrapped in DDP.
        layers: Precondition all layers, or the last linear one.
        damping: :math:`\lambda` in units of the mean eigenvalue.
        momentum: Share of the mean direction that stays from step to step: steps are as long as without it.
        weight_decay: Apart from the gradient, as in AdamW at the rate ``0.01 lr``.
        update_every: Steps between two moments; at the start, steps 0, 1, 2, 4, ... have one, and settled ones rarer.
        exclude: Names of layers, or of modules that hold them, to leave to Adam's steps.
        maximize: Ascend.

    Use it where you would take Adam and training is short, or its rate untuned.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> optimizer = FunctionSpaceSGD(model.parameters(), model=model)
    >>> model(torch.ones(3, 4)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.close()
    """

    remaining_steps = "Adam"
    looks_itself = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.3,
        *,
        model: nn.Module,
        layers: str = "all",
        damping: float = 1.0,
        momentum: float = 0.8,
        weight_decay: float = 0.0,
        update_every: int = 10,
        exclude: Sequence[str] = (),
        maximize: bool = False,
    ) -> None:
        where = "FunctionSpaceSGD"
        if checks.non_negative(where, "momentum", momentum) >= 1:
            raise ValueError(checks.sentence(where, "momentum must be below 1", momentum))
        checks.non_negative(where, "weight_decay", weight_decay)
        options = {"lr": lr, "momentum": float(momentum), "weight_decay": float(weight_decay)}
        super().__init__(params, options, maximize=maximize)
        self.damping = checks.positive(where, "damping", damping)
        self.update_every = checks.integer(where, "update_every", update_every, 1)
        self._layers = self.choose_layers(model, layers, exclude)
        self._readout = find_readout(model)
        self._tables = [module.weight for module in find_layers(model, (nn.Embedding, nn.EmbeddingBag)).values()]
        self.listen_to(model, {layer.name: (layer.module, layer.read) for layer in self._layers})

    @override
    def update(self, live: list[Tensor], closure: Closure | None) -> None:
        step = self.steps
        groups = {id(p): group for group in self.param_groups for p in group["params"]}

        # Renew the moments of the layers that were heard.
        layers, states, inverses, unheard = [], [], [], []
        for layer in self._layers:
            if layer.weight.grad is None:
                continue
            inputs = self._recorder.inputs[layer.name]
            if inputs:
                self._renew(layer, inputs, step)
            state = self.state_of(layer.weight).get(layer.part)
            if not inputs and (state is None or state[NEXT] <= step):
                unheard.append(layer)
            if state is not None:
                layers.append(layer)
                states.append(state)
                inverses.append(Inverse(state[FACTOR], state[OUTSIDE]))
        if unheard:
            self.warn_unheard(unheard)

        # Parameters of no layer, or of one that has no moment yet, take adaptive steps.
        targets = [layer.targets() for layer in layers]
        moved = {id(p) for pair in targets for p in pair}
        adaptive = [p for p in live if id(p) not in moved]
        total = 0.0
        if adaptive:
            total = float(torch.stack(norms([p.grad for p in adaptive if p.grad is not None])).sum())

        if layers:
            # Precondition every layer's gradient.
            directions = Directions(layers, inverses)
            products, counts = directions.products, directions.counts
            average, index = directions.average, directions.index

            # Level: the rows of a part get such lengths that their products, in the mean over steps, are nearly alike.
            # Units with small gradients then move nearly as far as the others. Only the read-out keeps its lengths.
            ages = [state.get(STEPS, 0) for state in states]
            weight: Any = max(1 / (ages[0] + 1), NEW_STEP)  # of the latest in the mean
            if min(ages) != max(ages):
                weights = [max(1 / (age + 1), NEW_STEP) for age in ages]
                weight = torch.cat([products.new_full((n,), w) for n, w in zip(counts, weights, strict=True)])
            latest = products.split_with_sizes(counts)
            means = torch.cat([state.get(ROWS, rows) for state, rows in zip(states, latest, strict=True)])
            size = (average @ means.lerp_(products, weight)).index_select(0, index)
            ratio = size / means.add(size, alpha=LEVEL).clamp_(min=torch.finfo(size.dtype).tiny)
            for layer, rows in zip(layers, ratio.split_with_sizes(counts), strict=True):
                if layer.name == self._readout:
                    rows.fill_(1.0)

            # One look at all numbers, before anything changes.
            squares = (average @ products.mul_(ratio)).tolist()
            self.refuse_infinite(total + sum(squares))
            for state, rows, age in zip(states, means.split_with_sizes(counts), ages, strict=True):
                state[ROWS], state[STEPS] = rows, age + 1

        else:
            self.refuse_infinite(total)

        # Decay, apart from the gradient.
        for group in self.param_groups:
            if group["weight_decay"]:
                parameters = [p for p in group["params"] if p.grad is not None]
                scale_in_place(parameters, 1 - ADAPTIVE * float(group["lr"]) * group["weight_decay"])

        # Mix the directions into their means over steps, mean += (u - mean) / terms, and move the layers along these,
        # in one call for each rate.
        if layers:
            mus = [inverse.outside for layer, inverse in zip(layers, inverses, strict=True) for _ in layer.parts]
            squares = [square / mu for square, mu in zip(squares, mus, strict=True)]
            lrs = [float(groups[id(layer.weight)]["lr"]) for layer in layers]
            lengths = choose_lengths(layers, states, squares, lrs, self._readout, BALANCE, lengthen=True)
            pending: dict[float, tuple[list[Tensor], list[Tensor]]] = {}
            mixed, keeps = [], []
            rates: list[float] = []
            for layer, state, inverse, pair in zip(layers, states, inverses, targets, strict=True):
                group = groups[id(layer.weight)]
                tensors = []
                for key, p in zip((MOMENTUM, MOMENTUM_OF_BIAS), pair, strict=False):
                    mean = state.get(key)
                    if mean is None:
                        mean = inverse.factor.new_zeros(layer.take(p).shape)
                        if group["momentum"]:
                            state[key] = mean
                    tensors.append(mean)
                mixed.append(tensors)
                terms = state[TERMS] = group["momentum"] * state.get(TERMS, 0.0) + 1
                keeps.append(1 - 1 / terms)
                scale = terms * inverse.outside
                rates += [length / scale for length in lengths[len(rates) : len(rates) + len(layer.parts)]]
                blocks, additions = pending.setdefault(step_factor(group), ([], []))
                blocks += map(layer.take, pair)
                additions += tensors
            directions.mix_into(mixed, keeps, ratio.sqrt_().mul_(ratio.new_tensor(rates).index_select(0, index)))
            for alpha, (blocks, additions) in pending.items():
                add_in_place(blocks, additions, alpha)

        # All other parameters take bounded adaptive steps, because nothing is known of their inputs. An embedding's
        # rate follows from its size.
        if adaptive:
            is_table = {id(table) for table in self._tables}
            for group in self.param_groups:
                parameters = [p for p in adaptive if groups[id(p)] is group]
                self._adapt([p for p in parameters if id(p) not in is_table], group, ADAPTIVE)
                for table in parameters:
                    if id(table) in is_table:
                        state = self.state_of(table)
                        if RATE not in state:
                            state[RATE] = max(ADAPTIVE, TABLE * float(table.double().square().mean().sqrt()))
                        self._adapt([table], group, state[RATE])

        # Hear the layers whose moments are due at the next step.
        self._recorder.clear()
        self._hear_due_layers(step + 1)

    def _adapt(self, parameters: list[Tensor], group: dict[str, Any], rate: float) -> None:
        """Adam's step, at a rate in units of the group's."""
        if not parameters:
            return
        # Moments of 0 at the first step.
        for p in parameters:
            if COUNT not in self.state_of(p):
                fresh = {FIRST: torch.zeros_like(p), SECOND: torch.zeros_like(p), COUNT: torch.zeros(())}
                self.state_of(p).update(fresh)
        states = [self.state_of(p) for p in parameters]
        adam(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            [state[FIRST] for state in states],
            [state[SECOND] for state in states],
            [],
            [state[COUNT] for state in states],
            fused=all(p.is_cpu for p in parameters),
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=rate * float(group["lr"]),
            weight_decay=0.0,
            eps=EPS,
            maximize=group["maximize"],
        )

    def _hear_due_layers(self, step: int) -> None:
        """Hear the layers whose moments are to be renewed at this step, and no others."""
        due = []
        for layer in self._layers:
            state = self.state_of(layer.weight).get(layer.part)
            if state is None or state[NEXT] <= step:
                due.append(layer.name)
        self._recorder.listen(due)

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, and hear the layers whose moments are due."""
        super().load_state_dict(state_dict)
        self._hear_due_layers(self.steps)

    def _renew(self, layer: Layer, inputs: list[Tensor], step: int) -> None:
        """Renew a layer's moment and its inverse by the rows of the passes since the last step."""
        where = "FunctionSpaceSGD"
        # The rows of all passes, in float32 at least.
        g = layer.rows(inputs, MAX_ROWS)
        g = g.to(torch.promote_types(g.dtype, torch.float32))
        finite = g.square().sum().isfinite().long()
        infinite, n = distributed.sum_over_ranks(torch.stack((1 - finite, torch.full_like(finite, len(g))))).tolist()
        if infinite:  # what one rank omits, all omit
            checks.warn(where, f"the input of layer {layer.name!r} is not finite; its moment was left as it was.")
        if infinite or not n:
            return
        # The damped inverse: of a very wide layer from these rows alone, else from the moment averaged over steps.
        state = self.state_of(layer.weight).setdefault(layer.part, {})
        count = state[REFRESHES] = state.get(REFRESHES, 0) + 1
        weight = (1 - MEMORY) / (1 - MEMORY**count)  # of the latest in a bias-corrected mean
        drift = 1.0
        if g.shape[1] > MAX_WIDTH:
            inverse = invert_by_samples(g, self.damping, where=where)
        else:
            # Average the moment in place, because new memory costs as much as the sums, and see how far it moved.
            latest = distributed.sum_over_ranks(g.mT @ g).div_(n)
            a = state.setdefault(MOMENT, latest)
            if a is not latest:
                change = latest.sub_(a)
                a.add_(change, alpha=weight)
                norm = float(a.norm())
                drift = 0.0
                if norm:
                    drift = weight * float(change.norm()) / norm

            # Lambda: a batch of n < d rows has n eigenvalues. The mean over all d would be too small: the inverse
            # would lengthen directions that no batch measures, and the network would learn their noise. Of a layer that
            # has only seen zeros, it is the damping itself.
            n = state[BATCH] = max(state.get(BATCH, 0), n)
            lam = self.damping * (float(a.diagonal().sum()) / min(n, len(a)) or 1.0)
            inverse = invert_by_directions(a, lam, RANK_TOLERANCE, state.get(FACTOR), count)
        if ROWS in state:  # products are kept without 1 / mu
            state[ROWS] = state[ROWS] * (inverse.outside / state[OUTSIDE])
        state.update({FACTOR: inverse.factor, OUTSIDE: inverse.outside, ERROR: inverse.error})
        measure_outputs(state, layer, inputs, g, weight)

        # The next renewal: steps 0, 1, 2, 4, ...; beyond update_every more rarely while the moment is settled.
        interval, shortest = state.get(INTERVAL, 0), self.update_every
        if interval < shortest:
            interval = min(shortest, max(1, 2 * interval))
        elif drift <= DRIFT:
            interval = min(2 * interval, RAREST * shortest)
        elif drift > 2 * DRIFT:
            interval = max(interval // 2, shortest)
        state[INTERVAL], state[NEXT] = interval, step + interval
