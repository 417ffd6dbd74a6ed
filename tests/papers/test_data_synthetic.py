"""Synthetic sets: the sphere's exact Bayes rule, and what each of masoomi2020's sets is made for."""

import math

import numpy as np
import pytest
import torch

from mercer_papers.data import adversarial, random_labels, sphere, spiral
from mercer_papers.data.synthetic import _log_radial


def literal_density(u, centers, variance):
    """jayasumana2021, Appendix B, read as a sampler: the radius is integrated out of each Gaussian by brute force."""
    r = np.linspace(0, 6, 6001)
    total = 0.0
    for center in centers:
        squared = ((r[:, None] * u[None] - center[None]) ** 2).sum(1)
        gauss = np.exp(-squared / (2 * variance)) / (2 * math.pi * variance) ** 1.5
        total += np.trapezoid(gauss * r**2, r) / len(centers)
    return total


def test_sphere_density_is_the_literal_integral():
    s = sphere(20, 5)
    ours = s.log_density(s.x_train.double()).exp()
    for u, row in zip(s.x_train[:15].double().numpy(), ours, strict=False):
        for label in (0, 1):
            literal = literal_density(u / np.linalg.norm(u), s.centers[label].numpy(), 0.02)
            assert float(row[label]) == pytest.approx(literal, rel=1e-4, abs=1e-12)


def test_sphere_density_integrates_to_one():
    nodes, weights = np.polynomial.legendre.leggauss(200)
    angle = torch.arange(400, dtype=torch.float64) * (2 * math.pi / 400)
    z = torch.from_numpy(nodes)[:, None].expand(-1, 400)
    flat = (1 - z**2).sqrt()
    u = torch.stack([flat * angle.cos(), flat * angle.sin(), z], -1).reshape(-1, 3)
    area = torch.from_numpy(weights)[:, None].expand(-1, 400).reshape(-1, 1) * (2 * math.pi / 400)
    mass = (sphere(5, 5).log_density(u).exp() * area).sum(0)
    torch.testing.assert_close(mass, torch.ones(2, dtype=torch.float64), rtol=1e-8, atol=0)


def test_radial_integral_holds_everywhere_and_joins_smoothly():
    t = torch.tensor([-200.0, -30.0000001, -29.9999999, -5.0, -1e-9, 0.0, 1e-9, 5.0, 200.0], dtype=torch.float64)
    found = _log_radial(t)
    assert torch.isfinite(found).all()
    for value, log in zip(t.tolist()[3:8], found.tolist()[3:8], strict=True):
        r = np.linspace(0, 30, 300_001)
        assert log == pytest.approx(math.log(np.trapezoid(r**2 * np.exp(-(r**2) / 2 + r * value), r)), rel=1e-7)
    assert float(found[1]) == pytest.approx(float(found[2]), abs=1e-6)
    assert float(found[0]) == pytest.approx(math.log(2 / 200**3), abs=1e-3)
    assert float(found[8]) == pytest.approx(200**2 / 2 + math.log((1 + 200**2) * math.sqrt(2 * math.pi)), rel=1e-12)


def test_sphere_has_the_papers_form_and_difficulty():
    s = sphere()
    assert s.x_train.shape == s.x_test.shape == (10_000, 3)
    assert torch.bincount(s.y_train).tolist() == torch.bincount(s.y_test).tolist() == [5000, 5000]
    torch.testing.assert_close(s.x_train.norm(dim=1), torch.ones(10_000))
    accuracy, error = s.bayes_accuracy(40_000)
    assert error < 0.001
    assert abs(accuracy - 0.9506) < 4 * error  # the value the docstring states
    counted = float((s.bayes(s.x_test) == s.y_test).double().mean())
    assert abs(counted - accuracy) < 4 * math.sqrt(accuracy * (1 - accuracy) / 10_000) + 4 * error
    torch.testing.assert_close(s.posterior(s.x_test[:9]).sum(1), torch.ones(9, dtype=torch.float64))


def test_no_rule_beats_bayes():
    s = sphere()
    bayes = s.posterior(s.x_test)
    flipped = s.bayes(s.x_test)
    close = (bayes.amax(1) < 0.6).nonzero()[:, 0]
    flipped[close] = 1 - flipped[close]
    assert (flipped == s.y_test).sum() < (s.bayes(s.x_test) == s.y_test).sum()


def test_spiral_arms_wind_and_balance():
    s = spiral(300)
    y = torch.cat([s.y_train, s.y_test])
    assert torch.bincount(y).tolist() == [100, 100, 100]
    clean = spiral(300, noise=0.0)
    r = clean.x_train.double().norm(dim=1)
    angle = torch.atan2(clean.x_train[:, 1], clean.x_train[:, 0]).double() / (2 * math.pi)
    off = angle - 0.75 * r - clean.y_train / 3
    torch.testing.assert_close(off, off.round(), atol=1e-5, rtol=0)


def test_random_labels_are_balanced_and_unrelated():
    s = random_labels(4000, 1)
    assert torch.bincount(torch.cat([s.y_train, s.y_test])).tolist() == [2000, 2000]
    correlation = np.corrcoef(s.x_train[:, 0].numpy(), s.y_train.numpy())[0, 1]
    assert abs(correlation) < 5 / math.sqrt(3200)


def test_adversarial_neighbours_disagree():
    s = adversarial(80, 2, gap=0.001)
    x, y = torch.cat([s.x_train, s.x_test]).double(), torch.cat([s.y_train, s.y_test])
    distance = torch.cdist(x, x) + torch.eye(80) * 9
    nearest = distance.argmin(1)
    assert (y[nearest] != y).all()
    torch.testing.assert_close(distance.amin(1), torch.full((80,), 0.001, dtype=torch.float64), atol=2e-7, rtol=0)


@pytest.mark.parametrize("make", [spiral, random_labels, adversarial])
def test_folds_partition_and_seeds_repeat(make):
    parts = [make(fold=fold) for fold in range(1, 11)]
    tests = torch.cat([part.x_test for part in parts])
    everything = torch.cat([parts[0].x_train, parts[0].x_test])
    assert len(tests.unique(dim=0)) == len(everything.unique(dim=0)) == len(everything)
    assert torch.equal(make(seed=4).x_train, make(seed=4).x_train)
    assert not torch.equal(make(seed=4).x_train, make(seed=5).x_train)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: adversarial(5), "n must be even, for rows come in pairs; got 5"),
        (lambda: adversarial(gap=0.0), "adversarial: gap must be positive; got 0.0"),
        (lambda: spiral(classes=1), "spiral: classes must be a whole number of at least 2; got 1"),
        (lambda: spiral(noise=float("nan")), "spiral: noise must be 0 or more; got nan"),
        (lambda: random_labels(fold=11), r"fold must be in 1\.\.10, the folds of this set; got 11"),
        (lambda: sphere(0), "sphere: n_train must be a whole number of at least 1; got 0"),
        (lambda: sphere(5, 5).bayes(torch.zeros(2, 4)), "u has 4 features, expecting 3"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
