"""kernelize before the pooling: maps of CNNs, tokens of transformers, masks; and starts from a loader."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from mercer.nn import CosineClassifier, KernelClassifier, SecondOrderPooling, kernelize
from mercer.signals.private_copy import private_copy
from mercer_papers.backbones import SmallTransformer
from mercer_papers.data import CifarResNet

C, D = 3, 16


def pictures(n=6, size=16):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(0))


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, D, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(D, C)
    )


class TokenModel(nn.Module):
    """Mean over the tokens that are not masked, as a sentence encoder pools; or the first token, as a ViT does."""

    def __init__(self, first=False):
        super().__init__()
        self.tokens, self.norm, self.classifier = nn.Embedding(20, D), nn.LayerNorm(D), nn.Linear(D, C)
        self.first = first

    def forward(self, input_ids, attention_mask=None):
        states = self.norm(self.tokens(input_ids))
        mask = torch.ones(input_ids.shape) if attention_mask is None else attention_mask.float()
        pooled = states[:, 0] if self.first else (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return {"logits": self.classifier(pooled)}


def ids(n=6, length=7):
    return torch.randint(1, 20, (n, length), generator=torch.Generator().manual_seed(0))


def logits_of(model, *args, **kwargs):
    out = model(*args, **kwargs)
    return out["logits"] if isinstance(out, dict) else out


MODELS = {
    "cnn": (cnn, pictures, "1"),
    "resnet": (lambda: CifarResNet(8, C, width=4), pictures, "layer3"),
    "tokens": (TokenModel, ids, "norm"),
    "first_token": (lambda: TokenModel(first=True), ids, "norm"),
    "small_transformer": (lambda: SmallTransformer(20, C, width=8, layers=1, dropout=0.0), ids, "encoder"),
}


@pytest.mark.parametrize("name", MODELS)
def test_places_are_found_and_the_model_starts_as_it_was_and_trains(name):
    torch.manual_seed(0)
    make, inputs, source = MODELS[name]
    model, x = make(), inputs()
    expected = logits_of(copy.deepcopy(model).eval(), x)
    kernelize(model, place="before_pooling").eval()
    found = logits_of(model, x)
    torch.testing.assert_close(found, expected)  # the units start silent beside the old layer
    outer = next(m for m in model.modules() if hasattr(m, "source"))
    assert outer.source.startswith(source) and not outer._passes
    optimizer = torch.optim.Adam(outer.parameters(), 0.05)
    labels = torch.arange(len(x)) % C
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = F.cross_entropy(logits_of(model, x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(p.grad is not None and (p.grad != 0).any() for p in outer.head.parameters())


def test_the_kernel_is_averaged_over_the_maps_places():
    torch.manual_seed(0)
    model = kernelize(cnn(), place="before_pooling", head=lambda d, c: KernelClassifier(d, c, shared=5)).eval()
    x = pictures()
    maps = model[1](model[0](x))
    expected = model[5].head.at_places(maps.mean((2, 3)), maps.flatten(2).mT)
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("positional", [False, True], ids=["by_name", "by_place"])
def test_masked_tokens_do_not_count(positional):
    torch.manual_seed(0)
    model = kernelize(TokenModel(), place="before_pooling", head=lambda d, c: KernelClassifier(d, c, shared=5)).eval()
    x, mask = ids(), torch.ones(6, 7, dtype=torch.long)
    mask[:, 4:] = 0

    def run(tokens):
        return logits_of(model, tokens, mask) if positional else logits_of(model, tokens, attention_mask=mask)

    other = x.clone()
    other[:, 4:] = 3
    torch.testing.assert_close(run(x), run(other))
    torch.testing.assert_close(run(x), logits_of(model, x[:, :4]))
    assert (logits_of(model, x) - run(x)).abs().max() > 1e-3


def test_a_padding_mask_inside_the_model_counts_too():
    torch.manual_seed(0)
    make = lambda d, c: KernelClassifier(d, c, shared=5)  # noqa: E731
    model = SmallTransformer(20, C, width=8, layers=1, dropout=0.0)
    model = kernelize(model, place="before_pooling", head=make).eval()
    x = ids()
    padded = torch.cat((x, torch.zeros(6, 3, dtype=torch.long)), 1)
    torch.testing.assert_close(model(padded), model(x))


def test_the_whole_of_bert_and_vit():
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra 'text'")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    bert = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=20, num_labels=C, **sizes))
    bert = kernelize(bert, place="before_pooling", head=lambda d, c: KernelClassifier(d, c, shared=5)).eval()
    x, mask = ids(), torch.ones(6, 7, dtype=torch.long)
    mask[:, 4:] = 0
    other = x.clone()
    other[:, 4:] = 3
    torch.testing.assert_close(
        bert(input_ids=x, attention_mask=mask).logits, bert(input_ids=other, attention_mask=mask).logits
    )
    config = transformers.ViTConfig(image_size=16, patch_size=8, num_labels=C, **sizes)
    vit = kernelize(transformers.ViTForImageClassification(config), place="before_pooling").eval()
    assert vit(pictures()).logits.shape == (6, C)
    assert vit.classifier.source == "vit.layernorm"


def test_second_order_pooling_of_maps_with_a_rank_and_a_mask():
    torch.manual_seed(0)
    head = SecondOrderPooling(D, C, rank=4)
    assert head.linear.in_features == 10
    places, mask = torch.randn(2, 5, D), torch.tensor([[1, 1, 0, 0, 1], [1, 1, 1, 1, 1]]).bool()
    kept = head.at_places(places.mean(1), places, mask)
    torch.testing.assert_close(kept[0], head(places[:1, mask[0]].mT)[0])
    torch.testing.assert_close(kept[1], head(places[1:].mT)[0])
    model = kernelize(cnn(), place="before_pooling", head=lambda d, c: SecondOrderPooling(d, c, rank=4))
    assert model(pictures()).shape == (6, C)


def test_copies_pickles_states_and_threads_hold_no_batch():
    from concurrent.futures import ThreadPoolExecutor

    torch.manual_seed(0)
    model = kernelize(cnn(), place="before_pooling").eval()
    nn.init.normal_(model[5].head.readout.weight)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        torch.testing.assert_close(other(pictures()), model(pictures()))
        assert other[5].head is not model[5].head and not model[5]._passes
    fresh = kernelize(cnn(), place="before_pooling").eval()
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh(pictures()), model(pictures()))
    batches = [pictures(n) for n in (2, 3, 4, 5)]
    alone = [model(x).detach() for x in batches]
    with ThreadPoolExecutor(4) as pool:
        torch.testing.assert_close(list(pool.map(lambda x: model(x).detach(), batches)), alone)


def test_compiles_and_exports_after_a_first_pass():
    torch.manual_seed(0)
    model, x = kernelize(cnn(), place="before_pooling").eval(), pictures()
    expected = model(x)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, backend="aot_eager")(x), expected)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected)


def test_a_loader_settles_places_prototypes_and_weights():
    torch.manual_seed(0)
    y = torch.arange(60) % 2
    x = torch.randn(60, 8) + 3 * torch.where(y[:, None] == 0, torch.eye(2, 8)[0], torch.eye(2, 8)[1])
    loader = DataLoader(TensorDataset(x, y), batch_size=20)
    model = nn.Sequential(nn.Identity(), nn.Linear(8, 2))
    kernelize(model, loader=loader)
    torch.testing.assert_close(model[1].weight, KernelClassifier(8, 2).init_from(x, y).weight)
    many = DataLoader(TensorDataset(x.repeat(8, 1), y.repeat(8)), batch_size=99)
    auto = nn.Sequential(nn.Identity(), nn.Linear(8, 2))
    kernelize(auto, loader=many, head=lambda d, c: KernelClassifier(d, c, prototypes="auto"))
    assert auto[1].prototypes == 2
    images = DataLoader(TensorDataset(pictures(12), torch.arange(12) % C), batch_size=6)
    placed = kernelize(cnn(), place="before_pooling", loader=images, head=lambda d, c: KernelClassifier(d, c, shared=5))
    assert placed[5].source == "1"
    torch.testing.assert_close(private_copy(placed)(pictures()), placed.eval()(pictures()))
    batches = [{"input_ids": ids(), "attention_mask": torch.ones(6, 7), "labels": torch.arange(6) % C}]
    tokens = kernelize(TokenModel(), place="before_pooling", loader=batches)
    assert tokens.classifier.source == "norm" and tokens.classifier.mask == ("", "attention_mask")


def test_sentences():
    for make, error, match in [
        (lambda: kernelize(cnn(), place="pooling"), ValueError, "place must be one of 'head', 'before_pooling'"),
        (
            lambda: kernelize(cnn(), place="before_pooling", head=CosineClassifier),
            TypeError,
            "must have a method at_places",
        ),
        (
            lambda: kernelize(nn.Sequential(nn.Flatten(), nn.Linear(768, C)), place="before_pooling")(pictures()),
            ValueError,
            r"with place='before_pooling' a layer must give .* got none in this pass",
        ),
        (lambda: kernelize(cnn(), loader=[pictures()]), ValueError, r"loader must give pairs \(x, y\)"),
    ]:
        with pytest.raises(error, match=match):
            make()


class LastToken(nn.Module):
    """Reads every token and answers with the logits of the last that is not padding, as GPT-2 and Llama do."""

    def __init__(self):
        super().__init__()
        self.tokens, self.norm, self.score = nn.Embedding(20, D), nn.LayerNorm(D), nn.Linear(D, C, bias=False)

    def forward(self, input_ids, attention_mask=None):
        logits = self.score(self.norm(self.tokens(input_ids).cumsum(1)))
        last = (torch.arange(input_ids.shape[1]) * (input_ids != 0)).argmax(1)
        return {"logits": logits[torch.arange(len(logits)), last]}


def padded(n=12, length=7):
    x = ids(n, length)
    x[::2, 4:] = 0
    return {"input_ids": x, "attention_mask": (x != 0).long(), "labels": torch.arange(n) % C}


def test_a_loader_starts_the_head_at_the_token_that_answers():
    torch.manual_seed(0)
    model, batch = LastToken(), padded()
    states = model.norm(model.tokens(batch["input_ids"]).cumsum(1)).detach()
    last = states[torch.arange(12), batch["attention_mask"].sum(1) - 1]
    expected = KernelClassifier(D, C).init_from(last, batch["labels"])
    kernelize(model, loader=[batch])
    torch.testing.assert_close(model.score.weight, expected.weight)


def test_a_loader_is_refused_where_no_token_answers():
    class Averaged(LastToken):
        def forward(self, input_ids, attention_mask=None):
            return self.score(self.norm(self.tokens(input_ids))).mean(1)

    match = r"the model answer with the logits of one token; got embeddings \(12, 7, 16\) and an output \(12, 3\)"
    with pytest.raises(ValueError, match=match):
        kernelize(Averaged(), loader=[padded()])


@pytest.mark.parametrize("start", [False, True], ids=["plain", "loader"])
@pytest.mark.parametrize("head", [None, KernelClassifier, SecondOrderPooling], ids=str)
def test_before_pooling_at_every_token_averages_over_those_that_count(head, start):
    torch.manual_seed(0)
    batch = padded()
    model = kernelize(LastToken(), head=head, place="before_pooling", loader=[batch] if start else None)
    x, mask = batch["input_ids"], batch["attention_mask"]
    logits = logits_of(model, x, mask)
    assert logits.shape == (12, C) and model.score.source == "norm"
    states = model.norm(model.tokens(x).cumsum(1))
    last = states[torch.arange(12), mask.sum(1) - 1]
    torch.testing.assert_close(logits, model.score.head.at_places(last, states, mask))
    logits.sum().backward()  # and a longer padding changes nothing
    longer = [torch.cat((t, torch.zeros(12, 2, dtype=torch.long)), 1) for t in (x, mask)]
    torch.testing.assert_close(logits_of(model, *longer), logits)


def test_before_pooling_says_what_it_found_where_pooled_parts_are_joined():
    class Joined(TokenModel):
        def forward(self, input_ids):
            states = self.norm(self.tokens(input_ids))
            return self.classifier(torch.cat((states[:, 0], states[:, 1:].mean(1)), 1))

    model = Joined()
    model.classifier = nn.Linear(2 * D, C)
    match = r"must give \(n, 32, places\) or \(n, places, 32\); got \(6, 7, 16\) as the last output.*place='head'"
    with pytest.raises(ValueError, match=match):
        kernelize(model, place="before_pooling")(ids())


def test_sequence_classifiers_of_transformers():
    """The published models, small and random, where transformers is installed."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    small = {"vocab_size": 20, "num_labels": C, "pad_token_id": 0}
    gpt2 = transformers.GPT2Config(n_embd=D, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1, **small)
    llama = transformers.LlamaConfig(
        hidden_size=D, intermediate_size=D, num_hidden_layers=1, num_attention_heads=2, **small
    )
    for family, config in (("GPT2", gpt2), ("Llama", llama)):
        for place in ("head", "before_pooling"):
            torch.manual_seed(0)
            model = getattr(transformers, f"{family}ForSequenceClassification")(config).eval()
            before = model(**padded()).logits
            after = kernelize(model, place=place, loader=[padded()])(**padded())
            after.loss.backward()
            assert after.logits.shape == (12, C) and after.logits.isfinite().all()
            if place == "before_pooling":  # shared units start silent beside the old layer
                torch.testing.assert_close(after.logits, before)
