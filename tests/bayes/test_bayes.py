"""Uncertainty of trained networks: exact at full rank, bounded in memory, never negative, honest about faults."""

import logging
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from mercer.bayes import LinearizedLaplace
from mercer.bayes.layer_signals import LayerSignals
from mercer.bayes.likelihood import LaplaceBridge, Probit, Samples, Softmax
from mercer.bayes.network import own_network
from mercer.kernels import EmpiricalNTK
from tests.bayes.cases import classifier, jacobian, points, seeded, softmax_hessian, trained
from tests.memory import peak_bytes

probit, laplace_bridge = Probit(), LaplaceBridge()


def sampled(mean, covariance, samples, generator):
    return Samples(samples, generator)(mean, covariance)


def own_kernel(model, x, diagonal):
    return LayerSignals(own_network(model)).own_kernel(x, diagonal=diagonal)


def dense(model, x, test, precision, hessian):  # exact covariance, by weights x weights matrices
    j, jt = jacobian(model, x), jacobian(model, test)
    ggn = torch.einsum("ncp,ncd,ndq->pq", j, hessian, j)
    sigma = torch.linalg.inv(ggn + precision * torch.eye(len(ggn), dtype=ggn.dtype))
    return torch.einsum("ncp,pq,ndq->ncd", jt, sigma, jt)


