"""Uncertainty of trained networks: exact at full rank, bounded in memory, never negative, honest about faults."""

import logging
import math

import pytest
import torch
from sklearn.exceptions import NotFittedError
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from mercer.bayes import KroneckerLaplace, LinearizedLaplace, Snapshots, TrajectoryGP
from mercer.bayes.likelihood import curvature_product, curvature_root, laplace_bridge, probit, sampled
from mercer.bayes.prior_variance import PriorVariance
from mercer.kernels import EmpiricalNTK


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def classifier(d=3, c=3, width=8, dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, width), nn.Tanh(), nn.Linear(width, c)).to(dtype)


def points(n=20, d=3, c=3, dtype=torch.float64):
    x = torch.randn(n, d, generator=seeded(), dtype=torch.float64)
    return x.to(dtype), (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long() * (c > 2)


def trained(model, x, y, loss, steps=150):
    optimizer = torch.optim.Adam(model.parameters(), 0.02, weight_decay=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model


def jacobian(model, x):  # -> (n, c, p)
    found = jacrev(lambda p: functional_call(model, p, (x,)))({k: v.detach() for k, v in model.named_parameters()})
    return torch.cat([part.flatten(2) for part in found.values()], 2)


def dense(model, x, test, precision, hessian):  # exact covariance, by weights x weights matrices
    j, jt = jacobian(model, x), jacobian(model, test)
    ggn = torch.einsum("ncp,ncd,ndq->pq", j, hessian, j)
    sigma = torch.linalg.inv(ggn + precision * torch.eye(len(ggn), dtype=ggn.dtype))
    return torch.einsum("ncp,pq,ndq->ncd", jt, sigma, jt)


def softmax_hessian(f):
    p = f.softmax(1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None]


@pytest.mark.parametrize("precision", [0.1, 5.0])
def test_full_rank_equals_the_dense_posterior_of_a_classifier(precision):
    x, y = points()
    model = trained(classifier(), x, y, F.cross_entropy)
    test = torch.randn(6, 3, generator=seeded(1), dtype=torch.float64) * 2
    f = LinearizedLaplace(model, k=1000, prior_precision=precision, generator=seeded()).fit((x, y))
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
    f = LinearizedLaplace(model, likelihood="regression", k=1000, prior_precision=0.5, generator=seeded()).fit((x, y))
    assert f.noise_ == pytest.approx(float((model(x).detach() - y).square().mean()))
    eye = torch.eye(2, dtype=torch.float64).expand(len(x), 2, 2) / f.noise_
    expected = dense(model, x, test, 0.5, eye)
    torch.testing.assert_close(f.logits(test)[1], expected, rtol=1e-6, atol=1e-8)
    mean, variance = f.predict(test)
    torch.testing.assert_close(mean, model(test).detach())
    torch.testing.assert_close(variance, expected.diagonal(dim1=1, dim2=2) + f.noise_, rtol=1e-6, atol=1e-8)


def test_the_complement_makes_few_directions_nearly_exact():
    x, y = points(40)
    model = trained(classifier(), x, y, F.cross_entropy)
    test = torch.randn(10, 3, generator=seeded(1), dtype=torch.float64) * 2
    exact = dense(model, x, test, 1.0, softmax_hessian(model(x).detach())).diagonal(dim1=1, dim2=2)
    errors = {}
    for complement in (True, False):
        f = LinearizedLaplace(model, k=8, complement=complement, prior_precision=1.0, generator=seeded()).fit((x, y))
        own = f.logits(test)[1].diagonal(dim1=1, dim2=2)
        errors[complement] = float(((own - exact).abs() / exact).mean())
        if complement:
            assert (own >= exact * (1 - 1e-6)).all()  # what is not conditioned on cannot shrink
    assert errors[True] < 0.1
    assert errors[True] < errors[False] / 3


def test_variance_is_never_negative_shrinks_with_data_and_reverts_to_the_prior():
    x, y = points(60)
    model = trained(classifier(), x, y, F.cross_entropy)
    far = torch.randn(5, 3, generator=seeded(1), dtype=torch.float64) * 50
    few = LinearizedLaplace(model, k=500, prior_precision=1.0, generator=seeded()).fit((x[:10], y[:10]))
    many = LinearizedLaplace(model, k=500, prior_precision=1.0, generator=seeded()).fit((x, y))
    before, after = (f.logits(x)[1].diagonal(dim1=1, dim2=2) for f in (few, many))
    assert (after >= 0).all()
    assert (after <= before * (1 + 1e-8)).all()
    prior = EmpiricalNTK(model, outputs="full").diag(far)
    assert torch.linalg.eigvalsh(many.logits(far)[1]).min() > -1e-9
    unseen = LinearizedLaplace(model, k=5, prior_precision=1e6, generator=seeded()).fit((x, y))
    torch.testing.assert_close(unseen.logits(far)[1] * 1e6, prior, rtol=1e-3, atol=1e-3)


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
        torch.testing.assert_close(PriorVariance(model)(x, diagonal=diagonal), expected)


def peak_bytes(work):
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


@pytest.mark.parametrize(("classes", "width"), [(250, 120), (1000, 120)])
def test_memory_does_not_grow_with_classes_times_parameters(classes, width):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, classes))
    x, y = torch.randn(24, 10), torch.arange(24) % classes
    parameters = sum(p.numel() for p in model.parameters())

    def work():
        f = LinearizedLaplace(model, k=5, prior_precision=1.0, batch_size=4, iterations=0, generator=seeded())
        assert torch.isfinite(f.fit((x, y)).predict_proba(x[:4])).all()

    peak = peak_bytes(work)
    assert peak < 2**30 / 2
    assert classes < 1000 or peak < classes * parameters * 4 * 24 / 20  # far from the Jacobians of the rows
    assert peak < 400 * 2**20 * max(1.0, classes / 1000)


