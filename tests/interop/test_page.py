"""The programs of docs/aggregation.md that need other packages print what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxbyz as jb

PAGE = Path(__file__).parents[2] / "docs" / "aggregation.md"


def program(title: str) -> str:
    (code,) = re.findall(rf'^```python title="{title}"\n(.*?)^```', PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(code.splitlines()) <= 40
    return code


def printed(code: str, folder: Path) -> dict[str, float]:
    """Run a program; return the number at the end of every printed line by the words before it."""
    (folder / "program.py").write_text(code)
    done = subprocess.run([sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return {line.rsplit(None, 1)[0]: float(line.split()[-1]) for line in done.stdout.splitlines()}


@pytest.mark.slow
def test_a_rule_in_shard_map_holds_where_the_mean_fails(tmp_path):
    error = printed(program("eight devices"), tmp_path)
    assert error["mean"] > 10.0 and error["rfa"] < 0.05


@pytest.mark.live
def test_a_rule_in_flower_holds_where_fedavg_fails(tmp_path):
    pytest.importorskip("ray")
    distance = printed(program("needs Flower"), tmp_path)
    assert distance["distance from the truth: FedAvg"] > 50.0
    assert distance["distance from the truth: RobustStrategy"] < 0.1


@pytest.mark.live
def test_networks_of_torch_are_aggregated():
    pytest.importorskip("torch")
    import jax

    names = {"jax": jax, "jb": jb, "key": jax.random.key(0)}
    exec(program("needs torch"), names)
    assert float(names["networks"][0].weight.detach().abs().max()) < 1.0
