"""Compiled programs on disk, so that a second process of the same program neither traces nor compiles it.

JAX's own cache of compiled programs is found by the text of the program, so every process has to trace and lower a
program before it can look it up. For a training step that takes longer than everything else in a warm start. Here a
program is found by what it is made from: a description of the options, the shapes of its arguments, and the versions of
everything that is involved, including the source code of this package.

Loading a program runs machine code from the user's own cache folder, exactly as JAX's cache does.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import pickle
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
from jax.experimental import serialize_executable

from jaxbyz.accelerate.setup import cache_problem

PACKAGES = ("jax", "jaxlib", "numpy", "flax", "optax", "gymnax")
MOST_PROGRAMS = 200  # older ones are deleted

_enabled = False
_cache_hits: list[str] = []  # one entry per program that was read from JAX's own cache


def enable(yes: bool = True) -> None:
    """Store programs from now on. Only the command line does so: code that was changed at run time goes unnoticed."""
    global _enabled
    _enabled = yes and os.environ.get("JAXBYZ_STORE_PROGRAMS", "1") != "0"


def folder() -> Path | None:
    """Return the folder of stored programs, inside the folder of JAX's cache; None if nothing is to be stored."""
    cache = jax.config.values.get("jax_compilation_cache_dir")
    stores = _enabled and cache and jax.config.values.get("jax_enable_compilation_cache", True)
    if not stores or jax.process_count() > 1:
        return None
    path = Path(cache) / "jaxbyz-programs"
    return path if cache_problem(str(path)) is None else None


def stored_jit(make: Callable[[], Any], name: str, description: str | None) -> Callable[..., Any]:
    """Return the jitted function that `make` builds, with its compiled programs kept on disk.

    Args:
        make: builds the jitted function. It is called only if there is no stored program for the arguments.
        name: the program's name, for the file.
        description: everything that determines the program besides the shapes of its arguments, the source code of this
            package, and the versions and settings of JAX. None if that is unknown; the program is then not stored.
    """
    made, programs = functools.cache(make), {}

    def call(*arguments: Any) -> Any:
        where = None if description is None else folder()
        if where is None:
            return made()(*arguments)
        leaves, structure = jax.tree.flatten(arguments)
        signature = structure, tuple((leaf.shape, str(leaf.dtype), _places(leaf)) for leaf in leaves)
        if signature not in programs:
            text = repr((name, description, str(structure), signature[1], _surroundings()))
            path = where / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
            programs[signature] = _load(path) or _compile(made().lower(*arguments), path)
        return programs[signature](*arguments)

    return call


def return_free_memory() -> None:
    """Give memory that is no longer used back to the system, where the C library is able to (glibc).

    A compiler leaves many small gaps behind, which the C library would keep for the whole training.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _compile(lowered: Any, path: Path) -> Callable[..., Any]:
    """Compile a function that was lowered, and store the program if that is possible.

    XLA writes an incomplete file of a program that was itself read from a file, so a program that JAX's cache already
    had is not stored.
    """
    _watch_cache()
    hits = len(_cache_hits)
    compiled = lowered.compile()
    return_free_memory()
    if len(_cache_hits) > hits:
        return compiled
    try:
        devices = {device.id for leaf in jax.tree.leaves(compiled.output_shardings) for device in leaf.device_set}
        data = pickle.dumps((serialize_executable.serialize(compiled), devices))
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_bytes(data)
        temporary.replace(path)
        for old in sorted(path.parent.iterdir(), key=lambda file: file.stat().st_mtime)[:-MOST_PROGRAMS]:
            old.unlink(missing_ok=True)
    except Exception:  # a full disk, or a program that cannot be written, is no reason to stop
        pass
    return compiled


@functools.cache
def _watch_cache() -> None:
    """Record from now on which programs are read from JAX's own cache."""

    def record(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            _cache_hits.append(event)

    jax.monitoring.register_event_listener(record)


def _load(path: Path) -> Callable[..., Any] | None:
    """Load a stored program, or return None if there is none that can be read."""
    try:
        (program, arguments, results), used = pickle.loads(path.read_bytes())
        devices = [device for device in jax.devices() if device.id in used]
        return serialize_executable.deserialize_and_load(program, arguments, results, execution_devices=devices)
    except FileNotFoundError:
        return None
    except Exception:  # whatever is wrong with the file, the program can be compiled again
        path.unlink(missing_ok=True)
        return None


def _places(leaf: Any) -> str | None:
    """Say which part of an array lies on which device, in the same words for all shardings that are equivalent."""
    sharding = getattr(leaf, "sharding", None)
    return None if sharding is None else str(sharding.devices_indices_map(leaf.shape))


@functools.cache
def _surroundings() -> tuple[Any, ...]:
    """Describe everything else that a compiled program depends on, in this process."""
    settings = [(name, repr(value)) for name, value in sorted(jax.config.values.items()) if "cache" not in name]
    devices = jax.devices()
    return (
        _source_digest(),
        [(package, importlib.metadata.version(package)) for package in PACKAGES],
        sys.version,
        os.environ.get("XLA_FLAGS", ""),
        [setting for setting in settings if setting[0] != "jax_log_compiles"],
        [str(device) + device.device_kind for device in devices],
        devices[0].client.platform_version,
        _instruction_sets(),
    )


def _source_digest() -> str:
    """Return a digest of all files of this package."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _instruction_sets() -> str:
    """Return the instruction sets of the processor where the system lists them, because machine code depends on it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = platform.machine() + platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), named)
