"""``mercer.save`` and ``mercer.load``: a folder with JSON that describes and safetensors that hold.

The JSON file names its tensor file by content and is replaced last, so a writer that dies at any moment
leaves the version before it whole. One version back is kept beside the current one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from .. import __version__
from ..checks import sentence
from .encoding import Decoder, Encoder
from .files import TEMPORARY, TEMPORARY_NAME, atomic_write, lock, open_to_read, read_json, sha256, system_error
from .savable import Savable
from .schema import check_schema

VERSION = 1
CURRENT, PREVIOUS = "mercer.json", "mercer.previous.json"
_TENSOR_FILE = re.compile(r"tensors-([0-9a-f]{16})\.safetensors")
_TENSORS = {"file": str, "bytes": int, "sha256": str}
_SAVED = {"$object": str, "arguments": {str: object}, "state?": object, "training?": bool}
_MANIFEST = {
    "format": {"mercer"},
    "version": int,
    "made_by": {str: str},
    "tensors": _TENSORS,
    "object": _SAVED,
    "checksum": str,
}


def save(obj: Savable, folder: str | os.PathLike[str]) -> None:
    """Save a kernel, map, head, estimator or tabular model of Mercer into ``folder``.

    The folder is made if need be. What was saved there before stays loadable through any failure, and after
    success as ``load(folder, previous=True)``. Other files in the folder are left alone.

    Args:
        obj: Any :class:`~mercer.storage.Savable`.
        folder: Where to.

    Raises:
        TypeError: The object holds what a file cannot carry: a function, a model of the user's.
        OSError: The folder cannot be written; the sentence names it.
        RuntimeError: Another process is saving into the folder.
    """
    if not isinstance(obj, Savable):
        raise TypeError(
            sentence("mercer.save", "obj must be a kernel, map, head or estimator of Mercer", type(obj).__name__)
        )
    # Describe the object before the disk is touched, so that every refusal leaves it as it was.
    encoder = Encoder()
    document = encoder.savable(obj, type(obj).__name__)
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise system_error("mercer.save", f"{target} must be a folder that can be written", error) from error
    with lock(target, ".mercer.save.lock"):
        # Name the tensors by their content, and replace the description that names them last.
        data = safetensors.torch.save(encoder.tensors)
        digest = hashlib.sha256(data).hexdigest()
        file = f"tensors-{digest[:16]}.safetensors"
        body = {
            "format": "mercer",
            "version": VERSION,
            "made_by": {"mercer": __version__, "torch": str(torch.__version__)},
            "tensors": {"file": file, "bytes": len(data), "sha256": digest},
            "object": document,
        }
        text = json.dumps({**body, "checksum": _checksum(body)}, indent=1, allow_nan=False)
        atomic_write(target / file, data)
        in_use = [file]

        # Make the current version the previous one. A damaged one must not push out a whole one.
        for name in (CURRENT, PREVIOUS):
            try:
                old = _read_description(target / name)
            except (ValueError, OSError):
                continue
            if name == CURRENT:
                atomic_write(target / PREVIOUS, (target / CURRENT).read_bytes())
            in_use.append(old["tensors"]["file"])
            break
        atomic_write(target / CURRENT, text.encode())

        # Delete tensors that neither version names, and what killed writers left.
        for path in (*target.glob("tensors-*.safetensors"), *target.glob(TEMPORARY)):
            if path.name not in in_use and not path.is_symlink() and path.is_file() and _is_written_by_mercer(path):
                path.unlink(missing_ok=True)


def load(folder: str | os.PathLike[str], *, previous: bool = False) -> Any:
    """The object that :func:`save` put into ``folder``, on the CPU.

    Nothing in the folder is executed: only classes of Mercer are constructed, and every byte is checked
    against its checksum first.

    Args:
        folder: Where from.
        previous: Load the version before the last.

    Raises:
        FileNotFoundError: Nothing was saved there.
        ValueError: A file is damaged, or was written by another minor version; the sentence names it.
    """
    path = Path(folder) / CURRENT
    if previous:
        path = Path(folder) / PREVIOUS
    if not path.is_file():
        got = "no such folder"
        if path.parent.is_dir():
            got = ", ".join(sorted(file.name for file in path.parent.iterdir())[:5]) or "an empty folder"
        fix = "Was it made by mercer.save?"
        raise FileNotFoundError(sentence("mercer.load", f"{folder} must hold {path.name}", got, fix))
    try:
        # Everything is checked before anything is built; where it fails, say that the version before may be whole.
        document = _read_description(path)
        _check_version(path, document)
        tensors = _read_tensors(path.parent, document["tensors"])
    except ValueError as error:
        if previous or not (path.parent / PREVIOUS).is_file():
            raise
        raise ValueError(f"{error} The version before it: mercer.load(folder, previous=True).") from error
    return Decoder(tensors, str(path)).whole(document["object"])


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The checked description of what :func:`save` put into ``folder``: nothing is built, no tensor is read.

    Raises:
        FileNotFoundError: Nothing was saved there.
        ValueError: The description is damaged, or was written by another minor version.
    """
    path = Path(folder) / CURRENT
    document = _read_description(path)
    _check_version(path, document)
    return document


