"""Scores against scikit-learn's, and against the definition written as a loop."""

import pytest
import torch
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score

from mercer import metrics


@pytest.fixture(params=[torch.float32, torch.float64])
def predictions(request, generator):
    probabilities = torch.randn(300, 4, generator=generator, dtype=request.param).mul(3).softmax(1)
    labels = torch.multinomial(probabilities.sqrt(), 1, generator=generator)[:, 0]
    return probabilities, labels


def test_against_scikit_learn(predictions):
    p, y = predictions
    near = lambda value: pytest.approx(value, rel=1e-6)  # noqa: E731
    exact = (p.double() / p.double().sum(1, keepdim=True)).numpy()
    assert metrics.accuracy(p, y) == metrics.accuracy(p.argmax(1), y) == near(accuracy_score(y, p.argmax(1)))
    assert metrics.nll(p, y) == near(log_loss(y, exact))
    assert metrics.brier(p, y) == near(brier_score_loss(y, exact, labels=range(4), scale_by_half=False))


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_ece_is_its_definition(predictions, bins):
    p, y = predictions
    p = torch.cat([p, torch.tensor([[1.0, 0, 0, 0], [0.6, 0.4, 0, 0]], dtype=p.dtype)])
    y = torch.cat([y, torch.tensor([0, 1])])
    expected = 0.0
    confidence, predicted = p.double().max(1)
    for b in range(bins):
        inside = (confidence > b / bins) & (confidence <= (b + 1) / bins)
        if inside.any():
            gap = (predicted == y)[inside].double().mean() - confidence[inside].mean()
            expected += float(inside.double().mean() * gap.abs())
    assert metrics.ece(p, y, bins) == pytest.approx(expected, abs=1e-12)
    assert metrics.ece(p, y) == metrics.ece(p, y, bins=15)


def test_a_calibrated_and_an_overconfident_forecast():
    p = torch.tensor([[0.75, 0.25]] * 4)
    assert metrics.ece(p, torch.tensor([0, 0, 0, 1])) == pytest.approx(0.0)
    assert metrics.ece(p, torch.tensor([1, 1, 1, 1])) == pytest.approx(0.75)


def test_auroc_with_ties(generator):
    a = torch.randint(0, 6, (200,), generator=generator).double()
    b = torch.randint(1, 9, (70,), generator=generator).double()
    truth = torch.cat([torch.zeros(200), torch.ones(70)])
    assert metrics.auroc(a, b) == pytest.approx(roc_auc_score(truth, torch.cat([a, b])), abs=1e-12)
    assert metrics.auroc(a, a) == pytest.approx(0.5)
    assert metrics.auroc(torch.tensor([0.0, -torch.inf]), torch.tensor([torch.inf, 1.0])) == 1.0


def test_a_sure_mistake_costs_much_and_stays_finite():
    p, y = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    assert metrics.nll(p, y) == pytest.approx(-torch.tensor(torch.finfo(torch.float32).eps).log().item())


@pytest.mark.parametrize(
    ("p", "y", "reason"),
    [
        (torch.eye(2), torch.tensor([0, 2]), r"nll: labels must be whole numbers in 0..1; got torch.int64 from 0 to 2"),
        (torch.eye(2), torch.tensor([0.0, 0.5]), r"labels must be whole numbers in 0..1; got torch.float32"),
        (torch.eye(2), torch.tensor([0]), r"scores and labels must have as many rows; got 2 and 1"),
        (torch.zeros(0, 2), torch.zeros(0).long(), r"labels must have at least one row; got \(0,\)"),
        (torch.tensor([[2.0, -1.0]]), torch.tensor([0]), r"sum to 1; got -1.0e\+00. Pass probabilities, not logits"),
        (torch.tensor([[2.0, 1.0]]), torch.tensor([0]), r"sum to 1; got a row that is off by 2.0e\+00"),
        (torch.tensor([[torch.nan, 1.0]]), torch.tensor([0]), r"scores must be finite; got NaN, first bad row 0"),
        (torch.eye(2), torch.eye(2), r"must have shapes \(n, c\) and \(n,\); got \(2, 2\) and \(2, 2\)"),
        (torch.eye(2), torch.tensor([0, 1], device="meta"), r"must be on one device; got cpu and meta"),
    ],
)
def test_bad_input_is_named(p, y, reason):
    with pytest.raises(ValueError, match=reason):
        metrics.nll(p, y)


def test_auroc_refuses():
    with pytest.raises(ValueError, match=r"auroc: unfamiliar must not hold NaN; got 1 of them"):
        metrics.auroc(torch.ones(2), torch.tensor([torch.nan]))
    with pytest.raises(ValueError, match=r"auroc: familiar must have shape \(n,\), n > 0; got \(0,\)"):
        metrics.auroc(torch.ones(0), torch.ones(1))
