"""Read and write files safely.

Writing is atomic: a reader never sees half a file, and a full disk or a kill leaves the old file in place. Reading
trusts nobody: JSON and plain arrays of bounded size, and nothing that is executed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.errors import UsageError, first_line

MAX_JSON_BYTES = 2**20
MAX_ARRAY_BYTES = 4 * 2**30  # of all arrays of one file, uncompressed


def json_text(value: Any, **options: Any) -> str:
    """Return a value as JSON; NaN and infinities, which JSON does not have, become null."""

    def finite(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: finite(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [finite(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(finite(value), allow_nan=False, **options)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    _write_atomically(path, lambda file: file.write((json_text(value, indent=2) + "\n").encode()))


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a compressed .npz file atomically."""
    _write_atomically(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]


def _write_atomically(path: Path, write: Callable[[Any], Any]) -> None:
    """Write a temporary file and rename it to `path`."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}); nothing was overwritten") from error


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Create the folder of an output file that the user named, and report an OSError in the block as a UsageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UsageError(f"out={path}: cannot be written ({error.strerror})") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object from a file of at most `MAX_JSON_BYTES`."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_JSON_BYTES + 1)
        if len(text) > MAX_JSON_BYTES:
            raise UsageError(f"{path}: larger than the limit of {MAX_JSON_BYTES} bytes")
        value = json.loads(text)
    except UsageError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not readable as JSON ({first_line(error)})") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path}: must contain one JSON object")
    return value


def read_arrays(path: Path, limit: int = MAX_ARRAY_BYTES) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file of at most `limit` bytes, uncompressed. Object arrays are pickles: refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > limit:
            raise UsageError(f"{path}: {size} bytes uncompressed exceed the limit of {limit} bytes")
        with np.load(path, allow_pickle=False) as data:
            arrays = {name: data[name] for name in data.files}
        if others := [name for name, value in arrays.items() if not isinstance(value, np.ndarray)]:
            raise ValueError(f"{others[0]} is not an array")
        return arrays
    except UsageError:
        raise
    except Exception as error:  # a damaged or foreign file raises zip, header, memory and value errors
        raise UsageError(f"{path}: damaged or not a file of arrays ({type(error).__name__})") from error
