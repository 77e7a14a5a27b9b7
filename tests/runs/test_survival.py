"""Runs survive signals, kills, damaged checkpoints, full disks and hostile files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import io
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import time
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import StopAt, assert_same_run, finish, flags, held_to_permissions, spawn
from run_folders import change_json

import jaxbyz as jb
from jaxbyz.algorithms import algorithms
from jaxbyz.cli import main
from jaxbyz.configuration.resolving import resolve
from jaxbyz.errors import UsageError
from jaxbyz.files import read_arrays, write_arrays
from jaxbyz.runs import checkpoints
from jaxbyz.runs.extension import extend
from jaxbyz.runs.folder_lock import BusyError, lock_folder
from jaxbyz.runs.loop import Interrupted
from jaxbyz.runs.plan import make_plan
from jaxbyz.runs.run import resume, run
from jaxbyz.runs.run_folder import write_start
from jaxbyz.runs.settings import StoredSettings, stored_settings
from jaxbyz.runs.state_file import write_state
from jaxbyz.training import layout
from jaxbyz.training.devices import Shape, make_mesh

TINY = dict(agents=5, byzantine=1, N=4, B=2, horizon=8, hidden=(3,), trajectories=20, p=0.5, kappa="2", seeds=2,
            attack="avg-zero")  # fmt: skip


def interrupted(config, out, iteration, every=2, number=signal.SIGTERM):
    """Start a run in `out` that a signal stops at `iteration`; return the folder."""
    with pytest.raises(Interrupted) as stop:
        run(config, out, StopAt(iteration, number), checkpoint_every=every)
    assert stop.value.signal == number and stop.value.done < make_plan(config).iterations
    return out


def resumed(folder):
    """Resume a run; return its result and the logged lines."""
    lines = []
    done = resume(folder, log=lines.append)
    return done, lines


@pytest.fixture(scope="module")
def config():
    return resolve(**TINY)


@pytest.fixture(scope="module")
def whole(config):
    """The result of an uninterrupted run."""
    return run(config)


@pytest.fixture(scope="module")
def stopped(config, tmp_path_factory):
    """A run stopped at iteration 4, with checkpoints of iterations 2 and 4. Tests work on copies."""
    return interrupted(config, tmp_path_factory.mktemp("runs") / "stopped", 4)


@pytest.fixture
def copy(stopped, tmp_path):
    return Path(shutil.copytree(stopped, tmp_path / "copy"))


@pytest.fixture
def fragile(monkeypatch):
    """A configuration whose second seed has no finite parameters from iteration 5 on, in segments of four."""

    @functools.wraps(jb.decbyzpg)
    def factory(environment, policy, settings):
        algorithm = jb.decbyzpg(environment, policy, settings)
        second = jax.random.key_data(jax.random.split(jax.random.key(1))[0])

        def step(state, coin, *places):
            lost = (state.step >= 5) & (jax.random.key_data(state.key) == second).all()
            return algorithm.step(state._replace(parameters=jnp.where(lost, jnp.nan, state.parameters)), coin, *places)

        return algorithm._replace(step=step)

    monkeypatch.setattr(algorithms, "_entries", dict(algorithms._entries))
    algorithms.add("fragile", factory, "DecByzPG whose second seed becomes NaN")
    monkeypatch.setattr("jaxbyz.runs.loop.SEGMENT", 4)
    options = {"algorithm": "fragile", "trajectories": 40, "p": 1.0, "baseline": "none", "eta_end": None}
    return resolve(**{**TINY, **options})


def test_a_seed_that_diverges_does_not_stop_the_others(fragile, tmp_path, capsys):
    whole = run(fragile)
    T = make_plan(fragile).iterations
    assert not whole.finite and whole.metrics["finite"].shape == (2, T) and T > 9
    assert whole.metrics["finite"][0].all() and whole.metrics["finite"][1].argmin() == 5
    short = run(replace(fragile, trajectories=int(whole.metrics["trajectories"][0, 3])))
    np.testing.assert_array_equal(whole.policy["last"][1], short.policy["last"][1])
    assert (whole.policy["last"][0] != short.policy["last"][0]).any()
    interrupted(fragile, tmp_path / "run", 8, every=2)
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 3
    assert "non-finite in 1 of 2 seeds, first in iteration 6" in capsys.readouterr().err
    again = resumed(tmp_path / "run")[0]
    assert_same_run(again, whole)
    assert not again.finite


EVERYDAY = ("decbyzpg",)
RESUMED = [
    pytest.param({"algorithm": name}, id=name, marks=() if name in EVERYDAY else pytest.mark.slow)
    for name in algorithms.names()
]


@pytest.mark.parametrize(
    "options", [*RESUMED, pytest.param({"byzantine": 1, "attack": "budget", "aggregator": "memory+rfa"}, id="memory")]
)
def test_a_resumed_run_equals_an_uninterrupted_one(options, tmp_path):
    config = resolve(**{**TINY, **options})
    reference = run(config)
    interrupted(config, tmp_path / "run", 3, every=3, number=signal.SIGINT)
    done, lines = resumed(tmp_path / "run")
    assert "at iteration 3 of" in lines[-1]
    assert_same_run(done, reference)
    stored = jb.load_run(tmp_path / "run")
    assert_same_run(stored, reference)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_sigint_and_sigterm_on_the_command_line(copy, config, whole, tmp_path, capsys, monkeypatch):
    """`train` exits with 128 + the signal's number and says how to continue; `resume` finishes the run."""
    options = flags(TINY)
    monkeypatch.setattr("jaxbyz.runs.progress.make_progress", lambda total, quiet: StopAt(2))
    out = str(tmp_path / "run")
    assert main(["train", *options, "--out", out, "--checkpoint-every", "2", "--quiet"]) == 128 + signal.SIGTERM
    assert f"stopped at iteration 2 by SIGTERM; `jaxbyz resume {out}` continues it" in capsys.readouterr().err
    assert main(["train", *options, "--out", out]) == 2
    assert f"holds an unfinished run; `jaxbyz resume {out}` continues it" in capsys.readouterr().err
    assert main(["plot", out, "--out", f"{out}.png"]) == 0 and "not finished" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["resume", out, "--json"]) == 0
    captured = capsys.readouterr()
    assert f"resuming {out} at iteration 2 of" in captured.err and json.loads(captured.out)["finite"]
    assert_same_run(jb.load_run(out), whole)
    assert main(["resume", out]) == 0
    assert "nothing to resume" in capsys.readouterr().err
    assert main(["resume", out, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_without_a_checkpoint_a_run_starts_again(copy, whole):
    """A run that was killed before its first checkpoint gives the same result."""
    checkpoints.remove_all(copy)
    done, lines = resumed(copy)
    assert "at iteration 0 of" in lines[-1]
    assert_same_run(done, whole)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def change(path: Path, **arrays) -> None:
    """Write a file of arrays again with some of them changed; None removes one."""
    kept = {name: values for name, values in {**read_arrays(path), **arrays}.items() if values is not None}
    write_arrays(path, kept, compress=False)


def described(path: Path, **changes) -> np.ndarray:
    """Return the description of a stored state with some of its values changed."""
    return np.array(json.dumps({**json.loads(str(read_arrays(path)["description"])), **changes}))


DAMAGE = {
    "a flipped bit": flip,
    "a truncated file": lambda newest: os.truncate(newest, newest.stat().st_size // 2),
    "an empty file": lambda newest: os.truncate(newest, 0),
    "a lost array": lambda newest: change(newest, **{"runs/state/parameters": None}),
    "another array": lambda newest: change(newest, more=np.zeros(1)),
    "a changed number": lambda newest: change(newest, **{"history/returns": np.zeros((2, 4), np.float32)}),
    "another shape": lambda newest: change(newest, **{"history/returns": np.zeros((2, 3), np.float32)}),
    "no description": lambda newest: change(newest, description=None),
    "half a description": lambda newest: change(newest, description=np.array('{"format": 2')),
    "another type": lambda newest: change(newest, description=described(newest, digest=7)),
    "a compressed file": lambda newest: write_arrays(newest, {**read_arrays(newest), "more": np.zeros(10**6)}),
    "a pipe": lambda newest: (newest.unlink(), os.mkfifo(newest)),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_noticed(kind, copy, config, monkeypatch):
    """The checkpoint before it is used, with a message. Training is replaced; the next test compares results."""
    DAMAGE[kind](copy / "checkpoints" / "4.npz")
    lines = []
    monkeypatch.setattr("jaxbyz.runs.run.train", lambda batch, *_: [batch.members[0].start])
    assert resume(copy, log=lines.append).done == 2
    assert len(lines) == 2 and lines[0].startswith("the checkpoint of iteration 4 is damaged ("), lines
    assert "at iteration 2 of" in lines[1] and not (copy / "checkpoints" / "4.npz").exists()


def test_after_damage_the_result_is_the_same(copy, whole):
    change(copy / "checkpoints" / "4.npz", **{"history/returns": np.zeros((2, 4), np.float32)})
    done, lines = resumed(copy)
    assert "differs from what was written" in lines[0]
    assert_same_run(done, whole)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_checkpoints_of_other_runs_or_formats_are_refused_and_kept(copy, config):
    path, original = copy / "checkpoints" / "4.npz", (copy / "checkpoints" / "4.npz").read_bytes()
    for spoil, message in (
        (lambda: change(path, description=described(path, format=99)), "by another version of jaxbyz (format 99, not"),
        (lambda: write_state(path, {}, "another run"), "belongs to another configuration"),
    ):
        spoil()
        before = contents(copy)
        with pytest.raises(UsageError) as refusal:
            resume(copy)
        assert message in str(refusal.value) and contents(copy) == before
        path.write_bytes(original)


@pytest.mark.parametrize(("number", "message"), [(1, "an older jaxbyz (format 1"), (99, "a newer jaxbyz (format 99")])
def test_folders_of_other_versions_are_refused_and_kept(number, message, copy):
    change_json(copy / "config.json", format=number)
    before = contents(copy)
    for continue_run in (resume, partial(extend, trajectories=40)):
        with pytest.raises(UsageError, match=re.escape(message)):
            continue_run(copy)
        assert contents(copy) == before


def test_a_changed_config_is_refused(copy, capsys):
    values = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**values, "eta": 0.5}))
    before = contents(copy)
    assert main(["resume", str(copy)]) == 2
    assert "belongs to another configuration" in capsys.readouterr().err and contents(copy) == before


def test_a_folder_in_use_is_refused(copy, config):
    with lock_folder(copy), pytest.raises(UsageError, match="another process is working"):
        resume(copy)


def test_the_lock_is_on_a_file(tmp_path):
    """Network file systems can lock files but not folders."""
    with lock_folder(tmp_path), (tmp_path / ".lock").open("r+") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with lock_folder(tmp_path):
        pass


def test_a_lock_file_that_another_process_removes_is_created_again(tmp_path, monkeypatch):
    """Another process finishes its run and removes the lock file after this process has opened it."""
    lock, opened = fcntl.flock, []

    def late(handle, kind):
        if not opened:
            (tmp_path / ".lock").unlink()
        opened.append(handle)
        lock(handle, kind)

    monkeypatch.setattr("fcntl.flock", late)
    with lock_folder(tmp_path), pytest.raises(BusyError), lock_folder(tmp_path):
        pass
    assert len(opened) == 3


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(UsageError, match=r"cannot be locked there \(No locks available\)") as refusal:
        lock_folder(tmp_path).__enter__()
    assert not isinstance(refusal.value, BusyError)


def test_a_finished_run_can_be_read_from_a_read_only_folder(config, whole, tmp_path):
    folder = tmp_path / "run"
    run(config, folder)
    assert_same_run(resume(folder), whole)
    assert not (folder / ".lock").exists()
    folder.chmod(0o555)
    with held_to_permissions():
        assert_same_run(resume(folder), whole)


def test_a_read_only_folder_is_refused(copy, config, tmp_path):
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o555)
    with held_to_permissions(), pytest.raises(UsageError, match="Permission denied"):
        run(config, folder / "run")
    with held_to_permissions(), pytest.raises(UsageError, match=r"cannot be written \(Permission denied\)"):
        run(config, folder)
    assert not list(folder.iterdir())


