"""The rivals of deng2022's entries are what the slides say."""

import torch
from reference_entries import nystrom_of_all_rows

from mercer.experiments.deng2022.measures import AllRowsNystrom
from mercer.kernels import RBF


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
