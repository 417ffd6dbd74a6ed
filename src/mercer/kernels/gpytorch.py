"""gpytorch's kernels in, Mercer's kernels out; gpytorch is imported at the first call."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..linalg.blocks import apply_to_both
from .base import Kernel

if TYPE_CHECKING:
    import gpytorch

_DIAG_ROWS = 64  # rows of a small Gram matrix whose diagonal is taken


def from_gpytorch(kernel: gpytorch.kernels.Kernel) -> Kernel:
    """A kernel of gpytorch as one of Mercer: the same values, and the same hyper-parameters, not copies of them.

    Use it like any kernel: in a head, ``Nystrom``, ``analyze``, a sum or a product. It has no spectral density, so
    ``RandomFourier`` refuses it. ``mercer.save`` does not write it, because it is not part of Mercer: keep its
    ``state_dict``.

    Args:
        kernel: One function of two rows: no batch of kernels, no multi-task kernel.
    """
    base = _gpytorch("from_gpytorch").kernels.Kernel
    if not isinstance(kernel, base):
        need = "kernel must be a gpytorch.kernels.Kernel"
        raise TypeError(checks.sentence("from_gpytorch", need, type(kernel).__name__))
    if isinstance(kernel, _outgoing_class()):
        inner: Kernel = kernel.kernel
        return inner
    if len(kernel.batch_shape):
        fix = "Bring in one kernel for each member."
        raise ValueError(
            checks.sentence("from_gpytorch", "kernel must be no batch", f"batch {tuple(kernel.batch_shape)}", fix)
        )
    return _Incoming(kernel)


def to_gpytorch(kernel: Kernel) -> gpytorch.kernels.Kernel:
    """A kernel of Mercer as one of gpytorch, for its GP models; learnable hyper-parameters train with the model's.

    Args:
        kernel: Any kernel whose rows are ``(n, d)``. Batches of inputs ``(..., n, d)`` are taken one after another.
    """
    outgoing = _outgoing_class()
    if not isinstance(kernel, Kernel):
        raise TypeError(checks.sentence("to_gpytorch", "kernel must be a mercer.kernels.Kernel", type(kernel).__name__))
    if isinstance(kernel, _Incoming):  # from gpytorch: give it back
        return kernel.kernel
    return outgoing(kernel)


class _Incoming(Kernel):
    """A kernel of gpytorch, made by :func:`from_gpytorch`."""

    def __init__(self, kernel: gpytorch.kernels.Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    @property
    @override
    def is_stationary(self) -> bool:
        return bool(self.kernel.is_stationary)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        outputs = self.kernel.num_outputs_per_input(x, y)
        if outputs != 1:
            got = f"{outputs} of {type(self.kernel).__name__}"
            raise ValueError(checks.sentence("from_gpytorch", "kernel must give one value for two rows", got))
        gram: Tensor = self.kernel(x, y).to_dense()
        return gram

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        diag: Tensor = self.kernel(x, diag=True)
        return diag


@functools.cache
def _outgoing_class() -> Any:
    base: Any = _gpytorch("to_gpytorch").kernels.Kernel

    class MercerKernel(base):  # type: ignore[misc]
        """A kernel of Mercer for gpytorch, made by :func:`to_gpytorch`."""

        has_lengthscale = False

        def __init__(self, kernel: Kernel) -> None:
            super().__init__()
            self.kernel = kernel

        def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
            """The Gram matrix ``(..., n, m)``, or with ``diag`` the kernel of each row of x1 with that of x2."""
            if params.get("last_dim_is_batch", False):
                fix = "Sum or multiply kernels of single features instead."
                need = "the features of a row must stay together"
                raise ValueError(checks.sentence("to_gpytorch", need, "last_dim_is_batch", fix))
            # Batches of inputs one after another; a set of rows with itself stays one, for its exact diagonal.
            batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
            if not batch:
                return self._values(x1, x2, diag)
            first, second = apply_to_both(lambda x: x.expand(*batch, *x.shape[-2:]).flatten(0, -3), x1, x2)
            parts = []
            for a, b in zip(first, second, strict=True):
                if second is first:
                    b = a
                parts.append(self._values(a, b, diag))
            return torch.stack(parts).reshape(*batch, *parts[0].shape)

        @property
        def is_stationary(self) -> bool:
            """Whether the kernel depends on the difference of two rows alone."""
            return self.kernel.is_stationary

        def __reduce__(self) -> tuple[Any, ...]:
            return _blank, (), vars(self).copy()  # the class is made when gpytorch is there: it has no address

        def _values(self, x: Tensor, y: Tensor, diag: bool) -> Tensor:  # (n, d), (m, d) -> (n, m) or (n,)
            if not diag and y is x:
                return self.kernel(x)
            if not diag:
                return self.kernel(x, y)
            if y is x:
                return self.kernel.diag(x)
            # Rows of x with those of y: the diagonals of small Gram matrices.
            pairs = zip(x.split(_DIAG_ROWS), y.split(_DIAG_ROWS), strict=True)
            return torch.cat([self.kernel(a, b).diagonal() for a, b in pairs])

    return MercerKernel


def _blank() -> Any:
    """A kernel of gpytorch without state, for ``pickle`` to fill."""
    outgoing = _outgoing_class()
    return outgoing.__new__(outgoing)


def _gpytorch(where: str) -> Any:
    try:
        return importlib.import_module("gpytorch")
    except ImportError as error:
        fix = "Run pip install 'mercer[peers]'."
        raise ImportError(checks.sentence(where, "gpytorch must be installed", "no such package", fix)) from error