@pytest.mark.parametrize("precision", [0.1, 5.0])
def test_full_rank_equals_the_dense_posterior_of_a_classifier(precision):
    x, y = points()
    model = trained(classifier(), x, y, F.cross_entropy)
    test = torch.randn(6, 3, generator=seeded(1), dtype=torch.float64) * 2
    f = LinearizedLaplace(model, parameters="all", k=1000, prior_precision=precision, generator=seeded()).fit((x, y))
    expected = dense(model, x, test, precision, softmax_hessian(model(x).detach()))
    mean, covariance = f.logits(test)
    torch.testing.assert_close(mean, model(test).detach())
    torch.testing.assert_close(covariance, expected, rtol=1e-6, atol=1e-8)
    proba = f.predict_proba(test)
    torch.testing.assert_close(proba, probit(mean, expected.diagonal(dim1=1, dim2=2)), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(f.predict(test), proba.argmax(1))


def test_full_rank_equals_the_dense_posterior_of_a_regression():
    x, _ = points()
    y = torch.stack((x[:, 0].sin(), x[:, 1] * x[:, 2]), 1)
    model = trained(classifier(c=2), x, y, F.mse_loss)
    test = torch.randn(6, 3, generator=seeded(1), dtype=torch.float64)
    f = LinearizedLaplace(
        model, parameters="all", likelihood="regression", k=1000, prior_precision=0.5, generator=seeded()
    ).fit((x, y))
    assert f.noise_ == pytest.approx(float((model(x).detach() - y).square().mean()))
    eye = torch.eye(2, dtype=torch.float64).expand(len(x), 2, 2) / f.noise_
    expected = dense(model, x, test, 0.5, eye)
    torch.testing.assert_close(f.logits(test)[1], expected, rtol=1e-6, atol=1e-8)
    mean, variance = f.predict(test)
    torch.testing.assert_close(mean, model(test).detach())
    torch.testing.assert_close(variance, expected.diagonal(dim1=1, dim2=2) + f.noise_, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("c", [1, 3], ids=["one-logit", "softmax"])
@pytest.mark.parametrize("parameters", ["all", "last"])
def test_full_rank_of_convolutions_chosen_on_validation_rows_equals_the_dense_posterior(c, parameters):
    x, _ = points(50)
    y = (x[:, 0] > 0).long() if c == 1 else (x[:, 0] > 0).long() + (x[:, 1] > 0.3).long()
    torch.manual_seed(0)
    parts = nn.Unflatten(1, (1, 1, 3)), nn.Conv2d(1, 4, (1, 2)), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
    model = nn.Sequential(*parts, nn.Linear(8, c)).double()
    one = lambda f, t: F.binary_cross_entropy_with_logits(f[:, 0], t.double())  # noqa: E731
    trained(model, x[:30], y[:30], one if c == 1 else F.cross_entropy).eval()
    test = 2 * torch.randn(5, 3, generator=seeded(1), dtype=torch.float64)
    f = LinearizedLaplace(model, k=1000, parameters=parameters, generator=seeded()).fit(
        (x[:30], y[:30]), (x[30:], y[30:])
    )
    scaled = model(x[:30]).detach() / f.temperature_
    p = scaled.sigmoid()
    hessian = ((p * (1 - p))[..., None] if c == 1 else softmax_hessian(scaled)) / f.temperature_**2
    counted = slice(None) if parameters == "all" else slice(-9 * c, None)
    j, jt = (jacobian(model, rows)[..., counted] for rows in (x[:30], test))
    ggn = torch.einsum("ncp,ncd,ndq->pq", j, hessian, j)
    sigma = torch.linalg.inv(ggn + f.prior_precision_ * torch.eye(len(ggn), dtype=ggn.dtype))
    expected = torch.einsum("ncp,pq,mdq->nmcd", jt, sigma, jt)
    torch.testing.assert_close(f.logits(test, joint=True)[1], expected, rtol=1e-6, atol=1e-8)
    own = expected.diagonal(dim1=0, dim2=1).permute(2, 0, 1)
    torch.testing.assert_close(f.logits(test)[1], own, rtol=1e-6, atol=1e-8)


def test_the_complement_makes_few_directions_nearly_exact():
    x, y = points(40)
    model = trained(classifier(), x, y, F.cross_entropy)
    test = torch.randn(10, 3, generator=seeded(1), dtype=torch.float64) * 2
    exact = dense(model, x, test, 1.0, softmax_hessian(model(x).detach())).diagonal(dim1=1, dim2=2)
    errors = {}
    for complement in (True, False):
        f = LinearizedLaplace(
            model, parameters="all", k=8, complement=complement, prior_precision=1.0, generator=seeded()
        ).fit((x, y))
        own = f.logits(test)[1].diagonal(dim1=1, dim2=2)
        errors[complement] = float(((own - exact).abs() / exact).mean())
        if complement:
            assert (own >= exact * (1 - 1e-6)).all()  # what is not conditioned on cannot shrink
    assert errors[True] < 0.1
    assert errors[True] < errors[False] / 3


@pytest.mark.parametrize("likelihood", ["classification", "regression"])
def test_variance_is_never_negative_shrinks_with_data_and_stays_below_the_prior(likelihood):
    x, y = points(60)
    targets = y if likelihood == "classification" else torch.stack((x[:, 0].sin(), x[:, 1], x[:, 2]), 1)
    model = trained(classifier(), x, targets, F.cross_entropy if likelihood == "classification" else F.mse_loss)
    new = torch.cat((x, torch.randn(20, 3, generator=seeded(1), dtype=torch.float64) * 50))
    prior = EmpiricalNTK(model, outputs="full").diag(new).diagonal(dim1=1, dim2=2)
    for k, complement in ((5, True), (5, False), (500, True)):
        make = partial(LinearizedLaplace, model, likelihood=likelihood, k=k, complement=complement, prior_precision=1.0)
        few, many = (make(generator=seeded()).fit((x[:n], targets[:n])) for n in (10, 60))
        before, after = (f.logits(new)[1].diagonal(dim1=1, dim2=2) for f in (few, many))
        assert torch.linalg.eigvalsh(many.logits(new)[1]).min() > -1e-9
        assert (after >= 0).all()
        assert (after <= prior * (1 + 1e-9)).all()
        if k == 500 and likelihood == "classification":  # in the same directions; a noise of its own is no datum
            assert (after <= before * (1 + 1e-8)).all()


@pytest.mark.parametrize("k", [3, 60, 1000])
def test_rounding_in_float32_makes_no_variance_negative(k):
    x, _ = points(dtype=torch.float32)
    y = x.sin()
    model = trained(classifier(width=40, dtype=torch.float32), x, y, F.mse_loss, 400)
    f = LinearizedLaplace(
        model, parameters="all", likelihood="regression", k=k, prior_precision=1e-3, generator=seeded()
    ).fit((x, y))
    assert f.noise_ < 1e-3  # little noise and a wide prior: at the rows, differences of large numbers
    assert (f.logits(x)[1].diagonal(dim1=1, dim2=2) >= 0).all()
    assert (f.predict(x)[1] >= f.noise_).all()


def test_variance_of_a_regression_shrinks_as_rows_are_seen_again():
    x, _ = points(30)
    y = torch.stack((x[:, 0].sin(), x[:, 1], x[:, 2]), 1)
    model = trained(classifier(), x, y, F.mse_loss)
    make = lambda: LinearizedLaplace(  # noqa: E731
        model, parameters="all", likelihood="regression", k=500, prior_precision=1.0, generator=seeded()
    )
    once, twice = make().fit((x, y)), make().fit((torch.cat((x, x)), torch.cat((y, y))))  # the noise is the same
    assert once.noise_ == pytest.approx(twice.noise_)
    new = torch.randn(20, 3, generator=seeded(1), dtype=torch.float64) * 3
    before, after = (f.logits(new)[1].diagonal(dim1=1, dim2=2) for f in (once, twice))
    assert (after <= before * (1 + 1e-8)).all()
    assert after.mean() < 0.9 * before.mean()


class Waves(nn.Module):
    """Random Fourier features, whose kernel falls to 0: rows far away share nothing with the data."""

    def __init__(self, m):
        super().__init__()
        self.register_buffer("w", torch.randn(1, m, generator=seeded(), dtype=torch.float64))
        self.register_buffer("b", torch.rand(m, generator=seeded(1), dtype=torch.float64) * 2 * math.pi)

    def forward(self, x):
        return (x @ self.w + self.b).cos() * math.sqrt(2 / self.w.shape[1])


@pytest.mark.parametrize("likelihood", ["classification", "regression"])
@pytest.mark.parametrize("k", [10, 1000])
def test_far_away_the_posterior_is_the_prior(likelihood, k):
    x = torch.randn(60, 1, generator=seeded(), dtype=torch.float64)
    y = (x[:, 0] > 0).long() if likelihood == "classification" else x.sin()
    model = nn.Sequential(Waves(300), nn.Linear(300, 2 if likelihood == "classification" else 1).double())
    trained(model, x, y, F.cross_entropy if likelihood == "classification" else F.mse_loss)
    model[1].bias.requires_grad_(False)  # a constant is shared by near and far
    far = torch.tensor([[10.0], [15.0], [-20.0], [40.0]], dtype=torch.float64)
    ratios = {}
    for complement in (True, False):
        f = LinearizedLaplace(
            model,
            parameters="all",
            likelihood=likelihood,
            k=k,
            complement=complement,
            prior_precision=2.0,
            generator=seeded(),
        ).fit((x, y))
        for name, rows in (("far", far), ("near", far / 100)):
            prior = EmpiricalNTK(model, outputs="full").diag(rows) / 2.0
            ratios[complement, name] = (f.logits(rows)[1] / prior).diagonal(dim1=1, dim2=2)
    assert ((ratios[True, "far"] - 1).abs() < 0.06).all()
    assert (ratios[True, "near"] < 0.8).all()
    assert (ratios[False, "far"] < 0.4).all()  # k functions alone know nothing of far away


def test_along_a_ray_a_relu_network_keeps_its_share_of_the_prior_and_loses_its_confidence():
    x, y = points(60)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    trained(model, x, y, F.cross_entropy)
    rays = F.normalize(torch.randn(20, 3, generator=seeded(1), dtype=torch.float64), dim=1)
    f = LinearizedLaplace(model, parameters="all", k=10, prior_precision=1.0, generator=seeded()).fit((x, y))
    ratio, variance = {}, {}
    for t in (1e3, 1e4):
        variance[t] = f.logits(t * rays)[1].diagonal(dim1=1, dim2=2)
        ratio[t] = variance[t] / EmpiricalNTK(model, outputs="full").diag(t * rays).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(ratio[1e3], ratio[1e4], rtol=0.02, atol=0)  # settles: K(x, x) grows as |x|^2, too
    torch.testing.assert_close(variance[1e4], 100 * variance[1e3], rtol=0.02, atol=0)
    at_data = f.logits(x)[1].diagonal(dim1=1, dim2=2) / own_kernel(model, x, True)
    assert ratio[1e4].mean() > at_data.mean()
    assert (model(1e4 * rays).softmax(1).amax(1) > 0.999).double().mean() > 0.9
    assert f.predict_proba(1e4 * rays).amax(1).max() < 0.99


@pytest.mark.parametrize("diagonal", [True, False])
def test_prior_variance_is_that_of_the_jacobian(diagonal):
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    networks = [
        (classifier(), torch.randn(5, 3, dtype=torch.float64)),
        (
            nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 4)).double(),
            torch.randn(5, 1, 5, 5, dtype=torch.float64),
        ),
        (nn.Sequential(block, nn.Flatten(), nn.Linear(24, 3)).double(), torch.randn(4, 3, 8, dtype=torch.float64)),
    ]
    frozen = classifier()
    frozen[0].bias.requires_grad_(False)
    networks.append((frozen, torch.randn(5, 3, dtype=torch.float64)))
    for model, x in networks:
        exact = EmpiricalNTK(model, outputs="full").diag(x)
        expected = exact.diagonal(dim1=1, dim2=2) if diagonal else exact
        torch.testing.assert_close(own_kernel(model, x, diagonal), expected)


