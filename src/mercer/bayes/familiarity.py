"""How far a row is from what a network was trained on: its neighbours in the layers, and how sure the outputs are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from .. import checks
from ..linalg.blocks import block_rows, slices
from ..rows.loading import Data
from ..rows.rows import Rows
from ..signals.capture import capture
from ..signals.layers import layer, unwrap
from .jacobian import near
from .network import SavedWithoutNetwork, Unattached, flat_logits, own_network, weights_of
from .validation import check_network_runs, check_outputs, check_rows, not_fitted, training_rows

_LEARNED_ROWS, _REFERENCE_ROWS, _LAYERS = 4000, 1000, 4
_TINY = torch.finfo(torch.float32).tiny
_TAIL = 0.95
_NEIGHBORS = 10
_EXPONENT, _LARGEST = 0.1, 100  # of the generalized entropy, as its authors have them
# Some 470 sums of views and weights were compared on six small networks on digits, USPS and MNIST. Of those within
# 0.001 of the most AUROC against classes that were held out, these have the most over all strangers; the differences
# are small. The layers say little of near strangers: their rank counts less, their tail more.
_RANK_WEIGHTS = (0.75, 1.0, 1.0)
_TAIL_WEIGHTS = (2.0, 1.0, 1.0)
_LEAST, _MOST = 1e-9, 1e6  # against dividing by a spread of 0


class Familiarity(SavedWithoutNetwork):
    r"""From 0, as familiar as rows can be, to 1, unlike all rows seen. One in twenty familiar rows scores above 0.5.

    Three views of a row, all from one forward pass, none of which needs strangers to learn from:

    1. *Layers.* Outputs of layers before the last (of maps, mean and deviation of each channel), standardized and side
       by side, are z(x). The view is the distance :math:`\min_i \|z(x) - z(x_i)\|` to the nearest training row.
       Noise and other kinds of data lie far away here.
    2. *Direction.* The mean distance from :math:`u = h / \|h\|`, h what the last layer reads, to the 10 nearest
       training rows' u. Strangers shrink h, which brings them nearer to everything unless lengths are left out.
    3. *Outputs.* The generalized entropy :math:`\sum_j p_j^{0.1} (1 - p_j)^{0.1}` of the 100 largest probabilities
       (Liu, Lochman and Zach 2023), where there are two outputs or more. New classes near the known ones show here.

    Each view becomes a surprise :math:`w (-\log p) + v b` with p the share of reference rows that are at least as
    strange, and b how far it lies beyond their 95 % quantile; w = v = 1, but w = 0.75 and v = 2 for the layers. Their
    sum is put on the scale of the reference rows, each compared with the others: half its rank up to the 95 % quantile,
    which is 0.5, then towards 1. From 19 reference rows on, one in twenty new rows like them is above 0.5 on average,
    with few of them rather less.

    A network fits its training rows closely, so fresh rows of the same kind look less familiar than they are. Pass
    validation rows to ``fit``, if you have some, to set the scale.

    Args:
        model: The trained network; it is run on a copy in ``eval`` mode.
        layers: Names of ``model.named_modules()`` whose outputs are read, the last one for its direction; None for up
            to four convolutions and linear layers, spread evenly, the input of the last one among them.
        batch_size: Rows at a time.
        generator: Source of randomness; it chooses the 4,000 training rows that are kept.

    Attributes:
        layers_: The layers that are read.
        known_layers_: z of the training rows kept, ``(m, d)``.
        known_directions_: Their u.

    Use it to flag rows that a trained network should not be asked about.

    >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    >>> familiarity = Familiarity(model).fit(torch.randn(200, 4, generator=torch.Generator().manual_seed(0)))
    >>> bool(familiarity.score(torch.full((1, 4), 50.0)) > 0.5)
    True
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: Sequence[str] | None = None,
        batch_size: int = 256,
        generator: torch.Generator | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(checks.sentence("Familiarity", "model must be an nn.Module", type(model).__name__))
        self.model = unwrap(model)
        self.layers = None if layers is None else list(layers)
        for name in self.layers or ():
            layer(self.model, name)
        self.batch_size = checks.integer("Familiarity", "batch_size", batch_size, 1)
        self.generator = generator

    def __repr__(self) -> str:
        """The network, and the layers that are read."""
        read = "not fitted"
        if hasattr(self, "knots_"):
            read = f"reads {', '.join(self.layers_)}; {len(self.known_layers_)} rows known"
        return f"Familiarity({type(self.model).__name__}): {read}"

    def fit(self, loader: Data, val_loader: Data | None = None) -> Self:
        """Learn what is familiar; labels are not used.

        Args:
            loader: Training rows: a tensor, a pair whose first item counts, or a loader of these; batches may be
                dictionaries of the network's arguments. With several ranks, each passes its own.
            val_loader: Familiar rows that the network was not trained on, to set the scale. None uses a quarter of the
                training rows.
        """
        where = "Familiarity.fit"
        self.weights_ = weights_of(self.model, [name for name, _ in self.model.named_parameters()])
        x, self.packing_ = training_rows(f"{where}, loader", loader, self.model)
        self.row_shape_ = tuple(x.shape[1:])
        rows = Rows(x).sample(_LEARNED_ROWS + _REFERENCE_ROWS, self.generator)  # in random order, the same on all ranks
        if len(rows) < 2:
            raise ValueError(checks.sentence(where, "loader must have at least 2 rows", len(rows)))

        # The layers to read. In each, a row must look the same alone and beside another one.
        network = self._network()
        check_network_runs(where, network, rows[:1])
        if self.layers is None:
            self.layers_ = _spread_layers(network, rows[:2])
        else:
            self.layers_ = list(self.layers)
        rowwise = _find_rowwise_layers(network, self.layers_, rows[:2])
        mixed = [name for name in self.layers_ if name not in rowwise]
        if mixed:
            need, fix = "layers must give one row a line, whatever the other rows are", "Name others."
            raise ValueError(checks.sentence(where, need, ", ".join(mixed), fix))

        # Reference rows, which set the scale, are not among the rows that are known.
        if val_loader is None:
            count = min(_REFERENCE_ROWS, max(1, len(rows) // 4))
            rows, reference = rows[count:], rows[:count]
        else:
            val, _ = training_rows(f"{where}, val_loader", val_loader, self.model)
            reference = Rows(val).gather()
            if tuple(reference.shape[1:]) != self.row_shape_:
                need = f"rows of val_loader must have the shape of loader's, {self.row_shape_}"
                raise ValueError(checks.sentence(where, need, tuple(reference.shape[1:])))
        rows = rows[:_LEARNED_ROWS]

        # Standardize, and let every layer count as much as any other, whatever its width.
        before, last, _ = self._read(network, rows)
        self.shift_ = torch.cat([part.mean(0) for part in before])
        deviations = [
            part.std(0, correction=0).clamp_min(max(1e-3 * float(part.std(correction=0)), _TINY)) for part in before
        ]
        self.scale_ = torch.cat([d * part.shape[1] ** 0.5 for d, part in zip(deviations, before, strict=True)])
        dtype = next(network.parameters()).dtype
        self.known_layers_ = ((torch.cat(before, 1) - self.shift_) / self.scale_).to(dtype)
        self.known_directions_ = F.normalize(last).to(dtype)

        # The scale: the views of the reference rows, and the quantiles of their surprise. Each row is compared with the
        # others, as a new row will be with all of them. Of m + 1 rows that are alike the last is as likely in one place
        # as in another, so the quantile of level q is the q (m + 1)-th least.
        views = self._views(network, reference)
        self.reference_ = views.sort(0).values
        m = len(views)
        places = torch.linspace(0, _TAIL, 96, dtype=views.dtype, device=views.device) * (m + 1) - 1
        levels = (places / max(1, m - 1)).clamp(0, 1)
        self.knots_ = self._surprise(views, left_out=True).quantile(levels)
        return self

    def score(self, x: Any) -> Tensor:  # (n, ...) -> (n,)
        """How unfamiliar each row is, in 0..1."""
        network = self._network()
        if self.packing_ is not None:
            x = self.packing_.pack("Familiarity", x)
        rows = check_rows("Familiarity", x, self.model, self.row_shape_).detach()
        surprise, knots = self._surprise(self._views(network, rows)), self.knots_

        # Up to the 95 % quantile: half the rank among the reference rows.
        above = torch.searchsorted(knots, surprise.contiguous(), right=True).clamp(1, len(knots) - 1)
        low, high = knots[above - 1], knots[above]
        within = ((surprise - low) / (high - low).clamp_min(_LEAST)).clamp(0, 1)
        rank = (above - 1 + within) / (len(knots) - 1)

        # Beyond it: towards 1, by the distance from it in units of its own distance from the median.
        beyond = (surprise - knots[-1]) / (knots[-1] - knots[len(knots) // 2]).clamp_min(_LEAST)
        score = torch.where(surprise > knots[-1], 0.5 + 0.5 * beyond / (1 + beyond), rank / 2)
        return score.to(self.known_layers_.dtype)

    def temper(self, x: Any, proba: Tensor) -> Tensor:  # (n, ...), (n, c) -> (n, c)
        r"""Any classifier's probabilities, less sure of unfamiliar rows: :math:`p^{1 / (1 + b)}`, normalized.

        b is how far a row lies beyond the 95 % quantile of familiar rows, in units of that quantile's distance from
        their median: 19 in 20 familiar rows keep their probabilities, and no row changes its label.

        Args:
            x: Rows.
            proba: Their class probabilities, of this network or of any posterior.
        """
        # A score s above 0.5 is 0.5 + 0.5 b / (1 + b), so that 1 / (1 + b) = 2 (1 - s).
        exponent = 2 * (1 - self.score(x)).to(proba)
        checks.same_length("Familiarity.temper", "proba", proba, "x", exponent)
        tempered: Tensor = (proba.clamp_min(_TINY).log() * exponent.clamp_max(1)[:, None]).softmax(1)
        return tempered

    def _views(self, network: nn.Module, x: Tensor) -> Tensor:  # (n, ...) -> (n, 2 or 3), float64
        """The views of each row: layers, direction and, of two outputs or more, their entropy."""
        before, last, f = self._read(network, x)
        # Distances to the rows that are known: the nearest in the layers, the mean of the nearest ten in direction.
        z, u = (torch.cat(before, 1) - self.shift_) / self.scale_, F.normalize(last)
        known_z, known_u = self.known_layers_.double(), self.known_directions_.double()
        k = min(_NEIGHBORS, len(known_u))
        layers, directions = [], []
        for part in slices(len(x), block_rows(2 * 8 * len(known_z))):  # two matrices of distances
            layers.append(torch.cdist(z[part], known_z).amin(1))
            directions.append(torch.cdist(u[part], known_u).topk(k, 1, largest=False).values.mean(1))
        views = [torch.cat(layers), torch.cat(directions)]
        # The generalized entropy of the largest probabilities.
        if f.shape[1] > 1:
            # p^a (1 - p)^a by logarithms, because both factors underflow.
            log_p = f.log_softmax(1).topk(min(_LARGEST, f.shape[1]), 1).values
            log_q = (-torch.expm1(log_p)).log()  # of 1 - p
            views.append((_EXPONENT * (log_p + log_q)).exp().sum(1))
        return torch.stack(views, 1)

    def _surprise(self, views: Tensor, *, left_out: bool = False) -> Tensor:  # (n, v) -> (n,)
        """The sum over the views; of rows that are reference rows themselves, each beside the others."""
        reference = self.reference_  # (m, v), each column ascending
        left_out = left_out and len(reference) > 1
        m = len(reference) - int(left_out)

        # p of each view: the share of reference rows that are at least as strange.
        below = torch.searchsorted(reference.mT.contiguous(), views.mT.contiguous()).mT  # (n, v)
        p = (m - below + 1).to(views.dtype) / (m + 1)

        # The median and the 95 % quantile of each view, between two places; the row left out moves those behind it.
        quantiles = []
        for level in (0.5, _TAIL):
            low = int(level * (m - 1))
            values = []
            for place in (low, min(low + 1, m - 1)):
                places = torch.full_like(below, place)
                if left_out:
                    places = places + (places >= below)
                values.append(reference.gather(0, places))
            quantiles.append(torch.lerp(values[0], values[1], level * (m - 1) - low))
        median, tail = quantiles

        # b: how far beyond the 95 % quantile, in units of its distance from the median.
        beyond = ((views - tail) / (tail - median).clamp_min(_LEAST)).clamp(0, _MOST)
        rank_weights, tail_weights = views.new_tensor((_RANK_WEIGHTS, _TAIL_WEIGHTS))[:, : views.shape[1]]
        surprise: Tensor = tail_weights @ beyond.mT - rank_weights @ p.log().mT
        return surprise

    @torch.no_grad()
    def _read(self, network: nn.Module, x: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        """Of some rows, in float64: each layer before the last ``(n, d_l)``, the last ``(n, d)``, outputs ``(n, c)``.

        A network of one layer is read there twice. The default reads the input of a last linear layer.
        """
        parts: dict[str, list[Tensor]] = {name: [] for name in self.layers_}
        outputs = []
        with capture(network, self.layers_) as signals:
            for part in slices(len(x), self.batch_size):
                outputs.append(check_outputs("Familiarity", flat_logits(network(x[part]))))
                for name, signal in signals.items():
                    is_head = name == self.layers_[-1] and isinstance(layer(network, name), nn.Linear)
                    if is_head and self.layers is None:
                        maps = signal.input
                    else:
                        maps = signal.output
                    parts[name].append(_pool_positions(maps))
                    signal.inputs.clear()
                    signal.outputs.clear()
        *before, last = [torch.cat(blocks).double() for blocks in parts.values()]
        return before or [last], last, torch.cat(outputs).double()

    def _network(self) -> nn.Module:
        if isinstance(self.model, Unattached):
            raise self.model.error("Familiarity")
        if not hasattr(self, "weights_"):
            raise not_fitted("Familiarity")
        return own_network(self.model, (), self.packing_)

    @override
    def _all_count(self) -> bool:
        return False

    @classmethod
    @override
    def from_arguments(cls, arguments: Any) -> Self:
        """A score that waits for its network; the layers named are looked for in it when it comes."""
        score = super().from_arguments({**arguments, "layers": None})
        score.layers = arguments.get("layers")
        return score


def _spread_layers(network: nn.Module, rows: Tensor) -> list[str]:
    """Up to four convolutions and linear layers in the order they run, first and last among them."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    candidates = [name for name, module in network.named_modules() if name and isinstance(module, kinds)]
    names = _find_rowwise_layers(network, candidates, rows)
    if not names:
        need = "model must have convolutions or linear layers that give one row a line"
        raise ValueError(checks.sentence("Familiarity", need, "none", "Name layers=[...] whose outputs shall be read."))
    places = torch.linspace(0, len(names) - 1, min(_LAYERS, len(names))).round().long().tolist()
    return [names[i] for i in places]


def _find_rowwise_layers(network: nn.Module, names: Sequence[str], rows: Tensor) -> list[str]:
    """Those of the layers, in the order they run, that see the same of two rows together as of each alone."""
    order: list[str] = []
    handles = [layer(network, n).register_forward_hook(lambda _m, _i, _o, n=n: order.append(n)) for n in names]
    calls = []
    for part in (rows, *rows.split(1)):
        with torch.no_grad(), capture(network, names) as signals:
            network(part)
        calls.append({name: signal.outputs[-1] for name, signal in signals.items() if signal.outputs})
    for handle in handles:
        handle.remove()
    together, *alone = calls
    return [name for name in dict.fromkeys(order) if near(together[name], torch.cat([call[name] for call in alone]))]


def _pool_positions(maps: Tensor) -> Tensor:  # (n, d), (n, t, d) or (n, c, *positions) -> (n, d')
    """Rows as they are; of maps and sequences, mean and deviation over the positions of each channel."""
    if maps.ndim == 2:
        return maps
    if maps.ndim == 3:
        channels = maps.mT  # (n, channels, positions)
    else:
        channels = maps.flatten(2)
    mean = channels.mean(2)
    norms = torch.linalg.vector_norm(channels - mean[..., None], dim=2)  # four times cheaper than torch.var_mean
    return torch.cat((mean, norms / channels.shape[2] ** 0.5), 1)
