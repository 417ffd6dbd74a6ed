"""A large rate must not break the default head, nor put it behind a linear layer."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mercer.nn import KernelClassifier
from mercer_papers.data import sphere


def accuracy_on_the_sphere(head, drawn, momentum):
    """Percent right on test rows after 15 epochs of SGD at rate 0.5."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(head.parameters(), 0.5, momentum=momentum)
    for _ in range(15):
        for rows in torch.randperm(len(drawn.x_train), generator=generator).split(128):
            optimizer.zero_grad()
            F.cross_entropy(head(drawn.x_train[rows]), drawn.y_train[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return 100 * (head(drawn.x_test).argmax(1) == drawn.y_test).double().mean().item()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_prototypes_on_the_sphere_survive_a_rate_of_one_half(momentum):
    """The centers of jayasumana2021's Appendix B, four draws: none behind a linear layer, and a gain overall."""
    gains = []
    for seed in range(1, 5):
        drawn = sphere(1000, 1000, seed=seed)
        torch.manual_seed(seed)
        kernel = accuracy_on_the_sphere(KernelClassifier(3, 2, prototypes=10), drawn, momentum)
        linear = accuracy_on_the_sphere(nn.Linear(3, 2), drawn, momentum)
        gains.append(kernel - linear)
    assert min(gains) > -1 and sum(gains) / 4 > 2, gains


def test_coefficients_that_a_step_drove_below_0_come_back():
    head = KernelClassifier(3, 2)
    with torch.no_grad():
        head.kernel.alpha.fill_(-0.1)
    z = F.normalize(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]))
    F.cross_entropy(head(z), (z[:, 0] < 0).long()).backward()
    assert head.kernel.alpha.grad[1] < 0  # a descent step raises the linear term, which tells the two apart


def test_the_head_starts_near_a_linear_layer():
    """The linear part starts as nn.Linear's, the kernel beside it with three tenths of its share alone."""
    torch.manual_seed(0)
    head, alone = KernelClassifier(64, 10), KernelClassifier(64, 10, linear=False)
    torch.testing.assert_close(head.scale, 0.3 * alone.scale)
    assert 0.9 / 8 < head.linear.abs().max() <= 1 / 8  # uniform in +-d^(-1/2)


def test_short_embeddings_have_bounded_gradients():
    """Without the lift, gradients grow as 1 / |z|, and a network whose embeddings start short breaks at large rates."""
    head, sizes = KernelClassifier(16, 10, linear=False), []
    for length in (1.0, 1e-3, 1e-6):
        z = (length * F.normalize(torch.ones(1, 16))).requires_grad_()
        F.cross_entropy(head(z), torch.tensor([3])).backward()
        sizes.append(z.grad.norm().item())
    assert max(sizes) < 20 * sizes[0]
