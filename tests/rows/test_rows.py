"""Rows of a tensor, of a file and of two ranks give the same sums, draws and blocks."""

import numpy as np
import pytest
import torch

from mercer.rows import open_rows
from mercer.rows.rows import Rows

X = torch.arange(24.0, dtype=torch.float64).reshape(8, 3).sin()
Y = torch.arange(8.0, dtype=torch.float64).cos()


def stored(tmp_path):
    np.save(tmp_path / "x.npy", X.numpy())
    return open_rows(tmp_path / "x.npy")


@pytest.mark.parametrize("source", ["tensor", "file"])
def test_sums_means_and_maps_equal_those_of_the_whole_tensor(source, tmp_path):
    rows = Rows(X if source == "tensor" else stored(tmp_path), Y)
    assert rows.n == len(rows) == 8 and rows.place == slice(0, 8)
    for row_bytes in (None, 2**26, 2**25, 2**24):  # all rows at once, then one, two and four a block
        torch.testing.assert_close(rows.sum(lambda x, y: x.mT @ y, row_bytes=row_bytes), X.mT @ Y)
        torch.testing.assert_close(rows.mean(lambda x, y: x.square().sum(0), row_bytes=row_bytes), X.square().mean(0))
        torch.testing.assert_close(rows.map(lambda x, y: x[:, 0] * y, row_bytes=row_bytes), X[:, 0] * Y)
    assert [len(block[0]) for block in rows.blocks(2**25)] == [2, 2, 2, 2]


def test_rows_are_taken_drawn_and_gathered_by_number(tmp_path):
    rows = Rows(stored(tmp_path))
    torch.testing.assert_close(rows.take(torch.tensor([5, 0, 5])), X[[5, 0, 5]])
    torch.testing.assert_close(rows.gather(), X)
    drawn = rows.sample(3, torch.Generator().manual_seed(0))
    again = Rows(X).sample(3, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn, again)
    assert len(drawn.unique(dim=0)) == 3 and len(rows.sample(99, None)) == 8
    x, y = Rows(X, Y).take(torch.tensor([1]))
    torch.testing.assert_close((x, y), (X[1:2], Y[1:2]))


def test_no_rows_are_one_empty_block():
    none = Rows(X[:0], Y[:0])
    torch.testing.assert_close(none.sum(lambda x, y: x.mT @ y), torch.zeros(3, dtype=torch.float64))
    assert none.map(lambda x, y: x).shape == (0, 3) and none.n == 0


def test_parts_of_two_lengths_are_refused():
    with pytest.raises(ValueError, match="Rows: parts must be of one length; got 8 and 3"):
        Rows(X, Y[:3])
