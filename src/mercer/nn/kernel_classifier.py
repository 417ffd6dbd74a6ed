"""The classifier whose logits are values of a learned kernel."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from typing_extensions import override

from .. import checks
from ..kernels import Cosine, Kernel, RadialSeries
from ..linalg.distances import unit_rows
from ..linalg.torch_internals import records_graph
from ..rows.agreement import has_several_ranks
from ..rows.loading import Data, load_labelled_rows, load_rows
from ..rows.rows import Rows
from ..storage.savable import SavableModule
from .before_pooling import masked_mean
from .prototypes import checked_labels, class_directions, prototypes_for
from .scaled_series import scaled_series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

fx.wrap("unit_rows")  # symbolic traces keep these whole
fx.wrap("scaled_series")

_FULL = (torch.float32, torch.float64)
_MOST_LOG_SCALE = 2.0  # the study head_safety.py has the trials
_MANY = 1000  # classes, where a second weight matrix starts to count; docs/which-head.md has its cost


class KernelClassifier(SavableModule):
    r"""Logits of an embedding z by a learned kernel k between it and weights :math:`w_{jp}`, all on the unit sphere.

    .. math:: \text{logit}_j = \log \sum_{p} \exp \frac{k(w_{jp}, z)}{T} + b_j

    With T given, one prototype p a class and no bias this is jayasumana2021, Eq. 3-5. By default the scale is learned
    and a linear map of z itself is added, from 0, so that the head contains ``nn.Linear`` and can use lengths:

    .. math:: \text{logit}_j = \log \sum_{p} \exp (s_j \, k(w_{jp}, z - \mu)) + d^{-1/4} v_j^T z + b_j

    The start of the scale, :math:`s = \log(9 (c - 1)) / (k(1) - k(0))`, gives an embedding on the weight of its class,
    at right angles to the others, probability 0.9; s stays within :math:`e^{\pm 2}` of it, whatever the rate.
    :math:`\mu` is 0 until :meth:`init_from` sets it to the mean of its rows: the cosines of embeddings behind a ReLU
    are all near 1 otherwise. It is not learned: a learned one leaves the embeddings behind, and then all look alike.

    It takes ``(..., in_features)`` and gives ``(..., num_classes)`` as ``nn.Linear`` does; half precision, autocast
    too, is computed and returned in float32, and a float64 embedding in float64.

    Args:
        in_features: d, the width of the embedding.
        num_classes: c.
        kernel: k; None for :class:`mercer.kernels.RadialSeries`, learned with the weights. Any kernel goes in.
        prototypes: Weight vectors of each class. ``"auto"``: one, until :meth:`init_from` sees the rows of a class.
        shared: m units that all classes read: logits :math:`A \, \mathrm{LN}(k(u, z)) + B z + b`, with layer norm LN.
            For many classes, or in place of a small MLP.
        bias: Learn b.
        temperature: T. None: the learned scale and the center (``shared`` needs no scale). The paper's are 0.1 for
            ``RadialSeries(positivity="sigmoid")`` and 0.005 for ``"softmax"``.
        linear: Add :math:`d^{-1/4} v_j^T z`, at the cost of an ``nn.Linear``; ``shared`` has its own. None: where T is
            None and there are fewer than 1000 classes.
        device: Where the parameters are made, as for ``nn.Linear``.
        dtype: Their dtype.

    >>> head = KernelClassifier(16, 3, prototypes=2)
    >>> head(torch.randn(5, 16)).shape
    torch.Size([5, 3])
    """

    bias: nn.Parameter | None
    log_scale: nn.Parameter | None  # (c,), relative to the start, so that weight decay pulls to the start
    center: Tensor | None  # (d,)
    linear: nn.Parameter | None  # (c, d): v
    log_start: Tensor | None  # (1,)

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        kernel: Kernel | None = None,
        *,
        prototypes: int | str = 1,
        shared: int | None = None,
        bias: bool = True,
        temperature: float | None = None,
        linear: bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = "KernelClassifier"
        if shared is not None and type(self) is KernelClassifier:
            from .shared_units import SharedUnits

            self.__class__ = SharedUnits  # one constructor, two classes: all that differs is overridden there
        self.in_features = checks.integer(where, "in_features", in_features, 1)
        self.num_classes = checks.integer(where, "num_classes", num_classes, 1)
        self.auto = prototypes == "auto"
        number: Any = 1 if self.auto else prototypes
        self.prototypes = checks.integer(where, "prototypes", number, 1)
        self.shared = None if shared is None else checks.integer(where, "shared", shared, 1)
        if self.shared is not None and prototypes != 1:
            fix = "Units are shared by all classes: leave prototypes out."
            raise ValueError(checks.sentence(where, "shared needs prototypes=1", repr(prototypes), fix))
        self.temperature = None if temperature is None else checks.positive(where, "temperature", temperature)
        if kernel is not None and not isinstance(kernel, Kernel):
            need, fix = "kernel must be a mercer.kernels.Kernel", "Use FunctionKernel for a function of your own."
            raise TypeError(checks.sentence(where, need, type(kernel).__name__, fix))
        self.kernel = (RadialSeries() if kernel is None else kernel).to(device=device, dtype=dtype)
        for part in self.kernel.modules():
            if isinstance(part, RadialSeries) and part.basis == "gegenbauer":
                part.fill_dim(in_features)
        small = temperature is None and num_classes < _MANY
        self._make_parameters(bias, small if linear is None else linear, {"device": device, "dtype": dtype})
        self.reset_parameters()

    def _make_parameters(self, bias: bool, linear: bool, place: dict[str, Any]) -> None:
        c, d, learned = self.num_classes, self.in_features, self.temperature is None
        self.weight = nn.Parameter(torch.empty(c * self.prototypes, d, **place))
        self.bias = nn.Parameter(torch.empty(c, **place)) if bias else None
        self.linear = nn.Parameter(torch.empty(c, d, **place)) if linear else None
        self.log_scale = nn.Parameter(torch.empty(c, **place)) if learned else None
        self.register_buffer("center", torch.empty(d, **place) if learned else None)
        self.register_buffer("log_start", torch.empty(1, **place) if learned else None)

    @property
    def out_features(self) -> int:
        """The number of classes, under the name that ``nn.Linear`` gives it."""
        return self.num_classes

    @property
    def scale(self) -> Tensor:  # (c,)
        """What multiplies k for each class: the learned scale, or 1 / T."""
        if self.log_scale is None or self.log_start is None:
            return self.weight.new_full((self.num_classes,), 1 / (self.temperature or 1.0))
        return (self.log_start + _bound(self.log_scale)).exp()

    def reset_parameters(self) -> None:
        """Weights uniform on the sphere, bias 0, the kernel (where it has one) and the scale at their start."""
        for part in self.children():
            getattr(part, "reset_parameters", lambda: None)()
        with torch.no_grad():
            self.weight.normal_()
            self.weight.copy_(unit_rows(self.weight))
            for parameter in (self.bias, self.log_scale, self.linear, self.center):
                if parameter is not None:
                    parameter.zero_()
            if self.log_start is not None and not self.weight.is_meta:
                self.log_start.fill_(math.log(self._start()))

    def _start(self) -> float:
        """The scale at which an embedding on its class's weight, at right angles to the others, has probability 0.9."""
        own = torch.eye(1, max(2, self.in_features), dtype=torch.float64, device=self.weight.device)
        other = own.roll(1, 1)
        if self.in_features == 1:
            own, other = own[:, :1], -own[:, :1]
        with torch.no_grad():
            gap = float(self.kernel(own, own) - self.kernel(own, other))
        return math.log(9 * max(1, self.num_classes - 1)) / gap if math.isfinite(gap) and gap > 1e-6 else 1.0

    def forward(self, z: Tensor) -> Tensor:  # (..., d) -> (..., c)
        """Logits of embeddings."""
        if isinstance(z, fx.Proxy):  # a symbol has no sizes to check
            flat = z.reshape(-1, self.in_features)
            logits = self._read_values(flat, self._kernel_values(flat, self.weight))
            return logits.reshape(z.shape[:-1] + (self.num_classes,))  # noqa: RUF005 - a symbol cannot be unpacked
        z, weight = self._checked(z)
        with _full_precision(z):
            if z.ndim == 2:  # sharded training refuses needless views
                return self._read_values(z, self._kernel_values(z, weight))
            flat = z.reshape(-1, self.in_features)
            return self._read_values(flat, self._kernel_values(flat, weight)).reshape(*z.shape[:-1], self.num_classes)

    def at_places(self, z: Tensor, places: Tensor, mask: Tensor | None = None) -> Tensor:  # (n, d) -> (n, c)
        """Logits by kernel values that are taken at every place and averaged: the kernel mean embedding.

        Args:
            z: Pooled embeddings ``(n, d)``, for the length of a row and the linear parts; or ``(n, t, d)``, several for
                one row, as of a model that picks one of its tokens afterwards: then the logits are ``(n, t, c)``.
            places: What was pooled, ``(n, s, d)``.
            mask: ``(n, s)``, True where a place counts; None where all do.
        """
        z, weight = self._checked(z)
        if z.ndim not in (2, 3) or places.ndim != 3 or places.shape[::2] != z.shape[:: z.ndim - 1]:
            need = "places must have shape (n, s, d) where z has (n, d) or (n, t, d)"
            raise ValueError(checks.sentence("KernelClassifier", need, f"{tuple(places.shape)} and {tuple(z.shape)}"))
        with _full_precision(z):
            each = self._kernel_values(places.to(z.dtype).reshape(-1, self.in_features), weight)
            value = masked_mean(each.unflatten(0, places.shape[:2]), mask)  # (n, m)
            if z.ndim == 2:
                return self._read_values(z, value)
            value = value[:, None].expand(-1, z.shape[1], -1).flatten(0, 1)
            logits: Tensor = self._read_values(z.reshape(-1, self.in_features), value).unflatten(0, z.shape[:2])
            return logits

    def of_classes(self, z: Tensor, classes: Tensor) -> Tensor:  # (n, d), (k,) -> (n, k)
        """``self(z)[:, classes]`` at the cost of k classes; not for shared units."""
        z, _ = self._checked(z)
        chosen = (classes[:, None] * self.prototypes + torch.arange(self.prototypes, device=classes.device)).flatten()
        with _full_precision(z):
            value = self._kernel_values(z, self.weight[chosen].to(z.dtype), classes)
            return self._read_values(z, value, classes)

    def _column_scale(self, weight: Tensor, classes: Tensor | None) -> Tensor | None:
        """What multiplies the kernel values of each weight, ``(m,)``; None for 1."""
        if self.temperature is not None:
            count = self.prototypes * (self.num_classes if classes is None else len(classes))
            return None if self.temperature == 1.0 else weight.new_full((count,), 1 / self.temperature)
        scale = self.scale.to(weight.dtype)
        if classes is not None:
            scale = scale[classes]
        return scale.repeat_interleave(self.prototypes) if self.prototypes > 1 else scale

    def _kernel_values(self, z: Tensor, weight: Tensor, classes: Tensor | None = None) -> Tensor:
        """Kernel values between centered embeddings and weights, times the scale: (n, d), (m, d) -> (n, m)."""
        scale = self._column_scale(weight, classes)
        if self.center is not None:
            z = z - _like(self.center, z)
        kernel = self.kernel
        if isinstance(kernel, RadialSeries) and kernel.is_polynomial:
            return scaled_series(z, weight, _like(self._coefficients(kernel), z), scale)
        scale_free = isinstance(kernel, Cosine)
        rows = (z, weight) if scale_free else (unit_rows(z), unit_rows(weight))
        value: Tensor
        if isinstance(z, fx.Proxy):  # other kernels ask for sizes: kept whole
            value = z.tracer.create_proxy("call_module", z.tracer.path_of_module(kernel), rows, {})
        else:
            # The call checks its arguments, by sizes that an exported graph must not know.
            value = (kernel.gram if scale_free or records_graph() else kernel)(*rows)
        return value if scale is None else value * scale

    def _coefficients(self, kernel: RadialSeries) -> Tensor:
        """Coefficients of the powers in force; one that a large step drove below 0 keeps a gradient and can return."""
        if kernel.positivity != "relu" or self.temperature is not None:
            return kernel.coefficients[2:]
        return kernel.alpha + (kernel.alpha.relu() - kernel.alpha).detach()

    def _read_values(self, z: Tensor, value: Tensor, classes: Tensor | None = None) -> Tensor:
        """Logits of scaled kernel values: join the prototypes, add the linear part and the bias."""
        if self.prototypes > 1:
            value = value.unflatten(1, (-1, self.prototypes)).logsumexp(2)
        if self.bias is not None:
            bias = _like(self.bias, z)
            value = value + (bias if classes is None else bias[classes])
        if self.linear is None:
            return value
        linear = _like(self.linear, z)
        return torch.addmm(value, z, (linear if classes is None else linear[classes]).mT, alpha=self.in_features**-0.25)

    def init_from(
        self, embeddings: Data, labels: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> KernelClassifier:
        """Put the center at the mean, and the weights where the classes are, seen from there.

        A weight is the mean direction of its class, or one of the k-means directions for several prototypes.
        Shared units go to k-means directions of all rows. With ``prototypes="auto"`` the number of weights is chosen
        here: call it before you make the optimizer. A class without rows keeps its weights, with a warning.
        With several ranks, each passes its own rows.

        Args:
            embeddings: ``(n, in_features)``, or a loader of pairs (embedding, label).
            labels: ``(n,)`` whole numbers in 0..num_classes - 1; None where ``embeddings`` is a loader.
            generator: Draws the starts of k-means.
        """
        where = "KernelClassifier.init_from"
        if labels is None:
            z, labels = load_labelled_rows(where, embeddings)
        else:
            z = load_rows(where, embeddings, "embeddings")
        z = checks.matrix(where, "embeddings", z, columns=self.in_features)
        checks.squarable(where, "embeddings", z, empty=has_several_ranks())  # of several ranks some may have no row
        checks.same_device(where, "embeddings", z.device, "the head", self.weight.device)
        labels = checked_labels(where, labels, z, self.num_classes)
        if self.center is not None:
            self.center.copy_(Rows(z).mean(lambda block: block.double().sum(0)))
            z = z - self.center.to(z.dtype)
        if self.auto:
            self._set_prototypes(prototypes_for(labels, self.num_classes))
        labels, groups, each = self._group_rows(labels)
        directions, missing = class_directions(z, labels, groups, each, generator)
        if missing:
            shown = ", ".join(map(str, missing[:5]))
            checks.warn(where, f"{len(missing)} classes have no row ({shown}); their weights stay as they were.")
        seen = torch.ones(groups, dtype=torch.bool, device=z.device)
        seen[missing] = False
        chosen = seen.repeat_interleave(each)
        with torch.no_grad():
            self.weight[chosen] = directions.to(self.weight.dtype)[chosen]
        return self

    def _group_rows(self, labels: Tensor) -> tuple[Tensor, int, int]:
        """The group of each row, the number of groups, and the weights of each: a class and its prototypes."""
        return labels, self.num_classes, self.prototypes

    def _set_prototypes(self, count: int) -> None:
        if count != self.prototypes:
            self.prototypes = count
            fresh = torch.randn(self.num_classes * count, self.in_features).to(self.weight)
            self.weight = nn.Parameter(unit_rows(fresh), requires_grad=self.weight.requires_grad)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        weight = state_dict.get(f"{prefix}weight")
        if weight is not None and self.auto and weight.ndim == 2 and len(weight) % self.num_classes == 0:
            self._set_prototypes(len(weight) // self.num_classes)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that weight decay should leave alone: all but weights (timm's convention)."""
        return {name for name, p in self.named_parameters() if p.ndim < 2 and not name.startswith("kernel.")}

    def param_groups(
        self, *, weight_decay: float = 1e-4, kernel_decay: float | None = None, kernel_lr: float | None = None
    ) -> list[dict[str, Any]]:
        """Groups for an optimizer: weights, kernel (decayed like the rest, jayasumana2021, Appendix A), the undecayed.

        Args:
            weight_decay: Weight decay of the weights.
            kernel_decay: Weight decay of the kernel, the paper's regulariser on alpha; None for ``weight_decay``.
            kernel_lr: Learning rate of the kernel; None for the optimizer's own.
        """
        decay = weight_decay if kernel_decay is None else kernel_decay
        kernel: dict[str, Any] = {"params": list(self.kernel.parameters()), "weight_decay": decay}
        if kernel_lr is not None:
            kernel["lr"] = checks.positive("KernelClassifier.param_groups", "kernel_lr", kernel_lr)
        undecayed = self.no_weight_decay()
        own = [(name, p) for name, p in self.named_parameters() if not name.startswith("kernel.")]
        groups = [
            {"params": [p for name, p in own if name not in undecayed], "weight_decay": weight_decay},
            kernel,
            {"params": [p for name, p in own if name in undecayed], "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def profile(self, t: Tensor) -> Tensor:  # (m,) -> (m,)
        """K as a function of the cosine t, for any kernel: on one great circle of the sphere."""
        if isinstance(self.kernel, RadialSeries):
            return self.kernel.profile(t)
        if self.in_features < 2:
            need = "profile needs an embedding of at least two features"
            raise ValueError(checks.sentence("KernelClassifier", need, self.in_features))
        circle = t.new_zeros(len(t), self.in_features)
        circle[:, 0], circle[:, 1] = t, (1 - t * t).clamp(min=0).sqrt()
        pole = t.new_zeros(1, self.in_features)
        pole[0, 0] = 1.0
        profile: Tensor = self.kernel(circle, pole)[:, 0]
        return profile

    def plot(self) -> Figure:
        """The learned k(t) and, for a :class:`mercer.kernels.RadialSeries`, its coefficients."""
        from .drawing import draw_head

        return draw_head(self)

    @override
    def get_arguments(self) -> dict[str, Any]:
        return {**super().get_arguments(), "kernel": self.kernel}

    def extra_repr(self) -> str:
        """Sizes, as ``nn.Linear`` shows them."""
        return (
            f"in_features={self.in_features}, num_classes={self.num_classes}, prototypes={self.prototypes}, "
            f"shared={self.shared}, bias={self.bias is not None}, temperature={self.temperature}"
        )

    def _checked(self, z: Tensor) -> tuple[Tensor, Tensor]:
        weight: Tensor = self.weight
        if z.ndim < 1 or z.shape[-1] != self.in_features or z.is_complex():
            need = f"z must be real, of shape (..., {self.in_features})"
            raise ValueError(checks.sentence("KernelClassifier", need, f"{z.dtype} of {tuple(z.shape)}"))
        checks.same_device("KernelClassifier", "z", z.device, "the head", weight.device)
        if z.dtype == weight.dtype and z.dtype in _FULL:
            return z, weight
        z, weight = checks.floating(z), checks.floating(weight)
        common = torch.promote_types(z.dtype, weight.dtype)
        return z.to(common), weight.to(common)


def _bound(log_scale: Tensor) -> Tensor:
    """A large step can multiply the scale by e^2 at most, and the gradient leads back from there."""
    return _MOST_LOG_SCALE * torch.tanh(log_scale / _MOST_LOG_SCALE)


def _like(parameter: Tensor, z: Tensor) -> Tensor:
    if not isinstance(z, fx.Proxy) and parameter.dtype == z.dtype:
        return parameter
    return parameter.to(z.dtype)


def _full_precision(z: Tensor) -> AbstractContextManager[Any]:
    """Autocast off, where it is on."""
    if z.is_meta or not torch.is_autocast_enabled(z.device.type):
        return nullcontext()
    return torch.autocast(z.device.type, enabled=False)
