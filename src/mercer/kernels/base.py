"""The kernel base class (two methods to write, the rest derived), hyper-parameters above 0, shared scalar products."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .. import checks
from ..linalg.blocks import apply_to_both, block_rows, blockwise_matmul, slices
from ..linalg.torch_internals import is_transforming, may_be_differentiated, records_graph
from ..rows.agreement import visit_ranks
from ..rows.loading import as_tensor
from ..storage.savable import Savable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_ASK_BYTES = 2**30  # smaller Gram matrices are allocated without looking at the free memory
_DIAG_ROWS = 64
_RESOLUTION = 8 * 2.0**-52  # what is closer than this to 1 (to 0, beside the norms) is rounding


class Description(NamedTuple):
    """A kernel in words.

    Attributes:
        name: What people call it, ``"Gaussian"``.
        meaning: What a machine with it assumes, ``"near rows have near answers, smoothly"``; "" where nothing is known.
        call: How to construct it, ``"RBF(gamma=0.5)"``.
    """

    name: str
    meaning: str
    call: str


class Positive(nn.Module):
    """A hyper-parameter above 0: a constant, or learned as its logarithm.

    A learned number is a parameter of shape ``(1,)``, because FSDP takes none of shape ``()``; files that hold the
    latter still load.

    Args:
        where: The kernel, for the error sentence.
        name: The argument, for the error sentence.
        value: A number, or, ``per_feature``, a tensor ``(d,)``.
        learnable: Make the logarithm an ``nn.Parameter``.
        per_feature: Whether one number for each feature is allowed.
    """

    log: nn.Parameter
    constant: Tensor
    __call__: Callable[..., Tensor]

    def __init__(
        self,
        where: str,
        name: str,
        value: float | Tensor | Sequence[float],
        learnable: bool,
        *,
        per_feature: bool = False,
    ) -> None:
        super().__init__()
        self.where, self.name = where, name
        self.number: float | None = None
        if isinstance(value, (list, tuple, np.ndarray)):
            value = torch.as_tensor(np.asarray(value, dtype=float))
        self.is_vector = isinstance(value, Tensor) and (value.numel() != 1 or (value.ndim == 1 and per_feature))
        if isinstance(value, Tensor) and self.is_vector:
            # One number for each feature.
            if not per_feature or value.ndim > 1:
                need, fix = f"{name} must be one number", "Scale the rows themselves."
                if per_feature:
                    need, fix = f"{need}, or a vector with one for each feature", ""
                raise ValueError(checks.sentence(where, need, f"shape {tuple(value.shape)}", fix))
            if not len(value) or not bool((value > 0).all()) or not bool(torch.isfinite(value).all()):
                raise ValueError(checks.sentence(where, f"{name} must be positive", value.tolist()))
            start = checks.floating(value.detach().clone())
        else:
            # One number; that of a tensor keeps its dtype, so that float64 is not rounded.
            number: Any = value
            dtype = None
            if isinstance(value, Tensor):
                number, dtype = value.item(), checks.floating(value).dtype
            self.number = checks.positive(where, name, number)
            start = torch.tensor([self.number], dtype=dtype)
        if learnable:
            self.number = None
            self.log = nn.Parameter(start.log())
        elif self.number is None:
            self.register_buffer("constant", start)

    def forward(self, like: Tensor) -> Tensor:
        """The value, ``()`` or ``(d,)``, in the dtype and on the device of ``like``."""
        if self.number is not None:
            return like.new_full((), self.number)
        if self.learnable:
            value = self.log.exp()
        else:
            value = self.constant
        if not self.is_vector:
            value = value.reshape(())
        return value.to(like.dtype)

    @property
    def learnable(self) -> bool:
        """Whether it is a parameter."""
        return "log" in self._parameters

    def times(self, factor: float) -> float | Tensor:
        """The value times ``factor``, within the positive numbers of float32."""
        info = torch.finfo(torch.float32)
        value = (factor * self(torch.zeros((), dtype=torch.float64)).detach()).clamp(info.tiny, info.max)
        if value.ndim:
            return value
        return value.item()

    def scale(self, by: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply both sets of rows by ``by`` ``(d,)``; rows that are one tensor stay one."""
        if len(by) != x.shape[1]:
            need = f"x must have a feature for each of the {len(by)} values of {self.name}"
            raise ValueError(checks.sentence(self.where, need, tuple(x.shape)))
        return apply_to_both(lambda rows: rows * by, x, y)

    def extra_repr(self) -> str:
        """The value, shown in ``repr(kernel)``."""
        if self.number is not None:
            return f"{self.number:g}"
        value = self(torch.zeros((), dtype=torch.float64)).detach()
        if value.ndim:
            return f"{len(value)} values"
        return f"{value.item():g}, learnable"

    def __float__(self) -> float:
        return float(self(torch.zeros((), dtype=torch.float64)).detach())