def test_prior_precision_is_chosen_by_validation_or_evidence(caplog):
    caplog.set_level(logging.INFO, "mercer")
    x, y = points(60)
    model = trained(classifier(), x[:40], y[:40], F.cross_entropy, 400)
    loader = DataLoader(TensorDataset(x[:40], y[:40]), batch_size=7)
    f = LinearizedLaplace(model, k=30, generator=seeded()).fit(loader, (x[40:], y[40:]))
    chosen = f.prior_precision_

    def nll(precision):
        f.prior_precision_ = precision
        return float(-f.predict_proba(x[40:]).gather(1, y[40:, None]).log().mean())

    assert nll(chosen) <= min(nll(p) for p in (1e-3, 1e-1, 1.0, 10.0, 1e3)) + 1e-9
    assert nll(chosen) <= float(F.cross_entropy(model(x[40:]).detach(), y[40:])) + 1e-6
    evidence = LinearizedLaplace(model, k=30, generator=seeded()).fit(loader)
    assert "the evidence decides" in caplog.text
    assert 1e-4 < evidence.prior_precision_ < 1e5


def test_links():
    f = torch.randn(4, 3, generator=seeded(), dtype=torch.float64)
    u = torch.randn(4, 3, 2, generator=seeded(1), dtype=torch.float64)
    hessian = softmax_hessian(f)
    torch.testing.assert_close(curvature_product("classification", f, u, 1.0), hessian @ u)
    eye = torch.eye(3, dtype=torch.float64).expand(4, 3, 3)
    root = curvature_root("classification", f, eye, 1.0)
    torch.testing.assert_close(root @ root.mT, hessian)
    variance = torch.full((4, 3), 0.4, dtype=torch.float64)
    draws = sampled(f, torch.diag_embed(variance), 20_000, seeded(2))
    assert (probit(f, variance) - draws).abs().max() < 0.03
    torch.testing.assert_close(laplace_bridge(f, variance).sum(1), torch.ones(4, dtype=torch.float64))
    assert (laplace_bridge(f, variance).argmax(1) == f.argmax(1)).all()


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
    torch.testing.assert_close(f.predict_proba(test), probit(mean, expected.diagonal(dim1=1, dim2=2)))
    whole = KroneckerLaplace(model, prior_precision=0.3).fit((x, y))
    assert (whole.logits(test)[1].diagonal(dim1=1, dim2=2) < covariance.diagonal(dim1=1, dim2=2)).all()
    with pytest.raises(ValueError, match=r"must belong to linear layers that run once a row; got 0.bias, 0.weight"):
        KroneckerLaplace(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2))).fit(
            (torch.ones(2, 1, 3, 3), torch.tensor([0, 1]))
        )


