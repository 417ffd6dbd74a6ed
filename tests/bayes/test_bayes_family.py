"""What every posterior promises, whatever it is made of: threads, copies, samples, kinds of batches and of outputs."""

import copy
import io
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import mercer
from mercer import bayes
from mercer.bayes import DeepEnsemble, KroneckerLaplace, LinearizedLaplace, Posterior, TemperatureScaling, TrajectoryGP
from mercer_papers.rivals import SWAG
from tests.bayes.cases import classifier, points, seeded


def others(c=3):
    torch.manual_seed(1)
    return [classifier(c=c), nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, c)).double()]


FAMILY = {  # a new posterior joins the whole suite by adding one line here
    "laplace": lambda model, **o: LinearizedLaplace(
        model, parameters="all", k=5, prior_precision=1.0, generator=seeded(), **o
    ),
    "last": lambda model, **o: LinearizedLaplace(
        model, parameters="last", prior_precision=1.0, generator=seeded(), **o
    ),
    "kronecker": lambda model, **o: KroneckerLaplace(model, generator=seeded(), **o),
    "temperature": lambda model, **o: TemperatureScaling(model, **o),
    "ensemble": lambda model, **o: DeepEnsemble([model, copy.deepcopy(model)], generator=seeded(), **o),
    "trajectory": lambda model, **o: TrajectoryGP(
        [model, copy.deepcopy(model)], precision=1.0, network_steps=10, generator=seeded(), **o
    ),
    "swag": lambda model, **o: SWAG([model, copy.deepcopy(model)], samples=3, generator=seeded()),
}
ENSEMBLES = {"ensemble", "trajectory", "swag"}


def several(name, c=3, **options):
    """Of networks that differ, where there are several."""
    made = FAMILY[name](classifier(c=c), **options)
    if name in ENSEMBLES:
        made._networks = others(c)
    return made


def fitted(name, **options):
    x, y = points()
    return several(name, **options).fit((x, x if options.get("likelihood") == "regression" else y))


def test_no_public_posterior_escapes_the_contract():
    public = {
        n for n in bayes.__all__ if isinstance(getattr(bayes, n), type) and issubclass(getattr(bayes, n), Posterior)
    }
    assert public - {"Posterior"} | {"SWAG"} == {type(make(classifier())).__name__ for make in FAMILY.values()}


@pytest.mark.parametrize("name", FAMILY)
def test_three_threads_get_the_right_answers_and_the_network_is_never_changed(name):
    torch.manual_seed(0)
    layers = [nn.Linear(3, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3)]
    model = nn.Sequential(*layers).double().train()
    x, y = points()
    f = FAMILY[name](model).fit((x, y))
    expected = [f.predict_proba(part) for part in x.split(5)]
    state = [(m.training, len(m._forward_hooks)) for m in model.modules()]
    changes = []

    def watch(round_):
        part = round_ % 4
        found = f.predict_proba(x[5 * part : 5 * part + 5])
        changes.append([(m.training, len(m._forward_hooks)) for m in model.modules()] != state)
        changes.append(not all(p.requires_grad and type(p) is nn.Parameter for p in model.parameters()))
        return float((found - expected[part]).abs().max())

    with ThreadPoolExecutor(3) as threads:
        errors = list(threads.map(watch, range(24)))
    assert max(errors) < 1e-12
    assert not any(changes)


@pytest.mark.parametrize("name", FAMILY)
def test_copies_predict_the_same(name):
    x, _ = points()
    f = fitted(name)
    expected = f.predict_proba(x)
    buffer = io.BytesIO()
    torch.save(f, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=False)
    unpickled = pickle.loads(pickle.dumps(f))  # noqa: S301
    for other in (copy.deepcopy(f), unpickled, saved):
        torch.testing.assert_close(other.predict_proba(x), expected)


@pytest.mark.parametrize("name", FAMILY)
def test_weights_that_became_nan_are_named_never_a_confident_label(name):
    f = fitted(name)
    with torch.no_grad():
        f._networks[-1][2].weight.fill_(math.nan)
    for ask in (f.predict_proba, f.predict, f.logits, lambda x: f.sample(x, 2)):
        with pytest.raises(ValueError, match="the network's outputs must be finite"):
            ask(points()[0])


@pytest.mark.parametrize("name", FAMILY)
def test_loaders_of_another_width_are_refused_in_our_sentence(name):
    x, y = points()
    wide = torch.cat((x, x), 1)
    with pytest.raises(
        ValueError, match=r"the network must run on these rows; got rows of shape \(6,\). It says: .*mat1"
    ):
        several(name).fit((wide, y))
    with pytest.raises(ValueError, match=r"must give pairs \(x, y\); got more than 2 items a batch. Give dictionaries"):
        several(name).fit([(x, x, y)])


