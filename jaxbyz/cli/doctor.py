"""`jaxbyz doctor`: report versions, devices, cores, the cache folder, and problems."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from jaxbyz.errors import install_command


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def examine() -> dict[str, Any]:
    """Return everything that the command prints; each line of `problems` says what to do."""
    import jax

    from jaxbyz.accelerate.setup import available_cores, unused_hardware
    from jaxbyz.cli import OPTIONAL
    from jaxbyz.runs.run_folder import describe_environment

    try:
        described = describe_environment()
    except RuntimeError as error:  # JAX_PLATFORMS names a missing device
        return {"problems": [f"JAX does not start ({error}); unset JAX_PLATFORMS or install that platform"]}
    cache = jax.config.values.get("jax_compilation_cache_dir")
    optional = {extra: all(_installed(p) for p, e in OPTIONAL.items() if e == extra) for extra in OPTIONAL.values()}
    return {
        **{name: described[name] for name in ("python", "system", "versions", "platform", "device", "devices")},
        "cores": available_cores(),
        "cache": _cache(cache),
        "optional": optional,
        "problems": [
            *_versions(),
            *unused_hardware(),
            *_cache_problems(cache),
            *_numbers(),
        ],
    }


def _installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def _versions() -> list[str]:
    """Return a line for every dependency that is missing or has an unsupported version."""
    from packaging.requirements import Requirement

    problems = []
    for text in metadata.requires("jaxbyz") or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            problems.append(f"{requirement.name} is missing: pip install '{requirement}'")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{requirement.name} {version} is not {requirement.specifier}: pip install '{requirement}'")
    return problems


def _cache(path: str | None) -> dict[str, Any]:
    """Return the contents of the compilation cache."""
    if path is None:
        return {"folder": None, "programs": 0, "megabytes": 0.0}
    files = [file for file in Path(path).glob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return {"folder": path, "programs": len(files), "megabytes": round(size / 1e6, 1)}


def _cache_problems(path: str | None) -> list[str]:
    """Return a line if compiled programs cannot be cached."""
    if path is None:
        return ["compiled programs are not cached, so every start compiles again; set JAX_COMPILATION_CACHE_DIR"]
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return []
    except OSError as error:
        return [f"cache {path} cannot be written ({error.strerror}): set JAX_COMPILATION_CACHE_DIR or XDG_CACHE_HOME"]


def _numbers() -> list[str]:
    """Run a small program on every device; return a line for each that fails or computes a wrong result."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    problems = []
    square = jax.jit(lambda x: x @ x.T)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for device in jax.devices():
        try:
            answer = np.asarray(square(jax.device_put(jnp.asarray(x), device)))
        except Exception as error:  # drivers raise many kinds of errors
            problems.append(f"{device} does not compute ({type(error).__name__}: {str(error).splitlines()[0]})")
            continue
        if not np.allclose(answer, x @ x.T):
            problems.append(
                f"{device} computes wrong numbers: the error of a 3×4 product is {np.abs(answer - x @ x.T).max()}"
            )
    return problems


def run(arguments: argparse.Namespace) -> int:
    """Print the report; the exit code is 1 if there are problems."""
    found = examine()
    if arguments.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return int(bool(found["problems"]))
    if "versions" in found:
        missing = [extra for extra, there in found["optional"].items() if not there]
        cache = found["cache"]
        for name, line in {
            "python": f"{found['python']} on {found['system']}",
            "versions": ", ".join(f"{package} {version}" for package, version in found["versions"].items()),
            "devices": f"{found['devices']} × {found['device']} ({found['platform']})",
            "cores available": found["cores"],
            "cache": f"{cache['folder']} ({cache['programs']} programs, {cache['megabytes']} MB)",
            "extras": "all installed" if not missing else f"missing: {install_command(','.join(missing))}",
        }.items():
            print(f"{name:<15} {line}")
    for problem in found["problems"]:
        print(f"{'problem':<15} {problem}")
    if not found["problems"]:
        print("no problems found")
    return int(bool(found["problems"]))
