"""Rows that stay in their file give what the same rows in memory give, and no more than a block of them is read."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mercer.bayes import LinearizedLaplace
from mercer.layerwise import KernelNetworkRegressor
from mercer.rows.stored import StoredRows, open_rows
from tests.features.cases import CASES, rows

N, D = 40, 3
X = rows(N)


def stored(kind, folder):
    path = folder / f"rows.{kind}"
    if kind == "npy":
        np.save(path, X.numpy())
    elif kind == "safetensors":
        save_file({"x": X}, path)
    else:
        pa = pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
        from pyarrow import parquet

        table = pa.table({name: X[:, i].numpy() for i, name in enumerate("abc")})
        parquet.write_table(table, path, row_group_size=7)
    return path


@pytest.fixture(params=["npy", "safetensors", "parquet"])
def source(request, tmp_path):
    return open_rows(stored(request.param, tmp_path))


def test_it_is_indexed_like_a_tensor(source):
    assert (len(source), tuple(source.shape), source.ndim, source.dtype) == (N, (N, D), 2, torch.float64)
    for index in (slice(None), slice(5, 23), slice(30, 99), slice(3, 20, 4), torch.tensor([39, 0, 7, 6, 0])):
        assert torch.equal(source[index], X[index])
    assert torch.equal(torch.cat(list(source.blocks(9))), X)
    part = source.part(slice(10, 30))
    assert torch.equal(part[3:8], X[13:18]) and torch.equal(part.part(slice(5, 9))[:], X[15:19])
    assert torch.equal(part.then(lambda x: 2 * x.float())[:4], 2 * X[10:14].float())
    narrow = source.then(lambda x: x[:, :2])
    assert tuple(narrow.shape) == (N, 2) and torch.equal(narrow[4:6], X[4:6, :2])
    assert source[torch.empty(0, dtype=torch.int64)].shape == (0, D)


@pytest.mark.parametrize("name", CASES)
def test_every_map_fits_from_a_file_as_from_memory(tmp_path, name):
    path = stored("npy", tmp_path)
    expected = CASES[name]().fit(X)
    for source in (open_rows(path), np.load(path, mmap_mode="r")):
        torch.testing.assert_close(CASES[name]().fit(source).kernel(X), expected.kernel(X))


def test_a_map_of_landmarks_holds_a_block_at_a_time(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr("mercer.rows.rows.BLOCK_BYTES", 6 * 4 * 8 * 8)  # six rows beside eight landmarks
    source = open_rows(stored("npy", tmp_path)).then(lambda block: (read.append(len(block)), block)[1])
    CASES["nystrom"]().fit(source)
    assert max(read) <= 8 and sum(read) >= N  # eight landmarks, then blocks of six


def test_a_posterior_is_fitted_from_a_file_as_from_memory(source):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(D, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)).double()
    labels = (X[:, 0] > 0).long()
    found = [
        LinearizedLaplace(
            network,
            parameters="all",
            k=4,
            prior_precision=1.0,
            batch_size=8,
            generator=torch.Generator().manual_seed(0),
        )
        .fit((given, labels))
        .logits(X)[1]
        for given in (X, source)
    ]
    torch.testing.assert_close(found[0], found[1])


def test_blocks_go_through_partial_fit(source):
    target = X[:, 0] * 2
    whole = KernelNetworkRegressor(random_state=0, landmarks=10).fit(X[:20].numpy(), target[:20])
    streamed = KernelNetworkRegressor(random_state=0, landmarks=10)
    for number, block in enumerate(source.blocks(20)):
        streamed.partial_fit(block, target[20 * number : 20 * number + 20])
    whole.partial_fit(X[20:].numpy(), target[20:])
    np.testing.assert_allclose(streamed.predict(X.numpy()), whole.predict(X.numpy()))


def test_bad_files_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"open_rows: path must end in .npy, .safetensors, .parquet; got rows.csv."):
        open_rows(tmp_path / "rows.csv")
    save_file({"a": X, "b": X.clone()}, tmp_path / "two.safetensors")
    with pytest.raises(ValueError, match=r"open_rows: name must be one of 'a', 'b'; got None."):
        open_rows(tmp_path / "two.safetensors")
    assert torch.equal(open_rows(tmp_path / "two.safetensors", name="b")[:2], X[:2])
    np.save(tmp_path / "flat.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"path must hold numbers of shape \(n, ...\); got float64 of \(3,\)."):
        open_rows(tmp_path / "flat.npy")
    np.save(tmp_path / "nan.npy", np.array([[0.0], [np.nan]]))
    with pytest.raises(
        ValueError, match=r"nan.npy, read from row 1 on: rows must be finite; got NaN, first bad row 0."
    ):
        open_rows(tmp_path / "nan.npy")[1:]
    np.save(tmp_path / "objects.npy", np.array([[object()]]), allow_pickle=True)
    with pytest.raises(
        ValueError, match=r"open_rows: objects.npy must be an array of numbers; got Array can't be memory-mapped"
    ):
        open_rows(tmp_path / "objects.npy")


def test_text_in_a_table_is_refused_by_name(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"a": [1.0, 2.0], "city": ["x", "y"]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"open_rows: column 'city' of t.parquet must be numbers; got object."):
        open_rows(tmp_path / "t.parquet")[:]
    source = open_rows(tmp_path / "t.parquet", columns=["a"])
    assert isinstance(source, StoredRows) and source[:].tolist() == [[1.0], [2.0]]