@contextlib.contextmanager
def file_size_limit(size: int):
    """Let no file grow beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_run_whose_folder_was_moved_leaves_nothing_behind(copy, config):
    found = restored(copy, config)
    copy.rename(copy.with_name("elsewhere"))
    with pytest.raises(UsageError, match=r"checkpoints: cannot be created \(No such file or directory\)"):
        checkpoints.save(copy, config, found._replace(done=6))
    assert not copy.exists()


@pytest.mark.parametrize("size", [0, 100, 1500])
def test_a_full_disk_loses_nothing(size, copy, config):
    """Writing fails at the first byte or in one of the arrays: one line, and existing files are unchanged."""
    before = contents(copy)
    found = restored(copy, config)
    with (
        file_size_limit(size),
        pytest.raises(UsageError, match=r"written \(File too large\); nothing was overwritten") as refusal,
    ):
        checkpoints.save(copy, config, found._replace(done=6))
    assert "\n" not in str(refusal.value)
    assert before.items() <= contents(copy).items() and not (copy / "checkpoints" / "6.npz").exists()
    with (
        file_size_limit(size),
        pytest.raises(UsageError, match=r"written \(File too large\); nothing was overwritten"),
    ):
        write_arrays(copy / "config.json", {"x": np.random.default_rng(0).normal(size=1000)})
    assert before.items() <= contents(copy).items() and not list(copy.rglob(".config*"))
    assert restored(copy, config).done == 4


def restored(folder, config, log=print):
    return checkpoints.restore(folder, config, make_plan(config).algorithm, None, log)


class Trap:
    """Unpickling it would create a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_hostile_files_are_refused_and_nothing_in_them_runs(tmp_path, stopped, capsys):
    """Pickles, zip bombs, deep and long JSON, and values of the wrong type: one line each."""
    trap = tmp_path / "sprung"
    run = tmp_path / "run"
    run.mkdir()
    good = (stopped / "config.json").read_text()
    pickled = io.BytesIO()
    np.savez(pickled, metrics=np.array([Trap(trap)], dtype=object))
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w", force_zip64=True) as f:
        np.lib.format.write_array_header_1_0(f, {"descr": "<f8", "fortran_order": False, "shape": (2**23,)})
        for _ in range(64):
            f.write(bytes(2**20))
    huge = io.BytesIO()
    with zipfile.ZipFile(huge, "w") as archive, archive.open("a.npy", "w") as f:
        np.lib.format.write_array_header_1_0(f, {"descr": "<f8", "fortran_order": False, "shape": (2**50,)})
    plain = io.BytesIO()
    with zipfile.ZipFile(plain, "w") as archive:
        archive.writestr("a.txt", "no array")
    for metrics, message in (
        (pickled.getvalue(), "damaged or not a file of arrays"),
        (pickle.dumps(Trap(trap)), "damaged or not a file of arrays"),
        (huge.getvalue(), "damaged or not a file of arrays"),
        (plain.getvalue(), "damaged or not a file of arrays"),
        (b"", "damaged or not a file of arrays"),
    ):
        (run / "config.json").write_text(good)
        (run / "metrics.npz").write_bytes(metrics)
        for command in ("plot", "evaluate", "resume"):
            assert main([command, str(run)]) == 2, command
            assert message in capsys.readouterr().err
    (run / "metrics.npz").write_bytes(bomb.getvalue())
    with pytest.raises(UsageError, match="bytes uncompressed exceed the limit"):
        read_arrays(run / "metrics.npz", limit=2**25)
    for text, message in (
        ('{"agents": "many"}', "agents='many' is not a whole number"),
        ('{"agents": true}', "agents='True' is not a whole number"),
        ('{"agents": 1e400}', "not readable as JSON (Number out of range"),
        ('{"eta": NaN}', "not readable as JSON (JSON is malformed: invalid character"),
        ('{"hidden": ["16"]}', "hidden="),
        ('{"hidden": 16}', "hidden="),
        ('{"attack": ["none"]}', "attack="),
        ('{"format": "new"}', "format='new': must be a whole number"),
        ("[" * 100_000, "not readable as JSON"),
        ("[1, 2]", "not readable as JSON (Expected `object`, got `array`)"),
        ('{"a": "' + "x" * 2**21 + '"}', "larger than"),
        ("\x00\xff", "not readable as JSON"),
    ):
        (run / "config.json").write_text(text, encoding="latin-1")
        for command in ("plot", "evaluate", "resume"):
            assert main([command, str(run)]) == 2, command
            captured = capsys.readouterr().err
            assert message in captured and len(captured.strip().splitlines()) == 1, captured
    assert not trap.exists()