class Products:
    """One tile of scalar products in float64, with what several kernels derive from it.

    Args:
        x: Rows, ``(a, d)``.
        y: Columns, ``(b, d)``.
        squared: Squared norms of the rows and of the columns.
    """

    def __init__(self, x: Tensor, y: Tensor, squared: tuple[Tensor, Tensor]) -> None:
        self.dot = x @ y.mT  # (a, b)
        self.rows, self.columns = squared[0][:, None], squared[1][None]

    @functools.cached_property
    def cosines(self) -> Tensor:
        """Cosines, with values within rounding of +-1 set to +-1; 0 for a row of zeros."""
        by_row, by_column = (torch.where(s > 0, s, math.inf).rsqrt() for s in (self.rows, self.columns))
        return (self.dot * (by_row * (1 + _RESOLUTION))).mul_(by_column).clamp_(-1.0, 1.0)

    @functools.cached_property
    def distances(self) -> Tensor:
        """Squared distances, with values within rounding of 0 set to 0."""
        norms = self.rows + self.columns
        return torch.addcmul(norms, self.dot, self.dot.new_tensor(-2.0)).sub_(_RESOLUTION * norms).clamp_min_(0)


class Kernel(Savable, nn.Module):
    r"""A positive semi-definite function :math:`k(x, y)` of two rows.

    A variant writes :meth:`gram` and, where there is a cheaper way, :meth:`gram_diag`. Everything a user calls is
    derived from them, and checks its input once.

    The dtype of the answer is the data's: integers are cast to the default dtype, half precision is computed and
    returned in float32, and float32 hyper-parameters never lower float64 data.
    """

    __call__: Callable[..., Tensor]
    _captures = True
    NAME: ClassVar[str] = ""  # in words; "" for the name of the class
    MEANING: ClassVar[str] = ""
    RECOMPUTED: ClassVar[bool] = True  # in the backward pass of `matmul`; not by kernels that use torch.func themselves

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A class with its own formula does not follow from products in the way of the class that it extends.
        if "gram" in vars(cls) and "gram_from_products" not in vars(cls):
            cls.follows_from_products = False  # type: ignore[assignment, method-assign]

    def __init__(self) -> None:  # nn.Module's takes *args and **kwargs, which get_params would show
        super().__init__()

    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        """The Gram matrix of checked rows; what a variant must write."""
        raise NotImplementedError(f"{type(self).__name__} must define gram(x, y)")

    def gram_diag(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        """The diagonal of ``gram(x, x)``; written by variants that have it cheaper than by small blocks."""
        return torch.cat([self.gram(rows, rows).diagonal() for rows in x.split(_DIAG_ROWS)])

    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:  # (m, d) -> (m, d)
        r"""Draws from the spectral density of :math:`k(x - y) / k(0)` (Bochner), made from standard normal rows."""
        raise TypeError(
            checks.sentence(
                type(self).__name__,
                "random Fourier features need a stationary kernel with a known spectral density",
                type(self).__name__,
                "Use RBF, Laplacian, Matern, RationalQuadratic, their sums, products and multiples, or Nystrom.",
            )
        )

    def rescaled(self, factor: float) -> Kernel | None:
        r"""The kernel :math:`k(x / f, y / f)`, of a lengthscale f times as long; None where k has no lengthscale."""
        return None

    def describe(self) -> Description:
        """The kernel's name, its meaning and its call."""
        # The call in full: inner kernels as calls, other modules by the name of their class.
        arguments = []
        for name, value in self.get_params(deep=False).items():
            if isinstance(value, float):
                arguments.append(f"{name}={value:.4g}")
            elif isinstance(value, Tensor):
                arguments.append(f"{name}=[{', '.join(f'{number:.4g}' for number in value.flatten().tolist())}]")
            elif isinstance(value, Kernel):
                arguments.append(f"{name}={value.describe().call}")
            elif isinstance(value, nn.Module):
                arguments.append(f"{name}={type(value).__name__}")
            elif value is not None and name != "learnable":
                arguments.append(f"{name}={value!r}")
        call = f"{type(self).__name__}({', '.join(arguments)})"
        return Description(self.NAME or type(self).__name__, self.MEANING, call)

    @property
    def follows_from_products(self) -> bool:
        """Whether :meth:`gram_from_products` is written: k depends on scalar products and norms of the rows alone."""
        return False

    def gram_from_products(self, products: Products) -> Tensor:  # -> (a, b)
        """The Gram matrix out of scalar products that other kernels read too; it must not overwrite them."""
        raise NotImplementedError(f"{type(self).__name__} does not follow from scalar products")

    @property
    def is_stationary(self) -> bool:
        """Whether k(x, y) is known to depend on x - y alone."""
        return False

    @property
    def is_homogeneous(self) -> bool:
        """Whether k(a x, b y) is known to be (a b)^p k(x, y) for all a, b > 0: normalized, it has no lengths."""
        return False

    def prepare(self, name: str, x: Tensor) -> Tensor:
        """Check one argument's shape, dtype and device; network kernels accept ``(n, *shape)``."""
        x = checks.floating(checks.matrix(type(self).__name__, name, x))
        if x.shape[1] == 0:
            raise ValueError(
                checks.sentence(type(self).__name__, f"{name} must have at least one feature", tuple(x.shape))
            )
        self._same_device(name, x)
        return x

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:  # (n, d), (m, d) -> (n, m)
        """The Gram matrix between rows of ``x`` and of ``y`` (of ``x`` again where ``y`` is None)."""
        x, y = self._pair(x, y)
        # Refuse a large matrix that the free memory cannot hold, rather than be killed by the system.
        if not records_graph() and x.device.type == "cpu":
            needed = len(x) * len(y) * x.element_size()
            if needed > _ASK_BYTES:
                checks.memory(
                    type(self).__name__,
                    f"the {len(x)} x {len(y)} Gram matrix",
                    needed,
                    "Use kernel.matmul, which never holds it, or features.Nystrom.",
                )
        return self.gram(x, y)

    def diag(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        """The diagonal of ``self(x)`` in O(n)."""
        return self.gram_diag(self.prepare("x", x))

    def matmul(
        self, x: Tensor, y: Tensor | None, v: Tensor, *, block: int | None = None, over_ranks: bool = False
    ) -> Tensor:
        """``K(x, y) @ v`` without ever holding K: (n, d), (m, d), (m,) or (m, c) -> (n,) or (n, c).

        Args:
            x: Rows of K.
            y: Columns of K; None for ``x`` again.
            v: What K multiplies.
            block: Rows of K held at a time; by default as many as fit 64 MiB. Under autograd a block is computed
                again in the backward pass, so that the bound holds there too (not under ``torch.func``, which has no
                such recomputation).
            over_ranks: ``y`` and ``v`` (and ``x``) are this rank's rows: the answer is that for the ``y`` and ``v`` of
                all ranks, a sum over their shards, without gradients to those of others.
        """
        if over_ranks:
            # The sum over ranks of this rank's rows with the columns of each.
            columns = x
            if y is not None:
                columns = y
            products = [self.matmul(x, part, w, block=block) for part, w in visit_ranks(columns, v)]
            return sum(products[1:], products[0])
        where = f"{type(self).__name__}.matmul"
        x, y = self._pair(x, y)
        if v.ndim not in (1, 2) or len(v) != len(y):
            raise ValueError(checks.sentence(where, f"v must have shape ({len(y)},) or ({len(y)}, c)", tuple(v.shape)))
        checks.real(where, "v", v)
        if not may_be_differentiated(x, y, v, *self.parameters()):
            return blockwise_matmul(self.gram, x, y, v, block=block)

        # With a derivative: each block is a checkpoint, computed again in the backward pass.
        def product(part: Tensor) -> Tensor:
            gram = self.gram(part, y)
            return gram @ v.to(gram.dtype)

        if records_graph():  # blocks would fix the number of rows in an exported graph
            return product(x)
        if block is None:
            block = block_rows(3 * max(1, len(y)) * v.element_size())
        parts = [x[part] for part in slices(len(x), checks.integer(where, "block", block, 1))] or [x]
        if is_transforming() or not self.RECOMPUTED:  # torch.func has no checkpoints
            return torch.cat([product(part) for part in parts])
        return torch.cat([checkpoint(product, part, use_reentrant=False) for part in parts])

    def numpy(self, X: ArrayLike, Y: ArrayLike | None = None) -> NDArray[np.floating]:
        """The Gram matrix of numpy arrays, for scikit-learn: ``SVC(kernel=k.numpy)``."""
        with torch.no_grad():
            where = f"{type(self).__name__}.numpy"
            y = None
            if Y is not None:
                y = as_tensor(where, "Y", Y)
            gram: NDArray[np.floating] = self(as_tensor(where, "X", X), y).numpy()
            return gram

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments as they are now, so that scikit-learn's searches reach ``kernel__gamma``.

        Args:
            deep: Also those of kernels among them, as ``left__gamma``.
        """
        params: dict[str, Any] = {}
        for name, value in self.get_arguments().items():
            # A learned hyper-parameter counts as it is now.
            hyper = getattr(self, name, None)
            if isinstance(hyper, Positive) and hyper.number is None:
                value = hyper.times(1.0)
            params[name] = value
            if deep and isinstance(value, Kernel):
                params.update({f"{name}__{inner}": item for inner, item in value.get_params().items()})
        return params

    def set_params(self, **params: Any) -> Self:
        """Change some arguments, ``gamma=2.0`` or ``left__gamma=2.0``: the kernel is constructed again, in place."""
        # Sort them into arguments of this kernel, and those of kernels among its arguments.
        arguments = self.get_params(deep=False)
        nested: dict[str, dict[str, Any]] = {}
        for name, value in params.items():
            first, _, inner = name.partition("__")
            checks.choice(type(self).__name__, "a parameter", first, arguments)
            if inner:
                nested.setdefault(first, {})[inner] = value
            else:
                arguments[first] = value

        # Copies of the inner kernels take theirs; then this kernel becomes a fresh one of these arguments.
        for name, inner_params in nested.items():
            arguments[name] = copy.deepcopy(arguments[name]).set_params(**inner_params)
        self.__dict__ = type(self).from_arguments(arguments).__dict__
        return self

    def __sklearn_clone__(self) -> Self:
        """A copy, learned values and all."""
        return copy.deepcopy(self)

    def normalized(self) -> Kernel:
        r""":math:`k(x, y) / \sqrt{k(x, x) k(y, y)}`, the cosine in feature space."""
        from .algebra import Normalized

        return Normalized(self)

    def __add__(self, other: object) -> Kernel:
        from .algebra import Constant, Sum

        if isinstance(other, Kernel):
            return Sum(self, other)
        if not isinstance(other, (int, float)):
            return NotImplemented
        if other == 0:  # the start of ``sum([k1, k2])``
            return self
        return Sum(self, Constant(other))

    __radd__ = __add__

    def __mul__(self, other: object) -> Kernel:
        from .algebra import Product, Scaled

        if isinstance(other, Kernel):
            return Product(self, other)
        if isinstance(other, (int, float)):
            return Scaled(self, float(other))
        return NotImplemented

    __rmul__ = __mul__

    def __pow__(self, exponent: int) -> Kernel:
        from .algebra import Power

        return Power(self, exponent)

    def _pair(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        x = self.prepare("x", x)
        if y is None:
            return x, x
        y = self.prepare("y", y)
        where = type(self).__name__
        if x.shape[1:] != y.shape[1:]:
            need = "x and y must have rows of one shape"
            raise ValueError(checks.sentence(where, need, f"{tuple(x.shape)} and {tuple(y.shape)}"))
        checks.same_device(where, "x", x.device, "y", y.device)
        common = torch.promote_types(x.dtype, y.dtype)
        return x.to(common), y.to(common)

    def _same_device(self, name: str, x: Tensor) -> None:
        tensor = next(itertools.chain(self.parameters(), self.buffers()), None)
        if tensor is not None:
            checks.same_device(type(self).__name__, name, x.device, "the kernel", tensor.device)
