"""One table test over every registered attack, and the properties of the gradient-found attack."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbyz.attacks import Attack, View, attacks, from_function, gradient_found, honest_mean, rule_output
from jaxbyz.attacks.ascent import Climber, ascend
from jaxbyz.attacks.base import mirrored_for_half
from jaxbyz.attacks.fedpg_br_attacks import ranges_of
from jaxbyz.attacks.gradient_found import WIDE
from jaxbyz.attacks.gradient_found_starts import families_of_starts, in_subspace, ingredients_of_starts
from jaxbyz.attacks.one_of import choose_attack, one_of
from jaxbyz.components import make_rule
from jaxbyz.errors import UsageError
from jaxbyz.protocol.agreements import diameter
from jaxbyz.protocol.exchange import Adversary, omniscient_view, sent_to
from jaxbyz.rules import aggregators

K, D, F = 7, 5, 2
MASKS = {
    "first": np.arange(K) < F,
    "last": np.arange(K) >= K - F,
    "one": np.arange(K) == 3,
    "nobody": np.zeros(K, bool),
}
SMALL = {"gradient-found": {"steps": 4, "restarts": 3}}


def small_attack(name: str) -> Attack:
    return attacks[name].build(K, F, **SMALL.get(name, {}))


def kinds_of_messages(attack: Attack) -> list[str]:
    """The messages that an attack forges; only one kind if it forges both with the same function."""
    kinds = [kind for kind in ("gradients", "parameters") if getattr(attack, kind) is not None]
    return kinds[:1] if attack.gradients is attack.parameters else kinds


FORGED = [(entry.name, kind) for entry in attacks for kind in kinds_of_messages(small_attack(entry.name))]


def messages(seed: int, agents: int = K, size: int = D) -> np.ndarray:
    return np.asarray(jax.random.normal(jax.random.key(seed), (agents, size))) + np.float32(0.5)


def median(x: jax.Array) -> jax.Array:
    return jnp.median(x, axis=0)


@pytest.mark.parametrize(("name", "kind"), FORGED)
def test_every_attack_on_messages(name: str, kind: str) -> None:
    """jit, vmap, shape, dtype, honest rows untouched, finite, deterministic, one compilation for all masks; and attacks
    that say that they do not equivocate do not."""
    attack = small_attack(name)
    traces = []

    def messages_received(x: jax.Array, mask: jax.Array, receiver: jax.Array) -> jax.Array:
        view = View(x, mask, median, attack.init(K, D), jnp.int32(0))
        return sent_to(jax.random.key(1), view, getattr(attack, kind), receiver, restore_own=False)

    ways = {
        "alone": lambda batch, mask, receiver: messages_received(batch[0], mask, receiver)[None],
        "in a batch": jax.vmap(messages_received, (0, None, None)),
    }
    if name == "gradient-found":  # the slowest to compile
        del ways["alone" if kind == "gradients" else "in a batch"]

    @jax.jit
    def sent(batch: jax.Array, mask: jax.Array, receiver: jax.Array) -> dict[str, jax.Array]:
        traces.append(1)
        return {way: forge(batch, mask, receiver) for way, forge in ways.items()}

    batch = np.stack([messages(0), messages(2)])
    for mask in MASKS.values():
        found = jax.tree.map(np.asarray, sent(batch, mask, np.int32(4)))
        for x, out in ((x, out) for rows in found.values() for x, out in zip(batch, rows, strict=False)):
            assert out.shape == x.shape and out.dtype == x.dtype
            assert np.array_equal(out[~mask], x[~mask]), "an honest sender's message was altered"
            if name not in ("inf", "nan"):
                assert np.isfinite(out).all()
            else:
                assert not np.isfinite(out[mask]).any()
        if len(ways) == 2:
            np.testing.assert_allclose(found["in a batch"][0], found["alone"][0], rtol=1e-4, atol=1e-4)
    first, again, other = (
        next(iter(sent(batch, MASKS["first"], np.int32(receiver)).values()))[0] for receiver in (4, 4, 5)
    )
    np.testing.assert_array_equal(again, first)
    if name not in ("nan", "gradient-found"):
        assert attack.equivocates == (not np.array_equal(other, first))
    assert len(traces) == 1, "a new mask or receiver compiled a new program"


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
    x, mask = messages(3), MASKS["first"]
    forge = mirrored_for_half(lambda key, view, receiver: jnp.ones_like(view.messages))

    @jax.jit
    @jax.vmap
    def forged_for(receiver: jax.Array) -> jax.Array:
        view = View(jnp.asarray(x), jnp.asarray(mask), median, (), jnp.int32(0))
        return forge(jax.random.key(0), view, receiver)[0]

    sent = np.asarray(forged_for(np.arange(F, K)))
    other = 2 * x[~mask].mean(axis=0) - 1.0
    straight = np.array([np.allclose(row, 1.0) for row in sent])
    assert straight.sum() == 3 and np.allclose(sent[~straight], other, atol=1e-6)


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
    buttons = SimpleNamespace(discrete=True, n=3, low=None, high=None)
    act = jax.jit(attacks["constant-action"].build(K, F, action=7).interfere(buttons).act)
    chosen = act(np.zeros((4, 1), np.float32), np.zeros(4, np.int32))
    assert chosen.dtype == jnp.int32 and np.array_equal(chosen, np.full(4, 2))
    lever = SimpleNamespace(discrete=False, n=2, low=np.array([-1.0, 0.0]), high=np.array([1.0, 4.0]))
    act = jax.jit(attacks["constant-action"].build(K, F, action=0.25).interfere(lever).act)
    chosen = act(np.zeros((4, 2), np.float32), np.ones((4, 2), np.float32))
    np.testing.assert_allclose(chosen, np.tile([-0.5, 1.0], (4, 1)))
    with pytest.raises(ValueError, match=r"action=2\.0: must be between 0 and 1"):
        attacks["constant-action"].build(K, F, action=2).interfere(lever)

    rewards = np.arange(1.0, 31.0, dtype=np.float32).reshape(10, 3)
    alive = np.arange(10)[:, None] < np.array([10, 4, 1])[None]
    flip = jax.jit(attacks["reward-flip"].build(K, F).interfere(buttons).rewards)
    np.testing.assert_array_equal(flip(jax.random.key(0), rewards, alive), np.where(alive, -rewards, 0))
    shuffle = jax.jit(attacks["reward-shuffle"].build(K, F).interfere(buttons).rewards)
    mixed = np.asarray(shuffle(jax.random.key(0), rewards, alive))
    for m, T in enumerate([10, 4, 1]):
        assert sorted(mixed[:T, m]) == list(rewards[:T, m])
        assert (mixed[T:, m] == 0).all()
    assert not np.array_equal(mixed[:, 0], rewards[:, 0])
    gappy = alive.copy()
    gappy[0, 0] = False  # steps that are alive need not come first
    mixed = np.asarray(shuffle(jax.random.key(0), rewards, gappy))
    assert mixed[0, 0] == 0 and sorted(mixed[1:, 0]) == list(rewards[1:, 0])


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
            label: sent_to(key, view, attack.gradients, jnp.int32(0), restore_own=False)
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


@cache
def found_against_the_mean(objective: str, reach: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The honest messages, their root mean square distance from their mean, and the messages found against the mean."""
    x = messages(1, K, 8)
    attack = gradient_found(on="gradients", objective=objective, reach=reach, steps=20, restarts=3)

    @jax.jit
    def forge(x: jax.Array, mask: jax.Array) -> jax.Array:
        view = View(x, mask, lambda m: jnp.mean(m, axis=0), (), jnp.int32(0))
        return attack.gradients(jax.random.key(0), view, jnp.int32(0))

    forged, honest = np.asarray(forge(x, MASKS["first"]))[:F], x[F:].astype(np.float64)
    return honest, np.sqrt(((honest - honest.mean(0)) ** 2).sum(1).mean()), forged


