"""What a rule is: a pure function from n messages to m ≤ n rows, with the share of each sender in every row.

Aggregators (m = 1) and pre-aggregators have the same type and can be chained:

    rule = chain(bucketing(byzantine=3), krum(byzantine=3))
    rows, shares, state = rule.apply(key, messages, receiver, rule.init(n, D))

Shapes: messages `[n, D]` (one row per sender), rows `[m, D]`, shares `[m, n]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.accelerate.weighted_sums import mix
from jaxbyz.errors import UsageError, first_line

RuleState = Any  # a pytree of arrays; () for a rule without memory


class Receiver(NamedTuple):
    """Who applies the rule, for rules that trust their owner's vector or depend on its place in a graph.

    Attributes:
        own: `[D]`, the receiver's own, true message.
        index: `[]`, the row that is its own message or derived from it; −1 if no row is, as behind bucketing.
        batch: `[]`, the number of trajectories behind every message, if it is random; otherwise None.
        begins: `[]`, whether these are the first messages of a new batch of trajectories.
    """

    own: Float[Array, " D"]
    index: Int[Array, ""]  # type: ignore[assignment]
    batch: Int[Array, ""] | None = None
    begins: Bool[Array, ""] | bool = True


class Outcome(NamedTuple):
    """What a rule returns.

    Attributes:
        rows: `[m, D]`, the resulting vectors.
        shares: `[m, n]`, the weight of each sender in each row; every row of shares sums to one. If no message is
            usable, most rules report zero. If the shares are not known (`from_function`), they are NaN.
        state: the next state of the rule.
    """

    rows: Float[Array, "m D"]
    shares: Float[Array, "m n"]
    state: RuleState


class Rule(NamedTuple):
    """Two pure functions, and facts that callers use to avoid repeated work.

    Attributes:
        apply: (key, messages `[n, D]`, receiver, state) -> `Outcome`.
        init: (n, D) -> the initial state.
        personal: the result depends on the receiver.
        random: the result depends on the key.
        stateful: the result depends on the state.
        graph: `[K, K]`, mixing weights (receiver, sender) of a rule on a graph; None if every agent hears all others.
        moves: row i of the result does not belong to message i, as in bucketing.
        trusts_own: the result is measured by the receiver's own vector, which a server must therefore compute itself.
        committee: the rule is for this many messages and is applied within random committees; None for all K messages.
        rotates: if all messages are rotated, so is the result. It holds for rules that see only inner products.
        averages: every row is the mean of the messages, weighted by its shares.
        translates: if a vector is added to all messages, it is added to the result.
        hides_shares: the shares of the senders in the result are not known, and NaN.
        remembers_senders: the state has a row per sender, so that row i must always be a message of the same sender.
        scores: `state -> [n]`, how much a rule with memory trusts every sender, for those who want to see it; None if
            it does not rate senders.
    """

    apply: Callable[[PRNGKeyArray, Float[Array, "n D"], Receiver, RuleState], Outcome]
    init: Callable[[int, int], RuleState] = lambda n, D: ()
    personal: bool = False
    random: bool = False
    stateful: bool = False
    graph: Any = None
    moves: bool = False
    trusts_own: bool = False
    committee: int | None = None
    rotates: bool = False
    averages: bool = False
    translates: bool = False
    hides_shares: bool = False
    remembers_senders: bool = False
    scores: Callable[[RuleState], Float[Array, " n"]] | None = None


def weighted(weights: Callable[[Float[Array, "n D"]], Float[Array, " n"]], **facts: Any) -> Rule:
    """Build the aggregator `Σ_i w_i x_i` from a function messages `[n, D]` -> weights `[n]` that sum to one.

    A message of zero weight may hold anything, even non-finite numbers.

    Args:
        weights: the function.
        **facts: `rotates` and `translates`, as in `Rule`.
    """
    return weighted_for_receiver(lambda messages, receiver: weights(messages), **facts)


def weighted_for_receiver(weights: Callable[[Float[Array, "n D"], Receiver], Float[Array, " n"]], **facts: Any) -> Rule:
    """Build the same from weights that also depend on what the receiver knows."""

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        share = weights(messages, receiver)[None, :]
        return Outcome(mix(share, messages), share, state)

    return Rule(apply, averages=True, **facts)


def normalised(weights: Float[Array, " n"], ok: Bool[Array, " n"]) -> Float[Array, " n"]:
    """Scale weights to sum to one over the usable messages; all are zero if no usable message has any weight."""
    kept = jnp.where(ok, weights, 0.0)
    return kept / jnp.maximum(jnp.sum(kept), jnp.finfo(weights.dtype).tiny)


def from_function(function: Callable[..., Array]) -> Rule:
    """Build a rule from a plain function `(key, messages [n, D]) -> [D]` or `(messages [n, D]) -> [D]`.

    The shares of the senders are not known, so they are NaN, and so is the metric `byzantine_weight`.

    Raises:
        UsageError: if the function takes neither one nor two arguments.
    """
    name = getattr(function, "__name__", repr(function))
    takes_key = _takes_key(name, function)

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        vector = function(key, messages) if takes_key else function(messages)
        if vector.shape != messages.shape[1:]:
            raise UsageError(
                f"aggregator {name!r} returned shape {vector.shape} for messages "
                f"{messages.shape}: it must return one vector of shape {messages.shape[1:]}"
            )
        return Outcome(vector[None], jnp.full((1, messages.shape[0]), jnp.nan, messages.dtype), state)

    return Rule(apply, random=takes_key, hides_shares=True)


def _takes_key(name: str, function: Callable[..., Array]) -> bool:
    """Return whether a function takes (key, messages), and not only (messages)."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # not callable, or a function of C without a signature
        raise UsageError(f"aggregator {name!r}: must be a function of (messages) or (key, messages)") from None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes_key = sum(p.kind in kinds and p.default is p.empty for p in signature.parameters.values()) >= 2
    try:
        signature.bind(*[None] * (1 + takes_key))
    except TypeError as error:
        raise UsageError(f"aggregator {name!r}: must be a function of (messages) or (key, messages); {error}") from None
    return takes_key


