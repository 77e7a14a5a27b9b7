"""What a run folder tells about itself, run.json: name, tags, imported files, when it was started, and its duration."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jaxbyz.errors import UsageError
from jaxbyz.files import read_json, write_json
from jaxbyz.registry import Registry

RECORD = "run.json"
MAX_SECONDS = 1e10  # three centuries


def check_labels(name: str | None, tags: Sequence[str]) -> None:
    """Refuse names and tags that are empty or contain control characters, and names that are paths."""
    for option, value in (("name", name), *(("tag", tag) for tag in tags)):
        if value is not None and (not value.strip() or not value.isprintable() or len(value) > 100):
            raise UsageError(f"{option}={value!r}: must be 1 to 100 printable characters")
    if name is not None and re.search(r"[/\\]|^\.", name):
        raise UsageError(f"name={name!r}: must not contain a slash or begin with a dot")


def write_start(folder: Path, name: str | None, tags: Sequence[str]) -> None:
    """Write run.json of a run that starts now."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    labels = {"name": name or folder.name, "tags": list(tags)}
    imported = {"imported": list(Registry.imported)} if Registry.imported else {}
    write_json(folder / RECORD, {**labels, **imported, "started": now, "seconds": 0.0})


def add_seconds(folder: Path, seconds: float, finished: bool) -> None:
    """Add the duration of one session of training, of which a resumed run has several."""
    record = read(folder)
    record["seconds"] = round(record.get("seconds", 0.0) + seconds, 3)
    if finished:
        record["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(folder / RECORD, record)


def read(folder: Path) -> dict[str, Any]:
    """Return run.json; an empty table if it is missing, as in older folders, or damaged."""
    try:
        record = read_json(folder / RECORD)
    except UsageError:
        return {}
    return record if all(name not in record or fits(record[name]) for name, fits in _FITS.items()) else {}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MAX_SECONDS


# key of run.json -> whether a value is one that a run writes
_FITS: dict[str, Callable[[Any], bool]] = {
    "name": _is_text, "tags": _are_texts, "imported": _are_texts, "started": _is_text, "finished": _is_text,
    "seconds": _is_duration,
}  # fmt: skip


def default_folder(name: str, seconds: int | None = None) -> Path:
    """Return `runs/DATE-NAME` for a run that starts now, or at this time in seconds since 1970."""
    date = datetime.fromtimestamp(time.time() if seconds is None else seconds).strftime("%Y-%m-%d-%H%M%S")
    wanted = Path("runs") / f"{date}-{re.sub(r'[^A-Za-z0-9._=+-]+', '-', name)[:100]}"
    folder, number = wanted, 1
    while folder.exists():
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder
