"""Rivals of the linearised Laplace posterior, each against a literal computation: KFAC, SWA, ensemble, SWAG, the GP."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from mercer.bayes import KroneckerLaplace, Snapshots, TrajectoryGP
from mercer.bayes.likelihood import Probit
from mercer_papers.bench import bayes as bench
from mercer_papers.rivals import SWAG
from tests.bayes.cases import classifier, jacobian, points, seeded, softmax_hessian, trained


def snapshots_of(model, x, y, loss, kept=6):
    snapshots = Snapshots(model, every=5, most=kept)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for _ in range(60):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        snapshots()
    return snapshots


def test_kronecker_factors_are_exact_for_one_row_and_by_blocks():
    x, y = points()
    model = trained(classifier(), x, y, F.cross_entropy, 30)
    one, test = x[:1], torch.randn(5, 3, generator=seeded(1), dtype=torch.float64)
    f = KroneckerLaplace(model, prior_precision=0.3).fit((one, y[:1]))
    j, jt = jacobian(model, one), jacobian(model, test)
    hessian = softmax_hessian(model(one).detach())
    sizes = [3 * 8 + 8, 8 * 3 + 3]  # weight and bias of a layer make a block
    expected = torch.zeros(5, 3, 3, dtype=torch.float64)
    for a, b in zip(j.split(sizes, 2), jt.split(sizes, 2), strict=True):
        ggn = torch.einsum("ncp,ncd,ndq->pq", a, hessian, a)
        sigma = torch.linalg.inv(ggn + 0.3 * torch.eye(len(ggn), dtype=torch.float64))
        expected += torch.einsum("ncp,pq,ndq->ncd", b, sigma, b)
    mean, covariance = f.logits(test)
    torch.testing.assert_close(mean, model(test).detach())
    torch.testing.assert_close(covariance, expected)
    torch.testing.assert_close(f.predict_proba(test), Probit()(mean, expected.diagonal(dim1=1, dim2=2)))
    whole = KroneckerLaplace(model, prior_precision=0.3).fit((x, y))
    assert (whole.logits(test)[1].diagonal(dim1=1, dim2=2) < covariance.diagonal(dim1=1, dim2=2)).all()
    with pytest.raises(ValueError, match=r"must be those of linear layers and convolutions; got 0.weight. Freeze"):
        KroneckerLaplace(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))).fit(
            (torch.ones(2, 3), torch.tensor([0, 1]))
        )


def test_every_contender_of_the_bench_answers():
    x, y = points(120, dtype=torch.float32)
    networks = [trained(classifier(dtype=torch.float32), x[:40], y[:40], F.cross_entropy, n) for n in (20, 30)]
    task = bench.Task(networks, (x[:40], y[:40]), (x[40:80], y[40:80]), (x[80:], y[80:]), {"far": 5 * x[80:]})
    for name, (make, _) in (bench.POSTERIORS | bench.DIGITS_ONLY).items():
        if not name.startswith("laplace-torch") and "network" not in name:
            found = bench.predict(name, make, [task])
            assert math.isfinite(bench.nll(found[0]))
            assert 0 <= bench.ece(found[0]) <= 1
            assert bench.predict(name, None, [task])[0].reader is found[0].reader  # made once
    for name, (make, _) in ({"Familiarity": (bench.familiarity, {})} | bench.SCORES).items():
        assert 0 <= bench.auroc(bench.predict(name, make, [task])[0]) <= 1


def test_trajectory_gp_and_snapshots():
    x, y = points(60)
    snapshots = snapshots_of(classifier(), x[:40], y[:40], F.cross_entropy)
    assert len(snapshots.models) == 6
    gp = TrajectoryGP(snapshots.models, precision=1.0)
    outputs = torch.stack([m(x) for m in snapshots.models])
    mean, covariance = gp.logits(x)
    torch.testing.assert_close(mean, outputs.mean(0))
    centred = outputs - outputs.mean(0)
    torch.testing.assert_close(covariance, torch.einsum("mnc,mnd->ncd", centred, centred) / 6)
    torch.testing.assert_close(gp.predict_proba(x), Probit()(mean, covariance.diagonal(dim1=1, dim2=2)))
    torch.testing.assert_close(gp.ensemble_proba(x), outputs.softmax(2).mean(0))
    torch.testing.assert_close(TrajectoryGP(snapshots.models).ensemble_proba(x), outputs.softmax(2).mean(0))  # no fit
    fitted = TrajectoryGP(snapshots.models).fit(None, (x[40:], y[40:]))

    def nll(precision):
        proba = TrajectoryGP(snapshots.models, precision=precision).predict_proba(x[40:])
        return float(-proba.gather(1, y[40:, None]).log().mean())

    assert nll(fitted.precision_) <= min(nll(p) for p in (1e-3, 0.1, 1.0, 10.0, 1e4)) + 1e-9
    weights = torch.stack([m[0].weight for m in snapshots.models]).mean(0)
    torch.testing.assert_close(snapshots.averaged()[0].weight, weights)


def test_trajectory_gp_of_a_regression_learns_its_noise():
    x, _ = points(60)
    y = torch.stack((x[:, 0].sin(), x[:, 1]), 1) + 0.3 * torch.randn(60, 2, generator=seeded(3), dtype=torch.float64)
    models = snapshots_of(classifier(c=2), x[:40], y[:40], F.mse_loss).models
    outputs = torch.stack([m(x) for m in models])
    gp = TrajectoryGP(models, likelihood="regression", precision=2.0, eigenfunctions="models").fit((x[:40], y[:40]))
    assert gp.noise_ == pytest.approx(float((outputs.mean(0)[:40] - y[:40]).square().mean()))
    mean, variance = gp.predict(x)
    torch.testing.assert_close(mean, outputs.mean(0))
    torch.testing.assert_close(variance, outputs.var(0, correction=0) / 2.0 + gp.noise_)
    chosen = TrajectoryGP(models, likelihood="regression", eigenfunctions="models")
    chosen.fit((x[:40], y[:40]), (x[40:], y[40:]))

    def nll(precision, noise):
        spread = outputs[:, 40:].var(0, correction=0) / precision + noise
        return 0.5 * ((y[40:] - outputs.mean(0)[40:]).square() / spread + (2 * math.pi * spread).log()).mean()

    for precision, noise in ((1.0, gp.noise_), (100.0, gp.noise_), (1.0, 4 * gp.noise_)):
        assert nll(chosen.precision_, chosen.noise_) <= nll(precision, noise) + 1e-6


def test_averaged_weights_take_their_statistics_anew():
    x, y = points(60)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()
    snapshots = snapshots_of(model, x, y, F.cross_entropy)
    mean = snapshots.averaged([(x, y)])
    hidden = mean[0](x)
    torch.testing.assert_close(mean[1].running_mean, hidden.mean(0))
    torch.testing.assert_close(mean[1].running_var, hidden.var(0))
    assert not torch.allclose(snapshots.averaged()[1].running_mean, mean[1].running_mean)


def test_swag_draws_from_the_gaussian_of_the_run():
    x, y = points(60)
    models = snapshots_of(classifier(), x, y, F.cross_entropy).models
    swag = SWAG(models, samples=3000, generator=seeded())
    flat = torch.stack([torch.cat([p.flatten() for p in m.parameters()]) for m in models])  # (M, p)
    deviations = flat - flat.mean(0)
    expected = (torch.diag(deviations.square().mean(0)) + deviations.mT @ deviations / (len(models) - 1)) / 2
    drawn = torch.stack([torch.cat([value.flatten() for value in state.values()]) for state in swag.draws()])
    deviation = expected.diagonal().sqrt()
    assert ((drawn.mean(0) - flat.mean(0)).abs() < 5 * deviation / math.sqrt(3000)).all()
    correlation = (torch.cov(drawn.mT) - expected) / (deviation[:, None] * deviation)
    assert correlation.abs().max() < 0.12  # five standard errors of 3,000 draws


def test_swag_predicts_the_mean_softmax_of_its_draws():
    x, y = points(60)
    models = snapshots_of(classifier(), x, y, F.cross_entropy).models
    swag = SWAG(models, samples=5, batch_size=7, generator=seeded())
    literal = torch.stack([functional_call(models[0], state, (x,)).softmax(1) for state in swag.draws()]).mean(0)
    torch.testing.assert_close(swag.predict_proba(x), literal.detach())
    torch.testing.assert_close(swag.predict(x), literal.argmax(1))
    still = SWAG(models, samples=2, scale=0.0)
    averaged = {n: torch.stack([m.state_dict()[n] for m in models]).mean(0) for n in models[0].state_dict()}
    torch.testing.assert_close(still.predict_proba(x), functional_call(models[0], averaged, (x,)).softmax(1).detach())
