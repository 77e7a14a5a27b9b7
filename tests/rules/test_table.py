"""Checks for every registered rule: a new rule is covered as soon as it is registered.

One compiled program per rule serves all checks of its contract and of what the mathematics promises of it.
"""

from functools import cache, partial
from itertools import combinations

import hypothesis.extra.numpy as arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import jaxbyz as jb
from jaxbyz.errors import UsageError
from jaxbyz.protocol.agreements import agreements
from jaxbyz.rules import Receiver, aggregators, chain, check_rule, pre_aggregators

K, D, F = 9, 3, 2
KINDS = {"aggregator": aggregators, "pre-aggregator": pre_aggregators, "agreement": agreements}
OPTIONS = {"signguard": {"fraction": 1.0}, "bucketing": {"size": 2}}
BAD = {
    "nan": np.nan, "inf": np.inf, "-inf": -np.inf, "squares overflow": 1e25, "nearly overflows": -3e38,
}  # fmt: skip


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_rank_promotion("raise"):
        yield


def build(kind, name, agents=K, f=None):
    entry = KINDS[kind][name]
    f = min(F, entry.most(agents)) if f is None else f
    built = entry.build(agents, f, **OPTIONS.get(name, {}))
    return built if built is None or isinstance(built, jb.Rule) else built(aggregators["rfa"].build(agents, f)), f


def covered(kind, entry):
    """Whether an entry is a rule of its own: not "none", an aggregator under another name, or applied in committees."""
    if kind == "agreement" and entry.factory in {aggregator.factory for aggregator in aggregators}:
        return False
    rule, _ = build(kind, entry.name)
    return rule is not None and rule.committee is None


ALL = [(kind, entry.name) for kind, registry in KINDS.items() for entry in registry if covered(kind, entry)]
table = pytest.mark.parametrize("kind,name", ALL)


@cache
def compiled(kind, name, agents, f):
    """Return (key, messages, own index) -> Outcome, one program for all tests of this size."""
    rule, _ = build(kind, name, agents, f)

    def call(key, messages, index):
        state = rule.init(*messages.shape)
        state = jax.tree.map(lambda leaf: leaf if leaf.dtype == bool else leaf.astype(messages.dtype), state)
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
    m, rule = len(rows), build(kind, name)[0]
    assert 1 < m < K if rule.moves else m == (K if kind == "pre-aggregator" and not rule.remembers_senders else 1)
    assert rows.shape == (m, D) and shares.shape == (m, K)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-5)
    assert (shares >= 0).all()
    assert np.abs(first.rows - apply(kind, name, draw(1), seed=1).rows).max() == 0  # the same key, the same result
    assert compiled(kind, name, K, None)._cache_size() == 1


def check_shares_explain_the_result(kind, name):
    """If a rule is a weighted mean of messages, its shares are the weights."""
    x = draw(3)
    rows, shares, _ = apply(kind, name, x)
    if build(kind, name)[0].averages:
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


def depends_on_its_key(kind, name):
    """Whether a rule draws random numbers at this size; DnC, for example, takes all of a few coordinates."""
    return not np.array_equal(*(apply(kind, name, draw(4), seed=seed).rows for seed in (0, 1)))


def check_permutation(kind, name):
    if depends_on_its_key(kind, name) or build(kind, name)[0].graph is not None:
        return  # who is in a bucket, or a neighbour on a graph, depends on the order
    x, order = draw(4), np.random.default_rng(5).permutation(K)
    straight = apply(kind, name, x, index=2)
    mixed = apply(kind, name, x[order], index=int(np.argwhere(order == 2)[0, 0]))
    rows = straight.rows if len(straight.rows) == 1 else straight.rows[order]
    np.testing.assert_allclose(mixed.rows, rows, rtol=1e-4, atol=1e-5)
    shares = straight.shares[:, order] if len(straight.rows) == 1 else straight.shares[order][:, order]
    np.testing.assert_allclose(mixed.shares, shares, rtol=1e-4, atol=1e-5)


def check_unusable_messages_are_byzantine_votes(kind, name, what):
    rule, f = build(kind, name)
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
    if len(rows) > 1 and not rule.averages:  # zero replaces a message without a direction
        radius = max(radius, np.linalg.norm(honest, axis=1).max())
        radius = max(radius, np.linalg.norm(rows - centre, axis=1)[f:].max())
    assert np.linalg.norm(rows - centre, axis=1).max() <= radius + np.linalg.norm(centre) * (len(rows) > 1) + 1e-4
    if len(rows) == 1:
        assert shares[0, :f].max() == 0 or rule.graph is not None


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
        gradients, rows = map(np.asarray, call(keys, batch.astype(np.float64)))
    assert rows.dtype == np.float64
    assert np.isfinite(gradients[:-1]).all() and np.abs(gradients[0]).max() > 0
    assert name == "mean" or np.isfinite(gradients[-1, f:]).all()
    if not depends_on_its_key(kind, name):  # a key draws other numbers in the other precision
        for x, row in zip(batch[:2], rows, strict=False):
            np.testing.assert_allclose(row, apply(kind, name, x, index=K - 1).rows, rtol=2e-4, atol=2e-5)


