"""The classifier whose logits are values of a learned kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from typing_extensions import override

from .. import checks
from ..distributed import world_size
from ..kernels import Cosine, Kernel, RadialSeries
from ..linalg import unit_rows
from ..modules import Data, labelled_rows, rows
from ..storage import Savable
from .prototypes import class_directions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["KernelClassifier"]

_SCALE_FREE = (Cosine, RadialSeries)  # these put their rows on the sphere themselves


class KernelClassifier(Savable, nn.Module):
    r"""Logits :math:`k(w_j, z) / T` of an embedding z and class weights :math:`w_j`, all on the unit sphere.

    .. math:: \text{logit}_j = \log \sum_{p} \exp \frac{k(w_{jp}, z)}{T} + b_j

    With one prototype a class and no bias this is jayasumana2021, Eq. 3-5; prototypes p and bias are ours.
    It takes ``(..., in_features)`` and gives ``(..., num_classes)`` as ``nn.Linear`` does; half precision, autocast
    too, is computed and returned in float32, and a float64 embedding in float64.

    Args:
        in_features: d, the width of the embedding.
        num_classes: L.
        kernel: k; None for :class:`mercer.kernels.RadialSeries`, learned with the weights. Any kernel goes in.
        prototypes: Weight vectors of each class.
        bias: Learn b.
        temperature: T. The paper's are 0.1 for ``RadialSeries(positivity="sigmoid")`` and 0.005 for ``"softmax"``.
        device: Where the parameters are made, as for ``nn.Linear``.
        dtype: Their dtype.

    >>> head = KernelClassifier(16, 3, prototypes=2, bias=True)
    >>> head(torch.randn(5, 16)).shape
    torch.Size([5, 3])
    """

    __call__: Callable[..., Tensor]

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        kernel: Kernel | None = None,
        *,
        prototypes: int = 1,
        bias: bool = False,
        temperature: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = "KernelClassifier"
        self.in_features = checks.integer(where, "in_features", in_features, 1)
        self.num_classes = checks.integer(where, "num_classes", num_classes, 1)
        self.prototypes = checks.integer(where, "prototypes", prototypes, 1)
        self.temperature = checks.positive(where, "temperature", temperature)
        if kernel is not None and not isinstance(kernel, Kernel):
            fix = "Use mercer.kernels.FunctionKernel for a function of your own."
            raise TypeError(
                checks.sentence(where, "kernel must be a mercer.kernels.Kernel", type(kernel).__name__, fix)
            )
        self.kernel = RadialSeries() if kernel is None else kernel
        for part in self.kernel.modules():
            if isinstance(part, RadialSeries) and part.basis == "gegenbauer":
                part.fill_dim(in_features)
        self.weight = nn.Parameter(torch.empty(num_classes * prototypes, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(num_classes, device=device, dtype=dtype)) if bias else None
        self.kernel.to(device=device, dtype=dtype)
        self.reset_parameters()

    @property
    def out_features(self) -> int:
        """L, under the name that ``nn.Linear`` gives it."""
        return self.num_classes

    def reset_parameters(self) -> None:
        """Weights uniform on the sphere, bias 0."""
        with torch.no_grad():
            self.weight.normal_()
            self.weight.copy_(unit_rows(self.weight))
            if self.bias is not None:
                self.bias.zero_()

    def forward(self, z: Tensor) -> Tensor:  # (..., d) -> (..., c)
        """Logits of embeddings."""
        if isinstance(z, fx.Proxy):  # a symbol has no sizes to check
            return self._logits(z, self.weight)
        z, weight = self._checked(z)
        if not z.is_meta and torch.is_autocast_enabled(z.device.type):
            with torch.autocast(z.device.type, enabled=False):
                return self._logits(z, weight)
        return self._logits(z, weight)

    def _logits(self, z: Tensor, weight: Tensor) -> Tensor:
        scores = self._gram(z.reshape(-1, self.in_features), weight)
        if self.temperature != 1.0:
            scores = scores / self.temperature
        if self.prototypes > 1:
            scores = scores.unflatten(1, (self.num_classes, self.prototypes)).logsumexp(2)
        if self.bias is not None:
            scores = scores + self.bias.to(scores.dtype)
        if not isinstance(z, fx.Proxy) and z.ndim == 2:  # sharded training refuses needless views
            return scores
        return scores.reshape(z.shape[:-1] + (self.num_classes,))  # noqa: RUF005 - a symbol cannot be unpacked

    def _gram(self, z: Tensor, weight: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        rows = (z, weight) if isinstance(self.kernel, _SCALE_FREE) else (unit_rows(z), unit_rows(weight))
        if isinstance(z, fx.Proxy) and not isinstance(self.kernel, RadialSeries):  # others ask for sizes: kept whole
            traced: Tensor = z.tracer.create_proxy("call_module", z.tracer.path_of_module(self.kernel), rows, {})
            return traced
        # The call checks its arguments, by sizes that an exported graph must not know.
        unchecked = isinstance(self.kernel, _SCALE_FREE) or torch.compiler.is_compiling()
        return self.kernel.gram(*rows) if unchecked else self.kernel(*rows)

    def init_from(
        self,
        embeddings: Data,
        labels: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> KernelClassifier:
        """Put the weights where the classes are: the mean direction, or k-means directions for several prototypes.

        A class that has no row keeps its weights, and a warning says so. Of several ranks each gives its own rows.

        Args:
            embeddings: ``(n, in_features)``, or a loader of pairs (embedding, label).
            labels: ``(n,)`` whole numbers in 0..num_classes - 1; None where ``embeddings`` is a loader.
            generator: Draws the starts of k-means.
        """
        where = "KernelClassifier.init_from"
        if labels is None:
            z, labels = labelled_rows(where, embeddings)
        else:
            z = rows(where, embeddings, "embeddings")
        several = world_size() > 1  # of several ranks some may have no row
        checks.squarable(
            where, "embeddings", checks.matrix(where, "embeddings", z, columns=self.in_features), empty=several
        )
        checks.same_device(where, "embeddings", z.device, "the head", self.weight.device)
        labels = _checked_labels(where, labels, z, self.num_classes)
        directions, missing = class_directions(z, labels, self.num_classes, self.prototypes, generator)
        if missing:
            shown = ", ".join(map(str, missing[:5]))
            checks.warn(where, f"{len(missing)} classes have no row ({shown}); their weights stay as they were.")
        seen = torch.ones(self.num_classes, dtype=torch.bool, device=z.device)
        seen[missing] = False
        chosen = seen.repeat_interleave(self.prototypes)
        with torch.no_grad():
            self.weight[chosen] = directions.to(self.weight.dtype)[chosen]
        return self

    def param_groups(
        self, *, weight_decay: float = 1e-4, kernel_decay: float | None = None, kernel_lr: float | None = None
    ) -> list[dict[str, Any]]:
        """Groups for an optimizer: weights, kernel (decayed like the rest, jayasumana2021, Appendix A), bias (never).

        Args:
            weight_decay: Of the weights.
            kernel_decay: Of the kernel's parameters, the paper's regulariser on alpha; None for ``weight_decay``.
            kernel_lr: Of the kernel's parameters; None for the optimizer's own.
        """
        decay = weight_decay if kernel_decay is None else kernel_decay
        kernel: dict[str, Any] = {"params": list(self.kernel.parameters()), "weight_decay": decay}
        if kernel_lr is not None:
            kernel["lr"] = checks.positive("KernelClassifier.param_groups", "kernel_lr", kernel_lr)
        groups = [{"params": [self.weight], "weight_decay": weight_decay}, kernel]
        if self.bias is not None:
            groups.append({"params": [self.bias], "weight_decay": 0.0})
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
            f"bias={self.bias is not None}, temperature={self.temperature:g}"
        )

    def _checked(self, z: Tensor) -> tuple[Tensor, Tensor]:
        if z.ndim < 1 or z.shape[-1] != self.in_features or z.is_complex():
            need = f"z must be real, of shape (..., {self.in_features})"
            raise ValueError(checks.sentence("KernelClassifier", need, f"{z.dtype} of {tuple(z.shape)}"))
        checks.same_device("KernelClassifier", "z", z.device, "the head", self.weight.device)
        z, weight = checks.floating(z), checks.floating(self.weight)
        common = torch.promote_types(z.dtype, weight.dtype)
        return z.to(common), weight.to(common)


def _checked_labels(where: str, labels: Any, z: Tensor, classes: int) -> Tensor:
    labels = torch.as_tensor(labels).to(z.device)
    if labels.ndim != 1:
        fix = "Use labels.ravel() for a column."
        raise ValueError(checks.sentence(where, "labels must have shape (n,)", tuple(labels.shape), fix))
    checks.same_length(where, "embeddings", z, "labels", labels)
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(checks.sentence(where, "labels must be whole numbers", labels.dtype))
    whole: Tensor = labels.long()
    least, most = (int(whole.min()), int(whole.max())) if len(whole) else (0, 0)
    if least < 0 or most >= classes:
        raise ValueError(checks.sentence(where, f"labels must be in 0..{classes - 1}", f"{least}..{most}"))
    return whole
