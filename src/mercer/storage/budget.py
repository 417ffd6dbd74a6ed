"""How much a constructor may allocate: what a file asks for is counted before it is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from typing_extensions import override

_FACTORIES = {
    *(torch.empty, torch.zeros, torch.ones, torch.full, torch.eye, torch.arange, torch.linspace, torch.logspace),
    *(torch.rand, torch.randn, torch.randperm, torch.randint),
}
_LIKE = {Tensor.new_empty, Tensor.new_zeros, Tensor.new_ones, Tensor.new_full}
_UNKNOWN_TO_META = ("generator", "out", "pin_memory")


class AllocationBudget(TorchFunctionMode):
    """While entered, torch's factories together make at most ``limit`` bytes.

    Each call is first made on the meta device, which has shapes and no memory.

    Raises:
        MemoryError: A call would go beyond; nothing was allocated for it.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.spent = limit, 0

    @override
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in _FACTORIES or func in _LIKE:
            plain = {key: value for key, value in named.items() if key not in _UNKNOWN_TO_META}
            given = (args[0].to("meta"), *args[1:]) if func in _LIKE else args
            shape = func(*given, **{**plain, "device": "meta"})
            self.spent += shape.numel() * shape.element_size()
            if self.spent > self.limit:
                raise MemoryError(f"{self.spent / 2**30:.2f} GiB, more than {self.limit / 2**30:.2f}")
        return func(*args, **named)
