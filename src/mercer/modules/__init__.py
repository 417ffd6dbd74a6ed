"""Looking into a torch model: layers, hooks, a private copy, embeddings of a loader."""

from .attention import plain_attention
from .capture import Seen, capture
from .layers import as_logits, find_layers, last_linear, layer, output_rows, trainable, unwrap
from .loading import Data, as_tensor, embeddings, is_loader, labelled_rows, rows, run_model
from .private_copy import private_copy
from .stored_rows import Readable, StoredRows, open_rows

__all__ = [
    "Data",
    "Readable",
    "Seen",
    "StoredRows",
    "as_logits",
    "as_tensor",
    "capture",
    "embeddings",
    "find_layers",
    "is_loader",
    "labelled_rows",
    "last_linear",
    "layer",
    "open_rows",
    "output_rows",
    "plain_attention",
    "private_copy",
    "rows",
    "run_model",
    "trainable",
    "unwrap",
]