@pytest.mark.parametrize(
    ("objective", "reach"), [("inner", 3.0), pytest.param("distance", 2.0, marks=pytest.mark.slow)]
)
def test_gradient_found_stays_within_reach(objective: str, reach: float) -> None:
    """Projection: no forged row is farther from the honest mean than `reach` honest spreads."""
    honest, spread, forged = found_against_the_mean(objective, reach)
    radii = np.linalg.norm(forged - honest.mean(0), axis=1)
    # against the mean, the best message is on the boundary
    np.testing.assert_allclose(radii, reach * spread, rtol=1e-3)


def test_gradient_found_turns_the_mean_around() -> None:
    """objective="inner" against the mean: the optimum within reach R is −R·s along the honest mean."""
    honest, spread, forged = found_against_the_mean("inner", 3.0)
    mean = honest.mean(0)
    best = mean - 3.0 * spread * mean / np.linalg.norm(mean)
    np.testing.assert_allclose(forged, np.tile(best, (F, 1)), atol=0.05)


def forged_in_a_subspace(x: np.ndarray, mask: np.ndarray, **options: float) -> dict[str, np.ndarray]:
    """The damage that is done to CAF by searching in all D dimensions and in the subspace, and by their best starts."""
    rule = aggregators["caf"].build(len(x), mask.sum())

    @jax.jit
    def damages(key: jax.Array, x: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
        view = omniscient_view(key, rule, (), x, Adversary(mask))
        done = {}
        for steps in (0, 20):
            forge = gradient_found(on="gradients", steps=steps, restarts=4, **options).gradients
            for where, seen in (("everywhere", view._replace(rotates=False)), ("in the subspace", view)):
                sent = sent_to(key, seen, forge, jnp.int32(0), restore_own=False)
                done[f"{where}, {steps} steps"] = jnp.linalg.norm(view.rule(sent) - honest_mean(x, mask))
        return done

    return {name: np.asarray(values) for name, values in damages(jax.random.key(5), x, mask).items()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", [{}, {"reach": 2.0}], ids=["anywhere", "within reach"])
def test_long_messages_are_forged_in_a_subspace(seed: int, options: dict[str, float]) -> None:
    """The starts do the same damage there, and the search finds at least 95 % of what it finds in all D dimensions."""
    done = forged_in_a_subspace(messages(seed, 13, WIDE), np.arange(13) % 4 == 1, **options)
    np.testing.assert_allclose(done["in the subspace, 0 steps"], done["everywhere, 0 steps"], rtol=1e-4)
    assert done["in the subspace, 20 steps"] >= done["in the subspace, 0 steps"]
    assert done["in the subspace, 20 steps"] >= 0.95 * done["everywhere, 20 steps"]


def test_a_rule_that_remembers_is_not_searched_in_a_subspace() -> None:
    """What it remembers is not rotated with the messages."""
    rule, x, mask = make_rule("memory+caf", K, F), jnp.ones((K, WIDE)), jnp.arange(K) < F
    view = omniscient_view(jax.random.key(0), rule, rule.init(K, WIDE), x, Adversary(mask))
    forge = gradient_found(on="gradients", steps=1, restarts=1).gradients
    assert jax.eval_shape(lambda key: forge(key, view, jnp.int32(0)), jax.random.key(0)).shape == x.shape


def test_the_starts_are_the_same_in_the_subspace() -> None:
    """Computed from coordinates in a basis of the subspace, every message and every start is the same vector."""
    key, x, mask = jax.random.key(3), messages(2, K, 64), MASKS["first"]

    @jax.jit
    def starts(x: jax.Array) -> tuple[list[jax.Array], list[jax.Array], jax.Array]:
        view = View(x, mask, median, (), jnp.int32(0))
        vectors, ranges = ingredients_of_starts(key, view), ranges_of(x)
        inside, basis = in_subspace(vectors)
        seen = view._replace(messages=inside.messages)
        return (
            [x, *families_of_starts(view, vectors, ranges, huge=True)],
            [inside.messages, *families_of_starts(seen, inside, ranges, huge=True)],
            basis,
        )

    everywhere, inside, basis = jax.tree.map(lambda array: np.asarray(array, np.float64), starts(x))
    assert basis.shape == (64, 3 * K + 4)
    for expected, coordinates in zip(everywhere, inside, strict=True):
        sizes = 1e-30 + np.linalg.norm(expected, axis=-1, keepdims=True)
        np.testing.assert_allclose(coordinates @ basis.T / sizes, expected / sizes, atol=1e-5)


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
            one = lambda r: sent_to(key, view, attack.parameters, r, restore_own=False)  # noqa: E731
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

    starts, offsets = np.array([-20.0, 0.0, 5.0], np.float32), np.array([0.0, 0.0, 3.0], np.float32)
    noise = np.random.default_rng(0).normal(size=(3, 60)).astype(np.float32)
    found = jax.jit(lambda *arguments: ascend(objective, propose, *arguments))(starts, noise, offsets)
    point, value = np.asarray(found.point), np.asarray(found.value)
    assert value[0] == -np.inf and point[0] == -20.0
    assert 0.99 < point[1] < 1.0 and value[1] == point[1]
    assert value[2] >= 2.0, "a climber ended below its start"


def test_a_function_with_other_arguments_is_refused_at_once():
    with pytest.raises(UsageError, match=r"must be a function of \(key, messages, mask\)"):
        from_function(lambda messages, mask: messages)


def test_one_of_several_attacks_sends_what_the_attack_alone_sends() -> None:
    """Two iterations, both kinds of messages; attacks with and without memory, random ones and one that equivocates."""
    names = ("none", "avg-zero", "large-noise", "min-max", "mimic-warmup", "drift", "random-action")
    shared = {name: attacks[name].build(K, F) for name in names}
    together, key, mask = one_of(list(shared.values())), jax.random.key(2), jnp.asarray(MASKS["last"])
    honest = [messages(step) for step in range(2)]

    def sent(attack, memory):
        rows = []
        for step in range(2):
            view = View(jnp.asarray(honest[step]), mask, median, memory, jnp.int32(step))
            rows += [
                sent_to(key, view, forge, jnp.int32(1), restore_own=False)
                for forge in (attack.gradients, attack.parameters)
            ]
            memory = attack.remember(view)
        return jnp.stack(rows)

    def all_alone():
        return [sent(attack, attack.init(K, D)) for attack in shared.values()]

    def one_after_another():
        memories = jax.vmap(lambda index: choose_attack(together.init(K, D), index))(jnp.arange(len(shared)))
        return jax.vmap(lambda memory: sent(together, memory))(memories)

    expected, found = jax.jit(lambda: (all_alone(), one_after_another()))()
    for name, alone, rows in zip(names, expected, found, strict=True):
        np.testing.assert_allclose(rows, alone, rtol=1e-5, atol=1e-5, err_msg=name)


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
