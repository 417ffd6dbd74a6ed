"""The feature-map base class: what ``fit`` learns is in buffers, and travels in the ``state_dict``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader
from typing_extensions import override

from .. import checks, distributed
from ..kernels import Kernel, check_indices
from ..modules import Readable, StoredRows, open_rows, rows
from ..storage import Savable

_ERROR_ROWS = 1000


class FeatureMap(Savable, nn.Module):
    r"""An explicit map with :math:`k(x, y) \approx \langle \varphi(x), \varphi(y) \rangle`.

    A variant writes :meth:`learn` and :meth:`features`, and names in ``FITTED`` the buffers that ``learn`` fills. They
    exist from the start, empty, so that a fitted ``state_dict`` loads into a fresh map of the same arguments.
    """

    FITTED: ClassVar[tuple[str, ...]] = ()
    _captures = True
    __call__: Callable[..., Tensor]

    def __init__(self, kernel: Kernel, generator: torch.Generator | None = None) -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            fix = "Use FunctionKernel(f) for a function of (x, y)."
            need = "kernel must be a kernel of mercer.kernels"
            raise TypeError(checks.sentence(type(self).__name__, need, type(kernel).__name__, fix))
        self.exact = kernel
        self.generator = generator
        for name in self.FITTED:
            self.register_buffer(name, torch.empty(0))

    def learn(self, x: Readable) -> None:  # (n, d)
        """Fill the buffers from checked rows, this rank's; what a variant must write."""
        raise NotImplementedError(f"{type(self).__name__} must define learn(x)")

    def features(self, x: Tensor) -> Tensor:  # (n, d) -> (n, m)
        """The features of checked rows; what a variant must write."""
        raise NotImplementedError(f"{type(self).__name__} must define features(x)")

    def fit(self, x: Readable | DataLoader[Any] | ArrayLike, y: object = None) -> Self:
        """Learn the map from rows, from a loader of them, or from a file (`mercer.modules.open_rows`), block by block.

        Half precision is learned in float32. With several ranks each passes its own rows: see `mercer.distributed`.
        ``y`` is ignored; scikit-learn's pipelines pass it.
        """
        with torch.no_grad(), self._agreed():
            self.learn(self._rows(x))
        return self

    @overload
    def fit_transform(self, x: Tensor | DataLoader[Any], y: object = None) -> Tensor: ...

    @overload
    def fit_transform(self, x: ArrayLike, y: object = None) -> NDArray[Any]: ...

    def fit_transform(self, x: Any, y: object = None) -> Tensor | NDArray[Any]:  # (n, d) -> (n, m)
        """``fit(x)`` and the features of ``x``, in one pass where the map has one; an array for an array."""
        with torch.no_grad(), self._agreed():
            features = self._learn_features(self._rows(x)[:])
        return features if isinstance(x, Tensor | DataLoader) else features.cpu().numpy()

    def transform(self, x: ArrayLike) -> NDArray[Any]:  # (n, d) -> (n, m)
        """The features of an array as an array: the map as a step of a scikit-learn pipeline."""
        self._check_fitted()
        data = rows(type(self).__name__, np.asarray(x))
        with torch.no_grad():
            features = self(data.to(getattr(self, self.FITTED[0]).device))
        return features.cpu().numpy()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, for scikit-learn's ``clone`` and pipelines."""
        return dict(self.get_arguments())

    def set_params(self, **params: Any) -> Self:
        """Construct an unfitted map with some arguments changed."""
        known = self.get_params()
        for name in params:
            checks.choice(type(self).__name__, "a parameter", name, known)
        fresh = type(self).from_arguments({**known, **params})
        self.__dict__ = fresh.__dict__
        return self

    def __sklearn_is_fitted__(self) -> bool:
        """Whether ``fit`` was called."""
        return bool(getattr(self, self.FITTED[0]).numel())

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks of a step: a transformer that needs no targets."""
        from sklearn.utils import Tags, TargetTags, TransformerTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False), transformer_tags=TransformerTags())

    def _learn_features(self, data: Tensor) -> Tensor:
        self.learn(data)
        return self.features(data)

    def forward(self, x: Tensor) -> Tensor:  # (n, d) -> (n, m)
        """The features of rows."""
        self._check_fitted()
        return self.features(self._checked(x))

    def kernel(self, x: Tensor, y: Tensor | None = None) -> Tensor:  # (n, d), (m, d) -> (n, m)
        """The approximate Gram matrix, ``f(x) @ f(y).T``."""
        left = self(x)
        return left @ (left if y is None else self(y)).mT

    def error(self, x: Tensor, *, generator: torch.Generator | None = None) -> float:
        r"""Relative error :math:`\|K - \Phi \Phi^\top\|_F / \|K\|_F` on at most 1,000 rows drawn from ``x``."""
        self._check_fitted()
        with torch.no_grad():
            x = self._checked(x)
            if len(x) > _ERROR_ROWS:
                x = x[torch.randperm(len(x), generator=generator, device=x.device)[:_ERROR_ROWS]]
            gram = self.exact(x)
            norm = torch.linalg.matrix_norm(gram)
            return float(torch.linalg.matrix_norm(gram - self.kernel(x)) / norm) if norm > 0 else 0.0

    @contextmanager
    def _agreed(self) -> Iterator[None]:
        """All ranks draw the same numbers."""
        own, self.generator = self.generator, distributed.shared_generator(self.generator)
        try:
            yield
        finally:
            self.generator = own

    def _rows(self, x: Any) -> Readable:
        data = self._prepared(x)
        if distributed.global_slice(len(data))[1] == 0:
            raise ValueError(checks.sentence(type(self).__name__, "x must have at least one row", tuple(data.shape)))
        return data

    def _prepared(self, x: Any) -> Readable:
        where = type(self).__name__
        if isinstance(x, StoredRows | np.memmap):
            stored = x if isinstance(x, StoredRows) else open_rows(x)
            self.exact.prepare("x", stored[:0])
            return stored
        if isinstance(x, Tensor) and not x.is_floating_point() and not x.is_complex():
            data = self.exact.prepare("x", x)  # indices of a precomputed Gram matrix stay whole numbers
        else:
            data = self.exact.prepare("x", rows(where, x))
        if data.is_floating_point():
            return checks.squarable(where, "x", data.detach(), empty=True)
        return check_indices(where, self.exact, data)

    def _checked(self, x: Tensor) -> Tensor:
        x = self.exact.prepare("x", x)
        width = self._width()
        if width is not None and x.shape[1] != width:
            need = f"x has {x.shape[1]} features, expecting {width}"
            raise ValueError(checks.sentence(type(self).__name__, need, tuple(x.shape)))
        own: Tensor = getattr(self, self.FITTED[0])
        checks.same_device(type(self).__name__, "x", x.device, "the map", own.device)
        return x

    def _width(self) -> int | None:
        """The number of columns seen in ``fit``; None where rows have none."""
        return None

    def _check_fitted(self) -> None:
        if not getattr(self, self.FITTED[0]).numel():
            from sklearn.exceptions import NotFittedError

            where = type(self).__name__
            raise NotFittedError(checks.sentence(where, "must be fitted first", "no fit", "Call fit(x)."))

    @override
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for name in self.FITTED:
            incoming, own = state_dict.get(prefix + name), getattr(self, name)
            if incoming is not None and incoming.shape != own.shape:
                setattr(self, name, torch.empty_like(incoming, device=own.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
