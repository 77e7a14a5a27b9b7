"""Several estimates from one batch: the policy moves, and clipped ratios keep it near the one that drew the episodes.

With r_t(θ') = π(a_t | s_t; θ') / π(a_t | s_t; θ) for episodes drawn at θ, the estimate at θ' is the gradient of

    (1/M) Σ_i Σ_t min(r_t q_t, clip(r_t, 1 − ε, 1 + ε) q_t)

(Schulman et al. 2017). At θ' = θ it equals the plain estimate (1/M) Σ_i Σ_t q_t ∇ log π.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxbyz.errors import UsageError
from jaxbyz.options import COUNT, POSITIVE, Need, option
from jaxbyz.policies import Policy
from jaxbyz.sampling.differentiation import gradient_over_steps
from jaxbyz.sampling.estimators import LARGEST_LOG_WEIGHT, entropy_bonus
from jaxbyz.sampling.rollout import Episodes

SEVERAL_USES = Need(lambda config, _: config.uses > 1, "every batch is used once (--epochs)")
SEVERAL_PARTS = Need(lambda config, _: config.minibatches > 1, "a batch has one part (--minibatches)")


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """How often a batch is used.

    Attributes:
        epochs: how often an iteration uses its batch. Every use estimates, sends, aggregates and agrees anew.
        minibatches: the parts of a batch that are used one after the other in every epoch, one message for each.
        minibatch_of: what the parts consist of. `"episodes"`: whole episodes. `"steps"`: single steps, which are dealt
            out in turn, so that parts may be smaller than an episode (`deal`).
        local_eta: if given, every agent uses its batch for local steps of this size along its own clipped estimates
            instead, and sends one message: their mean (`local_estimate`).
        ratio_clip: the distance of probability ratios from 1 beyond which they have no influence.
    """

    epochs: int = option(1, "uses of every batch, with clipped ratios and one message each", allowed=COUNT)
    minibatches: int = option(1, "parts of a batch, with one message each in every epoch", allowed=COUNT)
    minibatch_of: str = option(
        "episodes", "parts of a batch are whole episodes, or single steps that are dealt out in turn",
        choices=("episodes", "steps"), needs=[SEVERAL_PARTS],
    )  # fmt: skip
    local_eta: float | None = option(
        None, "use every batch for local steps of this size with clipped ratios, and send one message, their mean",
        allowed=POSITIVE, needs=[SEVERAL_USES],
    )  # fmt: skip
    ratio_clip: float = option(
        0.2, "distance from 1 at which ratios are clipped", allowed=POSITIVE, needs=[SEVERAL_USES]
    )

    @property
    def uses(self) -> int:
        """The number of estimates that an agent makes of a batch."""
        return self.epochs * self.minibatches

    @property
    def deals_steps(self) -> bool:
        """Whether the parts of a batch consist of single steps."""
        return self.minibatch_of == "steps" and self.minibatches > 1

    @property
    def messages(self) -> int:
        """The number of estimates that an agent sends per iteration."""
        return self.uses if self.local_eta is None else 1


class Batch(NamedTuple):
    """What is kept of a batch, with the agents first, so that agents of several runs can be put side by side.

    Attributes:
        observations: `[A, n, O, C, M]`.
        actions: `[A, n, C, M]` if discrete, `[A, n, a, C, M]` if continuous.
        log_probs: log-probabilities under the policy that drew the actions.
        q: the coefficients of the estimator.
        bonus: the coefficients of the entropy.
        alive: True at steps that were taken.
        chunks: the number of chunks that contain a step of this agent.
    """

    observations: Float[Array, "A n O C M"]
    actions: Array
    log_probs: Float[Array, "A n C M"]
    q: Float[Array, "A n C M"]
    bonus: Float[Array, "A n C M"] | None
    alive: Bool[Array, "A n C M"]
    chunks: Int[Array, " A"]


def keep(episodes: Episodes, q: Float[Array, "n A C M"], bonus: Float[Array, "n A C M"] | None = None) -> Batch:
    """Return what later estimates need of a batch and its coefficients."""
    steps = (episodes.observations, episodes.actions, episodes.log_probs, q, bonus, episodes.alive)
    chunks = jnp.broadcast_to(episodes.chunks, episodes.alive.shape[1:2])
    return Batch._make([*_agents_first(steps), chunks])


def minibatch(batch: Batch, index: Int[Array, ""], count: int) -> Batch:
    """Return the lanes of minibatch number `index` mod `count`: M/count consecutive ones."""
    size = batch.alive.shape[-1] // count

    def part(x: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(x, (index % count) * size, size, axis=-1)

    return batch if count == 1 else Batch._make([*jax.tree.map(part, batch[:-1]), batch.chunks])


def deal(batch: Batch, parts: int) -> Batch:
    """Deal out the steps that each agent took to so many minibatches in turn.

    Step number r of an agent, counted through one episode after the other, becomes step number ⌊r/parts⌋ of minibatch
    r mod parts. So every minibatch has steps of all times of every episode, and their numbers differ by at most one.
    Coefficients are multiplied by `parts`: without clipping, the mean of the minibatches' estimates is that of the
    batch.

    Args:
        batch: M episodes per agent.
        parts: the number of minibatches.

    Returns:
        A batch for `minibatch`, in which each minibatch has M lanes of its own.
    """
    _, n, C, M = batch.alive.shape
    rows = -(-n // parts)
    numbers = jnp.arange(rows * M * C * parts, dtype=jnp.int32).reshape(rows, M, C, parts)
    numbers = numbers.transpose(0, 2, 3, 1).reshape(rows, C, parts * M)

    def by_episode(x: Array) -> Array:
        """`[n, …, C, M]` to `[M·n·C, …]`."""
        return jnp.moveaxis(x, (-1, 0, -2), (0, 1, 2)).reshape(M * n * C, *x.shape[1:-2])

    def of_agent(*steps: Array | None) -> list[Array | None]:
        alive = by_episode(jnp.asarray(steps[-1]))
        taken = jnp.sort(jnp.where(alive, jnp.arange(alive.size, dtype=jnp.int32), alive.size))
        places = taken.at[numbers].get(mode="fill", fill_value=alive.size)  # no step if there are too few

        def dealt(x: Array) -> Array:
            return jnp.moveaxis(by_episode(x).at[places].get(mode="fill", fill_value=0), (1, 2), (-2, -1))

        return jax.tree.map(dealt, list(steps))

    weighted = batch._replace(q=parts * batch.q, bonus=None if batch.bonus is None else parts * batch.bonus)
    count = jnp.sum(batch.alive, axis=(1, 2, 3), dtype=jnp.int32)
    return Batch._make([*jax.vmap(of_agent)(*weighted[:-1]), -(-count // (parts * C * M))])


def check_minibatches(reuse: Reuse, policy: Policy) -> None:
    """Refuse to deal out the steps of a policy with a memory, whose gradient needs whole episodes."""
    if reuse.deals_steps and policy.recurrence is not None:
        raise UsageError("minibatch_of=steps: a policy with a memory needs whole episodes; use minibatch_of=episodes")


def _agents_first(steps: Any) -> Any:
    """Swap the first two axes of all arrays: `[n, A, …]` to `[A, n, …]`, or back."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps)


