"""Posteriors of networks whose layers do not see one row a line, or that torch.func cannot differentiate.

The oracle is literal: each row alone through the user's own network, one backward pass for each output.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mercer
from mercer.bayes import Familiarity, KroneckerLaplace, LinearizedLaplace
from mercer.nn import KernelClassifier

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
ROWS, TIMES, WIDTH, CLASSES = 5, 4, 6, 3


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Encoder(nn.Module):
    """Attention over time, time first or rows first inside; it takes rows first."""

    def __init__(self, batch_first):
        super().__init__()
        self.first = batch_first
        self.embed, self.head = nn.Linear(WIDTH, 4), nn.Linear(4, CLASSES)
        self.block = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=batch_first)

    def forward(self, x):
        h = self.block(self.embed(x if self.first else x.transpose(0, 1)))
        return self.head(h.mean(1 if self.first else 0))


class TimeFirst(nn.Module):
    """Linear layers on (t, n, d)."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(WIDTH, 4), nn.LayerNorm(4), nn.Linear(4, CLASSES)

    def forward(self, x):
        h = self.norm(self.body(x.transpose(0, 1)).tanh())
        return self.head(h * torch.linspace(0.5, 2, len(h), dtype=h.dtype)[:, None, None]).mean(0)


class Flattened(nn.Module):
    """Rows and times in one dimension: x.reshape(n t, d)."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES)

    def forward(self, x):
        h = self.norm(self.body(x.reshape(-1, WIDTH)).tanh()).reshape(len(x), -1, 4)
        return self.head(h.square().sum(1))


class Windows(nn.Module):
    """As Swin: windows of two times become rows of their own, attended to inside."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(WIDTH, 12), nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        w = x.roll(1, 1).reshape(len(x), -1, 2, WIDTH).transpose(0, 1).reshape(-1, 2, WIDTH)
        q, k, v = self.qkv(w).chunk(3, 2)
        h = self.out((q @ k.mT).softmax(2) @ v).reshape(-1, len(x), 2, 4)
        return self.head(h.sum((0, 2)).tanh())


class Frames(nn.Module):
    """Pictures of a film, each a row of its own to the convolution."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 2, 2), nn.Linear(4, CLASSES)

    def forward(self, x):
        h = self.conv(x.reshape(-1, 1, 2, 3)).relu().reshape(len(x), -1, 4)
        return self.head(h.sum(1))


class Tied(nn.Module):
    """The weight is used by its layer, and once more without it."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        h = self.body(x.mean(1)).tanh()
        return self.head(F.linear(h, self.body.weight))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.head = kind(WIDTH, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class Scaled(nn.Module):
    """A parameter without dimensions, as CLIP's logit_scale."""

    def __init__(self):
        super().__init__()
        self.body, self.logit_scale = nn.Linear(WIDTH, CLASSES), nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        return self.body(x.mean(1)) * self.logit_scale.exp()


class Flat(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4), *layers, nn.Linear(4, CLASSES))

    def forward(self, x):
        return self.layers(x.mean(1))


def weight_normed():
    model = Flat(nn.Tanh())
    nn.utils.parametrizations.weight_norm(model.layers[0])
    return model


NETWORKS = {  # a new architecture joins by one line
    "encoder, batch first": lambda: Encoder(True),
    "encoder, time first": lambda: Encoder(False),
    "linear layers, time first": TimeFirst,
    "rows and times in one": Flattened,
    "windows": Windows,
    "frames": Frames,
    "a weight used twice": Tied,
    "LSTM": lambda: Recurrent(nn.LSTM),
    "GRU": lambda: Recurrent(nn.GRU),
    "RNN": lambda: Recurrent(nn.RNN),
    "0-d parameter": Scaled,
    "PReLU": lambda: Flat(nn.PReLU()),
    "PReLU of each channel": lambda: Flat(nn.PReLU(4)),
    "weight_norm": weight_normed,
    "script": lambda: torch.jit.script(Flat(nn.Tanh())),
    "trace": lambda: torch.jit.trace(Flat(nn.Tanh()).double(), torch.zeros(2, TIMES, WIDTH, dtype=torch.float64)),
}


def build(name):
    torch.manual_seed(0)
    return NETWORKS[name]().double().eval()


def points(n=ROWS, times=TIMES):
    x = torch.randn(n, times, WIDTH, generator=seeded(1), dtype=torch.float64)
    return x, torch.arange(n) % CLASSES