def test_arrays_that_are_not_those_of_a_run_are_refused(tmp_path, config, whole, capsys):
    """Texts, missing names and wrong shapes."""
    run = tmp_path / "run"
    run.mkdir()
    write_start(run, config)
    for metrics, policy, message in (
        ({}, {"last": np.zeros((2, 5))}, "policy.npz: last is float64[2, 5]"),
        ({}, {"best": np.array([["x"]])}, "policy.npz: best is <U1[1, 1]"),
        ({}, {"sampled": np.zeros((2, 4, 23), np.float32)}, "policy.npz: sampled is float32[2, 4, 23]"),
        ({}, {"sampled": None}, "policy.npz: sampled is missing"),
        ({"returns": None}, {}, "metrics.npz: returns is missing"),
        ({"returns": np.zeros(3)}, {}, "metrics.npz: returns is float64[3]"),
        ({"returns": np.zeros((2, 0))}, {}, "metrics.npz: "),
        ({"ess": np.array([["a"]])}, {}, "metrics.npz: ess is <U1[1, 1]"),
        ({"ess": np.zeros((1, 3))}, {}, "metrics.npz: ess is float64[1, 3]"),
    ):
        for name, arrays, changes in (("metrics", whole.metrics, metrics), ("policy", whole.policy, policy)):
            kept = {key: value for key, value in {**arrays, **changes}.items() if value is not None}
            write_arrays(run / f"{name}.npz", kept)
        for command in ("plot", "evaluate", "resume"):
            assert main([command, str(run)]) == 2, command
            error = capsys.readouterr().err
            assert message in error and len(error.splitlines()) == 1, error


