"""Saving and loading: safetensors + JSON, whole or not at all, never pickle; files that nobody has to trust."""

from .archives import (
    CorruptData,
    checked_size,
    corrupt,
    decompressed,
    open_decompressed,
    read_npz,
    text_table,
    verify_checksum,
    whole_numbers,
)
from .files import atomic_stream, atomic_write, read_json, sha256
from .folder import load, read_manifest, save
from .lines import append_line, mend_lines, read_lines
from .locking import lock
from .regular import check_replaceable, open_to_append, open_to_read
from .savable import Savable, SavableModule
from .schema import check_schema

__all__ = [
    "CorruptData",
    "Savable",
    "SavableModule",
    "append_line",
    "atomic_stream",
    "atomic_write",
    "check_replaceable",
    "check_schema",
    "checked_size",
    "corrupt",
    "decompressed",
    "load",
    "lock",
    "mend_lines",
    "open_decompressed",
    "open_to_append",
    "open_to_read",
    "read_json",
    "read_lines",
    "read_manifest",
    "read_npz",
    "save",
    "sha256",
    "text_table",
    "verify_checksum",
    "whole_numbers",
]
