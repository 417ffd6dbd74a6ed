"""The two-layer network against Eq. 1, 2, 7, 8, autograd, and the spectrum that predicts it."""

import pytest
import torch

from mercer.kernels import ReLUGram
from mercer.spectral import analyze
from mercer_papers.rivals import TwoLayerNet, neural_embedding, train_two_layer
from tests import reference_spectral2019 as reference


def unit(n, d, seed=0):
    x = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x / x.norm(dim=1, keepdim=True)


def network(width, scale, d=5, outputs=1, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return TwoLayerNet(d, width, outputs=outputs, scale=scale, generator=generator, dtype=torch.float64)


def test_forward_is_equation_1():
    x, net = unit(7, 5), network(11, 0.3)
    torch.testing.assert_close(net(x)[:, 0].detach(), reference.network(net.weight.detach(), net.signs[0], x))


def test_weights_are_drawn_as_in_equation_7():
    net = network(4000, 0.01)
    assert float(net.weight.detach().std()) == pytest.approx(0.01, rel=0.02)
    assert set(net.signs.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(net.signs.mean())) < 0.05


@pytest.mark.parametrize("outputs", [1, 3])
def test_steps_equal_autograd_on_equation_8(outputs):
    x, ours, theirs = unit(20, 5), network(30, 0.5, outputs=outputs), network(30, 0.5, outputs=outputs)
    y = torch.randn(20, outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    before = y.clone()
    run = train_two_layer(ours, x, y, lr=0.05, steps=4)
    optimizer, residuals = torch.optim.SGD(theirs.parameters(), lr=0.05), []
    for step in range(5):
        optimizer.zero_grad()
        loss = 0.5 * (y - theirs(x)).square().sum()
        residuals.append((2 * loss.detach()).sqrt())
        if step < 4:
            loss.backward()
            optimizer.step()
    torch.testing.assert_close(run.residual, torch.stack(residuals))
    torch.testing.assert_close(ours.weight, theirs.weight)
    assert torch.equal(y, before)


def test_the_prediction_is_within_one_percent_in_the_lazy_setting():
    x = unit(60, 10)
    y = torch.where(x[:, 0] > 0, 1.0, -1.0).double()
    net = network(8000, 1.0, d=10)
    spectrum = analyze(ReLUGram(), x, y - net(x).detach()[:, 0])
    lr = 0.1 * spectrum.largest_stable_lr
    predicted = spectrum.convergence(lr, 50)
    assert spectrum.laziness(lr, 50, width=8000, scale=1.0) < 0.3
    measured = train_two_layer(net, x, y, lr=lr, steps=50).residual
    torch.testing.assert_close(predicted, measured, rtol=0.01, atol=0)


def test_laziness_is_the_predicted_movement_and_warns_of_a_bad_prediction():
    x = unit(60, 10)
    y = torch.where(x[:, 0] * x[:, 1] > 0, 1.0, -1.0).double()
    spectrum = analyze(ReLUGram(), x, y)
    lr = 0.5 * spectrum.largest_stable_lr
    lazy, restless = network(4000, 0.3, d=10), network(200, 1e-3, d=10)
    for net in (lazy, restless):
        width, scale = len(net.weight), net.scale
        number = spectrum.laziness(lr, 30, width=width, scale=scale)
        start = net.weight.detach().clone()
        measured = train_two_layer(net, x, y, lr=lr, steps=30).residual
        gap = float((spectrum.convergence(lr, 30) / measured - 1).abs().max())
        moved = float((net.weight.detach() - start).norm()) / (scale * width**0.5)
        if net is lazy:
            assert number == pytest.approx(moved, rel=0.1)
            assert number < 1
        else:
            assert number > 10
            assert gap > 0.03


def test_laziness_follows_from_the_decomposition():
    x, y = unit(40, 6), torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    values, vectors = torch.linalg.eigh(ReLUGram()(x))
    squared = ((1 - (1 - 0.1 * values) ** 25).square() * (vectors.mT @ y).square() / values).sum()
    number = analyze(ReLUGram(), x, y).laziness(0.1, 25, width=100, scale=0.5)
    assert number == pytest.approx(float(squared) ** 0.5 / (0.5 * 10), rel=1e-8)


def test_test_rows_are_followed():
    x, fresh = unit(80, 4), unit(50, 4, seed=9)
    net = network(500, 0.1, d=4)
    y, truth = (torch.where(rows[:, 0] > 0, 1.0, -1.0).double() for rows in (x, fresh))
    run = train_two_layer(net, x, y, lr=0.02, steps=40, test=(fresh, truth))
    assert run.test_residual is not None
    assert len(run.test_residual) == len(run.test_accuracy) == 41
    torch.testing.assert_close(run.test_residual[-1], (net(fresh)[:, 0] - truth).norm().detach())
    assert float(run.test_accuracy[-1]) == float(((net(fresh)[:, 0] > 0) == (truth > 0)).double().mean()) > 0.8


def test_a_trained_embedding_suits_its_targets_on_rows_it_has_not_seen():
    x = unit(400, 6)
    y = torch.where(x[:, 0] * x[:, 1] > 0, 1.0, -1.0).double()
    settings = {"width": 100, "hidden": 32, "lr": 1e-2, "epochs": 40, "batch": 32}
    state = torch.get_rng_state()
    embedding = neural_embedding(x[:300], y[:300], **settings, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), state)  # randomness is an argument, and that alone
    assert not any(p.requires_grad for p in embedding.parameters())
    torch.testing.assert_close(embedding(x).norm(dim=1), torch.ones(400, dtype=torch.float64))
    rest, labels = x[300:], y[300:]
    assert analyze(embedding, rest, labels).complexity < 0.8 * analyze(ReLUGram(), rest, labels).complexity


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"TwoLayerNet: scale must be positive; got 0\.0"):
        network(5, 0.0)
    with pytest.raises(ValueError, match="TwoLayerNet: width must be a whole number of at least 1; got 0"):
        network(0, 1.0)
    with pytest.raises(ValueError, match="train_two_layer: x and targets must have as many rows; got 3 and 2"):
        train_two_layer(network(5, 1.0), unit(3, 5), torch.ones(2))
