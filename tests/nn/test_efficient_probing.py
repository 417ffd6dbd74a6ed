"""Efficient probing, the rival of `kernelize(place="before_pooling")`, equals its formula."""

import pytest
import torch

from mercer.nn import kernelize
from mercer_papers.rivals import EfficientProbing


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("split", [True, False])
def test_each_query_pools_the_places_that_it_likes(split, values):
    generator = torch.Generator().manual_seed(0)
    places = torch.randn(3, 5, 4, generator=generator)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 0]])
    head = EfficientProbing(4, 7, queries=2, split=split, values=values).eval()
    with torch.no_grad():
        head.query.copy_(torch.randn(2, 4, generator=generator))
        if values:
            head.standardise.running_mean.copy_(torch.randn(4 if split else 8, generator=generator))
    for row in range(3):
        pooled = []
        for m in range(2):
            shares = torch.stack(
                [(head.query[m] @ x / 2).exp() * counts for x, counts in zip(places[row], mask[row], strict=True)]
            )
            channels = slice(2 * m, 2 * m + 2) if split else slice(None)
            read = places[row] @ head.value.weight.mT if values else places[row]
            pooled.append((shares[:, None] * read[:, channels]).sum(0) / shares.sum())
        joined = torch.cat(pooled)
        if values:
            joined = (joined - head.standardise.running_mean) / (1 + 1e-6) ** 0.5
        expected = head.linear(joined)
        torch.testing.assert_close(head.at_places(places.mean(1), places, mask)[row], expected)


def test_it_goes_into_a_model_as_the_kernelised_head_does():
    pool = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), *pool, torch.nn.Linear(8, 5))
    model = kernelize(model, place="before_pooling", head=lambda d, c: EfficientProbing(d, c, queries=4))
    model(torch.randn(2, 3, 6, 6)).sum().backward()
    assert model[3].head.query.grad.abs().max() > 0


def test_queries_that_do_not_divide_the_channels_are_refused():
    with pytest.raises(ValueError, match=r"queries must divide in_features, 10; got 4\. Use split=False\."):
        EfficientProbing(10, 3, queries=4)
