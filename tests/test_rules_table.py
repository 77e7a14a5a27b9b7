"""Checks for every registered rule: a new rule is covered as soon as it is registered."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbyz.errors import UsageError
from jaxbyz.protocol.agreements import agreements
from jaxbyz.rules import Receiver, aggregators, chain, check_rule, pre_aggregators

K, D = 9, 6
KINDS = {"aggregator": aggregators, "pre-aggregator": pre_aggregators, "agreement": agreements}
ALL = [(kind, entry.name) for kind, registry in KINDS.items() for entry in registry if entry.name != "none"]
ALL.remove(("agreement", "committees"))  # a rule of this table, for as many messages as a committee has members
# An agreement that has the factory of an aggregator is covered by the aggregator.
ALL = [(k, n) for k, n in ALL if k != "agreement" or KINDS[k][n].factory not in {e.factory for e in aggregators}]
OPTIONS = {"signguard": {"fraction": 1.0}, "bucketing": {"size": 2}}
BAD = {
    "nan": np.nan, "inf": np.inf, "-inf": -np.inf, "squares overflow": 1e25, "nearly overflows": -3e38,
}  # fmt: skip

table = pytest.mark.parametrize("kind,name", ALL)


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_rank_promotion("raise"):
        yield


def build(kind, name, agents=K, f=None):
    entry = KINDS[kind][name]
    f = min(2, entry.most(agents)) if f is None else f
    return entry.build(agents, f, **OPTIONS.get(name, {})), f


@cache
def compiled(kind, name, agents, f):
    """Return (key, messages, own index) -> Outcome, one program for all tests of this size."""
    rule, _ = build(kind, name, agents, f)

    def call(key, messages, index):
        state = rule.init(*messages.shape)
        state = jax.tree.map(lambda leaf: leaf.astype(messages.dtype), state)
        return rule.apply(key, messages, Receiver(messages[index], index), state)

    return jax.jit(call)


def apply(kind, name, messages, seed=0, index=0, f=None):
    call = compiled(kind, name, len(messages), f)
    return jax.tree.map(np.asarray, call(jax.random.key(seed), jnp.asarray(messages), jnp.int32(index)))


def draw(seed=0, agents=K, parameters=D):
    return np.random.default_rng(seed).normal(1.0, 1.0, (agents, parameters)).astype(np.float32)


def check_shape_shares_and_one_compilation(kind, name):
    first = apply(kind, name, draw(1), seed=1)
    rows, shares, _ = apply(kind, name, draw(2), seed=2, index=3)
    m = {"bucketing": 5, "nnm": K, "clipping": K, "arc": K}.get(name, 1)
    assert rows.shape == (m, D) and shares.shape == (m, K)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-5)
    assert (shares >= 0).all()
    assert np.abs(first.rows - apply(kind, name, draw(1), seed=1).rows).max() == 0  # the same key, the same result
    assert compiled(kind, name, K, None)._cache_size() == 1


def check_shares_explain_the_result(kind, name):
    """If a rule is a weighted mean of messages, its shares are the weights."""
    if name in ("median", "trimmed-mean", "meamed", "bulyan", "centered-clipping", "signguard", "clipping", "arc",
                "fltrust"):  # fmt: skip
        return  # shares are means over coordinates, or messages are clipped
    x = draw(3)
    rows, shares, _ = apply(kind, name, x)
    np.testing.assert_allclose(rows, shares @ x, rtol=1e-4, atol=1e-5)


@table
def test_contract(kind, name):
    """One test for everything that one compiled program can show."""
    check_shares_explain_the_result(kind, name)
    check_permutation(kind, name)
    check_equal_and_duplicate_messages(kind, name)
    for what in BAD:
        check_unusable_messages_are_byzantine_votes(kind, name, what)
    check_shape_shares_and_one_compilation(kind, name)


def check_permutation(kind, name):
    if name in ("bucketing", "clipped-gossip", "cs-gossip"):
        return  # random, or on a graph: tested separately
    x, order = draw(4), np.random.default_rng(5).permutation(K)
    straight = apply(kind, name, x, index=2)
    mixed = apply(kind, name, x[order], index=int(np.argwhere(order == 2)[0, 0]))
    rows = straight.rows if len(straight.rows) == 1 else straight.rows[order]
    np.testing.assert_allclose(mixed.rows, rows, rtol=1e-4, atol=1e-5)
    shares = straight.shares[:, order] if len(straight.rows) == 1 else straight.shares[order][:, order]
    np.testing.assert_allclose(mixed.shares, shares, rtol=1e-4, atol=1e-5)


def check_unusable_messages_are_byzantine_votes(kind, name, what):
    _, f = build(kind, name)
    x = draw(6)
    honest = x[f:]
    bad = x.copy()
    bad[:f] = BAD[what]
    bad[0, 1:] = x[0, 1:] if np.isnan(BAD[what]) else BAD[what]  # one entry is enough
    rows, shares, state = apply(kind, name, bad, index=K - 1)
    if name == "mean":  # the documented exception of the contract
        assert "overflow" in what or not np.isfinite(rows).all()
        return
    assert np.isfinite(rows).all() and np.isfinite(shares).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    centre, radius = honest.mean(axis=0), np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    if name in ("clipping", "arc"):  # zero replaces a message without a direction
        radius = max(radius, np.linalg.norm(honest, axis=1).max())
        radius = max(radius, np.linalg.norm(rows - centre, axis=1)[f:].max())
    assert np.linalg.norm(rows - centre, axis=1).max() <= radius + np.linalg.norm(centre) * (len(rows) > 1) + 1e-4
    if len(rows) == 1:
        assert shares[0, :f].max() == 0 or name in ("clipped-gossip", "cs-gossip")


@table
def test_vmap_float64_and_gradients(kind, name):
    """Double precision, vmap, and derivatives at smooth points, ties, zeros and unusable messages, in one program."""
    rule, f = build(kind, name)
    plain = draw(7)
    bad = plain.copy()
    bad[:f] = np.nan
    same = np.repeat(plain[:1], K, axis=0)
    batch = np.stack([plain, draw(8), np.zeros_like(plain), np.ones_like(plain), same, np.round(plain), bad])

    def total(key, messages):
        state = rule.init(K, D)
        rows = rule.apply(key, messages, Receiver(messages[K - 1], jnp.int32(K - 1)), state).rows
        return jnp.sum(rows**2), rows

    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), len(batch))
        call = jax.jit(jax.vmap(jax.grad(total, argnums=1, has_aux=True)))
        gradients, rows = call(keys, jnp.asarray(batch, jnp.float64))
        assert rows.dtype == jnp.float64
        gradients = np.asarray(gradients)
    assert np.isfinite(gradients[:-1]).all() and np.abs(gradients[0]).max() > 0
    assert name == "mean" or np.isfinite(gradients[-1, f:]).all()
    if name != "bucketing":  # its key draws another permutation in the other precision
        for x, row in zip(batch[:2], np.asarray(rows), strict=False):
            np.testing.assert_allclose(row, apply(kind, name, x, index=K - 1).rows, rtol=2e-4, atol=2e-5)


def check_equal_and_duplicate_messages(kind, name):
    value = draw(8)[:1]
    rows, _, _ = apply(kind, name, np.repeat(value, K, axis=0))
    if name == "clipping":
        value = value * min(1.0, 2.0 / np.linalg.norm(value))
    np.testing.assert_allclose(rows, np.repeat(value, len(rows), axis=0), rtol=1e-4, atol=1e-5)
    twins = np.concatenate([draw(9)[:4], draw(9)[:4], draw(9)[:1]])
    assert np.isfinite(apply(kind, name, twins).rows).all()


@table
@pytest.mark.parametrize("agents", [1, 2])
def test_one_or_two_agents_one_parameter(kind, name, agents):
    x = draw(10, agents, 1)
    rows, _, _ = apply(kind, name, x, f=0)
    if name == "clipping":
        x = np.clip(x, -2, 2)
    elif name == "signguard":
        x = np.clip(x, -np.abs(x).mean(), np.abs(x).mean()) if agents > 1 else x
    assert x.min() - 1e-5 <= rows.min() and rows.max() <= x.max() + 1e-5
    if len(rows) == 1 and name not in ("signguard", "dnc", "fltrust"):
        np.testing.assert_allclose(rows[0], x.mean(axis=0), rtol=1e-5)  # f = 0: all messages have the same weight


@table
def test_limit_and_summary(kind, name):
    entry = KINDS[kind][name]
    most = entry.most(K)
    assert 0 <= most < K and (entry.limit is None or most < entry.limit * K <= most + 1)
    assert entry.summary


def test_chain_multiplies_shares():
    rule = chain(pre_aggregators["bucketing"].build(K, 2, size=2), pre_aggregators["nnm"].build(5, 1),
                 aggregators["multi-krum"].build(5, 1))  # fmt: skip
    x = jnp.asarray(draw(11))
    call = jax.jit(lambda key: rule.apply(key, x, Receiver(x[0], jnp.int32(0)), rule.init(K, D)))
    rows, shares, _ = call(jax.random.key(1))
    assert rule.random and not rule.personal and rows.shape == (1, D) and shares.shape == (1, K)
    np.testing.assert_allclose(rows, shares @ x, rtol=1e-4, atol=1e-5)


def test_bucketing_is_uniform():
    call = compiled("pre-aggregator", "bucketing", K, None)
    shares = jax.vmap(lambda k: call(k, jnp.asarray(draw()), jnp.int32(0)).shares)(
        jax.random.split(jax.random.key(3), 2000)
    )
    member = (np.asarray(shares) > 0).astype(float)
    together = np.einsum("kbi,kbj->ij", member, member) / 2000
    off = together[~np.eye(K, dtype=bool)]
    assert np.abs(off - 8 / 9 / 8).max() < 0.03  # one of eight in the same bucket, unless alone in the last


def test_centered_clipping_remembers():
    rule = aggregators["centered-clipping"].build(K, 2, radius=0.5)
    x = jnp.asarray(np.repeat(draw(12)[:1], K, axis=0)).at[:2].set(50.0)
    state, step = rule.init(K, D), jax.jit(lambda v: rule.apply(jax.random.key(0), x, Receiver(x[3], jnp.int32(3)), v))
    for _ in range(60):
        rows, _, state = step(state)
    np.testing.assert_array_equal(rows[0], state)
    assert np.linalg.norm(rows[0] - x[3]) < 0.5 * 2 / 7 + 0.01  # where the pulls of two and of seven balance


@pytest.mark.parametrize(
    ("name", "f", "options", "message"),
    [
        ("krum", 9, {}, "krum: byzantine=9 of 9 messages: must be between 0 and 8"),
        ("multi-krum", 9, {}, "multi-krum: byzantine=9 of 9 messages: must be between 0 and 8"),
        ("multi-krum", 2, {"selected": 10}, "multi-krum: selected=10 of 9 messages: must be between 1 and 9"),
        ("multi-krum", 2, {"neighbours": 9}, "multi-krum: neighbours=9 of 9 messages: must be between 0 and 8"),
        ("rfa", 2, {"rounds": 0}, "rfa: rounds=0: must be at least 1"),
        ("dnc", 2, {"coordinates": 0}, "dnc: coordinates=0: must be at least 1"),
        ("signguard", 2, {"fraction": 0.0}, "signguard: fraction=0.0: must be above 0 and at most 1"),
        ("bulyan", 3, {}, "bulyan: byzantine=3 of 9 messages: must be at most 2"),
        ("trimmed-mean", 5, {}, "trimmed-mean: byzantine=5 of 9 messages: must be at most 4"),
    ],
)
def test_errors_name_rule_option_and_value(name, f, options, message):
    with pytest.raises(UsageError) as refused:
        check_rule(aggregators[name].build(K, f, **options), K, D)
    assert str(refused.value) == message
