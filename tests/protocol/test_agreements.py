"""Agreement: Definition 4's contraction under equivocation, trimmed ranges, gossip on graphs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbyz.errors import UsageError
from jaxbyz.protocol import graphs
from jaxbyz.protocol.agreements import Agreement, agreements, diameter, run_agreement
from jaxbyz.protocol.exchange import Adversary

K, D = 13, 5


def starts(seed):
    """Honest vectors as a cloud, as two camps, and as one outlier: [3, K, D]."""
    rng = np.random.default_rng(seed)
    cloud = rng.normal(size=(K, D))
    camps = np.where(np.arange(K)[:, None] % 2, 1.0, -1.0) + 0.01 * rng.normal(size=(K, D))
    outlier = 0.01 * rng.normal(size=(K, D))
    outlier[K - 1] += 5.0
    return np.stack([cloud, camps, outlier]).astype(np.float32)


def noise(key, view, receiver):
    return 100.0 * jax.random.normal(jax.random.fold_in(key, receiver), view.messages.shape)


def echo(key, view, receiver):
    """Every receiver hears its own vector back, so that nobody moves."""
    return jnp.broadcast_to(view.messages[receiver], view.messages.shape)


def apart(key, view, receiver):
    """Receivers on either side of the middle are pulled outwards, by as much as the honest spread could hide."""
    honest = jnp.where(view.mask[:, None], jnp.nan, view.messages)
    centre = jnp.nanmean(honest, axis=0)
    own = view.messages[receiver]
    out = own - centre
    return jnp.broadcast_to(own + out, view.messages.shape)


def extremes(key, view, receiver):
    """Half of the receivers hear the honest vector farthest one way, the others that farthest the other way."""
    side = jnp.where(receiver % 2 == 0, 1.0, -1.0)
    along = side * view.messages.sum(axis=1)
    far = jnp.argmax(jnp.where(view.mask, -jnp.inf, along))
    return jnp.broadcast_to(view.messages[far], view.messages.shape)


def broken(key, view, receiver):
    return jnp.full(view.messages.shape, jnp.where(receiver % 2 == 0, jnp.nan, jnp.inf))


ATTACKS = (noise, echo, apart, extremes, broken)


def after_rounds(rule, x, mask, rounds):
    """Parameters after each round: [attack, start, round, K, D], every attack on every start in one program."""

    def one(which, start):
        def forge(key, view, receiver):
            return jnp.stack([attack(key, view, receiver) for attack in ATTACKS])[which]

        def once(now, key):
            now = run_agreement(key, Agreement(rule, 1), now, Adversary(jnp.asarray(mask), forge, True)).parameters
            return now, now

        return jax.lax.scan(once, start, jax.random.split(jax.random.key(1), rounds))[1]

    every = jax.vmap(jax.vmap(one, (None, 0)), (0, None))
    return np.asarray(jax.jit(every)(np.arange(len(ATTACKS)), x))


def diameters(x):
    """Largest pairwise distance of [..., n, D]."""
    return np.linalg.norm(x[..., :, None, :] - x[..., None, :, :], axis=-1).max(axis=(-1, -2))


# Two receivers' sets differ in at most f forged vectors each, paired at 2Δ (MDA) or 3Δ (GDA), and f honest ones at Δ.
@pytest.mark.parametrize("name,per_liar", [("mda", 3), ("gda", 4)])
@pytest.mark.parametrize("f", [1, None])
def test_diameter_contracts(name, per_liar, f):
    f = agreements[name].most(K) if f is None else f
    rate = per_liar * f / (K - f)
    assert rate < 1
    x, kappa = starts(2), 5
    after = after_rounds(agreements[name].build(K, f), x, np.arange(K) < f, kappa)[..., f:, :]
    first = diameters(x[:, f:])
    assert np.isfinite(after).all()
    shrunk = diameters(after) / first[None, :, None]
    assert (shrunk <= rate ** np.arange(1, kappa + 1) + 1e-5).all()
    halves = (shrunk <= 2.0 ** -np.arange(1, kappa + 1) + 1e-5).all()
    assert halves == (f == 1)  # Definition 4 to the letter for one liar; at the limit a round takes longer than a half
    stray = np.linalg.norm(after.mean(axis=-2) - x[:, f:].mean(axis=-2)[None, :, None], axis=-1)
    assert (stray <= 2 * first[None, :, None]).all()  # C_avg


@pytest.mark.parametrize("f", [pytest.param(3, marks=pytest.mark.slow), 4])
def test_trimmed_mean_shrinks_every_coordinate(f):
    assert f <= agreements["trimmed-mean"].most(K) == 4
    x = starts(4)
    after = after_rounds(agreements["trimmed-mean"].build(K, f), x, np.arange(K) < f, 1)[:, :, 0, f:]
    before = x[:, f:]
    assert (after.min(axis=-2) >= before.min(axis=-2) - 1e-5).all()
    assert (after.max(axis=-2) <= before.max(axis=-2) + 1e-5).all()
    assert (np.ptp(after, axis=-2) <= f / (K - 2 * f) * np.ptp(before, axis=-2) + 1e-5).all()


def test_tolerance_stops_early_and_none_does_nothing():
    x, mask = starts(5)[0], np.arange(K) < 3
    settle = Agreement(agreements["mda"].build(K, 3), 50, 1e-3)

    @jax.jit
    def settled(x, mask):
        done = run_agreement(jax.random.key(0), settle, x, Adversary(mask, noise, True))
        unchanged = run_agreement(jax.random.key(0), None, x, Adversary(mask)).parameters
        return done.rounds, diameter(done.parameters, mask), unchanged

    rounds, left, unchanged = settled(x, mask)
    assert 0 < int(rounds) < 50 and float(left) <= 1e-3
    np.testing.assert_array_equal(unchanged, x)


@pytest.mark.parametrize("name", graphs.GRAPHS)
@pytest.mark.parametrize("agents", [12, 13])
def test_graphs_and_weights(name, agents):
    adjacency = graphs.graph(name, agents)
    assert (adjacency == adjacency.T).all() and not adjacency.diagonal().any() and graphs.connected(adjacency)
    degree = {"complete": agents - 1, "ring": 2, "torus": 4 if agents == 12 else 2, "random-regular": 4}[name]
    assert (adjacency.sum(axis=1) == degree).all()
    weights = graphs.metropolis_weights(adjacency)
    np.testing.assert_allclose(weights.sum(axis=0), 1.0)
    assert (weights >= 0).all() and (weights == weights.T).all()
    assert name != "complete" or np.allclose(weights, 1 / agents)


def test_graph_errors_name_the_value():
    with pytest.raises(UsageError, match="degree=3 with agents=13"):
        graphs.random_regular(13, 3)
    with pytest.raises(UsageError, match="graph='star'"):
        graphs.graph("star", 13)
    assert not (graphs.random_regular(12, 3, seed=1) == graphs.random_regular(12, 3, seed=2)).all()


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_gossip_without_liars_is_plain_averaging(name):
    rule = agreements["clipped-gossip"].build(12, 0, graph=name)
    weights = graphs.metropolis_weights(graphs.graph(name, 12))
    x = np.random.default_rng(6).normal(size=(12, D)).astype(np.float32)
    agree = jax.jit(lambda x, mask: run_agreement(jax.random.key(0), Agreement(rule, 3), x, Adversary(mask)).parameters)
    np.testing.assert_allclose(
        agree(x, np.zeros(12, bool)), np.linalg.matrix_power(weights, 3) @ x, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("name", "agreement"),
    [
        ("complete", "cs-gossip"),
        ("torus", "clipped-gossip"),
        pytest.param("complete", "clipped-gossip", marks=pytest.mark.slow),
        pytest.param("torus", "cs-gossip", marks=pytest.mark.slow),
    ],
)
def test_gossip_agrees_although_some_lie(name, agreement):
    agents, f = 12, 1
    rule = agreements[agreement].build(agents, f, graph=name)
    x = np.random.default_rng(7).normal(size=(agents, D)).astype(np.float32)
    after = after_rounds(rule, x[None], np.arange(agents) < f, 40)[:, 0, -1, f:]
    assert (diameters(after) < 0.05 * diameters(x[f:])).all()


def test_gossip_clips_to_the_radius():
    rule = agreements["clipped-gossip"].build(4, 1, radius=0.5)
    x = np.zeros((4, 2), np.float32)
    x[0] = 100.0
    once = jax.jit(lambda x, mask: run_agreement(jax.random.key(0), Agreement(rule, 1), x, Adversary(mask)).parameters)
    np.testing.assert_allclose(np.linalg.norm(once(x, np.arange(4) < 1)[1:], axis=1), 0.5 / 4, rtol=1e-5)


@pytest.mark.parametrize("graph", ["complete", "torus"])
def test_cs_gossip_clips_at_the_farthest_neighbours_of_twice_the_byzantine_weight(graph):
    """Against the definition in float64: sort the neighbours by distance and add up their weights."""
    agents, f = 12, 2
    rule = agreements["cs-gossip"].build(agents, f, graph=graph)
    weights = graphs.metropolis_weights(graphs.graph(graph, agents))
    x = np.random.default_rng(8).normal(size=(agents, D))
    agree = jax.jit(lambda x, mask: run_agreement(jax.random.key(0), Agreement(rule, 1), x, Adversary(mask)).parameters)
    once = np.asarray(agree(x.astype(np.float32), np.zeros(agents, bool)))
    for i in range(agents):
        neighbours = [j for j in range(agents) if j != i and weights[i, j] > 0]
        b = min(f, len(neighbours) // 2)
        byzantine_weight = np.sort(weights[i, neighbours])[::-1][:b].sum()
        ranked = sorted(neighbours, key=lambda j: -np.linalg.norm(x[j] - x[i]))
        above, radius = 0.0, 0.0
        for j in ranked:
            above += weights[i, j]
            if above >= 2 * byzantine_weight - 1e-9:
                radius = np.linalg.norm(x[j] - x[i])
                break
        expected = x[i].copy()
        for j in neighbours:
            distance = np.linalg.norm(x[j] - x[i])
            expected += weights[i, j] * min(1.0, radius / distance) * (x[j] - x[i])
        np.testing.assert_allclose(once[i], expected, rtol=1e-4, atol=1e-4)


def test_diameter_has_a_gradient_at_zero():
    gradient = jax.jit(jax.grad(lambda x: diameter(x, jnp.zeros(K, bool))))(np.ones((K, D), np.float32))
    assert np.isfinite(gradient).all()
