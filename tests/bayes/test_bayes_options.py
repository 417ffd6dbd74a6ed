"""Every option of the linearised Laplace posterior against dense matrices: last layer, temperature, priors by layer."""

import copy
import logging
import math
from functools import partial

import pytest
import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.nn import functional as F

from mercer.bayes import (
    DeepEnsemble,
    Familiarity,
    KroneckerLaplace,
    LinearizedLaplace,
    TemperatureScaling,
    TrajectoryGP,
)
from mercer.bayes.likelihood import Gaussian, LaplaceBridge, Probit, Samples, Softmax
from mercer.bayes.prior_choice import Trial, best_precision_and_noise, least_as_good
from tests.bayes.cases import classifier, jacobian, points, seeded, softmax_hessian, trained


@pytest.fixture(scope="module")
def network():
    x, y = points(30)
    return trained(classifier(), x, y, F.cross_entropy)


@pytest.fixture(scope="module")
def new():
    return 2 * torch.randn(6, 3, generator=seeded(1), dtype=torch.float64)


def last_layer(j):
    return j[..., -27:]  # 8 x 3 weights and 3 biases


def covariance_of(j, jt, hessian, precision):
    ggn = torch.einsum("ncp,ncd,ndq->pq", j, hessian, j)
    sigma = torch.linalg.inv(ggn + torch.diag(precision.expand(len(ggn))))
    return torch.einsum("ncp,pq,mdq->nmcd", jt, sigma, jt)


@pytest.mark.parametrize("parameters", ["all", "last"])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_every_weights_and_temperatures_posterior_is_the_dense_one(network, new, parameters, temperature):
    x, y = points(30)
    f = LinearizedLaplace(
        network, k=1000, prior_precision=0.5, parameters=parameters, temperature=temperature, generator=seeded()
    ).fit((x, y))
    cut = last_layer if parameters == "last" else lambda j: j
    hessian = softmax_hessian(network(x).detach() / temperature) / temperature**2
    delta = torch.tensor(0.5, dtype=torch.float64)
    expected = covariance_of(cut(jacobian(network, x)), cut(jacobian(network, new)), hessian, delta)
    torch.testing.assert_close(f.logits(new, joint=True)[1], expected, rtol=1e-6, atol=1e-8)
    own = expected.diagonal(dim1=0, dim2=1).permute(2, 0, 1)
    torch.testing.assert_close(f.logits(new)[1], own, rtol=1e-6, atol=1e-8)
    mean, variance = network(new).detach(), own.diagonal(dim1=1, dim2=2)
    proba = Probit()(mean / temperature, variance / temperature**2)
    torch.testing.assert_close(f.predict_proba(new), proba, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("parameters", "prior"),
    [("last", 0.5), ("last", "evidence"), ("all", "evidence")],
    ids=["last-number", "last-evidence", "all-evidence"],
)
def test_the_posterior_of_a_regression_is_the_dense_one(new, parameters, prior):
    x, _ = points(30)
    y = torch.stack((x[:, 0].sin(), x[:, 1], x[:, 2]), 1)
    model = trained(classifier(), x, y, F.mse_loss)
    options = {"parameters": parameters, "prior_precision": prior, "k": 1000}
    f = LinearizedLaplace(model, likelihood="regression", **options).fit((x, y))
    cut = last_layer if parameters == "last" else lambda j: j
    hessian = torch.eye(3, dtype=torch.float64).expand(30, 3, 3) / f.noise_
    old, fresh = cut(jacobian(model, x)), cut(jacobian(model, new))
    delta = torch.full((old.shape[2],), f.prior_precision_, dtype=torch.float64)
    expected = covariance_of(old, fresh, hessian, delta)
    torch.testing.assert_close(f.logits(new, joint=True)[1], expected, rtol=1e-6, atol=1e-8)
    own = expected.diagonal(dim1=0, dim2=1).permute(2, 0, 1).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(f.predict(new)[1], own + f.noise_, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("parameters", ["all", "last"])
def test_the_evidence_is_the_dense_formula(network, parameters):
    x, y = points(30)
    f = LinearizedLaplace(network, k=1000, prior_precision=0.5, parameters=parameters, temperature=1.5).fit((x, y))
    j = jacobian(network, x)
    j = last_layer(j) if parameters == "last" else j
    theta = torch.cat([p.detach().flatten() for p in network.parameters()])[-j.shape[2] :]
    outputs = network(x).detach() / 1.5
    ggn = torch.einsum("ncp,ncd,ndq->pq", j, softmax_hessian(outputs) / 1.5**2, j)
    p = len(ggn)
    log_prior = 0.5 * p * math.log(0.5 / (2 * math.pi)) - 0.25 * theta.square().sum()
    log_det = torch.logdet(ggn + 0.5 * torch.eye(p, dtype=torch.float64))
    dense_ = -F.cross_entropy(outputs, y, reduction="sum") + log_prior + 0.5 * p * math.log(2 * math.pi) - 0.5 * log_det
    assert f.log_marginal_likelihood() == pytest.approx(float(dense_), rel=1e-8)


def test_the_evidence_of_a_regression_is_the_dense_formula():
    x, _ = points(30)
    y = torch.stack((x[:, 0].sin(), x[:, 1]), 1)
    model = trained(classifier(c=2), x, y, F.mse_loss)
    f = LinearizedLaplace(model, parameters="all", likelihood="regression", k=1000, prior_precision="evidence").fit(
        (x, y)
    )
    j, delta, s = jacobian(model, x), f.prior_precision_, f.noise_
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])
    ggn = torch.einsum("ncp,ncq->pq", j, j) / s
    fit = -0.5 * ((model(x).detach() - y).square() / s + math.log(2 * math.pi * s)).sum()
    log_det = torch.logdet(ggn / delta + torch.eye(len(ggn), dtype=torch.float64))
    expected = fit - 0.5 * delta * theta.square().sum() - 0.5 * log_det
    assert f.log_marginal_likelihood() == pytest.approx(float(expected), rel=1e-8)