def check_equal_and_duplicate_messages(kind, name):
    value = 0.25 * draw(8)[:1]  # so short that it is not clipped
    rows, _, _ = apply(kind, name, np.repeat(value, K, axis=0))
    np.testing.assert_allclose(rows, np.repeat(value, len(rows), axis=0), rtol=1e-4, atol=1e-5)
    twins = np.concatenate([draw(9)[:4], draw(9)[:4], draw(9)[:1]])
    assert np.isfinite(apply(kind, name, twins).rows).all()


@cache
def rows_of_one_or_two_agents():
    """Return what every rule makes of the messages of one and of two agents; one program computes all of it."""
    rules = {(*rule, agents): build(*rule, agents, f=0)[0] for rule in ALL for agents in (1, 2)}

    def every(key, messages):
        return {
            (kind, name, agents): rule.apply(
                key, messages[agents], Receiver(messages[agents][0], jnp.int32(0)), rule.init(agents, 1)
            ).rows
            for (kind, name, agents), rule in rules.items()
        }

    found = jax.jit(every)(jax.random.key(0), {agents: 0.25 * draw(10, agents, 1) for agents in (1, 2)})
    return jax.tree.map(np.asarray, found)


@table
@pytest.mark.parametrize("agents", [1, 2])
def test_one_or_two_agents_one_parameter(kind, name, agents):
    x = 0.25 * draw(10, agents, 1)  # so short that nothing is clipped to a fixed length
    rows, rule = rows_of_one_or_two_agents()[kind, name, agents], build(kind, name, agents, f=0)[0]
    assert x.min() - 1e-5 <= rows.min() and rows.max() <= x.max() + 1e-5
    if len(rows) == 1 and (rule.averages or rule.translates):
        np.testing.assert_allclose(rows[0], x.mean(axis=0), rtol=1e-5)  # f = 0: all messages have the same weight


numbers = st.floats(-1e3, 1e3, width=32, allow_subnormal=False)
vectors = arrays.arrays(np.float32, (K, D), elements=numbers)
far = arrays.arrays(np.float32, (F, D), elements=st.floats(-(2.0**40), 2.0**40, width=32, allow_subnormal=False))
few = settings(max_examples=20, deadline=None, derandomize=True, phases=[Phase.generate])

# The largest distance of the result from the honest mean, in units of the largest honest distance from it.
LARGEST_ERROR = dict.fromkeys(["rfa", "meamed", "bulyan"], 2.0) | dict.fromkeys(["median", "trimmed-mean"], D**0.5)
LARGEST_ERROR_OF_OTHERS = 3.0


def aggregate(name, messages, index=K - 1):
    return apply("aggregator", name, messages, index=index).rows[0]


def separated(x):
    """Whether no two messages and no two distances are so nearly equal that rounding decides between them."""
    gaps = np.sort(((x[:, None] - x[None]) ** 2).sum(axis=2)[np.triu_indices(K, 1)])
    return gaps[0] > 1e-2 and np.all(np.diff(gaps) > 1e-3 * gaps[1:])


spread = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).normal(0, 3, (K, D)).astype(np.float32))
INPUTS = {
    "order": {"x": spread.filter(separated), "order": st.permutations(range(K))},
    "shift": {"x": spread.filter(separated), "shift": arrays.arrays(np.float32, D, elements=st.integers(-64, 64))},
    "agreed": {"value": arrays.arrays(np.float32, D, elements=numbers), "lies": far},
    "scattered": {"x": vectors, "lies": far, "scale": st.sampled_from([1e-6, 1.0, 1e6])},
}


@cache
def examples(kind):
    """Draw inputs once, for all rules."""
    found = []

    @few
    @given(**INPUTS[kind])
    def remember(**example):
        found.append(example)

    remember()
    assert len(found) == few.max_examples
    return found


def check_order_does_not_matter(name, x, order):
    order = np.array(order)
    here = aggregate(name, x, index=0)
    there = aggregate(name, x[order], index=int(np.argwhere(order == 0)[0, 0]))
    np.testing.assert_allclose(there, here, rtol=2e-3, atol=2e-3)


