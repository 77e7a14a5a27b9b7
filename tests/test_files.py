"""Tables of results: compressed JSON Lines that are written row by row."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from jaxbyz.errors import UsageError
from jaxbyz.files import SMALL_BYTES, add_row, read_arrays, read_rows, write_arrays, write_rows

ROWS = [{"name": "b", "return": [1.5, None]}, {"name": "a", "label": "κ"}]


def test_a_table_is_sorted_and_equal_rows_make_equal_files(tmp_path):
    one, two = tmp_path / "one.jsonl.gz", tmp_path / "two.jsonl.gz"
    assert read_rows(one) == []
    write_rows(one, ROWS)
    for row in ROWS:
        add_row(two, row)
    add_row(two, ROWS[0])  # replaces the row of this name
    assert one.read_bytes() == two.read_bytes() and read_rows(one) == ROWS[::-1]
    lines = gzip.decompress(one.read_bytes()).decode().splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["a", "b"]
    joined = tmp_path / "joined.jsonl.gz"
    joined.write_bytes(one.read_bytes() + two.read_bytes())
    assert read_rows(joined) == ROWS[::-1] * 2


def test_rows_that_are_added_at_the_same_time_are_all_kept(tmp_path):
    table, names = tmp_path / "new" / "table.jsonl.gz", [f"{i:02d}" for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: add_row(table, {"name": name}), names))
    assert [row["name"] for row in read_rows(table)] == names


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "not readable as a gzip file"),
        (gzip.compress(b'{"name": "a"}', mtime=0)[:-9], "not readable as a gzip file"),
        (gzip.compress(b'{"name": NaN}', mtime=0), "line 1: not readable as JSON"),
        (gzip.compress(b'{"name": "a"}\n[1]', mtime=0), "line 2: not readable as JSON \\(Expected `object`"),
        (gzip.compress(b'{"name": 1}', mtime=0), "every line must be a JSON object with a name"),
        (gzip.compress(b'{"name": "%s"}' % (b"a" * 200), mtime=0), "larger than the limit of 100 bytes"),
    ],
)
def test_a_damaged_table_is_refused_in_one_line(tmp_path, monkeypatch, content, message):
    monkeypatch.setattr("jaxbyz.files.MAX_LINES_BYTES", 100)
    path = tmp_path / "table.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as refused:
        read_rows(path)
    assert str(refused.value).startswith(str(path)) and "\n" not in str(refused.value)


def test_a_small_file_cannot_cost_much_memory(tmp_path):
    """Zeros shrink to a thousandth. Such a file is refused before anything is allocated, unless it is small."""
    write_arrays(tmp_path / "small.npz", {"x": np.zeros(SMALL_BYTES // 8, np.float32)})
    assert read_arrays(tmp_path / "small.npz")["x"].size == SMALL_BYTES // 8
    write_arrays(tmp_path / "bomb.npz", {"x": np.zeros(SMALL_BYTES // 2, np.float32)})
    with pytest.raises(UsageError, match="exceed the limit"):
        read_arrays(tmp_path / "bomb.npz")
