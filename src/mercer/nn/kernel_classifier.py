"""The classifier whose logits are values of a learned kernel."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
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
from .series_logits import series_logits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

fx.wrap("unit_rows")  # symbolic traces keep these whole
fx.wrap("series_logits")

_FULL = (torch.float32, torch.float64)
_LIFT = 0.5  # l; the study head_safety.py measures it and the share
_SHARE = 0.3  # of the kernel beside a linear part, at the start
_MANY = 1000  # classes, where a second weight matrix starts to count; docs/which-head.md has its cost


class KernelClassifier(SavableModule):
    r"""Logits of an embedding z by a learned kernel k between it and weights :math:`w_{jp}`, all on the unit sphere.

    Use it in place of the last ``nn.Linear``: it costs more a step, and pays where classes are many for the width.

    .. math:: \text{logit}_j = \log \sum_{p} \exp \frac{k(w_{jp}, z)}{T} + b_j

    With T given, one prototype p a class and no bias this is jayasumana2021, Eq. 3-5. By default a linear layer stands
    beside the kernel, the scale is learned, and embeddings are lifted onto the sphere of one dimension more:

    .. math:: \text{logit}_j = \log \sum_{p} \exp ((0.3 S + g_j) \, k((w_{jp}, 0), (z - \mu, 0.5)))
        + v_j^T z + b_j

    v starts as that of ``nn.Linear`` does, so that the head trains where a linear layer trains. g starts at 0. At
    :math:`S = \log(9 (c - 1)) / (k(1) - k(0))` the kernel alone gives an embedding on the weight of its class, at right
    angles to the others, probability 0.9; without a linear part the scale is :math:`S + g_j`.
    The lift bounds gradients: near the origin, where a small step turns an embedding round, all cosines are near 0.
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
        linear: Add :math:`v_j^T z`, at the cost of an ``nn.Linear``; ``shared`` has its own. None: where T is
            None and there are fewer than 1000 classes.
        device: Where the parameters are made, as for ``nn.Linear``.
        dtype: Their dtype.

    >>> head = KernelClassifier(16, 3, prototypes=2)
    >>> head(torch.randn(5, 16)).shape
    torch.Size([5, 3])
    """

    bias: nn.Parameter | None
    gain: nn.Parameter | None  # (c,): g, 0 at the start, so that weight decay pulls to the start
    center: Tensor | None  # (d,)
    linear: nn.Parameter | None  # (c, d): v
    start: Tensor | None  # (1,): the scale at g = 0

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
        learned = temperature is None
        if linear is None:
            linear = learned and num_classes < _MANY
        self.lift = _LIFT if learned and shared is None else 0.0
        self.share = _SHARE if linear else 1.0
        for part in self.kernel.modules():
            if isinstance(part, RadialSeries) and part.basis == "gegenbauer":
                part.fill_dim(in_features + 1 if self.lift else in_features)  # the sphere that rows are put on
        self._make_parameters(bias, linear, {"device": device, "dtype": dtype})
        self.reset_parameters()

    def _make_parameters(self, bias: bool, linear: bool, place: dict[str, Any]) -> None:
        c, d, learned = self.num_classes, self.in_features, self.temperature is None
        self.weight = nn.Parameter(torch.empty(c * self.prototypes, d, **place))
        self.bias = nn.Parameter(torch.empty(c, **place)) if bias else None
        self.linear = nn.Parameter(torch.empty(c, d, **place)) if linear else None
        self.gain = nn.Parameter(torch.empty(c, **place)) if learned else None
        self.register_buffer("center", torch.empty(d, **place) if learned else None)
        self.register_buffer("start", torch.empty(1, **place) if learned else None)

    @property
    def out_features(self) -> int:
        """The number of classes, under the name that ``nn.Linear`` gives it."""
        return self.num_classes

    @property
    def scale(self) -> Tensor:  # (c,)
        """What multiplies k for each class: the learned scale, or 1 / T."""
        if self.gain is None or self.start is None:
            return self.weight.new_full((self.num_classes,), 1 / (self.temperature or 1.0))
        return self.start + self.gain

    def reset_parameters(self) -> None:
        """Weights uniform on the sphere, the linear part as nn.Linear's, the kernel and the scale at their start."""
        for part in self.children():
            getattr(part, "reset_parameters", lambda: None)()
        with torch.no_grad():
            self.weight.normal_()
            self.weight.copy_(unit_rows(self.weight))
            for parameter in (self.bias, self.gain, self.center):
                if parameter is not None:
                    parameter.zero_()
            if self.linear is not None:  # as nn.Linear starts
                bound = self.in_features**-0.5
                self.linear.uniform_(-bound, bound)
            if self.start is not None and not self.weight.is_meta:
                self.start.fill_(self.share * self._start())

    def _start(self) -> float:
        """The scale at which an embedding on its class's weight, at right angles to the others, has probability 0.9."""
        width = self.in_features + 1 if self.lift else self.in_features
        own = torch.eye(1, max(2, width), dtype=torch.float64, device=self.weight.device)
        other = own.roll(1, 1)
        if width == 1:
            own, other = own[:, :1], -own[:, :1]
        with torch.no_grad():
            gap = float(self.kernel(own, own) - self.kernel(own, other))
        return math.log(9 * max(1, self.num_classes - 1)) / gap if math.isfinite(gap) and gap > 1e-6 else 1.0

    def forward(self, z: Tensor) -> Tensor:  # (..., d) -> (..., c)
        """Logits of embeddings."""
        if isinstance(z, fx.Proxy):  # a symbol has no sizes to check
            logits = self._logits(z.reshape(-1, self.in_features), self.weight)
            return logits.reshape(z.shape[:-1] + (self.num_classes,))  # noqa: RUF005 - a symbol cannot be unpacked
        z, weight = self._checked(z)
        with _full_precision(z):
            if z.ndim == 2:  # sharded training refuses needless views
                return self._logits(z, weight)
            return self._logits(z.reshape(-1, self.in_features), weight).reshape(*z.shape[:-1], self.num_classes)

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
            return self._logits(z, self.weight[chosen].to(z.dtype), classes)

    def _logits(self, z: Tensor, weight: Tensor, classes: Tensor | None = None) -> Tensor:
        """Logits of all classes, or of some whose weights these are: (n, d), (m, d) -> (n, c)."""
        kernel = self.kernel
        if self.prototypes > 1 or not isinstance(kernel, RadialSeries) or not kernel.is_polynomial:
            return self._read_values(z, self._kernel_values(z, weight, classes), classes)
        # One weight a class and a plain series: everything in one pass.
        bias, linear = _rows_like(self.bias, z, classes), _rows_like(self.linear, z, classes)
        return self._evaluate_series(z, weight, kernel, self._column_scale(weight, classes), bias, linear)

    def _evaluate_series(
        self, z: Tensor, weight: Tensor, kernel: RadialSeries, scale: Tensor | None,
        bias: Tensor | None = None, linear: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        # With a learned scale, coefficients that a large step drove below 0 keep a gradient and can return.
        revived = kernel.positivity == "relu" and self.temperature is None
        a = _rows_like(kernel.alpha if revived else kernel.coefficients[2:], z)
        return series_logits(z, weight, a, scale, bias, linear, _rows_like(self.center, z), self.lift, revived)

    def _column_scale(self, weight: Tensor, classes: Tensor | None) -> Tensor | None:
        """What multiplies the kernel values of each weight, ``(m,)``; None for 1."""
        if self.temperature is not None:
            count = self.prototypes * (self.num_classes if classes is None else len(classes))
            return None if self.temperature == 1.0 else weight.new_full((count,), 1 / self.temperature)
        scale = _rows_like(self.scale, weight, classes)
        return scale.repeat_interleave(self.prototypes) if self.prototypes > 1 else scale

    def _kernel_values(self, z: Tensor, weight: Tensor, classes: Tensor | None = None) -> Tensor:
        """Kernel values between centered embeddings and weights, times the scale: (n, d), (m, d) -> (n, m)."""
        scale, kernel = self._column_scale(weight, classes), self.kernel
        if isinstance(kernel, RadialSeries) and kernel.is_polynomial:
            return self._evaluate_series(z, weight, kernel, scale)
        if self.center is not None:
            z = z - self.center.to(z.dtype)
        if self.lift:
            z, weight = F.pad(z, (0, 1), value=self.lift), F.pad(weight, (0, 1))
        scale_free = isinstance(kernel, Cosine)
        rows = (z, weight) if scale_free else (unit_rows(z), unit_rows(weight))
        value: Tensor
        if isinstance(z, fx.Proxy):  # other kernels ask for sizes: kept whole
            value = z.tracer.create_proxy("call_module", z.tracer.path_of_module(kernel), rows, {})
        else:
            # The call checks its arguments, by sizes that an exported graph must not know.
            value = (kernel.gram if scale_free or records_graph() else kernel)(*rows)
        return value if scale is None else value * scale

    def _read_values(self, z: Tensor, value: Tensor, classes: Tensor | None = None) -> Tensor:
        """Logits of scaled kernel values: join the prototypes, add the linear part and the bias."""
        if self.prototypes > 1:
            value = value.unflatten(1, (-1, self.prototypes)).logsumexp(2)
        bias, linear = _rows_like(self.bias, z, classes), _rows_like(self.linear, z, classes)
        if bias is not None:
            value = value + bias
        if linear is not None:
            value = torch.addmm(value, z, linear.mT)
        return value

    def init_from(
        self, embeddings: Data, labels: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> KernelClassifier:
        """Put the center at the mean, the weights where the classes are, seen from there, and the linear part at 0.

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
            # Weights that know the classes lead from the first step, alone.
            if self.linear is not None:
                self.linear.zero_()
            if self.start is not None:
                self.start.fill_(self._start())
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


@overload
def _rows_like(parameter: Tensor, z: Tensor, classes: Tensor | None = None) -> Tensor: ...
@overload
def _rows_like(parameter: None, z: Tensor, classes: Tensor | None = None) -> None: ...
@overload
def _rows_like(parameter: Tensor | None, z: Tensor, classes: Tensor | None = None) -> Tensor | None: ...
def _rows_like(parameter: Tensor | None, z: Tensor, classes: Tensor | None = None) -> Tensor | None:
    """A parameter in the dtype of z; only the rows of some classes, where they are given."""
    if parameter is None:
        return None
    if isinstance(z, fx.Proxy) or parameter.dtype != z.dtype:
        parameter = parameter.to(z.dtype)
    return parameter if classes is None else parameter[classes]


def _full_precision(z: Tensor) -> AbstractContextManager[Any]:
    """Autocast off, where it is on."""
    if z.is_meta or not torch.is_autocast_enabled(z.device.type):
        return nullcontext()
    return torch.autocast(z.device.type, enabled=False)