def check_moves_with_its_messages(name, x, shift, kind="aggregator"):
    here, there = (apply(kind, name, messages, index=K - 1).rows for messages in (x, x + shift))
    np.testing.assert_allclose(there, here + shift, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("kind,name", [(kind, name) for kind, name in ALL if kind != "aggregator"])
def test_other_rules_that_promise_it_move_with_their_messages(kind, name):
    for example in examples("shift") if build(kind, name)[0].translates else []:
        check_moves_with_its_messages(name, **example, kind=kind)


def check_recovers_what_all_honest_say(name, value, lies):
    f = min(F, aggregators[name].most(K))
    x = np.concatenate([lies[:f], np.repeat(value[None], K - f, axis=0)])
    np.testing.assert_allclose(aggregate(name, x), value, rtol=1e-4, atol=1e-4 * (1 + np.abs(value).max()))


def check_error_is_bounded_by_the_honest_spread(name, x, lies, scale):
    f = min(F, aggregators[name].most(K))
    x = np.concatenate([lies[:f] * scale, x[f:]])
    honest = x[f:].astype(np.float64)
    centre = honest.mean(axis=0)
    radius = np.linalg.norm(honest - centre, axis=1).max()
    error = np.linalg.norm(aggregate(name, x) - centre)
    bound = LARGEST_ERROR.get(name, LARGEST_ERROR_OF_OTHERS)
    assert error <= bound * radius + 1e-4 * (1 + np.abs(centre).max())


def check_stays_finite_if_no_message_or_not_the_own_one_is_usable(aggregate):
    x = np.random.default_rng(0).normal(size=(K, D)).astype(np.float32)
    own_lost = np.where(np.arange(K)[:, None] == 0, np.nan, x)
    for messages in (np.full_like(x, np.nan), np.full_like(x, np.inf), own_lost):
        assert np.isfinite(aggregate(messages)).all()


def test_a_pair_that_is_fedpg_brs_whole_crowd_shares_the_middle():
    """Two messages, each the other's farthest of a majority, are equally near to their mean."""
    x = np.random.default_rng(124009).normal(0, 3, (K, D)).astype(np.float32)
    order = np.array([0, 1, 2, 3, 4, 6, 7, 8, 5])
    np.testing.assert_allclose(aggregate("fedpg-br", x[order], index=0), aggregate("fedpg-br", x, index=0), rtol=1e-5)


@pytest.mark.parametrize("name", aggregators.names())
def test_promises(name):
    """What the mathematics promises of a rule, on inputs generated by hypothesis."""
    translates = build("aggregator", name)[0].translates
    robust = translates and aggregators[name].limit is not None
    for promised, check, kind in (
        (not depends_on_its_key("aggregator", name), check_order_does_not_matter, "order"),
        (translates, check_moves_with_its_messages, "shift"),
        (robust, check_recovers_what_all_honest_say, "agreed"),
        (robust, check_error_is_bounded_by_the_honest_spread, "scattered"),
    ):
        for example in examples(kind) if promised else []:
            check(name, **example)
    if name != "mean":
        check_stays_finite_if_no_message_or_not_the_own_one_is_usable(partial(aggregate, name, index=0))


@pytest.mark.slow
def test_signguard_with_few_coordinates_stays_finite():
    check_stays_finite_if_no_message_or_not_the_own_one_is_usable(
        lambda messages: jb.aggregate("signguard", jax.random.key(0), messages, byzantine=1)
    )


def test_smea_is_exact():
    clouds = np.random.default_rng(4).normal(size=(6, K, D)).astype(np.float32)
    clouds[1, :F] += 50
    clouds[2, 0], clouds[2, 4] = np.nan, np.inf
    for x in clouds:
        subsets = [s for s in map(list, combinations(range(K), K - F)) if np.isfinite(x[s]).all()]
        best = min(subsets, key=lambda s: np.linalg.eigvalsh(np.cov(x[s].T.astype(np.float64), bias=True))[-1])
        np.testing.assert_allclose(aggregate("smea", x), x[best].mean(axis=0), rtol=1e-4, atol=1e-5)


def test_smea_does_not_depend_on_the_scale():
    for seed in range(12):
        x = np.random.default_rng(seed).standard_normal((K, D))
        x[:F] *= 3
        scaled = ((scale * x).astype(np.float32) for scale in (1.0, 1e-12, 1e-9, 1e10, 1e14))
        plain, *others = (apply("aggregator", "smea", messages).shares for messages in scaled)
        for other in others:
            np.testing.assert_array_equal(plain, other)


@table
def test_limit_and_summary(kind, name):
    entry = KINDS[kind][name]
    most = entry.most(K)
    assert 0 <= most < K and (entry.limit is None or most < entry.limit * K <= most + 1)
    assert entry.summary


def test_chain_multiplies_shares():
    rule = chain(pre_aggregators["bucketing"].build(K, 2, size=2), pre_aggregators["nnm"].build(5, 1),
                 aggregators["multi-krum"].build(5, 1))  # fmt: skip
    x = draw(11)
    call = jax.jit(lambda key, x: rule.apply(key, x, Receiver(x[0], jnp.int32(0)), rule.init(K, D)))
    rows, shares, _ = call(jax.random.key(1), x)
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
    x = np.repeat(draw(12)[:1], K, axis=0)
    x[:2] = 50.0

    @jax.jit
    def step(x, state):
        return rule.apply(jax.random.key(0), x, Receiver(x[3], jnp.int32(3)), state)

    state = rule.init(K, D)
    for _ in range(60):
        rows, _, state = step(x, state)
    (row,) = np.asarray(rows)
    np.testing.assert_array_equal(row, state)
    assert np.linalg.norm(row - x[3]) < 0.5 * 2 / 7 + 0.01  # where the pulls of two and of seven balance


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
