"""What a user gets who names nothing: the cheap posterior, its link, a short repr, ensembles in one call."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from mercer.bayes import DeepEnsemble, KroneckerLaplace, LinearizedLaplace, Snapshots, TemperatureScaling, TrajectoryGP
from mercer.bayes.likelihood import Pairwise, Probit, Samples


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))


def blobs(n=150, seed=0):
    y = torch.arange(n) % 3
    return 2 * F.one_hot(y, 3).float() + 0.5 * torch.randn(n, 3, generator=seeded(seed)), y


class Counted(nn.Module):
    rows = 0  # of the class: posteriors run copies

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = make()

    def forward(self, x):
        Counted.rows += len(x)
        return self.body(x)


def test_the_default_posterior_is_of_the_last_layer_and_takes_one_pass():
    model, (x, y) = Counted(), blobs()
    f = LinearizedLaplace(model, generator=seeded()).fit((x, y), blobs(60, 1))
    assert f.head_ == "body.2"
    last = LinearizedLaplace(model, parameters="last", generator=seeded()).fit((x, y), blobs(60, 1))
    torch.testing.assert_close(f.predict_proba(x), last.predict_proba(x))
    Counted.rows = 0
    f.predict_proba(x)
    assert Counted.rows == len(x)


def literal_pairwise(mean, covariance):
    n, c = mean.shape
    p = torch.zeros(n, c, dtype=mean.dtype)
    for r in range(n):
        for i in range(c):
            total = 0.0
            for j in range(c):
                v = covariance[r, i, i] + covariance[r, j, j] - 2 * covariance[r, i, j]
                total += math.exp(-(mean[r, i] - mean[r, j]) / math.sqrt(1 + math.pi * v / 8))
            p[r, i] = 1 / total
    return p / p.sum(1, keepdim=True)


def test_the_pairwise_link_is_its_formula_and_nearer_to_draws_than_probit():
    mean = 2 * torch.randn(40, 4, generator=seeded(), dtype=torch.float64)
    root = torch.randn(40, 4, 4, generator=seeded(1), dtype=torch.float64)
    covariance = root @ root.mT
    variance = covariance.diagonal(dim1=1, dim2=2)
    link = Pairwise()
    torch.testing.assert_close(link(mean, covariance), literal_pairwise(mean, covariance))
    torch.testing.assert_close(link(mean, variance), literal_pairwise(mean, torch.diag_embed(variance)))
    torch.testing.assert_close(link(mean + 7, covariance), link(mean, covariance))  # a softmax does not see it
    draws = Samples(4000, seeded())(mean, covariance)
    away = lambda p: float((p - draws).abs().sum(1).mean())  # noqa: E731
    assert away(link(mean, covariance)) < away(link(mean, variance)) < away(Probit()(mean, variance))
    model, pair = make(), blobs()
    f = LinearizedLaplace(model, prior_precision=1.0, link="pairwise").fit(pair)
    torch.testing.assert_close(f.predict_proba(pair[0]), link(*f.logits(pair[0])))


def test_every_posterior_says_in_a_line_what_it_is():
    torch.manual_seed(0)
    model, pair = make(), blobs()
    made = {
        LinearizedLaplace(model, prior_precision=2.0): "last layer 2, 27 directions, prior precision 2, temperature 1",
        LinearizedLaplace(model, parameters="all", k=4, prior_precision=2.0): (
            "all weights, 4 directions, prior precision 2, temperature 1"
        ),
        KroneckerLaplace(model): "2 layers, prior precision 1, temperature 1",
    }
    for posterior, chosen in made.items():
        name = type(posterior).__name__
        assert repr(posterior) == f"{name}(Sequential, classification): not fitted"
        assert repr(posterior.fit(pair)) == f"{name}(Sequential, classification): {chosen}"
    fitted = TemperatureScaling(model).fit(pair)
    assert repr(fitted) == f"TemperatureScaling(Sequential, classification): temperature {fitted.temperature_:.3g}"
    assert repr(DeepEnsemble([model, make()])) == "DeepEnsemble(2 x Sequential, classification): temperature 1"
    gp = TrajectoryGP([model, make()], eigenfunctions="models", precision=1.0)
    assert repr(gp) == "TrajectoryGP(2 x Sequential, classification): 2 passes a row, precision 1, temperature 1"
    gp = TrajectoryGP([model, make()], likelihood="regression")
    assert repr(gp) == "TrajectoryGP(2 x Sequential, regression): not fitted"


@pytest.mark.parametrize("posterior", [LinearizedLaplace, KroneckerLaplace, TemperatureScaling])
def test_real_targets_without_a_likelihood_are_called_a_regression(posterior):
    x, y = torch.randn(20, 3, generator=seeded()), torch.randn(20, 1, generator=seeded(1))
    match = r"a network of real targets is a regression, likelihood='regression'; got likelihood='classification'"
    for targets in (y, y[:, 0]):
        with pytest.raises(ValueError, match=match):
            posterior(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))).fit((x, targets))


@pytest.mark.parametrize("pair", [True, False], ids=["pair", "loader"])
def test_an_ensemble_is_trained_in_one_call(pair):
    x, y = blobs()
    data = (x, y) if pair else DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    before = torch.random.get_rng_state()
    f = DeepEnsemble.train(make, data, 3, val_loader=blobs(60, 1), epochs=20, lr=1e-2, generator=seeded())
    assert torch.equal(torch.random.get_rng_state(), before)  # the caller's randomness is left alone
    assert len(f.models) == 3
    assert not torch.equal(f.models[0][0].weight, f.models[1][0].weight)
    assert f.temperature_ != 1.0
    new, truth = blobs(90, 2)
    assert (f.predict(new) == truth).double().mean() > 0.9
    again = DeepEnsemble.train(make, data, 3, val_loader=blobs(60, 1), epochs=20, lr=1e-2, generator=seeded())
    torch.testing.assert_close(f.predict_proba(new), again.predict_proba(new))


def test_an_ensemble_of_regressions_learns_its_noise():
    x = torch.rand(200, 1, generator=seeded()) * 4 - 2
    y = x.sin() + 0.1 * torch.randn(200, 1, generator=seeded(1))
    build = lambda: nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))  # noqa: E731
    f = DeepEnsemble.train(build, (x, y), 2, likelihood="regression", epochs=60, lr=2e-2, generator=seeded())
    assert 0.005 < f.noise_ < 0.03
    mean, variance = f.predict(x)
    assert ((mean - y) ** 2 / variance).mean() < 1.5
    with pytest.raises(ValueError, match=r"DeepEnsemble.train: n must be a whole number of at least 2; got 1"):
        DeepEnsemble.train(build, (x, y), 1)


def test_snapshots_are_trained_in_one_call_and_leave_the_network_alone():
    torch.manual_seed(0)
    model, (x, y) = make(), blobs()
    weight = model[0].weight.detach().clone()
    snapshots = Snapshots.train(model, (x, y), 3, epochs=30, lr=1e-2, generator=seeded())
    assert torch.equal(model[0].weight, weight)
    assert repr(snapshots) == "Snapshots(Sequential): 3 kept"
    new, truth = blobs(90, 2)
    assert (DeepEnsemble(snapshots.models).predict(new) == truth).double().mean() > 0.9
    assert not torch.equal(snapshots.models[0][0].weight, snapshots.models[1][0].weight)
    with pytest.raises(ValueError, match=r"Snapshots.train: epochs must be a whole number of at least 3; got 2"):
        Snapshots.train(model, (x, y), 3, epochs=2)
