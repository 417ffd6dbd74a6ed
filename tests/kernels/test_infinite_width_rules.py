"""Every rule of the infinite-width limit: finite networks of that very module, derivatives, dtypes, stored lines."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from mercer import features, spectral
from mercer.kernels import infinite_width, to_gpytorch, trace_network, wide_kernel
from mercer.kernels.layer_rules import EnterConvolution
from mercer.machines import KernelRidge
from mercer_papers.bench.studies import infinite_width as study
from mercer_papers.bench.studies.infinite_width_rules import NETWORKS, WIDTHS, Call, draw_rows, measure


@pytest.mark.parametrize("name", NETWORKS)
def test_finite_networks_approach_the_limit_as_one_over_root_width(name):
    torch.manual_seed(0)
    narrow, wide = measure(name, 32, 24), measure(name, 512, 24)
    for far, near in zip(narrow, wide, strict=True):
        assert near < 0.4 * far, (narrow, wide)  # 1 / sqrt(width) gives 0.25
        assert near * math.sqrt(512) < 4


def test_no_rule_escapes_the_networks(monkeypatch):
    read = set()

    class Table(dict):
        def __getitem__(self, name):
            read.add(name)
            return super().__getitem__(name)

        def get(self, name, default=None):
            read.add(name)
            return super().get(name, default)

    tables = ("LAYERS", "ACTIVATIONS", "RULES")
    known = {name for table in tables for name in getattr(trace_network, table)}
    for table in tables:
        monkeypatch.setattr(trace_network, table, Table(getattr(trace_network, table)))
    for network in NETWORKS.values():
        infinite_width(network.make(4).eval(), example=draw_rows(network.rows)[:1])
    # a softmax is only there to be refused, and `true_divide` is another name of `div`
    assert known - read == {"softmax", "true_divide"}


def stored_lines():
    return [json.loads(line) for line in study.RESULTS.read_text().splitlines()]


def test_the_stored_errors_of_every_rule_fall_as_one_over_root_width():
    lines = {line["name"]: line for line in stored_lines() if line["what"] == "rule"}
    assert set(lines) == set(NETWORKS)
    for name, line in lines.items():
        assert line["widths"] == list(WIDTHS)
        for kernel in ("nngp", "ntk"):
            assert -0.65 < line[f"{kernel}_slope"] < -0.35, name
            assert line[f"{kernel}_errors"][-1] < 0.06, name


@pytest.mark.parametrize("name", NETWORKS)
def test_contract_of_every_rule(name):
    """Symmetric, positive semi-definite, the same in float32, its diagonal, and derivatives in both modes."""
    network = NETWORKS[name]
    torch.manual_seed(1)
    x = draw_rows(network.rows, n=6)
    x = x.double() if x.is_floating_point() else x
    kernel = infinite_width(network.make(8).eval(), example=x[:1], weight_var=1.6, bias_var=0.1)
    gram = kernel(x)
    torch.testing.assert_close(gram, gram.mT)
    assert torch.linalg.eigvalsh(gram).min() > -1e-10 * gram.trace()
    torch.testing.assert_close(kernel.diag(x), gram.diagonal())
    torch.testing.assert_close(kernel(x[:2], x[2:]), gram[:2, 2:])
    if not x.is_floating_point():
        return
    single = kernel(x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), gram, rtol=1e-4, atol=1e-5 * float(gram.max()))
    pair = (x[:2].clone().requires_grad_(), x[2:4].clone().requires_grad_())
    assert torch.autograd.gradcheck(kernel, pair, check_forward_ad=True, fast_mode=True, atol=1e-4)


def first_layers(**options):
    return lambda: nn.Sequential(nn.Conv2d(2, 4, **options), nn.ReLU(), nn.Flatten(), nn.LazyLinear(1))


@pytest.mark.parametrize(
    "make",
    [
        first_layers(kernel_size=3, stride=2, padding=1),
        first_layers(kernel_size=(2, 3), stride=(2, 1)),
        first_layers(kernel_size=2, dilation=2, stride=2, padding=1, bias=False),
        lambda: nn.Sequential(
            Call(lambda x: x.flatten(2)),
            nn.Conv1d(2, 4, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(1),
        ),
    ],
)
@pytest.mark.parametrize("frozen", [(), ("weight",), ("weight", "bias")], ids=str)
def test_the_first_convolution_by_patches_equals_that_by_pixels(make, frozen, monkeypatch):
    torch.manual_seed(0)
    x, model = draw_rows("pictures", n=5).double(), make().double()
    model(x)
    convolution = next(layer for layer in model if isinstance(layer, nn.Conv1d | nn.Conv2d))
    for name in frozen:
        if getattr(convolution, name) is not None:
            getattr(convolution, name).requires_grad_(False)
    kernel = infinite_width(model, example=x[:1])
    fused = any(isinstance(step.rule, EnterConvolution) for step in kernel.steps(tuple(x.shape[1:])))
    assert fused or frozen
    by_patches = kernel.both(x)
    monkeypatch.setattr(wide_kernel, "fuse_first_convolution", list)
    by_pixels = infinite_width(model, example=x[:1]).both(x)
    for one, other in zip(by_patches, by_pixels, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=0)


def test_machines_spectra_eigenfunctions_and_gpytorch_take_it():
    x = draw_rows("vectors", n=40).double()
    y = (x[:, 0] > 0).long()
    kernel = infinite_width(NETWORKS["residual, layer norm"].make(8), example=x[:1])
    gram = kernel(x)
    v = torch.stack((y.double(), x[:, 1]), 1)
    torch.testing.assert_close(kernel.matmul(x, None, v, block=7), gram @ v)
    machine = KernelRidge(kernel, penalty=0.1, solver="exact").fit(x, y.double())
    centered = y.double() - y.double().mean()
    fitted = gram @ torch.linalg.solve(gram + 0.1 * torch.eye(40, dtype=torch.float64), centered) + y.double().mean()
    torch.testing.assert_close(machine.predict(x), fitted)
    spectrum = spectral.analyze(kernel, x, y, k=5)
    torch.testing.assert_close(spectrum.eigenvalues, torch.linalg.eigvalsh(gram).flip(0)[:5])
    eigenfunctions = features.NeuralEigenfunctions(kernel, 16, generator=torch.Generator().manual_seed(0)).fit(x)
    torch.testing.assert_close(eigenfunctions.eigenvalues, torch.linalg.eigvalsh(gram / 40).flip(0)[:16])
    pytest.importorskip("gpytorch")
    torch.testing.assert_close(to_gpytorch(kernel)(x, x).to_dense(), gram)


def test_the_tables_of_the_tutorial_are_the_stored_lines():
    page = (Path(__file__).parents[2] / "docs" / "tutorials" / "infinite-width.md").read_text()
    assert study.fill(page) == page  # else: python -m mercer_papers.bench.studies.infinite_width tables PAGE
