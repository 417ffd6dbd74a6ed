"""Files and folders that nobody has to trust: links and devices, edited manifests, sizes before work."""

import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

import mercer
from mercer.features import RandomFourier
from mercer.kernels import RBF
from mercer.nn import KernelClassifier
from mercer.storage import encoding, folder
from mercer.storage.archives import read_npz
from mercer.storage.files import append_line, atomic_write, lock, mend_lines, open_to_read, read_json, read_lines
from mercer.storage.folder import read_manifest
from mercer.storage.schema import check_schema

# --- 53: regular files only


@pytest.fixture(params=["link", "dangling", "pipe", "folder"])
def strange(request, tmp_path):
    """Something that is no regular file, and the file that it must not touch."""
    outside, path = tmp_path / "outside", tmp_path / "inside" / "x"
    path.parent.mkdir()
    if request.param != "dangling":
        outside.write_bytes(b"{}\n")
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "folder":
        path.mkdir()
    else:
        path.symlink_to(outside)
    yield path
    assert not outside.exists() if request.param == "dangling" else outside.read_bytes() == b"{}\n"
    assert path.is_symlink() or path.is_fifo() or path.is_dir(), "not replaced"


@pytest.mark.parametrize(
    "act",
    [
        lambda path: read_json(path),
        lambda path: open_to_read(path),
        lambda path: read_lines(path),
        lambda path: append_line(path, b"{}"),
        lambda path: mend_lines(path),
        lambda path: atomic_write(path, b"new"),
        lambda path: lock(path.parent, path.name).__enter__(),
        lambda path: read_npz(path),
    ],
    ids=["read_json", "open", "read_lines", "append", "mend", "write", "lock", "npz"],
)
def test_53_what_is_no_regular_file_is_refused(strange, act):
    with pytest.raises(ValueError, match=r"x must be a regular file; got a (symbolic link|pipe|folder)"):
        act(strange)


def test_53_devices_are_neither_read_nor_replaced():
    with pytest.raises(ValueError, match="/dev/null must be a regular file; got a device"):
        open_to_read("/dev/null")
    with pytest.raises(ValueError, match="/dev/null must be a regular file; got a device"):
        atomic_write("/dev/null", b"")


@pytest.mark.parametrize("name", ["mercer.json", "tensors"])
def test_53_a_model_whose_files_are_links_is_not_read(tmp_path, name):
    mercer.save(RandomFourier(RBF(), 8).fit(torch.zeros(4, 2)), tmp_path / "m")
    (path,) = (tmp_path / "m").glob(f"{name}*")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"must be a regular file; got a symbolic link. Name the file itself"):
        mercer.load(tmp_path / "m")


def test_save_deletes_only_what_it_wrote(tmp_path):
    theirs = ["tensors-0123456789abcdef.safetensors", ".mercer-notes.tmp", ".writable", "notes.txt"]
    for name in theirs:
        (tmp_path / name).write_text("mine")
    for value in (1.0, 2.0, 3.0):
        mercer.save(RBF(value, learnable=True), tmp_path)
    assert all((tmp_path / name).read_text() == "mine" for name in theirs)
    assert len(list(tmp_path.glob("tensors-*"))) == 2 + 1, "the current one, the one before, and theirs"


# --- lines


def test_lines_survive_a_torn_end(tmp_path):
    path = tmp_path / "lines"
    assert read_lines(path) == []
    append_line(path, b"one")
    with path.open("ab") as file:
        file.write(b"to" * 70_000)
    append_line(path, b"two")
    assert read_lines(path) == [b"one", b"two"]
    with path.open("ab") as file:
        file.write(b"th")
    mend_lines(path)
    assert path.read_bytes() == b"one\ntwo\n"


# --- schemas

SHAPE = {"a": int, "b?": [float], "c": {str: (str, None)}, "d": {"x", "y"}, "e": {"f": bool}}
GOOD = {"a": 1, "b": [1, 2.5], "c": {"u": "v", "w": None}, "d": "x", "e": {"f": True}}
WRONG = {
    "no object": ([], "an object; got []"),
    "a is true": ({**GOOD, "a": True}, "a whole number at a; got True"),
    "a is a fraction": ({**GOOD, "a": 1.5}, "a whole number at a; got 1.5"),
    "a is beyond any size": ({**GOOD, "a": 2**64}, f"a whole number at a; got {2**64}"),
    "b is not finite": ({**GOOD, "b": [1, float("nan")]}, "a finite number at b[1]; got nan"),
    "b is a text": ({**GOOD, "b": "12"}, "a list at b; got '12'"),
    "c holds a number": ({**GOOD, "c": {"u": 3}}, "a text or null at c.u; got 3"),
    "d is another word": ({**GOOD, "d": "z"}, "one of x, y at d; got 'z'"),
    "d is a list": ({**GOOD, "d": ["x"]}, "one of x, y at d; got ['x']"),
    "e lacks f": ({**GOOD, "e": {}}, "the key 'f' at e; got []"),
    "one more": ({**GOOD, "g": 1}, "only the keys a, b, c, d, e; got 'g'"),
    "endless text": ({**GOOD, "c": {"u": "v" * 2**21}}, "a text or null at c.u; got 'vvv"),
}


