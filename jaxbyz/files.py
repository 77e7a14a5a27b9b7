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
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from jaxbyz.errors import UsageError, first_line

MAX_TEXT_BYTES = 2**20  # of a JSON or TOML file
MAX_ARRAY_BYTES = 4 * 2**30  # of all arrays of one file, uncompressed
# Arrays of more than SMALL_BYTES are refused if they are compressed more than results of a run ever are.
SMALL_BYTES, MAX_RATIO = 2**26, 100
MAX_LINES_BYTES = 2**28  # of all JSON Lines of a file, uncompressed
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


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], *, compress: bool = True) -> None:
    """Write an .npz file. Compression suits results; states hardly shrink, and take ten times as long."""
    save: Any = np.savez_compressed if compress else np.savez
    write_file(path, lambda file: save(file, **arrays))


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


def read_json(path: Path, kind: Any = dict[str, Any]) -> Any:
    """Read a JSON file that holds a value of this type, by default any object.

    Raises:
        UsageError: if it cannot be read, is larger than `MAX_TEXT_BYTES`, or holds something else. NaN, infinities and
            text that is not Unicode are no JSON.
    """
    return _read_text(path, "JSON", lambda text: msgspec.json.decode(text, type=kind))


def read_toml(path: Path, kind: Any = dict[str, Any]) -> Any:
    """Read a TOML file that holds a value of this type, by default any table. Raises as `read_json`."""
    return _read_text(path, "TOML", lambda text: msgspec.toml.decode(text, type=kind))


def _read_text(path: Path, language: str, parse: Callable[[str], Any]) -> Any:
    """Parse a text file of at most `MAX_TEXT_BYTES`."""
    with open_regular(path) as file:
        try:
            data = file.read(MAX_TEXT_BYTES + 1)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({reason(error)})") from error
    return _parsed(str(path), language, data, parse)


def _parsed(place: str, language: str, data: bytes, parse: Callable[[str], Any]) -> Any:
    """Parse at most `MAX_TEXT_BYTES`; `place` is named in errors."""
    try:
        if len(data) > MAX_TEXT_BYTES:
            raise ValueError(f"larger than {MAX_TEXT_BYTES} bytes")
        return parse(data.decode())
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise UsageError(f"{place}: not readable as {language} ({first_line(error)[:200]})") from error


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the JSON objects of a file that `write_json_lines` wrote, each with its place, for errors.

    Every line is checked as the file of `read_json` is. Files that `cat` joins can be read too.
    """
    size = 0
    with open_regular(path) as compressed, gzip.open(compressed) as file:
        for number in itertools.count(1):
            place = f"{path}, line {number}"
            try:
                text = file.readline(MAX_TEXT_BYTES + 1)
            except (OSError, EOFError, zlib.error) as error:
                raise UsageError(f"{place}: not readable as a gzip file ({first_line(error)})") from error
            if not text:
                return
            size += len(text)
            if size > MAX_LINES_BYTES:
                raise UsageError(f"{path}: larger than the limit of {MAX_LINES_BYTES} bytes")
            yield place, _parsed(place, "JSON", text, lambda text: msgspec.json.decode(text, type=dict[str, Any]))


def write_json_lines(path: Path, values: Iterable[Any]) -> None:
    """Write JSON values, one per line, compressed with gzip; `pandas.read_json(path, lines=True)` reads the file.

    The same values give the same bytes.
    """
    text = "".join(f"{json_text(value)}\n" for value in values)

    def write(file: BinaryIO) -> None:
        with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:  # neither a name nor a time in its header
            compressed.write(text.encode())

    write_file(path, write)


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


def read_arrays(path: Path, limit: int = MAX_ARRAY_BYTES) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file of at most `limit` bytes, uncompressed. Object arrays are pickles: refused."""
    with open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                size = sum(member.file_size for member in archive.infolist())
            limit = min(limit, max(SMALL_BYTES, MAX_RATIO * os.fstat(file.fileno()).st_size))
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
