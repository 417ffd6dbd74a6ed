"""Looking into models: found layers, hooks that go away, private copies, tensors from anything."""

import threading
import types
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, Dataset, TensorDataset

import mercer
from mercer.rows.loading import load_labelled_rows, load_rows
from mercer.signals.capture import capture
from mercer.signals.embedding import embeddings
from mercer.signals.layers import as_logits, find_layers, last_linear, layer, unwrap
from mercer.signals.private_copy import private_copy


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 4))
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.norm(self.body(x)))


class Output(dict):
    """As transformers' ModelOutput: a dictionary with attributes."""

    logits = property(lambda self: self["logits"])


class TextNet(Net):
    def forward(self, input_ids, attention_mask=None):
        return Output(logits=super().forward(input_ids * attention_mask))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().double()


@pytest.fixture
def x(generator):
    return torch.randn(7, 3, generator=generator, dtype=torch.float64)


def hooks(model):
    return sum(len(m._forward_hooks) for m in model.modules())


# --- layers -------------------------------------------------------------------------------------------


def test_layers_are_found_by_kind_and_name(net):
    assert list(find_layers(net, nn.Linear)) == ["body.0", "body.3", "head"]
    assert list(find_layers(net, (nn.Tanh, nn.BatchNorm1d))) == ["body.1", "norm"]
    assert layer(net, "body.3") is net.body[3] and last_linear(net) == ("head", net.head)


@pytest.mark.parametrize(
    ("name", "fix"), [("haed", "Close: head"), ("zzz", "Its layers: body, body.0"), ("", "'. Its layers")]
)
def test_a_wrong_name_lists_close_ones(net, name, fix):
    with pytest.raises(ValueError, match=rf"layer: name must be a layer of Net; got .*{fix}"):
        layer(net, name)


def test_a_model_without_linear_layers():
    with pytest.raises(ValueError, match=r"last_linear: model must have an nn.Linear; got Tanh. Name the layer"):
        last_linear(nn.Tanh())


def test_wrappers_come_off(net, x):
    wrapped = nn.DataParallel(torch.compile(net, backend="eager"))
    assert unwrap(wrapped) is net and unwrap(net) is net
    assert last_linear(wrapped)[0] == "head"
    assert torch.equal(embeddings(nn.DataParallel(net), x), embeddings(net, x))


def test_logits_are_found_in_every_kind_of_output():
    t = torch.ones(1)
    for output in (t, Output(logits=t), {"logits": t, "loss": 0}, (t, None), types.SimpleNamespace(logits=t)):
        assert as_logits(output) is t
    with pytest.raises(TypeError, match=r"as_logits: a model's output must hold logits; got dict. Wrap"):
        as_logits({"loss": t})


# --- capture ------------------------------------------------------------------------------------------


def test_capture_sees_inputs_and_outputs_of_every_call(net, x):
    net.eval()
    with capture(net, ["head", "body"]) as seen:
        y = net(x)
        net(x[:2])
    assert torch.equal(seen["head"].outputs[0], y) and len(seen["head"].inputs) == 2
    assert torch.equal(seen["body"].input, x[:2]) and not seen["head"].output.requires_grad
    assert torch.equal(net.head(seen["head"].inputs[0]), y) and hooks(net) == 0
    with capture(net, ["head"], detach=False) as seen:
        net(x)
    assert seen["head"].output.requires_grad


def test_hooks_go_away_however_the_block_ends(net, x):
    with pytest.raises(KeyboardInterrupt), capture(net, ["head"]):
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match=r"got 'nope'"), capture(net, ["head", "nope"]):
        pass
    with pytest.raises(RuntimeError), capture(net, ["head"]):
        net(x[:, :2])
    with capture(net, ["head"]) as seen, pytest.raises(RuntimeError, match=r"layer head must have run; got no"):
        _ = seen["head"].output
    assert hooks(net) == 0


# --- private copies -----------------------------------------------------------------------------------


