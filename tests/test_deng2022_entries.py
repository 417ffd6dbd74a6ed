"""The rivals of deng2022's entries are what the slides say."""

import torch
from reference_entries import annealed_map, nystrom_of_all_rows

from mercer.kernels import RBF
from mercer_papers.backbones import LeNet5
from mercer_papers.deng2022 import fig6
from mercer_papers.deng2022.measures import AllRowsNystrom


def test_nystrom_of_the_slides_decomposes_all_rows(generator):
    x = torch.randn(12, 2, dtype=torch.float64, generator=generator)
    new = torch.randn(3, 2, dtype=torch.float64, generator=generator)
    found = AllRowsNystrom(RBF(0.5), 4).fit(x)
    values, functions = nystrom_of_all_rows(lambda a, b: RBF(0.5)(a[None], b[None])[0, 0], x, new, 4)
    torch.testing.assert_close(found.eigenvalues, values)
    signs = (found.eigenfunctions(new) * functions).sum(0).sign()
    torch.testing.assert_close(found.eigenfunctions(new) * signs, functions)
    torch.testing.assert_close(found.eigenfunctions(x).square().mean(0), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(found(new).square(), functions.square() * values)


def test_map_of_figure_6_is_annealed_not_the_last_snapshot(generator):
    x, y = torch.randn(128, 3, 32, 32, generator=generator), torch.arange(128) % 10
    trained = fig6._train(x, y, epochs=2, kept=2, seed=3)
    expected = annealed_map(LeNet5, x, y, steps=4, seed=3)
    for p, q in zip(trained.annealed.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
    last = trained.snapshots.models[-1]
    assert any(not torch.equal(p, q) for p, q in zip(last.parameters(), expected.parameters(), strict=True))
