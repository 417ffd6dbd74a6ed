"""Saving: what goes in comes out, and nothing that happens to the disk or to the file can hurt."""

import copy
import dataclasses
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
import time
import types

import numpy as np
import pytest
import safetensors.torch
import torch
from sklearn.base import BaseEstimator, clone
from torch import nn

import mercer
from mercer.storage import folder as folder_module
from mercer.storage.files import atomic_write, lock, read_json
from mercer.storage.savable import Savable

SOURCE = """
import dataclasses
import torch
from sklearn.base import BaseEstimator
from torch import nn
from mercer.storage.savable import Savable

class Base(Savable, nn.Module):
    pass

class Gauss(Base):
    def __init__(self, gamma=1.0, *, learnable=False):
        super().__init__()
        self.scale = nn.Parameter(torch.as_tensor(gamma)) if learnable else gamma

class Many(Base):
    def __init__(self, *parts, label="sum", **weights):
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.label, self.weights = label, weights

class Head(Base):
    def __init__(self, d, kernel=None, *, generator=None):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d, generator=generator))
        self.kernel = Gauss(0.5, learnable=True) if kernel is None else kernel

class Map(Base):
    def __init__(self, kernel, m):
        super().__init__()
        self.base, self.m = kernel, m
        self.register_buffer("landmarks", None)

    def fit(self, x):
        self.landmarks = x[: self.m].clone()
        return self

    def _load_from_state_dict(self, state, prefix, *rest):
        if prefix + "landmarks" in state:
            self.landmarks = torch.empty_like(state[prefix + "landmarks"])
        super()._load_from_state_dict(state, prefix, *rest)

class Calls(Base):
    def __init__(self, f):
        super().__init__()
        self.f = f

@dataclasses.dataclass(frozen=True)
class Layer(Savable):
    width: int
    weights: torch.Tensor

class Estimator(Savable, BaseEstimator):
    def __init__(self, kernel=None, c=1.0):
        self.kernel = kernel
        self.c = c

class Plain:
    pass
"""
NAME = "mercer.stand_ins"


def install() -> types.ModuleType:
    module = types.ModuleType(NAME)
    module.__dict__["__name__"] = NAME
    sys.modules[NAME] = module
    exec(SOURCE, module.__dict__)
    return module


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setitem(sys.modules, NAME, None)  # taken away again after the test
    return install()


def round_trip(obj, tmp_path):
    mercer.save(obj, tmp_path / "saved")
    return mercer.load(tmp_path / "saved")


def only(folder, pattern):
    (found,) = folder.glob(pattern)
    return found


def run(code: str, *args: object) -> subprocess.Popen:
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    setup = f"import sys\nsys.path.insert(0, {root!r})\nfrom tests.storage import test_storage\n"
    setup += "made = test_storage.install()\n"
    return subprocess.Popen(
        [sys.executable, "-c", setup + textwrap.dedent(code), *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# --- what goes in comes out ---------------------------------------------------------------------------


def test_nested_modules_come_back_with_arguments_and_state(made, tmp_path):
    head = made.Head(3, made.Many(made.Gauss(0.7, learnable=True), made.Gauss(2.0), label="mix", a=1.5))
    with torch.no_grad():
        head.kernel.parts[0].scale.fill_(0.1)
    back = round_trip(head.eval(), tmp_path)
    assert back.kernel.label == "mix" and back.kernel.weights == {"a": 1.5} and back.kernel.parts[1].scale == 2.0
    assert not back.training and not back.kernel.training
    assert head.state_dict().keys() == back.state_dict().keys()
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name]), name


def test_a_fitted_map_in_float64_comes_back_exactly(made, tmp_path):
    fitted = made.Map(made.Gauss(0.7, learnable=True).double(), 4).fit(torch.randn(9, 2, dtype=torch.float64))
    back = round_trip(fitted, tmp_path)
    assert back.m == 4 and torch.equal(back.landmarks, fitted.landmarks)
    assert back.base.scale.dtype == torch.float64 and torch.equal(back.base.scale, fitted.base.scale)


def test_an_unfitted_map_comes_back_unfitted(made, tmp_path):
    assert round_trip(made.Map(made.Gauss(), 4), tmp_path).landmarks is None


def test_a_part_swapped_after_construction_is_the_one_saved(made, tmp_path):
    head = made.Head(2)
    head.kernel = made.Many(made.Gauss(3.0))
    assert round_trip(head, tmp_path).kernel.parts[0].scale == 3.0


