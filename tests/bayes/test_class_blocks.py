"""The posterior of a last layer with many outputs against the dense matrix of all its weights."""

import math

import pytest
import torch
from torch import nn

import mercer
from mercer.bayes import LinearizedLaplace, class_blocks, linearized_laplace
from mercer.bayes.likelihood import Probit
from tests.bayes.cases import classifier, jacobian, seeded, softmax_hessian

C, WIDTH, PRECISION = 40, 60, 0.3  # 2,440 weights: above the 2,000 that are taken whole as one matrix
LAST = C * (WIDTH + 1)


@pytest.fixture(scope="module")
def network():
    return classifier(5, C, WIDTH)


@pytest.fixture(scope="module")
def rows():
    return 2 * torch.randn(90, 5, generator=seeded(), dtype=torch.float64), torch.arange(90) % C


@pytest.fixture(scope="module")
def new():
    return 2 * torch.randn(4, 5, generator=seeded(1), dtype=torch.float64)


def dense(network, x, new, temperature=1.0):
    """The covariance of all outputs of new rows, ``(n, n, c, c)``, and the logarithm of the determinant."""
    hessian = softmax_hessian(network(x).detach() / temperature) / temperature**2
    j, at = (jacobian(network, part)[..., -LAST:] for part in (x, new))
    ggn = torch.einsum("ncp,ncq->pq", j, torch.einsum("ncd,ndp->ncp", hessian, j))
    precision = ggn + PRECISION * torch.eye(LAST, dtype=torch.float64)
    sigma = torch.linalg.inv(precision)
    return torch.einsum("ncp,pq,mdq->nmcd", at, sigma, at), torch.logdet(precision / PRECISION)


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_the_posterior_of_many_outputs_is_the_dense_one(network, rows, new, temperature):
    f = LinearizedLaplace(network, prior_precision=PRECISION, temperature=temperature).fit(rows)
    expected, log_determinant = dense(network, rows[0], new, temperature)
    torch.testing.assert_close(f.logits(new, joint=True)[1], expected, rtol=1e-6, atol=1e-8)
    own = expected.diagonal(dim1=0, dim2=1).permute(2, 0, 1)
    torch.testing.assert_close(f.logits(new)[1], own, rtol=1e-6, atol=1e-8)
    mean, variance = network(new).detach() / temperature, own.diagonal(dim1=1, dim2=2) / temperature**2
    torch.testing.assert_close(f.predict_proba(new), Probit()(mean, variance), rtol=1e-6, atol=1e-8)
    assert f.class_blocks_.log_determinant == pytest.approx(float(log_determinant), rel=1e-8)


def test_draws_have_the_covariance(network, rows, new):
    f = LinearizedLaplace(network, prior_precision=PRECISION, generator=seeded()).fit(rows)
    drawn = f.sample(new[:2], 8000)[:, :, :3].flatten(1)
    joint = f.logits(new[:2], joint=True)[1][:, :, :3, :3].transpose(1, 2).reshape(6, 6)
    deviation = joint.diagonal().sqrt()
    # a correlation of 8,000 draws has a standard error of at most 0.011
    assert ((torch.cov(drawn.mT) - joint) / (deviation[:, None] * deviation)).abs().max() < 0.06


def test_a_regression_of_many_outputs_is_the_dense_one(rows, new):
    network = classifier(5, C, WIDTH)
    x, y = rows[0], torch.randn(90, C, generator=seeded(2), dtype=torch.float64)
    f = LinearizedLaplace(network, likelihood="regression", prior_precision="evidence").fit((x, y))
    hidden = lambda z: torch.cat((network[:2](z), torch.ones(len(z), 1, dtype=torch.float64)), 1).detach()  # noqa: E731
    phi, at = hidden(x), hidden(new)
    eye = torch.eye(WIDTH + 1, dtype=torch.float64)
    sigma = torch.linalg.inv(phi.mT @ phi / f.noise_ + f.prior_precision_ * eye)
    variance = ((at @ sigma) * at).sum(1)[:, None].expand(-1, C)
    torch.testing.assert_close(f.predict(new)[1], variance + f.noise_, rtol=1e-6, atol=1e-8)


