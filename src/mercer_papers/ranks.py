"""One run over the ranks of ``torchrun``: a cell is claimed by one rank, each writes its own lines, rank 0 joins them.

Ranks meet in the run folder, and once at the start in a collective: cells take their own time, and a rank that waits
for another must still hear SIGTERM. A cell itself works alone (`mercer.distributed.alone`).
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mercer.checks import sentence
from mercer.distributed import gather_json, rank, world_size
from mercer.storage.files import lock, mend_lines
from mercer_papers.cells import Cell
from mercer_papers.results import RESULTS, read_results

_CLAIMS = ".claims"
_LOCK = ".mercer.rank{}.lock"
_POLL = 0.1  # seconds between two looks at a lock


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """The folder for this run alone: rank 0 holds the folder, every other rank a file of its own in it."""
    if rank():
        with lock(folder, _LOCK.format(rank())):
            yield
        return
    with lock(folder):
        for path in folder.glob(_LOCK.format("*")):  # a rank of a run whose rank 0 was killed may still be at work
            if int(path.name.split(".")[2].removeprefix("rank")) >= world_size():
                with lock(folder, path.name):
                    pass
        yield


def results_path(folder: Path) -> Path:
    """Where this rank appends its lines: one writer for each file."""
    return folder / (RESULTS if rank() == 0 else f"results.rank{rank()}.jsonl")


def collect(folder: Path) -> None:
    """Put the lines of other ranks, of this session or of one that was killed, into ``results.jsonl``."""
    mend_lines(folder / RESULTS)
    for path in sorted(folder.glob("results.rank*.jsonl")):
        mend_lines(path)
        with (folder / RESULTS).open("ab") as file:
            file.write(path.read_bytes())
        path.unlink()  # killed before this, the lines are there twice: of two with one key the later holds


def begin(folder: Path, keys: Sequence[str]) -> list[str]:
    """The cells to run, by key, as rank 0 says them, once it has made the folder ready."""
    if rank() == 0:
        shutil.rmtree(folder / _CLAIMS, ignore_errors=True)
        (folder / _CLAIMS).mkdir()
    agreed: list[str] = gather_json(list(keys))[0]
    return agreed


def claim_cells(folder: Path, cells: Iterable[Cell]) -> Iterator[Cell]:
    """The cells that no other rank has begun, each when its turn comes."""
    for cell in cells:
        with contextlib.suppress(FileExistsError):
            (folder / _CLAIMS / cell.key()).touch(exist_ok=False)
            yield cell


def finish(folder: Path, keys: Iterable[str]) -> None:
    """On rank 0: wait until the others have let go, and join their lines.

    Raises:
        RuntimeError: A rank stopped before its cells were done.
    """
    if rank():
        return
    for other in range(1, world_size()):
        while True:  # until its lock can be had
            try:
                with lock(folder, _LOCK.format(other)):
                    break
            except RuntimeError:
                time.sleep(_POLL)
    collect(folder)
    shutil.rmtree(folder / _CLAIMS, ignore_errors=True)
    unfinished = set(keys) - {result.key for result in read_results(folder)}
    if unfinished:
        fix = f"Did a rank stop? Resume with: mercer reproduce --resume {folder}"
        raise RuntimeError(sentence("reproduce", "every cell must have ended", f"{len(unfinished)} that have not", fix))
