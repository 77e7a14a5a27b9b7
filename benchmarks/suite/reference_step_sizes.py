"""Write the tuned step sizes of the references into the file of a suite that is not released yet.

    jaxbyz benchmark tune v2 --entry alone mean pooled --out runs/references --jobs 15
    python benchmarks/suite/reference_step_sizes.py jaxbyz/benchmark/suites/v2.toml runs/references --out runs/tuned

The hash of the suite changes with its file. What was tried does not depend on these step sizes, so its records are
written again for the new suite to the folder of `--out`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from jaxbyz.benchmark.entries import NOT_ENTRIES, decay_of, options_of, reference_cell, step_size
from jaxbyz.benchmark.records import TUNED, read_records, record_path, write_record
from jaxbyz.benchmark.suite import load_suite
from jaxbyz.runs.run_folder import make_folder


def with_reference(text: str, task: str, name: str, options: dict[str, float]) -> str:
    """Return the text of a suite file in which a reference has these options on a task, instead of any others."""
    values = ", ".join(f"{key} = {value:.6g}" for key, value in options.items())
    begin = text.index(f"[tasks.{task}]")
    end = text.index(f"[tasks.{task}.fixed]", begin)
    table = re.sub(rf"^{name} = .*\n", "", text[begin:end], flags=re.MULTILINE)
    return text[:begin] + table + f"{name} = {{ {values} }}\n" + text[end:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path, help="file of the suite")
    parser.add_argument("tuned", help="folder or .jsonl.gz file of `jaxbyz benchmark tune`")
    parser.add_argument("--out", required=True, help="folder of the records for the new suite")
    arguments = parser.parse_args()
    suite, text = load_suite(arguments.suite), arguments.suite.read_text()
    records = read_records(arguments.tuned, suite, TUNED)
    found = {name: one.content for name, one in records.items() if one.content["entry"] in NOT_ENTRIES}
    for one in found.values():
        cell = reference_cell(suite, one["entry"], one["task"], suite.first_federation(one["task"]))
        decay = decay_of(suite, one["task"], options_of(suite, {}, cell))
        text = with_reference(text, one["task"], one["entry"], step_size(one[TUNED], decay))
    arguments.suite.write_text(text)
    suite, out = load_suite(arguments.suite), make_folder(arguments.out)
    for name, one in found.items():
        content = {key: value for key, value in one.items() if key not in ("format", "suite", "hash")}
        write_record(record_path(out, name), suite, content)
    print(f"{arguments.suite}: {len(found)} step sizes; suite {suite.name} has the hash {suite.hash}")


if __name__ == "__main__":
    main()
