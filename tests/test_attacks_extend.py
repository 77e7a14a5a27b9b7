"""The page on adding one's own rule and attack does what it says: its code blocks run, in order."""

from __future__ import annotations

import re
from pathlib import Path

from jaxbyz.attacks import attacks
from jaxbyz.environments import make_environment
from jaxbyz.rules import aggregators

PAGE = Path(__file__).parent.parent / "docs" / "extend.md"


def test_page_runs(registries_restored, capsys) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 6
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "| nearest-half |" in printed and "error does not vanish with α" in printed
    assert "| mean |" in printed and "error without bound" in printed
    assert "nearest-half" in aggregators and {"drown", "worst-of-three"} <= set(attacks.names())
    assert float(make_environment("HeavyPole").params.masspole) == 1.0

    # the two components of the page hold what it says of them
    from jaxbyz.experiments.config import resolve

    assert resolve(aggregator="nearest-half", attack="drown", byzantine=3).attack == "drown"
    error = float(names["jnp"].linalg.norm(names["rows"][-1] - names["honest_mean"](names["messages"], names["mask"])))
    assert error < 2.0, "the rule let the noise through"


def test_components_are_ten_lines_each() -> None:
    rule, _, attack, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    for block in (rule, attack):
        assert len([line for line in block.splitlines() if line.strip()]) <= 10
