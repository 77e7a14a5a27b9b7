"""Damage of every attack against every rule: does the gradient-found attack do at least as much as the best fixed one?

    python benchmarks/attack_damage.py            # prints the table, writes benchmarks/results/attack_damage.json
    python benchmarks/attack_damage.py krum mda   # these rules only, their rows replaced in the file
    python benchmarks/attack_damage.py --show     # prints the table of the file

Damage is the distance of the aggregate from the honest mean in honest spreads, √((1/h) Σ ‖x_i − μ‖²), averaged over
inputs (K = 13 messages of which f = 3 lie) and over a random rule's keys. Agreements: the honest diameter after one
round over the one before, every receiver told its own lies.
"""

from __future__ import annotations

import json
import platform
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.accelerate.fast_compilation import fast_compiling_jit
from jaxbyz.attacks import View, attacks, honest_mean, honest_std
from jaxbyz.certify.rule_names import AGREEMENT, every_rule, named_rule
from jaxbyz.protocol.agreements import diameter
from jaxbyz.protocol.communication import received
from jaxbyz.rules import Receiver

K, F, D, INPUTS, KEYS = 13, 3, 32, 6, 128
FOUND = "gradient-found"


def inputs(seed: int) -> tuple[jax.Array, jax.Array]:
    """[INPUTS, K, D] honest messages, half of them unevenly spread over agents and coordinates; [INPUTS, K] masks."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(INPUTS, K, D)) + 0.5 * rng.normal(size=(INPUTS, 1, D))
    x[::2] *= rng.uniform(0.2, 2.0, size=(INPUTS, 1, D))[::2]
    x[1::2] *= rng.lognormal(sigma=0.7, size=(INPUTS, K, 1))[1::2]
    masks = np.stack([np.isin(np.arange(K), rng.permutation(K)[:F]) for _ in range(INPUTS)])
    return jnp.asarray(x, jnp.float32), jnp.asarray(masks)


def damages(name: str, seed: int = 0) -> dict[str, float]:
    """attack -> damage to one rule, all attacks in one compiled program."""
    rule = named_rule(name, K, F)
    place = "parameters" if name.startswith(AGREEMENT) else "gradients"
    built = {entry.name: entry.build(K, F) for entry in attacks}
    chosen = {label: attack for label, attack in built.items() if getattr(attack, place) is not None}

    def apply(key: jax.Array, messages: jax.Array, receiver: jax.Array) -> jax.Array:
        state = rule.init(*messages.shape)
        return rule.apply(key, messages, Receiver(messages[receiver], receiver), state).rows[0]

    def on_one_input(key: jax.Array, x: jax.Array, mask: jax.Array) -> list[jax.Array]:
        key_attack, key_rule = jax.random.split(key)
        keys = jax.random.split(key_rule, KEYS if rule.random else 1)
        guess = jax.random.fold_in(key_attack, 1)
        spread = jnp.linalg.norm(honest_std(x, mask))
        first = jnp.argmin(mask)
        found = []
        for attack in chosen.values():
            memory = attack.init(K, D)
            view = View(
                x, mask, lambda m: apply(guess, m, jnp.int32(0)), memory, jnp.int32(0), trial=apply, random=rule.random
            )
            if memory != ():  # as after its warm-up
                for _ in range(12):
                    view = view._replace(memory=attack.remember(view))
            forge = getattr(attack, place)
            if place == "parameters":
                wires = jax.vmap(lambda r, f=forge, v=view: received(key_attack, v, f, r, restore_own=rule.personal))(
                    jnp.arange(K)
                )
                found.append((wires, None))
            else:
                found.append((received(key_attack, view, forge, first, restore_own=rule.personal), None))
        wires = jnp.stack([wire for wire, _ in found])
        if place == "parameters":
            rows = jax.lax.map(lambda w: jax.vmap(partial(apply, keys[0]))(w, jnp.arange(K)), wires)
            return jax.vmap(lambda now: diameter(now, mask))(rows) / diameter(x, mask)
        answers = jax.lax.map(lambda w: jax.vmap(lambda k: apply(k, w, first))(keys), wires)  # [attack, key, D]
        gaps = answers - honest_mean(x, mask)[None, None]
        return jnp.mean(jnp.linalg.norm(gaps, axis=-1), axis=1) / spread

    program = fast_compiling_jit(lambda keys, x, masks: jax.lax.map(lambda args: on_one_input(*args), (keys, x, masks)))
    x, masks = inputs(seed)
    values = np.asarray(program(jax.random.split(jax.random.key(seed), INPUTS), x, masks), np.float64)
    values = np.where(np.isnan(values), np.inf, values)  # an answer that is no number is damage without bound
    return dict(zip(chosen, values.mean(axis=0).tolist(), strict=True))


def table(results: dict[str, dict[str, float]]) -> str:
    """One line a rule: every fixed attack that counts, the best of them, and the gradient-found one."""

    def number(value: float) -> str:
        return "∞" if value == np.inf else f"{value:.3f}" if value < 1e3 else f"{value:.1e}"

    lines = ["| rule | best fixed attack | its damage | gradient-found | factor |", "| --- | --- | --: | --: | --: |"]
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
    """rule -> attack -> damage, as far as measured, in the order of the registry."""
    rows = json.loads(target.read_text())["damage"] if target.exists() else {}
    return {name: {k: float(v) for k, v in rows[name].items()} for name in every_rule() if name in rows}


def store(target: Path, results: dict[str, dict[str, float]]) -> None:
    """Write all rows with the settings they were measured under."""
    facts = {
        "agents": K, "byzantine": F, "dimension": D, "inputs": INPUTS, "keys": KEYS, "machine": platform.machine(),
        "python": platform.python_version(), "jax": jax.__version__, "device": jax.devices()[0].device_kind,
    }  # fmt: skip
    plain = {name: {k: v if np.isfinite(v) else "inf" for k, v in row.items()} for name, row in results.items()}
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps({"settings": facts, "damage": plain}, indent=1, ensure_ascii=False) + "\n")


def main(names: list[str]) -> int:
    """Measure, store after every rule, print all rows; exit code 1 if a fixed attack does more damage anywhere."""
    target = Path(__file__).parent / "results" / "attack_damage.json"
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