def literal_jacobian(model, x, call=None):
    """(n, c, p): each row alone, one backward pass for each output."""
    call = call or (lambda row: model(row))
    weights = [p for p in model.parameters() if p.requires_grad]
    jacobians = []
    for i in range(len(x)):
        f = call(x[i : i + 1])[0]
        gradients = [torch.autograd.grad(f_c, weights, retain_graph=True, materialize_grads=True) for f_c in f]
        jacobians.append(torch.stack([torch.cat([g.flatten() for g in gradient]) for gradient in gradients]))
    return torch.stack(jacobians)


def dense_covariance(j, f, precision, new):
    p = f.softmax(1)
    hessian = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    ggn = torch.einsum("ncp,ncd,ndq->pq", j, hessian, j)
    sigma = torch.linalg.inv(ggn + precision * torch.eye(len(ggn), dtype=ggn.dtype))
    return torch.einsum("ncp,pq,mdq->nmcd", new, sigma, new)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("times", [TIMES, ROWS], ids=["4 times", "as many times as rows"])
def test_laplace_of_all_weights_is_the_dense_posterior(name, times):
    model, (x, y) = build(name), points(times=times if name != "windows" else 2 * (times - 2))
    j, f = literal_jacobian(model, x), model(x).detach()
    exact = LinearizedLaplace(
        model, parameters="all", k=10_000, prior_precision=0.7, batch_size=4, generator=seeded()
    ).fit((x, y))
    joint = dense_covariance(j, f, 0.7, j)
    mean, covariance = exact.logits(x)
    torch.testing.assert_close(mean, f)
    torch.testing.assert_close(covariance, joint.diagonal(dim1=0, dim2=1).movedim(-1, 0))
    few = LinearizedLaplace(model, parameters="all", k=4, prior_precision=0.7, batch_size=4, generator=seeded()).fit(
        (x, y)
    )
    psi = j @ few.directions_
    weight = 1 / (few.eigenvalues_ + 0.7) - 1 / 0.7
    expected = torch.einsum("nck,k,mdk->nmcd", psi, weight, psi) + torch.einsum("ncp,mdp->nmcd", j, j) / 0.7
    torch.testing.assert_close(few.logits(x)[1], expected.diagonal(dim1=0, dim2=1).movedim(-1, 0))
    torch.testing.assert_close(few.logits(x, joint=True)[1], expected)
    assert few.sample(x, 3).shape == (3, len(x), CLASSES)
    torch.testing.assert_close(few.logits(x[:1])[1], few.logits(x)[1][:1])


@pytest.mark.parametrize("method", [LinearizedLaplace, KroneckerLaplace])
def test_encoders_time_first_and_rows_first_have_the_same_variances(method):
    class Block(nn.Module):
        def __init__(self, time_first):
            super().__init__()
            self.time_first = time_first
            self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x):
            h = x.transpose(0, 1) if self.time_first else x
            q, k, v = ((part(h).transpose(0, 1) if self.time_first else part(h)) for part in (self.q, self.k, self.v))
            return self.head(((q @ k.mT).softmax(2) @ v).mean(1))

    x, y = points()
    covariances = []
    for time_first in (False, True):
        torch.manual_seed(0)
        options = {"k": 3, "generator": seeded()} if method is LinearizedLaplace else {}
        f = method(Block(time_first).double(), prior_precision=1.0, **options).fit((x, y))
        covariances.append(f.logits(x[:TIMES])[1])  # as many rows as times
    torch.testing.assert_close(*covariances)


@pytest.mark.parametrize("name", ["linear layers, time first", "rows and times in one", "windows", "frames"])
def test_kronecker_factors_belong_to_rows(name):
    model, (x, y) = build(name), points(times=ROWS if "windows" not in name else TIMES)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.BatchNorm1d):
            module.requires_grad_(False)
    f = KroneckerLaplace(model, prior_precision=0.4).fit((x, y))
    # the same factors from rows alone, in which any layout holds one row's places only
    alone = [KroneckerLaplace(model, prior_precision=0.4).fit((x[i : i + 1], y[i : i + 1])) for i in range(len(x))]
    for layer, (value_a, vector_a, value_g, vector_g) in f.factors_.items():
        single = [other.factors_[layer] for other in alone]
        left = sum((v * w) @ v.mT for w, v, _, _ in single) / len(x)
        right = sum((v * w) @ v.mT for _, _, w, v in single)
        torch.testing.assert_close((vector_a * value_a) @ vector_a.mT, left)
        torch.testing.assert_close((vector_g * value_g) @ vector_g.mT, right)
    j = literal_jacobian(model, x)  # Sigma is of layers; with a huge precision it is the prior's
    prior = KroneckerLaplace(model, prior_precision=1e9).fit((x, y))
    torch.testing.assert_close(prior.logits(x)[1] * 1e9, j @ j.mT, rtol=1e-5, atol=1e-8)