def test_an_estimator_saves_parameters_and_fitted_attributes(made, tmp_path):
    estimator = made.Estimator(made.Gauss(0.3), c=1.0).set_params(c=float("inf"))
    estimator.classes_ = np.array(["b", "a"], dtype=object)
    estimator.names_ = np.array([["x", "long"]])
    estimator.coef_ = np.arange(6.0).reshape(2, 3)[:, ::-1]
    estimator.layers_ = [made.Layer(2, torch.eye(2)), made.Layer(1, torch.ones(1))]
    estimator.history_ = [{"mse": np.float64(0.5), 3: (1, None, True)}]
    estimator.map_ = made.Map(made.Gauss(0.2), 1).fit(torch.ones(1, 1))
    back = round_trip(estimator, tmp_path)
    assert back.c == float("inf") and back.kernel.scale == 0.3
    assert back.classes_.dtype == object and back.classes_.tolist() == ["b", "a"]
    assert back.names_.dtype == "<U4" and back.names_.tolist() == [["x", "long"]]
    np.testing.assert_array_equal(back.coef_, estimator.coef_)
    assert back.layers_[0].width == 2 and torch.equal(back.layers_[0].weights, torch.eye(2))
    assert back.history_ == [{"mse": 0.5, 3: (1, None, True)}] and type(back.history_[0]["mse"]) is np.float64
    assert torch.equal(back.map_.landmarks, torch.ones(1, 1))


@pytest.mark.parametrize(
    "value",
    [
        torch.float16,
        torch.device("cpu"),
        (1, [2.5, "é"], {}),
        float("-inf"),
        {"$tensor": "no", 2: 3},
        np.bool_(True),
        torch.zeros(0, 3),
        torch.tensor(True),
        torch.arange(6).reshape(2, 3).T,
        torch.tensor([0.5, -1.25], dtype=torch.bfloat16),
        np.array(4, dtype=np.int8),
    ],
    ids=[
        "dtype",
        "device",
        "nested",
        "infinity",
        "keys",
        "numpy-bool",
        "no-rows",
        "bool",
        "strided",
        "bfloat16",
        "numpy-0-d",
    ],
)
def test_every_kind_of_value_comes_back_as_it_was(made, tmp_path, value):
    back = round_trip(made.Estimator(c=value), tmp_path).c
    assert type(back) is type(value)
    if isinstance(value, torch.Tensor):
        torch.testing.assert_close(back, value, rtol=0, atol=0)
    else:
        assert back == value


def test_a_generator_goes_on_where_it_was(made, tmp_path, generator):
    torch.rand(5, generator=generator)
    back = round_trip(made.Estimator(c=generator), tmp_path).c
    assert torch.equal(torch.rand(3, generator=back), torch.rand(3, generator=generator))


def test_equal_tensors_are_stored_once(made, tmp_path):
    gram = torch.randn(50, 50)
    mercer.save(made.Estimator(made.Estimator(c=gram), c=gram.clone()), tmp_path)
    assert only(tmp_path, "*.safetensors").stat().st_size < 1.5 * gram.nbytes


def test_the_mixin_is_invisible_to_copies_and_scikit_learn(made):
    head = made.Head(2, made.Gauss(0.7))
    assert copy.deepcopy(head).get_arguments()["kernel"].scale == 0.7
    assert pickle.loads(pickle.dumps(made.Gauss(0.7))).get_arguments() == {"gamma": 0.7, "learnable": False}  # noqa: S301
    assert set(vars(made.Estimator())) == {"kernel", "c"} and clone(made.Estimator(c=2.0)).c == 2.0
    assert [name for name, _ in made.Gauss(0.7, learnable=True).named_parameters()] == ["scale"]
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'd'"):
        made.Head()


def test_saving_leaves_the_object_alone(made, tmp_path):
    head = made.Head(3)
    before = copy.deepcopy(head.state_dict())
    mercer.save(head, tmp_path)
    assert all(torch.equal(before[k], v) for k, v in head.state_dict().items()) and head.weight.requires_grad


# --- what is refused ----------------------------------------------------------------------------------


