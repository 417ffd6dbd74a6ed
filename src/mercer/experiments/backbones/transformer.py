"""A small transformer encoder over word numbers, read at its first token as BERT is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["SmallTransformer"]


class SmallTransformer(nn.Module):
    """Token and place embeddings, encoder layers, the first token's state through tanh, a linear head.

    Args:
        vocabulary: number of tokens; 0 pads, 1 stands first.
        num_classes: outputs.
        width: of the states.
        layers: encoder layers.
        heads: attention heads.
        length: most tokens of an input.
        dropout: in the encoder.
    """

    def __init__(
        self,
        vocabulary: int,
        num_classes: int = 2,
        *,
        width: int = 64,
        layers: int = 2,
        heads: int = 2,
        length: int = 64,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embedding_size = width
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.linear = nn.Linear(width, num_classes)

    def features(self, ids: Tensor) -> Tensor:  # (n, tokens) -> (n, width)
        """The embedding that the head sees."""
        states = self.encoder(self.tokens(ids) + self.places[: ids.shape[1]], src_key_padding_mask=ids == 0)
        pooled: Tensor = self.pooler(states[:, 0])
        return pooled

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.linear(self.features(ids))
        return logits
