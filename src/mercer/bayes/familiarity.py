"""How far a row is from what a network was trained on, by a kernel machine on what its layers see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from .. import checks
from ..distributed import alone, gather_rows, shared_generator
from ..kernels import RBF
from ..linalg import slices
from ..machines import KernelRidge
from ..rows.loading import Data
from ..signals.capture import capture
from ..signals.layers import layer, unwrap
from .batches import Packing
from .jacobian import near
from .network import SavedWithoutNetwork, Unattached, flat_logits, own_network, weights_of
from .validation import checked_outputs, checked_rows, fitting_rows, not_fitted, training_rows

_LANDMARKS, _LEARNED, _REFERENCE, _LAYERS = 250, 4000, 1000, 4
_TINY = torch.finfo(torch.float32).tiny
_NOISE = 1e-2  # of the Gaussian process: variances far below it are rounding, not distance
_TAIL = 0.95
_NARROW = 4.0
_LEAST, _MOST = 1e-9, 1e6  # against dividing by a spread of 0


class Familiarity(SavedWithoutNetwork):
    r"""From 0, as familiar as rows can be, to 1, unlike all rows seen. One in twenty familiar rows scores above 0.5.

    Three views of a row, all from one forward pass:

    1. Some layers' outputs (of maps, mean and deviation of each channel), standardised and side by side, are z(x). A
       Gaussian process with a Gaussian kernel on z that saw the training rows has the posterior variance
       :math:`v(x) = 1 - k_x^\top (K + \lambda I)^{-1} k_x` (`mercer.machines.KernelRidge.variance`, 250 landmarks).
    2. The same of the last layer's direction, :math:`z / \|z\|`, with a kernel four times narrower: strangers shrink
       the last hidden layer, which brings them nearer to everything unless lengths are left out.
    3. The energy :math:`-\log \sum_j e^{f_j}` of two or more outputs.

    Each view becomes a surprise, :math:`-\log p` with p the share of reference rows that are at least as strange, plus
    how far it lies beyond their 95 % quantile. Their sum is put on the scale of the reference rows: half its rank up to
    the 95 % quantile, which is 0.5, then towards 1.

    A network fits its training rows closely, so fresh rows of the same kind look less familiar than they are. Pass
    validation rows to ``fit``, if you have some, to set the scale.

    Args:
        model: The trained network; it is run on a copy in ``eval`` mode.
        layers: Names of ``model.named_modules()`` whose outputs are read; None for up to four convolutions and linear
            layers, spread evenly, the input of the last one among them.
        batch_size: Rows at a time.
        generator: Source of randomness; it chooses landmarks.

    Attributes:
        layers_: The layers that are read.
        machine_: The kernel machine on the layers.
        direction_: The kernel machine on the last one's direction.
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
        rows, self.packing_ = self._taken("loader", loader)
        self.row_shape_ = tuple(rows.shape[1:])
        if len(rows) < 2:
            raise ValueError(checks.sentence(where, "loader must have at least 2 rows", len(rows)))
        network = self._network()
        fitting_rows(where, network, rows[:1])
        self.layers_ = list(self.layers) if self.layers is not None else _spread_layers(network, rows[:2])
        mixed = [name for name in self.layers_ if name not in _layers_of_rows(network, self.layers_, rows[:2])]
        if mixed:
            need, fix = "layers must give one row a line, whatever the other rows are", "Name others."
            raise ValueError(checks.sentence(where, need, ", ".join(mixed), fix))
        generator = torch.Generator().manual_seed(
            int(torch.randint(2**31 - 1, (1,), generator=shared_generator(self.generator)))
        )
        rows = rows[torch.randperm(len(rows), generator=generator).to(rows.device)[: _LEARNED + _REFERENCE]]
        if val_loader is None:
            held = min(_REFERENCE, max(1, len(rows) // 4))
            rows, reference = rows[held:], rows[:held]
        else:
            reference = self._taken("val_loader", val_loader)[0]
            if tuple(reference.shape[1:]) != self.row_shape_:
                need = f"rows of val_loader must have the shape of loader's, {self.row_shape_}"
                raise ValueError(checks.sentence(where, need, tuple(reference.shape[1:])))
        self._learn(network, rows, reference, generator)
        return self

    def score(self, x: Any) -> Tensor:  # (n, ...) -> (n,)
        """How unfamiliar each row is, in 0..1."""
        network = self._network()
        rows = x if self.packing_ is None else self.packing_.pack("Familiarity", x)
        rows = checked_rows("Familiarity", rows, self.model, self.row_shape_).detach()
        return self._scaled(self._surprise(self._views(network, rows))).to(self.shift_.dtype)

    def temper(self, x: Any, proba: Tensor) -> Tensor:  # (n, ...), (n, c) -> (n, c)
        r"""Any classifier's probabilities, less sure of unfamiliar rows: :math:`p^{1 / (1 + b)}`, normalised.

        b is how far a row lies beyond the 95 % quantile of familiar rows, in units of that quantile's distance from
        their median: 19 in 20 familiar rows keep their probabilities, and no row changes its label.

        Args:
            x: Rows.
            proba: Their class probabilities, of this network or of any posterior.
        """
        share = 2 * (1 - self.score(x)).to(proba)
        checks.same_length("Familiarity.temper", "proba", proba, "x", share)
        tempered: Tensor = (proba.clamp_min(_TINY).log() * share.clamp_max(1)[:, None]).softmax(1)
        return tempered

    def _learn(self, network: nn.Module, rows: Tensor, reference: Tensor, generator: torch.Generator) -> None:
        raw, _ = self._read(network, rows)
        self.shift_ = torch.cat([part.mean(0) for part in raw])
        deviations = [part.std(0).clamp_min(max(1e-3 * float(part.std()), _TINY)) for part in raw]
        self.scale_ = torch.cat([d * part.shape[1] ** 0.5 for d, part in zip(deviations, raw, strict=True)])
        seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        with alone():
            self.machine_ = _machine((torch.cat(raw, 1) - self.shift_) / self.scale_, 1.0, seed)
            self.direction_ = _machine(F.normalize(raw[-1]), _NARROW, seed)
        views = self._views(network, reference)
        self.reference_ = views.sort(0).values
        levels = torch.linspace(0, _TAIL, 96, dtype=views.dtype, device=views.device)
        self.knots_ = self._surprise(views).quantile(levels)

    def _views(self, network: nn.Module, x: Tensor) -> Tensor:  # (n, ...) -> (n, 2 or 3), float64
        raw, f = self._read(network, x)
        layers = self.machine_.variance((torch.cat(raw, 1) - self.shift_) / self.scale_)
        views = [layers, self.direction_.variance(F.normalize(raw[-1]))]
        if f.shape[1] > 1:
            views.append(-f.logsumexp(1))
        return torch.stack([view.double() for view in views], 1)

    def _surprise(self, views: Tensor) -> Tensor:  # (n, v) -> (n,)
        known = self.reference_  # (m, v), each column ascending
        below = torch.searchsorted(known.mT.contiguous(), views.mT.contiguous()).mT
        share = (len(known) - below + 1) / (len(known) + 1)
        middle, tail = known.quantile(torch.tensor([0.5, _TAIL], dtype=known.dtype, device=known.device), 0)
        beyond = ((views - tail) / (tail - middle).clamp_min(_LEAST)).clamp(0, _MOST)
        total: Tensor = (beyond - share.log()).sum(1)
        return total

    def _scaled(self, surprise: Tensor) -> Tensor:
        """The reference rows' distribution up to its tail, the way to 1 beyond."""
        knots = self.knots_
        above = torch.searchsorted(knots, surprise.contiguous(), right=True).clamp(1, len(knots) - 1)
        low, high = knots[above - 1], knots[above]
        within = ((surprise - low) / (high - low).clamp_min(_LEAST)).clamp(0, 1)
        rank = (above - 1 + within) / (len(knots) - 1)
        beyond = (surprise - knots[-1]) / (knots[-1] - knots[len(knots) // 2]).clamp_min(_LEAST)
        return torch.where(surprise > knots[-1], 0.5 + 0.5 * beyond / (1 + beyond), rank / 2)

    @torch.no_grad()
    def _read(self, network: nn.Module, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """What each layer sees, ``(n, d_l)``, and the outputs ``(n, c)``."""
        parts: dict[str, list[Tensor]] = {name: [] for name in self.layers_}
        outputs = []
        with capture(network, self.layers_) as seen:
            for part in slices(len(x), self.batch_size):
                outputs.append(checked_outputs("Familiarity", flat_logits(network(x[part]))))
                for name, found in seen.items():
                    last = isinstance(layer(network, name), nn.Linear) and name == self.layers_[-1]
                    parts[name].append(_pooled(found.input if last and self.layers is None else found.output))
                    found.inputs.clear()
                    found.outputs.clear()
        return [torch.cat(found) for found in parts.values()], torch.cat(outputs)

    def _network(self) -> nn.Module:
        if isinstance(self.model, Unattached):
            raise self.model.error("Familiarity")
        if not hasattr(self, "weights_"):
            raise not_fitted("Familiarity")
        return own_network(self.model, (), self.packing_)

    def _taken(self, name: str, loader: Data) -> tuple[Tensor, Packing | None]:
        rows, packing = training_rows(f"Familiarity.fit, {name}", loader, self.model)
        return gather_rows(rows), packing

    @override
    def _all_count(self) -> bool:
        return False

    @classmethod
    @override
    def from_arguments(cls, arguments: Any) -> Self:
        """A score that waits for its network; the layers named are looked for in it when it comes."""
        made = super().from_arguments({**arguments, "layers": None})
        made.layers = arguments.get("layers")
        return made


def _machine(z: Tensor, narrower: float, seed: int) -> KernelRidge:
    """A Gaussian process that saw these rows; what it was told about them does not matter."""
    kernel = RBF.from_data(z[:1000])
    kernel = RBF(narrower**2 * float(kernel.gamma(z)))
    machine = KernelRidge(
        kernel, penalty=_NOISE, solver="landmarks", landmarks=min(_LANDMARKS, len(z)), random_state=seed
    )
    return machine.fit(z, torch.zeros(len(z), dtype=z.dtype, device=z.device))


def _spread_layers(network: nn.Module, rows: Tensor) -> list[str]:
    """Up to four convolutions and linear layers in the order they run, first and last among them."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    names = _layers_of_rows(network, [n for n, m in network.named_modules() if n and isinstance(m, kinds)], rows)
    if not names:
        need = "model must have convolutions or linear layers that give one row a line"
        raise ValueError(checks.sentence("Familiarity", need, "none", "Name layers=[...] whose outputs shall be read."))
    most = min(_LAYERS, len(names))
    places = torch.linspace(0, len(names) - 1, most).round().long().tolist()
    return [names[i] for i in places]


def _layers_of_rows(network: nn.Module, names: Sequence[str], rows: Tensor) -> list[str]:
    """Those of the layers, in the order they run, that see the same of two rows together as of each alone."""
    order: list[str] = []
    handles = [layer(network, n).register_forward_hook(lambda _m, _i, _o, n=n: order.append(n)) for n in names]
    calls = []
    for part in (rows, *rows.split(1)):
        with torch.no_grad(), capture(network, names) as seen:
            network(part)
        calls.append({name: entry.outputs[-1] for name, entry in seen.items() if entry.outputs})
    for handle in handles:
        handle.remove()
    together, *alone = calls
    return [name for name in dict.fromkeys(order) if near(together[name], torch.cat([call[name] for call in alone]))]


def _pooled(maps: Tensor) -> Tensor:  # (n, d), (n, t, d) or (n, c, *positions) -> (n, d')
    """Rows as they are; of maps and sequences, mean and deviation over the positions of each channel."""
    if maps.ndim == 2:
        return maps
    channels = maps.mT if maps.ndim == 3 else maps.flatten(2)  # (n, channels, positions)
    mean = channels.mean(2)
    norms = torch.linalg.vector_norm(channels - mean[..., None], dim=2)  # four times cheaper than torch.var_mean
    return torch.cat((mean, norms / channels.shape[2] ** 0.5), 1)
