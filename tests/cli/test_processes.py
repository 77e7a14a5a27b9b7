"""What commands do to other processes, to the current folder and to the cache, and how they answer signals."""

from __future__ import annotations

import os
import signal
import socket

import numpy as np
import pytest
from helpers import ROOT, finish, spawn

from jaxbyz.accelerate.setup import REPEATABLE, cache_problem, set_flags
from jaxbyz.algorithms import Metrics
from jaxbyz.cli.joining import join_processes
from jaxbyz.configuration.resolving import resolve
from jaxbyz.errors import UsageError
from jaxbyz.reproduction.subprocesses import run_in_processes
from jaxbyz.runs.history import History

TRAP = "print('imported from the current folder'); raise SystemExit(99)"


def test_nothing_is_imported_from_the_current_folder(tmp_path, monkeypatch):
    """An optax.py in the current folder used to run in the processes of `reproduce --jobs`."""
    for name in ("optax", "gymnax", "random"):
        (tmp_path / f"{name}.py").write_text(TRAP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert run_in_processes({"listing": ["list", "--json"]}, 1, lambda line: None) == {}
    assert "CartPole-v1" in finish(spawn("-m", "jaxbyz", "list"))


def test_the_cache_is_private(tmp_path):
    folder = tmp_path / "a" / "cache"
    assert cache_problem(str(folder)) is None and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    assert "other users can write to it" in cache_problem(str(folder))
    folder.chmod(0o755)
    assert cache_problem(str(folder)) is None
    program = folder / "inside" / "program"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o664)
    assert f"other users could write to {program}" in cache_problem(str(folder))
    folder.chmod(0o700)
    assert cache_problem(str(folder)) is None, "others cannot enter the folder"
    program.unlink()
    folder.chmod(0o755)
    before = os.umask(0o002)
    try:
        assert "with the umask 002" in cache_problem(str(folder))
    finally:
        os.umask(before)
    (tmp_path / "file").write_text("")
    assert "cannot be used" in cache_problem(str(tmp_path / "file"))


def test_a_cache_that_others_can_write_to_is_not_used(tmp_path):
    tmp_path.chmod(0o777)
    environment = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    code = "import jaxbyz, jax; jaxbyz.prepare(); print(jax.config.values['jax_compilation_cache_dir'])"
    output = finish(spawn("-c", code, **environment))
    assert "other users can write to it" in output and output.endswith("None\n")


OUTSIDE_PYTHON = """
import hashlib, signal
signal.signal(signal.SIGINT, lambda *_: None)  # as a run does; a shell may have started the tests with SIGINT ignored
from jaxbyz.runs.signals import acknowledge_signals
with acknowledge_signals(lambda line: print(line, flush=True)):
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**8)  # most of a minute in C, as a compiler
"""


def test_ctrl_c_is_answered_while_the_main_thread_is_outside_python():
    process = spawn("-c", OUTSIDE_PYTHON)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert "SIGINT: stopping as soon as possible; a second one ends the process" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait() == 128 + signal.SIGINT


def metrics_of(iterations: int, start: int) -> Metrics:
    values = np.arange(start, start + iterations, dtype=np.float32)[None]
    return Metrics(*[values] * len(Metrics._fields))._replace(batch=np.full((1, iterations), 2, np.int32))


def test_a_long_run_costs_the_same_in_every_segment(monkeypatch):
    """Every segment used to sum over all earlier ones."""
    history = History(resolve(agents=1))
    copied, most = 0, 0
    join = np.concatenate

    def counted(arrays, axis):
        nonlocal copied
        copied += arrays[0].shape[1] + arrays[1].shape[1]
        return join(arrays, axis=axis)

    monkeypatch.setattr("numpy.concatenate", counted)
    for segment in range(500):
        metrics = metrics_of(20, 20 * segment)._replace(finite=np.zeros((1, 20)))  # no policy is kept
        history.add(metrics, {})
        progress = history.progress(10_000)
        assert progress.iteration == 20 * (segment + 1) and progress.trajectories == 40 * (segment + 1)
        np.testing.assert_array_equal(progress.metrics["returns"], metrics.returns)
        most = max(most, len(history.parts))
    assert most < 20 and copied / len(Metrics._fields) < 20 * 10_000
    monkeypatch.undo()
    np.testing.assert_array_equal(history.metrics()["returns"][0], np.arange(10_000))
    np.testing.assert_array_equal(history.metrics()["trajectories"][0], 2 * np.arange(1, 10_001))


@pytest.mark.parametrize(("address", "reason"), [("nonsense", "invalid literal"), ("host:99999", "port must be")])
def test_wrong_addresses_of_the_first_process_are_refused(address, reason, monkeypatch):
    for name, value in (("COORDINATOR_ADDRESS", address), ("NUM_PROCESSES", "2"), ("PROCESS_ID", "0")):
        monkeypatch.setenv(f"JAX_{name}", value)
    with pytest.raises(UsageError, match=f"cannot join the other processes: .*{reason}"):
        join_processes()


def test_a_port_that_is_in_use_is_reported_in_one_line():
    """JAX itself ends in a segmentation fault."""
    with socket.create_server(("", 0)) as taken:
        address = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{taken.getsockname()[1]}", "JAX_NUM_PROCESSES": "2"}
        process = spawn("-m", "jaxbyz", "train", "--distributed", "--quiet", JAX_PROCESS_ID="0", **address)
        output = finish(process, 2)
    assert len(output.splitlines()) == 1 and "Address already in use" in output, output


def test_deterministic_flags_are_set_on_request(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    set_flags()
    assert not set(REPEATABLE) & set(os.environ["XLA_FLAGS"].split())
    monkeypatch.setenv("JAXBYZ_DETERMINISTIC", "1")
    set_flags()
    assert set(REPEATABLE) <= set(os.environ["XLA_FLAGS"].split())