def within_batch(rule: Rule, begins: Bool[Array, ""] | bool) -> Rule:
    """Tell a rule that remembers senders whether the messages begin a new batch of trajectories."""
    if not rule.remembers_senders:
        return rule

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        return rule.apply(key, messages, receiver._replace(begins=begins), state)

    return rule._replace(apply=apply)


def chain(*rules: Rule) -> Rule:
    """Apply rules one after another: pre-aggregators first, the aggregator last.

    Shares multiply: sender i has the share `Σ_b S2[0, b] S1[b, i]` in the result.
    """
    if len(rules) == 1:
        return rules[0]

    def init(n: int, D: int) -> RuleState:
        states = []
        for rule in rules:
            states.append(rule.init(n, D))
            n = jax.eval_shape(_rows_of(rule), jnp.zeros((n, D))).shape[0]
        return tuple(states)

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        shares = jnp.eye(messages.shape[0], dtype=messages.dtype)
        states = []
        for i, rule in enumerate(rules):
            messages, rule_shares, after = rule.apply(jax.random.fold_in(key, i), messages, receiver, state[i])
            shares = rule_shares @ shares
            states.append(after)
            if rule.moves:
                receiver = receiver._replace(index=jnp.int32(-1))
        return Outcome(messages, shares, tuple(states))

    return Rule(
        apply,
        init,
        personal=any(rule.personal for rule in rules),
        random=any(rule.random for rule in rules),
        stateful=any(rule.stateful for rule in rules),
        moves=any(rule.moves for rule in rules),
        rotates=all(rule.rotates for rule in rules),
        averages=all(rule.averages for rule in rules),
        translates=all(rule.translates for rule in rules),
        hides_shares=any(rule.hides_shares for rule in rules),
        remembers_senders=any(rule.remembers_senders for rule in rules),
        scores=next((rule.scores for rule in rules if rule.scores is not None), None),
    )


def _rows_of(rule: Rule) -> Callable[[Array], Array]:
    """Return the function messages -> rows of a rule in its initial state."""

    def rows(messages: Array) -> Array:
        state = rule.init(*messages.shape)
        return rule.apply(jax.random.key(0), messages, Receiver(messages[0], jnp.int32(0)), state).rows

    return rows


def check_rule(rule: Rule, n: int, D: int) -> None:
    """Trace a rule for n messages of D parameters, so that one that does not fit is refused before training.

    Raises:
        UsageError: if the rule refuses these sizes, or JAX cannot trace it.
    """
    try:
        jax.eval_shape(_rows_of(rule), jax.ShapeDtypeStruct((n, D), jnp.float32))
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise UsageError(f"the rule is not a JAX function of its messages: {first_line(error)}") from error


def check_byzantine(name: str, byzantine: int, n: int, most: int) -> None:
    """Refuse a number of Byzantine messages of n that a rule does not tolerate."""
    if not 0 <= byzantine <= most:
        raise UsageError(f"{name}: byzantine={byzantine} of {n} messages: must be at most {most}")


def usable_squares(squares: Float[Array, " n"]) -> Bool[Array, " n"]:
    """Tell which squared lengths are those of usable messages: sums of n² of them stay finite for n up to 1000."""
    return squares <= jnp.finfo(squares.dtype).max / 2.0**20  # NaN compares False


@jax.custom_jvp
def squared_norms(vectors: Float[Array, "n D"]) -> Float[Array, " n"]:
    """Return ‖x_i‖² of each row. Rows whose square is not finite, or too large to be usable, have no derivative."""
    return jnp.sum(vectors * vectors, axis=1)


@squared_norms.defjvp
def _squared_norms_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (vectors,), (d_vectors,) = primals, tangents
    squares = squared_norms(vectors)
    ok = usable_squares(squares)
    return squares, 2.0 * jnp.sum(jnp.where(ok[:, None], vectors, 0.0) * d_vectors, axis=1)


def usable(messages: Float[Array, "n D"]) -> Bool[Array, " n"]:
    """Tell which messages can take part.

    A message with a non-finite entry, or so long that sums of squares would overflow, counts as one Byzantine message
    at infinite distance. Rules that measure messages from another point than zero, the coordinate-wise median
    (`jaxbyz.rules.distances.gram_matrix`) or the receiver's own message (MoNNA), take the length from there.
    """
    return usable_squares(squared_norms(jax.lax.stop_gradient(messages)))


def root(square: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Return √x with a derivative that is zero, not infinite, at x = 0."""
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


def shortening(squares: Float[Array, " n"], radius_squared: float | Array) -> Float[Array, " n"]:
    """Return `min(1, τ/‖x_i‖)` from ‖x_i‖² and τ², with a finite derivative everywhere."""
    limit = jnp.minimum(jnp.asarray(radius_squared, squares.dtype), jnp.finfo(squares.dtype).max)
    above = squares > limit
    return jnp.where(above, root(limit) * jax.lax.rsqrt(jnp.where(above, squares, 1.0)), 1.0)
