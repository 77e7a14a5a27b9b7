"""Definition 4 tried on one agreement rule: contraction of the honest diameter in a round, and drift of the mean."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.attacks.base import honest_mean, honest_squares
from jaxbyz.certify.configurations import agreement_inputs
from jaxbyz.certify.names import named_rule
from jaxbyz.certify.search import Found, maximise, quick_jit
from jaxbyz.rules import Receiver, Rule

UNBOUNDED_DRIFT = 1e2


class AgreementFinding(NamedTuple):
    """Per round, over the honest diameter before: contraction (diameter after), drift (movement of the honest mean)."""

    contraction: float
    drift: float
    contraction_witness: dict[str, np.ndarray]
    drift_witness: dict[str, np.ndarray]


def _answer(rule: Rule, key: PRNGKeyArray, honest: Array, told: Array, mask: Array, receiver: Array) -> Array:
    wire = jnp.where(mask[:, None], told, honest)
    return rule.apply(key, wire, Receiver(honest[receiver], receiver), rule.init(*honest.shape)).rows[0]


def _over_diameter(length_squared: Array, honest: Array, mask: Array) -> Array:
    square = jnp.max(honest_squares(honest, mask))
    size = jnp.max(jnp.where(mask[:, None], 0.0, jnp.abs(honest)))
    sound = square > (1e-7 * size) ** 2
    value = jnp.sqrt(jnp.maximum(length_squared, 1e-300) / jnp.where(sound, square, 1.0))
    return jnp.where(sound, jnp.where(jnp.isfinite(length_squared), value, jnp.inf), 0.0)


def contraction(
    rule: Rule, key: PRNGKeyArray, point: Float[Array, "3 K D"], mask: Bool[Array, " K"], pair: Int[Array, " 2"]
) -> Float[Array, ""]:
    """‖θ̂_i − θ̂_l‖ / max_{honest} ‖θ − θ'‖ after one round: point holds parameters, the lies told i, the lies told l."""
    first = _answer(rule, key, point[0], point[1], mask, pair[0])
    second = _answer(rule, key, point[0], point[2], mask, pair[1])
    return _over_diameter(jnp.sum(jnp.square(first - second)), point[0], mask)


def drift(rule: Rule, key: PRNGKeyArray, point: Float[Array, "G K D"], mask: Bool[Array, " K"]) -> Float[Array, ""]:
    """‖mean θ̂ − mean θ‖ / max_{honest} ‖θ − θ'‖ after one round; lies per receiver (G = 1+K) for a personal rule."""
    honest = point[0]
    K = honest.shape[0]
    if rule.personal:
        answers = jax.vmap(lambda told, r: _answer(rule, key, honest, told, mask, r))(point[1:], jnp.arange(K))
        moved = honest_mean(answers, mask) - honest_mean(honest, mask)
    else:
        moved = _answer(rule, key, honest, point[1], mask, jnp.argmin(mask)) - honest_mean(honest, mask)
    return _over_diameter(jnp.sum(moved * moved), honest, mask)


def certify_agreement(
    name: str, agents: int, byzantine: int, *, seed: int, starts: int, climbers: int, steps: int, dimension: int
) -> AgreementFinding:
    """Search for the worst round. The good set G of Definition 4 is all honest agents, K − f of them.

    That is the hardest choice: with fewer liars, honest agents outside G could be taken for liars that tell everyone
    the same. One round is what counts: the definition must hold for κ = 1, and what holds for every round holds for κ.
    """
    with jax.enable_x64(True):
        rule = named_rule(name, agents, byzantine)
        key = jax.random.key(seed)

        def search(key: PRNGKeyArray, points: Array, masks: Array, pairs: Array, what: str) -> Found:
            def objective(point: Array, context: Any) -> Array:
                mask, pair = context
                fixed = jax.random.fold_in(key, 1)
                return (
                    contraction(rule, fixed, point, mask, pair)
                    if what == "contraction"
                    else drift(rule, fixed, point, mask)
                )

            return maximise(key, objective, points, (masks, pairs), climbers=climbers, steps=steps)

        values, witnesses = [], []
        for what, told in (("contraction", 2), ("drift", agents if rule.personal else 1)):
            arrays = [jnp.asarray(a) for a in agreement_inputs(seed, starts, agents, byzantine, dimension, told)]
            found = quick_jit(search, static_argnums=4)(key, *arrays, what)
            values.append(float(found.value))
            mask, pair = (np.asarray(leaf) for leaf in found.context)
            point = np.asarray(found.point)
            witnesses.append({"parameters": point[0], "told": point[1:], "mask": mask, "receivers": pair})
        return AgreementFinding(values[0], values[1], witnesses[0], witnesses[1])


def replay_agreement(
    name: str, agents: int, byzantine: int, witness: dict[str, np.ndarray], what: str, seed: int = 0
) -> float:
    """The contraction or drift of one saved round."""
    with jax.enable_x64(True):
        rule = named_rule(name, agents, byzantine)
        point = jnp.concatenate([jnp.asarray(witness["parameters"])[None], jnp.asarray(witness["told"])])
        mask, key = jnp.asarray(witness["mask"]), jax.random.fold_in(jax.random.key(seed), 1)
        pair = jnp.asarray(witness["receivers"])
        if what == "contraction":
            return float(quick_jit(lambda x: contraction(rule, key, x, mask, pair))(point))
        return float(quick_jit(lambda x: drift(rule, key, x, mask))(point))