def test_a_private_copy_shares_tensors_and_nothing_else(net, x):
    net.train().head.register_forward_hook(lambda *_: 1 / 0)
    net.listed = [net.head]
    own = private_copy(nn.DataParallel(net))
    assert all(a is b for a, b in zip(net.parameters(), own.parameters(), strict=True))
    assert all(a is b for a, b in zip(net.buffers(), own.buffers(), strict=True))
    assert not {id(m) for m in net.modules()} & {id(m) for m in own.modules()}
    assert own.listed[0] is own.head and not own.training and net.training and hooks(net) == 1
    before = [b.clone() for b in net.buffers()]
    own(x)
    assert all(torch.equal(a, b) for a, b in zip(before, net.buffers(), strict=True))
    net.head._forward_hooks.clear()
    torch.testing.assert_close(own(x), net.eval()(x))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.utils.weight_norm(nn.Linear(3, 2)),
        lambda: nn.utils.spectral_norm(nn.Linear(3, 2)),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
        lambda: prune.l1_unstructured(nn.Linear(3, 2), "weight", 2),
        lambda: nn.Sequential(nn.Unflatten(1, (3, 1)), nn.LSTM(1, 2, batch_first=True)),
        lambda: nn.Sequential(nn.Unflatten(1, (1, 3)), nn.TransformerEncoderLayer(3, 1, 4, batch_first=True)),
    ],
    ids=["weight_norm", "spectral_norm", "parametrized", "pruned", "lstm", "attention"],
)
def test_a_private_copy_computes_the_same(make, x):
    torch.manual_seed(0)
    net = make().double()
    net(x)  # a weight made by a hook is now a tensor with a graph
    net.eval()
    own = private_copy(net)
    expected, found = net(x), own(x)
    pick = (lambda out: out[0]) if isinstance(expected, tuple) else (lambda out: out)
    torch.testing.assert_close(pick(found), pick(expected))
    assert all(a is b for a, b in zip(net.parameters(), own.parameters(), strict=True))


def test_a_model_that_cannot_be_copied_is_refused(net):
    net.lock = threading.Lock()
    with pytest.raises(TypeError, match=r"private_copy: model must be a module that can be copied; got .*lock"):
        private_copy(net)


# --- embeddings ---------------------------------------------------------------------------------------


def test_embeddings_of_a_loader_leave_the_model_as_it_was(net, x):
    net.train().body.eval()
    state = {k: v.clone() for k, v in net.state_dict().items()}
    modes = [m.training for m in net.modules()]
    loader = DataLoader(TensorDataset(x, torch.arange(7)), batch_size=3)
    z = embeddings(net, loader)
    assert modes == [m.training for m in net.modules()] and hooks(net) == 0
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    net.eval()
    torch.testing.assert_close(z, net.norm(net.body(x)).detach())
    torch.testing.assert_close(embeddings(net, x.numpy(), layer="body.1"), net.body[:2](x).detach())
    torch.testing.assert_close(embeddings(net, [x[:4], x[4:]], layer="head"), net(x).detach())


def test_embeddings_of_dictionaries_and_of_feature_maps(x):
    torch.manual_seed(0)
    text = TextNet().double()
    batches = [{"input_ids": x, "attention_mask": torch.ones(7, 1), "labels": torch.ones(7)}]
    assert isinstance(batches[0], Mapping)
    assert embeddings(text, batches).shape == (7, 4)
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    assert embeddings(conv, torch.randn(5, 1, 4, 4), layer="0").shape == (5, 8)


def test_embeddings_refuse(net, x):
    with pytest.raises(ValueError, match=r"embeddings: loader and model must be on one device; got meta and cpu"):
        embeddings(net, x.to("meta"))
    with pytest.raises(ValueError, match=r"loader must have at least one row; got a loader without batches"):
        embeddings(net, DataLoader(TensorDataset(x), batch_size=9, drop_last=True))
    with pytest.raises(ValueError, match=r"embeddings: batches must fit the forward of Net; got x \(7, 2\)\. It says:"):
        embeddings(net, x[:, :2])
    with pytest.raises(ValueError, match=r"embeddings: batches must fit the forward of Net; got pixels \(7, 3\)\."):
        embeddings(net, [{"pixels": x}])


def test_embeddings_from_several_threads_leave_the_model_alone(net, x):
    net.train().body.eval()
    expected = embeddings(net, x)
    modes, seen = [m.training for m in net.modules()], []

    def work(_):
        found = [embeddings(net, x) for _ in range(20)]
        seen.append(modes == [m.training for m in net.modules()] and hooks(net) == 0)
        return found

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(work, range(4)):
            assert all(torch.equal(z, expected) for z in found)
    assert all(seen) and hooks(net) == 0


