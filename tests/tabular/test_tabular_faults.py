"""Rows of the fault table for a user's own table: bad values, bad folders, full disks, two runs at once."""

import errno
import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from torch.utils._python_dispatch import TorchDispatchMode

import mercer
from mercer.cli import main
from mercer.storage import files, folder
from mercer.storage.files import lock
from mercer.tabular import TabularModel


def run(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


def table(n=60):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=n), "b": rng.normal(size=n)})
    return frame.assign(y=np.where(frame["a"] > 0, "up", "down"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A model's folder and a table."""
    where = tmp_path_factory.mktemp("kept")
    mercer.save(TabularModel().fit(table(), "y"), where / "model")
    table().to_csv(where / "t.csv", index=False)
    return where


@pytest.fixture
def home(kept, tmp_path):
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    return tmp_path


def finite(model, frame):
    answer = model.predict(frame).drop(columns="prediction")
    return bool(np.isfinite(answer.to_numpy()).all())


@pytest.mark.parametrize("scale", [1e-300, 1e-40, 1e100])
def test_4_5_6_any_scale_that_squares_is_learned_from(scale):
    frame = table()
    plain, scaled = (f.assign(y=frame["y"]) for f in (frame, frame[["a", "b"]] * scale))
    a, b = (TabularModel().fit(f, "y").predict(f) for f in (plain, scaled))
    assert (a["prediction"] == b["prediction"]).all()
    np.testing.assert_allclose(a["p_up"], b["p_up"], atol=1e-6)


def test_7_9_rows_that_are_all_equal():
    frame = pd.DataFrame({"a": [1.0] * 20, "y": ["u", "v"] * 10})
    with pytest.raises(ValueError, match="some column must be left to learn from"):
        TabularModel().fit(frame, "y")
    twice = pd.concat([table(20)] * 5, ignore_index=True)
    assert finite(TabularModel().fit(twice, "y"), twice)


def test_10_near_duplicates():
    frame = pd.concat([table(20)] * 5, ignore_index=True)
    frame["a"] += 1e-13 * np.arange(len(frame))
    assert finite(TabularModel().fit(frame, "y"), frame)


def test_13_fewer_rows_than_classes_can_fill():
    frame = pd.DataFrame({"a": np.arange(6.0), "y": list("abcdef")})
    answer = TabularModel().fit(frame, "y").predict(frame)
    assert answer.columns.tolist() == ["prediction", *(f"p_{name}" for name in "abcdef"), "unfamiliar"]
    p = answer.filter(like="p_")
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert p.to_numpy().max() < 0.5, "one row of a class says nothing of the others"


def test_17_continuous_labels_as_classes():
    frame = table().assign(y=np.random.default_rng(1).normal(size=60))
    with pytest.raises(ValueError, match="classes in column 'y' must repeat; got 60 different ones in 60 rows"):
        TabularModel(task="classification").fit(frame, "y")


def test_29_slices_and_orders_of_the_table_do_not_matter():
    frame = table()
    model = TabularModel().fit(frame, "y")
    backwards = model.predict(frame[::-1])
    pd.testing.assert_frame_equal(backwards.sort_index(), model.predict(frame), check_exact=False, atol=1e-12)
    read_only = frame["a"].to_numpy().copy()
    read_only.flags.writeable = False
    assert finite(model, pd.DataFrame({"a": read_only, "b": frame["b"]}, copy=False))


def test_39_a_folder_that_names_other_code_runs_nothing(home):
    trap = home / "trap"
    text = (home / "model" / "mercer.json").read_text()
    for name in ("os.system", "mercer.cli.commands.main", "mercer.tabular.reading.read"):
        document = json.loads(text)
        document["object"]["$object"] = name
        document.pop("checksum")
        document["checksum"] = folder._checksum(document)
        (home / "model" / "mercer.json").write_text(json.dumps(document))
        done = run("predict", home / "model", home / "t.csv", "-o", home / "o.csv")
        assert done.exit_code == 1 and "only classes of Mercer that can be saved" in done.stderr
    (home / "model" / "mercer.json").write_bytes(b"cos\nsystem\n(S'touch " + str(trap).encode() + b"'\ntR.")
    done = run("predict", home / "model", home / "t.csv", "-o", home / "o.csv")
    assert done.exit_code == 1 and "must be JSON" in done.stderr and not trap.exists() and not (home / "o.csv").exists()


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_40_truncated_files_are_named(home, share):
    for pattern in ("mercer.json", "tensors-*.safetensors"):
        shutil.copytree(home / "model", home / "copy", dirs_exist_ok=True)
        (path,) = (home / "copy").glob(pattern)
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
        done = run("predict", home / "copy", home / "t.csv", "-o", home / "o.csv")
        assert done.exit_code == 1 and path.name in done.stderr and "Traceback" not in done.output


def test_40_a_flipped_bit_is_noticed(home):
    for pattern in ("mercer.json", "tensors-*.safetensors"):
        shutil.copytree(home / "model", home / "copy", dirs_exist_ok=True)
        (path,) = (home / "copy").glob(pattern)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        done = run("predict", home / "copy", home / "t.csv", "-o", home / "o.csv")
        assert done.exit_code == 1 and path.name in done.stderr


def test_42_another_version_and_missing_parts_are_refused(home, monkeypatch):
    model = mercer.load(home / "model")
    with monkeypatch.context() as patch:
        patch.setattr(folder, "__version__", "0.1.7")
        mercer.save(model, home / "newer")
    done = run("predict", home / "newer", home / "t.csv", "-o", home / "o.csv")
    assert done.exit_code == 1
    assert "got mercer 0.1. Fit or save it again with this version, or read it with mercer 0.1." in done.stderr
    state = model.get_state()
    del state["familiarity"]
    monkeypatch.setattr(TabularModel, "get_state", lambda self: state)
    mercer.save(model, home / "older")
    done = run("predict", home / "older", home / "t.csv", "-o", home / "o.csv")
    assert done.exit_code == 1 and "the state of a TabularModel of this version; got 'familiarity'" in done.stderr


COLUMN = ("preparation", "state", "columns", 0)
ENCODER = (*COLUMN, "arguments", "encoder")
STACK = ("learner", "arguments", "machine")
EDITS = {  # where in a model's state, what is put there, what the sentence says
    "target": (("target",), True, "Target as target of a TabularModel; got True"),
    "preparation": (("preparation",), {"$float": "nan"}, "Preparation as preparation of a TabularModel; got nan"),
    "columns": (COLUMN, 3, r"list\[.*Column\] as columns of a Preparation; got \[3"),
    "encoder": (ENCODER, 0, "Encoder as encoder of a Column; got 0"),
    "fill": ((*ENCODER, "arguments", "fill"), "x", "float as fill of a Numbers; got 'x'"),
    "features": ((*ENCODER, "arguments", "features"), ["a", "b", "c"], "the columns must have 2 features; got 4"),
    "machine": (STACK, [], "what this version can build; got 'list'"),
    "rows": ((*STACK, "state", "rows_"), None, "Tensor as rows_ of a StackedRidge; got None"),
    "kernel": ((*STACK, "state", "machines_", 0, "arguments", "kernel"), 1, "Kernel as kernel of a StackedMachine"),
}


@pytest.mark.parametrize("case", EDITS)
def test_54_an_edited_state_is_refused_where_it_is_read(home, case):
    path = home / "model" / "mercer.json"
    place, value, need = EDITS[case]
    document = json.loads(path.read_text())
    document.pop("checksum")
    part = document["object"]["state"]
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    document["checksum"] = folder._checksum(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=rf"mercer.load: .*mercer.json must hold .*{need}"):
        mercer.load(home / "model")


def test_45_a_full_disk_leaves_the_old_file(home, monkeypatch):
    (home / "o.csv").write_text("old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    done = run("predict", home / "model", home / "t.csv", "-o", home / "o.csv")
    assert done.exit_code == 1 and "o.csv must be writable; got No space left on device" in done.stderr
    done = run("fit", home / "t.csv", "--target", "y", "-o", home / "model")
    assert done.exit_code == 1 and "No space left" in done.stderr and "cross-validation" not in done.stderr
    monkeypatch.undo()
    assert (home / "o.csv").read_text() == "old" and not list(home.glob(".mercer-*"))
    assert run("predict", home / "model", home / "t.csv", "-o", home / "o.csv").exit_code == 0


def test_45_a_folder_that_cannot_be_written_is_named(home):
    (home / "file").write_text("")
    done = run("predict", home / "model", home / "t.csv", "-o", home / "nowhere" / "o.csv")
    assert done.exit_code == 1 and "o.csv must be writable; got No such file or directory" in done.stderr
    done = run("fit", home / "t.csv", "--target", "y", "-o", home / "file" / "model")
    assert done.exit_code == 1 and "Not a directory" in done.stderr and "Traceback" not in done.output


def test_46_two_fits_into_one_folder_do_not_mix(home):
    with lock(home / "model", ".mercer.save.lock"):
        done = run("fit", home / "t.csv", "--target", "y", "-o", home / "model")
    assert done.exit_code == 1 and "must be used by one run at a time" in done.stderr
    assert run("predict", home / "model", home / "t.csv", "-o", home / "o.csv").exit_code == 0


def test_48_one_and_two_threads_agree():
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(TabularModel().fit(table(), "y").predict(table()))
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_allclose(found[0]["p_up"], found[1]["p_up"], atol=1e-6)
    np.testing.assert_allclose(found[0]["unfamiliar"], found[1]["unfamiliar"], atol=1e-4)


def test_56_far_more_columns_than_rows():
    """Nothing of size d x d is made: no array of the fit holds more than a few times the table's numbers."""
    rng = np.random.default_rng(0)
    x, sort = rng.normal(size=(40, 1500)), rng.choice([-1, 1], 40)
    x[:, :100] += 3 * sort[:, None]  # these columns say the class
    frame = pd.DataFrame(x).rename(columns=lambda i: f"c{i}").assign(y=np.where(sort > 0, "a", "b"))
    with Largest() as largest:
        model = TabularModel().fit(frame, "y")
        found = model.explain()
    assert finite(model, frame) and 40 * 1500 <= largest.numbers < 1500 * 1500 / 4
    signal = {f"c{i}" for i in range(100)}
    assert len(found) == 1500 and found["weight"].sum() == pytest.approx(1) and set(found.index[:20]) <= signal
    assert "c1" in found.loc["c0", "correlated"].split(", ")


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return made


def test_a_seed_that_numpy_does_not_take_is_refused():
    with pytest.raises(ValueError, match=r"TabularModel: random_state must be .*; got 4294967296"):
        TabularModel(random_state=2**32)
