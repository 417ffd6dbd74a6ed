"""The classifier whose logits are values of a learned kernel."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self

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
from .prototypes import check_labels, class_directions, prototypes_for
from .series_logits import find_scale, series_logits, shorten_long_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

fx.wrap("unit_rows")  # symbolic traces keep these whole
fx.wrap("find_scale")
fx.wrap("series_logits")
fx.wrap("shorten_long_rows")

_FULL = (torch.float32, torch.float64)
# The study head_safety.py measures these and the speed of the scale; docs/which-head.md says how they were chosen.
_LIFT = 0.5
_RADIUS = 8.0  # times the root of the width: longer embeddings count as shorter for the linear part
_SHARE = 0.3  # of the scale that the kernel starts with beside a linear part
_MANY_CLASSES = 1000  # from here on a second weight matrix costs much; docs/which-head.md has the cost


class _OneConstructor(SavableModule):
    """Three heads behind one constructor: ``KernelClassifier(...)`` makes the class that its arguments ask for.

    A class of its own, because ``inspect.signature`` would show this ``__new__`` beside an ``__init__``.
    """

    def __new__(cls, *args: Any, **arguments: Any) -> Self:
        kind: type[Any] = cls
        if cls is KernelClassifier and arguments.get("shared") is not None:
            from .shared_units import SharedUnits

            kind = SharedUnits
        elif cls is KernelClassifier and arguments.get("temperature") is not None:
            kind = FixedTemperature
        head: Self = super().__new__(kind, *args, **arguments)
        return head


class KernelClassifier(_OneConstructor):
    r"""Logits of an embedding z by a learned kernel k between it and weights :math:`w_{jp}`, all on the unit sphere.

    Use it in place of the last ``nn.Linear``: it costs more a step, and pays where classes are many for the width.

    .. math:: \text{logit}_j = \log \sum_{p} \exp \frac{k(w_{jp}, z)}{T} + b_j

    With T given, one prototype p a class and no bias this is jayasumana2021, Eq. 3-5. By default a linear layer stands
    beside the kernel and the scale is learned:

    .. math:: \text{logit}_j = \log \sum_{p} \exp \Bigl(s_j \frac{k((w_{jp}, 0), (x, 0.5))}{k(1)}\Bigr)
        + v_j^T \frac{x}{(1 + |x|^2 / 64 d)^{3/8}} + b_j, \quad x = z - \mu, \; s_j = 0.3 S + 6 g_j

    It is made to train wherever ``nn.Linear`` does, and at rates where that breaks:

    - v and b are drawn as ``nn.Linear`` draws them, from the same state of the generator. g starts at 0.
    - Only the scale has a size: k is divided by k(1), else eleven coefficients grow at once at every step.
    - Embeddings longer than :math:`8 \sqrt d` count as shorter for v: its gradients do not grow with their length.
    - The lift to (x, 0.5) bounds gradients: near the origin, where a small step turns an embedding round, all cosines
      are near 0.

    At :math:`S = \log(9 (c - 1)) k(1) / (k(1) - k(0))` the kernel alone gives an embedding on the weight of its class,
    at right angles to the others, probability 0.9; without a linear part :math:`s_j = S + 6 g_j`.
    :math:`\mu` is 0 until :meth:`init_from` sets it to the mean of its rows: the cosines of embeddings behind a ReLU
    are all near 1 otherwise. It is not learned: a learned one leaves the embeddings behind, and then all look alike.

    It takes ``(..., in_features)`` and gives ``(..., num_classes)`` as ``nn.Linear`` does; half precision, autocast
    too, is computed and returned in float32, and a float64 embedding in float64.

    Args:
        in_features: d, the width of the embedding.
        num_classes: c.
        kernel: k; None for :class:`mercer.kernels.RadialSeries`, learned with the weights. Any kernel goes in; one that
            is no such series is not divided by k(1).
        prototypes: Weight vectors of each class. ``"auto"``: one, until :meth:`init_from` sees the rows of a class.
        shared: m units that all classes read: logits :math:`A \, \mathrm{LN}(k(u, z)) + B z + b`, with layer norm LN.
            For many classes, or in place of a small MLP.
        bias: Learn b.
        temperature: T. None: the learned scale and the center (``shared`` needs no scale). The paper's are 0.1 for
            ``RadialSeries(positivity="sigmoid")`` and 0.005 for ``"softmax"``.
        linear: Add the linear part, at the cost of an ``nn.Linear``; ``shared`` has its own. None: where T is
            None and there are fewer than 1000 classes. With T it is :math:`v_j^T z`.
        device: Where the parameters are made, as for ``nn.Linear``.
        dtype: Their dtype.

    >>> head = KernelClassifier(16, 3, prototypes=2)
    >>> head(torch.randn(5, 16)).shape
    torch.Size([5, 3])
    """

    bias: nn.Parameter | None
    linear: nn.Parameter | None  # (c, d): v
    gate: nn.Parameter | None  # (c,): g, 0 at the start, so that weight decay pulls to the start
    start: Tensor | None  # (1,): the scale at g = 0
    center: Tensor | None  # (d,): mu
    lift: float = 0.0  # one more feature of every embedding; 0 for none
    radius: float = 0.0  # the length from which the linear part reads embeddings as shorter; 0 for none
    share: float = 1.0  # of the scale that the kernel starts with

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
        # The arguments, checked.
        super().__init__()
        where = "KernelClassifier"
        self.in_features = checks.integer(where, "in_features", in_features, 1)
        self.num_classes = checks.integer(where, "num_classes", num_classes, 1)
        self.auto = prototypes == "auto"
        count: Any = prototypes
        if self.auto:
            count = 1  # until init_from sees the rows of a class
        self.prototypes = checks.integer(where, "prototypes", count, 1)
        self.shared: int | None = None
        if shared is not None:
            self.shared = checks.integer(where, "shared", shared, 1)
            if prototypes != 1:
                fix = "Units are shared by all classes: leave prototypes out."
                raise ValueError(checks.sentence(where, "shared needs prototypes=1", repr(prototypes), fix))
        self.temperature: float | None = None
        if temperature is not None:
            self.temperature = checks.positive(where, "temperature", temperature)
        if kernel is None:
            kernel = RadialSeries()
        if not isinstance(kernel, Kernel):
            need, fix = "kernel must be a mercer.kernels.Kernel", "Use FunctionKernel for a function of your own."
            raise TypeError(checks.sentence(where, need, type(kernel).__name__, fix))

        # The parameters; a Gegenbauer series needs the dimension of the sphere that it is put on.
        self.kernel = kernel.to(device=device, dtype=dtype)
        self._make_parameters(bias, linear, {"device": device, "dtype": dtype})
        for part in self.kernel.modules():
            if isinstance(part, RadialSeries) and part.basis == "gegenbauer":
                part.fill_dim(self._width)
        self.reset_parameters()

    def _make_parameters(self, bias: bool, linear: bool | None, place: dict[str, Any]) -> None:
        """Make the parameters, empty, and set the lift and what follows from the linear part; ``place``: where."""
        if self.shared is not None or self.temperature is not None:
            need = "a subclass of KernelClassifier must leave shared and temperature out"
            got, fix = f"{self.shared} and {self.temperature}", "Derive it from SharedUnits or FixedTemperature."
            raise TypeError(checks.sentence(type(self).__name__, need, got, fix))
        c, d = self.num_classes, self.in_features
        if linear is None:
            linear = c < _MANY_CLASSES
        self.lift = _LIFT
        self.weight = nn.Parameter(torch.empty(c * self.prototypes, d, **place))
        self.bias = nn.Parameter(torch.empty(c, **place)) if bias else None
        self.linear = nn.Parameter(torch.empty(c, d, **place)) if linear else None
        self.gate = nn.Parameter(torch.empty(c, **place))
        self.register_buffer("center", torch.empty(d, **place))
        self.register_buffer("start", torch.empty(1, **place))
        if linear:
            self.radius, self.share = _RADIUS * d**0.5, _SHARE

    @property
    def out_features(self) -> int:
        """The number of classes, under the name that ``nn.Linear`` gives it."""
        return self.num_classes

    @property
    def _width(self) -> int:
        """The dimension of the space whose sphere the kernel sees: d, and one more with a lift."""
        return self.in_features + bool(self.lift)

    @property
    def scale(self) -> Tensor:  # (c,)
        """What multiplies k / k(1) for each class; with a temperature, what multiplies k: 1 / T."""
        if self.start is None or self.gate is None:
            return self.weight.new_full((self.num_classes,), 1 / (self.temperature or 1.0))
        return find_scale(self.start, self.gate)

    def reset_parameters(self) -> None:
        """The linear part as nn.Linear's, weights uniform on the sphere, the kernel and the scale at their start."""
        with torch.no_grad():
            # First and in this order, so that a seed gives the head what it gives nn.Linear.
            if self.linear is not None:
                nn.init.kaiming_uniform_(self.linear, a=math.sqrt(5))
            if self.bias is not None:
                bound = 0.0
                if self.linear is not None:
                    bound = self.in_features**-0.5
                self.bias.uniform_(-bound, bound)
            for part in self.children():
                getattr(part, "reset_parameters", lambda: None)()
            self.weight.normal_()
            self.weight.copy_(unit_rows(self.weight))
            for tensor in (self.gate, self.center):
                if tensor is not None:
                    tensor.zero_()
            if self.start is not None and not self.weight.is_meta:
                self.start.fill_(self.share * self._find_scale())

    def _find_scale(self) -> float:
        """The scale at which an embedding on its class's weight, at right angles to the others, has probability 0.9."""
        with torch.no_grad():
            cosines = torch.tensor([1.0, 0.0], dtype=torch.float64, device=self.weight.device)
            at_weight, across = map(float, self.profile(cosines))
        gap = at_weight - across
        if isinstance(self.kernel, RadialSeries) and at_weight > 0:
            gap = gap / at_weight
        if not math.isfinite(gap) or gap <= 1e-6:
            return 1.0  # a kernel that does not tell the two apart
        return math.log(9 * max(1, self.num_classes - 1)) / gap

    def forward(self, z: Tensor) -> Tensor:  # (..., d) -> (..., c)
        """Logits of embeddings."""
        if isinstance(z, fx.Proxy):  # a symbol has no sizes to check
            logits = self._logits(z.reshape(-1, self.in_features), self.weight)
            return logits.reshape(z.shape[:-1] + (self.num_classes,))  # noqa: RUF005 - a symbol cannot be unpacked
        z, weight = self._check_embeddings(z)
        with _without_autocast(z):
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
        z, weight = self._check_embeddings(z)
        if z.ndim not in (2, 3) or places.ndim != 3 or places.shape[::2] != z.shape[:: z.ndim - 1]:
            need = "places must have shape (n, s, d) where z has (n, d) or (n, t, d)"
            raise ValueError(checks.sentence("KernelClassifier", need, f"{tuple(places.shape)} and {tuple(z.shape)}"))
        with _without_autocast(z):
            at_place = self._kernel_values(places.to(z.dtype).reshape(-1, self.in_features), weight)
            values = masked_mean(at_place.unflatten(0, places.shape[:2]), mask)  # (n, m)
            if z.ndim == 2:
                return self._read_values(z, values)
            # Several embeddings of one row share its mean values.
            values = values[:, None].expand(-1, z.shape[1], -1).flatten(0, 1)
            logits: Tensor = self._read_values(z.reshape(-1, self.in_features), values).unflatten(0, z.shape[:2])
            return logits

    def of_classes(self, z: Tensor, classes: Tensor) -> Tensor:  # (n, d), (k,) -> (n, k)
        """``self(z)[:, classes]`` at the cost of k classes; not for shared units."""
        z, _ = self._check_embeddings(z)
        index = (classes[:, None] * self.prototypes + torch.arange(self.prototypes, device=classes.device)).flatten()
        with _without_autocast(z):
            return self._logits(z, self.weight[index].to(z.dtype), classes)

    def _logits(self, z: Tensor, weight: Tensor, classes: Tensor | None = None) -> Tensor:
        """Logits of all classes, or of some whose weights these are: (n, d), (m, d) -> (n, c)."""
        kernel = self.kernel
        if self.prototypes == 1 and isinstance(kernel, RadialSeries) and kernel.is_polynomial:
            # One weight a class and a sum of powers: everything in one pass.
            return self._evaluate_series(kernel, z, weight, *self._pick_parts(z, classes))
        return self._read_values(z, self._kernel_values(z, weight), classes)

    def _kernel_values(self, z: Tensor, weight: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        """K between embeddings, as seen from the center and lifted, and weights."""
        kernel = self.kernel
        if isinstance(kernel, RadialSeries) and kernel.is_polynomial:
            return self._evaluate_series(kernel, z, weight)
        if self.center is not None:
            z = z - self.center.to(z.dtype)
        if self.lift:
            z, weight = F.pad(z, (0, 1), value=self.lift), F.pad(weight, (0, 1))
        ignores_lengths = isinstance(kernel, Cosine)
        if not ignores_lengths:
            z, weight = unit_rows(z), unit_rows(weight)
        values: Tensor
        if isinstance(z, fx.Proxy):  # other kernels ask for sizes: kept whole
            values = z.tracer.create_proxy("call_module", z.tracer.path_of_module(kernel), (z, weight), {})
        elif records_graph() or ignores_lengths:
            # Without the checks of a call, which read sizes that an exported graph must not know.
            values = kernel.gram(z, weight)
        else:
            values = kernel(z, weight)
        # The scale alone has a size: the kernel is divided by k(1).
        if self.gate is not None and isinstance(kernel, RadialSeries) and kernel.positivity != "none":
            values = values / kernel.coefficients.sum().clamp(min=0.1).to(values.dtype)
        return values

    def _read_values(self, z: Tensor, values: Tensor, classes: Tensor | None = None) -> Tensor:  # (n, m) -> (n, c)
        """Logits of kernel values: scale them, join the prototypes, add the bias and the linear part."""
        gate, bias, linear, start = self._pick_parts(z, classes)
        scale = find_scale(start, gate)
        if self.prototypes > 1:
            values = values.unflatten(1, (-1, self.prototypes))  # (n, c, p)
            values = (values * scale.unsqueeze(1)).logsumexp(2)
        else:
            values = values * scale
        if bias is not None:
            values = values + bias
        if linear is not None:
            x = z
            if self.center is not None:
                x = z - self.center.to(z.dtype)
            values = torch.addmm(values, shorten_long_rows(x, self.radius), linear.mT)
        return values

    def _pick_parts(self, z: Tensor, classes: Tensor | None) -> list[Any]:
        """Gate, bias and linear part of all classes, or of some, and the scale at a gate of 0, in the dtype of z."""
        parts: list[Tensor | None] = [self.gate, self.bias, self.linear]
        if classes is not None:
            parts = [None if part is None else part[classes] for part in parts]
        start = self.start
        if self.temperature is not None:
            start = z.new_full((1,), 1 / self.temperature)
        parts.append(start)
        if not isinstance(z, fx.Proxy) and z.dtype == self.weight.dtype:
            return parts
        return [None if part is None else part.to(z.dtype) for part in parts]

    def _evaluate_series(
        self,
        kernel: RadialSeries,
        z: Tensor,
        weight: Tensor,
        gate: Tensor | None = None,
        bias: Tensor | None = None,
        linear: Tensor | None = None,
        start: Tensor | None = None,
    ) -> Tensor:
        """Values of a sum of powers, or logits where the parts of :meth:`_pick_parts` are given."""
        normalized = self.gate is not None and kernel.positivity != "none"
        a: Tensor
        if normalized and kernel.positivity == "relu":
            a = kernel.alpha  # series_logits rectifies them, with a gradient for those below 0
        else:
            a = kernel.coefficients[2:]
        center = self.center
        if center is not None:
            center = center.to(z.dtype)
        options = (self.lift, self.radius, normalized)
        return series_logits(z, weight, a.to(z.dtype), gate, bias, linear, start, center, *options)

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
        # The rows and their labels, checked.
        where = "KernelClassifier.init_from"
        if labels is None:
            z, labels = load_labelled_rows(where, embeddings)
        else:
            z = load_rows(where, embeddings, "embeddings")
        z = checks.matrix(where, "embeddings", z, columns=self.in_features)
        checks.squarable(where, "embeddings", z, empty=has_several_ranks())  # of several ranks some may have no row
        checks.same_device(where, "embeddings", z.device, "the head", self.weight.device)
        labels = check_labels(where, labels, z, self.num_classes)

        # Move the center to the mean of all ranks' rows, and look at the rows from there.
        if self.center is not None:
            self.center.copy_(Rows(z).mean(lambda block: block.double().sum(0)))
            z = z - self.center.to(z.dtype)

        # Weights go where the classes are; a class without rows keeps its own.
        if self.auto:
            self._set_prototypes(prototypes_for(labels, self.num_classes))
        labels, groups, weights_of_group = self._group_rows(labels)
        directions, missing = class_directions(z, labels, groups, weights_of_group, generator)
        if missing:
            shown = ", ".join(map(str, missing[:5]))
            checks.warn(where, f"{len(missing)} classes have no row ({shown}); their weights stay as they were.")
        has_rows = torch.ones(groups, dtype=torch.bool, device=z.device)
        has_rows[missing] = False
        moved = has_rows.repeat_interleave(weights_of_group)
        with torch.no_grad():
            self.weight[moved] = directions.to(self.weight.dtype)[moved]
            # Weights that know the classes lead from the first step, alone.
            if self.linear is not None:
                self.linear.zero_()
            if self.start is not None:
                self.start.fill_(self._find_scale())
        return self

    def _group_rows(self, labels: Tensor) -> tuple[Tensor, int, int]:
        """The group of each row, the number of groups, and the weights of each: a class and its prototypes."""
        return labels, self.num_classes, self.prototypes

    def _set_prototypes(self, count: int) -> None:
        """Make random weights for so many prototypes of each class, if that is another number than now."""
        if count != self.prototypes:
            self.prototypes = count
            fresh = torch.randn(self.num_classes * count, self.in_features).to(self.weight)
            self.weight = nn.Parameter(unit_rows(fresh), requires_grad=self.weight.requires_grad)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        errors: list[str] = args[-1]
        if f"{prefix}gain" in state_dict:
            fix = "Its formula has changed: train the head again."
            errors.append(
                checks.sentence("KernelClassifier", "the state must have a gate", "gain, of 0.3 or older", fix)
            )
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
        if kernel_decay is None:
            kernel_decay = weight_decay
        kernel: dict[str, Any] = {"params": list(self.kernel.parameters()), "weight_decay": kernel_decay}
        if kernel_lr is not None:
            kernel["lr"] = checks.positive("KernelClassifier.param_groups", "kernel_lr", kernel_lr)
        undecayed = self.no_weight_decay()
        named = [(name, p) for name, p in self.named_parameters() if not name.startswith("kernel.")]
        groups = [
            {"params": [p for name, p in named if name not in undecayed], "weight_decay": weight_decay},
            kernel,
            {"params": [p for name, p in named if name in undecayed], "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def profile(self, t: Tensor) -> Tensor:  # (m,) -> (m,)
        """K as a function of the cosine t, for any kernel: on one great circle of the sphere."""
        if isinstance(self.kernel, RadialSeries):
            return self.kernel.profile(t)
        if self._width < 2:
            need = "profile needs an embedding of at least two features"
            raise ValueError(checks.sentence("KernelClassifier", need, self.in_features))
        circle = t.new_zeros(len(t), self._width)
        circle[:, 0], circle[:, 1] = t, (1 - t * t).clamp(min=0).sqrt()
        pole = t.new_zeros(1, self._width)
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

    def _check_embeddings(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings and weights in one dtype, float32 or float64."""
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


class FixedTemperature(KernelClassifier):
    r"""The paper's head: what ``KernelClassifier(d, c, temperature=T)`` makes.

    .. math:: \text{logit}_j = \log \sum_{p} \exp \frac{k(w_{jp}, z)}{T} + v_j^T z + b_j

    v only where ``linear=True``; jayasumana2021, Eq. 3-5, has neither v nor b and one p.
    """

    temperature: float

    @override
    def _make_parameters(self, bias: bool, linear: bool | None, place: dict[str, Any]) -> None:
        c, d = self.num_classes, self.in_features
        self.weight = nn.Parameter(torch.empty(c * self.prototypes, d, **place))
        self.bias = nn.Parameter(torch.empty(c, **place)) if bias else None
        self.linear = nn.Parameter(torch.empty(c, d, **place)) if linear else None
        self.gate = self.center = self.start = None


def _without_autocast(z: Tensor) -> AbstractContextManager[Any]:
    """A context in which half precision is not chosen for us: cosines near 1 need their digits."""
    if z.is_meta or not torch.is_autocast_enabled(z.device.type):
        return nullcontext()
    return torch.autocast(z.device.type, enabled=False)
