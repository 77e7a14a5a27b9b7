"""Records of the benchmark: results of cells, certificates of rules, and tuned step sizes.

A record is a JSON object that names its suite with the hash, and has a hash of itself. `run` and `tune` write every
record to a file of its own, so that processes can share a folder and a kill loses nothing that is finished. A whole
folder can be stored as one file with the ending .jsonl.gz, one record per line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxbyz.benchmark.suite import Suite, content_hash
from jaxbyz.configuration.config import Config
from jaxbyz.configuration.resolving import to_dict
from jaxbyz.errors import UsageError
from jaxbyz.files import json_text, read_json, read_json_lines, write_text

FORMAT = 1
ONE_FILE = ".jsonl.gz"  # ends the name of a file with all records of a folder
CELL, CERTIFICATE, TUNED = "cell", "certificate", "best"  # a key that only one kind of record has
CONTENTS: dict[str, dict[str, Any]] = {  # kind -> key -> type, or the same for an inner object
    CELL: {
        CELL: {"task": str, "federation": str, "entry": str, "attack": str},
        "options": dict, "config": dict, "environment": dict, "seconds": float, "seeds": list, "finite": list,
        "average": list, "final": list, "trajectories": list, "return": list, "bytes_sent": float,
    },
    CERTIFICATE: {"federation": str, "rule": str, CERTIFICATE: {"verdict": str, "reason": str}},
    TUNED: {"task": str, "entry": str, TUNED: float},
}  # fmt: skip


class StoredRecord(NamedTuple):
    """A record and its place, which errors name: a file, or a line of one."""

    place: str
    content: dict[str, Any]

    def check_config(self, config: Config) -> None:
        """Refuse a record of another configuration."""
        if changed := changed_options(to_dict(config), self.content["config"]):
            raise UsageError(f"{self.place}: made with other options ({', '.join(changed)}); choose another folder")


def record_name(*parts: str) -> str:
    """Return the name of a record, which is that of its file without suffix."""
    return ".".join(re.sub(r"[^\w+=,:-]", "_", part, flags=re.ASCII) for part in parts)


def record_path(folder: Path, name: str) -> Path:
    """Return the path of the file of a record."""
    return folder / f"{name}.json"


def write_record(path: Path, suite: Suite, content: Mapping[str, Any]) -> None:
    """Write a record with its format, its suite and its hash on one line."""
    written = json.loads(json_text({"format": FORMAT, "suite": suite.label, **content}))  # NaN becomes null
    write_text(path, json_text({**written, "hash": hash_of(written)}) + "\n")


def hash_of(content: Mapping[str, Any]) -> str:
    """Return the hash of a record, without the hash that it names."""
    return content_hash({key: value for key, value in content.items() if key != "hash"})


def read_records(source: str | Path, suite: Suite, kind: str | None = None) -> dict[str, StoredRecord]:
    """Read the records of a folder or of one file, by name and in alphabetical order.

    Args:
        source: a folder of .json files, or a .jsonl.gz file.
        suite: their suite.
        kind: CELL, CERTIFICATE or TUNED, to return only these.

    Raises:
        UsageError: if a record is damaged, was changed, or belongs to another suite.
    """
    path, found = Path(source), dict[str, StoredRecord]()
    lines: Iterable[tuple[str, dict[str, Any]]]
    if path.is_dir():
        lines = ((str(file), read_json(file)) for file in path.glob("*.json"))
    elif path.name.endswith(ONE_FILE) and path.exists():
        lines = read_json_lines(path)
    else:
        raise UsageError(f"{source}: no such folder of results, nor a {ONE_FILE} file")
    for place, content in lines:
        name = _check(place, content, suite)
        if path.is_dir() and place != str(record_path(path, name)):
            raise UsageError(f"{place}: holds {name}")
        if name in found:
            raise UsageError(f"{place}: holds {name} again, after {found[name].place}")
        found[name] = StoredRecord(place, content)
    return {name: found[name] for name in sorted(found) if kind is None or kind in found[name].content}


def read_record(path: Path, suite: Suite) -> StoredRecord:
    """Read the file of one record; it is checked as in `read_records`."""
    content = read_json(path)
    if (name := _check(str(path), content, suite)) != path.stem:
        raise UsageError(f"{path}: holds {name}")
    return StoredRecord(str(path), content)


def _check(place: str, content: dict[str, Any], suite: Suite) -> str:
    """Return the name of a record; refuse another format, hash or suite, and values of the wrong type."""
    if not _is_printable(content):
        raise UsageError(f"{place}: a text in it contains control characters")
    if content.get("format") != FORMAT:
        raise UsageError(f"{place}: of another version (format {content.get('format')}, this one reads {FORMAT})")
    if content.get("hash") != hash_of(content):
        raise UsageError(f"{place}: the contents do not fit the hash; they were changed after they were written")
    if (named := content.get("suite")) != suite.label:
        other = f"{named.get('name')} ({named.get('hash')})" if isinstance(named, dict) else named
        raise UsageError(f"{place}: made with suite {other}, not with {suite.name} ({suite.hash})")
    kind = next((kind for kind in CONTENTS if kind in content), None)
    if kind is None:
        raise UsageError(f"{place}: neither a result nor a certificate nor a tuned step size")
    _check_types(place, content, CONTENTS[kind])
    _check_types(place, {"config": {}, **content}, {"config": dict})  # not in certificates and old tuned step sizes
    if kind == CELL:
        return record_name(*(content[CELL][part] for part in CONTENTS[CELL][CELL]))
    if kind == CERTIFICATE:
        return record_name(CERTIFICATE, content["federation"], content["rule"])
    return record_name(content["task"], content["entry"])


def _is_printable(content: dict[str, Any]) -> bool:
    """Whether no text in JSON values, the names of objects among them, has control characters."""
    text = json.dumps(content, ensure_ascii=False)
    escapes_left = text.replace("\\\\", "").replace('\\"', "")  # without those of backslashes and quotation marks
    return text.isprintable() and "\\" not in escapes_left


def _check_types(place: str, content: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Refuse contents that lack a key or have a value of another type; whole numbers may stand for floats."""
    for key, known in types.items():
        kind = dict if isinstance(known, dict) else known
        if not isinstance(content.get(key), (float, int) if kind is float else kind):
            raise UsageError(f"{place}: {key} is missing or not of type {kind.__name__}")
        if isinstance(known, dict):
            _check_types(place, content[key], known)


def changed_options(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the options in which two configurations, as JSON values, differ.

    Options that are newer than a record had their defaults then.
    """
    defaults = to_dict(Config())
    return [key for key in defaults if first.get(key, defaults[key]) != second.get(key, defaults[key])]
