"""Objects that can be saved: their constructor's arguments and their state."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self

from torch import Tensor, nn

_ARGUMENTS = "_constructor_arguments"
_signatures: dict[type, inspect.Signature] = {}


class Savable:
    """Mix in to make a class of Mercer work with ``mercer.save`` and ``mercer.load``.

    An object is saved as the arguments it was constructed with and its state, and loaded as
    ``cls(*arguments)`` followed by the state. Both are found without any code in the class:

    - arguments: as they came to the constructor; for a scikit-learn estimator, ``get_params``; for a
      dataclass, its fields. An argument that the object also holds, under the same name, as another savable
      is taken from the object, so that ``head.kernel = RBF()`` is saved.
    - state: ``state_dict`` of a module; else every attribute whose name ends in ``_``.

    Override :meth:`get_arguments`, :meth:`get_state` and :meth:`set_state` where that is not the whole truth.
    Values may be JSON's, tensors, numpy arrays, torch generators, dtypes and devices, other savables, and
    lists, tuples and dictionaries of these. A module that grows its buffers in ``fit`` takes them back in
    ``_load_from_state_dict``, which torch also calls where it is a part of another module.
    """

    _mixed = False
    _captures = False  # True where get_params reads the captured arguments

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # object's __new__ refuses arguments; that of a user's mixin, such as huggingface_hub's, lives of them.
        cls._mixed = super().__new__ is not object.__new__

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: D102
        if cls._mixed:
            self = super().__new__(cls, *args, **kwargs)
        else:
            self = super().__new__(cls)
        # Note the arguments as they came, before the constructor changes anything.
        if cls._captures or not hasattr(cls, "get_params"):  # an estimator's attributes are its parameters
            try:
                bound = _signature(cls).bind(None, *args, **kwargs)
            except TypeError:  # a copy, which brings its own; or a wrong call, which __init__ will report
                return self
            bound.apply_defaults()  # a default that changes later must not change what was saved
            arguments = dict(list(bound.arguments.items())[1:])
            object.__setattr__(self, _ARGUMENTS, arguments)  # modules refuse attributes before their __init__
        return self

    def get_arguments(self) -> dict[str, Any]:
        """The constructor's arguments by name, as they are now."""
        if dataclasses.is_dataclass(self):
            return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
        if hasattr(self, "get_params") and not self._captures:
            return dict(self.get_params(deep=False))
        arguments: dict[str, Any] = dict(vars(self).get(_ARGUMENTS, {}))
        attributes = {**vars(self), **vars(self).get("_modules", {})}
        for name in arguments:
            if isinstance(attributes.get(name), Savable):  # it may have been replaced since
                arguments[name] = attributes[name]
        return arguments

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """An object constructed with these arguments, ``*args`` and ``**kwargs`` unpacked."""
        signature = _signature(cls)
        first = next(iter(signature.parameters))
        unknown = sorted(arguments.keys() - signature.parameters.keys())
        if unknown:
            raise TypeError(f"unexpected {', '.join(unknown)}")
        bound = inspect.BoundArguments(signature, {first: None, **arguments})
        return cls(*bound.args[1:], **bound.kwargs)

    def get_state(self) -> dict[str, Any]:
        """The learned or fitted values, by name."""
        if isinstance(self, nn.Module):
            return dict(self.state_dict())
        return {k: v for k, v in vars(self).items() if k.endswith("_") and not k.startswith("_")}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`get_state` gave."""
        if isinstance(self, nn.Module):
            # load_state_dict copies into the new tensors' dtype: float64 would come back rounded to float32.
            for name, tensor in {**dict(self.named_parameters()), **dict(self.named_buffers())}.items():
                if name in state and tensor.dtype != state[name].dtype:
                    tensor.data = tensor.data.to(state[name].dtype)
            self.load_state_dict(state)
            return
        for name, value in state.items():
            object.__setattr__(self, name, value)


class SavableModule(Savable, nn.Module):
    """A savable module whose call gives a tensor."""

    __call__: Callable[..., Tensor]

    def hold(self, **tensors: Tensor) -> None:
        """Register each tensor as a buffer of that name."""
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def _signature(cls: type) -> inspect.Signature:
    if cls not in _signatures:  # reading it takes longer than most constructors
        _signatures[cls] = inspect.signature(cls.__init__)  # type: ignore[misc]
    return _signatures[cls]
