"""Ranks that are missing, that die, that share a run: sentences, ``kill -9``, ``torchrun`` itself."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from mercer import distributed
from mercer.storage.files import lock
from mercer_papers.results import read_results, read_run
from tests.cli.cases import bare
from tests.papers import fake_entries
from tests.ranks.setup import SETUP

MEET = """
import os
import torch.distributed as dist
if "STORE" in os.environ:
    store = dist.FileStore(os.environ["STORE"], 2)
    dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2)
"""
FITTED = """
from mercer.features import Nystrom
from mercer.kernels import RBF
x = torch.randn(200, 3)
fitted = Nystrom(RBF(0.1), 16, generator=torch.Generator().manual_seed(0))
try:
    while True:
        fitted.fit(x)
        print("fitted", flush=True)
except RuntimeError as error:
    print(error, flush=True)
    os._exit(3)
"""


# --- one process where several were meant


def test_a_launcher_that_started_one_process_is_found_out():
    distributed.expect(1)
    with pytest.raises(
        RuntimeError, match=r"expect: 2 processes must work together; got 1. Start with torchrun --npro"
    ):
        distributed.expect(2)


def test_several_processes_without_a_group_do_not_fit_their_shards_in_silence(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    match = r"distributed: torch.distributed must be initialised: WORLD_SIZE says 2 processes; got no process group."
    with pytest.raises(RuntimeError, match=match):
        distributed.sum_over_ranks(torch.ones(1))
    with distributed.alone():
        assert (distributed.rank(), distributed.world_size()) == (0, 1)
        assert distributed.sum_over_ranks(torch.ones(1)) == 1
    with pytest.raises(RuntimeError, match=match):
        distributed.rank()


def test_one_process_takes_and_says_its_own():
    x, module = torch.arange(6.0).reshape(3, 2), nn.Linear(2, 2)
    assert torch.equal(distributed.take_rows(x, torch.tensor([2, 0])), x[[2, 0]])
    assert distributed.global_slice(3) == (slice(0, 3), 3) and distributed.gather_json(["a"]) == [["a"]]
    assert distributed.shared_generator(None) is None and [part is x for (part,) in distributed.shards(x)] == [True]
    distributed.broadcast_module(module)
    with distributed.joined():
        assert distributed.world_size() == 1


# --- a rank that dies


def test_when_a_rank_is_killed_in_a_fit_the_other_says_so(tmp_path):
    command = [sys.executable, "-c", SETUP + FITTED, str(tmp_path / "store")]
    ranks = [subprocess.Popen([*command, str(i), "2"], stdout=subprocess.PIPE, text=True) for i in range(2)]
    assert ranks[0].stdout.readline() == "fitted\n"
    ranks[1].kill()
    said, _ = ranks[0].communicate(timeout=240)  # the group's own limit is 10 seconds
    ranks[1].communicate()
    assert ranks[0].returncode == 3
    assert "all 2 ranks must take part; rank 0 got" in said and "Did another rank stop? Its log says why." in said


class Team:
    """Two ranks of `mercer reproduce` of the made-up table, that stop in row r1 until they are let go."""

    def __init__(self, folder):
        self.folder = folder
        script = fake_entries.write(folder / "fake")
        self.script = script.with_name("ranked_mercer.py")
        self.script.write_text(MEET + script.read_text())
        self.hold = folder / "hold"
        self.hold.touch()
        self.starts = 0

    def environment(self, **extra):
        return {**os.environ, "FAKE_HOLD": str(self.hold), "MERCER_DATA": "", "OMP_NUM_THREADS": "1", **extra}

    def start(self, *args):
        self.starts += 1
        shutil.rmtree(self.folder / "run" / ".claims", ignore_errors=True)  # so that claims seen are of this start
        store = str(self.folder / f"store{self.starts}")
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(self.script), "reproduce", *args],
                cwd=self.folder,
                env=self.environment(STORE=store, RANK=str(rank), WORLD_SIZE="2"),
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(2)
        ]

    def wait_for_claims(self, count):
        """Both ranks are in a cell of row r1."""
        for _ in range(6000):
            if len(list((self.folder / "run" / ".claims").glob("*"))) >= count:
                return
            assert all(rank.poll() is None for rank in self.ranks), [rank.stderr.read() for rank in self.ranks]
            time.sleep(0.01)
        raise AssertionError("the run did not get that far")

    def end(self):
        said = [rank.communicate(timeout=240) for rank in self.ranks]
        return [(rank.returncode, *texts) for rank, texts in zip(self.ranks, said, strict=True)]


def test_a_run_whose_ranks_are_killed_is_resumed_to_the_same_results(tmp_path, uninterrupted):
    team, run = Team(tmp_path / "team"), tmp_path / "team" / "run"
    team.start("fake2000/count", "--scale", "smoke", "-o", "run")
    team.wait_for_claims(4)
    for rank in team.ranks:
        rank.kill()
    team.end()
    assert not (run / "report.html").exists()

    team.start("--resume", "run")
    team.wait_for_claims(2)
    assert {result.row for result in read_results(run)} == {"r0"}  # the lines of both ranks were joined
    team.ranks[1].kill()
    team.hold.unlink()
    (code, out, err), (killed, _, _) = team.end()
    assert (code, out, killed) == (1, "", -signal.SIGKILL), err
    assert (
        "every cell must have ended; got 1 that have not. Did a rank stop? Resume with: mercer reproduce --resu" in err
    )

    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    command = [*torchrun, "--rdzv-endpoint", "localhost:0", str(team.script), "reproduce", "--resume", "run"]
    done = subprocess.run(command, cwd=team.folder, env=team.environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "run/report.html" and (run / "report.html").exists()
    assert bare(run) == uninterrupted
    assert [session["ranks"] for session in read_run(run)["sessions"]] == [2, 2, 2]
    assert not list(run.glob("results.rank*")) and not (run / ".claims").exists()


def test_a_rank_left_over_keeps_the_folder(tmp_path):
    from mercer_papers import ranks

    match = r"must be used by one run at a time; got a second run."
    with lock(tmp_path, ".mercer.rank1.lock"), pytest.raises(RuntimeError, match=match), ranks.hold(tmp_path):
        pass
    with ranks.hold(tmp_path):
        pass
