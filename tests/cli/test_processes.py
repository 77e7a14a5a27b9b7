"""What commands do to other processes, to the current folder and to the cache, and how they answer signals."""

from __future__ import annotations

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import ROOT, finish, spawn

from jaxbyz.accelerate import distributed
from jaxbyz.accelerate.peers import LEFT, Peers
from jaxbyz.accelerate.setup import REPEATABLE, cache_problem, set_flags
from jaxbyz.algorithms import Metrics
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
        history.add(metrics, None)
        progress = history.progress(10_000)
        assert progress.iteration == 20 * (segment + 1) and progress.trajectories == 40 * (segment + 1)
        np.testing.assert_array_equal(progress.metrics["returns"], metrics.returns)
        most = max(most, len(history.parts))
    assert most < 20 and copied / len(Metrics._fields) < 20 * 10_000
    monkeypatch.undo()
    np.testing.assert_array_equal(history.metrics()["returns"][0], np.arange(10_000))
    np.testing.assert_array_equal(history.metrics()["trajectories"][0], 2 * np.arange(1, 10_001))


@pytest.mark.parametrize("address", ["nonsense", "host:99999", "host:", ":80"])
def test_wrong_addresses_of_the_first_process_are_refused(address):
    with pytest.raises(UsageError, match=r"JAX_COORDINATOR_ADDRESS=.* must be written host:port"):
        distributed._check_coordinator(address)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return free.getsockname()[1]


def meet(port: int, number: int) -> None:
    distributed._report("127.0.0.1", port, number, 60)


def test_processes_meet_before_jax_starts():
    port = free_port()
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(distributed._gather, port, 3, 60), pool.submit(meet, port, 2)]
        time.sleep(0.5)
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.0")
        waiting.append(pool.submit(meet, port, 1))
        assert [future.result(120) for future in waiting] == [None] * 3


def test_processes_that_do_not_come_are_named():
    with pytest.raises(UsageError, match="process 1 does not come"):
        distributed._gather(free_port(), 3, 0.3)
    with pytest.raises(UsageError, match=r"the first one, 127.0.0.1:\d+, does not answer \(Connection refused\)"):
        distributed._report("127.0.0.1", free_port(), 1, 0.3)
    with pytest.raises(UsageError, match=r"no\.such\.host\.invalid:\d+, does not answer"):
        distributed._report("no.such.host.invalid", 80, 1, 0.3)
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=r"cannot be used .*Address already in use"):
            distributed._gather(port, 2, 0.3)
        with pytest.raises(UsageError, match="does not answer"):  # somebody else listens there
            distributed._report("127.0.0.1", port, 1, 0.3)


def test_a_process_that_waits_in_vain_ends_with_one_line():
    address = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}
    process = spawn("-m", "jaxbyz", "train", "--distributed", "--quiet", JAXBYZ_START_SECONDS="1", **address)
    output = finish(process, 2)
    assert len(output.splitlines()) == 1 and "process 1 does not come" in output, output


def test_deterministic_flags_are_set_on_request(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    set_flags()
    assert not set(REPEATABLE) & set(os.environ["XLA_FLAGS"].split())
    monkeypatch.setenv("JAXBYZ_DETERMINISTIC", "1")
    set_flags()
    assert set(REPEATABLE) <= set(os.environ["XLA_FLAGS"].split())


class Store:
    """The coordinator's table, without a coordinator."""

    def __init__(self):
        self.values: dict[str, str] = {}

    def key_value_set(self, key: str, value: str, allow_overwrite: bool) -> None:
        self.values[key] = value

    def key_value_try_get(self, key: str) -> str:
        return self.values[key]


def test_silent_processes_count_as_lost(monkeypatch):
    """A sign of life that changes keeps a process alive; one that leaves is no longer watched."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    store, peers, others = Store(), Peers(0, 3), [Peers(1, 3), Peers(2, 3)]
    for second in range(40):
        now[0] = float(second)
        peers.exchange(store, str(second))
        others[0].exchange(store, str(second))
        if second < 10:
            others[1].exchange(store, str(second))
        assert peers.lost() == ("process 2" if second > 35 else None)
    peers.delay(20.0)
    assert peers.lost() is None
    others[1].exchange(store, LEFT)
    now[0] = 60.0
    others[0].exchange(store, "60")
    peers.exchange(store, "60")
    assert peers.lost() is None and set(peers.heard) == {1}
    now[0] = 90.0
    assert peers.lost() == "the first process"  # which does not answer at all


@pytest.mark.slow
def test_a_frozen_process_ends_the_others_with_one_line():
    code = "from jaxbyz.accelerate.distributed import join_processes as j; j(); print('joined', flush=True)\n"
    address = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": "2"}
    processes = [
        spawn("-c", code + "import time; time.sleep(300)", JAX_PROCESS_ID=str(number), **address) for number in (0, 1)
    ]
    assert all(process.stdout.readline() == "joined\n" for process in processes)
    processes[1].send_signal(signal.SIGSTOP)
    started = time.monotonic()
    output = finish(processes[0], 1)
    assert output.startswith("jaxbyz: lost another process") and len(output.splitlines()) == 1
    assert time.monotonic() - started < 60
