"""kernelize on models of different make: finds the read-out, swaps it, trains, saves, loads."""

import logging

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from mercer.kernels import RadialSeries
from mercer.nn import CosineClassifier, KernelClassifier, kernelize
from mercer_papers.backbones import DenseNet, LeNet5, SmallTransformer, Vgg16
from mercer_papers.data import CifarResNet

C = 3


class TimmLike(nn.Module):
    """The conventions of timm: get_classifier, num_features, a head in the middle of the registration order."""

    def __init__(self, heads=1):
        super().__init__()
        self.num_features = 16
        self.head = nn.Linear(16, C)
        self.head_dist = nn.Linear(16, C) if heads == 2 else nn.Identity()
        self.blocks = nn.Sequential(nn.Linear(8, 48), nn.GELU(), nn.Linear(48, 16))

    def get_classifier(self):
        return (self.head, self.head_dist) if isinstance(self.head_dist, nn.Linear) else self.head

    def forward(self, x):
        return self.head(self.blocks(x))


class TransformersLike(nn.Module):
    """The shape of a sequence classifier of transformers: an encoder, dropout, ``classifier``, logits in an output."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict(
            {
                "query": nn.Linear(8, 8), "key": nn.Linear(8, 8),
                "up": nn.Linear(8, 32), "down": nn.Linear(32, 8), "pooler": nn.Linear(8, 8),
            }
        )  # fmt: skip
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(8, C)

    def forward(self, x):
        states = x + self.encoder["down"](F.gelu(self.encoder["up"](self.encoder["query"](x) * self.encoder["key"](x))))
        return {"logits": self.classifier(self.dropout(self.encoder["pooler"](states).tanh()))}


def plain():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, C))


def frozen():
    model = plain()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def pictures(n):
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def vectors(n):
    return torch.randn(n, 8, generator=torch.Generator().manual_seed(0))


MODELS = {
    "plain": (plain, vectors, "3"),
    "cifar_resnet": (lambda: CifarResNet(8, C, width=4), pictures, "linear"),
    "transformers_like": (TransformersLike, vectors, "classifier"),
    "timm_like": (TimmLike, vectors, "head"),
    "frozen": (frozen, vectors, "3"),
    "lenet": (lambda: LeNet5(C), pictures, "linear"),
    "vgg": (lambda: Vgg16(C, width=2, hidden=8), pictures, "linear"),
    "densenet": (lambda: DenseNet(7, 2, C), pictures, "linear"),
    "small_transformer": (
        lambda: SmallTransformer(20, C, width=8, layers=1, dropout=0.0),
        lambda n: torch.randint(1, 20, (n, 7), generator=torch.Generator().manual_seed(0)),
        "linear",
    ),
}


def logits_of(model, x):
    out = model(x)
    return out["logits"] if isinstance(out, dict) else out


def trains(model, x):
    labels = torch.arange(len(x)) % C
    head = next(m for m in model.modules() if isinstance(m, KernelClassifier))
    before = [p.detach().clone() for p in head.parameters()]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, 0.05)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = F.cross_entropy(logits_of(model, x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[-3:]) < losses[0]
    assert all(not torch.equal(a, b) for a, b in zip(before, head.parameters(), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_swaps_trains_saves_and_loads(name, tmp_path):
    torch.manual_seed(0)
    make, inputs, place = MODELS[name]
    model, x = make(), inputs(12)
    old = model.get_submodule(place)
    assert kernelize(model) is model
    head = model.get_submodule(place)
    assert isinstance(head, KernelClassifier) and head.weight.requires_grad
    torch.testing.assert_close(head.weight, old.weight)
    trains(model, x)
    if name == "frozen":
        assert all(not p.requires_grad for n, p in model.named_parameters() if not n.startswith("3."))
    safetensors.torch.save_file(
        {k: v.contiguous() for k, v in model.state_dict().items()}, tmp_path / "model.safetensors"
    )
    fresh = kernelize(make())
    fresh.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"))
    torch.testing.assert_close(logits_of(fresh.eval(), x), logits_of(model.eval(), x))


def test_a_ddp_wrapped_model_comes_back_wrapped(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        wrapped = DistributedDataParallel(plain(), find_unused_parameters=True)
        model = kernelize(wrapped, head=lambda d, c: KernelClassifier(d, c, prototypes=2))
        assert isinstance(model, DistributedDataParallel) and model.module is wrapped.module
        assert model.find_unused_parameters
        trains(model, vectors(12))
        fresh = kernelize(plain(), head=lambda d, c: KernelClassifier(d, c, prototypes=2))
        fresh.load_state_dict(model.module.state_dict())
        torch.testing.assert_close(fresh.eval()(vectors(4)), model.eval()(vectors(4)))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("architecture", ["BertForSequenceClassification", "GPT2ForSequenceClassification"])
def test_classifiers_of_transformers(architecture, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if architecture.startswith("Bert"):
        config = transformers.BertConfig(
            vocab_size=30,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            num_labels=C,
        )
    else:  # its read-out sees every token: (n, tokens, width)
        config = transformers.GPT2Config(vocab_size=30, n_embd=16, n_layer=1, n_head=2, num_labels=C, pad_token_id=0)
    make = getattr(transformers, architecture)
    model = kernelize(make(config))
    ids = torch.randint(1, 30, (6, 5), generator=torch.Generator().manual_seed(0))
    out = model(input_ids=ids, labels=torch.arange(6) % C)
    out.loss.backward()
    head = next(m for m in model.modules() if isinstance(m, KernelClassifier))
    assert out.logits.shape == (6, C) and (head.kernel.alpha.grad != 0).any()
    model.save_pretrained(tmp_path)
    fresh = kernelize(make(config))
    fresh.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"))
    torch.testing.assert_close(fresh.eval()(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


def test_device_and_dtype_are_kept():
    model = kernelize(plain().double())
    assert model[3].weight.dtype == model[3].kernel.alpha.dtype == torch.float64
    assert kernelize(plain().to("meta"))[3].weight.is_meta
    assert kernelize(plain().bfloat16())[3].weight.dtype == torch.bfloat16
    assert not kernelize(plain().eval())[3].training


def test_warm_start_of_prototypes_and_bias():
    model = plain()
    old = model[3]
    kernelize(model, head=lambda d, c: KernelClassifier(d, c, RadialSeries(3), prototypes=4, bias=True))
    weight = F.normalize(model[3].weight.reshape(C, 4, 16), dim=2)
    assert (weight * F.normalize(old.weight, dim=1)[:, None]).sum(2).min() > 0.99
    assert len(weight[0].unique(dim=0)) == 4
    torch.testing.assert_close(model[3].bias, old.bias)
    other = kernelize(plain(), head=CosineClassifier)
    assert isinstance(other[3], CosineClassifier)


def test_nothing_but_the_last_layer_changes_by_default():
    def names(model, head):
        return [name + type(m).__name__ for name, m in model.named_modules() if not name.startswith(head)]

    pooled = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, C)
    )
    for model, head in ((pooled, "5"), (plain(), "3"), (CifarResNet(8, C), "linear")):
        before = names(model, head)
        assert names(kernelize(model), head) == before


def test_the_relu_on_the_embedding_is_taken_off_where_that_is_asked_for():
    assert isinstance(kernelize(plain(), rectify="off")[1], nn.Identity)
    x = pictures(4)
    for make in (lambda: CifarResNet(8, C), lambda: LeNet5(C), lambda: DenseNet(7, 2, C)):
        torch.manual_seed(0)
        assert kernelize(make(), rectify="off").features(x).min() < 0
        assert kernelize(make()).features(x).min() >= 0
    resnet = kernelize(CifarResNet(14, C, width=4), rectify="off")
    assert isinstance(resnet.layer3[1].relu2, nn.Identity)  # that one and no other
    assert sum(isinstance(m, nn.ReLU) for m in resnet.modules()) == 1 + 2 * 6 - 1


def test_a_relu_that_cannot_be_taken_off_is_left_and_reported(caplog):
    class Shared(nn.Module):
        def __init__(self, functional):
            super().__init__()
            self.first, self.second, self.fc = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, C)
            self.relu = F.relu if functional else nn.ReLU()

        def forward(self, x):
            return self.fc(self.relu(self.second(self.relu(self.first(x)))))

    for functional in (False, True):
        model = Shared(functional)
        with caplog.at_level(logging.INFO, "mercer"):
            kernelize(model, rectify="off")
        assert "left on (not a module that is called once)" in caplog.messages[-1]
        assert functional or isinstance(model.relu, nn.ReLU)


def test_reports_what_it_did(caplog):
    with caplog.at_level(logging.INFO, "mercer"):
        kernelize(plain(), rectify="off")
    expected = "kernelize: 3, Linear(16, 3), became KernelClassifier; weights taken over; ReLU before it: 1, taken off."
    assert caplog.messages == [expected]


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head_a, self.head_b = nn.Linear(16, C), nn.Linear(16, 5)

    def forward(self, x):
        return self.head_a(self.body(x)), self.head_b(self.body(x))


def test_two_candidates_are_named():
    with pytest.raises(ValueError, match=r"one read-out layer.*got head_a and head_b\. Use layer='head_b'\."):
        kernelize(TwoHeads())
    with pytest.raises(ValueError, match="head and head_dist"):
        kernelize(TimmLike(heads=2))
    model = kernelize(TwoHeads(), layer="head_a")
    assert isinstance(model.head_a, KernelClassifier) and isinstance(model.head_b, nn.Linear)


def test_sentences():
    for make, error, match in [
        (lambda: kernelize(nn.Conv2d(1, 1, 1)), ValueError, "model must hold an nn.Linear to swap; got Conv2d"),
        (lambda: kernelize(nn.Linear(2, 2)), ValueError, "put it into an nn.Sequential"),
        (lambda: kernelize(plain(), rectify="on"), ValueError, "rectify must be False or 'off'; got 'on'"),
        (lambda: kernelize("resnet"), TypeError, "model must be an nn.Module; got str"),
        (lambda: kernelize(plain(), layer="fc"), ValueError, "name must be a layer of Sequential; got 'fc'"),
        (lambda: kernelize(plain(), layer="1"), TypeError, "layer '1' must be an nn.Linear; got ReLU"),
        (lambda: kernelize(plain(), head=lambda d, c: None), TypeError, "head must return an nn.Module; got NoneType"),
    ]:
        with pytest.raises(error, match=match):
            make()


def test_backbones_have_the_published_sizes():
    def count(model):
        return sum(p.numel() for p in model.parameters())

    assert count(CifarResNet(20)) == 269_722  # He et al., 2016: 0.27M
    assert count(CifarResNet(56)) == 853_018  # 0.85M, not the 540K that jayasumana2021 prints
    assert 1.0e6 < count(DenseNet(40, 12)) < 1.1e6  # Huang et al., 2017: 1.0M
    assert 14.7e6 < count(Vgg16()) < 15.0e6
    assert 61e3 < count(LeNet5()) < 63e3
    with pytest.raises(ValueError, match=r"depth must be 6 n \+ 2"):
        CifarResNet(9)
    with pytest.raises(ValueError, match=r"depth must be 3 n \+ 4"):
        DenseNet(8)
