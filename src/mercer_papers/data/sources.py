"""The name a set is listed under, and the error where its files are absent."""

from __future__ import annotations

from pathlib import Path

from mercer import checks

from ..data_files import RESNET20, SOURCES, SPELLINGS, Source, data_folder, locate

__all__ = ["RESNET20", "SOURCES", "MissingData", "Source", "canonical", "data_folder", "locate", "missing"]


class MissingData(FileNotFoundError):  # noqa: N818 - it names the state of the data
    """A data set is not on this machine; the message says how to get it. Nothing is ever downloaded unasked."""


def canonical(name: str) -> str:
    """The name a set is listed under; ``sars_cov2_ct``, ``s_cov`` and ``cov_tw`` are other spellings."""
    return checks.choice("data.load", "name", SPELLINGS.get(name, name), SOURCES)


def missing(name: str, source: Source, folder: Path | None) -> MissingData:
    """The error that says at once what is absent and what to do."""
    if folder is None:
        got = "MERCER_DATA unset"
    else:
        got = "none of them there" if folder.is_dir() else "a folder that does not exist"
    return MissingData(checks.sentence("data.load", f"the files of {name!r} must be on this machine", got, source.how))
