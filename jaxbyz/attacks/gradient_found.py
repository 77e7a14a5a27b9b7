"""The gradient-found attack: lies improved by differentiating through the very rule they must deceive."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.attacks.base import (
    Attack,
    Forge,
    Place,
    View,
    honest_mean,
    honest_squares,
    honest_std,
    same_for_all,
    sent,
    tried,
)
from jaxbyz.attacks.line_search import SAMPLES, length, scales
from jaxbyz.attacks.statistical import DIRECTIONS, alie_z, furthest_by_max, furthest_by_sum, perturbation
from jaxbyz.errors import UsageError

OBJECTIVES = ("distance", "inner", "diameter")
FAR = 1e4  # how far the ascent may carry a lie, in honest spreads; starts may lie farther
JUDGES = 64  # fresh keys on which the finalists meet when the rule draws random numbers
Damage = Callable[[Float[Array, "G K D"]], Float[Array, ""]]


class Climber(NamedTuple):
    """One restart: lies [G, K, D] in honest spreads from the honest mean, their damage [], its slope, step []."""

    lies: Float[Array, "G K D"]
    value: Float[Array, ""]
    slope: Float[Array, "G K D"]
    step: Float[Array, ""]


def gradient_found(
    *,
    objective: str | None = None,
    steps: int = 30,
    restarts: int = 8,
    reach: float | None = None,
    on: Place = "both",
) -> Attack:
    """The most damaging lies that projected gradient ascent through the rule in use finds; no fixed attack does more.

    maximise damage(z) over the Byzantine rows z_b, ‖z_b − μ‖ ≤ reach·s, s² = (1/h) Σ_i ‖x_i − μ‖² the honest spread

    Damage by `objective`, with a the aggregate of what is sent:
    distance:  ‖a − μ‖ (default on gradients)
    inner:     −⟨a, μ⟩/‖μ‖
    diameter:  ‖a_i − a_j‖, the distance of two honest receivers afterwards, each told its own lies; i and j are the two
               farthest apart before, and the others are told what the nearer of the two is (default on parameters)

    Starts are all fixed attacks of this package, the whole grids of optimal IPM and ALIE, a copy of every honest
    message, and a message too far to be used. The best of each family climbs, `restarts` climbers in one batch for
    `steps` steps: along the normalised gradient, along gradient plus noise, or in or out along the ray from μ, in
    turn. A step is taken only if it does more damage, and its length adapts; so rules that select (Krum, MDA), whose
    gradient lives on the selected rows only, are searched up to the edge where the selection changes. Every start is
    a candidate for the answer, hence damage is never below that of the best start; for a rule that draws random
    numbers that holds on average, as the adversary has only keys of its own. `reach=None` leaves the starts where they
    are; against a rule without a bound, such as the mean, the answer is then as large as numbers go.

    Cost: about 80 + K + restarts·steps applications of the rule, one backward pass each in the climb.
    """
    if objective not in (None, *OBJECTIVES):
        raise UsageError(f"objective={objective!r}: one of {', '.join(OBJECTIVES)}")
    if steps < 0 or restarts < 1:
        raise UsageError(f"steps={steps}, restarts={restarts}: at least 0 and 1")
    if on not in ("gradients", "parameters", "both"):
        raise UsageError(f"on={on!r}: one of 'gradients', 'parameters', 'both'")

    def forge(goal: str) -> Forge:
        def forged(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
            return _found(key, view, receiver, goal, steps, restarts, reach)

        return forged

    gradients, parameters = objective or "distance", objective or "diameter"
    return Attack(
        gradients=forge(gradients) if on != "parameters" else None,
        parameters=forge(parameters) if on != "gradients" else None,
        equivocates="diameter" in (gradients if on != "parameters" else "", parameters if on != "gradients" else ""),
    )


def _found(
    key: PRNGKeyArray, view: View, receiver: Array, goal: str, steps: int, restarts: int, reach: float | None
) -> Float[Array, "K D"]:
    key_damage, key_climb, key_judge = jax.random.split(jax.random.fold_in(key, 1), 3)
    mean, spread = honest_mean(view.messages, view.mask), honest_spread(view)
    ends = farthest_pair(view)
    damage = damage_of(key_damage, view, goal, ends, 2 * SAMPLES)
    random = view.random and view.trial is not None
    judge = damage_of(key_judge, view, goal, ends, JUDGES) if random else None
    families = [(rows - mean[None, None]) / spread for rows in starts(key, view, huge=reach is None)]
    if goal == "diameter":  # one half is told the lie, the other its mirror image
        families = [jnp.stack([rows, -rows], axis=1) for rows in families]
    else:
        families = [rows[:, None] for rows in families]
    limit = FAR if reach is None else reach
    if reach is not None:
        families = [project(rows, reach) for rows in families]
    lies = climb(key_climb, damage, families, view.mask, steps, restarts, limit, judge)
    if goal != "diameter":
        return mean[None] + spread * lies[0]
    own = view.messages[receiver]
    gaps = jnp.sum((view.messages[ends] - own[None]) ** 2, axis=1)
    second = jnp.where(gaps[0] == gaps[1], receiver % 2 == 1, gaps[1] < gaps[0])
    return mean[None] + spread * jnp.where(second, lies[1], lies[0])


def honest_spread(view: View) -> Float[Array, ""]:
    """[] s = √((1/h) Σ ‖x_i − μ‖²) of honest messages; their mean's norm, or one, where they all agree."""
    mean = honest_mean(view.messages, view.mask)
    spread = jnp.linalg.norm(honest_std(view.messages, view.mask))
    norm = jnp.linalg.norm(mean)
    return jnp.where(spread > 0, spread, jnp.where(norm > 0, norm, 1.0))