def test_kronecker_refuses_a_weight_that_is_used_outside_its_layer():
    with pytest.raises(ValueError, match=r"KroneckerLaplace.*used by its own layer, once.*LinearizedLaplace"):
        KroneckerLaplace(build("a weight used twice")).fit(points())


class Masked(nn.Module):
    """As transformers' models: a mask that decides about the way, which torch.func.vmap refuses."""

    def __init__(self, drop):
        super().__init__()
        self.drop = drop
        self.embedding, self.body, self.head = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, input_ids, attention_mask):
        h = self.embedding(input_ids)
        mask = attention_mask.bool()
        if self.drop:  # only what counts goes through the layer
            through = torch.zeros_like(h)
            through[mask] = self.body(h[mask]).tanh()
            return SimpleNamespace(logits=self.head(through.sum(1) / mask.sum(1, keepdim=True)))
        scores = h @ h.mT
        if not bool(mask.all()):
            scores = scores.masked_fill(~mask[:, None], -torch.inf)
        return SimpleNamespace(logits=self.head(self.body(scores.softmax(2) @ h).tanh()[:, 0]))


@pytest.mark.parametrize("drop", [False, True], ids=["masked scores", "dropped tokens"])
def test_masks_that_decide_about_the_way(drop):
    torch.manual_seed(0)
    model = Masked(drop).double()
    ids, y = torch.randint(11, (ROWS, TIMES), generator=seeded()), torch.arange(ROWS) % CLASSES
    mask = (torch.arange(TIMES) < 1 + torch.arange(ROWS)[:, None] % TIMES).long()
    batch = {"input_ids": ids, "attention_mask": mask}
    f = LinearizedLaplace(model, parameters="all", k=4, prior_precision=0.7, batch_size=3, generator=seeded()).fit(
        {**batch, "labels": y}
    )
    both = torch.stack((ids, mask), 1)
    j = literal_jacobian(model, both, lambda row: model(row[:, 0], row[:, 1]).logits)
    psi = j @ f.directions_
    expected = (psi * (1 / (f.eigenvalues_ + 0.7) - 1 / 0.7)) @ psi.mT + j @ j.mT / 0.7
    torch.testing.assert_close(f.logits(batch)[1], expected)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