def test_trajectory_gp_and_snapshots():
    x, y = points(60)
    model = classifier()
    snapshots = Snapshots(model, every=5, most=6)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x[:40]), y[:40]).backward()
        optimizer.step()
        snapshots()
    assert len(snapshots.models) == 6
    gp = TrajectoryGP(snapshots.models, precision=1.0)
    outputs = torch.stack([m(x) for m in snapshots.models])
    mean, covariance = gp.logits(x)
    torch.testing.assert_close(mean, outputs.mean(0))
    centred = outputs - outputs.mean(0)
    torch.testing.assert_close(covariance, torch.einsum("mnc,mnd->ncd", centred, centred) / 6)
    torch.testing.assert_close(gp.predict_proba(x), probit(mean, covariance.diagonal(dim1=1, dim2=2)))
    torch.testing.assert_close(gp.ensemble_proba(x), outputs.softmax(2).mean(0))
    fitted = TrajectoryGP(snapshots.models).fit(None, (x[40:], y[40:]))
    assert 1e-2 <= fitted.precision_ <= 1e3
    weights = torch.stack([m[0].weight for m in snapshots.models]).mean(0)
    torch.testing.assert_close(snapshots.averaged()[0].weight, weights)


def test_faults():
    x, y = points()
    model = classifier()
    make = lambda **options: LinearizedLaplace(model, k=5, prior_precision=1.0, **options)  # noqa: E731
    bad = x.clone()
    bad[3, 1] = math.nan
    broken = classifier()
    with torch.no_grad():
        broken[0].weight.fill_(math.nan)
    for call, match in [
        (lambda: make().fit((bad, y)), r"x must be finite; got NaN, first bad row 3"),
        (lambda: make().fit((x, y + 2)), r"labels must be whole numbers in 0..2, shape \(n,\); got 2..4"),
        (lambda: make().fit((x, y.double())), r"labels must be whole numbers in 0..2"),
        (lambda: make().fit((x[:0], y[:0])), r"at least one row"),
        (lambda: make().fit((x, y)).predict(bad), r"x must be finite; got NaN, first bad row 3"),
        (lambda: make(likelihood="regression").fit((x, y.double())), r"targets must be \(20, 3\); got \(20, 1\)"),
        (
            lambda: make(likelihood="poisson"),
            r"likelihood must be one of 'classification', 'regression'; got 'poisson'",
        ),
        (lambda: make(link="tanh"), r"link must be one of 'probit', 'laplace_bridge', 'samples'; got 'tanh'"),
        (lambda: LinearizedLaplace(model, prior_precision=-1.0), r"prior_precision must be positive; got -1.0"),
        (lambda: LinearizedLaplace(model, prior_precision="cv"), r"prior_precision must be one of .* got 'cv'"),
        (lambda: LinearizedLaplace(broken, prior_precision=1.0).fit((x, y)), r"the network's outputs must be finite"),
        (lambda: LinearizedLaplace(classifier().requires_grad_(False)), r"must have parameters that require grad"),
    ]:
        with pytest.raises(ValueError, match=match):
            call()
    with pytest.raises(NotFittedError, match="LinearizedLaplace: must be fitted first"):
        make().predict(x)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.train()
    make().fit((x, y)).predict_proba(x)
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