def test_a_checkpoint_of_other_shapes_is_not_used(copy, config, stopped):
    """A checkpoint that is as it was written, but of other shapes, is skipped for the one before it."""
    other = restored(copy, config)
    for spoilt, message in (
        (other._replace(history={name: value[:, :1] for name, value in other.history.items()}), "number of iterations"),
        (other._replace(runs=jax.tree.map(lambda leaf: leaf[:1], other.runs)), "; it must be "),
    ):
        checkpoints.save(copy, config, spoilt)
        lines = []
        found = restored(copy, config, lines.append)
        assert found.done == 2 and message in lines[0]
        for name, value in found.history.items():
            assert value.shape[:2] == (2, 2), name


def killed_again_and_again(out: Path, kills: int, trajectories: int, every: int, seed: int = 0) -> None:
    """Kill a run with SIGKILL at random times, resume it each time, and compare the result with an undisturbed run."""
    config = resolve(**{**TINY, "trajectories": trajectories})
    options = flags(TINY)
    train = ["train", *options, f"--trajectories={trajectories}", "--out", str(out), f"--checkpoint-every={every}"]
    randomness, hits, reached = random.Random(seed), 0, 0
    for attempt in range(10 * kills):
        begun = (out / "config.json").exists()
        if hits == kills or (out / "metrics.npz").exists():
            break
        process = spawn("-m", "jaxbyz", *(["resume", str(out)] if begun else train), "--quiet")
        # Kill it at a random time after the next checkpoint.
        deadline = time.monotonic() + 120
        while newest(out) <= reached and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(randomness.uniform(0, 0.4))
        process.kill()
        process.communicate()
        hits += process.returncode == -signal.SIGKILL
        at = newest(out)
        assert at >= reached, f"kill {attempt}: {at} after {reached}, a checkpoint was lost"
        reached = max(reached, at)
    assert hits == kills, "the run finished before all kills: make it longer"
    process = spawn("-m", "jaxbyz", "resume", str(out), "--quiet")
    finish(process)
    assert_same_run(jb.load_run(out), run(config))


