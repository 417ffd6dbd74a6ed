"""Looking into a torch model: layers, hooks, Jacobian products, embeddings of a loader."""

from .capture import Seen, capture
from .jacobians import jvp, vjp
from .layers import as_logits, find_layers, last_linear, layer, trainable, unwrap
from .loading import Data, as_tensor, embeddings, labelled_rows, rows
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
    "jvp",
    "labelled_rows",
    "last_linear",
    "layer",
    "open_rows",
    "rows",
    "trainable",
    "unwrap",
    "vjp",
]
