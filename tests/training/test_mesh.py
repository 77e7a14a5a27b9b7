"""Seeds and agents spread over devices and processes: the numbers are the same, and only messages are exchanged."""

from __future__ import annotations

import json
import math
import signal
import socket
import subprocess
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import StopAt, finish, flags, spawn
from jax.sharding import PartitionSpec

import jaxbyz as jb
from jaxbyz.configuration.building import build
from jaxbyz.configuration.resolving import resolve
from jaxbyz.errors import UsageError
from jaxbyz.protocol.placement import Places
from jaxbyz.runs.loop import Interrupted
from jaxbyz.runs.run import resume, run
from jaxbyz.training.devices import Shape, choose_shape, make_mesh, parse_shape

HERE = Path(__file__).parents[1]
SMALL = dict(agents=5, byzantine=1, N=4, B=2, p=0.5, horizon=8, hidden=(3,), kappa="2", attack="avg-zero")
ONE_DEVICE, EIGHT_DEVICES = "seeds=1", "seeds=2,agents=4"


def together(count: int, *arguments: str) -> list[subprocess.Popen]:
    """Start this many processes that find each other on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count)}
    return [spawn(*arguments, JAX_PROCESS_ID=str(i), **common) for i in range(count)]


def assert_close(folder: Path, one: str, other: str, tolerance: float) -> None:
    a, b = (np.load(folder / f"{name}.npz") for name in (one, other))
    assert set(a) == set(b)
    for name in set(a) - {"bytes_moved"}:
        np.testing.assert_allclose(a[name], b[name], rtol=tolerance, atol=tolerance, err_msg=f"{other}: {name}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Results of twenty iterations on one and on eight devices."""
    folder = tmp_path_factory.mktemp("mesh")
    train_on(folder, ONE_DEVICE, EIGHT_DEVICES)
    return folder


def train_on(folder: Path, *meshes: str) -> None:
    """Train on each mesh, in a process with eight devices."""
    finish(spawn(str(HERE / "mesh_worker.py"), str(folder), json.dumps([{}, meshes])))


def test_the_mesh_does_not_change_the_numbers(trained):
    """9 agents on 1 and 8 devices agree to 1e-5 after 20 iterations."""
    assert np.load(trained / f"{ONE_DEVICE}.npz")["returns"].shape == (2, 20)
    assert_close(trained, ONE_DEVICE, EIGHT_DEVICES, 1e-5)


@pytest.mark.slow
def test_seeds_or_agents_alone_are_spread(trained):
    seeds, agents = "seeds=2,agents=1", "seeds=1,agents=4"
    train_on(trained, seeds, agents)
    for mesh in (seeds, agents):
        assert_close(trained, ONE_DEVICE, mesh, 1e-5)


@pytest.mark.slow
def test_two_processes_train_are_interrupted_and_resume(trained, tmp_path):
    """One process gets a signal and both stop at the same iteration; the resumed run equals an uninterrupted one."""
    for process in together(2, str(HERE / "mesh_worker.py"), str(tmp_path), "1"):
        finish(process)
    for i in range(2):
        said = json.loads((tmp_path / f"said-{i}.json").read_text())
        assert "stopped at iteration 8 by SIGTERM" in said[0]
        assert ("the folder holds an unfinished run" if i == 0 else "the first process refused") in said[1]
        assert "at iteration 8 of 20" in said[2]
        assert_close(tmp_path, f"whole-{i}", f"resumed-{i}", 0.0)
    assert_close(tmp_path, "whole-0", "whole-1", 0.0)
    (tmp_path / "one.npz").write_bytes((trained / f"{ONE_DEVICE}.npz").read_bytes())
    assert_close(tmp_path, "one", "whole-0", 1e-5)
    assert jb.load_run(tmp_path / "run").metrics["returns"].shape == (2, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"p": 0.5, "aggregator": "rfa", "agreement": "mda", "attack": "large-noise"},
        {"p": 0.5, "aggregator": "centered-clipping", "schedule": "rotating", "coin": "own", "attack": "alie"},
        {"p": 0.5, "aggregator": "krum", "tolerance": 1e-3, "kappa": "6", "previous": "own"},
        {"p": 0.5, "agreement": "clipped-gossip:graph=ring", "attack": "none", "byzantine": 0, "seeds": 3},
        {"p": 0.5, "pre_aggregator": "bucketing", "aggregator": "rfa", "attack": "random-action"},
        {"p": 0.5, "algorithm": "byzpg", "attack": "large-noise"},
        {"p": 0.5, "algorithm": "byz-vr-marina-pg", "coin": "own"},
        {"algorithm": "svrpg"},
        {"algorithm": "fedpg-br", "aggregator": "fedpg-br"},
        {"p": 0.5, "algorithm": "dec-page-pg", "attack": "none", "agents": 8, "schedule": "random"},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_every_kind_of_run_is_the_same_on_every_mesh(options, tmp_path):
    meshes = ["seeds=1", "agents=2", "seeds=2,agents=4"]
    finish(spawn(str(HERE / "mesh_worker.py"), str(tmp_path), json.dumps([options, meshes])))
    for mesh in meshes[1:]:
        assert_close(tmp_path, meshes[0], mesh, 1e-5)


