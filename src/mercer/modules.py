"""Older names of :func:`mercer.signals.embeddings` and :func:`mercer.rows.open_rows`, kept until version 1.0."""

from .rows import open_rows
from .signals import embeddings

__all__ = ["embeddings", "open_rows"]
