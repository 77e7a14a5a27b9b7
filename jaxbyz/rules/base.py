"""What a rule is: a pure function from n messages to fewer, with the share each sender has in the result.

Aggregators (n messages to one) and pre-aggregators (n messages to m) are the same kind of thing and chain:

    rule = chain(bucketing(size=2), krum(byzantine=3))
    rows, shares, state = rule.apply(key, messages, receiver, rule.init(n, D))

Shapes: messages [n, D] (senders by parameters), rows [m, D], shares [m, n]. An aggregator has m = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxbyz.accelerate.branches import alone_or_batched, shortcut
from jaxbyz.accelerate.platform import on_cpu
from jaxbyz.accelerate.sorting_networks import add_rows, written_out
from jaxbyz.errors import UsageError

GROUP = 64  # rows that one fused loop adds up
RuleState = Any  # a pytree of arrays; () for a rule without memory


class Receiver(NamedTuple):
    """Who applies the rule: rules that trust their owner's vector, or that live on a graph, need to know.

    own:   [D] the receiver's own (true) message.
    index: [] which row is its own, or comes of it; −1 behind a rule that moves rows.
    """

    own: Float[Array, " D"]
    index: Int[Array, ""]  # type: ignore[assignment]


class Outcome(NamedTuple):
    """rows [m, D]; shares [m, n]: part of each sender in each row, rows of shares sum to 1; the next state."""

    rows: Float[Array, "m D"]
    shares: Float[Array, "m n"]
    state: RuleState


class Rule(NamedTuple):
    """A pair of pure functions and two static facts the trainer uses to avoid repeated work.

    apply:    (key, messages [n, D], receiver, state) -> Outcome
    init:     (n, D) -> state
    personal: the result depends on the receiver (its own row or its place in a graph)
    random:   the result depends on the key
    stateful: the result depends on the state
    graph:    [K, K] mixing weights (receiver, sender) of a rule that lives on a graph; None for all-to-all
    moves:    row i of the result does not come of message i (bucketing)
    """

    apply: Callable[[PRNGKeyArray, Float[Array, "n D"], Receiver, RuleState], Outcome]
    init: Callable[[int, int], RuleState] = lambda n, D: ()
    personal: bool = False
    random: bool = False
    stateful: bool = False
    graph: Any = None
    moves: bool = False


def weighted(weights: Callable[[Float[Array, "n D"]], Float[Array, " n"]]) -> Rule:
    """An aggregator Σ_i w_i x_i from a function messages [n, D] -> weights [n] that sum to one.

    Rows of zero weight are left out before the product, so a non-finite row of no weight does no harm.
    """

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        share = weights(messages)[None, :]
        return Outcome(mix(share, messages), share, state)

    return Rule(apply)


def chosen(weights: Float[Array, " n"], ok: Array) -> Float[Array, " n"]:
    """Weights scaled to sum to one over usable rows; zero everywhere when no usable row has any."""
    kept = jnp.where(ok, weights, 0.0)
    return kept / jnp.maximum(jnp.sum(kept), jnp.finfo(weights.dtype).tiny)


@jax.custom_jvp
def mix(shares: Float[Array, "m n"], messages: Float[Array, "n D"]) -> Float[Array, "m D"]:
    """shares @ messages with 0·inf = 0: rows nobody uses count as zero. Exact for a one-hot share.

    One row (m = 1) of not too many messages is summed in one fused loop over D. Otherwise it is a product, unless there
    is a row to leave out: one row of a single call is then summed group by group, and several need a copy of the
    messages.
    """
    if shares.shape[0] == 1 and written_out(shares.shape[1]):
        return _sum(shares[0], messages)[None]
    if not on_cpu():
        return _product_of_used(shares, messages)
    return shortcut(jnp.all(shares.any(axis=0)), _product, _without_unused, shares, messages)


def _without_unused(shares: Array, messages: Array) -> Array:
    if shares.shape[0] > 1:
        return _product_of_used(shares, messages)
    return alone_or_batched(_sum_in_groups, _product_of_used, shares, messages)


def _sum(share: Float[Array, " n"], messages: Float[Array, "n D"]) -> Float[Array, " D"]:
    return add_rows([jnp.where(share[i] != 0, share[i] * messages[i], 0.0) for i in range(len(messages))])


def _sum_in_groups(shares: Float[Array, "1 n"], messages: Float[Array, "n D"]) -> Float[Array, "1 D"]:
    """`_sum` of more rows than are written out, in a loop over groups of at most GROUP."""
    n, D = messages.shape
    groups = -(-n // GROUP)
    size = -(-n // groups)

    def add(i: Array, total: Array) -> Array:
        start = jnp.minimum(i * size, n - size)
        new = start + jnp.arange(size) >= i * size  # the last group begins with rows of the one before
        part = jnp.where(new, jax.lax.dynamic_slice_in_dim(shares[0], start, size), 0.0)
        return total + _sum(part, jax.lax.dynamic_slice_in_dim(messages, start, size))

    return jax.lax.fori_loop(0, groups, add, jnp.zeros(D, messages.dtype))[None]


def _product(shares: Array, messages: Array) -> Array:
    return jnp.matmul(shares, messages, precision=jax.lax.Precision.HIGHEST)


@mix.defjvp
def _mix_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (shares, messages), (d_shares, d_messages) = primals, tangents
    return mix(shares, messages), _product(d_shares, _used(shares, messages)) + _product(shares, d_messages)


def _product_of_used(shares: Array, messages: Array) -> Array:
    return _product(shares, _used(shares, messages))


def _used(shares: Array, messages: Array) -> Array:
    used = jnp.any(shares != 0, axis=0)
    return jnp.where(used[:, None], messages, 0.0)


def from_function(function: Callable[..., Array]) -> Rule:
    """A user's plain function as a rule: `(key, messages [n, D]) -> [D]` or `(messages [n, D]) -> [D]`.

    Nothing is known of the senders' shares, so they are NaN and the metric `byzantine_weight` says so.
    """
    takes_key = _positional_arguments(function) >= 2

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        vector = function(key, messages) if takes_key else function(messages)
        if vector.shape != messages.shape[1:]:
            raise UsageError(
                f"aggregator {getattr(function, '__name__', function)!r} returned shape {vector.shape} for messages "
                f"{messages.shape}: it must return one vector of shape {messages.shape[1:]}"
            )
        return Outcome(vector[None], jnp.full((1, messages.shape[0]), jnp.nan, messages.dtype), state)

    return Rule(apply, random=takes_key)


def _positional_arguments(function: Callable[..., Any]) -> int:
    import inspect

    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in inspect.signature(function).parameters.values())


def chain(*rules: Rule) -> Rule:
    """Apply rules one after another, as `optax.chain` does: pre-aggregators first, the aggregator last.

    Shares multiply: sender i has share Σ_b S2[0, b] S1[b, i] in the result.
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
            messages, part, after = rule.apply(jax.random.fold_in(key, i), messages, receiver, state[i])
            shares = part @ shares
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
    )