def farthest_pair(view: View) -> Int[Array, " 2"]:
    """[2] the two honest agents farthest apart; the first honest one twice when all agree."""
    squares = honest_squares(view.messages, view.mask)
    K = squares.shape[0]
    pair = jnp.argmax(squares)
    first = jnp.argmin(view.mask)
    return jnp.where(jnp.max(squares) > 0, jnp.stack([pair // K, pair % K]), first)


def damage_of(key: PRNGKeyArray, view: View, goal: str, ends: Int[Array, " 2"], samples: int) -> Damage:
    """lies [G, K, D] (honest spreads from μ) -> damage [] in honest spreads; infinite if the answer is not finite."""
    mean, spread = honest_mean(view.messages, view.mask), honest_spread(view)
    norm = jnp.linalg.norm(mean)
    unit = mean / jnp.where(norm > 0, norm, 1.0)

    def one(key: PRNGKeyArray, lies: Array) -> Array:
        wire = jax.vmap(lambda lie: sent(view, mean[None] + spread * lie))(lies)
        if goal == "diameter":
            answers = [tried(view, wire[i], key=key, receiver=ends[i]) for i in range(2)]
            return length((answers[0] - answers[1]) / spread)
        answer = tried(view, wire[0], key=key)
        if goal == "inner":
            found = -jnp.sum(answer * unit) / spread
            return jnp.where(jnp.isfinite(found), found, jnp.inf)
        return length((answer - mean) / spread)

    if not (view.random and view.trial is not None):
        return lambda lies: one(key, lies)
    keys = jax.random.split(key, samples)
    return lambda lies: jnp.mean(jax.vmap(one, (0, None))(keys, lies))


def starts(key: PRNGKeyArray, view: View, *, huge: bool) -> list[Float[Array, "C K D"]]:
    """Families of lies [C, K, D] to begin with, between them every fixed attack on messages."""
    x, mask = view.messages, view.mask
    mean, std = honest_mean(x, mask), honest_std(x, mask)
    grid = scales(0.01, 100.0, 24).astype(x.dtype)

    def alike(rows: Array) -> Array:
        return jnp.broadcast_to(rows[:, None], (rows.shape[0], *x.shape))

    ways = jnp.stack([perturbation(view, direction) for direction in DIRECTIONS])
    by_max, by_sum = jax.vmap(lambda p: (furthest_by_max(view, p), furthest_by_sum(view, p)))(ways)
    furthest = jnp.concatenate([by_max, by_sum])
    z, f = alie_z(view), jnp.maximum(jnp.sum(mask), 1)
    honest_total = jnp.sum(jnp.where(mask[:, None], 0.0, x), axis=0)
    known = [-mean, -0.5 * mean, mean - z * std, mean + z * std, -honest_total / f, jnp.zeros_like(mean)]
    noisy = noises(key, view)
    if huge:  # finite, yet beyond what any rule may use: a wasted vote, the end of a mean
        noisy = jnp.concatenate([noisy, jnp.full((1, *x.shape), jnp.finfo(x.dtype).max ** 0.75, x.dtype)])
    return [
        alike(-grid[:, None] * mean[None]),
        alike(mean[None] - grid[:, None] * std[None]),
        alike(mean[None] + grid[:, None] * std[None]),
        alike(jnp.concatenate([furthest, 2.0 * mean[None] - furthest])),
        jnp.concatenate([-x[None], alike(jnp.stack(known))]),
        noisy,
        alike(jnp.where(mask[:, None], mean[None], x)),
    ]


def noises(key: PRNGKeyArray, view: View) -> Float[Array, "C K D"]:
    """[C, K, D] Gaussian at three scales and FedPG-BR's two, all from one draw: random numbers are slow to compile."""
    x, mask = view.messages, view.mask
    normal = jax.random.normal(key, x.shape, x.dtype)
    apart = 1.5 * jnp.sqrt(jnp.max(honest_squares(x, ~mask)))
    collusion = honest_mean(x, ~mask) + apart * normal[0] / jnp.linalg.norm(normal[0])
    extent = jnp.max(x, axis=1, keepdims=True) - jnp.min(x, axis=1, keepdims=True)
    uniform = jax.lax.erf(normal / jnp.sqrt(2.0).astype(x.dtype))  # in (−1, 1)
    return jnp.stack(
        [100.0 * normal, 200.0 * normal, 1000.0 * normal, same_for_all(collusion, view), x + 3.0 * extent * uniform]
    )


def project(lies: Float[Array, "... D"], reach: float) -> Float[Array, "... D"]:
    """Every row back into the ball of radius `reach` about the honest mean, which is the origin here."""
    norms = jax.vmap(length)(lies.reshape(-1, lies.shape[-1])).reshape(*lies.shape[:-1], 1)
    return jnp.where(norms > reach, lies * (reach / jnp.maximum(norms, reach)), lies)


def climb(
    key: PRNGKeyArray,
    damage: Damage,
    families: list[Float[Array, "C G K D"]],
    mask: Bool[Array, " K"],
    steps: int,
    restarts: int,
    limit: float,
    judge: Damage | None = None,
) -> Float[Array, "G K D"]:
    """[G, K, D] the most damaging lies found from the best start of each family, never below the best of all starts.

    With a judge, climbers and starts are compared by it in the end: damage averaged over a few draws of a random rule
    is easily raised by luck.
    """
    pool = jnp.concatenate(families)
    values = jax.vmap(damage)(pool)
    begin, best = 0, []
    for family in families:
        best.append(begin + jnp.argmax(values[begin : begin + family.shape[0]]))
        begin += family.shape[0]
    winners = jnp.stack(best)
    # the overall best comes first and again whenever there are more climbers than families
    ranked = winners[jnp.argsort(-values[winners])]
    chosen = jnp.where(jnp.arange(restarts) < len(best), ranked[jnp.arange(restarts) % len(best)], ranked[0])
    if steps == 0:
        return pool[chosen[0]]

    liar = mask[None, :, None]

    def slope(lies: Array) -> tuple[Array, Array]:
        value, gradient = jax.value_and_grad(damage)(lies)
        return value, jnp.where(liar & jnp.isfinite(gradient), gradient, 0.0)

    def step(i: Array, old: Climber, draws: Array) -> Climber:
        K = old.lies.shape[1]
        row, by_sender = draws[i, :, None, K:], draws[i, :, :K, None]
        noise = row / jnp.sqrt(1.0 * row.shape[-1]) * (1.0 + 0.5 * by_sender)
        norm = jnp.sqrt(jnp.sum(old.slope**2) / jnp.maximum(jnp.sum(mask), 1))
        uphill = old.slope / jnp.where(norm > 0, norm, 1.0)
        turn = i % 4
        straight = uphill + jnp.where((turn == 1) | (norm == 0), noise, 0.0)
        ray = jnp.where(turn == 2, 1.0, -0.5) * old.lies
        move = jnp.where(liar & (i > 0), jnp.where(turn < 2, straight, ray), 0.0)  # step 0 finds the slope at the start
        proposal = old.lies + old.step * move
        proposal = jnp.where((i > 0) & jnp.isfinite(proposal), project(proposal, limit), old.lies)
        value, gradient = slope(proposal)
        better = (value > old.value) | (i == 0)
        longer = jnp.where(better, old.step * 1.5, old.step * 0.7)
        lies, value, gradient = jax.tree.map(
            lambda new, was: jnp.where(better, new, was),
            (proposal, value, gradient),
            (old.lies, old.value, old.slope),
        )
        return Climber(lies, value, gradient, jnp.where((longer < 1e-3) | (i == 0), 1.0, longer))

    def run(draws: Array, lies: Array, value: Array) -> Climber:
        begun = Climber(lies, value, jnp.zeros_like(lies), jnp.ones_like(value))
        return jax.lax.fori_loop(0, steps, lambda i, now: step(i, now, draws), begun)

    G, K, D = pool.shape[1:]
    draws = jax.random.normal(key, (restarts, steps, G, K + D), pool.dtype)
    done = jax.vmap(run)(draws, pool[chosen], values[chosen])
    if judge is not None:
        finalists = jnp.concatenate([done.lies, pool[winners]])
        return finalists[jnp.argmax(jax.lax.map(judge, finalists))]
    top = jnp.argmax(done.value)
    # the start itself where nothing was gained: its numbers are then exactly the fixed attack's
    return jnp.where(done.value[top] > values[chosen[0]], done.lies[top], pool[chosen[0]])
