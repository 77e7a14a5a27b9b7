"""The search for sequences of messages: how much of the progress of many batches can liars take from a rule?

A rule without memory can be misled in every batch as much as in the first one. A rule with memory is misled less once
it knows the senders, so its error has to be summed over batches, and liars who know this plan all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.attacks.ascent import Climber, Objective, StepLength, ascend
from jaxbyz.attacks.honest_statistics import unit
from jaxbyz.certify.worst_input import Budget
from jaxbyz.components import make_rule
from jaxbyz.errors import UsageError, check_value
from jaxbyz.rules import Receiver, Rule

DIRECTIONS = 3  # against the mean, against the past, own deviation
DRAWS = 16  # of the honest noise, which the search averages; as many new ones judge the result
LARGEST = 100.0  # coefficient
PLANS = Budget(starts=32, climbers=8, steps=60, dimension=64)
STEP_LENGTH = StepLength(first=0.3, least=1e-3, most=3.0)


class LostProgress(NamedTuple):
    """What the worst sequence that was found takes from a rule.

    Attributes:
        rule: its name.
        lost: the mean of the lost part of the progress over new draws: 0 is that of the honest mean, 1 means that
            nothing is left, and more that the rule goes backwards.
        error: the standard error of `lost`.
        plan: `[batches, f, 3]`, what the liars send.
    """

    rule: str
    lost: float
    error: float
    plan: np.ndarray


def lost_progress(
    rules: Sequence[str],
    *,
    agents: int = 13,
    byzantine: int = 3,
    batches: int = 40,
    signal: float = 0.3,
    seed: int = 0,
    budget: Budget = PLANS,
) -> list[LostProgress]:
    """Search, for every rule, for the sequence of messages that takes most of the progress of many batches.

    In every batch each honest agent sends `s·e + z`: the same unit vector e, and fresh Gaussian noise of length 1 on
    average. The progress of a rule is the sum over batches of ⟨its result, e⟩. In batch t, liar j sends

        L·(c₁·(−unit(μ_t)) + c₂·(−unit(μ_1 + … + μ_{t−1})) + c₃·unit(x_j − μ_t)),

    where μ_t is the honest mean, L the median honest length, and x_j what it would send if it were honest. The search
    is for the numbers c, one triple per batch and liar, that maximise the mean of the lost progress. They are chosen
    before the noise is drawn, as by liars who cannot foresee it, and the result is measured with new noise.

    Args:
        rules: names of aggregators, such as "rfa" and "memory+rfa".
        agents: the number of agents K.
        byzantine: the number of liars f, which the rules assume too.
        batches: the number of batches.
        signal: s, the length of the gradient in lengths of the noise.
        seed: seed of the noise and of the search.
        budget: the number of starting plans, of climbers and of their steps, and the length of the messages.
    """
    check_value("batches", batches, batches >= 1, "at least 1")
    check_value("signal", signal, signal > 0, "positive")
    if not 0 < byzantine < agents - 1:
        raise UsageError(f"byzantine={byzantine} of agents={agents}: must be at least 1 and leave two honest agents")
    key, *keys = jax.random.split(jax.random.key(seed), 3)
    shape = (DRAWS, batches, agents, budget.dimension_for(agents))
    searched, judged = (jax.random.normal(one, shape) / shape[-1] ** 0.5 for one in keys)

    def against(name: str) -> LostProgress:
        rule = make_rule(name, agents, byzantine)

        def lost(plan: Array, draws: Array) -> Array:
            return jax.vmap(lambda noise: _lost(rule, plan, noise, byzantine, signal))(draws)

        plan = _worst_plan(key, lambda plan, _: jnp.mean(lost(plan, searched)), batches, byzantine, budget)
        found = np.asarray(jax.jit(lost)(plan, judged))
        return LostProgress(name, float(found.mean()), float(found.std(ddof=1) / DRAWS**0.5), np.asarray(plan))

    return [against(name) for name in rules]


def _lost(rule: Rule, plan: Float[Array, "T f 3"], noise: Float[Array, "T K D"], f: int, signal: float) -> Array:
    """Return the lost part of the progress under a plan and one draw of the noise."""
    _, K, D = noise.shape

    def batch(carry: tuple[Array, Array], inputs: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], Array]:
        (state, past), (t, z, c) = carry, inputs
        own = z.at[:, 0].add(signal)
        honest = own[: K - f]
        mean = jnp.mean(honest, axis=0)
        deviations = jax.vmap(unit)(own[K - f :] - mean[None])
        length = jnp.median(jnp.linalg.norm(honest, axis=1))
        lies = length * (-c[:, :1] * unit(mean)[None] - c[:, 1:2] * unit(past)[None] + c[:, 2:] * deviations)
        messages = jnp.concatenate([honest, lies])
        receiver = Receiver(messages[0], jnp.int32(0), begins=True)
        outcome = rule.apply(jax.random.fold_in(jax.random.key(0), t), messages, receiver, state)
        return (outcome.state, past + mean), mean[0] - outcome.rows[0, 0]

    inputs = jnp.arange(len(plan)), noise, plan
    _, differences = jax.lax.scan(batch, (rule.init(K, D), jnp.zeros(D)), inputs)
    return jnp.mean(differences) / signal


def _worst_plan(key: PRNGKeyArray, objective: Objective, T: int, f: int, budget: Budget) -> Float[Array, "T f 3"]:
    """Return the plan with the largest objective that the search finds."""
    starts = _starting_plans(key, T, f, budget.starts)
    values = jax.jit(lambda plans: jax.lax.map(lambda plan: objective(plan, ()), plans))(starts)
    chosen = starts[jnp.argsort(-values)[: budget.climbers]]

    def propose(i: Array, now: Climber, draw: tuple[Array, Array]) -> Array:
        normal, since = draw
        length = jnp.sqrt(jnp.mean(now.slope**2))
        uphill = now.slope / jnp.where(length > 0, length, 1.0)
        later = jnp.broadcast_to((jnp.arange(T) >= since)[:, None, None], (T, f, DIRECTIONS))
        move = jnp.stack([uphill, uphill + normal, jnp.where(later, jnp.repeat(normal[:1], T, axis=0), 0.0)])[i % 3]
        return jnp.clip(now.point + now.step * move, -LARGEST, LARGEST)

    def draws(key: PRNGKeyArray) -> tuple[Array, Array]:
        normal = jax.random.normal(key, (budget.steps, T, f, DIRECTIONS))
        return normal, jax.random.randint(jax.random.fold_in(key, 1), (budget.steps,), 0, T)

    random_draws = jax.vmap(draws)(jax.random.split(key, len(chosen)))
    climb = jax.jit(lambda points, draws: ascend(objective, propose, points, draws, (), STEP_LENGTH))
    found = climb(chosen, random_draws)
    return found.point[jnp.argmax(found.value)]


def _starting_plans(key: PRNGKeyArray, T: int, f: int, count: int) -> Float[Array, "B T f 3"]:
    """Return plans that attackers use, and random ones: a push, alone or scattered, against the mean or the past; at
    once, after good conduct, in turns, or by one liar after another; short and long.
    """
    pushes = jnp.array([[1.0, 0, 0], [0.7, 0, 0.7], [0, 1, 0], [0, 0.7, 0.7], [0.3, 0, 0], [10, 0, 0], [0, 0, 0]])
    t, j = jnp.arange(T)[:, None], jnp.arange(f)[None]
    when = [t >= 0, t >= T // 2, (t // 5) % 2 == 0, t % f == j]
    good = jnp.array([-1.0, 0, 0])

    def plan(push: Array, now: Array) -> Array:
        return jnp.where(jnp.broadcast_to(now, (T, f))[..., None], push[None, None], good[None, None])

    plans = [plan(push, now) for push in pushes for now in when]
    random = jax.random.normal(key, (max(0, count - len(plans)), 1, f, DIRECTIONS))
    return jnp.concatenate([jnp.stack(plans), jnp.repeat(random, T, axis=1)])[:count]
