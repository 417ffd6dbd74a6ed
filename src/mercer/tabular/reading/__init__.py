"""A user's file in, a typed table out: csv, tsv, parquet, npz; every refusal is a sentence with the file's name."""

from .delimited import MISSING_MARKS, Limits
from .files import read, read_chunks

__all__ = ["MISSING_MARKS", "Limits", "read", "read_chunks"]
