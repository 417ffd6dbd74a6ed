"""The feature-map base class: what ``fit`` learns is in buffers, and travels in the ``state_dict``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self, overload

import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.metadata_routing import UNUSED
from torch import Tensor, nn
from torch.utils.data import DataLoader
from typing_extensions import override

from .. import checks
from ..kernels import Kernel
from ..kernels.user_kernels import read_rows
from ..rows.agreement import share_generator
from ..rows.rows import Rows
from ..rows.stored import Readable
from ..storage.savable import Savable

_ERROR_ROWS = 1000
_COLUMNS = ("n_features_in_", "feature_names_in_")


class FeatureMap(
    Savable,
    nn.Module,
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    r"""An explicit map with :math:`k(x, y) \approx \langle \varphi(x), \varphi(y) \rangle`.

    A variant writes :meth:`learn` and :meth:`features`, and names in ``FITTED`` the buffers that ``learn`` fills. They
    exist from the start, empty, so that a fitted ``state_dict`` loads into a fresh map of the same arguments.

    It is a transformer of scikit-learn, too: ``fit`` and ``transform`` of a frame learn and check the columns' number
    and names; ``set_output`` and ``get_feature_names_out`` name the features. As a ``generator`` it takes a torch
    generator, which every fit draws on from; a seed, with which every fit draws the same; or None, torch's own.
    """

    FITTED: ClassVar[tuple[str, ...]] = ()
    _captures = True
    m: int
    # The rows, which scikit-learn calls X, are no metadata.
    __metadata_request__fit = __metadata_request__transform = {"x": UNUSED}  # noqa: RUF012
    __call__: Callable[..., Tensor]

    def __init__(self, kernel: Kernel, generator: torch.Generator | int | None = None) -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            fix = "Use FunctionKernel(f) for a function of (x, y)."
            need = "kernel must be a kernel of mercer.kernels"
            raise TypeError(checks.sentence(type(self).__name__, need, type(kernel).__name__, fix))
        self.exact = kernel
        self.seed: int | None = None
        self.generator: torch.Generator | None = None
        if isinstance(generator, torch.Generator):
            self.generator = generator
        elif generator is not None:
            self.seed = checks.integer(type(self).__name__, "a generator that is a seed", generator, 0)
        for name in self.FITTED:
            self.register_buffer(name, torch.empty(0))

    def learn(self, x: Readable) -> None:  # (n, d)
        """Fill the buffers from checked rows, this rank's; what a variant must write."""
        raise NotImplementedError(f"{type(self).__name__} must define learn(x)")

    def features(self, x: Tensor) -> Tensor:  # (n, d) -> (n, m)
        """The features of checked rows; what a variant must write."""
        raise NotImplementedError(f"{type(self).__name__} must define features(x)")

    def fit(self, x: Readable | DataLoader[Any] | ArrayLike, y: object = None) -> Self:
        """Learn the map from rows, from a loader of them, or from a file (`mercer.rows.open_rows`), block by block.

        Half precision is learned in float32. With several ranks each passes its own rows: see `mercer.distributed`.
        ``y`` is ignored; scikit-learn's pipelines pass it.
        """
        with torch.no_grad(), self._share_draws():
            self.learn(self._rows(x))
        return self

    @overload
    def fit_transform(self, x: Tensor | DataLoader[Any], y: object = None) -> Tensor: ...

    @overload
    def fit_transform(self, x: ArrayLike, y: object = None) -> NDArray[Any]: ...

    def fit_transform(self, x: Any, y: object = None) -> Tensor | NDArray[Any]:  # (n, d) -> (n, m)
        """``fit(x)`` and the features of ``x``, in one pass where the map has one; an array for an array."""
        with torch.no_grad(), self._share_draws():
            features = self._learn_features(self._rows(x)[:])
        if isinstance(x, Tensor | DataLoader):
            return features
        return features.cpu().numpy()

    @overload
    def transform(self, x: Tensor) -> Tensor: ...

    @overload
    def transform(self, x: ArrayLike) -> NDArray[Any]: ...

    def transform(self, x: Any) -> Tensor | NDArray[Any]:  # (n, d) -> (n, m)
        """The features of an array or a frame as an array, without gradients: a step of a scikit-learn pipeline."""
        self._check_fitted()
        with torch.no_grad():
            if isinstance(x, Tensor):
                return self(x)
            data = read_rows(self, self.exact, x, reset=False)[:]
            return self(data.to(getattr(self, self.FITTED[0]).device)).cpu().numpy()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments and, where ``deep``, those of the kernel, as ``kernel__gamma``."""
        params = dict(self.get_arguments())
        if deep and isinstance(params.get("kernel"), Kernel):
            params.update({f"kernel__{name}": value for name, value in params["kernel"].get_params().items()})
        return params

    def set_params(self, **params: Any) -> Self:
        """Construct an unfitted map with some arguments changed."""
        # Arguments of the map, then those of its kernel, which is copied: the old map keeps its own.
        arguments = self.get_params(deep=False)
        for name in params:
            checks.choice(type(self).__name__, "a parameter", name.partition("__")[0], arguments)
        arguments.update({name: value for name, value in params.items() if "__" not in name})
        inner = {name.removeprefix("kernel__"): value for name, value in params.items() if "__" in name}
        if inner:
            arguments["kernel"] = copy.deepcopy(arguments["kernel"]).set_params(**inner)
        fresh = type(self).from_arguments(arguments)
        self.__dict__ = fresh.__dict__
        return self

    @override
    def get_state(self) -> dict[str, Any]:
        """The buffers, and the columns' number and names."""
        columns = {name: vars(self)[name] for name in _COLUMNS if name in vars(self)}
        return {**super().get_state(), **columns}

    @override
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`get_state` gave."""
        for name in _COLUMNS:
            if name in state:
                setattr(self, name, state[name])
        super().set_state({name: value for name, value in state.items() if name not in _COLUMNS})

    def __sklearn_is_fitted__(self) -> bool:
        """Whether ``fit`` was called."""
        return bool(getattr(self, self.FITTED[0]).numel())

    @property
    def _n_features_out(self) -> int:
        return self.m

    def _learn_features(self, data: Tensor) -> Tensor:
        self.learn(data)
        return self.features(data)

    def forward(self, x: Tensor) -> Tensor:  # (n, d) -> (n, m)
        """The features of rows."""
        self._check_fitted()
        return self.features(self._check_rows(x))

    def kernel(self, x: Tensor, y: Tensor | None = None) -> Tensor:  # (n, d), (m, d) -> (n, m)
        """The approximate Gram matrix, ``f(x) @ f(y).T``."""
        rows = columns = self(x)
        if y is not None:
            columns = self(y)
        return rows @ columns.mT

    def error(self, x: Tensor, *, generator: torch.Generator | None = None) -> float:
        r"""Relative error :math:`\|K - \Phi \Phi^\top\|_F / \|K\|_F` on at most 1,000 rows drawn from ``x``."""
        self._check_fitted()
        with torch.no_grad():
            x = self._check_rows(x)
            if len(x) > _ERROR_ROWS:
                x = x[torch.randperm(len(x), generator=generator, device=x.device)[:_ERROR_ROWS]]
            gram = self.exact(x)
            norm = float(torch.linalg.matrix_norm(gram))
            if norm == 0:
                return 0.0
            return float(torch.linalg.matrix_norm(gram - self.kernel(x))) / norm

    @contextmanager
    def _share_draws(self) -> Iterator[None]:
        """All ranks draw the same numbers; from a seed, every fit does."""
        before = source = self.generator
        if self.seed is not None:
            source = torch.Generator().manual_seed(self.seed)
        self.generator = share_generator(source)
        try:
            yield
        finally:
            self.generator = before

    def _rows(self, x: Any) -> Readable:
        data = read_rows(self, self.exact, x, reset=True)
        if Rows(data).n == 0:
            raise ValueError(checks.sentence(type(self).__name__, "x must have at least one row", tuple(data.shape)))
        return data

    def _check_rows(self, x: Tensor) -> Tensor:
        x = self.exact.prepare("x", x)
        width = self._width()
        if width is not None and x.shape[1] != width:
            need = f"x has {x.shape[1]} features, expecting {width}"
            raise ValueError(checks.sentence(type(self).__name__, need, tuple(x.shape)))
        learned: Tensor = getattr(self, self.FITTED[0])
        checks.same_device(type(self).__name__, "x", x.device, "the map", learned.device)
        return x

    def _width(self) -> int | None:
        """The number of columns seen in ``fit``; None where rows have none."""
        return None

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            where = type(self).__name__
            raise NotFittedError(checks.sentence(where, "must be fitted first", "no fit", "Call fit(x)."))

    @override
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for name in self.FITTED:
            incoming, current = state_dict.get(prefix + name), getattr(self, name)
            if incoming is not None and incoming.shape != current.shape:
                setattr(self, name, torch.empty_like(incoming, device=current.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
