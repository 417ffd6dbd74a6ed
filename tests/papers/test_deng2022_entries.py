"""The rivals of deng2022's entries are what the slides say."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from mercer.kernels import RBF
from mercer_papers.backbones import LeNet5
from mercer_papers.catalogue import entry
from mercer_papers.deng2022 import cnn_gp, fig6, lla
from mercer_papers.deng2022.algorithm1 import LowRankLaplace, OneNetworkEach, algorithm_1, conv_net, small_mlp
from mercer_papers.deng2022.measures import AllRowsNystrom
from tests.papers.reference_entries import annealed_map, nystrom_of_all_rows


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


def test_map_of_figure_6_is_annealed_not_the_last_snapshot(generator, monkeypatch):
    x, y = torch.randn(128, 3, 32, 32, generator=generator), torch.arange(128) % 10
    monkeypatch.setattr(fig6, "_load", lambda *_: ((x, y), None, None))
    trained = fig6._train.__wrapped__("", len(x), 0, epochs=2, kept=2, seed=3, device="cpu")
    expected = annealed_map(LeNet5, x, y, steps=4, seed=3)
    for p, q in zip(trained.annealed.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
    last = trained.snapshots.models[-1]
    assert any(not torch.equal(p, q) for p, q in zip(last.parameters(), expected.parameters(), strict=True))


ENTRIES = ("mlp-gp", "ntk", "lla", "fig6", "cost")


@pytest.mark.parametrize("name", ENTRIES)
def test_algorithm_1_is_a_row_of_its_own_at_every_scale(name):
    """The paper's method beside ours, never ours in its place."""
    chosen = entry(f"deng2022/{name}")
    for scale in ("smoke", "small", "paper"):
        rows = [cell.row for cell in chosen.load().cells(chosen, scale)]
        assert any("Algorithm 1" in row for row in rows) and any("Algorithm 1" not in row for row in rows)


def test_algorithm_1_trains_one_network_a_function_and_nothing_comes_after_it(generator):
    x = torch.randn(64, 2, generator=generator)
    f = algorithm_1(RBF(0.5), 3, lambda: small_mlp(2), steps=30, seed=1).fit(x)
    network = f.network
    assert isinstance(network, OneNetworkEach) and len(network.functions) == 3
    # the functions are the networks' outputs, each scaled to mean square 1, in the order of their eigenvalues
    outputs = f.basis(x).detach().double()
    shares = f.eigenfunctions(x).detach().double() / outputs[:, f.projection.abs().argmax(0)]
    assert float((shares / shares.mean(0) - 1).abs().max()) < 1e-4
    weights = [p.detach() for p in network.functions[0].parameters()]
    assert all(not torch.equal(a, b) for a, b in zip(weights, network.functions[1].parameters(), strict=True))


def test_low_rank_laplace_is_the_slides_formula(generator):
    x, y = torch.randn(30, 2, generator=generator), torch.randint(3, (30,), generator=generator)
    model, reader = (torch.nn.Linear(2, out) for out in (3, 3 * 4))
    laplace = LowRankLaplace(model, lambda rows: reader(rows).reshape(-1, 3, 4)).fit((x, y), (x, y))
    with torch.no_grad():
        psi, p = reader(x).reshape(-1, 3, 4).double(), model(x).double().softmax(1)
    inner = laplace.prior_precision_ * torch.eye(4, dtype=torch.float64)
    for psi_i, p_i in zip(psi, p, strict=True):  # sum_i Psi_i^T (diag(p_i) - p_i p_i^T) Psi_i + I / sigma_0^2
        inner = inner + psi_i.mT @ (torch.diag(p_i) - torch.outer(p_i, p_i)) @ psi_i
    variance = torch.stack([(psi_i @ torch.linalg.inv(inner) @ psi_i.mT).diagonal() for psi_i in psi])
    logits = model(x).double() / (1 + torch.pi / 8 * variance).sqrt()
    torch.testing.assert_close(laplace.predict_proba(x), logits.softmax(1).detach(), rtol=1e-8, atol=1e-10)


def _made_up(name, rows, **_):
    n, m = rows
    x = torch.rand(
        n + m, *((1, 28, 28) if name == "mnist" else (3, 32, 32)), generator=torch.Generator().manual_seed(0)
    )
    y = torch.arange(n + m) % 10
    return SimpleNamespace(x_train=x[:n], y_train=y[:n], x_test=x[n:], y_test=y[n:])


def test_the_paper_scale_of_cnn_gp_is_the_authors_script(monkeypatch):
    """One ConvNet a function on features that are computed once; Nystrom on a sample; their two kernels."""
    monkeypatch.setattr(cnn_gp, "load", _made_up)
    chosen = entry("deng2022/cnn-gp")
    cells = {cell.row: cell for cell in chosen.load().cells(chosen, "paper")}
    settings = cells["NeuralEF, CNN-GP"].settings
    assert (settings["samples"], settings["steps"], settings["nystrom_rows"]) == (2000, 20_000, 6000)
    tiny = {"rows": 40, "test_rows": 20, "samples": 3, "steps": 2, "nystrom_rows": 20}
    for row in ("NeuralEF, CNN-GP", "Nystrom, CNN-GP", "Nystrom, polynomial", "Nystrom, RBF"):
        outcome = cnn_gp.run(replace(cells[row], settings={**cells[row].settings, **tiny}))
        assert 0 <= outcome.value <= 100
    assert sum(p.numel() for p in conv_net(1).parameters()) == 314_177  # 320 + 64 + 18,496 + 128 + 295,040 + 129


def test_resnet_20_is_read_by_algorithm_1(monkeypatch):
    monkeypatch.setattr(lla, "load", _made_up)
    monkeypatch.setattr(lla, "published_resnet20", LeNet5)
    monkeypatch.setattr(lla, "_CHOOSE", 20)
    chosen = entry("deng2022/lla")
    cells = {cell.row: cell for cell in chosen.load().cells(chosen, "small")}
    tiny = {"rows": 12, "test_rows": 12, "strangers": 8, "k": 3, "directions": 4, "function steps": 2}
    for row in ("ResNet-20, Algorithm 1, k = 20", "ResNet-20, k = 20, no complement"):
        outcome = lla.run(replace(cells[row], settings={**cells[row].settings, **tiny}))
        assert outcome.values["NLL"] > 0
