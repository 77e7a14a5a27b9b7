"""Read and write files safely.

Everything that the package writes goes through `write_file`: the new file is written beside the old one and renamed, so
that a reader never sees half a file, and a full disk or a kill leaves the old file in place. Reading trusts nobody:
regular files, JSON and plain arrays of bounded size, and nothing that is executed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import io
import itertools
import json
import math
import os
import re
import stat
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jaxbyz.errors import UsageError, first_line

MAX_JSON_BYTES = 2**20
MAX_LINES_BYTES = 2**28  # of all JSON Lines of a file, uncompressed
MAX_TOML_BYTES = 2**20
MAX_ARRAY_BYTES = 4 * 2**30  # of all arrays of one file, uncompressed
# Names like a.b.c… take quadratic time in tomllib, and Python does not print numbers of thousands of digits.
HOSTILE_TOML = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){20}|(?<!\w)0[xob][0-9a-fA-F_]{400}""")
TEMPORARY = ".tmp"  # ends the names of files that are being written


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
    """Write a JSON file."""
    write_text(path, json_text(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8."""
    write_file(path, lambda file: file.write(text.encode()))


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a compressed .npz file."""
    write_file(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]


def write_output(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file that the user named: create its folder, and follow a link at its place."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))  # renaming would replace it nevertheless
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({reason(error)})") from error
    write_file(Path(os.path.realpath(path)), write)


def write_output_text(path: Path, text: str) -> None:
    """Write a text that the user named a file for, in UTF-8 (see `write_output`)."""
    write_output(path, lambda file: file.write(text.encode()))


def write_file(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a temporary file beside `path` and rename it to `path`; a link at `path` is replaced, not followed.

    Args:
        path: where the file will be.
        write: receives the open file.

    Raises:
        UsageError: if the file cannot be written; what was there before is unchanged.
    """
    prefix = f".{path.name[:100]}."  # a long name must leave room for the random letters
    try:
        _remove_leftovers(path.parent, prefix)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=TEMPORARY)
        try:
            with os.fdopen(handle, "wb") as file:
                with contextlib.suppress(OSError):  # some file systems have no locks
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                write(file)
                file.flush()
                os.fsync(file.fileno())
                os.chmod(name, 0o644)
                os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({reason(error)}); nothing was overwritten") from error


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder."""
    with contextlib.suppress(OSError):
        _remove_leftovers(folder, ".")


def _remove_leftovers(folder: Path, prefix: str) -> None:
    """Remove temporary files whose names begin like this, unless a living process is writing them."""
    for entry in os.scandir(folder):
        if not (entry.name.startswith(prefix) and entry.name.endswith(TEMPORARY)):
            continue
        with contextlib.suppress(OSError):
            handle = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer lives
                os.unlink(entry.path)
            finally:
                os.close(handle)


def reason(error: OSError) -> str:
    """Return why a file cannot be used, in the words of the operating system."""
    return error.strerror or first_line(error)


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; a pipe or a device, which might never end, is refused.

    Raises:
        UsageError: if it cannot be opened.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({reason(error)})") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UsageError(f"{path}: is not a regular file")
    return os.fdopen(handle, "rb")


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object from a file of at most `MAX_JSON_BYTES`.

    NaN, infinities and text that is not Unicode, which Python's parser accepts, are refused.
    """
    with open_regular(path) as file:
        try:
            text = file.read(MAX_JSON_BYTES + 1)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({reason(error)})") from error
    return _json_object(str(path), text)


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the JSON objects of a file that `write_json_lines` wrote, each with its place, for errors.

    Every line is checked as the file of `read_json` is. Files that `cat` joins can be read too.
    """
    size = 0
    with open_regular(path) as compressed, gzip.open(compressed) as file:
        for number in itertools.count(1):
            place = f"{path}, line {number}"
            try:
                text = file.readline(MAX_JSON_BYTES + 1)
            except (OSError, EOFError, zlib.error) as error:
                raise UsageError(f"{place}: not readable as a gzip file ({first_line(error)})") from error
            if not text:
                return
            size += len(text)
            if size > MAX_LINES_BYTES:
                raise UsageError(f"{path}: larger than the limit of {MAX_LINES_BYTES} bytes")
            yield place, _json_object(place, text)


def write_json_lines(path: Path, values: Iterable[Any]) -> None:
    """Write JSON values, one per line, compressed with gzip; `pandas.read_json(path, lines=True)` reads the file.

    The same values give the same bytes.
    """
    text = "".join(f"{json_text(value)}\n" for value in values)

    def write(file: BinaryIO) -> None:
        with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:  # neither a name nor a time in its header
            compressed.write(text.encode())

    write_file(path, write)


def _json_object(place: str, text: bytes) -> dict[str, Any]:
    """Return the JSON object in a text of at most `MAX_JSON_BYTES`; `place` is named in errors."""
    if len(text) > MAX_JSON_BYTES:
        raise UsageError(f"{place}: larger than the limit of {MAX_JSON_BYTES} bytes")
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float)
        json.dumps(value, ensure_ascii=False).encode()  # fails for half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place}: not readable as JSON ({first_line(error)[:200]})") from error
    if not isinstance(value, dict):
        raise UsageError(f"{place}: must contain one JSON object")
    return value


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a table, one named JSON object per line. A file that does not exist has no rows."""
    rows = [row for _, row in read_json_lines(path)] if path.exists() else []
    if not all(isinstance(row.get("name"), str) for row in rows):
        raise UsageError(f"{path}: every line must be a JSON object with a name")
    return rows


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write a table, sorted by the field `name`. Equal rows make equal files."""
    write_json_lines(path, sorted(rows, key=lambda row: row["name"]))


def add_row(path: Path, row: dict[str, Any]) -> None:
    """Add a row to a table, in place of one of the same name. Processes that do this at the same time take turns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        write_rows(path, [*(other for other in read_rows(path) if other["name"] != row["name"]), row])
    finally:
        os.close(handle)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file of at most `MAX_TOML_BYTES`."""
    with open_regular(path) as file:
        try:
            text = file.read(MAX_TOML_BYTES + 1)
            if len(text) > MAX_TOML_BYTES:
                raise UsageError(f"{path}: larger than the limit of {MAX_TOML_BYTES} bytes")
            decoded = text.decode()
            if HOSTILE_TOML.search(decoded):
                raise ValueError("a name has more than 20 parts, or a number more than 400 digits")
            return tomllib.loads(decoded)
        except UsageError:
            raise
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{path}: not readable as TOML ({first_line(error)[:200]})") from error


def read_arrays(path: Path, limit: int = MAX_ARRAY_BYTES) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file of at most `limit` bytes, uncompressed. Object arrays are pickles: refused."""
    with open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > limit:
                raise UsageError(f"{path}: {size} bytes uncompressed exceed the limit of {limit} bytes")
            file.seek(0)
            with np.load(file, allow_pickle=False) as data:
                arrays = {name: data[name] for name in data.files}
            if others := [name for name, value in arrays.items() if not isinstance(value, np.ndarray)]:
                raise ValueError(f"{others[0]} is not an array")
            return arrays
        except UsageError:
            raise
        except Exception as error:  # a damaged or foreign file raises zip, header, memory and value errors
            raise UsageError(f"{path}: damaged or not a file of arrays ({type(error).__name__})") from error


def refuse_links(folder: Path, *parts: str) -> Path:
    """Return `folder/part/…`, where no part may be a symbolic link: no command follows a link out of a run folder.

    Raises:
        UsageError: if a part is a link.
    """
    path = folder
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise UsageError(f"{path}: is a link; links inside a run folder are not followed")
    return path