def test_couplings_left_out_keep_the_blocks_of_the_matrix(network, rows, monkeypatch):
    # With no row in U, and with few couplings of few rows, the inverse is that of a positive matrix whose diagonal
    # blocks are exact.
    exact = LinearizedLaplace(network, prior_precision=PRECISION).fit(rows)
    monkeypatch.setattr(class_blocks, "_ROWS", 50)
    monkeypatch.setattr(class_blocks, "_PRODUCTS", 50**2 * (WIDTH + 1) * 10**2 / C)  # ten couplings a row
    some = LinearizedLaplace(network, prior_precision=PRECISION).fit(rows)
    assert some.class_blocks_.features.shape == (50, WIDTH + 1)
    assert ((some.class_blocks_.couplings > 0).sum(1) == 10).all()
    monkeypatch.setattr(class_blocks, "_ROWS", 0)
    none = LinearizedLaplace(network, prior_precision=PRECISION).fit(rows)
    phi = torch.cat((network[:2](rows[0]), torch.ones(90, 1, dtype=torch.float64)), 1).detach()
    p = network(rows[0]).detach().softmax(1)[:, 3]
    block = (phi * (p * (1 - p))[:, None]).mT @ phi + PRECISION * torch.eye(WIDTH + 1, dtype=torch.float64)
    torch.testing.assert_close(none.class_blocks_.covariances[3], torch.linalg.inv(block), rtol=1e-6, atol=1e-8)

    # The inverse of a diagonal block lies below the block of the inverse; couplings come nearer to it.
    traces = [f.class_blocks_.covariances.diagonal(dim1=1, dim2=2).sum() for f in (none, some, exact)]
    assert traces[0] < traces[1] < traces[2]
    assert torch.linalg.eigvalsh(some.logits(rows[0][:3])[1]).min() > 0


def test_the_prior_of_many_outputs_is_chosen_near_the_best(network, rows, new):
    x, y = rows
    f = LinearizedLaplace(network).fit((x[:60], y[:60]), (x[60:], y[60:]))
    assert set(f.validation_loss_) == {"network", "temperature", "posterior"}

    def loss(precision):
        made = LinearizedLaplace(network, prior_precision=precision, temperature=f.temperature_).fit((x[:60], y[:60]))
        return float(-made.predict_proba(x[60:]).gather(1, y[60:, None]).log().mean())

    chosen = loss(f.prior_precision_)
    assert chosen == pytest.approx(f.validation_loss_["posterior"], rel=0.02)  # there by the diagonal blocks alone
    assert chosen < 1.02 * min(loss(p) for p in (0.01, 0.1, 1.0, 10.0, 100.0, 1e4))


def test_the_evidence_chooses_about_the_same_by_blocks(rows, monkeypatch):
    x, y = rows
    small = classifier(5, 12, 8)
    y = y % 12
    whole = LinearizedLaplace(small, prior_precision="evidence").fit((x, y)).prior_precision_
    monkeypatch.setattr(linearized_laplace, "_EXACT_WEIGHTS", 0)
    blocks = LinearizedLaplace(small, prior_precision="evidence").fit((x, y))
    assert blocks.class_blocks_ is not None
    assert abs(math.log(blocks.prior_precision_ / whole)) < math.log(1.5)


def test_saved_and_loaded(network, rows, new, tmp_path):
    f = LinearizedLaplace(network, prior_precision=PRECISION).fit(rows)
    assert "all directions" in repr(f)
    mercer.save(f, tmp_path / "posterior")
    loaded = mercer.load(tmp_path / "posterior").attach(network)
    torch.testing.assert_close(loaded.predict_proba(new), f.predict_proba(new))
    torch.testing.assert_close(loaded.logits(new)[1], f.logits(new)[1])
    assert loaded.log_marginal_likelihood() == f.log_marginal_likelihood()


def test_k_directions_are_still_to_be_had(network, rows):
    f = LinearizedLaplace(network, prior_precision=PRECISION, k=5, parameters="last").fit(rows)
    assert f.class_blocks_ is None
    assert f.directions_.shape == (LAST, 5)


def test_a_layer_without_bias_and_single_precision(rows, new):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, WIDTH), nn.Tanh(), nn.Linear(WIDTH, C, bias=False))
    x, y = rows[0].float(), rows[1]
    single = LinearizedLaplace(network, prior_precision=PRECISION).fit((x, y)).logits(new.float())[1]
    double = LinearizedLaplace(network.double(), prior_precision=PRECISION).fit(rows).logits(new)[1]
    torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-5)
