"""Row sums on one process, and on three that share the rows unevenly; a rank that dies."""

import subprocess
import sys
import textwrap

import pytest
import torch

from mercer import distributed
from tests.ranks.setup import SETUP


def run(tmp_path, ranks: int, code: str) -> list[tuple[int, str]]:
    arguments = [sys.executable, "-c", SETUP + textwrap.dedent(code), str(tmp_path / "store")]
    started = [
        subprocess.Popen([*arguments, str(i), str(ranks)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for i in range(ranks)
    ]
    ended = [process.communicate(timeout=120) for process in started]
    return [(p.returncode, out + err) for p, (out, err) in zip(started, ended, strict=True)]


def test_one_process_is_the_identity():
    x = torch.randn(3, 2)
    assert distributed.sum_over_ranks(x) is x and distributed.gather_rows(x) is x
    assert (distributed.rank(), distributed.world_size(), distributed.shard(5)) == (0, 1, slice(0, 5))
    with pytest.raises(ValueError, match=r"shard: n must be a whole number of at least 0; got -1."):
        distributed.shard(-1)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 100])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_shards_cover_every_row_once_and_evenly(monkeypatch, n, ranks):
    monkeypatch.setattr(distributed, "world_size", lambda: ranks)
    covered, sizes = [], []
    for i in range(ranks):
        monkeypatch.setattr(distributed, "rank", lambda i=i: i)
        rows = list(range(n))[distributed.shard(n)]
        covered, sizes = covered + rows, [*sizes, len(rows)]
    assert covered == list(range(n)) and max(sizes) - min(sizes) <= 1


def test_three_ranks_agree_with_one_process(tmp_path):
    code = """
        g = torch.Generator().manual_seed(0)
        for n in (2, 10, 101):  # two rows for three ranks: one has none
            x = torch.randn(n, 4, generator=g, dtype=torch.float64)
            mine = x[d.shard(n)]
            kept = mine.clone()
            total = d.sum_over_ranks(mine.T @ mine)
            torch.testing.assert_close(total, x.T @ x, rtol=1e-12, atol=1e-12)
            assert torch.equal(d.gather_rows(mine), x)
            assert torch.equal(mine, kept)
        transposed = torch.arange(6).reshape(2, 3).T  # not contiguous
        assert torch.equal(d.sum_over_ranks(transposed), 3 * transposed)
        assert not d.sum_over_ranks(torch.ones(2, requires_grad=True)).requires_grad
        labels = torch.arange(rank)  # 0, 1 and 2 rows of integers
        assert d.gather_rows(labels).tolist() == [0, 0, 1]
        index = torch.tensor([100, 0, 57, 34, 33, 0, 99])
        assert torch.equal(d.take_rows(mine, index), x[index])
        assert torch.equal(d.take_rows(x[:0] if rank else x, index), x[index])  # rank 0 has all rows
        assert d.global_slice(len(mine)) == (d.shard(101), 101)
        assert torch.equal(torch.cat([part for part, _ in d.shards(mine, labels)]), x)
        assert d.gather_json({"é": rank}) == [{"é": 0}, {"é": 1}, {"é": 2}]
        drawn = torch.rand(3, generator=d.shared_generator(torch.Generator().manual_seed(rank)))
        assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(0)))
        drawn = torch.rand(3, generator=d.shared_generator(None))
        assert torch.equal(d.sum_over_ranks(drawn) / 3, d.gather_rows(drawn[None]).mean(0))
        assert len(d.gather_rows(drawn[None]).unique(dim=0)) == 1
        layer = torch.nn.Linear(2, 2)
        d.broadcast_module(layer)
        assert len(d.gather_rows(layer.weight[None]).unique(dim=0)) == 1
        with d.alone():
            assert d.global_slice(5) == (slice(0, 5), 5)
        for wrong in (torch.ones(1, 1 + rank), torch.ones(1, dtype=torch.float64 if rank else torch.float32)):
            try:
                d.gather_rows(wrong)
            except ValueError as error:
                print(error)
        try:
            d.expect(2)
        except RuntimeError as error:
            print(error)
        from mercer.features import Nystrom
        from mercer.kernels import RBF
        landmarks = x[:9]  # of the last x, 101 rows
        mine, whole = (Nystrom(RBF(0.1), 9, selection=landmarks) for _ in range(2))
        mine.fit(x[d.shard(len(x))])
        dist.destroy_process_group()
        whole.fit(x)  # no longer distributed
        torch.testing.assert_close(mine.eigenvalues, whole.eigenvalues, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(mine.kernel(x), whole.kernel(x), rtol=1e-9, atol=1e-12)
    """
    for status, text in run(tmp_path, 3, code):
        assert status == 0, text
        assert "gather_rows: rows must differ between ranks in number only; got [(1, 1), (1, 2), (1, 3)]." in text
        assert "gather_rows: rows must be of one dtype on all ranks; got torch.float32, torch.float64, torch." in text
        assert "expect: 2 processes must work together; got 3." in text


def test_when_a_rank_dies_the_others_fail(tmp_path):
    code = """
        d.sum_over_ranks(torch.ones(1))
        if rank == 1:
            os._exit(7)
        try:
            d.sum_over_ranks(torch.ones(1))
        except RuntimeError as error:
            print(error)
            os._exit(3)
    """
    (survivor, text), (dead, _) = run(tmp_path, 2, code)
    assert (survivor, dead) == (3, 7), text
    assert "sum_over_ranks: all 2 ranks must take part; rank 0 got" in text and "Did another rank stop?" in text
