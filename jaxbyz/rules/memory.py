"""Memory of senders: weights from all that they have sent, and exclusion of those whom later batches refute."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.accelerate.kernels import median_of_pairs, one_matrix_kernel
from jaxbyz.accelerate.sorting_networks import sum_of_ranks
from jaxbyz.accelerate.weighted_sums import mix
from jaxbyz.errors import UsageError, check_value
from jaxbyz.rules.base import (
    Outcome,
    Receiver,
    Rule,
    RuleState,
    normalised,
    root,
    shortening,
    squared_norms,
    usable_squares,
)
from jaxbyz.rules.coordinatewise import finite_median
from jaxbyz.rules.selection import comparable, ranks

FIRST_EXCLUSION = 4.0  # batches; every strike doubles it
MOST_STRIKES = 5.0
FORGIVEN = 0.01  # the part of its strikes that a sender is forgiven with every batch
ALLOWANCE = 0.5  # standard deviations by which a sender may be below its peers without losing trust
LARGEST_SCORE = 3.0  # standard deviations
USUAL_COSINE = 0.2  # the least standard deviation of honest cosines in one batch that is assumed
ALIKE, SURE = 3.5, 5.0  # standard deviations above the usual cosine at which two senders begin to be, and are, alike
LEAST_DEVIATION = 0.1  # of a coordinate, relative to the mean over all coordinates


class SenderMemory(NamedTuple):
    """What a receiver remembers of n senders.

    Attributes:
        past: `[n, D]`, the discounted sum of what each sender sent in earlier batches.
        batch: `[n, D]`, the sum of what each sender has sent in this batch.
        trust: `[n]`, 1 at first; a sender whose trust falls to 0 is excluded.
        strikes: `[n]`, how often a sender was excluded, old exclusions counting less.
        remaining: `[n]`, the least number of batches for which a sender stays excluded.
        excluded: `[n]`, which senders do not count.
        spread: `[2]`, the discounted sum of the standard deviations of earlier scores, and the discounted number of
            finished batches.
        likeness: `[n, n]`, the discounted sum of the cosines between what two senders sent in the same batch.
        noise: `[D]`, the discounted sum of how far senders are apart in every coordinate when a batch begins.
        inner: the state of the rule that gives the weights.
    """

    past: Float[Array, "n D"]
    batch: Float[Array, "n D"]
    trust: Float[Array, " n"]
    strikes: Float[Array, " n"]
    remaining: Float[Array, " n"]
    excluded: Bool[Array, " n"]
    spread: Float[Array, " 2"]
    likeness: Float[Array, "n n"]
    noise: Float[Array, " D"]
    inner: RuleState


def memory(byzantine: int = 0, *, window: float = 20.0, false_alarms: float = 0.005) -> Callable[[Rule], Rule]:
    """Let the rule behind it weigh senders by all that they have sent, and exclude those whom later batches refute.

    **Scaled coordinates.** Noise often lies in a few directions, which hide the others from every inner product.
    Each coordinate is therefore divided by the discounted mean distance of the senders from their median in that
    coordinate, without the f largest distances in each batch. All cosines below, and the rule, see scaled messages.

    **Weights.** The noise of an honest sender averages out over batches, and a push does not. The rule is therefore
    applied to the discounted sums `H_j = β·past_j + batch_j`, where batches count alike (each is divided by the length
    of its (f+1)-th longest sum) and β = 1 − 1/window. Its shares are multiplied by twice the trust, if that is below 1,
    and by the votes v_j, of which senders that send the same have few or none (`votes_of_groups`); they are bounded by
    v_j divided by the sum of the n − f largest votes (`capped`). They weigh the *present* messages, so that the result
    is as fresh as that of the rule alone. The f longest messages are shortened to the next one, which may be honest.

    **Trust.** What a sender sent in earlier batches cannot depend on the noise of a new batch. When one begins, every
    sender j gets a score, `cos(x_k, batch_j) + cos(x_k, past_j)`, where each cosine is the mean over the new messages
    x_k of the others without the f lowest and the f highest. z_j is its distance from the median score in robust
    standard deviations (the larger one of this and of earlier batches), and trust changes by (z_j + 1/2)/h. At 0 the
    sender is excluded, for 4 batches and twice as long after every strike, and until its trust is 1/2 again.
    At most f are excluded at once.

    The sum of z_j + 1/2 is Page's cumulative test, so that h follows from the part of the batches in which an honest
    sender may be excluded (Siegmund's approximation). Whoever harms has a negative ⟨∇J, x_j⟩, which lowers its score in
    proportion. Cost 4·n·D + n²·D per message.

    Args:
        byzantine: the number of messages f that it defends against.
        window: how many batches the memory reaches back.
        false_alarms: the part of the batches in which an honest sender is excluded, if all messages are noise.

    References:
        Allen-Zhu et al., Byzantine-resilient non-convex stochastic gradient descent, 2021; Karimireddy et al., Learning
        from history for Byzantine robust optimization, 2021; Siegmund, Sequential analysis, 1985.
    """
    check_value("memory: window", window, window >= 1, "at least 1")
    check_value("memory: false_alarms", false_alarms, 0 < false_alarms <= 0.1, "above 0 and at most 0.1")
    return partial(_with_memory, f=byzantine, beta=1.0 - 1.0 / window, threshold=alarm_threshold(false_alarms))


def _with_memory(rule: Rule, f: int, beta: float, threshold: float) -> Rule:
    """Return a rule with memory; see `memory`."""
    if rule.committee is not None or rule.graph is not None or rule.remembers_senders:
        raise UsageError("memory: needs a rule that hears all senders and nobody else, such as caf or rfa, behind it")
    if rule.hides_shares:
        raise UsageError("memory: needs a rule with known shares of the senders, not a plain function, behind it")

    def init(n: int, D: int) -> SenderMemory:
        none = jnp.zeros((n, D))
        return SenderMemory(
            none, none, jnp.ones(n), jnp.zeros(n), jnp.zeros(n), jnp.zeros(n, bool), jnp.zeros(2),
            jnp.zeros((n, n)), jnp.zeros(D), rule.init(n, D),
        )  # fmt: skip

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: SenderMemory) -> Outcome:
        sent, ok = shortened(messages, f)
        judged = jax.lax.stop_gradient(sent)
        state = _when(receiver.begins, lambda before: _begin_batch(before, judged, ok, f, beta, threshold), state)
        batch = state.batch + sent
        counted = ok & ~state.excluded
        history = scaled(beta * state.past + batch / longest_allowed(batch, f), state.noise)
        peers = mix(normalised(counted.astype(sent.dtype), counted)[None], history)
        history = jnp.where(state.excluded[:, None], peers, history)
        # A receiver whose own message is not among these has the index −1.
        own = jnp.where(receiver.index >= 0, history[receiver.index], scaled(receiver.own[None], state.noise)[0])
        outcome = rule.apply(key, history, receiver._replace(own=own), state.inner)
        batches = state.spread[1] + 1.0
        likeness = (state.likeness + likeness_in(batch, state.noise)) / batches
        trusted = jnp.where(counted, jnp.minimum(2.0 * state.trust, 1.0), 0.0)
        bounded = partial(bounded_shares, n=len(sent), byzantine=f)
        share = one_matrix_kernel(bounded, likeness, jnp.full_like(trusted, batches), trusted, outcome.shares[0])[None]
        after = state._replace(batch=jax.lax.stop_gradient(batch), inner=outcome.state)
        return Outcome(mix(share, sent), share, after)

    return Rule(
        apply, init, personal=rule.personal, random=rule.random, stateful=True, trusts_own=rule.trusts_own,
        remembers_senders=True, scores=_trust,
    )  # fmt: skip


def alarm_threshold(false_alarms: float) -> float:
    """Return h, at which Page's test of noise is wrong so rarely that a sender is excluded in this part of the batches.

    With steps of mean 1/2 and variance 1, the mean time until the sum has fallen by h below its maximum is about
    2(e^b − b − 1) with b = h + 1.166, and the exclusion lasts 4 batches.
    """
    run = FIRST_EXCLUSION / false_alarms
    b = 1.0
    for _ in range(50):
        b = math.log(run / 2.0 + b + 1.0)
    return b - 1.166


def senders_of(state: RuleState) -> SenderMemory | None:
    """Return what a rule with this state remembers of the senders, or None if it remembers nothing of them."""
    found = [node for node in jax.tree.leaves(state, is_leaf=_is_memory) if _is_memory(node)]
    return found[0] if found else None


def _trust(state: RuleState) -> Float[Array, " n"]:
    remembered = senders_of(state)
    assert remembered is not None
    return remembered.trust


def _is_memory(node: Any) -> bool:
    return isinstance(node, SenderMemory)


def shortened(messages: Float[Array, "n D"], byzantine: int) -> tuple[Float[Array, "n D"], Bool[Array, " n"]]:
    """Shorten the f longest messages to the next one, which may be honest; unusable ones become zero.

    Returns:
        The messages, and which of them are usable.
    """
    squares = squared_norms(messages)
    ok = usable_squares(squares)
    squares = jnp.where(ok, squares, 0.0)
    return jnp.where(ok[:, None], messages, 0.0) * shortening(squares, _next_longest(squares, byzantine))[:, None], ok


def longest_allowed(vectors: Float[Array, "n D"], byzantine: int) -> Float[Array, ""]:
    """Return the length of the (f+1)-th longest vector; 1 if it is zero."""
    length = root(_next_longest(squared_norms(vectors), byzantine))
    return jnp.where(length > 0, length, 1.0)


def _next_longest(squares: Float[Array, " n"], byzantine: int) -> Float[Array, ""]:
    rank = len(squares) - 1 - byzantine
    return sum_of_ranks(squares[:, None], range(rank, rank + 1))[0]


def _when(condition: Array | bool, change: Callable[[SenderMemory], SenderMemory], state: SenderMemory) -> SenderMemory:
    """Apply a change under a condition, which is often a constant."""
    if isinstance(condition, bool):
        return change(state) if condition else state
    # A loop changes the arrays in place; `cond` would copy them.
    return jax.lax.fori_loop(0, condition.astype(jnp.int32), lambda _, now: change(now), jax.lax.stop_gradient(state))


def _begin_batch(
    state: SenderMemory, fresh: Array, ok: Array, byzantine: int, beta: float, threshold: float
) -> SenderMemory:
    """Add the finished batch to the past, and judge the senders by the messages that begin a new one."""
    kept = len(fresh) - byzantine
    noise = beta * state.noise + sum_of_ranks(fresh, range(kept), finite_median(fresh)) / kept
    last = state.batch / longest_allowed(state.batch, byzantine)
    past = beta * state.past + last
    new, last_sent, all_sent = (scaled(vectors, noise) for vectors in (fresh, last, past))
    score = agreement_scores(new, last_sent, ok, byzantine) + agreement_scores(new, all_sent, ok, byzantine)
    difference = score - finite_median(score[:, None])[0]
    here = robust_deviation(finite_median(jnp.abs(difference)[:, None])[0], len(score))
    finished = jnp.any(state.batch != 0).astype(here.dtype)  # there is none before the first
    spread = beta * state.spread + jnp.stack([here, finished])
    scale = jnp.maximum(spread[0] / jnp.maximum(spread[1], 1.0), here)
    z = jnp.clip(
        jnp.where(scale > 0, difference / jnp.where(scale > 0, scale, 1.0), 0.0), -LARGEST_SCORE, LARGEST_SCORE
    )
    strikes, remaining = (1.0 - FORGIVEN) * state.strikes, jnp.maximum(state.remaining - 1.0, 0.0)
    trust = jnp.clip(state.trust + (z + ALLOWANCE) / threshold, 0.0, 1.0)
    stays = state.excluded & ((remaining > 0) | (trust < 0.5))
    candidates = (trust <= 0) & ~stays
    caught = candidates & (ranks(jnp.where(candidates, score, jnp.inf)) < byzantine - jnp.sum(stays))
    length = FIRST_EXCLUSION * 2.0 ** jnp.minimum(strikes, MOST_STRIKES)
    return state._replace(
        past=past,
        spread=spread,
        likeness=beta * state.likeness + likeness_in(state.batch, noise),
        noise=noise,
        batch=jnp.zeros_like(past),
        trust=trust,
        strikes=strikes + caught,
        remaining=jnp.where(caught, length, remaining),
        excluded=stays | caught,
    )


def scaled(vectors: Float[Array, "n D"], noise: Float[Array, " D"]) -> Float[Array, "n D"]:
    """Divide every coordinate by its noise; nothing changes as long as that is unknown."""
    usual = jnp.mean(noise)
    return vectors / (noise + jnp.where(usual > 0, LEAST_DEVIATION * usual, 1.0))[None]


def likeness_in(batch: Float[Array, "n D"], noise: Float[Array, " D"]) -> Float[Array, "n n"]:
    """Return the cosines between what the senders have sent in a batch, in scaled coordinates."""
    vectors = scaled(batch, noise)
    return cosines(vectors, vectors)


def agreement_scores(
    fresh: Float[Array, "n D"], past: Float[Array, "n D"], ok: Bool[Array, " n"], byzantine: int
) -> Float[Array, " n"]:
    """Return the mean cosine between what each sender sent and the new messages of the others, f at each end left out.

    Args:
        fresh: the first messages of a new batch.
        past: what the senders sent before; a sender without a past has the score 0.
        ok: which of the new messages are usable.
        byzantine: f.
    """
    n = fresh.shape[0]
    votes = ok[:, None] & ~jnp.eye(n, dtype=bool)
    ordered = jnp.sort(jnp.where(votes, cosines(fresh, past), jnp.inf), axis=0)
    count = jnp.sum(votes, axis=0)[None]
    rank = jnp.arange(n)[:, None]
    inside = (rank >= byzantine) & (rank < count - byzantine)
    return jnp.sum(jnp.where(inside, ordered, 0.0), axis=0) / jnp.maximum(jnp.sum(inside, axis=0), 1)


def bounded_shares(
    likeness: Float[Array, "n n"],
    batches: Float[Array, " n"],
    trusted: Float[Array, " n"],
    shares: Float[Array, " n"],
    *,
    n: int,
    byzantine: int,
) -> Float[Array, " n"]:
    """Multiply shares by the votes of the senders, and bound them by their part of the n − f largest votes.

    Args:
        likeness: see `votes_of_groups`.
        batches: the number behind it, once per sender.
        trusted: the factor of each sender's vote; 0 for one that does not count.
        shares: the shares of the senders in the result of another rule.
        n: the number of senders. The arrays may have further entries, which are zero.
        byzantine: f.
    """
    votes = votes_of_groups(likeness, jnp.max(batches), n, byzantine) * trusted
    largest = jnp.sum(jnp.where(ranks(-votes) < n - byzantine, votes, 0.0))
    most = votes / jnp.where(largest > 0, largest, 1.0)
    return capped(normalised(shares * votes, trusted > 0), most)


def votes_of_groups(
    likeness: Float[Array, "n n"], batches: Float[Array, ""], n: int, byzantine: int
) -> Float[Array, " n"]:
    """Return the vote of each sender, smaller if others send what it sends.

    A group of m senders that are alike has at least m − f honest senders, so each of them has the vote
    max(m − f, 0)/m. The size m of the group of a sender is 1 plus how alike every other one is, between 0 and 1. With
    the likeness c of two senders, the median c₀ of all pairs and the standard deviation s of honest pairs, this is the
    larger one of ((c − c₀ − s)/(1 − c₀))² and a ramp from 0 to 1 where (c − c₀)/s goes from 3.5 to 5. Only the ramp
    takes the last vote of a group: senders may be on the same side by chance, but not so often. s² is the square of
    the robust deviation of all pairs plus 0.2²/T. Without the −s, honest senders that follow a strong common gradient
    with different amounts of noise can lose more votes in the first batches than three liars that oppose it.

    Args:
        likeness: the mean cosine between what two senders send in the same batch.
        batches: the discounted number T of batches behind this mean.
        n: the number of senders. The matrix may have further rows and columns, which are zero.
        byzantine: f.
    """
    if n < 3:
        return jnp.ones(len(likeness))
    usual = jnp.clip(median_of_pairs(likeness, n), 0.0, 0.99)
    excess = likeness - usual
    of_pairs = robust_deviation(median_of_pairs(jnp.abs(excess), n), n * (n - 1) // 2)
    deviation = root(jnp.square(of_pairs) + USUAL_COSINE**2 / batches)
    others = ~jnp.eye(len(likeness), dtype=bool)
    sure = jnp.where(others, jnp.clip((excess / deviation - ALIKE) / (SURE - ALIKE), 0.0, 1.0), 0.0)
    same = jnp.square(jnp.clip((excess - deviation) / (1.0 - usual), 0.0, 1.0))
    size = 1.0 + jnp.sum(jnp.where(others, jnp.maximum(same, sure), 0.0), axis=1)
    # XLA may compute the operands of a maximum again and round them otherwise, so that its derivative becomes 0/0.
    surest = jax.lax.stop_gradient(jnp.max(sure, axis=1))
    return jnp.maximum(size - byzantine, 1.0 - surest) / size


def capped(shares: Float[Array, " n"], most: Float[Array, " n"]) -> Float[Array, " n"]:
    """Bound shares, and give what is cut off to the others in proportion to theirs: `min(most, λ·shares)` with sum 1.

    Args:
        shares: shares with sum 1.
        most: the largest allowed share of each; if their sum is below 1, the result is in proportion to them.
    """
    reached = jnp.where(shares > 0, most / jnp.where(shares > 0, shares, 1.0), jnp.inf)  # λ at which each is bounded
    reached = comparable(reached)
    before = reached[None, :] < reached[:, None]
    free = jnp.sum(jnp.where(before, 0.0, shares[None, :]), axis=1)
    rest = 1.0 - jnp.sum(jnp.where(before, most[None, :], 0.0), axis=1)
    # The sum is concave in λ, the least of its lines `1 − rest + λ·free`. So λ is the largest at which one is 1.
    scales = jnp.where(free > 0, rest / jnp.where(free > 0, free, 1.0), 0.0)
    scale = jnp.sum(jnp.where(jnp.arange(len(scales)) == jnp.argmax(scales), scales, 0.0))
    limited = jnp.where(shares > 0, jnp.minimum(most, scale * shares), 0.0)
    return normalised(limited, limited > 0)


def robust_deviation(median: Float[Array, ""], n: int) -> Float[Array, ""]:
    """Return the standard deviation of n normal numbers from the median of their distances from their own median."""
    return 1.4826 * n / (n - 0.8) * median


def cosines(rows: Float[Array, "n D"], columns: Float[Array, "m D"]) -> Float[Array, "n m"]:
    """Return the cosines between two sets of vectors; those with a zero vector are 0."""
    return jnp.einsum("id,jd->ij", _units(rows), _units(columns), precision=jax.lax.Precision.HIGHEST)


def _units(vectors: Float[Array, "n D"]) -> Float[Array, "n D"]:
    lengths = root(squared_norms(vectors))
    return vectors / jnp.where(lengths > 0, lengths, 1.0)[:, None]