def clipped_estimate(policy: Policy, parameters: Float[Array, "A D"], batch: Batch, clip: float) -> Float[Array, "A D"]:
    """Compute the gradient of the clipped objective for each agent.

    Args:
        policy: the policy π.
        parameters: `[A, D]`, the parameters θ' of each agent.
        batch: episodes that were drawn at other parameters, and their coefficients.
        clip: the distance ε of ratios from 1 beyond which they have no influence.
    """

    def objective(distribution: Array, steps: tuple[Array, Array, Array, Array | None]) -> Array:
        actions, behaviour, q, bonus = steps
        log_ratio = policy.log_prob(distribution, actions) - behaviour
        ratio = jnp.exp(jnp.minimum(log_ratio, LARGEST_LOG_WEIGHT))
        clipped = jnp.minimum(ratio * q, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * q)
        return jnp.sum(clipped) + entropy_bonus(policy, distribution, bonus)

    *steps, alive = _agents_first(batch[:-1])
    return gradient_over_steps(objective, policy, parameters, tuple(steps), alive, jnp.max(batch.chunks))


def local_estimate(policy: Policy, parameters: Float[Array, "A D"], batch: Batch, reuse: Reuse) -> Float[Array, "A D"]:
    """Return the mean of the clipped estimates along a path of local steps, for each agent.

    θ_0 = θ and θ_{i+1} = θ_i + η g_i, where g_i is the clipped estimate at θ_i from minibatch i; the result is
    (1/m) Σ_i g_i = (θ_m − θ_0)/(mη) with m = epochs · minibatches. Plain ascent with step size mη along the mean of
    these vectors over the agents is federated averaging of their local parameters.

    Args:
        policy: the policy π.
        parameters: `[A, D]`, the parameters θ at which the episodes were drawn.
        batch: the episodes and their coefficients.
        reuse: the number of steps m and their size η = `local_eta`.
    """
    assert reuse.local_eta is not None
    eta = reuse.local_eta

    def step(i: Array, path: tuple[Array, Array]) -> tuple[Array, Array]:
        theta, total = path
        gradient = clipped_estimate(policy, theta, minibatch(batch, i, reuse.minibatches), reuse.ratio_clip)
        return theta + eta * gradient, total + gradient

    return jax.lax.fori_loop(0, reuse.uses, step, (parameters, jnp.zeros_like(parameters)))[1] / reuse.uses
