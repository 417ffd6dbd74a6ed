"""Algorithm 1 as the authors run it: one network a function, Adam at 1e-3, the paper's deflation, no Ritz after it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from typing_extensions import override

from mercer.bayes.likelihood import Softmax, link_named
from mercer.bayes.prior_choice import best_precision
from mercer.features import NeuralEigenfunctions
from mercer.kernels import Kernel

from ..backbones import LeNet5
from ..data import CifarResNet
from .measures import rng

LR = 1e-3  # of all the authors' scripts; ours falls along a cosine to a tenth of it, theirs to 0 or not at all
RESNET = "ResNet-20, 32 channels"  # of a function, in the authors' scripts for CIFAR-10
LENET, CONVNET = "LeNet-5", "ConvNet (32, 64, 128)"


class OneNetworkEach(nn.Module):
    r"""The k networks :math:`\hat\psi(x, w_j)` of Algorithm 1, none of which shares a weight with another.

    Args:
        make: Makes one network with outputs ``(n, c)``.
        k: Networks.
        outputs: c.
        seed: Decides the weights.
    """

    def __init__(self, make: Callable[[], nn.Module], k: int, outputs: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.functions = nn.ModuleList(make() for _ in range(k))
        self.outputs = outputs

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, k) or (n, c, k)
        stacked = torch.stack([function(x) for function in self.functions], -1)
        if self.outputs == 1:
            return stacked[:, 0]
        return stacked


def algorithm_1(
    kernel: Kernel,
    k: int,
    make: Callable[[], nn.Module],
    *,
    steps: int,
    seed: int,
    outputs: int = 1,
    batch_size: int = 256,
    deflation: str = "first_order",
) -> NeuralEigenfunctions:
    """The k leading eigenfunctions by Algorithm 1, to be fitted; ``make`` gives the network of one function."""
    return NeuralEigenfunctions(
        kernel, k, network=OneNetworkEach(make, k, outputs, seed), method="neuralef", ritz=False, deflation=deflation,
        steps=steps, lr=LR, batch_size=batch_size, generator=rng(seed),
    )  # fmt: skip


def small_mlp(d: int, outputs: int = 1) -> nn.Module:
    """The authors' network for points in the plane: two hidden layers of 32."""
    return nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, outputs))


def conv_net(channels: int, outputs: int = 1) -> nn.Module:
    """The authors' ConvNet for MNIST: two convolutions, batch-normalized and pooled, and a hidden layer.

    The pooling before the hidden layer takes pictures of every size; those of 28 x 28 have 6 x 6 places there anyway.
    """
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveMaxPool2d(6),
        nn.Flatten(), nn.Linear(36 * 64, 128), nn.ReLU(), nn.Linear(128, outputs),
    )  # fmt: skip


def picture_network(name: str, channels: int, outputs: int) -> nn.Module:
    """The network of one function of pictures, by its name."""
    if name == RESNET:
        return CifarResNet(20, outputs, width=32)
    if name == LENET:
        return LeNet5(outputs)
    return conv_net(channels, outputs)


class LowRankLaplace:
    r"""Linearized Laplace as on the slide, in k eigenfunctions of the NTK and nothing beside them.

    .. math:: f(x) \sim N\big(g(x), \; \Psi(x) \big[\textstyle\sum_i \Psi(x_i)^\top \Lambda_i \Psi(x_i) +
        \tfrac{1}{\sigma_0^2} I_k\big]^{-1} \Psi(x)^\top\big), \qquad \Psi = (\sqrt{\mu_j} \, \psi_j)_{j \le k}

    (deng2022, slide "Improve linearised Laplace approximation with NeuralEF".) The slide does not say where
    :math:`\sigma_0` comes from: here, as for its rivals, from the log-loss on validation rows.

    Args:
        model: The network, outputs ``(n, c)``.
        features: :math:`\Psi`, ``(n, ...) -> (n, c, k)``.
    """

    def __init__(self, model: nn.Module, features: Callable[[Tensor], Tensor]) -> None:
        self.model, self.features = model, features

    @torch.no_grad()
    def fit(self, train: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor]) -> LowRankLaplace:
        """The curvature in the k directions, then the prior precision."""
        f, psi = self._both(train[0])
        # sum_i Psi_i^T Lambda_i Psi_i, with Lambda = diag(p) - p p^T never formed
        weighted = Softmax().curvature_product(f, psi)  # (n, c, k)
        self._curvature = torch.einsum("nck,ncl->kl", psi, weighted)
        f_val, psi_val = self._both(val[0])
        y = val[1].to(f_val.device)

        def log_loss(precision: float) -> float:
            likelihood = self._proba(f_val, psi_val, precision).gather(1, y[:, None])
            return float(-likelihood.clamp_min(1e-12).log().mean())

        self.prior_precision_ = best_precision(log_loss)[0]
        return self

    @torch.no_grad()
    def predict_proba(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c)
        """Class probabilities by the probit approximation."""
        return self._proba(*self._both(x), self.prior_precision_)

    def _both(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (n, ...) -> (n, c), (n, c, k), in float64
        outputs = torch.cat([self.model(part) for part in x.split(250)])
        psi = torch.cat([self.features(part) for part in x.split(250)])
        return outputs.double(), psi.double()

    def _proba(self, f: Tensor, psi: Tensor, precision: float) -> Tensor:
        inner = self._curvature + precision * torch.eye(psi.shape[2], dtype=psi.dtype, device=psi.device)
        covariance = psi @ torch.linalg.solve(inner, psi.mT)  # (n, c, c)
        link = link_named("probit")
        if not link.needs_covariance:
            covariance = covariance.diagonal(dim1=1, dim2=2)
        return Softmax().proba(f, covariance, link)