def test_samples_hold_what_lies_outside_the_directions(network, new):
    x, y = points(30)
    f = LinearizedLaplace(network, parameters="all", k=4, prior_precision=0.7, generator=seeded()).fit((x, y))
    drawn = f.sample(new[:2], 6000).flatten(1)
    exact = f.logits(new[:2], joint=True)[1].transpose(1, 2).reshape(6, 6)
    deviation = exact.diagonal().sqrt()
    assert ((torch.cov(drawn.mT) - exact) / (deviation[:, None] * deviation)).abs().max() < 0.12


def test_precision_and_temperature_are_chosen_together_on_validation_rows():
    x, y = points(120)
    model = trained(classifier(), x[:40], y[:40], F.cross_entropy, 600)
    val = x[40:80], y[40:80]
    f = LinearizedLaplace(model, parameters="all", k=1000, generator=seeded()).fit((x[:40], y[:40]), val)

    def losses(precision, temperature):
        other = LinearizedLaplace(
            model, parameters="all", k=1000, prior_precision=precision, temperature=temperature, generator=seeded()
        )
        proba = other.fit((x[:40], y[:40])).predict_proba(val[0])
        return -proba.gather(1, val[1][:, None]).log()[:, 0]

    own = losses(f.prior_precision_, f.temperature_)
    assert f.validation_loss_["posterior"] == pytest.approx(float(own.mean()), rel=1e-6)
    t = TemperatureScaling(model).fit(val).temperature_
    found = [losses(p, s * t) for p in (0.1, 1.0, 10.0, 1e8) for s in (0.25, 0.5, 1.0)]
    best = min(found, key=lambda each: each.mean())

    assert own.mean() < 1.02 * best.mean()  # 0.5 %, and the grids of both
    assert f.validation_loss_["temperature"] == pytest.approx(float(losses(1e8, t).mean()), abs=1e-5)
    assert f.validation_loss_["network"] == pytest.approx(
        float(F.cross_entropy(model(val[0]), val[1]).detach()), rel=1e-6
    )