@pytest.mark.slow
def test_a_run_resumes_on_another_mesh(tmp_path):
    """Checkpoints do not depend on the mesh: a run starts with agents on two devices and ends with seeds on two."""
    config = resolve(**SMALL, seeds=3, trajectories=60)
    with pytest.raises(Interrupted):
        run(config, tmp_path / "run", StopAt(8), checkpoint_every=8, mesh="agents=2")
    done, whole = resume(tmp_path / "run", mesh="seeds=2"), run(config, mesh="seeds=1")
    for name, values in whole.policy.items():
        np.testing.assert_allclose(done.policy[name], values, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_when_a_process_dies_the_other_reports_it_and_the_run_can_be_resumed(victim, tmp_path):
    options = {**SMALL, "seeds": 2, "trajectories": 900}
    out = tmp_path / "run"
    train = ["train", *flags(options), "--checkpoint-every=20", "--out", str(out), "--distributed"]
    processes = together(2, "-m", "jaxbyz", *train)
    deadline = time.monotonic() + 200
    while not (out / "checkpoints" / "20.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    processes[victim].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    said, _ = processes[1 - victim].communicate()
    processes[victim].communicate()
    assert time.monotonic() - killed < 60
    assert processes[1 - victim].returncode not in (0, None)
    assert "lost another process" in said or "another task died" in said, said
    resumed = together(2, "-m", "jaxbyz", "resume", str(out), "--distributed")
    assert "resuming" in finish(resumed[0])
    finish(resumed[1])
    whole = run(resolve(**options))
    done = jb.load_run(out)
    np.testing.assert_allclose(done.metrics["returns"], whole.metrics["returns"], rtol=1e-5)
    np.testing.assert_allclose(done.policy["last"], whole.policy["last"], rtol=1e-4, atol=1e-5)


def collectives(jaxpr, times: int = 1) -> list[tuple[int, int]]:
    """Return how often each all-gather of a program runs, and how many floats each place sends."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "all_gather":
            found.append((times, math.prod(equation.invars[0].aval.shape)))
        length = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    found += collectives(inner, times * length)
    return found


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"agreement": "mda", "kappa": "3"}, "decbyzpg"),
        ({"agreement": "none"}, "decbyzpg"),
        ({"aggregator": "centered-clipping"}, "decbyzpg"),
        ({}, "byz-vr-marina-pg"),
    ],
)
def test_bytes_moved_are_those_of_the_program(options, name):
    """A run reports what its all-gathers move, and there are no other collectives."""
    config = resolve(agents=5, byzantine=1, N=2, B=2, p=1.0, horizon=4, hidden=(3,), algorithm=name, **options)
    algorithm, places, mesh = build(config, 1), Places(5, 2), make_mesh(Shape(1, 2))

    def step(data):
        state = algorithm.init(jax.random.wrap_key_data(data), places)
        return algorithm.step(state, jnp.bool_(True), places)[1].bytes_moved

    spread = jax.shard_map(step, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
    program = jax.make_jaxpr(spread)(jax.random.key_data(jax.random.key(0)))
    others = {"psum", "all_to_all", "ppermute", "psum_scatter", "pmax", "pmin"}
    assert not others & set(str(program).replace("[", " ").split())
    floats = sum(times * size for times, size in collectives(program.jaxpr))
    reported = float(jax.jit(spread)(jax.random.key_data(jax.random.key(0))))
    assert reported == floats * 2 * (2 - 1) * 4  # two devices, each to the other, four bytes per float


def test_places():
    """Unused places repeat the last agent, and gathering drops them."""
    assert Places(7).per_device == 7 and Places(7).local(np.arange(7)).shape == (7,)
    assert float(Places(7).bytes_moved(5)) == 0
    assert Places(7, 3).per_device == 3 and float(Places(7, 3).bytes_moved(5)) == 3 * 2 * 5 * 4
    places, mesh = Places(3, 2), make_mesh(Shape(1, 2))

    def local_and_gathered(x):
        local = places.local({"a": x, "b": x[:, :1] * 2})
        return places.gather(local), places.first_agent(local)["a"], local["a"]

    spread = jax.shard_map(
        local_and_gathered, mesh=mesh, in_specs=PartitionSpec(), check_vma=False,
        out_specs=(PartitionSpec(), PartitionSpec(), PartitionSpec("agents")),
    )  # fmt: skip
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    everyone, first, local = jax.jit(spread)(x)
    np.testing.assert_array_equal(everyone["a"], x)
    np.testing.assert_array_equal(everyone["b"], x[:, :1] * 2)
    np.testing.assert_array_equal(first, x[0])
    np.testing.assert_array_equal(local, x[np.array([0, 1, 2, 2])])


def test_shapes(monkeypatch):
    assert parse_shape("seeds=4,agents=2") == Shape(4, 2) and parse_shape("agents=3") == Shape(1, 3)
    assert parse_shape(str(Shape(2, 5))) == Shape(2, 5)
    assert choose_shape(None, 1, 13) == choose_shape(None, 1, 4) == Shape(1, 2)  # idle cores get agents
    assert choose_shape(None, 1, 1) == choose_shape(None, 1, 3) == Shape(1, 1)
    assert choose_shape(None, 5, 13) == Shape(2, 1)
    monkeypatch.setenv("XLA_FLAGS", "")  # without the flags that let devices wait for each other
    assert choose_shape(None, 1, 13) == Shape(1, 1) and choose_shape(None, 5, 13) == Shape(2, 1)
    monkeypatch.undo()
    for text in ("", "seeds", "seeds=0", "seeds=-1", "agents=two", "seeds=1,seeds=1", "devices=2", "seeds=1.5"):
        with pytest.raises(UsageError, match="must be written like seeds=4,agents=2"):
            parse_shape(text)
    for shape, message in (
        (Shape(2, 2), "4 devices are needed, there are 2"),
        (Shape(2, 1), "seeds=1 cannot be spread over more than 1"),
    ):
        with pytest.raises(UsageError, match=message):
            choose_shape(shape, 1, 13)


def test_refusals_make_no_folder(tmp_path, capsys):
    from jaxbyz.cli import main

    out = tmp_path / "run"
    assert main(["train", "--mesh", "seeds=3", "--seeds", "3", "--out", str(out)]) == 2
    assert "3 devices are needed, there are 2" in capsys.readouterr().err and not out.exists()
    assert main(["train", "--mesh", "rows=3", "--out", str(out)]) == 2
    assert "mesh='rows=3'" in capsys.readouterr().err and not out.exists()


def test_distributed_without_a_cluster_is_refused():
    """In a new process, without variables that describe the others."""
    said = finish(spawn("-m", "jaxbyz", "train", "--distributed"), code=2)
    greeting, error = said.strip().splitlines()
    assert "starting" in greeting and "set JAX_COORDINATOR_ADDRESS" in error
