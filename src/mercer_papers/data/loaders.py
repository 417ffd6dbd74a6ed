"""Load a set by its name from the folder that ``MERCER_DATA`` names; nothing is ever downloaded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mercer import checks
from mercer.storage.archives import checked_size, corrupt, read_npz
from mercer.storage.files import open_to_read

from ..data_files import RESNET20, SOURCES, Source, canonical, data_folder, locate, missing
from .readers import READERS, Part, load_shipped
from .splits import Dataset, split_rows, stratified_split

_verified: set[tuple[str, int, int, str]] = set()


def names() -> list[str]:
    """The names :func:`load` knows, sorted."""
    return sorted(SOURCES)


def how_to_get(name: str) -> str:
    """One sentence on where a set comes from.

    >>> how_to_get("mnist")
    "Put mnist.npz, or MNIST's four idx files, into the folder MERCER_DATA names."
    """
    return SOURCES[canonical(name)].how


def available(name: str) -> bool:
    """Whether :func:`load` would find the files of a set (they are not opened)."""
    listed = canonical(name)
    return listed not in READERS or locate(SOURCES[listed], data_folder(None)) is not None


def load(
    name: str,
    *,
    rows: int | tuple[int, int] | None = None,
    classes: Sequence[int | str] | None = None,
    validation: float = 0.0,
    fold: int | None = None,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    verify: bool = True,
) -> Dataset:
    """A data set in parts; official splits are kept, others are stratified, decided by ``seed`` and never change.

    Args:
        name: one of :func:`names`.
        rows: at most this many training and as many test rows, or a pair for the two; the first of each part, after
            ``classes``. Only the pictures asked for are decoded.
        classes: keep these only, by number or name; labels are renumbered ``0..`` in the order given.
        validation: share of the training rows to set aside, stratified; a set that brings validation rows of its own
            (``cov-tw``) keeps to them, at most as many as training rows.
        fold: for sets without an official split: fold 1..10 is the test part. The authors' own folds where they are
            known (``cmu_faces``, ``divorce``), else ours. By default a fifth of each class is held out.
        seed: decides validation rows and the splits that are ours.
        folder: where the files are; by default the folder that the environment's ``MERCER_DATA`` names.
        verify: compare the papers' files with their SHA-256, once for each file and time of change.

    Raises:
        MissingData: the set is not on this machine; the message says how to get it.
        CorruptData: a file is damaged, too large or of another content.

    >>> load("digits", classes=(3, 8), rows=100)
    Dataset('digits': 100 train, 0 validation, 72 test, 2 classes)
    """
    listed = canonical(name)
    where = f"data.load({listed!r})"
    # the set as its files have it
    if listed not in READERS:
        raw = load_shipped(listed)
    else:
        files = locate(SOURCES[listed], data_folder(folder))
        if files is None:
            raise missing(listed, SOURCES[listed], data_folder(folder))
        paths, is_kept = files
        if is_kept and verify:
            _verify(SOURCES[listed], paths)
        raw = READERS[listed](paths, is_kept)
    # the classes that are wanted, by their numbers
    labels = list(range(len(raw.classes)))
    if classes is not None:
        labels = []
        for label in classes:
            if isinstance(label, str):
                labels.append(raw.classes.index(checks.choice(where, "a class", label, raw.classes)))
            else:
                labels.append(checks.integer(where, "a class", label, 0, len(raw.classes) - 1))
        if len(set(labels)) != len(labels) or not labels:
            raise ValueError(checks.sentence(where, "classes must be distinct, at least one", list(classes)))
    # rows of the training part, rows of the test part, and the part the latter live in
    if raw.test is None:
        held_out = raw.train
        train, test = split_rows(raw.train.y, raw.fold_of, fold, seed)
    else:
        if fold is not None:
            need = "fold is for sets without an official split"
            raise ValueError(checks.sentence(where, need, fold, "Leave fold out."))
        held_out = raw.test
        train, test = torch.arange(len(raw.train.y)), torch.arange(len(raw.test.y))
    numbers = torch.tensor(labels)
    train, test = train[torch.isin(raw.train.y[train], numbers)], test[torch.isin(held_out.y[test], numbers)]
    # validation rows that the set brings are never trained on; then as many rows as were asked for
    validation_rows = train[train >= len(raw.train.y) - raw.validation]
    train = train[: len(train) - len(validation_rows)]
    if rows is not None:
        n_train, n_test = rows if isinstance(rows, tuple) and len(rows) == 2 else (rows, rows)
        train = train[: checks.integer("data.load", "rows", n_train, 1)]
        test = test[: checks.integer("data.load", "rows", n_test, 1)]
    # decode
    order = torch.full((len(raw.classes),), -1)  # new label of each old one, -1 for those left out
    order[numbers] = torch.arange(len(labels))
    x_val, y_val = None, None
    if len(validation_rows):
        x_val, y_val = _fetch(raw.train, validation_rows[: len(train)], order)
    elif validation:
        split = stratified_split(order[raw.train.y[train]], test=0.0, validation=validation, seed=seed)
        x_val, y_val = _fetch(raw.train, train[split.val], order)
        train = train[split.train]
    x_train, y_train = _fetch(raw.train, train, order)
    x_test, y_test = _fetch(held_out, test, order)
    names = tuple(raw.classes[label] for label in labels)
    return Dataset(listed, x_train, y_train, x_test, y_test, x_val, y_val, names, raw.features, SOURCES[listed].note)


def resnet20_weights() -> dict[str, Tensor]:
    """Weights of a ResNet-20 (shortcuts without weights) trained on CIFAR-10: parameter name -> tensor.

    Its inputs are ``(x - [.485, .456, .406]) / [.229, .224, .225]`` for x in [0, 1]. It has seen the labels of
    CIFAR-10's training part: no unsupervised encoder for that set.
    """
    files = locate(RESNET20, data_folder(None))
    if files is None:
        raise missing("resnet20_weights", RESNET20, data_folder(None))
    _verify(RESNET20, files[0])
    arrays = read_npz(files[0][0], limit=2**26)
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


def _verify(source: Source, paths: list[Path]) -> None:
    for path, (_, sha256) in zip(paths, source.kept, strict=True):
        verify_checksum(path, sha256)


def _fetch(part: Part, rows: Tensor, order: Tensor) -> tuple[Any, Tensor]:
    return part.take(rows.numpy().astype(np.int64)), order[part.y[rows]]


def verify_checksum(path: Path, sha256: str) -> None:
    """Refuse a file whose SHA-256 differs; the verdict is kept for this path, size and time of change."""
    status = path.stat()
    # A file that was neither changed nor touched since its last check is not read again.
    key = (str(path.resolve()), status.st_size, status.st_mtime_ns, sha256)
    if key in _verified:
        return
    checked_size(path)
    with open_to_read(path) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != sha256:
        fix = "Fetch the file again, or pass verify=False to read a file of your own in the same format."
        raise corrupt(path, f"the SHA-256 must start with {sha256[:12]}", digest[:12], fix)
    _verified.add(key)
