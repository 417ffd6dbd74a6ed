"""Familiarity: neighbors in the layers and the outputs' entropy, on the scale of rows that it did not see."""

import copy
import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.exceptions import NotFittedError
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import mercer
from mercer import metrics
from mercer.bayes import Familiarity
from tests.bayes.cases import classifier, seeded, trained


def rows(n, seed=0):
    return torch.randn(n, 3, generator=seeded(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def network():
    x = rows(300)
    return trained(classifier(), x, (x[:, 0] > 0).long(), F.cross_entropy, 60)


@pytest.fixture(scope="module")
def fitted(network):
    return Familiarity(network, generator=seeded()).fit(rows(1200))


def test_one_in_twenty_familiar_rows_is_above_a_half_and_strangers_all_are(fitted):
    near = fitted.score(rows(2000, 1))
    assert near.shape == (2000,)
    assert ((near >= 0) & (near <= 1)).all()
    share = float((near > 0.5).double().mean())
    assert abs(share - 0.05) < 0.03  # 300 rows set the tail: five of its standard errors
    far = fitted.score(6 * F.normalize(rows(200, 2)) + rows(200, 3))
    assert float((far > 0.5).double().mean()) > 0.9
    assert fitted.score(torch.full((1, 3), 50.0, dtype=torch.float64)) > 0.9


def test_the_score_is_made_of_neighbors_and_of_the_generalized_entropy(network, fitted):
    assert fitted.layers_ == ["0", "2"]
    x = rows(40, 4)
    before, hidden = network[0](x).detach(), network[1](network[0](x)).detach()  # before the last, and what it reads
    views = fitted._views(network, x)
    z = (before - fitted.shift_) / fitted.scale_
    nearest = (z[:, None] - fitted.known_layers_[None]).norm(dim=2).sort(1).values
    torch.testing.assert_close(views[:, 0], nearest[:, 0])
    u = hidden / hidden.norm(dim=1, keepdim=True)
    nearest = (u[:, None] - fitted.known_directions_[None]).norm(dim=2).sort(1).values
    torch.testing.assert_close(views[:, 1], nearest[:, :10].mean(1), rtol=1e-6, atol=1e-7)
    p = network(x).detach().softmax(1)
    torch.testing.assert_close(views[:, 2], (p**0.1 * (1 - p) ** 0.1).sum(1))
    known = fitted.reference_
    literal = torch.zeros(40, dtype=torch.float64)
    for view, column, rank, far in zip(views.T, known.T, (0.75, 1, 1), (2, 1, 1), strict=True):
        share = (column[None] >= view[:, None]).sum(1).add(1) / (len(column) + 1)
        middle, tail = column.quantile(0.5), column.quantile(0.95)
        literal += -rank * share.log() + far * ((view - tail) / (tail - middle)).clamp_min(0)
    torch.testing.assert_close(fitted._surprise(views), literal)
    order = literal.argsort()
    assert (fitted.score(x)[order].diff() >= 0).all()
    assert all(not module._forward_hooks for module in network.modules())


def test_tempering_keeps_familiar_rows_and_all_labels_and_doubts_strangers(network, fitted):
    near, far = rows(400, 1), torch.full((1, 3), 50.0, dtype=torch.float64)
    proba = network(near).softmax(1).detach()
    tempered, known = fitted.temper(near, proba), fitted.score(near) <= 0.5
    torch.testing.assert_close(tempered[known], proba[known])
    torch.testing.assert_close(tempered.sum(1), torch.ones_like(tempered[:, 0]))
    assert torch.equal(tempered.argmax(1), proba.argmax(1))
    certain = torch.tensor([[0.999, 0.0005, 0.0005]], dtype=torch.float64)
    power = 2 * (1 - fitted.score(far))  # 1 / (1 + b)
    torch.testing.assert_close(fitted.temper(far, certain), certain**power / (certain**power).sum())
    assert fitted.temper(far, certain).max() < 0.6
    with pytest.raises(ValueError, match=r"Familiarity.temper: proba and x must have as many rows; got 400 and 1"):
        fitted.temper(far, proba)


def test_validation_rows_set_the_scale(network):
    wide = 2 * rows(800, 5)
    f = Familiarity(network, generator=seeded()).fit(rows(400), wide)
    assert abs(float((f.score(2 * rows(1000, 6)) > 0.5).double().mean()) - 0.05) < 0.03
    with pytest.raises(ValueError, match=r"rows of val_loader must have the shape of loader's, \(3,\); got \(2,\)"):
        Familiarity(network).fit(rows(400), wide[:, :2])


def test_pictures_sequences_and_named_layers():
    torch.manual_seed(0)
    pictures = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    x = torch.randn(60, 1, 6, 6, generator=seeded())
    f = Familiarity(pictures, generator=seeded()).fit(DataLoader(TensorDataset(x, torch.zeros(60)), batch_size=16))
    assert f.layers_ == ["0", "2", "4"]
    assert f.score(x).shape == (60,)
    assert f.shift_.shape == (8 + 8,)  # mean and deviation of each channel
    assert f.known_directions_.shape == (45, 16)  # what the last layer reads
    named = Familiarity(pictures, layers=["1"], generator=seeded()).fit(x)
    assert named.shift_.shape == (8,)
    with pytest.raises(ValueError, match="name must be a layer of Sequential; got 'head'"):
        Familiarity(pictures, layers=["head"])

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(11, 6), nn.Linear(6, 3)

        def forward(self, input_ids, attention_mask):
            mask = attention_mask[..., None].float()
            return self.head((self.embedding(input_ids) * mask).sum(1) / mask.sum(1))

    batch = {"input_ids": torch.randint(11, (40, 5), generator=seeded()), "attention_mask": torch.ones(40, 5).long()}
    assert Familiarity(Masked(), generator=seeded()).fit([batch]).score(batch).shape == (40,)


def test_copies_threads_and_files_give_the_same(network, fitted, tmp_path):
    x = rows(30, 7)
    expected = fitted.score(x)
    unpickled = pickle.loads(pickle.dumps(fitted))  # noqa: S301
    mercer.save(fitted, tmp_path / "familiarity")
    loaded = mercer.load(tmp_path / "familiarity")
    with pytest.raises(RuntimeError, match="a network must be attached first"):
        loaded.score(x)
    for other in (copy.deepcopy(fitted), unpickled, loaded.attach(network)):
        torch.testing.assert_close(other.score(x), expected)
    with ThreadPoolExecutor(3) as threads:
        for found in threads.map(fitted.score, [x] * 9):
            torch.testing.assert_close(found, expected)


def test_bad_rows_and_networks_are_named(network, fitted):
    with pytest.raises(NotFittedError, match="Familiarity: must be fitted first"):
        Familiarity(network).score(rows(3))
    bad = rows(5)
    bad[2, 1] = math.nan
    for ask in (fitted.score, Familiarity(network).fit):
        with pytest.raises(ValueError, match="x must be finite; got NaN, first bad row 2"):
            ask(bad)
    with pytest.raises(ValueError, match="x has 4 features, expecting 3"):
        fitted.score(torch.ones(2, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"the network must run on these rows; got rows of shape \(4,\)"):
        Familiarity(network).fit(torch.ones(9, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="loader must have at least 2 rows; got 1"):
        Familiarity(network).fit(rows(1))
    with pytest.raises(TypeError, match=r"model must be an nn.Module; got str"):
        Familiarity("net")
    broken = copy.deepcopy(network)
    f = Familiarity(broken, generator=seeded()).fit(rows(50))
    with torch.no_grad():
        broken[0].weight.fill_(math.nan)
    with pytest.raises(ValueError, match="the network's outputs must be finite"):
        f.score(rows(3))


def test_constant_rows_are_learned(network):
    same = torch.ones(20, 3, dtype=torch.float64)
    f = Familiarity(network, generator=seeded()).fit(same)
    assert torch.isfinite(f.score(same)).all()
    assert (f.score(same + 5) >= f.score(same)).all()


def test_near_and_far_strangers_are_told_apart_from_familiar_rows():
    """Digits 0 to 6 are familiar, 7 to 9 near strangers, noise is far: all three views have their part."""
    bunch = load_digits()
    x, y = torch.tensor(bunch.data / 16, dtype=torch.float32), torch.tensor(bunch.target)
    order = torch.randperm(len(x), generator=seeded())
    x, y = x[order], y[order]
    known, near = x[y < 7], x[y >= 7]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 7))
    trained(model, known[:700], y[y < 7][:700], F.cross_entropy, 150)
    f = Familiarity(model, generator=seeded()).fit(known[:700], known[700:900])
    familiar = f.score(known[900:])
    assert metrics.auroc(familiar, f.score(near)) > 0.93
    assert metrics.auroc(familiar, f.score(torch.rand(300, 64, generator=seeded()))) > 0.97
    outputs = lambda rows: -model(rows).detach().logsumexp(1)  # noqa: E731
    assert metrics.auroc(familiar, f.score(near)) > metrics.auroc(outputs(known[900:]), outputs(near)) + 0.005


def test_it_says_what_it_reads(network, fitted):
    assert repr(Familiarity(network)) == "Familiarity(Sequential): not fitted"
    assert repr(fitted) == "Familiarity(Sequential): reads 0, 2; 900 rows known"


@pytest.mark.parametrize("load", [load_digits, load_breast_cancer, load_wine], ids=["digits", "cancer", "wine"])
def test_one_in_twenty_new_familiar_rows_is_above_one_half_with_few_reference_rows(load):
    features, labels = load(return_X_y=True)
    x, y = torch.tensor(features, dtype=torch.float32), torch.tensor(labels)
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-3)
    shares = []
    for seed in range(8):
        order = torch.randperm(len(x), generator=seeded(seed))
        train, reference, new = order[:60], order[60:100], order[100:]
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(x.shape[1], 16), nn.ReLU(), nn.Linear(16, int(y.max()) + 1))
        network = trained(network, x[train], y[train], F.cross_entropy, 100)
        scores = Familiarity(network, generator=seeded(seed)).fit(x[train], x[reference]).score(x[new])
        shares.append(float((scores > 0.5).double().mean()))
    # A share has a variance of .05 * .95 * (1 / 40 + 1 / new) by the draw of the reference rows and of the new ones.
    error = (0.05 * 0.95 * (1 / 40 + 1 / len(new)) / 8) ** 0.5
    assert abs(sum(shares) / 8 - 0.05) < 2.5 * error, shares


def test_reference_rows_are_compared_with_the_others():
    network = classifier(dtype=torch.float32)
    f = Familiarity(network).fit(torch.randn(60, 3, generator=seeded()), torch.randn(30, 3, generator=seeded(1)))
    views = torch.randn(30, 3, generator=seeded(2), dtype=torch.float64)
    f.reference_ = views.sort(0).values
    left_out = f._surprise(views, left_out=True)
    for i, row in enumerate(views):
        f.reference_ = torch.cat((views[:i], views[i + 1 :])).sort(0).values
        torch.testing.assert_close(left_out[i], f._surprise(row[None])[0])
