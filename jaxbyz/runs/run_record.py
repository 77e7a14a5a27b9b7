"""What a run folder tells about itself, run.json: name, tags, imported files, when it was started, and its duration."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypedDict

import msgspec

from jaxbyz.errors import UsageError
from jaxbyz.files import read_json, write_json
from jaxbyz.registry import Registry

RECORD = "run.json"


class RunRecord(TypedDict, total=False):
    """The contents of run.json."""

    name: str
    tags: list[str]
    imported: list[str]
    started: str
    seconds: Annotated[float, msgspec.Meta(ge=0, lt=1e10)]  # three centuries
    finished: str


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


def read(folder: Path) -> RunRecord:
    """Return run.json; an empty table if it is missing or damaged."""
    try:
        return read_json(folder / RECORD, RunRecord)
    except UsageError:
        return {}


def default_folder(name: str, seconds: int | None = None) -> Path:
    """Return `runs/DATE-NAME` for a run that starts now, or at this time in seconds since 1970."""
    date = datetime.fromtimestamp(time.time() if seconds is None else seconds).strftime("%Y-%m-%d-%H%M%S")
    wanted = Path("runs") / f"{date}-{re.sub(r'[^A-Za-z0-9._=+-]+', '-', name)[:100]}"
    folder, number = wanted, 1
    while folder.exists():
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder
