"""Posteriors of several networks: what their outputs have in common, and how far they part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..linalg.blocks import slices
from ..rows.stored import Readable
from .likelihood import Gaussian, Softmax, likelihood_named, mean_over_ranks
from .network import flat_logits, own_network, zero_row
from .posterior import Posterior
from .prior_choice import best_temperature
from .training import train_network
from .validation import check_network_runs, check_outputs


class Ensemble(Posterior):
    """Several networks of one shape of outputs; their mean and covariance over the networks.

    A variant writes ``fit``; one whose members are not simply the networks writes ``_members``.
    """

    least_networks = 2

    @property
    def models(self) -> list[nn.Module]:
        """The user's networks."""
        return list(self._networks)

    def ensemble_proba(self, x: Any) -> Tensor:  # (n, ...) -> (n, c)
        """The mean of the networks' own probabilities; needs no fit."""
        with torch.no_grad():
            return Softmax(getattr(self, "temperature_", 1.0)).mix(self._outputs(self._check_rows(x, False)))

    def _members(self) -> Iterable[nn.Module]:
        return (own_network(model, (), self.packing_) for model in self._networks)

    def _outputs(self, x: Readable) -> Tensor:  # (n, ...) -> (n, c, M)
        if not len(x):  # a rank without rows: the shape alone
            return self._outputs(zero_row(x))[:0]
        outputs = []
        for network in self._members():
            parts = [flat_logits(network(x[part])) for part in slices(len(x), self.batch_size)]
            outputs.append(torch.cat(parts))
        widths = {f.shape[1] for f in outputs}
        if len(widths) > 1:
            need = "models must have as many outputs"
            raise ValueError(checks.sentence(type(self).__name__, need, sorted(widths)))
        return check_outputs(type(self).__name__, torch.stack(outputs, 2))

    def _read(self, name: str, loader: Iterable[Any]) -> tuple[Tensor, Tensor]:  # -> (n, c, M), targets
        """All outputs on a loader's rows, and its targets."""
        where = type(self).__name__
        x, y = self._pairs(name, loader)
        with torch.no_grad():
            if len(x):
                first = next(iter(self._members()))
                check_network_runs(f"{where}.fit, {name}", lambda row: flat_logits(first(row)), x[:1])
            outputs = self._outputs(x)
        return outputs, likelihood_named(self.likelihood).targets(where, y, outputs[..., 0])

    def _check_noise_rows(self, loader: Iterable[Any] | None, val_loader: Iterable[Any] | None) -> None:
        if loader is None and val_loader is None and likelihood_named(self.likelihood).has_noise:
            need, fix = "a regression learns its noise from rows", "Give loader or val_loader."
            raise ValueError(checks.sentence(f"{type(self).__name__}.fit", need, "neither loader", fix))

    @override
    def _moments(self, x: Tensor, *, full: bool, gradients: bool) -> tuple[Tensor, Tensor]:
        outputs = self._outputs(x)
        if not full:
            return outputs.mean(2), outputs.var(2, correction=0)
        centred = outputs - outputs.mean(2, keepdim=True)
        return outputs.mean(2), centred @ centred.mT / outputs.shape[2]

    @override
    def _joint(self, x: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        outputs = self._outputs(x)
        centred = outputs - outputs.mean(2, keepdim=True)
        return outputs.mean(2), torch.einsum("nci,mdi->nmcd", centred, centred) / outputs.shape[2]

    @override
    def get_arguments(self) -> dict[str, Any]:
        """Refuse: there is nothing to save but the networks.

        Raises:
            TypeError: Always.
        """
        where = type(self).__name__
        need, got = "its networks are yours to save, by their state_dict", f"{len(self._networks)} of them"
        fix = f"Then {where}(models) and fit, or the same options, give the same posterior."
        raise TypeError(checks.sentence(f"mercer.save, {where}", need, got, fix))


class DeepEnsemble(Ensemble):
    r"""Mean of the probabilities of M networks trained apart (Lakshminarayanan et al. 2017).

    .. math:: p(y | x) = \tfrac1M \sum_i \mathrm{softmax}(g_i(x) / T)_y

    A classifier works without ``fit``: T is then 1. A regression predicts mean and variance over the
    networks, plus noise. ``logits`` gives mean and covariance of the outputs over the networks; ``sample`` draws
    networks. It costs M forward passes for each row, and M trainings.

    Args:
        models: The M >= 2 networks.
        likelihood: ``"classification"`` or ``"regression"`` (Gaussian with learned noise).
        batch_size: Rows at a time.
        generator: Source of randomness of ``sample``.

    Attributes:
        temperature_: T.
        noise_: Noise variance (regression only).

    Use it where you can afford several trained networks.

    >>> models = [nn.Linear(4, 3) for _ in range(3)]
    >>> DeepEnsemble(models).predict_proba(torch.randn(5, 4)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        *,
        likelihood: str = "classification",
        batch_size: int = 256,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(models, likelihood, "probit", batch_size, generator)
        if not likelihood_named(likelihood).has_noise:  # nothing needs to be learned
            self.temperature_ = self.noise_ = 1.0

    @classmethod
    def train(
        cls,
        make_model: Callable[[], nn.Module],
        loader: Iterable[Any],
        n: int = 5,
        *,
        val_loader: Iterable[Any] | None = None,
        likelihood: str = "classification",
        epochs: int = 30,
        lr: float = 2e-3,
        generator: torch.Generator | None = None,
    ) -> Self:
        """Train n networks apart, by AdamW with a rate that falls to 0, and fit the ensemble.

        Args:
            make_model: Makes an untrained network; it is called n times, each with other random weights.
            loader: Training rows and labels: batches, read anew in each epoch, or one pair, which is shuffled in
                batches of 128.
            n: Networks.
            val_loader: Rows that choose the temperature, or a regression's noise; without them the temperature is 1 and
                the noise is learned on the training rows.
            likelihood: ``"classification"`` or ``"regression"``.
            epochs: Of each network.
            lr: The rate at the start.
            generator: Source of randomness.
        """
        where = f"{cls.__name__}.train"
        checks.integer(where, "n", n, cls.least_networks)
        checks.integer(where, "epochs", epochs, 1)
        checks.positive(where, "lr", lr)
        models = []
        with torch.random.fork_rng():  # initial weights, dropout and a loader that shuffles draw from here
            for _ in range(n):
                seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
                torch.manual_seed(seed)
                model = make_model()
                order = torch.Generator().manual_seed(seed)
                train_network(where, model, loader, likelihood=likelihood, epochs=epochs, lr=lr, generator=order)
                models.append(model)
            return cls(models, likelihood=likelihood, generator=generator).fit(loader, val_loader)

    def fit(self, loader: Iterable[Any] | None = None, val_loader: Iterable[Any] | None = None) -> Self:
        """Choose the temperature on validation rows; a regression learns its noise there, or else on training rows."""
        self._check_noise_rows(loader, val_loader)
        density = likelihood_named(self.likelihood)

        # All rows are read, which checks them; the validation rows decide where there are some.
        outputs = None
        if loader is not None:
            outputs, y = self._read("loader", loader)
        if val_loader is not None:
            outputs, y = self._read("val_loader", val_loader)

        # A classifier's temperature is not chosen on training rows: its networks are too sure of them.
        self.temperature_ = self.noise_ = 1.0
        if outputs is not None and (density.has_noise or val_loader is not None):
            start = density.noise_of(y, outputs.mean(2))
            scale = best_temperature(
                lambda s: mean_over_ranks(density.at(s).mixture_loss(outputs, y)), start, density.search_factor
            )
            setattr(self, density.learned, scale)
        return self

    @override
    def predict_proba(self, x: Any, *, gradients: bool = False) -> Tensor:
        """Mean of the networks' probabilities."""
        density = self._likelihood
        if isinstance(density, Gaussian):
            return super().predict_proba(x)
        with torch.set_grad_enabled(gradients):
            return density.mix(self._outputs(self._rows(x, gradients)))

    @override
    def _draws(self, x: Tensor, n: int) -> Tensor:
        outputs = self._outputs(x)
        members = torch.randint(outputs.shape[2], (n,), generator=self.generator)
        return outputs[..., members.to(outputs.device)].permute(2, 0, 1)

    @override
    def _is_fitted(self) -> bool:
        return hasattr(self, "noise_")