def test_of_precisions_that_do_as_well_the_least_is_taken():
    tried = {(1.0, 1.0): 0.3, (1.0, 0.5): 0.204, (2.0, 1.0): 0.2008, (2.0, 0.5): 0.2007, (3.0, 1.0): 0.2}
    trials = [Trial(*pair, loss) for pair, loss in tried.items()] + [Trial(9.0, 1.0, 0.3)]
    assert least_as_good(trials)[:2] == (2.0, 0.5)  # within 0.5 % of 0.2, at the better temperature
    assert least_as_good([*trials, Trial(4.0, 1.0, 0.1)])[:2] == (4.0, 1.0)
    alone = [*trials, Trial(9.0, 2.0, 0.2001)]  # no posterior does nearly as well: 0.2007 is over 0.1 % above
    assert least_as_good(alone)[:2] == (3.0, 1.0)
    assert least_as_good([*trials, Trial(9.0, 2.0, 0.2006)])[:2] == (2.0, 0.5)


@pytest.mark.parametrize("seed", [1, 2])
def test_two_moons_far_away_are_unsure_where_tempered_at_a_temperatures_log_loss(seed):
    x, y = (torch.as_tensor(part) for part in make_moons(1600, noise=0.2, random_state=seed))
    parts = [(x[rows].float(), y[rows]) for rows in (slice(300), slice(300, 600), slice(600, None))]
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))
    trained(model, *parts[0], F.cross_entropy, 400)
    far = 8 * F.normalize(torch.randn(100, 2, generator=seeded(seed)), dim=1)
    doubt, loss = {}, {}
    for make in (partial(LinearizedLaplace, generator=seeded()), TemperatureScaling):
        f = make(model).fit(*parts[:2])
        doubt[make] = float(1 - f.predict_proba(far).amax(1).mean())
        loss[make] = float(F.nll_loss(f.predict_proba(parts[2][0]).log(), parts[2][1]))
        if make is TemperatureScaling:
            continue
        familiar = Familiarity(model, generator=seeded()).fit(*parts[:2])
        doubt["tempered"] = float(1 - familiar.temper(far, f.predict_proba(far)).amax(1).mean())
        tempered = familiar.temper(parts[2][0], f.predict_proba(parts[2][0]))
        loss["tempered"] = float(F.nll_loss(tempered.log(), parts[2][1]))
    ours, tempered, rival = doubt  # another processor trains another network: .25 to .40, and losses .97 to 1.04
    assert doubt[tempered] > 0.1 > 2 * max(doubt[ours], doubt[rival]), doubt  # of at most 0.5
    assert max(loss[ours], loss[tempered]) < 1.1 * loss[rival], loss


def test_fit_says_where_a_temperature_does_as_well(caplog):
    x, _ = points(60)
    noisy = torch.randint(3, (60,), generator=seeded())  # nothing to know: a high temperature is all there is to say
    model = trained(classifier(), x[:20], noisy[:20], F.cross_entropy, 300)
    with caplog.at_level(logging.WARNING, "mercer"):
        LinearizedLaplace(model, parameters="last", generator=seeded()).fit((x[:20], noisy[:20]), (x[20:], noisy[20:]))
    assert "does as well on the validation rows" in caplog.text
    assert "TemperatureScaling(model) is simpler" in caplog.text


