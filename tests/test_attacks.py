"""One table test over every registered attack, and the properties of the gradient-found attack."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbyz.attacks import View, attacks, from_function, gradient_found, honest_mean, rule_output
from jaxbyz.attacks.ascent import Climber, ascend
from jaxbyz.attacks.base import mirrored_for_half
from jaxbyz.attacks.one_of import choose_attack, one_of
from jaxbyz.errors import UsageError
from jaxbyz.protocol.agreements import diameter
from jaxbyz.protocol.communication import Adversary, omniscient_view, received
from jaxbyz.rules import aggregators

K, D, F = 7, 5, 2
MASKS = {
    "first": np.arange(K) < F,
    "last": np.arange(K) >= K - F,
    "one": np.arange(K) == 3,
    "nobody": np.zeros(K, bool),
}
SMALL = {"gradient-found": {"steps": 4, "restarts": 3}}
FORGED = [
    (entry.name, kind)
    for entry in attacks
    for kind in ("gradients", "parameters")
    if getattr(entry.build(K, F, **SMALL.get(entry.name, {})), kind) is not None
]


def messages(seed: int, agents: int = K, size: int = D) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (agents, size)) + 0.5


def median(x: jax.Array) -> jax.Array:
    return jnp.median(x, axis=0)


@pytest.mark.parametrize(("name", "kind"), FORGED)
def test_every_attack_on_messages(name: str, kind: str) -> None:
    """jit, vmap, shape, dtype, honest rows untouched, finite, deterministic, one compilation for all masks."""
    attack = attacks[name].build(K, F, **SMALL.get(name, {}))
    forge = getattr(attack, kind)
    traces = []

    def messages_received(key: jax.Array, x: jax.Array, mask: jax.Array, memory, receiver: jax.Array) -> jax.Array:
        traces.append(1)
        view = View(x, mask, median, memory, jnp.int32(0))
        return received(key, view, forge, receiver, restore_own=False)

    jitted = jax.jit(messages_received)
    x, key, memory = messages(0), jax.random.key(1), attack.init(K, D)
    results = {}
    for label, mask in MASKS.items():
        out = results[label] = jitted(key, x, jnp.asarray(mask), memory, jnp.int32(4))
        assert out.shape == x.shape and out.dtype == x.dtype
        assert np.array_equal(out[~mask], x[~mask]), "an honest sender's message was altered"
        if name not in ("inf", "nan"):
            assert np.isfinite(out).all()
        else:
            assert not np.isfinite(out[mask]).any()
    assert len(traces) == 1, "a new mask compiled a new program"
    again = jitted(key, x, jnp.asarray(MASKS["first"]), memory, jnp.int32(4))
    np.testing.assert_array_equal(again, results["first"])

    if (name, kind) == ("gradient-found", "parameters"):
        return  # the slowest to compile; the search under vmap is covered on gradients
    batch = jnp.stack([x, messages(2)])
    batched = jax.jit(jax.vmap(messages_received, (None, 0, None, None, None)))(
        key, batch, jnp.asarray(MASKS["first"]), memory, jnp.int32(4)
    )
    # A search compares damages, so a rounding difference under vmap may lead it elsewhere: only the shape is compared.
    assert batched.shape == batch.shape
    if name != "gradient-found":
        np.testing.assert_allclose(batched[0], results["first"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [entry.name for entry in attacks])
def test_attacks_that_say_they_do_not_equivocate_do_not(name: str) -> None:
    attack = attacks[name].build(K, F, **SMALL.get(name, {}))
    mask = jnp.asarray(MASKS["first"])
    for forge in (attack.gradients, attack.parameters):
        if forge is None or name in ("nan", "gradient-found"):
            continue
        view = View(messages(0), mask, median, attack.init(K, D), jnp.int32(0))
        sent = jax.jit(jax.vmap(lambda r, forge=forge, view=view: forge(jax.random.key(1), view, r)[:F]))(
            jnp.array([4, 5])
        )
        assert attack.equivocates == (not np.array_equal(sent[0], sent[1]))


def test_registry_covers_the_field() -> None:
    """Every attack of comparable libraries has a name and its own summary."""
    wanted = {
        "in the environment": "random-action constant-action reward-flip reward-shuffle reward-poison",
        "the paper's": "none large-noise avg-zero",
        "on messages": "sign-flip ipm alie opt-ipm opt-alie mimic mimic-warmup min-max min-sum gaussian zero inf nan",
        "others": "fedpg-br fedpg-br-noise equivocating-alie equivocating-min-max dissensus gradient-found",
        "since 2024": "normalized drift coupled-alie spectral learned",
    }
    for names in wanted.values():
        assert set(names.split()) <= set(attacks.names())
    assert len({entry.summary for entry in attacks}) == len(attacks.names())


def test_mirroring_splits_honest_receivers_evenly() -> None:
    mask = jnp.asarray(MASKS["first"])
    x = messages(3)
    view = View(x, mask, median, (), jnp.int32(0))
    forge = mirrored_for_half(lambda key, view, receiver: jnp.ones_like(view.messages))
    sent = jnp.stack([forge(jax.random.key(0), view, jnp.int32(r))[0] for r in range(F, K)])
    other = 2 * honest_mean(x, mask) - 1.0
    straight = np.array([np.allclose(row, 1.0) for row in sent])
    assert straight.sum() == 3 and np.allclose(np.asarray(sent)[~straight], other, atol=1e-6)


def test_from_function_names_what_is_wrong() -> None:
    attack = from_function(lambda key, x, mask: x[0])
    view = View(messages(0), jnp.asarray(MASKS["first"]), median, (), jnp.int32(0))
    with pytest.raises(ValueError, match="must be"):
        attack.gradients(jax.random.key(0), view, jnp.int32(0))


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("sign-flip", {"of": "nobody"}, "of='nobody'"),
        ("ipm", {"on": "rewards"}, "on='rewards'"),
        ("min-max", {"direction": "up"}, "direction='up'"),
        ("min-sum", {"direction": "up"}, "direction='up'"),
        ("gradient-found", {"objective": "chaos"}, "objective='chaos'"),
        ("gradient-found", {"steps": -1}, "steps=-1: must be at least 0"),
        ("gradient-found", {"restarts": 0}, "restarts=0: must be at least 1"),
        ("constant-action", {"action": -1}, r"action=-1\.0: must be at least 0"),
    ],
)
def test_wrong_options_are_named(name: str, options: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        attacks[name].build(K, F, **options)


def test_interference_in_the_environment() -> None:
    """Constant actions, flipped rewards, and rewards permuted within the steps of each episode that are alive."""
    draws = jnp.zeros((4, 1))
    buttons = SimpleNamespace(discrete=True, n=3, low=None, high=None)
    act = attacks["constant-action"].build(K, F, action=7).interfere(buttons).act
    chosen = act(draws, jnp.zeros(4, jnp.int32))
    assert chosen.dtype == jnp.int32 and np.array_equal(chosen, np.full(4, 2))
    lever = SimpleNamespace(discrete=False, n=2, low=np.array([-1.0, 0.0]), high=np.array([1.0, 4.0]))
    act = attacks["constant-action"].build(K, F, action=0.25).interfere(lever).act
    np.testing.assert_allclose(act(jnp.zeros((4, 2)), jnp.ones((4, 2))), np.tile([-0.5, 1.0], (4, 1)))
    with pytest.raises(ValueError, match=r"action=2\.0: must be between 0 and 1"):
        attacks["constant-action"].build(K, F, action=2).interfere(lever)

    rewards = jnp.arange(1.0, 31.0).reshape(10, 3)
    alive = jnp.arange(10)[:, None] < jnp.array([10, 4, 1])[None]
    flip = attacks["reward-flip"].build(K, F).interfere(buttons).rewards
    np.testing.assert_array_equal(flip(jax.random.key(0), rewards, alive), np.where(alive, -np.asarray(rewards), 0))
    shuffle = jax.jit(attacks["reward-shuffle"].build(K, F).interfere(buttons).rewards)
    mixed = np.asarray(shuffle(jax.random.key(0), rewards, alive))
    for m, T in enumerate([10, 4, 1]):
        assert sorted(mixed[:T, m]) == list(np.asarray(rewards)[:T, m])
        assert (mixed[T:, m] == 0).all()
    assert not np.array_equal(mixed[:, 0], rewards[:, 0])
    gappy = alive.at[0, 0].set(False)  # steps that are alive need not come first
    mixed = np.asarray(shuffle(jax.random.key(0), rewards, gappy))
    assert mixed[0, 0] == 0 and sorted(mixed[1:, 0]) == list(np.asarray(rewards)[1:, 0])


FIXED = (
    "ipm", "alie", "opt-ipm", "opt-alie", "min-max", "min-sum", "mimic", "sign-flip", "fedpg-br", "avg-zero", "zero",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["krum", "mda", "rfa"])
def test_gradient_found_beats_every_fixed_attack(name: str) -> None:
    """It does at least the damage of each fixed attack, and strictly more than its best start."""
    rule = aggregators[name].build(K, 1)

    @jax.jit
    def damages(key: jax.Array, x: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
        chosen = {fixed: attacks[fixed].build(K, 1) for fixed in FIXED}
        chosen["start"] = gradient_found(on="gradients", restarts=1, steps=0)
        chosen["found"] = gradient_found(on="gradients", restarts=4, steps=20)
        view = omniscient_view(key, rule, rule.init(*x.shape), x, Adversary(mask))
        sent = {
            label: received(key, view, attack.gradients, jnp.int32(0), restore_own=False)
            for label, attack in chosen.items()
        }
        outs = jax.vmap(view.rule)(jnp.stack(list(sent.values())))
        moved = jnp.linalg.norm(outs - honest_mean(x, mask)[None], axis=1)
        return dict(zip(sent, moved, strict=True))

    done = {k: float(v) for k, v in damages(jax.random.key(5), messages(11, K, 8), jnp.arange(K) == 2).items()}
    found, start = done.pop("found"), done.pop("start")
    for fixed, moved in done.items():
        assert start >= moved * (1 - 1e-5), fixed
    assert found > start * 1.001


def test_gradient_found_stays_within_reach() -> None:
    """Projection: with reach=2 no forged row is farther than twice the honest spread from the honest mean."""
    x, mask = messages(1, K, 8), jnp.asarray(MASKS["first"])
    view = View(x, mask, lambda m: jnp.mean(m, axis=0), (), jnp.int32(0))
    attack = gradient_found(on="gradients", reach=2.0, steps=8, restarts=3)
    forged = jax.jit(lambda key: attack.gradients(key, view, jnp.int32(0)))(jax.random.key(0))
    honest = np.asarray(x, np.float64)[F:]
    spread = np.sqrt(((honest - honest.mean(0)) ** 2).sum(1).mean())
    radii = np.linalg.norm(np.asarray(forged)[:F] - honest.mean(0), axis=1)
    # against the mean, the best message is on the boundary
    np.testing.assert_allclose(radii, 2.0 * spread, rtol=1e-3)


def test_gradient_found_turns_the_mean_around() -> None:
    """objective="inner" against the mean: the optimum within reach R is −R·s along the honest mean."""
    x, mask = messages(1, K, 8), jnp.asarray(MASKS["first"])
    view = View(x, mask, lambda m: jnp.mean(m, axis=0), (), jnp.int32(0))
    attack = gradient_found(on="gradients", objective="inner", reach=3.0, steps=20, restarts=3)
    forged = np.asarray(jax.jit(lambda key: attack.gradients(key, view, jnp.int32(0)))(jax.random.key(0)))
    honest = np.asarray(x, np.float64)[F:]
    mean = honest.mean(0)
    spread = np.sqrt(((honest - mean) ** 2).sum(1).mean())
    best = mean - 3.0 * spread * mean / np.linalg.norm(mean)
    np.testing.assert_allclose(forged[:F], np.tile(best, (F, 1)), atol=0.05)


@pytest.mark.slow
def test_gradient_found_impedes_agreement() -> None:
    """After a round of MDA, honest agents are farther apart than under dissensus or equivocating ALIE and MinMax."""
    rule = aggregators["mda"].build(K, 1)
    chosen = {name: attacks[name].build(K, 1) for name in ("dissensus", "equivocating-alie", "equivocating-min-max")}
    chosen["found"] = gradient_found(on="parameters", steps=20, restarts=4)

    @jax.jit
    def after(key: jax.Array, x: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
        def messages_to_all(attack) -> jax.Array:
            view = omniscient_view(key, rule, (), x, Adversary(mask))
            one = lambda r: received(key, view, attack.parameters, r, restore_own=False)  # noqa: E731
            return jax.vmap(one)(jnp.arange(K))

        sent = jnp.stack([messages_to_all(attack) for attack in chosen.values()])  # [attack, receiver, sender, D]
        rows = jax.lax.map(jax.vmap(omniscient_view(key, rule, (), x, Adversary(mask)).rule), sent)
        return dict(zip(chosen, jax.vmap(lambda now: diameter(now, mask))(rows), strict=True))

    x, mask = messages(4, K, 4), jnp.arange(K) == 3
    done = {name: float(value) for name, value in after(jax.random.key(0), x, mask).items()}
    assert done["found"] == max(done.values())
    assert done["found"] > 0.1 * float(diameter(x, mask))


def test_rule_output_is_that_of_the_first_honest_receiver() -> None:
    """A rule that trusts row 0 finds an honest agent there, whoever is Byzantine."""
    x = messages(0)
    for label, first in (("first", F), ("last", 0)):
        view = View(x, jnp.asarray(MASKS[label]), lambda m: m[0], (), jnp.int32(0))
        np.testing.assert_array_equal(rule_output(view, x), x[first])
        np.testing.assert_array_equal(rule_output(view, x, receiver=jnp.int32(5)), x[5])


def test_ascent_climbs_to_the_edge_of_a_jump() -> None:
    """The value grows with x up to a jump at 1, as when a rule stops selecting a message, and is NaN below −10."""

    def objective(x: jax.Array, offset: jax.Array) -> jax.Array:
        return jnp.where(x < -10.0, jnp.nan, jnp.where(x < 1.0, x, -1.0)) + offset

    def propose(i: jax.Array, now: Climber, noise: jax.Array) -> jax.Array:
        return now.point + now.step * (now.slope + 0.1 * noise)

    starts, offsets = jnp.array([-20.0, 0.0, 5.0]), jnp.array([0.0, 0.0, 3.0])
    noise = jax.random.normal(jax.random.key(0), (3, 60))
    found = jax.jit(lambda starts, noise: ascend(objective, propose, starts, noise, offsets))(starts, noise)
    assert found.value[0] == -jnp.inf and found.point[0] == -20.0
    assert 0.99 < found.point[1] < 1.0 and found.value[1] == found.point[1]
    assert found.value[2] >= 2.0, "a climber ended below its start"


def test_a_function_with_other_arguments_is_refused_at_once():
    with pytest.raises(UsageError, match=r"must be a function of \(key, messages, mask\)"):
        from_function(lambda messages, mask: messages)


def test_one_of_several_attacks_sends_what_the_attack_alone_sends() -> None:
    """Two iterations, both kinds of messages; attacks with and without memory, random ones and one that equivocates."""
    names = ("none", "avg-zero", "large-noise", "min-max", "mimic-warmup", "drift", "random-action")
    shared = {name: attacks[name].build(K, F) for name in names}
    together, key, mask = one_of(list(shared.values())), jax.random.key(2), jnp.asarray(MASKS["last"])

    def sent(attack, memory):
        rows = []
        for step in range(2):
            view = View(messages(step), mask, median, memory, jnp.int32(step))
            rows += [
                received(key, view, forge, jnp.int32(1), restore_own=False)
                for forge in (attack.gradients, attack.parameters)
            ]
            memory = attack.remember(view)
        return jnp.stack(rows)

    memories = jax.vmap(lambda index: choose_attack(together.init(K, D), index))(jnp.arange(len(shared)))
    found = jax.jit(jax.vmap(lambda memory: sent(together, memory)))(memories)
    for (name, attack), rows in zip(shared.items(), found, strict=True):
        np.testing.assert_allclose(rows, sent(attack, attack.init(K, D)), rtol=1e-5, atol=1e-5, err_msg=name)


def test_one_of_several_attacks_interferes_only_if_the_attack_in_the_environment_is_chosen() -> None:
    attack = one_of([attacks[name].build(K, F) for name in ("alie", "random-action", "none")])
    mask = jnp.asarray(MASKS["last"])
    who = [attack.interferers(choose_attack(attack.init(K, D), jnp.int32(index)), mask) for index in range(3)]
    np.testing.assert_array_equal(np.array(who), [np.zeros(K, bool), mask, np.zeros(K, bool)])
    first_only = attacks["random-action"].build(K, F)._replace(interferers=lambda memory, mask: mask & ~memory)
    first_only = first_only._replace(init=lambda K, D: jnp.arange(K) > K - F)
    nested = one_of([attacks["alie"].build(K, F), one_of([first_only, attacks["none"].build(K, F)])])
    memory = choose_attack(nested.init(K, D), jnp.int32(1))
    np.testing.assert_array_equal(nested.interferers(memory, mask), np.arange(K) == K - F)  # as the attack itself says
    assert int(memory.memories[1].choice) == 0
    with pytest.raises(UsageError, match="at most one"):
        one_of([attacks["random-action"].build(K, F), attacks["reward-flip"].build(K, F)])
