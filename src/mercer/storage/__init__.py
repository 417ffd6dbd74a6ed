"""Saving and loading: safetensors + JSON, whole or not at all, never pickle."""

from .files import atomic_stream, atomic_write, lock, read_json, sha256
from .folder import load, save
from .savable import Savable

__all__ = ["Savable", "atomic_stream", "atomic_write", "load", "lock", "read_json", "save", "sha256"]