def test_memory_does_not_grow_with_classes_times_parameters():
    def peak(classes, width):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, classes))
        x, y = torch.randn(6, 10), torch.arange(6) % classes

        def work():
            f = LinearizedLaplace(model, parameters="all", k=5, prior_precision=1.0, generator=seeded())
            assert torch.isfinite(f.fit((x, y)).predict_proba(x)).all()

        return peak_bytes(work), sum(p.numel() for p in model.parameters())

    small, few = peak(100, 128)
    large, many = peak(400, 128)
    assert many == 53_008
    assert large < 400 * many * 4  # one row's Jacobian alone
    assert large / small < 0.5 * (400 * many) / (100 * few)


def test_prior_precision_is_chosen_by_validation_or_evidence(caplog):
    caplog.set_level(logging.INFO, "mercer")
    x, y = points(60)
    model = trained(classifier(), x[:40], y[:40], F.cross_entropy, 400)
    loader = DataLoader(TensorDataset(x[:40], y[:40]), batch_size=7)
    f = LinearizedLaplace(model, parameters="all", k=30, generator=seeded()).fit(loader, (x[40:], y[40:]))
    chosen = f.prior_precision_

    def nll(precision):
        f.prior_precision_ = precision
        return float(-f.predict_proba(x[40:]).gather(1, y[40:, None]).log().mean())

    assert nll(chosen) <= 1.1 * min(nll(p) for p in (1e-3, 1e-1, 1.0, 10.0, 1e3))
    assert nll(chosen) <= float(F.cross_entropy(model(x[40:]).detach(), y[40:])) + 1e-6
    evidence = LinearizedLaplace(model, parameters="all", k=30, generator=seeded()).fit(loader)
    assert "the evidence decides" in caplog.text
    assert 1e-4 < evidence.prior_precision_ < 1e5


