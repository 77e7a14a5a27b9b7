"""The search behind certificates: the best of many starting inputs, improved by `jaxbyz.attacks.ascent`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.attacks.ascent import Climber, Objective, StepLength, ascend
from jaxbyz.errors import UsageError

LARGEST_ENTRY = 1e7  # far enough to tell bounded from unbounded errors, near enough for float64
STEP_LENGTH = StepLength(first=0.5, grow=1.7, shrink=0.8, least=1e-5, most=10.0)


@dataclass(frozen=True)
class Budget:
    """How hard to search.

    Attributes:
        starts: the number of starting inputs that are evaluated.
        climbers: the number of searches that continue from some of them.
        steps: the number of steps of each climber.
        dimension: the length D of the messages; by default the number of agents.
    """

    starts: int = 768
    climbers: int = 32
    steps: int = 200
    dimension: int | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and value < 1:
                raise UsageError(f"{name}={value}: must be at least 1")
        if self.climbers > self.starts:
            raise UsageError(f"climbers={self.climbers} exceeds starts={self.starts}")

    def dimension_for(self, agents: int) -> int:
        """Return the length of the messages for this number of agents."""
        return agents if self.dimension is None else self.dimension


class WorstInput(NamedTuple):
    """The input with the largest value that was found.

    Attributes:
        point: `[G, K, D]`, G groups of messages.
        context: what else belongs to the input (the mask, and the receivers).
        value: `[]`.
    """

    point: Float[Array, "G K D"]
    context: Any
    value: Float[Array, ""]


def find_worst_input(
    key: PRNGKeyArray, objective: Objective, points: Float[Array, "B G K D"], contexts: Any, budget: Budget
) -> WorstInput:
    """Return the input with the largest objective that the search finds.

    All starts are evaluated. Half of the climbers begin at the best of them, the others at evenly spaced ranks.

    Args:
        key: random key of the search.
        objective: `(point, context) -> value`.
        points: `[B, G, K, D]`, the starting inputs.
        contexts: tree of arrays `[B, ...]`, what else belongs to each starting input.
        budget: the number of climbers and their steps.
    """
    values = jax.lax.map(lambda start: objective(*start), (points, contexts), batch_size=64)
    order = jnp.argsort(-jnp.where(jnp.isnan(values), -jnp.inf, values))
    half = budget.climbers // 2
    spaced = jnp.linspace(0, len(order) - 1, budget.climbers - half).astype(jnp.int32)
    chosen = order[jnp.concatenate([jnp.arange(half), spaced])]
    _, G, K, D = points.shape

    def draws(key: PRNGKeyArray) -> tuple[Array, Array]:
        normal = jax.random.normal(key, (budget.steps, G, K, D), points.dtype)
        return normal, jax.random.randint(jax.random.fold_in(key, 1), (budget.steps, 2), 0, G * K)

    context = jax.tree.map(lambda leaf: leaf[chosen], contexts)
    random_draws = jax.vmap(draws)(jax.random.split(key, budget.climbers))
    found = ascend(objective, propose, points[chosen], random_draws, context, STEP_LENGTH)
    top = jnp.argmax(found.value)
    return WorstInput(found.point[top], jax.tree.map(lambda leaf: leaf[top], context), found.value[top])


def propose(i: Array, now: Climber, draws: tuple[Float[Array, "G K D"], Array]) -> Float[Array, "G K D"]:
    """Propose, in turn: gradient; gradient plus noise; noise on one row; one row towards another; one row outwards."""
    normal, (moved, attracting) = draws
    G, K, D = now.point.shape
    size = jnp.sqrt(jnp.mean(jnp.sum(jnp.square(jnp.minimum(jnp.abs(now.point), 1e3)), axis=-1)))
    slope_norm = jnp.sqrt(jnp.max(jnp.sum(now.slope**2, axis=-1)))
    uphill = now.slope / jnp.where(slope_norm > 0, slope_norm, 1.0) * size
    noise = normal / jnp.sqrt(1.0 * D) * size
    rows = now.point.reshape(G * K, D)
    one, other = rows[moved], rows[attracting]
    only_moved = (jnp.arange(G * K) == moved).reshape(G, K, 1)
    centre = jnp.mean(now.point[0], axis=0)
    moves = jnp.stack(
        [
            uphill,
            uphill + noise,
            jnp.where(only_moved, noise, 0.0),
            jnp.where(only_moved, (other - one) / jnp.maximum(now.step, 1.0), 0.0),
            jnp.where(only_moved, one - centre, 0.0),
        ]
    )
    turn = i % 5
    proposal = now.point + now.step * jnp.where((turn == 0) & (slope_norm == 0), noise, moves[turn])
    return jnp.where(jnp.all(jnp.abs(proposal) < LARGEST_ENTRY), proposal, now.point)