def test_a_last_layer_that_cannot_be_linearised_is_named():
    x, y = points()
    frozen = classifier()
    frozen[2].requires_grad_(False)
    with pytest.raises(ValueError, match=r"weight of the last layer that runs must require grad.*; got 2 frozen"):
        LinearizedLaplace(frozen, parameters="last", prior_precision=1.0).fit((x, y))
    with pytest.raises(ValueError, match=r"weight of the last layer that runs must.*got no layer with a weight"):
        LinearizedLaplace(nn.BatchNorm1d(3).double(), parameters="last", prior_precision=1.0).fit((x, y))

    class Aside(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.aside = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            f = self.head(x).tanh()
            return f, self.aside(x)

    with pytest.raises(ValueError, match="outputs must depend on aside, the last layer that runs"):
        LinearizedLaplace(Aside().double(), parameters="last", prior_precision=1.0).fit((x, y))


def test_derivatives_go_through_what_comes_behind_the_last_layer(new):
    torch.manual_seed(0)
    model, (x, y) = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3), nn.Softplus()).double(), points()
    f = LinearizedLaplace(model, parameters="last", prior_precision=0.5).fit((x, y))
    model[0].requires_grad_(False)
    j = [jacobian(model, rows)[..., -15:] for rows in (x, new)]
    curvature = torch.einsum("ncp,ncd,ndq->pq", j[0], softmax_hessian(model(x).detach()), j[0])
    sigma = torch.linalg.inv(curvature + 0.5 * torch.eye(15, dtype=torch.float64))
    torch.testing.assert_close(f.logits(new)[1], torch.einsum("ncp,pq,ndq->ncd", j[1], sigma, j[1]))


def test_freezing_the_network_after_the_fit_changes_nothing(network, new):
    x, y = points(30)
    model = classifier()
    f = LinearizedLaplace(model, parameters="all", k=5, prior_precision=1.0, generator=seeded()).fit((x, y))
    before = f.predict_proba(new)
    model.requires_grad_(False)
    torch.testing.assert_close(f.predict_proba(new), before)


def test_the_noise_of_a_regression_is_refined_beyond_its_grid():
    wanted = (0.37, 0.222)
    score = lambda p, s: (math.log(p / wanted[0])) ** 2 + 3 * math.log(s / wanted[1]) ** 2  # noqa: E731
    precision, noise = best_precision_and_noise(score, 0.15)
    assert precision == pytest.approx(wanted[0], rel=0.01)
    assert noise == pytest.approx(wanted[1], rel=0.01)


def test_the_bridge_sees_the_covariance_between_outputs():
    mean = torch.tensor([[1.0, 0.0, -1.0]], dtype=torch.float64)
    common = torch.full((1, 3, 3), 2.0, dtype=torch.float64) + 0.2 * torch.eye(3, dtype=torch.float64)
    truth = Samples(40_000, seeded())(mean, common)
    bridge = LaplaceBridge()
    blind = bridge(mean, torch.diag_embed(common[0].diagonal()[None]))
    assert (bridge(mean, common) - truth).abs().max() < 0.9 * (blind - truth).abs().max()
    x, y = points(30)
    model = classifier()
    f = LinearizedLaplace(
        model, parameters="all", k=1000, prior_precision=0.05, link="laplace_bridge", generator=seeded()
    ).fit((x, y))
    torch.testing.assert_close(f.predict_proba(x), bridge(*f.logits(x)))


def test_the_bridge_is_never_farther_from_draws_than_its_diagonal_form():
    covariances = {
        "independent": lambda a: torch.eye(a.shape[1], dtype=a.dtype).expand_as(a),
        "common": lambda a: torch.eye(a.shape[1], dtype=a.dtype) * 0.3 + 2 * torch.ones_like(a),
        "opposed": lambda a: 3 * (torch.eye(a.shape[1], dtype=a.dtype) - 1 / a.shape[1]).expand_as(a) * 1.5,
        "one direction": lambda a: 3 * a[:, :, :1] @ a[:, :, :1].mT + 0.05 * torch.eye(a.shape[1], dtype=a.dtype),
        "any": lambda a: 2 * a @ a.mT / a.shape[1],
        "unequal": lambda a: torch.diag_embed((1.5 * a[:, 0]).exp()),
    }
    bridge, farther = LaplaceBridge(), {}
    for c in (2, 3, 10):
        for size in (0.5, 3.0):
            mean = size * torch.randn(5, c, generator=seeded(c), dtype=torch.float64)
            root = torch.randn(5, c, c, generator=seeded(c + 1), dtype=torch.float64)
            for name, make in covariances.items():
                covariance = make(root)
                draws = Samples(20_000, seeded(2))(mean, covariance)  # standard error of the sum below 0.01
                whole = (bridge(mean, covariance) - draws).abs().sum(1)
                diagonal = (bridge(mean, covariance.diagonal(dim1=1, dim2=2)) - draws).abs().sum(1)
                if float(whole.mean()) > float(diagonal.mean()) + 2e-3 or bool((whole > diagonal + 0.04).any()):
                    farther[c, size, name] = float(whole.mean()), float(diagonal.mean())
    assert farther == {}


