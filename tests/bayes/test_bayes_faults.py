"""Bad rows, labels, networks and files given to posteriors: one sentence, or the same answer; never a silent NaN."""

import math
from types import SimpleNamespace

import pytest
import torch
from sklearn.exceptions import DataConversionWarning, NotFittedError
from torch import nn

import mercer
from mercer.bayes import KroneckerLaplace, LinearizedLaplace, TrajectoryGP
from mercer_papers.rivals import SWAG
from tests.bayes.cases import classifier, points, seeded


def others():
    return [classifier(), nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double()]


def laplace(model=None, **options):
    return LinearizedLaplace(
        model or classifier(), **{"parameters": "all", "k": 5, "prior_precision": 1.0, "generator": seeded(), **options}
    )


POSTERIORS = {  # a new posterior joins the whole suite by adding one line here
    "laplace": laplace,
    "kronecker": lambda: KroneckerLaplace(classifier()),
    "trajectory": lambda: TrajectoryGP(others(), precision=1.0, network_steps=5),
}
PREDICTORS = {name: (lambda make=make: make().fit(points())) for name, make in POSTERIORS.items()} | {
    "swag": lambda: SWAG(others(), samples=3, generator=seeded())
}


def spoiled(value, dtype=torch.float64):
    x, _ = points(dtype=dtype)
    x = x.clone()
    x[3, 1] = value
    return x


@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (lambda x, y: (spoiled(math.nan), y), "x must be finite; got NaN, first bad row 3"),
        (lambda x, y: (spoiled(-math.inf), y), "x must be finite; got infinity, first bad row 3"),
        (lambda x, y: (spoiled(1e200), y), "x must stay below .* because its squares overflow; got 1.0e.200"),
        (lambda x, y: (x[:0], y[:0]), "x must have at least one row"),
        (lambda x, y: (x, y[:5]), "x and y must have as many rows; got 20 and 5"),
        (lambda x, y: (x, y + 2), r"labels must be whole numbers in 0..2, shape \(n,\); got 2..4"),
        (lambda x, y: (x, y - 1), r"labels must be whole numbers in 0..2, shape \(n,\); got -1.."),
        (lambda x, y: (x, y.double()), "labels must be whole numbers in 0..2"),
        (lambda x, y: (x, torch.full((20,), math.nan)), "y must be finite; got NaN"),
        (lambda x, y: (x[:, 0], y), r"x must be a tensor of shape \(n, ...\); got \(20,\)"),
    ],
)
def test_bad_training_rows_are_refused(name, data, sentence):
    with pytest.raises(ValueError, match=sentence):
        POSTERIORS[name]().fit(data(*points()))