def newest(out: Path) -> int:
    """Return the iteration of the newest checkpoint."""
    names = [path.stem for path in (out / "checkpoints").glob("*.npz")] if (out / "checkpoints").is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=0)


@pytest.mark.slow
def test_twenty_kills_lose_nothing(tmp_path):
    killed_again_and_again(tmp_path / "run", 20, trajectories=4000, every=5)


def test_the_automatic_mesh_is_stored(stopped):
    assert stored_settings(stopped) == StoredSettings(checkpoint_every=2, mesh="seeds=2,agents=1", automatic=True)


@pytest.mark.slow
def test_a_resumed_run_uses_the_automatic_mesh_again_if_it_fits(tmp_path, monkeypatch):
    """A run that started with its agents on two devices is resumed with other XLA flags, then on one device."""
    config = resolve(**{**TINY, "seeds": 1})
    interrupted(config, tmp_path / "run", 3, every=3, number=signal.SIGINT)
    assert stored_settings(tmp_path / "run") == StoredSettings(3, "seeds=1,agents=2", True)
    shapes = []
    monkeypatch.setattr(layout, "make_mesh", lambda shape: shapes.append(shape) or make_mesh(shape))
    monkeypatch.setenv("XLA_FLAGS", "")
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    resumed(tmp_path / "run")
    assert set(shapes) == {Shape(1, 2)}
    shapes.clear()
    one = jax.devices()[:1]
    monkeypatch.setattr("jax.devices", lambda *_: one)
    _, lines = resumed(tmp_path / "again")
    assert "does not fit here" in lines[0] and set(shapes) == {Shape(1, 1)}