def convolutional():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 2, 2), nn.ReLU(inplace=True), nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3, 2)]
    return nn.Sequential(*layers).double()


def test_kronecker_factors_of_convolutions_are_the_literal_ones():
    model, x = convolutional(), torch.randn(5, 1, 4, 4, generator=seeded(), dtype=torch.float64)
    f = KroneckerLaplace(model, prior_precision=0.4).fit((x, torch.arange(5) % 2))
    j = jacobian(model, x)
    hessian = softmax_hessian(model(x).detach())
    first = F.unfold(x, 2).mT  # (n, t, in)
    maps = model[1](model[0](x)).detach()
    second = F.unfold(maps, 3).mT
    hidden = model[2](maps).detach().flatten(1)[:, None]
    sizes, total = [10, 57, 8], torch.zeros(5, 2, 2, dtype=torch.float64)
    shapes = [(2, 4), (3, 18), (2, 3)]
    new = jacobian(model, x)
    outputs = [lambda z: model[4](model[3](model[2](z.relu()))), lambda z: model[4](model[3](z)), lambda z: z]
    zs = [model[0](x).detach(), model[2](maps).detach(), model(x).detach()]
    for a, out, z, part, (rows, columns) in zip(
        (first, second, hidden), outputs, zs, new.split(sizes, 2), shapes, strict=True
    ):
        ones = torch.cat((a, torch.ones_like(a[..., :1])), 2)
        left = torch.einsum("ntp,ntq->pq", ones, ones) / 5
        b = torch.autograd.functional.jacobian(lambda z, out=out: out(z).sum(0), z)  # (c, n, out, ...)
        b = b.flatten(3) if b.ndim > 3 else b[..., None]  # (c, n, out, t)
        right = torch.einsum("cnot,ncd,dnpt->op", b, hessian, b) / a.shape[1]
        sigma = torch.linalg.inv(torch.kron(right, left) + 0.4 * torch.eye(part.shape[2], dtype=torch.float64))
        weight, bias = part[..., : rows * columns].reshape(5, 2, rows, columns), part[..., rows * columns :]
        whole = torch.cat((weight, bias[..., None]), 3).flatten(2)
        total += torch.einsum("ncp,pq,ndq->ncd", whole, sigma, whole)
    torch.testing.assert_close(f.logits(x)[1], total)
    assert j.shape[2] == sum(sizes)


def test_kronecker_chooses_its_prior_on_validation_rows():
    x, y = points(60)
    model = trained(classifier(), x[:20], y[:20], F.cross_entropy, 300)
    f = KroneckerLaplace(model, prior_precision="validation").fit((x[:20], y[:20]), (x[20:], y[20:]))

    def loss(precision):
        proba = KroneckerLaplace(model, prior_precision=precision).fit((x[:20], y[:20])).predict_proba(x[20:])
        return float(F.nll_loss(proba.log(), y[20:]))

    assert loss(f.prior_precision_) <= min(loss(p) for p in (1e-2, 0.1, 1.0, 10.0, 100.0)) + 1e-9
    with pytest.raises(ValueError, match=r"needs a val_loader; got None. Give one, or a number"):
        KroneckerLaplace(model, prior_precision="validation").fit((x, y))


