"""Compiled programs on disk, so that a second process of the same program neither traces nor compiles it.

JAX's own cache of compiled programs is found by the text of the program, so every process has to trace and lower a
program before it can look it up. For a training step that takes longer than everything else in a warm start. Here a
program is found by what it is made from: a description of the options, the shapes of its arguments, and the versions of
everything that is involved, including the source code of this package.

Loading a program runs machine code from the user's own cache folder, exactly as JAX's cache does.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import pickle
import platform
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
from jax.experimental import serialize_executable

from jaxbyz.accelerate.memory import return_free_memory

PACKAGES = ("jax", "jaxlib", "numpy", "flax", "optax", "gymnax")
MOST_PROGRAMS = 200  # older ones are deleted
# Options of JAX that say where and when programs are cached, and not what is computed.
CACHE_OPTIONS = ("compilation_cache", "persistent_cache", "log_compiles", "explain_cache")

_enabled = False


def enable(yes: bool = True) -> None:
    """Store programs from now on. Only the command line does so: code that was changed at run time goes unnoticed."""
    global _enabled
    _enabled = yes and os.environ.get("JAXBYZ_STORE_PROGRAMS", "1") != "0"


def folder() -> Path | None:
    """Return the folder of stored programs, inside the folder of JAX's cache; None if nothing is to be stored."""
    cache = jax.config.values.get("jax_compilation_cache_dir")
    if not (_enabled and cache and jax.config.values.get("jax_enable_compilation_cache", True)):
        return None
    return Path(cache) / "jaxbyz-programs" if jax.process_count() == 1 else None


def stored_jit(make: Callable[[], Any], name: str, description: str | None) -> StoredFunction:
    """Return the jitted function that `make` builds, with its compiled program kept on disk.

    Args:
        make: builds the jitted function. It is called only if there is no stored program for the arguments.
        name: the program's name, for the file.
        description: everything that determines the program besides the shapes of its arguments, the source code of this
            package, and the versions and settings of JAX. None if that is unknown; the program is then not stored.
    """
    return StoredFunction(functools.cache(make), name, description)


class StoredFunction:
    """A jitted function whose compiled programs are kept on disk (see `stored_jit`)."""

    def __init__(self, made: Callable[[], Any], name: str, description: str | None):
        self._made, self._name, self._description = made, name, description
        self._programs: dict[Any, Callable[..., Any] | Future[Callable[..., Any]]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Call the function, with the stored program if there is one."""
        where = self._folder()
        if where is None:
            return self._made()(*arguments)
        signature = _signature(arguments)
        if signature not in self._programs:
            path = self._path(where, signature)
            self._programs[signature] = _load(path) or _compile(self._made().lower(*arguments), path)
        program = self._programs[signature]
        if isinstance(program, Future):
            program = self._programs[signature] = program.result()
        return program(*arguments)

    def prepare(self, *arguments: Any) -> bool:
        """Load the program for arguments of these shapes, or trace it and start to compile it in a thread.

        Several small programs can be compiled while the next one is traced. A later call waits for the program.

        Args:
            *arguments: arrays, or `jax.ShapeDtypeStruct` with a sharding.

        Returns:
            Whether it is being compiled.
        """
        where = self._folder()
        if where is None:
            return False
        signature = _signature(arguments)
        if signature not in self._programs:
            path = self._path(where, signature)
            self._programs[signature] = _load(path) or _compiler().submit(
                _compile, self._made().lower(*arguments), path
            )
        return isinstance(self._programs[signature], Future)

    def _folder(self) -> Path | None:
        return None if self._description is None else folder()

    def _path(self, where: Path, signature: tuple[Any, ...]) -> Path:
        text = repr((self._name, self._description, str(signature[0]), signature[1], _surroundings()))
        return where / f"{self._name}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


@functools.cache
def _compiler() -> ThreadPoolExecutor:
    """Return the threads that compile what is prepared."""
    return ThreadPoolExecutor(max_workers=2, thread_name_prefix="jaxbyz-compiler")


def _compile(lowered: Any, path: Path) -> Callable[..., Any]:
    """Compile a function that was lowered, and store the program if that is possible.

    XLA writes an incomplete file of a program that was itself read from a file, so a program that JAX's cache already
    had is not stored.
    """
    _count_cache_hits()
    _cache_hits.count = 0
    compiled = lowered.compile()
    return_free_memory()
    if _cache_hits.count:
        return compiled
    try:
        devices = {device.id for leaf in jax.tree.leaves(compiled.output_shardings) for device in leaf.device_set}
        data = pickle.dumps((serialize_executable.serialize(compiled), devices))
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_bytes(data)
        temporary.replace(path)
        for old in sorted(path.parent.iterdir(), key=lambda file: file.stat().st_mtime)[:-MOST_PROGRAMS]:
            old.unlink(missing_ok=True)
    except Exception:  # a full disk, or a program that cannot be written, is no reason to stop
        pass
    return compiled


_cache_hits = threading.local()  # `count`, because several threads compile


@functools.cache
def _count_cache_hits() -> None:
    """Count from now on how many programs each thread reads from JAX's own cache."""

    def count(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            _cache_hits.count = getattr(_cache_hits, "count", 0) + 1

    jax.monitoring.register_event_listener(count)


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


def _signature(arguments: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Describe what a program depends on in its arguments: their structure, shapes, types, and places on devices."""
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple((leaf.shape, str(leaf.dtype), _places(leaf)) for leaf in leaves)


def _places(leaf: Any) -> str | None:
    """Say which part of an array lies on which device, in the same words for all shardings that are equivalent."""
    sharding = getattr(leaf, "sharding", None)
    return None if sharding is None else str(sharding.devices_indices_map(leaf.shape))


@functools.cache
def _surroundings() -> tuple[Any, ...]:
    """Describe everything else that a compiled program depends on, in this process."""
    settings = {
        name: repr(value)
        for name, value in sorted(jax.config.values.items())
        if not any(part in name for part in CACHE_OPTIONS)
    }
    devices = jax.devices()
    return (
        _source_digest(),
        tuple((package, importlib.metadata.version(package)) for package in PACKAGES),
        sys.version,
        os.environ.get("XLA_FLAGS", ""),
        tuple(settings.items()),
        tuple(str(device) + device.device_kind for device in devices),
        devices[0].client.platform_version,
        platform.machine(),
        _cpu_features(),
    )


def _source_digest() -> str:
    """Return a digest of all files of this package."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _cpu_features() -> str:
    """Return the instruction sets of the processor where the system lists them, because machine code depends on it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
