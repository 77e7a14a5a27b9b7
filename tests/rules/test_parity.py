"""Our rules against byzfl 0.0.11: against recorded values, and against the library itself if its Python is named."""

import os
import subprocess
from itertools import combinations
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbyz.rules import Receiver, aggregators, pre_aggregators

ROOT = Path(__file__).parents[1]
# Options with which a rule equals byzfl's. Its Krum counts the n − f − 1 nearest others, which is our default.
OPTIONS = {
    "rfa": {"rounds": 3, "floor": 0.1, "start": "zero"},
    "clipping": {"radius": 2.0},
    "centered-clipping": {"radius": 1.5, "rounds": 2},
}
RECORDED = dict(np.load(ROOT / "data" / "byzfl_parity.npz"))
NAMES = sorted({key.rpartition("_")[0] for key in RECORDED} - {"", "messages"})


def ours(name: str, messages: np.ndarray, f: int) -> np.ndarray:
    """Apply the rule to each draw of `[draws, n, D]` in turn, and pass its state on."""
    entry = (aggregators if name in aggregators else pre_aggregators)[name]
    rule = entry.build(messages.shape[1], f, **OPTIONS.get(name, {}))

    @jax.jit
    def step(x, state):
        outcome = rule.apply(jax.random.key(0), x, Receiver(x[0], jnp.int32(0)), state)
        return outcome.rows, outcome.state

    state, results = rule.init(*messages.shape[1:]), []
    for x in messages:
        rows, state = step(jnp.asarray(x), state)
        assert rows.dtype == jnp.float64
        results.append(np.asarray(rows if name in pre_aggregators else rows[0]))
    return np.stack(results)


def least_diameter_subsets(x: np.ndarray, f: int) -> list[tuple[int, ...]]:
    gaps = np.linalg.norm(x[:, None] - x[None], axis=2)
    diameters = {s: gaps[np.ix_(s, s)].max() for s in combinations(range(len(x)), len(x) - f)}
    least = min(diameters.values())
    return [s for s, d in diameters.items() if d <= least * (1 + 1e-12)]


def compare(name: str, stored: dict) -> None:
    with jax.enable_x64(True):
        for n, f, _ in stored["sizes"]:
            messages, theirs = stored[f"messages_{n}"], stored[f"{name}_{n}"]
            result = ours(name, messages, int(f))
            if name == "mda":  # the minimum is often not unique; byzfl takes the first subset in order
                for x, mine, their in zip(messages, result, theirs, strict=True):
                    subsets = least_diameter_subsets(x, int(f))
                    means = [x[list(s)].mean(axis=0) for s in subsets]
                    assert any(np.allclose(mine, m, rtol=1e-10) for m in means)
                    assert len(subsets) > 1 or np.allclose(mine, their, rtol=1e-10)
            else:
                np.testing.assert_allclose(result, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_recorded(name):
    compare(name, RECORDED)


@pytest.mark.live
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_live(seed, tmp_path):
    python = os.environ.get("JAXBYZ_BYZFL_PYTHON")
    if not python:
        pytest.skip("JAXBYZ_BYZFL_PYTHON is not set")
    script = ROOT.parent / "benchmarks" / "recordings" / "record_byzfl.py"
    subprocess.run([python, script, tmp_path / "now.npz", "--seed", str(seed)], check=True)
    stored = dict(np.load(tmp_path / "now.npz"))
    for name in NAMES:
        compare(name, stored)