def test_a_temperature_has_the_least_log_loss_and_keeps_the_labels():
    x, y = points(60)
    model = trained(classifier(), x[:20], y[:20], F.cross_entropy, 300)
    f = TemperatureScaling(model).fit((x[:20], y[:20]), (x[20:], y[20:]))
    logits = model(x).detach()
    torch.testing.assert_close(f.predict_proba(x), (logits / f.temperature_).softmax(1))
    torch.testing.assert_close(f.predict(x), logits.argmax(1))
    best = float(F.cross_entropy(logits[20:] / f.temperature_, y[20:]))
    assert (
        best
        <= min(float(F.cross_entropy(logits[20:] / t, y[20:])) for t in (0.5, 1, 2, 4, f.temperature_ * 1.02)) + 1e-9
    )
    assert not f.logits(x)[1].any()


def test_a_deep_ensemble_is_the_mean_of_its_networks():
    x, y = points(60)
    torch.manual_seed(3)
    models = [
        trained(
            nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)).double(), x[:20], y[:20], F.cross_entropy, 200
        )
        for _ in range(3)
    ]
    f = DeepEnsemble(models)
    outputs = torch.stack([m(x).detach() for m in models])
    torch.testing.assert_close(f.predict_proba(x), outputs.softmax(2).mean(0))
    f.fit((x[:20], y[:20]), (x[20:], y[20:]))
    loss = lambda t: float(F.nll_loss((outputs[:, 20:] / t).softmax(2).mean(0).log(), y[20:]))  # noqa: E731
    assert loss(f.temperature_) <= min(loss(t) for t in (0.7, 1.0, 1.5, 3.0)) + 1e-9
    mean, covariance = f.logits(x)
    torch.testing.assert_close(mean, outputs.mean(0))
    centred = outputs - outputs.mean(0)
    torch.testing.assert_close(covariance, torch.einsum("mnc,mnd->ncd", centred, centred) / 3)


def test_eigenfunctions_of_a_trajectory_in_one_pass():
    x, y = points(300)
    x = x.float()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer, models = torch.optim.SGD(model.parameters(), 0.5), []
    for step in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x[:200]), y[:200]).backward()
        optimizer.step()
        if step >= 40 and step % 4 == 0:
            models.append(copy.deepcopy(model))

    def make(how):
        gp = TrajectoryGP(models, eigenfunctions=how, precision=1.0, k=3, network_steps=800, generator=seeded())
        return gp.fit((x[:200], y[:200]))

    fast, slow = make("network"), make("models")
    assert (fast.predict_proba(x[200:]) - slow.predict_proba(x[200:])).abs().mean() < 0.01
    for a, b in zip(fast.logits(x[200:]), slow.logits(x[200:]), strict=True):
        torch.testing.assert_close(a, b)
    calls = []
    for m in models:
        m.register_forward_hook(lambda *_: calls.append(1))
    fast.predict_proba(x[200:])
    assert not calls  # the user's own networks are not run at all


def test_likelihoods_have_the_curvature_of_their_densities():
    f = torch.randn(4, 3, generator=seeded(), dtype=torch.float64)
    cases = [
        (Softmax(1.7), torch.tensor([0, 1, 2, 0]), 3),
        (Softmax(0.6), torch.tensor([0, 1, 1, 0]), 1),
        (Gaussian(0.3), f.sin(), 3),
    ]
    for density, y, c in cases:
        for row, target in zip(f[:, None, :c], y.split(1), strict=True):
            loss = partial(_surprise, density, target)
            hessian = torch.autograd.functional.hessian(loss, row)[0, :, 0]
            eye = torch.eye(c, dtype=torch.float64)[None]
            torch.testing.assert_close(density.curvature_product(row, eye)[0], hessian)
            root = density.curvature_root(row, eye)[0]
            torch.testing.assert_close(root @ root.mT, hessian)


def _surprise(density, y, f):
    return -density.log_density(f, y)[0]