def test_links():
    f = torch.randn(4, 3, generator=seeded(), dtype=torch.float64)
    u = torch.randn(4, 3, 2, generator=seeded(1), dtype=torch.float64)
    hessian = softmax_hessian(f)
    torch.testing.assert_close(Softmax().curvature_product(f, u), hessian @ u)
    eye = torch.eye(3, dtype=torch.float64).expand(4, 3, 3)
    root = Softmax().curvature_root(f, eye)
    torch.testing.assert_close(root @ root.mT, hessian)
    variance = torch.full((4, 3), 0.4, dtype=torch.float64)
    draws = sampled(f, torch.diag_embed(variance), 20_000, seeded(2))
    assert (probit(f, variance) - draws).abs().max() < 0.03
    torch.testing.assert_close(laplace_bridge(f, variance).sum(1), torch.ones(4, dtype=torch.float64))
    assert (laplace_bridge(f, variance).argmax(1) == f.argmax(1)).all()


def test_the_small_network_gives_nearly_what_derivatives_give():
    x, y = points(400)
    model = trained(classifier(dtype=torch.float32), x.float(), y, F.cross_entropy)
    new = torch.randn(200, 3, generator=seeded(1))
    make = lambda how: LinearizedLaplace(  # noqa: E731
        model, parameters="all", k=8, prior_precision=3.0, eigenfunctions=how, network_steps=500, generator=seeded()
    ).fit((x.float(), y))
    slow, fast = make("derivatives"), make("network")
    for a, b in zip(slow.logits(new), fast.logits(new), strict=True):  # by derivatives in both
        torch.testing.assert_close(a, b)
    variance = [f._moments(new, full=False, gradients=False)[1].detach() for f in (slow, fast)]
    off = ((variance[0] - variance[1]).abs() / variance[0]).mean()
    constant = ((variance[0] - variance[0].mean(0)).abs() / variance[0]).mean()
    assert off < 0.2
    assert off < 0.4 * constant
    assert (slow.predict_proba(new) - fast.predict_proba(new)).abs().mean() < 0.01
    assert (variance[1] >= 0).all()