def test_functions_and_the_users_models_are_refused_before_the_disk_is_touched(made, tmp_path):
    with pytest.raises(
        TypeError, match=r"mercer.save: Calls.f must be data .*; got the function <lambda>. Code is never"
    ):
        mercer.save(made.Calls(lambda x: x), tmp_path / "new")
    with pytest.raises(TypeError, match=r"got the module Linear. Keep your model's state_dict"):
        mercer.save(made.Calls(nn.Linear(1, 1)), tmp_path / "new")
    with pytest.raises(TypeError, match=r"Estimator.c must be data .*; got a RandomState"):
        mercer.save(made.Estimator(c=np.random.RandomState(0)), tmp_path / "new")
    with pytest.raises(TypeError, match=r"obj must be a kernel, map, head or estimator of Mercer; got Linear"):
        mercer.save(nn.Linear(1, 1), tmp_path / "new")
    with pytest.raises(TypeError, match=r"Calls.f must hold data; got a tensor on the meta device"):
        mercer.save(made.Calls(torch.empty(2, device="meta")), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_class_from_outside_is_refused(tmp_path):
    class Mine(Savable, BaseEstimator):
        pass

    with pytest.raises(TypeError, match=r"Mine must be of a class of Mercer; got .*Mine"):
        mercer.save(Mine(), tmp_path)


def forge(folder, change):
    """Rewrite mercer.json with a right checksum, as an attacker would."""
    from mercer.storage.folder import _checksum

    path = folder / "mercer.json"
    document = json.loads(path.read_text())
    document.pop("checksum")
    change(document)
    path.write_text(json.dumps({**document, "checksum": _checksum(document)}))


@pytest.mark.parametrize(
    "name", ["os.system", "mercer.os.system", "builtins.eval", f"{NAME}.Plain", "mercer.storage.Savable"]
)
def test_only_savable_classes_of_mercer_are_constructed(made, tmp_path, name):
    mercer.save(made.Gauss(0.5), tmp_path)
    forge(tmp_path, lambda d: d["object"].update({"$object": name, "arguments": {"args": ["touch pwned"]}}))
    with pytest.raises(ValueError, match=r"mercer.json must hold "):
        mercer.load(tmp_path)


def test_a_forged_path_to_another_file_is_refused(made, tmp_path):
    mercer.save(made.Head(2), tmp_path / "a")
    safetensors.torch.save_file({"x": torch.ones(1)}, tmp_path / "secret.safetensors")
    forge(tmp_path / "a", lambda d: d["tensors"].update(file="../secret.safetensors"))
    with pytest.raises(ValueError, match=r"secret.safetensors must be as it was saved"):
        mercer.load(tmp_path / "a")


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("victim", ["mercer.json", "tensors-*.safetensors"])
def test_pickles_are_never_opened(made, tmp_path, victim):
    folder = tmp_path / "saved"
    mercer.save(made.Head(2), folder)
    torch.save(Bomb(tmp_path / "pwned"), only(folder, victim))
    with pytest.raises(ValueError, match=r"safetensors must be as it was saved|mercer.json must be JSON"):
        mercer.load(folder)
    torch.save(Bomb(tmp_path / "pwned"), tmp_path / "model.pt")
    with pytest.raises(FileNotFoundError, match=r"must hold mercer.json; got model.pt, saved. Was it made"):
        mercer.load(tmp_path)
    assert not (tmp_path / "pwned").exists()


def test_a_folder_with_nothing_in_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"got an empty folder"):
        mercer.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"got no such folder"):
        mercer.load(tmp_path / "nowhere")


# --- damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["mercer.json", "tensors-*.safetensors"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_damage_is_named_and_the_version_before_still_loads(made, tmp_path, file, damage):
    mercer.save(made.Estimator(c=torch.zeros(3)), tmp_path)
    old = set(tmp_path.glob("*"))
    mercer.save(made.Estimator(c=torch.ones(3)), tmp_path)
    (path,) = {p for p in tmp_path.glob(file) if p not in old or p.name == "mercer.json"}
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        path.write_bytes(data[:-7])
    elif damage == "flip":
        data[-20] ^= 1
        path.write_bytes(data)
    else:
        path.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=path.name.replace(".", r"\.")) as caught:
        mercer.load(tmp_path)
    if (tmp_path / "mercer.json").exists():
        assert "previous=True" in str(caught.value)
    assert torch.equal(mercer.load(tmp_path, previous=True).c, torch.zeros(3))
    mercer.save(made.Estimator(c=torch.full((3,), 2.0)), tmp_path)
    assert mercer.load(tmp_path).c[0] == 2.0
    if file == "mercer.json":  # a damaged file never replaces the whole one before it
        assert mercer.load(tmp_path, previous=True).c[0] == 0.0