def _is_written_by_mercer(path: Path) -> bool:
    """A writer's temporary file, or tensors that are named by what is in them: nobody else names files so."""
    match = _TENSOR_FILE.fullmatch(path.name)
    if match is None:
        return TEMPORARY_NAME.fullmatch(path.name) is not None
    return sha256(path).startswith(match[1])


def _read_description(path: Path) -> dict[str, Any]:
    document = read_json(path)
    if not isinstance(document, dict) or document.get("format") != "mercer":
        raise ValueError(sentence("mercer.load", f"{path} must be written by mercer.save", "something else"))
    version = document.get("version")
    if not isinstance(version, int) or not 0 < version <= VERSION:
        fix = "Upgrade Mercer to read it."
        raise ValueError(sentence("mercer.load", f"{path} must be of version {VERSION} or before", version, fix))
    check_schema("mercer.load", str(path), document, _MANIFEST)
    if document.pop("checksum") != _checksum(document):
        raise ValueError(_describe_damage(path, "a wrong checksum"))
    return document


def _check_version(path: Path, document: dict[str, Any]) -> None:
    """Refuse a folder of another minor version: before 1.0 what a class keeps may change with each."""
    writer = ".".join(document["made_by"].get("mercer", "unknown").split(".")[:2])
    reader = ".".join(__version__.split(".")[:2])
    if writer != reader:
        fix = f"Fit or save it again with this version, or read it with mercer {writer}."
        raise ValueError(sentence("mercer.load", f"{path} must be written by mercer {reader}", f"mercer {writer}", fix))


def _read_tensors(folder: Path, entry: dict[str, Any]) -> dict[str, Tensor]:
    # The bytes, as the description says: name, size and checksum.
    path = folder / entry["file"]
    if not _TENSOR_FILE.fullmatch(path.name) or not os.path.lexists(path):
        raise ValueError(_describe_damage(path, "no such file"))
    with open_to_read(path, "mercer.load") as file:
        # A file of another size is not read.
        size = os.fstat(file.fileno()).st_size
        if size != entry["bytes"]:
            raise ValueError(_describe_damage(path, f"{size} bytes of {entry['bytes']}"))
        data = file.read()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ValueError(_describe_damage(path, "a wrong checksum"))
    try:
        tensors = safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(_describe_damage(path, error)) from error
    # A model that answers NaN is worse than none.
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            fix = "A model that diverged, or that was changed by hand, is not loaded."
            raise ValueError(sentence("mercer.load", f"{path} must hold finite numbers", f"others in {name}", fix))
    return tensors


def _checksum(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _describe_damage(path: Path, got: object) -> str:
    return sentence("mercer.load", f"{path} must be as it was saved", got, "The file is damaged: copy it again.")
