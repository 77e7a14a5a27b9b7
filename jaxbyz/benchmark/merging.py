"""Put the records of several folders and files together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from jaxbyz.benchmark.checks import check_results
from jaxbyz.benchmark.records import CELL, ONE_FILE, changed_options, read_records, record_path
from jaxbyz.benchmark.suite import Suite
from jaxbyz.errors import UsageError
from jaxbyz.files import json_text, write_json_lines, write_text
from jaxbyz.runs.run_folder import make_folder


def merge(sources: Sequence[str | Path], out: str | Path, suite: Suite, log: Callable[[str], None]) -> int:
    """Add the records of folders and files to a folder, or to one .jsonl.gz file, and return how many were added.

    Of several records of the same name the first is kept, because other machines round differently. The same records
    give the same bytes.

    Raises:
        UsageError: if a record is damaged, belongs to another suite or is refused by `jaxbyz.benchmark.checks`, or two
            results of a cell have different configurations; nothing was written then.
    """
    target = Path(out)
    kept = read_records(target, suite) if target.exists() else {}
    there = set(kept)
    for source in sources:
        for name, record in read_records(source, suite).items():
            first = kept.setdefault(name, record)
            configs = (found.content.get("config", {}) for found in (record, first))
            if changed := changed_options(*configs):
                other = f"has another configuration than {first.place} ({', '.join(changed)})"
                raise UsageError(f"{record.place}: {other}")
            if record.content["hash"] != first.content["hash"]:
                log(f"{name}: kept that of {first.place}")
    check_results([record for record in kept.values() if CELL in record.content], suite)
    added = sorted(kept.keys() - there)
    if target.name.endswith(ONE_FILE) and not target.is_dir():
        make_folder(target.parent)
        if added:
            write_json_lines(target, (kept[name].content for name in sorted(kept)))
    else:
        make_folder(target)
        for name in added:
            write_text(record_path(target, name), json_text(kept[name].content) + "\n")
    return len(added)
