"""Compiled programs on disk: found again, not confused with others, and compiled anew if a file is damaged."""

import ctypes
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxbyz.accelerate import stored_programs
from jaxbyz.accelerate.stored_programs import return_free_memory, stored_jit


class Pair(NamedTuple):
    key: jax.Array
    values: jax.Array


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Programs are stored in a folder of this test."""
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    monkeypatch.delenv("JAXBYZ_STORE_PROGRAMS", raising=False)
    stored_programs.enable()
    yield tmp_path / "jaxbyz-programs"
    stored_programs.enable(False)
    jax.config.update("jax_compilation_cache_dir", before)


def step(pair):
    return Pair(pair.key, pair.values + jax.random.normal(pair.key, pair.values.shape))


def counted(description="step", function=step, **options):
    """Return a stored program and the list of its compilations in this process."""
    compiled = []

    def make():
        compiled.append(description)
        return jax.jit(function, **options)

    return stored_jit(make, "step", description), compiled


def resident_bytes():
    return os.sysconf("SC_PAGE_SIZE") * int(Path("/proc/self/statm").read_text().split()[1])


def pair(size=3):
    return Pair(jax.random.key(1), jnp.arange(size, dtype=jnp.float32))


def test_a_stored_program_is_loaded_instead_of_traced(store):
    program, compiled = counted()
    expected = program(pair())
    again, compiled_again = counted()
    for _ in range(2):
        np.testing.assert_array_equal(again(pair()).values, expected.values)
    assert (compiled, compiled_again) == (["step"], [])
    assert len(list(store.iterdir())) == 1


def test_other_descriptions_shapes_and_settings_are_other_programs(store, monkeypatch):
    counted()[0](pair())
    for different in (lambda: counted("other")[0](pair()), lambda: counted()[0](pair(4))):
        before = len(list(store.iterdir()))
        different()
        assert len(list(store.iterdir())) == before + 1
    monkeypatch.setattr(stored_programs, "_source_digest", lambda: "changed source code")
    stored_programs._surroundings.cache_clear()
    program, compiled = counted()
    program(pair())
    stored_programs._surroundings.cache_clear()
    assert compiled == ["step"]


def test_donated_arguments_on_two_devices(store):
    mesh = jax.make_mesh((2,), ("agents",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("agents"))
    for _ in range(2):
        program, compiled = counted("rows", lambda x: jnp.cumsum(x) + 1, donate_argnums=0, out_shardings=rows)
        given = jax.device_put(jnp.arange(4.0), rows)
        result = program(given)
        np.testing.assert_array_equal(result, [1, 2, 4, 7])
        assert given.is_deleted() and result.sharding == rows
    assert compiled == []


def test_a_damaged_file_is_replaced(store):
    expected = counted()[0](pair())
    (path,) = store.iterdir()
    path.write_bytes(b"damaged")
    for compilations in (1, 0):
        program, compiled = counted()
        np.testing.assert_array_equal(program(pair()).values, expected.values)
        assert len(compiled) == compilations


def test_a_folder_that_others_can_write_to_is_not_used(store):
    """Programs that are loaded are run, so nobody else may be able to put one there."""
    counted()[0](pair())
    assert stat.S_IMODE(store.stat().st_mode) == 0o700
    store.chmod(0o770)
    program, compiled = counted()
    program(pair())
    assert compiled == ["step"]


def test_nothing_is_stored_unless_asked(store, monkeypatch):
    counted(description=None)[0](pair())
    monkeypatch.setenv("JAXBYZ_STORE_PROGRAMS", "0")
    stored_programs.enable()
    counted()[0](pair())
    assert not store.exists()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_gaps_that_a_compiler_leaves_are_given_back():
    """Of many small blocks, the last one stays in use, so that the C library keeps all of them until it is asked."""
    c = ctypes.CDLL(None)
    c.malloc.restype, c.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [c.malloc(ctypes.c_size_t(50_000)) for _ in range(2000)]
    for block in blocks:
        ctypes.memset(block, 1, 50_000)
    for block in blocks[:-1]:
        c.free(block)
    before = resident_bytes()
    return_free_memory()
    assert before - resident_bytes() > 50e6
    c.free(blocks[-1])


@pytest.mark.slow
def test_a_second_command_loads_the_programs_of_the_first(tmp_path):
    options = ["--agents=6", "--byzantine=1", "--trajectories=40", "--horizon=20", "--hidden=3", "--seeds=2"]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), "JAX_LOG_COMPILES": "1"}
    outputs = []
    for name in ("cold", "warm"):
        command = [sys.executable, "-m", "jaxbyz", "train", *options, "--out", str(tmp_path / name)]
        outputs.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr)
    assert "Finished tracing _advance" in outputs[0]
    assert "_advance" not in outputs[1]
    cold, warm = (np.load(tmp_path / name / "metrics.npz") for name in ("cold", "warm"))
    assert sorted(cold) == sorted(warm) and all(np.array_equal(cold[name], warm[name]) for name in cold)