def test_every_flipped_bit_of_the_description_is_noticed(made, tmp_path):
    mercer.save(made.Gauss(0.5), tmp_path)
    path = tmp_path / "mercer.json"
    data = path.read_bytes()
    compact = json.dumps(json.loads(data), separators=(",", ":")).encode()  # white space carries nothing
    for i in range(0, len(compact), 3):
        flipped = bytearray(compact)
        flipped[i] ^= 1 << (i % 7)
        path.write_bytes(flipped)
        with pytest.raises(ValueError, match=r"mercer.json|safetensors"):
            mercer.load(tmp_path)


def test_a_newer_version_is_refused(made, tmp_path):
    mercer.save(made.Gauss(0.5), tmp_path)
    forge(tmp_path, lambda d: d.update(version=2))
    with pytest.raises(ValueError, match=r"must be of version 1 or before; got 2. Upgrade Mercer to read it."):
        mercer.load(tmp_path)


def test_a_folder_of_another_minor_version_is_refused_and_kept(made, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "__version__", "0.1.0")
        mercer.save(made.Gauss(0.5), tmp_path)
    with pytest.raises(ValueError, match=r"must be written by mercer \d\.\d; got mercer 0\.1\. Fit or save it again"):
        mercer.load(tmp_path)
    mercer.save(made.Gauss(0.7), tmp_path)  # the one before it stays, for the version that can read it
    with pytest.raises(ValueError, match=r"got mercer 0\.1"):
        mercer.load(tmp_path, previous=True)


def test_the_state_of_another_model_lists_its_keys(made, tmp_path):
    mercer.save(made.Head(2), tmp_path)
    forge(tmp_path, lambda d: d["object"]["state"].update(wrong=d["object"]["state"].pop("weight")))
    with pytest.raises(
        ValueError, match=r"state of a Head of this version(?s:.*)Missing.*weight(?s:.*)Unexpected.*wrong"
    ):
        mercer.load(tmp_path)
    mercer.save(made.Head(2), tmp_path)
    forge(tmp_path, lambda d: d["object"]["arguments"].update(width=2))
    with pytest.raises(ValueError, match=r"must hold arguments that fit Head; got .*width"):
        mercer.load(tmp_path)


