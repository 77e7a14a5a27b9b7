"""Runs and single calls whose numbers are recorded in `data/golden.json`.

Run `python tests/golden_cases.py` to record them again, and only after a change that is meant to change numbers; name
single calls, such as `"aggregate krum"`, to record these in addition. A component without a recording is not compared.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxbyz as jb
from jaxbyz.attacks import attacks
from jaxbyz.protocol.agreements import agreements
from jaxbyz.rules import aggregators, pre_aggregators

Call = Callable[[], jax.Array]
FILE = Path(__file__).parent / "data" / "golden.json"
COINS = (True, False, False, True, False, False)
SMALL: dict[str, Any] = {
    "env": "CartPole-v1",
    "agents": 6,
    "byzantine": 1,
    "N": 6,
    "B": 2,
    "horizon": 40,
    "hidden": (8,),
}

# name -> options that differ from SMALL, the preset among them
RUNS: dict[str, dict[str, Any]] = {
    "decbyzpg": {"attack": "large-noise"},
    "byzpg": {"algorithm": "byzpg", "attack": "avg-zero"},
    "page-pg": {"algorithm": "page-pg", "byzantine": 0},
    "dec-page-pg": {"algorithm": "dec-page-pg", "attack": "random-action"},
    "fed-page-pg": {"algorithm": "fed-page-pg", "attack": "large-noise"},
    "byz-vr-marina-pg": {"algorithm": "byz-vr-marina-pg", "aggregator": "krum", "attack": "ipm"},
    "svrpg": {"preset": "cartpole-svrpg", "attack": "reward-flip"},
    "fedpg-br": {"preset": "cartpole-fedpg-br", "attack": "fedpg-br", "batch_spread": 0, "ratio_window": None},
    "krum, gda": {"agents": 7, "aggregator": "krum", "agreement": "gda", "attack": "avg-zero"},
    "published": {"preset": "cartpole-published", "attack": "large-noise", "kappa": "2"},
    "gradient-found": {"attack": "gradient-found", "agreement": "none", "p": 1.0},
    "nnm+trimmed-mean, alie": {"aggregator": "nnm+trimmed-mean", "attack": "alie", "schedule": "rotating", "p": 1.0},
    "centered-clipping": {"aggregator": "centered-clipping", "attack": "sign-flip", "schedule": "random"},
    "reinforce, constant baseline": {
        "estimator": "reinforce", "baseline": "constant", "baseline_value": 3.0, "previous": "own", "attack": "mimic",
    },
    "per-decision, sgd, realized": {
        "weights": "per-decision", "previous": "realized", "optimizer": "sgd", "clip_norm": 5.0, "attack": "min-max",
    },
    "gaussian policy": {"env": "Pendulum-v1", "preset": "default", "attack": "random-action", "p": 1.0},
    "lunarlander": {
        "env": "LunarLander-v3", "preset": "lunarlander-best", "agents": 5, "N": 4, "B": 4, "horizon": 64,
        "hidden": (64, 64), "attack": "avg-zero", "aggregator": "rfa",
    },
}  # fmt: skip


def run(name: str) -> dict[str, Any]:
    """Train a case for a few iterations and summarise its numbers."""
    options = {**SMALL, **RUNS[name]}
    preset = options.pop("preset", "cartpole-steady")
    config = jb.resolve(preset, **options)
    coins = COINS[:2] if "LunarLander" in options["env"] else COINS
    if config.p == 1:
        coins = (True,) * len(coins)
    algorithm = jb.build(config, len(coins))
    result = jax.jit(lambda key: jb.train(algorithm, key, len(coins), jnp.array(coins)))(jax.random.key(3))
    metrics, parameters = result.metrics, result.run.state.parameters
    kept = ("returns", "worst_agent", "length", "diameter", "ess", "max_weight", "gradient_norm", "bytes_sent")
    numbers = {name: getattr(metrics, name) for name in kept}
    numbers["shares"] = metrics.shares[-1]
    return {**{name: plain(value) for name, value in numbers.items()}, "parameters": summary(parameters)}


def messages() -> jax.Array:
    """[11, 37]: honest messages around a common direction, with a few that stand out."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=37) + 0.5 * rng.normal(size=(11, 37))
    rows[9] *= -3.0
    rows[10] += 2.0
    return jnp.asarray(rows, jnp.float32)


def rule_calls() -> dict[str, Call]:
    """Return calls that apply each rule, pre-aggregator and agreement to the same messages."""
    key = jax.random.key(7)
    calls: dict[str, Call] = {}
    for name in aggregators.names():
        calls[f"aggregate {name}"] = partial(jb.aggregate, name, key, messages(), byzantine=2)
    for name in pre_aggregators.names():
        calls[f"aggregate {name}+rfa"] = partial(jb.aggregate, f"{name}+rfa", key, messages(), byzantine=2)
    for name in agreements.names():
        calls[f"agree {name}"] = partial(jb.agree, name, key, messages(), byzantine=2, rounds=2, attack="large-noise")
    return calls


def attack_calls() -> dict[str, Call]:
    """Return calls that let each attack forge the same messages."""
    key, mask = jax.random.key(7), jnp.arange(11) >= 9
    calls: dict[str, Call] = {}
    for name in attacks.names():
        for on in ("gradients", "parameters"):
            calls[f"attack {name} on {on}"] = partial(jb.attack, name, key, messages(), mask, rule="rfa", on=on)

    def damage() -> jax.Array:
        """Rounding decides which of several equally harmful messages the search ends with, but not their damage."""
        forged = jb.attack("gradient-found", key, messages(), mask, rule="rfa")[0]
        moved = jb.aggregate("rfa", key, forged, byzantine=2) - messages()[:9].mean(axis=0)
        return jnp.linalg.norm(moved)

    calls["damage of gradient-found"] = damage
    return calls


def plain(values: Any) -> list[float]:
    """Numbers for JSON, with the digits that float32 has."""
    return [float(f"{value:.8g}") for value in np.ravel(np.asarray(values, np.float64))]


def summary(values: Any) -> dict[str, Any]:
    """A few numbers that pin an array down: its norm, its sum and its first entries."""
    array = np.asarray(values, np.float64)
    return {
        "norm": plain(np.linalg.norm(array)),
        "sum": plain(array.sum()),
        "first": plain(array.ravel()[:8]),
        "last": plain(array.ravel()[-8:]),
    }


def record(names: list[str]) -> None:
    """Record all runs and all calls that were recorded before, or only the named calls."""
    golden, calls = json.loads(FILE.read_text()), {**rule_calls(), **attack_calls()}
    if not names:
        golden["runs"] = {name: run(name) for name in RUNS}
    golden["calls"] |= {name: summary(calls[name]()) for name in names or golden["calls"]}
    FILE.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    record(sys.argv[1:])