def _rows_of(rule: Rule) -> Callable[[Array], Array]:
    def rows(messages: Array) -> Array:
        state = rule.init(*messages.shape)
        return rule.apply(jax.random.key(0), messages, Receiver(messages[0], jnp.int32(0)), state).rows

    return rows


def check_rule(rule: Rule, n: int, D: int) -> None:
    """Try a rule on the shapes it will meet, so that one that does not fit is refused before anything is trained."""
    jax.eval_shape(_rows_of(rule), jax.ShapeDtypeStruct((n, D), jnp.float32))


def largest_square(dtype: Any) -> Any:
    """The largest ‖x‖² of a usable message: sums of n² such squares, n up to a few hundred, stay finite."""
    return jnp.finfo(dtype).max / 2.0**20


@jax.custom_jvp
def squared_norms(vectors: Float[Array, "n D"]) -> Float[Array, " n"]:
    """‖x_i‖² of each row; not finite, and without a derivative, where an entry is not finite or squares overflow."""
    return jnp.sum(vectors * vectors, axis=1)


@squared_norms.defjvp
def _squared_norms_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (vectors,), (d_vectors,) = primals, tangents
    squares = squared_norms(vectors)
    ok = squares <= largest_square(vectors.dtype)
    return squares, 2.0 * jnp.sum(jnp.where(ok[:, None], vectors, 0.0) * d_vectors, axis=1)


def usable(messages: Float[Array, "n D"]) -> Array:
    """[n] bool: rows that can take part. A row with a non-finite entry, or one so large that sums of squares would
    overflow, is a vote for nothing: it counts as one Byzantine message at infinite distance."""
    return squared_norms(jax.lax.stop_gradient(messages)) <= largest_square(messages.dtype)  # NaN compares False


def inverse_norm_above(squares: Array, floor: float | Array) -> Array:
    """1 / max(‖x‖, floor) from ‖x‖², with a gradient that is zero, not NaN, at x = 0."""
    above = squares > floor * floor
    return jnp.where(above, jax.lax.rsqrt(jnp.where(above, squares, 1.0)), 1.0 / floor)