# --- the disk -----------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_old_version_and_no_litter(made, tmp_path):
    mercer.save(made.Estimator(c=torch.zeros(3)), tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))  # writes beyond fail as on a full disk
    try:
        with pytest.raises(
            OSError, match=r"tensors-\w+.safetensors must be writable; got File too large. What was there"
        ):
            mercer.save(made.Estimator(c=torch.randn(2**16)), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("step", range(6))
def test_no_space_at_any_step_leaves_the_old_version(made, tmp_path, monkeypatch, step):
    mercer.save(made.Estimator(c=torch.zeros(3)), tmp_path)
    calls, fsync = iter(range(100)), os.fsync

    def full(descriptor):
        if next(calls) == step:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    if step % 2:  # a folder that cannot be synced is none of the user's business
        mercer.save(made.Estimator(c=torch.ones(3)), tmp_path)
        assert mercer.load(tmp_path).c[0] == 1
    else:
        with pytest.raises(OSError, match=r"must be writable; got No space left on device") as caught:
            mercer.save(made.Estimator(c=torch.ones(3)), tmp_path)
        assert caught.value.errno == 28 and str(tmp_path) in str(caught.value)
        assert mercer.load(tmp_path).c[0] == 0


def test_a_read_only_folder_is_named(made, tmp_path):
    mercer.save(made.Estimator(c=torch.zeros(3)), tmp_path)
    code = """
        import os, sys, mercer, torch
        obj = made.Estimator(c=torch.ones(3))
        os.chdir(sys.argv[1])
        if os.geteuid() == 0:
            os.setgroups([]); os.setgid(65534); os.setuid(65534)  # root may write anywhere
        try:
            mercer.save(obj, ".")
        except PermissionError as error:
            print(error)
    """
    tmp_path.chmod(0o555)
    out, err = run(code, tmp_path).communicate(timeout=240)
    tmp_path.chmod(0o755)
    assert "lock: . must be writable; got Permission denied" in out, err
    assert mercer.load(tmp_path).c[0] == 0


def test_a_file_where_the_folder_should_be(made, tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(OSError, match=r"taken must be a folder that can be written; got File exists"):
        mercer.save(made.Gauss(0.5), tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_kill_9_during_save_leaves_a_version_that_loads(made, tmp_path):
    mercer.save(made.Estimator(c=torch.full((1000,), -1.0)), tmp_path)
    code = """
        import itertools, os, sys, mercer, torch
        for _ in sys.stdin:  # a writer for each line: forked, for the import of torch takes seconds
            if (writer := os.fork()) == 0:
                print(os.getpid(), flush=True)
                for i in itertools.count():
                    mercer.save(made.Estimator(c=torch.full((1000,), float(i))), sys.argv[1])
            print(os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]), flush=True)
    """
    process = run(code, tmp_path)
    for pause in (0.002, 0.005, 0.01, 0.02, 0.05):
        process.stdin.write("\n")
        process.stdin.flush()
        writer = int(process.stdout.readline())
        time.sleep(pause)
        os.kill(writer, signal.SIGKILL)
        assert int(process.stdout.readline()) == -signal.SIGKILL  # it was still writing
        value = mercer.load(tmp_path).c
        assert value.min() == value.max()
    process.communicate(timeout=240)
    mercer.save(made.Estimator(c=torch.zeros(1)), tmp_path)
    assert not list(tmp_path.glob(".mercer*")) and len(list(tmp_path.glob("tensors-*"))) == 2


def test_a_crash_at_every_step_leaves_a_version_that_loads(made, tmp_path, monkeypatch):
    """The writer dies, without cleaning up, before each rename in turn."""
    from mercer.storage import folder as module

    mercer.save(made.Estimator(c=torch.zeros(2)), tmp_path)
    real = module.atomic_write
    for step in range(3):
        calls = iter(range(100))

        def dying(path, data, step=step, calls=calls):
            if next(calls) == step:
                raise KeyboardInterrupt
            real(path, data)

        monkeypatch.setattr(module, "atomic_write", dying)
        with pytest.raises(KeyboardInterrupt):
            mercer.save(made.Estimator(c=torch.ones(2)), tmp_path)
        assert torch.equal(mercer.load(tmp_path).c, torch.zeros(2)), step


def test_two_runs_into_one_folder(tmp_path):
    with (
        lock(tmp_path),
        pytest.raises(RuntimeError, match=r"must be used by one run at a time; got a second run. Wait"),
        lock(tmp_path),
    ):
        raise AssertionError("never held twice")
    with lock(tmp_path), lock(tmp_path, ".other"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_killed_run_lets_go_of_its_folder(tmp_path):
    code = """
        import sys, time
        from mercer.storage.files import lock
        with lock(sys.argv[1]):
            print("held", flush=True)
            time.sleep(60)
    """
    process = run(code, tmp_path)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(RuntimeError, match=r"a second run"), lock(tmp_path):
        pass
    process.kill()
    process.communicate()
    with lock(tmp_path):
        pass


# --- small files --------------------------------------------------------------------------------------


def test_atomic_write_replaces_and_needs_its_folder(tmp_path):
    atomic_write(tmp_path / "a", b"1")
    atomic_write(tmp_path / "a", b"22")
    assert (tmp_path / "a").read_bytes() == b"22" and [p.name for p in tmp_path.iterdir()] == ["a"]
    with pytest.raises(FileNotFoundError, match=r"missing/a must be writable; got No such file or directory"):
        atomic_write(tmp_path / "missing" / "a", b"1")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a": NaN}', "must be JSON; got NaN is not"),
        (b"\x80\x04pickle", "must be JSON; got 'utf-8'"),
        (b"[" * 100_000, "must be JSON"),
        (b"", "must be JSON; got Expecting value"),
        (b" " * 2_000_000, "at most 1000000 bytes; got 2000000 bytes"),
    ],
    ids=["nan", "pickle", "deep", "empty", "long"],
)
def test_read_json_refuses(tmp_path, data, reason):
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(ValueError, match=f"x.json must .*{reason}|x.json {reason}"):
        read_json(tmp_path / "x.json", limit=1_000_000)


def test_read_json_reads(tmp_path):
    (tmp_path / "x.json").write_text('{"é": [1, null]}', encoding="utf-8")
    assert read_json(tmp_path / "x.json") == {"é": [1, None]}
    with pytest.raises(FileNotFoundError, match=r"y.json must be readable; got No such file"):
        read_json(tmp_path / "y.json")


def test_dataclasses_need_nothing(made):
    layer = made.Layer(3, torch.ones(1))
    assert dataclasses.is_dataclass(layer) and set(layer.get_arguments()) == {"width", "weights"}
