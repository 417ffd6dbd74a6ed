"""The Jacobian of a network's outputs over the weights that count: all of them, or those of the last layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from typing_extensions import override

from ..checks import sentence
from ..kernels import EmpiricalNTK
from ..kernels.tangents import Tangents
from ..linalg.blocks import block_rows, slices
from ..rows.stored import Readable
from ..signals.attention import plain_attention
from ..signals.capture import capture
from ..signals.layers import as_logits, output_rows
from .layer_signals import LayerSignals
from .network import flat_logits, one_thread_at_a_time, own_network, zero_row

_BLOCK_BYTES = 256 * 2**20  # of Jacobians that are formed at a time


class Jacobian(ABC):
    r"""Products with :math:`J(x) = \partial_\theta g(x, \theta)`, ``(n, c, p)``, which is never formed.

    Args:
        network: A copy of one's own (:func:`~mercer.bayes.network.own_network`); parameters that require grad count.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.theta = {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}
        self.size = sum(p.numel() for p in self.theta.values())

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype, in which everything runs."""
        return next(iter(self.theta.values())).dtype

    def outputs(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c)
        """The network's outputs."""
        return flat_logits(self.network(x))

    def outputs_of(self, x: Readable, batch_size: int) -> Tensor:  # (n, ...) -> (n, c)
        """Outputs of many rows, some at a time; a rank without rows gets the shape alone."""
        if not len(x):
            return self.outputs(zero_row(x))[:0]
        return torch.cat([self.outputs(x[part]) for part in slices(len(x), batch_size)])

    @abstractmethod
    def along(self, x: Tensor, directions: Tensor) -> Tensor:  # (n, ...), (p, k) -> (n, c, k)
        """J(x) times directions."""

    @abstractmethod
    def pull(self, x: Tensor, u: Tensor) -> Tensor:  # (n, ...), (n, c, k) -> (p, k)
        """J(x)^T times u, summed over the rows."""

    @abstractmethod
    def joint_kernel(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, n, c, c)
        """J(x) J(x')^T of all rows with each other."""

    @abstractmethod
    def parts(
        self, x: Tensor, q: Tensor, *, diagonal: bool, gradients: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:  # -> (n, c), (n, c, k), (n, c) or (n, c, c)
        """Outputs, J(x) times directions, and J(x) J(x)^T of each row."""


class NetworkJacobian(Jacobian):
    """The Jacobian of all weights: forward and backward passes of many rows at once."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)
        self._cached: tuple[torch.dtype, Tangents] | None = None

    @override
    def along(self, x: Tensor, directions: Tensor) -> Tensor:
        with one_thread_at_a_time():
            return self._tangents(x).along(x, directions)

    @override
    def pull(self, x: Tensor, u: Tensor) -> Tensor:
        with one_thread_at_a_time():
            return self._tangents(x).pull_back(x, u)

    @override
    def parts(self, x: Tensor, q: Tensor, *, diagonal: bool, gradients: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        kernel = LayerSignals(self.network).own_kernel(x, diagonal=diagonal, gradients=gradients)
        return self.outputs(x), self.along(x, q), kernel

    @override
    def joint_kernel(self, x: Tensor) -> Tensor:
        try:
            with one_thread_at_a_time():
                return EmpiricalNTK(own_network(self.network, self.theta), outputs="full")(x)
        except RuntimeError:  # vmap refuses: the check at fit did not ask for rows side by side, to save its memory
            return RowwiseJacobian(self.network).joint_kernel(x)

    def _tangents(self, x: Tensor) -> Tangents:
        if self._cached is None or self._cached[0] != x.dtype:  # a copy of the network: once, not for each batch
            self._cached = (x.dtype, Tangents(self.network, x[:0], flat_logits))
        return self._cached[1]


class FormedJacobian(Jacobian):
    """J formed for some rows at a time. A variant writes :meth:`blocks`."""

    @abstractmethod
    def blocks(self, x: Tensor, gradients: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """Outputs ``(b, c)`` and Jacobians ``(b, c, p)`` of some rows after the other."""

    @override
    def along(self, x: Tensor, directions: Tensor) -> Tensor:
        graph = torch.is_grad_enabled()
        return torch.cat([j @ directions for _, j in self.blocks(x, graph)])

    @override
    def pull(self, x: Tensor, u: Tensor) -> Tensor:
        total = torch.zeros(self.size, u.shape[2], dtype=u.dtype, device=u.device)
        start = 0
        for f, j in self.blocks(x):
            total += j.flatten(0, 1).mT @ u[start : start + len(f)].flatten(0, 1)
            start += len(f)
        return total

    @override
    def joint_kernel(self, x: Tensor) -> Tensor:
        graph = torch.is_grad_enabled()
        # Keep a stretch of Jacobians of at most 256 MiB, and form those of all rows once for each stretch.
        c = self.outputs(x[:1]).shape[1]
        width = block_rows(c * self.size * self.dtype.itemsize, budget=_BLOCK_BYTES)
        stretches = []
        for part in slices(len(x), width):
            right = torch.cat([j for _, j in self.blocks(x[part], graph)])
            rows = [torch.einsum("ncp,mdp->nmcd", j, right) for _, j in self.blocks(x, graph)]
            stretches.append(torch.cat(rows))
        return torch.cat(stretches, 1)

    @override
    def parts(self, x: Tensor, q: Tensor, *, diagonal: bool, gradients: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        columns = []
        for f, j in self.blocks(x, gradients):
            if diagonal:
                kernel = j.square().sum(2)
            else:
                kernel = j @ j.mT
            columns.append((f, j @ q, kernel))
        f, psi, kernel = (torch.cat(column) for column in zip(*columns, strict=True))
        return f, psi, kernel


class RowwiseJacobian(FormedJacobian):
    """The Jacobian of any network: each row alone, one plain backward pass for each output.

    It asks nothing of the network but that autograd can differentiate it: layers may see rows in any order, masks may
    decide about the way, recurrent cells and TorchScript need no rule of ``torch.func``. It costs as many floating
    point operations as signals of layers do, without the speed of batches, and holds c p numbers.
    """

    @override
    def blocks(self, x: Tensor, gradients: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        weights = [p for p in self.network.parameters() if p.requires_grad]
        for row in x.split(1):
            with torch.enable_grad(), plain_attention():
                f = output_rows("RowwiseJacobian", as_logits(self.network(row)), 1)
                # A sum of no numbers: it ties the outputs to the weights and adds 0.
                f = f + weights[0].reshape(-1)[:0].sum()  # outputs that no weight moves have derivatives of 0
                pulled = [
                    torch.autograd.grad(f_c, weights, retain_graph=True, create_graph=gradients, materialize_grads=True)
                    for f_c in f[0]
                ]
            j = torch.stack([torch.cat([part.reshape(-1) for part in gradient]) for gradient in pulled])
            if not gradients:
                f = f.detach()
            yield f, j[None]


class HeadJacobian(FormedJacobian):
    r"""Of the last module h with :math:`g(x) = h(z(x))`: one forward pass, then derivatives of h alone.

    Args:
        network: Of one's own; the head's parameters that require grad, and no others, do so in it.
        name: The head.
    """

    def __init__(self, network: nn.Module, name: str) -> None:
        super().__init__(network)
        self.name = name
        self.head = network.get_submodule(name)
        names = {id(p): name for name, p in self.head.named_parameters()}
        self.names = [names[id(p)] for p in network.parameters() if p.requires_grad]  # in the order of theta

    @override
    def blocks(self, x: Tensor, gradients: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        f, z = output_and_head_input(self.network, self.name, x)
        weights = dict(zip(self.names, self.theta.values(), strict=True))

        def outputs(theta: dict[str, Tensor], row: Tensor) -> Tensor:
            return as_logits(functional_call(self.head, theta, (row[None],))).reshape(-1)

        rows = block_rows(2 * f.shape[1] * self.size * self.dtype.itemsize, budget=_BLOCK_BYTES)
        for part in slices(len(x), rows):
            with one_thread_at_a_time():
                jacobians = vmap(jacrev(outputs), in_dims=(None, 0))(weights, z[part])
            j = torch.cat([jacobians[name].reshape(*f[part].shape, -1) for name in self.names], 2)
            yield f[part], j


class LastLayerJacobian(Jacobian):
    r"""Of the last linear layer, :math:`J(x) = I_c \otimes (\phi(x), 1)`: one forward pass and matrix products."""

    def __init__(self, network: nn.Module, name: str) -> None:
        super().__init__(network)
        self.name = name
        bias = network.get_submodule(name).bias
        self.bias = isinstance(bias, Tensor) and bias.requires_grad

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (n, ...) -> (n, c), (n, d + 1)
        """Outputs, and what goes into the last layer, a 1 appended for its bias."""
        f, phi = output_and_head_input(self.network, self.name, x)
        if self.bias:
            phi = torch.cat((phi, torch.ones_like(phi[:, :1])), 1)
        return f, phi

    @override
    def along(self, x: Tensor, directions: Tensor) -> Tensor:
        return self.along_features(self.features(x)[1], directions)

    def along_features(self, phi: Tensor, directions: Tensor) -> Tensor:  # (n, d + 1), (p, k) -> (n, c, k)
        """J times directions of rows whose features are known."""
        return torch.einsum("nd,cdk->nck", phi, self._by_output(directions, phi.shape[1]))

    def covariance_blocks(self, directions: Tensor, weights: Tensor) -> Tensor:  # (p, k), (k,) -> (c, d + 1, d + 1)
        """Each output's own block of the weights' covariance ``directions diag(weights) directions^T``."""
        width = self.theta[f"{self.name}.weight".lstrip(".")].shape[1] + int(self.bias)
        root = self._by_output(directions.double() * weights.double().sqrt(), width)  # (c, d + 1, k)
        return (root @ root.mT).to(directions.dtype)

    def variances(self, x: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:  # (n, ...) -> (n, c), (n, c)
        """Outputs and their variances, from the blocks alone."""
        f, phi = self.features(x)
        return f, ((phi @ blocks) * phi).sum(2).mT

    def curvature(self, phi: Tensor, hessians: Tensor) -> Tensor:  # (n, d + 1), (n, c, c) -> (p, p)
        r""":math:`\sum_i \Lambda_i \otimes \phi_i \phi_i^\top`, in the order of the weights."""
        c, width = hessians.shape[1], phi.shape[1]
        # Sum_i Lambda_i (x) phi_i phi_i^T, block by block; the matrix is symmetric.
        total = phi.new_zeros(c, width, c, width)
        for i in range(c):
            for j in range(i + 1):
                total[i, :, j] = (phi * hessians[:, i, j, None]).mT @ phi
                total[j, :, i] = total[i, :, j]
        # The network lists all weights first, then all biases; the Kronecker product has them output by output.
        order = torch.arange(c * width, device=phi.device).reshape(c, width)
        if self.bias:
            order = torch.cat((order[:, :-1].flatten(), order[:, -1]))
        order = order.flatten()
        return total.reshape(c * width, c * width)[order][:, order]

    @override
    def pull(self, x: Tensor, u: Tensor) -> Tensor:
        phi = self.features(x)[1]
        product = torch.einsum("nd,nck->cdk", phi, u)  # (c, d + 1, k)
        c, width, k = product.shape
        if not self.bias:
            return product.reshape(c * width, k)
        return torch.cat((product[:, :-1].reshape(c * (width - 1), k), product[:, -1]))

    def _by_output(self, directions: Tensor, width: int) -> Tensor:  # (p, k) -> (c, d + 1, k)
        """Each output's own rows of the directions: its weights, then its bias."""
        k = directions.shape[1]
        if not self.bias:
            return directions.reshape(-1, width, k)
        c = len(directions) // width
        # The weights of all outputs come first, then their biases.
        weight, bias = directions[: c * (width - 1)], directions[c * (width - 1) :]
        return torch.cat((weight.reshape(c, width - 1, k), bias[:, None]), 1)

    @override
    def joint_kernel(self, x: Tensor) -> Tensor:
        f, phi = self.features(x)
        eye = torch.eye(f.shape[1], dtype=f.dtype, device=f.device)
        return (phi @ phi.mT)[:, :, None, None] * eye

    @override
    def parts(self, x: Tensor, q: Tensor, *, diagonal: bool, gradients: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        f, phi = self.features(x)
        kernel = phi.square().sum(1)[:, None].expand(f.shape)
        if not diagonal:
            kernel = torch.diag_embed(kernel)
        return f, self.along_features(phi, q), kernel


def output_and_head_input(network: nn.Module, name: str, x: Tensor) -> tuple[Tensor, Tensor]:  # -> (n, c), (n, d)
    """Outputs, and the input of the last module, whose outputs they must be."""
    if not name:
        return flat_logits(network(x)), x
    with capture(network, [name], detach=False) as signals:
        f = flat_logits(network(x))
    z, output = signals[name].input, signals[name].output
    if z.ndim != 2 or output.shape != f.shape or not torch.allclose(output, f, equal_nan=True):
        need = f"the outputs must be those of {name}, as at fit"
        raise ValueError(sentence("LinearizedLaplace", need, f"outputs of shape {tuple(output.shape)}"))
    return f, z


def find_head(network: nn.Module, x: Tensor) -> tuple[str, bool]:
    """The last module that has a weight, and whether it takes ``(n, d)`` and the network's outputs are its outputs.

    A module in which a linear layer or a convolution runs is no head but a network. Where something comes behind the
    head (one token of many is taken, an activation), derivatives have to go through the whole network.

    Args:
        network: A network of one's own.
        x: A few rows.

    Raises:
        ValueError: No module has a weight that counts.
    """
    calls: list[tuple[str, Any, Any]] = []  # in the order in which calls end: a module after those inside it
    handles = [
        module.register_forward_hook(lambda _m, i, out, name=name: calls.append((name, i, out)))
        for name, module in network.named_modules()
    ]
    try:
        f = flat_logits(network(x))
    finally:
        for handle in handles:
            handle.remove()

    # The last module with a weight of its own in which no layer runs; one that gives the network's outputs wins.
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, torch.jit.ScriptModule)
    names = [name for name, _, _ in calls]
    ran = [name for name in names if isinstance(network.get_submodule(name), layers)]
    head, direct = None, False
    for name, inputs, output in calls:
        module = network.get_submodule(name)
        # Not a network of layers, nor a script that hides some; with a weight of its own, plain or parametrized.
        prefix = f"{name}.".lstrip(".")
        holds_layers = any(layer != name and layer.startswith(prefix) for layer in ran)
        hides_layers = isinstance(module, torch.jit.ScriptModule) and any(True for _ in module.children())
        weights = list(module.parameters(recurse=False))
        weights += list(getattr(module, "parametrizations", nn.Module()).parameters())  # weight_norm and its kind
        if holds_layers or hides_layers or not any(p.ndim > 1 for p in weights):
            continue
        rows = len(inputs) == 1 and isinstance(inputs[0], Tensor) and inputs[0].shape[:-1] == (len(x),)
        same = isinstance(output, Tensor) and output.shape == f.shape and torch.allclose(output, f, equal_nan=True)
        # It ends the network if it sees one row a line, gives the outputs themselves, and runs once.
        ends = rows and same and names.count(name) == 1
        if ends or not direct:
            head, direct = name, ends
    if head is None or not any(p.requires_grad for p in network.get_submodule(head).parameters()):
        need = "the weight of the last layer that runs must require grad for parameters='last'"
        got = "no layer with a weight"
        if head is not None:
            got = f"{head or type(network).__name__} frozen"
        raise ValueError(sentence("LinearizedLaplace", need, got, "Unfreeze it, or use parameters='all'."))
    return head, direct


class _OneOutput(nn.Module):
    """A network with one output, a weighted sum of its c."""

    def __init__(self, network: nn.Module, weights: Tensor) -> None:
        super().__init__()
        self.network, self.weights = network, weights

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, 1)
        return flat_logits(self.network(x)) @ self.weights