@pytest.mark.parametrize("name", PREDICTORS)
def test_bad_rows_at_prediction_are_refused(name):
    f = PREDICTORS[name]()
    for x, sentence in [
        (spoiled(math.nan), "x must be finite; got NaN, first bad row 3"),
        (spoiled(math.inf), "x must be finite; got infinity, first bad row 3"),
        (spoiled(1e200), "because its squares overflow"),
        (points()[0][:0], "x must have at least one row"),
        (points()[0][0], r"x must be a tensor of shape \(n, ...\); got \(3,\)"),
        ([[1.0, 2.0, 3.0]], "x must be a tensor of shape .* got list"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            f.predict_proba(x)


@pytest.mark.parametrize("name", POSTERIORS)
def test_another_number_of_features_is_named(name):
    with pytest.raises(ValueError, match="x has 4 features, expecting 3"):
        PREDICTORS[name]().predict_proba(torch.ones(2, 4, dtype=torch.float64))


def test_another_shape_of_pictures_is_named():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    f = laplace(model).fit((torch.randn(6, 1, 4, 4), torch.arange(6) % 2))
    with pytest.raises(ValueError, match=r"rows of x must have shape \(1, 4, 4\); got \(2, 1, 5, 5\)"):
        f.predict(torch.randn(2, 1, 5, 5))


@pytest.mark.parametrize(
    "make",
    [laplace, POSTERIORS["kronecker"], lambda: TrajectoryGP(others(), network_steps=5)],
    ids=["laplace", "kronecker", "gp"],
)
def test_prediction_before_fit_is_refused(make):
    with pytest.raises(NotFittedError, match=r"must be fitted first; got no fit. Call fit"):
        make().predict_proba(points()[0])


def test_huge_rows_of_a_float32_network_are_refused():
    model = classifier(dtype=torch.float32)
    x, y = points(dtype=torch.float32)
    with pytest.raises(ValueError, match=r"x must stay below .* got 1.0e.30. Standardise x first"):
        laplace(model).fit((spoiled(1e30, torch.float32), y))
    with pytest.raises(ValueError, match=r"x must stay below .* got 1.0e.30"):
        laplace(model).fit((x, y)).predict_proba(spoiled(1e30, torch.float32))


def test_variances_that_overflow_are_an_error_not_a_number():
    model = classifier(dtype=torch.float32)
    model[1] = nn.Identity()
    x, y = points(dtype=torch.float32)
    f = laplace(model).fit((x, y))
    f.prior_precision_ = 1e-35
    with pytest.raises(ValueError, match="outputs must be finite"):
        f.predict_proba(x * 1e10)


def test_networks_that_are_broken_are_named():
    x, y = points()
    broken = classifier()
    with torch.no_grad():
        broken[0].weight.fill_(math.nan)
    for make in (lambda: laplace(broken), lambda: KroneckerLaplace(broken)):
        with pytest.raises(ValueError, match="the network's outputs must be finite; got NaN or infinity"):
            make().fit((x, y))
    with pytest.raises(ValueError, match="the network's outputs must be finite"):
        TrajectoryGP([broken, classifier()], precision=1.0).predict_proba(x)
    with pytest.raises(ValueError, match="model must have parameters that require grad; got none"):
        laplace(classifier().requires_grad_(False))
    with pytest.raises(TypeError, match=r"model must be an nn.Module; got str"):
        LinearizedLaplace("net", parameters="all")


def test_options_are_listed():
    for make, sentence in [
        (
            lambda: laplace(likelihood="poisson"),
            "likelihood must be one of 'classification', 'regression'; got 'poisson'",
        ),
        (
            lambda: laplace(link="tanh"),
            "link must be one of 'probit', 'pairwise', 'laplace_bridge', 'samples'; got 'tanh'",
        ),
        (lambda: laplace(eigenfunctions="net"), "eigenfunctions must be one of 'derivatives', 'network'; got 'net'"),
        (lambda: laplace(prior_precision=-1.0), "prior_precision must be positive; got -1.0"),
        (
            lambda: laplace(prior_precision="cv"),
            "prior_precision must be one of 'validation', 'evidence'; got 'cv'",
        ),
        (lambda: laplace(k=0), "k must be a whole number of at least 1; got 0"),
        (lambda: TrajectoryGP(others(), precision="evidence"), "precision must be one of 'validation'; got 'evidence'"),
        (lambda: TrajectoryGP(others(), likelihood="poisson"), "TrajectoryGP: likelihood must be one of"),
        (lambda: TrajectoryGP(others()[:1]), "models must hold at least 2 networks"),
        (lambda: SWAG(others()[:1]), "SWAG: models must hold at least 2 networks; got 1"),
        (lambda: SWAG(others(), scale=-1.0), "scale must be 0 or more; got -1.0"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            make()


def test_likelihoods_are_kept_apart():
    x, y = points()
    with pytest.raises(ValueError, match=r"targets must be \(20, 3\); got \(20, 1\)"):
        laplace(likelihood="regression").fit((x, y.double()))
    with pytest.raises(ValueError, match="y must be finite; got NaN"):
        laplace(likelihood="regression").fit((x, spoiled(math.nan)))
    for f in (laplace(likelihood="regression"), TrajectoryGP(others(), likelihood="regression", network_steps=5)):
        with pytest.raises(ValueError, match="Use predict, which gives mean and variance"):
            f.fit((x, x)).predict_proba(x)
    with pytest.raises(ValueError, match=r"learns its noise from rows; got neither loader. Give loader or val_loader"):
        TrajectoryGP(others(), likelihood="regression").fit()


def test_one_row_one_class_and_constant_rows_fit():
    x, y = points()
    for data in ((x[:1], y[:1]), (x, torch.zeros_like(y)), (torch.ones_like(x), y), (x[:1].expand(20, -1), y)):
        f = laplace(prior_precision="evidence").fit(data)
        assert torch.isfinite(f.predict_proba(x)).all()
        assert (f.logits(x)[1].diagonal(dim1=1, dim2=2) >= 0).all()


def test_a_column_of_labels_is_taken_with_a_warning():
    x, y = points()
    with pytest.warns(DataConversionWarning, match=r"labels of shape \(n, 1\) were taken as \(n,\)"):
        column = laplace().fit((x, y[:, None]))
    torch.testing.assert_close(column.predict_proba(x), laplace().fit((x, y)).predict_proba(x))
    two = classifier(c=2)
    assert torch.isfinite(laplace(two).fit((x, y > 0)).predict_proba(x)).all()  # booleans are labels


def test_rows_of_any_dtype_and_layout():
    x, y = points()
    x = (x * 4).round()  # exact in every dtype below
    single = classifier(dtype=torch.float32)
    expected = laplace(single).fit((x.float(), y)).predict_proba(x.float())
    for rows in (x, x.half(), x.bfloat16(), x.to(torch.int8), x.long(), x.float().mT.contiguous().mT):
        proba = laplace(single).fit((rows, y)).predict_proba(rows)
        assert proba.dtype == torch.float32
        torch.testing.assert_close(proba, expected)
    torch.testing.assert_close(laplace(single).fit((x.numpy(), y.numpy())).predict_proba(x), expected)
    with torch.no_grad():
        coarse = laplace(classifier(dtype=torch.bfloat16)).fit((x.bfloat16(), y)).predict_proba(x.bfloat16())
    assert coarse.dtype == torch.float32
    assert (coarse - expected).abs().max() < 0.05
    needs_grad = x.float().requires_grad_()
    assert not laplace(single).fit((needs_grad, y)).predict_proba(needs_grad).requires_grad


def test_modes_weights_and_rows_are_left_as_they_were():
    x, y = points(dtype=torch.float32)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
    model(x)
    model.train()
    model[2].eval()
    before, rows = {k: v.clone() for k, v in model.state_dict().items()}, x.clone()
    f = laplace(model).fit((x, y))
    assert torch.equal(f.predict_proba(x), f.predict_proba(x))  # no dropout
    alone = torch.cat([f.predict_proba(row[None]) for row in x])
    torch.testing.assert_close(alone, f.predict_proba(x))  # no statistics of the batch
    assert [m.training for m in model] == [True, True, False, True, True]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(x, rows)


class Adapted(nn.Module):
    """A frozen linear layer with a trained low-rank part beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 6).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class TokenClassifier(nn.Module):
    """As transformers' models are: tokens in, an object with logits out."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6).requires_grad_(False)
        self.layer, self.head = Adapted(), nn.Linear(6, 3).requires_grad_(False)

    def forward(self, ids):
        return SimpleNamespace(logits=self.head(self.layer(self.embedding(ids)).tanh().mean(1)))


@pytest.mark.parametrize("how", ["derivatives", "network"])
def test_adapters_of_a_language_model(how):
    torch.manual_seed(0)
    model, ids = TokenClassifier().double(), torch.randint(11, (30, 5), generator=seeded())
    f = laplace(model, k=1000, eigenfunctions=how, network_steps=20).fit((ids, torch.arange(30) % 3))
    assert f.directions_.shape == (24, 24)  # of the adapters alone
    assert torch.isfinite(f.predict_proba(ids)).all()
    j = torch.stack([torch.cat([g.flatten() for g in gradients]) for gradients in _gradients(model, ids)])
    j = j.reshape(30, 3, 24)
    p = model(ids).logits.softmax(1).detach()
    hessian = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    sigma = torch.linalg.inv(torch.einsum("ncp,ncd,ndq->pq", j, hessian, j) + torch.eye(24, dtype=torch.float64))
    torch.testing.assert_close(f.logits(ids)[1], torch.einsum("ncp,pq,ndq->ncd", j, sigma, j))


def _gradients(model, ids):
    weights = [p for p in model.parameters() if p.requires_grad]
    logits = model(ids).logits
    return [torch.autograd.grad(value, weights, retain_graph=True) for value in logits.flatten()]


@pytest.mark.parametrize("how", ["derivatives", "network"])
def test_saved_without_its_network_and_attached_to_it(tmp_path, how):
    x, y = points(dtype=torch.float32)
    model = classifier(dtype=torch.float32)
    f = laplace(model, eigenfunctions=how, network_steps=20, prior_precision="evidence").fit((x, y))
    mercer.save(f, tmp_path / "posterior")
    loaded = mercer.load(tmp_path / "posterior")
    with pytest.raises(
        RuntimeError, match=r"a network must be attached first; got a posterior from a file. Call attach"
    ):
        loaded.predict_proba(x)
    copy = classifier(dtype=torch.float32)
    copy.load_state_dict(model.state_dict())
    torch.testing.assert_close(loaded.attach(copy).predict_proba(x), f.predict_proba(x))
    with torch.no_grad():
        copy[0].weight.mul_(1.01)
    with pytest.raises(ValueError, match=r"0.weight must hold 24 numbers of norm .* Load the weights"):
        loaded.attach(copy)
    copy[0].bias.requires_grad_(False)
    with pytest.raises(ValueError, match=r"parameters that require grad must be 0.weight, 0.bias.* got 0.bias"):
        loaded.attach(copy)


def test_what_cannot_be_saved_says_what_to_do(tmp_path):
    with pytest.raises(TypeError, match="its networks are yours to save, by their state_dict; got 2 of them"):
        mercer.save(TrajectoryGP(others(), precision=1.0), tmp_path)
    assert not list(tmp_path.iterdir())
