"""How far a row is from what a network was trained on, by a kernel machine on what its layers see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..distributed import alone, gather_rows, shared_generator
from ..kernels import RBF
from ..linalg import slices
from ..machines import KernelRidge
from ..modules import Data, capture, layer, unwrap
from ..storage import Savable
from .batches import Packing
from .layer_signals import flat_logits
from .network import Unattached, check_weights, own_network, weights_of
from .validation import checked_outputs, checked_rows, fitting_rows, not_fitted, training_rows

_LANDMARKS, _LEARNED, _REFERENCE, _LAYERS = 500, 4000, 1000, 4
_TINY = torch.finfo(torch.float32).tiny
_NOISE = 1e-2  # of the Gaussian process: variances far below it are rounding, not distance
_TAIL = 0.95


class Familiarity(Savable):
    r"""From 0, as familiar as rows can be, to 1, unlike all rows seen; above 0.5 for one in twenty familiar rows.

    Some layers' outputs, averaged over positions, standardised and put side by side, are z(x). A Gaussian process with
    a Gaussian kernel on z that saw the training rows has the posterior variance

    .. math:: v(x) = 1 - k_x^\top (K + \lambda I)^{-1} k_x

    (`mercer.machines.KernelRidge.variance`, from 500 landmarks): near 0 among training rows, 1 far from all of them.
    The score is v put on the scale of rows that the process did not see: :math:`F(v) / 1.9` up to their 95 % quantile
    q, then :math:`\tfrac12 + \tfrac12 \frac{v - q}{1 - q}`. One forward pass a row, and a product with the landmarks.

    A network fits its own training rows closely: fresh rows of the same kind look less familiar than they are. Give
    ``fit`` validation rows, where there are some, to set the scale.

    Args:
        model: The trained network; it is run on a copy in ``eval`` mode.
        layers: Names of ``model.named_modules()`` whose outputs are read; None for up to four convolutions and linear
            layers, spread evenly, the input of the last one among them.
        batch_size: Rows at a time.
        generator: Source of randomness; it chooses landmarks.

    Attributes:
        layers_: The layers that are read.
        machine_: The kernel machine.
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
            val_loader: Familiar rows that the network was not trained on, to set the scale by; without them a quarter
                of the training rows do.
        """
        where = "Familiarity.fit"
        self.weights_ = weights_of(self.model, [name for name, _ in self.model.named_parameters()])
        rows, self.packing_ = self._taken("loader", loader)
        self.row_shape_ = tuple(rows.shape[1:])
        if len(rows) < 2:
            raise ValueError(checks.sentence(where, "loader must have at least 2 rows", len(rows)))
        network = self._network()
        fitting_rows(where, network, rows[:1])
        self.layers_ = list(self.layers) if self.layers is not None else _spread_layers(network, rows[:1])
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
        return self._scaled(self._variance(network, rows)).to(self.shift_.dtype)

    def _learn(self, network: nn.Module, rows: Tensor, reference: Tensor, generator: torch.Generator) -> None:
        raw = self._read(network, rows)
        self.shift_ = torch.cat([part.mean(0) for part in raw])
        deviations = [part.std(0).clamp_min(max(1e-3 * float(part.std()), _TINY)) for part in raw]
        self.scale_ = torch.cat([d * part.shape[1] ** 0.5 for d, part in zip(deviations, raw, strict=True)])
        z = (torch.cat(raw, 1) - self.shift_) / self.scale_
        landmarks = min(_LANDMARKS, len(z))
        seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        machine = KernelRidge(
            RBF.from_data(z[:1000]), penalty=_NOISE, solver="landmarks", landmarks=landmarks, random_state=seed
        )
        with alone():
            self.machine_ = machine.fit(z, torch.zeros(len(z), dtype=z.dtype, device=z.device))
        known = self._variance(network, reference).sort().values
        levels = torch.linspace(0, _TAIL, 96, dtype=known.dtype, device=known.device)
        self.knots_ = known.quantile(levels)

    def _scaled(self, v: Tensor) -> Tensor:
        """The reference rows' distribution up to its tail, the way to 1 beyond."""
        knots = self.knots_
        above = torch.searchsorted(knots, v.contiguous(), right=True).clamp(1, len(knots) - 1)
        low, high = knots[above - 1], knots[above]
        within = ((v - low) / (high - low).clamp_min(_TINY)).clamp(0, 1)
        rank = (above - 1 + within) / (len(knots) - 1)
        beyond = ((v - knots[-1]) / (1 - knots[-1]).clamp_min(_TINY)).clamp(0, 1)
        return torch.where(v > knots[-1], 0.5 + beyond / 2, rank / 2)

    def _variance(self, network: nn.Module, x: Tensor) -> Tensor:  # (n, ...) -> (n,), float64
        z = (torch.cat(self._read(network, x), 1) - self.shift_) / self.scale_
        variance: Tensor = self.machine_.variance(z).double()
        return variance

    @torch.no_grad()
    def _read(self, network: nn.Module, x: Tensor) -> list[Tensor]:  # (n, ...) -> (n, d_l) for each layer
        parts: dict[str, list[Tensor]] = {name: [] for name in self.layers_}
        with capture(network, self.layers_) as seen:
            for part in slices(len(x), self.batch_size):
                checked_outputs("Familiarity", flat_logits(network(x[part])))
                for name, found in seen.items():
                    last = isinstance(layer(network, name), nn.Linear) and name == self.layers_[-1]
                    parts[name].append(_pooled(found.input if last and self.layers is None else found.output))
                    found.inputs.clear()
                    found.outputs.clear()
        return [torch.cat(found) for found in parts.values()]

    def _network(self) -> nn.Module:
        if isinstance(self.model, Unattached):
            raise self.model.error("Familiarity")
        if not hasattr(self, "weights_"):
            raise not_fitted("Familiarity")
        return own_network(self.model, (), self.packing_)

    def _taken(self, name: str, loader: Data) -> tuple[Tensor, Packing | None]:
        rows, packing = training_rows(f"Familiarity.fit, {name}", loader, self.model)
        return gather_rows(rows), packing

    def attach(self, model: nn.Module) -> Self:
        """Give a score that came from ``mercer.load`` its network, which must hold the weights of the fit."""
        check_weights("Familiarity.attach", model, getattr(self, "weights_", {}), every=False)
        self.model = unwrap(model)
        return self

    @override
    def get_arguments(self) -> dict[str, Any]:
        """All but the network, which is the user's to save."""
        return {name: value for name, value in super().get_arguments().items() if name != "model"}

    @classmethod
    @override
    def from_arguments(cls, arguments: Any) -> Self:
        """A score that waits for its network."""
        chosen = arguments.get("layers")
        made = super().from_arguments({**arguments, "model": Unattached(), "layers": None})
        made.layers = chosen
        return made


def _spread_layers(network: nn.Module, row: Tensor) -> list[str]:
    """Up to four convolutions and linear layers in the order they run, first and last among them."""
    names: list[str] = []
    handles = [
        module.register_forward_hook(lambda _m, _i, _o, name=name: names.append(name))
        for name, module in network.named_modules()
        if name and isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    ]
    with torch.no_grad():
        network(row)
    for handle in handles:
        handle.remove()
    names = list(dict.fromkeys(names))
    if not names:
        fix = "Name layers=[...] whose outputs shall be read."
        raise ValueError(checks.sentence("Familiarity", "model must have convolutions or linear layers", "none", fix))
    most = min(_LAYERS, len(names))
    places = torch.linspace(0, len(names) - 1, most).round().long().tolist()
    return [names[i] for i in places]


def _pooled(maps: Tensor) -> Tensor:  # (n, d), (n, t, d) or (n, c, *positions) -> (n, d')
    """Rows as they are; of maps and sequences, mean and deviation over the positions of each channel."""
    if maps.ndim == 2:
        return maps
    channels = maps.mT if maps.ndim == 3 else maps.flatten(2)  # (n, channels, positions)
    return torch.cat((channels.mean(2), channels.var(2, correction=0).sqrt()), 1)