class Noise(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        torch.randn(64, 64) @ torch.randn(64, 64)
        return torch.randn(3)


def test_forked_workers_neither_hang_nor_repeat(net):
    net(torch.randn(256, 3, dtype=torch.float64)).sum().backward()  # torch's threads are up before the fork
    loader = DataLoader(Noise(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    drawn = load_rows("test", loader)
    assert drawn.shape == (8, 3) and len(drawn.unique(dim=0)) == 8
    assert embeddings(net.float(), loader).shape == (8, 4)


# --- rows ---------------------------------------------------------------------------------------------

MATRIX = np.arange(12, dtype=np.float64).reshape(4, 3)


def memmap(tmp_path):
    np.save(tmp_path / "m.npy", MATRIX)
    return np.load(tmp_path / "m.npy", mmap_mode="r")


@pytest.mark.parametrize(
    "make",
    [
        lambda _: MATRIX,
        lambda _: MATRIX[::-1].copy()[::-1],
        lambda _: np.asfortranarray(MATRIX),
        lambda _: np.repeat(MATRIX, 2, axis=1)[:, ::2],
        memmap,
        lambda _: MATRIX.astype(">f8"),
        lambda _: MATRIX.astype(object),
        lambda _: MATRIX.tolist(),
        lambda _: torch.from_numpy(MATRIX.copy()).T.contiguous().T,
        lambda _: torch.from_numpy(MATRIX.copy()).requires_grad_(),
        lambda _: DataLoader(TensorDataset(torch.from_numpy(MATRIX.copy())), batch_size=3),
        lambda _: DataLoader(torch.from_numpy(MATRIX.copy()), batch_size=3),
        lambda _: [(torch.from_numpy(MATRIX[:1].copy()), 0), (MATRIX[1:], 1)],
    ],
)
def test_rows_of_any_layout_are_the_same_and_the_input_is_untouched(make, tmp_path):
    data = make(tmp_path)
    x = load_rows("fit", data)
    assert not x.requires_grad
    torch.testing.assert_close(x.double(), torch.from_numpy(MATRIX.copy()))
    if isinstance(data, np.ndarray):
        x.add_(1)
        np.testing.assert_array_equal(data.astype(float), MATRIX)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("int8", "float32"), ("bool", "float32"), ("float16", "float32"), ("bfloat16", "float32"), ("float64", "float64")],
)
def test_rows_follow_the_dtype_rule(given, kept):
    assert load_rows("fit", torch.ones(2, 2, dtype=getattr(torch, given))).dtype == getattr(torch, kept)


@pytest.mark.parametrize(
    ("data", "error", "reason"),
    [
        (torch.tensor([[1.0], [torch.nan]]), ValueError, "fit: x must be finite; got NaN, first bad row 1"),
        (np.array([[np.inf]]), ValueError, "fit: x must be finite; got infinity"),
        (torch.zeros(0, 3), ValueError, r"fit: x must have at least one row; got \(0, 3\)"),
        (torch.tensor(1.0), ValueError, r"fit: x must have at least one row; got \(\)"),
        ([], ValueError, "fit: x must have at least one row"),
        (np.array([["1", "2"]]), ValueError, "x must be rows of numbers; got an array of <U1. Encode text"),
        (np.array([[1, "a"]], dtype=object), ValueError, "x must be rows of numbers; got could not convert"),
        (torch.ones(2, dtype=torch.complex64), TypeError, "x must be real; got torch.complex64"),
        (torch.eye(2).to_sparse(), TypeError, "x must be dense; got torch.sparse_coo"),
        (scipy.sparse.eye(2), TypeError, "x must be dense; got a sparse matrix. Use x.toarray"),
        (None, TypeError, "x must be rows of numbers; got NoneType. Give a tensor, an array or a DataLoader"),
        ("file.csv", TypeError, "x must be rows of numbers; got str"),
        ([torch.ones(2, 3), torch.ones(2, 4)], ValueError, r"batches of x must have rows of one shape; got \[\(3,\)"),
    ],
    ids=str,
)
def test_rows_refuse(data, error, reason):
    with pytest.raises(error, match=reason):
        load_rows("fit", data)


def test_labelled_rows(x):
    y = torch.arange(7)
    for data in (
        DataLoader(TensorDataset(x, y), batch_size=3),
        (x, y),
        [(x[:3], y[:3]), (x[3:].numpy(), y[3:].numpy())],
    ):
        inputs, labels = load_labelled_rows("fit", data)
        assert torch.equal(inputs, x) and torch.equal(labels, y) and labels.dtype == torch.int64
    with pytest.raises(ValueError, match=r"fit: x and y must have as many rows; got 7 and 6"):
        load_labelled_rows("fit", (x, y[:6]))
    with pytest.raises(TypeError, match=r"fit: loader must give pairs \(x, y\); got Tensor"):
        load_labelled_rows("fit", DataLoader(x, batch_size=3))
    with pytest.raises(ValueError, match=r"fit: y must be finite; got NaN, first bad row 0"):
        load_labelled_rows("fit", (x, torch.full((7,), torch.nan)))


def test_the_older_names_stay_until_version_1():
    assert mercer.modules.embeddings is mercer.signals.embeddings is embeddings
    assert mercer.modules.open_rows is mercer.rows.open_rows