def test_links_against_a_monte_carlo_integral():
    mean = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, -1.0], [3.0, 0.0, -2.0], [0.5, 2.0, 1.5]], dtype=torch.float64)
    for v, near in ((0.1, 0.01), (0.5, 0.03), (2.0, 0.05)):
        variance = torch.full_like(mean, v)
        draws = mean + math.sqrt(v) * torch.randn(40_000, *mean.shape, generator=seeded(1), dtype=torch.float64)
        integral = draws.softmax(2).mean(0)  # standard error below 0.002
        error = {
            "probit": (probit(mean, variance) - integral).abs().max(),
            "laplace_bridge": (laplace_bridge(mean, variance) - integral).abs().max(),
            "samples": (sampled(mean, torch.diag_embed(variance), 20_000, seeded(2)) - integral).abs().max(),
        }
        assert error["probit"] < near, error
        assert error["samples"] < 0.01, error
        assert error["laplace_bridge"] < 0.12, error  # a coarser link than probit


def test_the_laplace_bridge_is_exact_for_the_gaussian_of_a_dirichlet():
    alpha = torch.tensor([[5.0, 2.0, 9.0, 4.0], [3.0, 3.0, 3.0, 3.0]], dtype=torch.float64)
    c = 4
    mean = alpha.log() - alpha.log().mean(1, keepdim=True)
    inverse = 1 / alpha
    shared = inverse[:, :, None] + inverse[:, None] - inverse.sum(1)[:, None, None] / c
    covariance = torch.diag_embed(inverse) - shared / c
    expected = alpha / alpha.sum(1, keepdim=True)
    torch.testing.assert_close(laplace_bridge(mean, covariance), expected)
    common = torch.full_like(covariance, 3.0)  # what all outputs share, a softmax does not see
    torch.testing.assert_close(laplace_bridge(mean + 2.0, covariance + common), expected)
