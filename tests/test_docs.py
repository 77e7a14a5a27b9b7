"""Python blocks of the README run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_readme_block_runs(block, capsys):
    # The same program with short episodes: the tests check that it runs, the benchmarks that it learns.
    code = BLOCKS[block].replace("Estimator(", "Estimator(horizon=30, ").replace("iterations=20", "iterations=3")
    exec(compile(code.replace("key, 20, coins", "key, 3, coins"), f"README block {block}", "exec"), {})


def test_readme_has_the_blocks():
    assert len(BLOCKS) == 2 and "jb.decbyzpg" in BLOCKS[0]