@pytest.mark.parametrize("name", FAMILY)
def test_samples_match_the_moments(name):
    x, n = points()[0][:3], 4000
    f = fitted(name)
    mean, covariance = f.logits(x, joint=True)
    own = f.logits(x)[1]
    torch.testing.assert_close(covariance.diagonal(dim1=0, dim2=1).permute(2, 0, 1), own)
    drawn = f.sample(x, n)
    assert drawn.shape == (n, 3, 3)
    flat = covariance.transpose(1, 2).reshape(9, 9)
    deviation = flat.diagonal().clamp_min(0).sqrt() + 1e-12
    assert ((drawn.mean(0) - mean).flatten().abs() < 5 * deviation / math.sqrt(n) + 1e-9).all()
    if flat.abs().max() > 0:
        found = torch.cov(drawn.flatten(1).mT)
        assert ((found - flat) / (deviation[:, None] * deviation)).abs().max() < 0.15  # over 6 standard errors


@pytest.mark.parametrize("name", sorted(FAMILY.keys() - {"swag"}))
def test_a_regression_has_mean_and_variance(name):
    x, _ = points()
    f = fitted(name, likelihood="regression")
    mean, variance = f.predict(x)
    assert mean.shape == variance.shape == (20, 3)
    assert (variance >= f.noise_).all()
    with pytest.raises(ValueError, match="Use predict, which gives mean and variance"):
        f.predict_proba(x)


@pytest.mark.parametrize("name", FAMILY)
def test_one_logit_is_a_binary_classifier(name):
    x, y = points()
    f = several(name, c=1).fit((x, (y > 0).long()))
    proba = f.predict_proba(x)
    assert proba.shape == (20, 2)
    torch.testing.assert_close(proba.sum(1), torch.ones(20, dtype=torch.float64))
    mean, covariance = f.logits(x)
    assert covariance.shape == (20, 1, 1)
    if name not in ENSEMBLES:
        scaled = mean / f.temperature_ / (1 + math.pi / 8 * covariance[..., 0] / f.temperature_**2).sqrt()
        torch.testing.assert_close(proba[:, 1:], scaled.sigmoid())
    with pytest.raises(ValueError, match=r"labels must be whole numbers in 0..1, shape \(n,\); got 0..2"):
        several(name, c=1).fit((x, y))


class Masked(nn.Module):
    """As transformers' models are: named arguments in, an object with logits out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 6).requires_grad_(False)
        self.hidden, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, input_ids, attention_mask, extra=None):
        mask = attention_mask[..., None].to(self.hidden.weight.dtype)
        pooled = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1)
        return SimpleNamespace(logits=self.head(self.hidden(pooled if extra is None else pooled + extra).tanh()))


@pytest.mark.parametrize("extra", [False, True], ids=["whole numbers", "floats too"])
@pytest.mark.parametrize("name", FAMILY)
def test_dictionaries_of_arguments_and_masks(name, extra):
    ids, y = torch.randint(11, (12, 5), generator=seeded()), torch.arange(12) % 3
    mask = (torch.arange(5) < 1 + torch.arange(12)[:, None] % 5).long()
    batch = {"input_ids": ids, "attention_mask": mask}
    if extra:
        batch["extra"] = torch.randn(12, 6, generator=seeded(1))
    f = FAMILY[name](Masked()).fit(
        [{**{k: v[i : i + 6] for k, v in batch.items()}, "labels": y[i : i + 6]} for i in (0, 6)]
    )
    mean = f.logits(batch)[0]
    torch.testing.assert_close(mean, Masked()(**batch).logits.detach())
    assert f.predict_proba(batch).shape == (12, 3)
    other = {**batch, "attention_mask": torch.ones_like(mask)}
    assert not torch.allclose(f.logits(other)[0], mean)  # the mask has an effect
    with pytest.raises(ValueError, match="x must be a dictionary of input_ids, attention_mask"):
        f.predict_proba(ids)
    with pytest.raises(ValueError, match=r"input_ids \(5,\).* a row; got .*Pad all rows"):
        f.predict_proba({**batch, "input_ids": ids[:, :4]})


@pytest.mark.parametrize("name", FAMILY)
def test_gradients_flow_to_the_rows_where_asked(name):
    x = points()[0][:2].clone().requires_grad_()
    f = fitted(name)
    assert not f.predict_proba(x).requires_grad
    probability = f.predict_proba(x, gradients=True)[0, 0]
    (gradient,) = torch.autograd.grad(probability, x)
    step = 1e-5 * torch.tensor([[1.0, 0, 0], [0, 0, 0]], dtype=torch.float64)
    with torch.no_grad():
        up, down = (f.predict_proba(x + s * step, gradients=True)[0, 0] for s in (1, -1))
    assert float(gradient[0, 0]) == pytest.approx(float((up - down).detach()) / 2e-5, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("name", ["last", "kronecker", "temperature"])
def test_posteriors_of_one_network_are_saved_without_it(name, tmp_path):
    x, _ = points()
    f = fitted(name)
    mercer.save(f, tmp_path / "posterior")
    loaded = mercer.load(tmp_path / "posterior").attach(classifier())
    torch.testing.assert_close(loaded.predict_proba(x), f.predict_proba(x))