def one_output(network: nn.Module, row: Tensor) -> nn.Module:
    """The network with one output, a random mixture of its c: as good for a check, and c times cheaper."""
    with torch.no_grad():
        f = flat_logits(network(row))
    weights = torch.randn(f.shape[1], 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return _OneOutput(network, weights.to(f))


def two_rows(x: Tensor) -> Tensor:
    """Rows for a check: the first two, or the only one twice, as layers must tell rows apart."""
    if len(x) == 1:
        return torch.cat((x, x))
    return x[:2]


def check_rows_apart(where: str, network: nn.Module, rows: Tensor) -> None:
    """Refuse a network in which a row's outputs depend on the other rows, or on chance: it has no Jacobian of a row.

    One whose outputs autograd does not trace back to its weights has none, either.
    """
    with torch.enable_grad():
        together = flat_logits(network(rows))
    if not together.requires_grad:
        need = "autograd must trace the outputs to parameters that require grad"
        raise ValueError(sentence(where, need, "outputs without a gradient", "Look for torch.no_grad or detach."))
    with torch.no_grad():
        alone = torch.cat([output_rows(where, as_logits(network(row)), 1) for row in rows.split(1)])
    if not near(together.detach(), alone):
        need = "a row must give the same outputs alone and beside other rows, every time"
        fix = "Let forward keep the rows apart, its first dimension, and draw no random numbers in eval mode."
        raise ValueError(sentence(where, need, "outputs that differ", fix))


def near(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding in a deep network, of the largest number."""
    if a.shape != b.shape:
        return False
    error, size = float((a - b).abs().max()), float(b.abs().max())
    return not error > 10 * torch.finfo(b.dtype).eps ** 0.5 * size  # NaN is near: others report it


def is_right(fast: Jacobian, rows: Tensor) -> bool:
    """Whether a fast Jacobian equals plain autograd's on these rows, in all its products."""
    network, where = fast.network, rows.device
    if any(isinstance(module, torch.jit.ScriptModule) for module in network.modules()):
        return False  # torch.func swaps no weights in there

    # J^T u of both rows by plain autograd.
    weights = [p for p in network.parameters() if p.requires_grad]
    with torch.enable_grad():
        f = flat_logits(network(rows)) + weights[0].reshape(-1)[:0].sum()
        draw = torch.Generator().manual_seed(1)
        u = torch.randn(*f.shape, 1, generator=draw, dtype=torch.float64).to(where, f.dtype)
        try:
            gradient = torch.autograd.grad(f, weights, u[..., 0], materialize_grads=True)
        except (RuntimeError, NotImplementedError) as error:
            need, got = "autograd must be able to differentiate the network", str(error).splitlines()[0]
            raise ValueError(sentence("LinearizedLaplace", need, got)) from error

    # The same by the fast way, then J q and J J^T of each row.
    try:
        if not near(fast.pull(rows, u)[:, 0], torch.cat([part.reshape(-1) for part in gradient])):
            return False
        if isinstance(fast, LastLayerJacobian):  # its products are all made of the same features
            return True
        q = torch.randn(fast.size, 1, generator=draw, dtype=torch.float64).to(where, fast.dtype)
        _, psi, kernel = fast.parts(rows, q, diagonal=False)
    except Exception:  # torch.func and hooks refuse in many ways what plain autograd can do
        return False
    exact = RowwiseJacobian(network).parts(rows, q, diagonal=False)
    return near(psi, exact[1]) and near(kernel, exact[2])
