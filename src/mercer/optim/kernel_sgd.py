"""Kernel SGD, the paper's algorithm to the letter."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT
from typing_extensions import override

from .. import checks, distributed
from ..kernels import RBF
from ..signals.layers import last_linear, unwrap
from .base import Closure, descend
from .layers import ListeningOptimizer, read_input

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

Gram = Callable[[Tensor], Tensor]  # (m, d) -> (m, m)


class KernelSGD(ListeningOptimizer):
    r"""Kernel SGD, :math:`W' = W - \eta \nabla_W J\, H^{-1}` (chen2022, Eq. 8 and Algorithm 1).

    H is the kernel matrix of the mini-batch's raw inputs, ``(m, m)``; its inverse (the pseudo-inverse where H is
    singular in float64) is padded or truncated to the columns of W. All other parameters take SGD steps.

    H is indexed by instances and multiplies columns of features: another order of the batch gives another step, and
    with ``pad="zeros"`` the columns beyond m never move. That is the paper's method; for the same idea where the
    dimensions fit use :class:`FunctionSpaceSGD`.

    Args:
        params: Parameters, named parameters or groups.
        lr: :math:`\eta`.
        model: Where the inputs are seen, plain or wrapped in DDP (H is then of all ranks' rows).
        kernel: k, any kernel of the library, or a callable ``(m, d) -> (m, m)`` such as :class:`RandomPSD`; None means
            ``RBF(0.01)``.
        layers: Which weights Eq. 8 moves: the last linear layer's, or all of linear, convolutional and recurrent
            layers (a convolution's weight is the matrix of its patches).
        pad: What the inverse is padded with where m is below the columns of W: zeros as in the paper, or the
            identity, which leaves those columns to SGD.
        cutoff: None inverts H, as the paper does. A number always takes the pseudo-inverse in which eigenvalues below
            ``cutoff`` times the largest count as 0. This bounds the step at 1 / cutoff times that in the leading
            direction; for a small gamma the cutoff, not gamma, decides.
        cache: Keep the inverse of every batch, for loaders with fixed batches; takes n m numbers (`cached_bytes`).
        inputs: What the kernel sees of the model's first input, ``(m, d)``; None flattens it. Texts need one.
        foreach: Update parameters by torch's fused loops.
        maximize: Ascend.

    Use it to compare with the paper; :class:`FunctionSpaceSGD` is what to train with.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> optimizer = KernelSGD(model.parameters(), 0.1, model=model)
    >>> model(torch.randn(16, 4)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.close()
    """

    remembers = False

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        model: nn.Module,
        kernel: Gram | None = None,
        layers: str = "last",
        pad: str = "zeros",
        cutoff: float | None = None,
        cache: bool = False,
        inputs: Callable[[Tensor], Tensor] | None = None,
        foreach: bool = True,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "foreach": foreach}
        super().__init__(params, options, maximize=maximize)
        if kernel is None:
            kernel = RBF(0.01)
        self.kernel: Gram = kernel
        self.pad = checks.choice("KernelSGD", "pad", pad, ("zeros", "identity"))
        self.cutoff = None if cutoff is None else checks.non_negative("KernelSGD", "cutoff", cutoff)
        self.inputs = inputs
        self._inverses: dict[bytes, Tensor] | None = {} if cache else None
        self._weights = self._choose_weights(model, checks.choice("KernelSGD", "layers", layers, ("last", "all")))
        self.listen_to(model, {"": (unwrap(model), read_input)})

    @property
    def cached_bytes(self) -> int:
        """Memory of the cached inverses: n m numbers once every batch has been met."""
        return sum(inverse.numel() * inverse.element_size() for inverse in (self._inverses or {}).values())

    @override
    def update(self, live: list[Tensor], closure: Closure | None) -> None:
        # The mini-batch: the rows of all passes since the last step, of all ranks, as its gradient is.
        passes = self._recorder.inputs[""]
        if not passes:
            fix = "Call model(x), the model given here, and loss.backward() before step()."
            raise RuntimeError(checks.sentence("KernelSGD", "step needs the inputs of a pass", "none", fix))
        parts = []
        for inputs in passes:
            if self.inputs is None:
                rows = inputs.flatten(1)
            else:
                rows = self.inputs(inputs)
            rows = checks.floating(checks.matrix("KernelSGD", "inputs", rows))
            parts.append(checks.finite("KernelSGD", "the model's input", rows))
        x = distributed.gather_rows(torch.cat(parts))

        # The inverse of its kernel matrix. A batch that comes again is known by its bytes.
        if self._inverses is None:
            inverse = kernel_inverse(self.kernel, x, self.cutoff)
        else:
            key = hashlib.blake2b(x.cpu().contiguous().numpy().tobytes(), digest_size=16).digest()
            if key not in self._inverses:
                self._inverses[key] = kernel_inverse(self.kernel, x, self.cutoff).to(live[0].dtype)
            inverse = self._inverses[key]

        # The chosen weights move by the gradient times the inverse (Eq. 8), all others by SGD.
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            directions = []
            for p in parameters:
                gradient = p.grad
                assert gradient is not None
                if any(p is weight for weight in self._weights):
                    columns = gradient.reshape(len(gradient), -1)  # (d_r, d_c)
                    factor = fit_to_width(inverse, columns.shape[1], self.pad)
                    gradient = (columns.to(factor.dtype) @ factor).to(p.dtype).reshape(p.shape)
                directions.append(gradient)
            descend(parameters, directions, group)
        self._recorder.clear()

    def _choose_weights(self, model: nn.Module, layers: str) -> list[Tensor]:
        """The weights that Eq. 8 moves."""
        if layers == "last":
            return [last_linear(model)[1].weight]
        trained = {id(p) for p in self.parameters if p.requires_grad}
        weights = []
        for module in unwrap(model).modules():
            if isinstance(module, (nn.Linear, *_CONVOLUTIONS)):
                weights.append(module.weight)
            elif isinstance(module, nn.RNNBase):
                weights.extend(p for p in module.parameters() if p.ndim > 1)
        return [p for p in weights if id(p) in trained]


class RandomPSD:
    r"""A random positive semi-definite matrix :math:`R R^\top / m` in the kernel's place, of unit mean diagonal.

    The paper's control (chen2022, Section 4.4), at the scale of an RBF matrix. One matrix for each batch size.

    Args:
        generator: Randomness of R; None is a fixed seed.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator or torch.Generator().manual_seed(0)
        self._matrices: dict[int, Tensor] = {}  # by size

    def __call__(self, x: Tensor) -> Tensor:  # (m, d) -> (m, m)
        """The matrix for a batch of as many rows."""
        m = len(x)
        if m not in self._matrices:
            r = torch.randn(m, m, generator=self.generator, dtype=torch.float64)
            gram = r @ r.mT
            self._matrices[m] = gram / gram.diagonal().mean()
        return self._matrices[m].to(x)


def kernel_inverse(kernel: Gram, x: Tensor, cutoff: float | None = None) -> Tensor:  # (m, d) -> (m, m)
    r"""Inverse :math:`H^{-1}` of the kernel matrix of the rows of x, in float64.

    If H is singular (condition number above :math:`1 / (m \varepsilon)`), this is the pseudo-inverse :math:`H^{+}`:
    eigenvalues of at most :math:`m \varepsilon` times the largest count as 0.

    Args:
        kernel: k, or any callable ``(m, d) -> (m, m)``.
        x: The mini-batch.
        cutoff: A number in place of :math:`m \varepsilon` takes the pseudo-inverse whatever the condition.
    """
    gram = kernel(x.double()).detach()
    if not bool(gram.isfinite().all()):
        fix = "Scale the inputs, or lower gamma or the degree."
        raise FloatingPointError(
            checks.sentence("KernelSGD", "the kernel matrix must be finite", "NaN or infinity", fix)
        )

    # The inverse, where the condition number (here in the 1-norm) says that it is one.
    rounding = len(gram) * torch.finfo(gram.dtype).eps
    inverse: Tensor
    if cutoff is None:
        inverse, failed = torch.linalg.inv_ex(gram)
        condition = float(torch.linalg.matrix_norm(gram, 1) * torch.linalg.matrix_norm(inverse, 1))
        if not bool(failed) and condition * rounding < 1:
            return inverse
        cutoff = rounding
    inverse = torch.linalg.pinv(gram, rtol=cutoff, hermitian=True)
    return inverse


def fit_to_width(inverse: Tensor, columns: int, pad: str = "zeros") -> Tensor:  # (m, m) -> (d_c, d_c)
    """The inverse at the width of a weight: padded, or without its last rows and columns (chen2022, Section 3.1).

    Args:
        inverse: Inverse of the kernel matrix.
        columns: :math:`d_c`, the columns of the weight.
        pad: ``"zeros"`` or ``"identity"``.
    """
    m = len(inverse)
    if m >= columns:
        return inverse[:columns, :columns]
    padded = inverse.new_zeros(columns, columns)
    if pad == "identity":
        padded.fill_diagonal_(1.0)
    padded[:m, :m] = inverse
    return padded


def state_bytes(optimizer: Any) -> int:
    """Memory of an optimizer's tensors without the parameters: its state and, for Kernel SGD, cached inverses."""

    def count_bytes(value: Any) -> int:
        if isinstance(value, Tensor):
            return value.numel() * value.element_size()
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            return sum(map(count_bytes, value))
        return 0

    return int(getattr(optimizer, "cached_bytes", 0)) + count_bytes(list(optimizer.state.values()))