@pytest.mark.parametrize("parameters", ["all", "last"])
def test_language_models_with_a_mask(kind, parameters):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    if kind == "bert":
        config = transformers.BertConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=20,
            max_position_embeddings=8, num_labels=CLASSES,
        )  # fmt: skip
        model = transformers.BertForSequenceClassification(config)
    else:
        config = transformers.GPT2Config(
            vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, num_labels=CLASSES, pad_token_id=0,
            bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        model = transformers.GPT2ForSequenceClassification(config)
    model = model.double().eval()
    mask = (torch.arange(TIMES) < 2 + torch.arange(ROWS)[:, None] % 3).long()
    ids, y = torch.randint(3, 20, mask.shape, generator=seeded()) * mask, torch.arange(ROWS) % CLASSES
    batch = {"input_ids": ids, "attention_mask": mask}
    f = LinearizedLaplace(model, k=10_000, prior_precision=0.7, parameters=parameters).fit({**batch, "labels": y})
    for name, p in model.named_parameters():
        p.requires_grad_(name in f.weights_)
    call = lambda row: model(input_ids=row[:, 0], attention_mask=row[:, 1]).logits  # noqa: E731
    rows = torch.stack((ids, mask), 1)
    j = literal_jacobian(model, rows, call)
    joint = dense_covariance(j, call(rows).detach(), 0.7, j)
    torch.testing.assert_close(f.logits(batch)[1], joint.diagonal(dim1=0, dim2=1).movedim(-1, 0))


@pytest.mark.parametrize("name", ["linear layers, time first", "rows and times in one", "windows", "LSTM", "script"])
def test_the_small_network_reads_rows(name):
    model, (x, y) = build(name), points(times=ROWS if name != "windows" else TIMES)
    f = LinearizedLaplace(
        model, parameters="all", k=2, prior_precision=1.0, eigenfunctions="network", network_steps=5
    ).fit((x, y))
    torch.testing.assert_close(f.predict_proba(x)[:2], f.predict_proba(x[:2]))


def test_familiarity_reads_layers_that_give_one_row_a_line():
    model, (x, _) = build("linear layers, time first"), points(20, times=20)
    with pytest.raises(ValueError, match=r"layers must give one row a line.*got body"):
        Familiarity(model, layers=["body"]).fit(x)
    with pytest.raises(ValueError, match="linear layers that give one row a line; got none"):
        Familiarity(model).fit(x)
    encoder = Familiarity(build("encoder, time first"), generator=seeded()).fit(x)
    assert encoder.layers_ == ["head"]
    new = torch.randn(20, 20, WIDTH, generator=seeded(2), dtype=torch.float64)
    torch.testing.assert_close(encoder.score(new)[:3], encoder.score(new[:3]))


@pytest.mark.parametrize("name", ["linear layers, time first", "GRU", "0-d parameter", "script"])
def test_row_by_row_posteriors_are_saved_and_let_gradients_flow(name, tmp_path):
    model, (x, y) = build(name), points()
    f = LinearizedLaplace(model, parameters="all", k=3, prior_precision="evidence", generator=seeded()).fit((x, y))
    mercer.save(f, tmp_path / "posterior")
    again = mercer.load(tmp_path / "posterior").attach(model)
    torch.testing.assert_close(again.logits(x), f.logits(x))
    rows = x[:2].clone().requires_grad_()
    covariance = f.logits(rows, gradients=True)[1]
    torch.testing.assert_close(covariance.detach(), f.logits(x[:2])[1])
    (slope,) = torch.autograd.grad(covariance[0, 0, 0], rows)
    step = 1e-6 * torch.randn(rows.shape, generator=seeded(), dtype=rows.dtype)
    ahead, behind = (float(f.logits(x[:2] + s * step)[1][0, 0, 0]) for s in (1, -1))
    assert float((slope * step).sum()) == pytest.approx((ahead - behind) / 2, rel=1e-4)


def test_rows_that_see_each_other_are_refused():
    class Coupled(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x):
            return self.head(x.mean(1) - x.mean((0, 1)))

    for method in (LinearizedLaplace, KroneckerLaplace):
        with pytest.raises(ValueError, match=r"a row must give the same outputs alone and beside other rows"):
            method(Coupled().double(), prior_precision=1.0).fit(points())


@pytest.mark.parametrize("method", [LinearizedLaplace, KroneckerLaplace])
def test_networks_without_derivatives_are_refused(method):
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x):
            return self.head(x.mean(1)).detach()

    with pytest.raises(ValueError, match=r"autograd must trace the outputs.*Look for torch.no_grad or detach"):
        method(Cut().double(), prior_precision=1.0).fit(points())
    with pytest.raises(ValueError, match="model must have parameters that require grad"):
        method(Cut().double().requires_grad_(False))


class Kernelized(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, 5), KernelClassifier(5, CLASSES, **options)

    def forward(self, x):
        return self.head(self.body(x.mean(1)).tanh())


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.1}, {"prototypes": 2}, {"shared": 4}],
    ids=["default", "paper's", "two prototypes", "shared units"],
)
def test_the_last_layer_may_be_a_kernel_classifier(options, tmp_path):
    torch.manual_seed(0)
    model = Kernelized(**options).double()
    for p in model.head.parameters():  # away from the zeros that a fresh head starts from
        p.data += 0.1 * torch.randn(p.shape, generator=seeded(3), dtype=p.dtype)
    x, y = points(12)
    f = LinearizedLaplace(model, parameters="last", prior_precision=0.7, batch_size=5, generator=seeded()).fit((x, y))
    assert set(f.weights_) == {f"head.{name}" for name, p in model.head.named_parameters() if p.requires_grad}
    model.body.requires_grad_(False)
    j, outputs = literal_jacobian(model, x), model(x).detach()
    joint = dense_covariance(j, outputs, 0.7, j)
    torch.testing.assert_close(f.logits(x)[1], joint.diagonal(dim1=0, dim2=1).movedim(-1, 0))
    torch.testing.assert_close(f.logits(x, joint=True)[1], joint)
    assert f.predict_proba(x).shape == (12, CLASSES)
    model.requires_grad_(True)
    mercer.save(f, tmp_path / "posterior")
    again = mercer.load(tmp_path / "posterior").attach(model)
    torch.testing.assert_close(again.logits(x), f.logits(x))
