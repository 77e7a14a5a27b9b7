"""The search behind certificates: hill climbing with gradients and random moves from many starts, compiled once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

REACH = 1e6  # in honest spreads: far enough to tell bounded from unbounded, near enough for float64
Objective = Callable[[Array, Any], Array]

# A search runs once and for seconds: time goes into compiling, so compile fast.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


class Found(NamedTuple):
    """The worst input: point [G, K, D], its context (mask and receivers), its value []."""

    point: Float[Array, "G K D"]
    context: Any
    value: Float[Array, ""]


class _Climber(NamedTuple):
    point: Array
    value: Array
    slope: Array
    step: Array


def maximise(
    key: PRNGKeyArray,
    objective: Objective,
    points: Float[Array, "B G K D"],
    contexts: Any,
    *,
    climbers: int,
    steps: int,
) -> Found:
    """The largest objective(point, context) found from B starts; contexts is a tree of arrays with B in front.

    All starts are evaluated; half of the climbers begin at the best of them, the others at evenly spaced ranks. Each
    step proposes one of five moves in turn (up the gradient; gradient and noise; noise on one row; one row towards
    another; one row away from the middle) and takes it only if it is better. Step lengths adapt and restart when
    exhausted.
    """
    values = jax.lax.map(lambda args: objective(*args), (points, contexts), batch_size=64)
    values = jnp.where(jnp.isnan(values), -jnp.inf, values)
    order = jnp.argsort(-values)
    spaced = jnp.linspace(0, len(order) - 1, climbers - climbers // 2).astype(jnp.int32)
    chosen = order[jnp.concatenate([jnp.arange(climbers // 2), spaced])]

    def run(key: PRNGKeyArray, point: Array, context: Any) -> _Climber:
        G, K, D = point.shape
        draws = jax.random.normal(key, (steps, G, K, D), point.dtype)
        picks = jax.random.randint(jax.random.fold_in(key, 1), (steps, 2), 0, G * K)

        def slope_at(now: Array) -> tuple[Array, Array]:
            value, slope = jax.value_and_grad(objective)(now, context)
            value = jnp.where(jnp.isnan(value), -jnp.inf, value)
            return value, jnp.where(jnp.isfinite(slope), slope, 0.0)

        def step(i: Array, old: _Climber) -> _Climber:
            size = jnp.sqrt(jnp.mean(jnp.sum(jnp.square(jnp.minimum(jnp.abs(old.point), 1e3)), axis=-1)))
            norm = jnp.sqrt(jnp.max(jnp.sum(old.slope**2, axis=-1)))
            uphill = old.slope / jnp.where(norm > 0, norm, 1.0) * size
            noise = draws[i] / jnp.sqrt(1.0 * D) * size
            rows = old.point.reshape(G * K, D)
            one, other = rows[picks[i, 0]], rows[picks[i, 1]]
            only = (jnp.arange(G * K) == picks[i, 0]).reshape(G, K, 1)
            middle = jnp.mean(old.point[0], axis=0)
            moves = jnp.stack(
                [
                    uphill,
                    uphill + noise,
                    jnp.where(only, noise, 0.0),
                    jnp.where(only, (other - one) / jnp.maximum(old.step, 1.0), 0.0),
                    jnp.where(only, one - middle, 0.0),
                ]
            )
            turn = i % 5
            move = jnp.where((turn == 0) & (norm == 0), noise, moves[turn])
            proposal = old.point + jnp.where(i == 0, 0.0, old.step * move)
            near = jnp.all(jnp.abs(proposal) < REACH * 10.0)
            value, slope = slope_at(proposal)
            better = ((value > old.value) & near) | (i == 0)
            length = jnp.clip(jnp.where(better, old.step * 1.7, old.step * 0.8), 0.0, 10.0)
            length = jnp.where((length < 1e-5) | (i == 0), 0.5, length)
            point, value, slope = jax.tree.map(
                lambda new, was: jnp.where(better, new, was),
                (proposal, value, slope),
                (old.point, old.value, old.slope),
            )
            return _Climber(point, value, slope, length)

        begun = _Climber(point, jnp.asarray(-jnp.inf, point.dtype), jnp.zeros_like(point), jnp.ones((), point.dtype))
        return jax.lax.fori_loop(0, max(steps, 1), step, begun)

    context = jax.tree.map(lambda leaf: leaf[chosen], contexts)
    done = jax.vmap(run)(jax.random.split(key, climbers), points[chosen], context)
    top = jnp.argmax(done.value)
    return Found(done.point[top], jax.tree.map(lambda leaf: leaf[top], context), done.value[top])
