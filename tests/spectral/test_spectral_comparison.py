"""Tiles, shared passes, and the tables of `compare` and `layers`."""

import logging
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mercer import NumericalWarning, checks
from mercer.kernels import RBF, Cosine, Laplacian, Linear, Matern, Polynomial, ReLUGram
from mercer.kernels.base import Products
from mercer.kernels.tiled_gram import TiledGram
from mercer.spectral import analyze, compare, layers
from mercer.spectral.comparison import spectra
from mercer.spectral.gram_matrices import gram_matrices

KERNELS = {
    "linear": Linear(),
    "cosine": Cosine(),
    "polynomial": Polynomial(2, 0.5, 1.0),
    "plain polynomial": Polynomial(3, 0.5, 0.0),
    "rbf": RBF(0.4),
    "relu": ReLUGram(),
    "relu of rbf": ReLUGram(RBF(0.7)),
    "sum": RBF(0.3) + 2.0 * Linear(),
    "product": RBF(0.3) * Cosine() ** 2,
}


def rows(n=60, d=5, seed=0):
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_follow_from_shared_products(name):
    x = rows()
    x[3], x[4] = x[2], 0.0  # a duplicate, and a row of zeros
    squared = x.square().sum(1)
    assert KERNELS[name].follows_from_products
    tile = KERNELS[name].gram_from_products(Products(x, x, (squared, squared)))
    torch.testing.assert_close(tile, KERNELS[name](x), rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize(
    "kernel", [Laplacian(), Matern(), RBF(torch.ones(5)), ReLUGram(Polynomial()), RBF() + Matern()]
)
def test_other_kernels_are_asked_themselves(kernel):
    assert not kernel.follows_from_products
    x = rows()
    (gram,) = gram_matrices("test", [kernel], x, "float64")
    eye = torch.eye(60, dtype=torch.float64)
    torch.testing.assert_close(gram.matmul(eye), kernel(x).detach())


def test_a_kernel_that_changes_a_formula_is_asked_itself():
    class Shifted(Linear):
        def gram(self, x, y):
            return x @ y.mT + 1

    x = rows()
    gram, _ = gram_matrices("test", [Shifted(), Linear()], x, "float64")  # the two could share scalar products
    torch.testing.assert_close(gram.matmul(x), Shifted()(x) @ x)


def test_tiles_lie_in_one_block_of_memory():
    # one by one, between temporaries, those of 25,000 rows took 1,600 MiB in place of 600
    (gram,) = gram_matrices("test", [ReLUGram()], rows(1200), "int16")
    blocks = {tile.untyped_storage().data_ptr() for tile, _ in gram._tiles.values()}
    assert len(gram._tiles) == 6 and len(blocks) == 1


@pytest.mark.parametrize("storage", ["float64", "float32", "int16"])
def test_tiles_multiply_as_the_matrix_does(storage):
    x = rows(53)
    exact = ReLUGram()(x)
    exact = (exact + exact.mT) / 2  # some processors round k(x, y) and k(y, x) differently
    gram = TiledGram(53, storage, x.device, side=16)
    for i, j, left, right in gram.pairs():
        gram.put(i, j, exact[left, right].clone())
    gram.settle()
    v = rows(53, 4, seed=1)
    held = gram.dense()
    assert torch.equal(held, held.mT)
    assert float((held - exact).norm()) <= gram.error + 1e-12
    assert gram.error <= {"float64": 0.0, "float32": 1e-6, "int16": 1e-3}[storage]
    accuracy = {"float64": 1e-12, "float32": 1e-5, "int16": 1e-3}[storage]
    torch.testing.assert_close(gram.matmul(v), exact @ v, rtol=0, atol=accuracy)
    torch.testing.assert_close(gram.matmul(v[:, :1]), gram.matmul(v)[:, :1], rtol=0, atol=1e-5)
    assert gram.trace == pytest.approx(float(exact.trace()))
    assert gram.squared_norm == pytest.approx(float(exact.square().sum()))
    assert gram.nbytes < 0.65 * exact.numel() * {"float64": 8, "float32": 4, "int16": 2}[storage]


def test_storage_follows_from_the_free_memory(monkeypatch):
    n = 20_000
    for storage in ("float64", "float32", "int16"):
        monkeypatch.setattr(checks, "available_memory", lambda s=storage: 2 * TiledGram.bytes_for(n, s) + 1)
        assert TiledGram.choose_storage("analyze", "auto", n) == storage
    assert TiledGram.bytes_for(n, "int16") == pytest.approx(n * n, rel=0.06)
    monkeypatch.setattr(checks, "available_memory", lambda: 2**28)
    with pytest.raises(MemoryError, match=r"analyze: H of 20000 rows as int16 tiles needs 0\.4 GiB; got 0\.2 GiB free"):
        TiledGram.choose_storage("analyze", "auto", n)


def test_the_memory_is_said_before_it_is_taken(caplog):
    with caplog.at_level(logging.INFO, logger="mercer"):
        analyze(ReLUGram(), rows(), rows()[:, 0])
    assert "H of 60 rows in float64 tiles takes 0.00 GiB" in caplog.text


def test_shared_spectra_equal_single_ones():
    x = rows(592, 6)
    y = torch.where(x[:, 0] > 0, 1.0, -1.0)
    candidates = {"raw": ReLUGram(), "rbf": ReLUGram(RBF(0.2)), "laplacian": ReLUGram(Laplacian(0.1))}
    found = spectra(candidates, x, y, storage="float64")
    assert list(found) == list(candidates)
    for name, kernel in candidates.items():
        assert found[name].complexity == pytest.approx(analyze(kernel, x, y).complexity, rel=1e-5)


def test_one_product_serves_all_kernels_of_the_same_rows(monkeypatch):
    made = []
    original = Products.__init__
    monkeypatch.setattr(Products, "__init__", lambda self, *a: (made.append(1), original(self, *a))[1])
    spectra({str(g): ReLUGram(RBF(g)) for g in (0.1, 1.0, 3.0, 9.0)}, rows(), rows()[:, 0])
    assert len(made) == 1


def test_compare_ranks_what_suits_the_targets_first():
    x = rows(150, 8)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    noise = rows(150, 8, seed=7)
    table = compare({"noise": noise, "inputs": ReLUGram(), "map": nn.Identity()}, x, y)
    assert list(table.index)[-1] == "noise"
    assert table["ratio"].is_monotonic_increasing
    assert table.loc["inputs", "ratio"] == pytest.approx(analyze(ReLUGram(), x, y).ratio, rel=1e-5)
    assert table.loc["map", "complexity"] == pytest.approx(table.loc["inputs", "complexity"])
    assert table.loc["noise", "ratio"] == pytest.approx(1.0, abs=0.1)
    assert table.loc["inputs", "ratio"] < 0.9
    columns = ["ratio", "complexity", "shuffled", "scaled", "bound", "residual", "largest_stable_lr", "alignment"]
    assert list(table.columns) == [*columns, "effective_dimension"]
    spectrum = analyze(ReLUGram(), x, y)
    assert table.loc["inputs", "complexity"] == pytest.approx(spectrum.complexity, rel=1e-5)


def test_embeddings_may_be_an_array():
    x, y = rows(), rows()[:, 0]
    assert compare({"a": x.numpy(), "b": x}, x, y).eq(compare({"a": x, "b": x}, x, y)).all(axis=None)


def test_compare_does_not_prefer_a_kernel_for_its_scale():
    x = rows(80, 4)
    y = torch.sin(3 * x[:, 0])
    table = compare({"one": RBF(2.0), "hundred": 100.0 * RBF(2.0)}, x, y)
    assert table.loc["one", "scaled"] == pytest.approx(table.loc["hundred", "scaled"], rel=1e-6)


def test_compare_puts_singular_kernels_last():
    x = rows(40, 3)
    with pytest.warns(NumericalWarning, match="singular"):
        table = compare({"linear": Linear(), "relu": ReLUGram()}, x, torch.sign(rows(40, 1, 4)[:, 0]))
    assert list(table.index) == ["relu", "linear"]
    assert table.loc["linear", "complexity"] == math.inf
    assert table.loc["linear", "ratio"] == 1.0


def test_layers_reads_a_network_in_one_order():
    x, y = rows(90, 5).float(), torch.arange(90) % 3
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 3))
    model.train()
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True, generator=generator)
    table = layers(model, loader, ["0", "1", "3"])
    assert set(table.index) == {"0", "1", "3"}
    with torch.no_grad():
        expected = analyze(ReLUGram(), model[:2](x), y)
    assert table.loc["1", "complexity"] == pytest.approx(expected.complexity, rel=1e-3)
    assert model.training