def test_54_a_value_of_the_shape_passes():
    assert check_schema("read", "f.json", GOOD, SHAPE) is GOOD
    assert check_schema("read", "f.json", {**GOOD, "g": 1}, {**SHAPE, "...": object})


@pytest.mark.parametrize("case", WRONG)
def test_54_another_shape_is_refused_by_its_place(case):
    value, need = WRONG[case]
    with pytest.raises(ValueError) as caught:
        check_schema("read", "f.json", value, SHAPE)
    text = str(caught.value)
    assert text.startswith(f"read: f.json must hold {need}") and text.endswith("changed by hand.") and len(text) < 250


# --- edited manifests


def forge(path, change):
    """Edit a manifest and give it a right checksum."""
    document = json.loads((path / folder.CURRENT).read_text())
    document.pop("checksum")
    change(document)
    document["checksum"] = folder._checksum(document)
    (path / folder.CURRENT).write_text(json.dumps(document))


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def put(document, path, value):
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


VALUES = [None, -1, 10**30, "nonsense", [[1]], {"$object": "os.system"}]


def test_54_every_edit_of_a_manifest_loads_or_is_a_sentence(tmp_path):
    made = KernelClassifier(4, 3)
    mercer.save(made, tmp_path)
    whole = json.loads((tmp_path / folder.CURRENT).read_text())
    refused = 0
    for path in places({key: whole[key] for key in whole if key != "checksum"}):
        for value in VALUES if path else []:
            (tmp_path / folder.CURRENT).write_text(json.dumps(whole))
            forge(tmp_path, lambda document, path=path, value=value: put(document, path, value))
            try:
                mercer.load(tmp_path)
            except ValueError as error:
                assert str(error).startswith("mercer.load: "), error
                assert str(tmp_path) in str(error), error
                refused += 1
    assert refused > 60


def test_54_a_manifest_that_asks_for_gigabytes_gets_none(tmp_path):
    mercer.save(KernelClassifier(4, 3), tmp_path)
    forge(tmp_path, lambda d: d["object"]["arguments"].update(in_features=35_000, num_classes=35_000))
    with pytest.raises(ValueError, match=r"must hold what this version can build; got 4.\d\d GiB, more than 0.25"):
        mercer.load(tmp_path)
    forge(tmp_path, lambda d: d["object"]["arguments"].update(in_features={"$listed": ["a"], "dtype": "<U999999999"}))
    with pytest.raises(ValueError, match=r"must hold arrays of the kinds OU; got '<U999999999'"):
        mercer.load(tmp_path)


def test_54_honest_models_have_room():
    encoder = encoding.Encoder()
    document = encoder.savable(KernelClassifier(40, 30), "")
    loaded = encoding.Decoder(encoder.tensors, "", room=0).whole(document)
    assert loaded.weight.shape == (30, 40)


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_55_weights_that_are_not_finite_are_refused(tmp_path, value):
    head = KernelClassifier(4, 3)
    with torch.no_grad():
        head.weight[1, 2] = value
    mercer.save(head, tmp_path)
    with pytest.raises(ValueError, match=r"must hold finite numbers; got others in .*weight"):
        mercer.load(tmp_path)


def test_a_manifest_is_read_without_building(tmp_path):
    mercer.save(RBF(2.0), tmp_path)
    assert read_manifest(tmp_path)["object"]["$object"] == "mercer.kernels.RBF"
    with pytest.raises(FileNotFoundError):
        read_manifest(tmp_path / "nothing")


# --- npz


def test_npz_headers_of_every_version_are_read(tmp_path):
    path, array = tmp_path / "t.npz", np.arange(6.0).reshape(2, 3)
    for version in ((1, 0), (2, 0), (3, 0)):
        with zipfile.ZipFile(path, "w") as archive, archive.open("x.npy", "w") as stream:
            np.lib.format.write_array(stream, array, version=version)
        np.testing.assert_array_equal(read_npz(path)["x"], array)


def test_two_processes_cannot_hold_one_folder(tmp_path):
    code = f"from mercer.storage.files import lock\nwith lock({str(tmp_path)!r}): pass"
    with lock(tmp_path):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "must be used by one run at a time; got a second run" in done.stderr
