"""`jaxbyz doctor`: versions, devices, cores, the cache folder, and what is wrong."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any


def add_options(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def examine() -> dict[str, Any]:
    """Everything the command prints; `problems` is a list of lines, each saying what to do."""
    import jax

    from jaxbyz.accelerate.setup import available_cores
    from jaxbyz.cli import OPTIONAL
    from jaxbyz.experiments.run_folder import describe_environment

    try:
        described = describe_environment()
    except RuntimeError as error:  # JAX_PLATFORMS names a device that is not there
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
            *_devices(described["platform"], described["devices"], available_cores()),
            *_cache_problems(cache),
            *_numbers(),
        ],
    }


def _installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def _versions() -> list[str]:
    """Declared dependencies whose installed version is out of range."""
    from packaging.requirements import Requirement

    wrong = []
    for text in metadata.requires("jaxbyz") or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing: pip install '{requirement}'")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} is not {requirement.specifier}: pip install '{requirement}'")
    return wrong


def _devices(platform: str, devices: int, cores: int) -> list[str]:
    wrong = []
    if platform == "cpu" and devices < cores:
        wrong.append(f"{devices} device(s) on {cores} cores: XLA_FLAGS or jax_num_cpu_devices limits them; unset it")
    if platform == "cpu" and shutil.which("nvidia-smi"):
        wrong.append("there is an NVIDIA GPU and JAX does not use it: pip install 'jax[cuda12]', unset JAX_PLATFORMS")
    return wrong


def _cache(path: str | None) -> dict[str, Any]:
    if path is None:
        return {"folder": None, "programs": 0, "megabytes": 0.0}
    files = [file for file in Path(path).glob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return {"folder": path, "programs": len(files), "megabytes": round(size / 1e6, 1)}


def _cache_problems(path: str | None) -> list[str]:
    if path is None:
        return ["no folder for compiled programs: every start compiles anew; set JAX_COMPILATION_CACHE_DIR"]
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return []
    except OSError as error:
        return [f"cache {path} cannot be written ({error.strerror}): set JAX_COMPILATION_CACHE_DIR or XDG_CACHE_HOME"]


def _numbers() -> list[str]:
    """A small program on every device: does it compile, and is its answer right?"""
    import jax
    import jax.numpy as jnp
    import numpy as np

    wrong = []
    square = jax.jit(lambda x: x @ x.T)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for device in jax.devices():
        try:
            answer = np.asarray(square(jax.device_put(jnp.asarray(x), device)))
        except Exception as error:  # whatever the driver throws is the finding
            wrong.append(f"{device} does not compute ({type(error).__name__}: {str(error).splitlines()[0]})")
            continue
        if not np.allclose(answer, x @ x.T):
            wrong.append(f"{device} computes wrong numbers: a 3×4 product is off by {np.abs(answer - x @ x.T).max()}")
    return wrong


def run(arguments: argparse.Namespace) -> int:
    """Print; 0 when nothing is wrong, 1 otherwise."""
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
            "cores in use": found["cores"],
            "cache": f"{cache['folder']} ({cache['programs']} programs, {cache['megabytes']} MB)",
            "extras": "all there" if not missing else f"missing: pip install 'jaxbyz[{','.join(missing)}]'",
        }.items():
            print(f"{name:<13} {line}")
    for problem in found["problems"]:
        print(f"wrong         {problem}")
    if not found["problems"]:
        print("nothing is wrong")
    return int(bool(found["problems"]))