def test_layers_pools_maps_and_reads_all_of_them_in_one_pass(caplog):
    caplog.set_level(logging.INFO, "mercer")
    x, y = torch.randn(90, 2, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    pooled = layers(model, (x, y), ["0", "1", "3"], rows=60)
    assert "60 of 90 rows are read" in caplog.text
    assert not calls  # a private copy ran
    kept = torch.randperm(90, generator=torch.Generator().manual_seed(0))[:60].sort().values
    maps = model[0](x[kept]).detach()
    assert pooled.loc["0", "complexity"] == pytest.approx(analyze(ReLUGram(), maps.mean((2, 3)), y[kept]).complexity)
    flat = layers(model, (x[kept], y[kept]), ["0"], pool=False)
    assert flat.loc["0", "complexity"] == pytest.approx(analyze(ReLUGram(), maps.flatten(1), y[kept]).complexity)
    assert list(pooled.columns) == ["ratio", "complexity", "shuffled"] and pooled["ratio"].is_monotonic_increasing


def test_bad_candidates_are_refused():
    x, y = rows(), rows()[:, 0]
    with pytest.raises(ValueError, match="compare: candidates must name at least one; got none"):
        compare({}, x, y)
    with pytest.raises(ValueError, match="compare: short and x must have as many rows; got 3 and 60"):
        compare({"short": rows(3)}, x, y)
    with pytest.raises(TypeError, match="kernel must be a kernel, a feature map or a Gram matrix; got str"):
        compare({"text": "rbf"}, x, y)
    with pytest.raises(ValueError, match="name must be a layer"):
        layers(nn.Sequential(nn.Linear(5, 2)), DataLoader(TensorDataset(x.float(), y)), ["7"])
