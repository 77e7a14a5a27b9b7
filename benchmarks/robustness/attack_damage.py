"""Damage of every attack to every rule: does the gradient-found attack do at least as much as the best fixed one?

    python benchmarks/robustness/attack_damage.py            # writes results/attack_damage.json and prints it
    python benchmarks/robustness/attack_damage.py krum mda   # only these rules; their rows in the file are replaced
    python benchmarks/robustness/attack_damage.py --show     # prints the table from the file

Damage to an aggregator is the distance of the aggregate from the honest mean in honest spreads √((1/h) Σ ‖x_i − μ‖²).
Damage to an agreement is the honest diameter after one round divided by the diameter before. Both are averaged over
inputs (K = 13 messages, f = 3 of them Byzantine) and over the keys of a random rule.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Collection
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.accelerate.fast_compilation import fast_compiling_jit
from jaxbyz.attacks import attacks, honest_mean, honest_std
from jaxbyz.certify.rule_names import AGREEMENT, every_rule, named_rule
from jaxbyz.protocol.agreements import diameter
from jaxbyz.protocol.exchange import Adversary, omniscient_view, sent_to

K, F, D, INPUTS, KEYS = 13, 3, 32, 6, 128
WARMUP = 12  # iterations that an attack with memory has seen
FOUND = "gradient-found"


def inputs(seed: int) -> tuple[jax.Array, jax.Array]:
    """Return messages `[INPUTS, K, D]`, spread unevenly over agents or coordinates, and masks `[INPUTS, K]`."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(INPUTS, K, D)) + 0.5 * rng.normal(size=(INPUTS, 1, D))
    x[::2] *= rng.uniform(0.2, 2.0, size=(INPUTS, 1, D))[::2]
    x[1::2] *= rng.lognormal(sigma=0.7, size=(INPUTS, K, 1))[1::2]
    masks = np.stack([np.isin(np.arange(K), rng.permutation(K)[:F]) for _ in range(INPUTS)])
    return jnp.asarray(x, jnp.float32), jnp.asarray(masks)


def damages(name: str, seed: int = 0, only: Collection[str] | None = None) -> dict[str, float]:
    """Return the damage of every attack, or of some, to one rule, measured in one compiled program."""
    rule = named_rule(name, K, F)
    kind = "parameters" if name.startswith(AGREEMENT) else "gradients"
    built = {entry.name: entry.build(K, F) for entry in attacks if only is None or entry.name in only}
    chosen = {label: attack for label, attack in built.items() if getattr(attack, kind) is not None}

    def on_one_input(key: jax.Array, x: jax.Array, mask: jax.Array) -> jax.Array:
        key_attack, key_rule = jax.random.split(key)
        keys = jax.random.split(key_rule, KEYS if rule.random else 1)
        first = jnp.argmin(mask)

        def view_with(memory):
            guess = jax.random.fold_in(key_attack, 1)
            return omniscient_view(guess, rule, rule.init(K, D), x, Adversary(mask, memory=memory))

        def messages_to(attack, receivers: jax.Array) -> jax.Array:
            view = view_with(attack.init(K, D))
            if view.memory != ():
                for _ in range(WARMUP):
                    view = view._replace(memory=attack.remember(view))
            forge = getattr(attack, kind)
            return jax.vmap(lambda r: sent_to(key_attack, view, forge, r, restore_own=rule.personal))(receivers)

        apply = view_with(()).trial
        if kind == "parameters":
            sent = jnp.stack([messages_to(attack, jnp.arange(K)) for attack in chosen.values()])
            after = jax.lax.map(lambda m: jax.vmap(partial(apply, keys[0]))(m, jnp.arange(K)), sent)
            return jax.vmap(lambda parameters: diameter(parameters, mask))(after) / diameter(x, mask)
        sent = jnp.concatenate([messages_to(attack, first[None]) for attack in chosen.values()])
        aggregates = jax.lax.map(lambda m: jax.vmap(lambda key: apply(key, m, first))(keys), sent)  # [attack, key, D]
        distances = jnp.linalg.norm(aggregates - honest_mean(x, mask)[None, None], axis=-1)
        return jnp.mean(distances, axis=1) / jnp.linalg.norm(honest_std(x, mask))

    program = fast_compiling_jit(lambda keys, x, masks: jax.lax.map(lambda args: on_one_input(*args), (keys, x, masks)))
    x, masks = inputs(seed)
    values = np.asarray(program(jax.random.split(jax.random.key(seed), INPUTS), x, masks), np.float64)
    values = np.where(np.isnan(values), np.inf, values)  # a result that is not a number is damage without bound
    return dict(zip(chosen, values.mean(axis=0).tolist(), strict=True))


def table(results: dict[str, dict[str, float]]) -> str:
    """Return one line per rule: its best fixed attack, and the gradient-found attack."""

    def number(value: float) -> str:
        return "∞" if value == np.inf else f"{value:.3f}" if value < 1e3 else f"{value:.1e}"

    lines = [
        "| rule | best fixed attack | measured damage | gradient-found | factor |",
        "| --- | --- | --: | --: | --: |",
    ]
    for name, row in results.items():
        fixed = {label: value for label, value in row.items() if label != FOUND}
        best = max(fixed, key=lambda label: fixed[label])
        factor = row[FOUND] / fixed[best] if np.isfinite(fixed[best]) else 1.0
        lines.append(
            f"| {name} | {best} | {number(fixed[best])} | {number(row[FOUND])} | "
            f"{'∞' if factor == np.inf else f'{factor:.2f}'} |"
        )
    return "\n".join(lines)


def stored(target: Path) -> dict[str, dict[str, float]]:
    """Return the measured damage by rule and attack, in the order of the registry."""
    rows = json.loads(target.read_text())["damage"] if target.exists() else {}
    return {name: {k: float(v) for k, v in rows[name].items()} for name in every_rule() if name in rows}


def store(target: Path, results: dict[str, dict[str, float]]) -> None:
    """Write all rows and the settings under which they were measured."""
    settings = {
        "agents": K, "byzantine": F, "dimension": D, "inputs": INPUTS, "keys": KEYS, "machine": platform.machine(),
        "python": platform.python_version(), "jax": jax.__version__, "device": jax.devices()[0].device_kind,
    }  # fmt: skip
    plain = {name: {k: v if np.isfinite(v) else "inf" for k, v in row.items()} for name, row in results.items()}
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps({"settings": settings, "damage": plain}, indent=1, ensure_ascii=False) + "\n")


def main(names: list[str]) -> int:
    """Measure, store and print. The exit code is 1 if a fixed attack does more damage to any rule."""
    target = Path(__file__).parents[1] / "results" / "attack_damage.json"
    for name in [] if names == ["--show"] else names or every_rule():
        row = damages(name)
        print(f"{name}: worst is {max(row, key=lambda label: row[label])}", file=sys.stderr, flush=True)
        store(target, {**stored(target), name: row})
    results = stored(target)
    print(table(results))
    behind = [
        name
        for name, row in results.items()
        if row[FOUND] < max(value for label, value in row.items() if label != FOUND) * (1 - 1e-4)
    ]
    print(f"gradient-found: at least the best fixed attack's damage on {len(results) - len(behind)} of {len(results)}")
    if behind:
        print("behind on: " + ", ".join(behind))
    return 1 if behind else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
