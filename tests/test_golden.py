"""Numbers of runs, rules and attacks agree with the recorded ones, so that no change alters them unnoticed."""

from __future__ import annotations

import json

import golden_cases
import numpy as np
import pytest

GOLDEN = json.loads(golden_cases.FILE.read_text())
# A few runs that together use every part of an iteration are checked every day; the others are slow to compile.
EVERYDAY = ("decbyzpg", "gaussian policy")


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        if isinstance(values, dict):
            assert_close(found[name], values)
        else:
            np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "name", [name if name in EVERYDAY else pytest.param(name, marks=pytest.mark.slow) for name in golden_cases.RUNS]
)
def test_runs(name):
    assert_close(golden_cases.run(name), GOLDEN["runs"][name])


CALLS = {**golden_cases.rule_calls(), **golden_cases.attack_calls()}


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN["calls"])
def test_calls(name):
    assert_close(golden_cases.summary(CALLS[name]()), GOLDEN["calls"][name])
