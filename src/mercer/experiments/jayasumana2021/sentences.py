"""Table 4: heads on sentence encoders, four GLUE tasks (Section 6.3).

Below paper scale a frozen MiniLM stands in for the five fine-tuned BERTs; QQP is not in the data folder.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ... import data
from ...modules import as_logits
from ..backbones import SmallTransformer
from ..catalogue import Entry
from ..cells import Cell, Outcome
from .embedded import fit_head
from .texts import embedded_texts, fine_tune, synthetic_sentences

__all__ = ["cells", "run"]

_TASKS = {"MRPC": ("F1", "accuracy"), "QQP": ("F1", "accuracy"), "RTE": ("accuracy",), "SST-2": ("accuracy",)}
_HEADS = ("Softmax", "LIN", "SOP", "Kernelized", "Mercer's head")
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
    small = scale == "small"
    encoders = ("MiniLM, frozen",) if small else tuple(_BERTS)
    settings = {"rows": 800, "test_rows": 400, "epochs": 15} if small else {"rows": None, "epochs": 4}
    return [
        Cell(
            entry.id, row=f"{task} {score}, {head}", column=encoder, seeds=3 if small else 5,
            data=(task.lower().replace("-", ""),),
            settings={**settings, "encoder": encoder, "task": task, "score": score, "head": head},
        )
        for encoder in encoders
        for task, scores in _TASKS.items()
        for score in scores
        for head in _HEADS
    ]  # fmt: skip


def run(cell: Cell) -> Outcome:
    """Accuracy or F1 of the paraphrase class on the part that GLUE validates on (MRPC: the MSR test part)."""
    s = cell.settings
    head, score, name = s["head"], s["score"], s["task"].lower().replace("-", "")
    if s["encoder"] == "SmallTransformer":
        predicted, truth = _from_scratch(head, s, cell.seed)
    elif s["encoder"] == "MiniLM, frozen":
        z, y, z_test, truth = embedded_texts(name, s["rows"], s["test_rows"])
        logits = fit_head(head, z, y, 2, epochs=s["epochs"], seed=cell.seed, lr=0.005)
        predicted = logits(z_test).argmax(1)
    else:
        predicted, truth = _fine_tuned(name, head, s, cell.seed)
    value = _f1(predicted, truth) if score == "F1" else float((predicted == truth).double().mean())
    return Outcome(value=100 * value, note=f"Encoder: {s['encoder']}, {len(truth)} test rows.")


def _f1(predicted: Tensor, truth: Tensor) -> float:
    hits = float(((predicted == 1) & (truth == 1)).sum())
    return 2 * hits / max(1.0, float((predicted == 1).sum() + (truth == 1).sum()))


def _from_scratch(head: str, s: Any, seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    (ids, y), (new, truth) = synthetic_sentences(s["rows"], seed), synthetic_sentences(s["rows"], seed + 1)
    fresh = SmallTransformer(32, 2, width=16, layers=1)
    generator = torch.Generator().manual_seed(seed)
    model = fine_tune(fresh, head, ids, y, collate=torch.stack, epochs=s["epochs"], generator=generator, lr=1e-2)
    with torch.no_grad():
        return model.eval()(new).argmax(1), truth


def _fine_tuned(name: str, head: str, s: Any, seed: int) -> tuple[Tensor, Tensor]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(seed)
    source = f"google/bert_uncased_{_BERTS[s['encoder']]}"
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=2)
    found = data.load(name)
    collate = partial(_tokens, tokenizer)
    generator = torch.Generator().manual_seed(seed)
    model = fine_tune(
        model, head, found.x_train, found.y_train, collate=collate, epochs=s["epochs"], generator=generator
    )
    parts = []
    with torch.no_grad():
        for start in range(0, len(found.x_test), 64):
            out = model.eval()(**collate(found.x_test[start : start + 64]))
            parts.append(as_logits(out).argmax(1))
    return torch.cat(parts), found.y_test


def _tokens(tokenizer: Callable[..., Any], texts: Any) -> dict[str, Tensor]:
    columns = [list(texts)] if isinstance(texts[0], str) else [list(column) for column in zip(*texts, strict=True)]
    return dict(tokenizer(*columns, padding=True, truncation=True, max_length=128, return_tensors="pt"))
