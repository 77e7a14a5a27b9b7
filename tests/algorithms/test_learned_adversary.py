"""The learned adversary: what its network sends, its file, and its training."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbyz.attacks import View
from jaxbyz.attacks.learned import (
    DEFAULT_FILE,
    DIRECTIONS,
    FIRST_DIRECTIONS,
    FIRST_FEATURES,
    SIZE,
    Memory,
    StoredAdversary,
    directions_of,
    features_of,
    layers_of,
    learned,
    learned_from,
    load_adversary,
    save_adversary,
)
from jaxbyz.cli import main
from jaxbyz.components import make_attack
from jaxbyz.configuration.building import cached_algorithm, family_of
from jaxbyz.configuration.config import Config
from jaxbyz.configuration.resolving import resolve
from jaxbyz.errors import UsageError
from jaxbyz.rules import mean, memory
from jaxbyz.runs.adversary import Search, train_adversary

K, D = 9, 6
X = np.random.default_rng(3).normal(size=(K, D)) + 0.7
MASK = np.isin(np.arange(K), [1, 4])
MU, STD = X[~MASK].mean(0), X[~MASK].std(0)


def view(memory: Memory, step: int = 0) -> View:
    return View(jnp.asarray(X, jnp.float32), jnp.asarray(MASK), jnp.sum, memory, jnp.int32(step))


def only_biases(amounts: list[float]) -> jax.Array:
    """Return a network whose outputs do not depend on its input."""
    return jnp.zeros(SIZE).at[SIZE - DIRECTIONS :].set(jnp.arctanh(jnp.asarray(amounts)))


def test_message_is_the_combination_of_directions_that_the_network_asks_for() -> None:
    past = np.random.default_rng(5).normal(size=D)
    attack = learned_from(only_biases([0.5, -0.25, 0.125, 0.75, 0.25]), reach=2.0)
    memory = attack.init(K, D)._replace(average=jnp.asarray(past, jnp.float32), iterations=jnp.int32(7))
    average = 0.9 * past + 0.1 * MU
    deviations = X[~MASK] - MU
    farthest = deviations[np.argmax((deviations**2).sum(1))]

    def unit(v: np.ndarray) -> np.ndarray:
        return v / np.linalg.norm(v)

    shift = 0.5 * -unit(MU) - 0.25 * -unit(STD) + 0.125 * -unit(average) + 0.75 * unit(farthest)
    own = np.stack([unit(x - MU) for x in X])
    expected = MU + 2.0 * np.linalg.norm(STD) * (shift + 0.25 * own)
    sent = attack.gradients(jax.random.key(0), view(memory), jnp.int32(0))
    np.testing.assert_allclose(sent, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(attack.remember(view(memory)).average, average, rtol=1e-5)
    np.testing.assert_allclose(attack.remember(view(attack.init(K, D))).average, MU, rtol=1e-5)


def test_network_reacts_to_time() -> None:
    attack = learned_from(jax.random.normal(jax.random.key(2), (SIZE,)))
    early, late = (attack.gradients(jax.random.key(0), view(attack.init(K, D), t), 0) for t in (0, 500))
    assert not np.allclose(early, late)


def test_network_reacts_to_the_memory_of_the_rule() -> None:
    """Trust, exclusion and likeness differ between the two liars, and so do their messages."""
    nothing = memory(2)(mean()).init(K, D)
    senders = nothing._replace(
        trust=nothing.trust.at[1].set(0.25),
        excluded=nothing.excluded.at[4].set(True),
        likeness=nothing.likeness.at[1, 4].set(6.0),
        spread=jnp.array([1.0, 8.0]),
    )
    attack = learned_from(jax.random.normal(jax.random.key(2), (SIZE,)))
    seen = view(attack.init(K, D))
    own = features_of(seen._replace(senders=senders), MU)[:, FIRST_FEATURES:]
    np.testing.assert_allclose(own[jnp.array([0, 1, 4])], [[1, 0, 0], [0.25, 0, 0.75], [1, 1, 0]])
    assert not features_of(seen, MU)[:, FIRST_FEATURES:].any()
    sent = [attack.gradients(jax.random.key(0), seen._replace(senders=s), 0) for s in (senders, nothing)]
    changed = np.linalg.norm(sent[0] - sent[1], axis=1)
    assert changed[1] > 0.1 and changed[4] > 0.1


def test_an_older_network_does_what_it_did() -> None:
    """The one in the package: all senders send the same, and the memory of the rule changes nothing."""
    with np.load(DEFAULT_FILE) as stored:
        w1, b1, w2, b2 = layers_of(stored["parameters"], FIRST_FEATURES, FIRST_DIRECTIONS)
    attack = learned()
    seen = view(attack.init(K, D), 7)._replace(senders=memory(2)(mean()).init(K, D))
    features = features_of(seen, jnp.asarray(MU, jnp.float32))[0, :FIRST_FEATURES]
    amounts = np.tanh(np.tanh(features @ w1 + b1) @ w2 + b2)
    shift = amounts @ directions_of(seen, jnp.asarray(MU, jnp.float32))[:FIRST_DIRECTIONS, 0]
    sent = attack.gradients(jax.random.key(0), seen, jnp.int32(0))
    np.testing.assert_allclose(sent, np.tile(MU + 3.0 * np.linalg.norm(STD) * shift, (K, 1)), rtol=1e-4, atol=1e-5)


def test_file_is_read_as_it_was_written_and_used_by_name(tmp_path) -> None:
    file = tmp_path / "adversary.npz"
    parameters = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    save_adversary(file, StoredAdversary(parameters, 2.5, {"env": "CartPole-v1"}))
    stored = load_adversary(file)
    np.testing.assert_array_equal(stored.parameters, parameters)
    assert stored.reach == 2.5 and stored.training == {"env": "CartPole-v1"}
    by_name = make_attack(f"learned:{file}", K, 2)
    sent = (a.gradients(jax.random.key(0), view(a.init(K, D)), 0) for a in (by_name, learned_from(parameters, 2.5)))
    np.testing.assert_array_equal(*sent)


@pytest.mark.parametrize("damage", ["missing", "text", "empty", "shape", "nan", "pickle", "folder"])
def test_other_files_are_refused_in_one_line(tmp_path, damage: str) -> None:
    file = tmp_path / "adversary.npz"
    description = '{"format": 1, "reach": 3.0, "training": {}}'
    if damage == "folder":
        file.mkdir()
    elif damage in ("text", "empty"):
        file.write_text("not an archive" if damage == "text" else "")
    elif damage != "missing":
        arrays = {"shape": np.zeros(SIZE + 1), "nan": np.full(SIZE, np.nan), "pickle": np.array([{}] * SIZE)}
        np.savez(file, parameters=arrays[damage], description=description)
    with pytest.raises(UsageError, match="learned: ") as error:
        learned(file=str(file))
    assert "\n" not in str(error.value)


def test_bad_searches_are_refused(tmp_path, capsys) -> None:
    for options, match in (
        ({"population": 3}, "even"),
        ({"generations": 0}, "at least 1"),
        ({"sigma": 0.0}, "positive"),
    ):
        with pytest.raises(UsageError, match=match):
            Search(**options).check()
    with pytest.raises(UsageError, match="at least one Byzantine agent"):
        next(train_adversary(Config(byzantine=0), Search(), 3))
    assert main(["adversary", "--out", str(tmp_path / "adversary.txt")]) == 2
    assert "must end in .npz" in capsys.readouterr().err


@pytest.mark.slow
def test_training_finds_an_attack_that_hurts_the_mean() -> None:
    """Against the plain mean, which any attack can defeat, a few generations make the return clearly worse."""
    config = Config(
        env="CartPole-v1", algorithm="decbyzpg", aggregator="mean", agreement="none", agents=5, byzantine=2, N=4, B=4,
        p=1.0, eta=2e-2, horizon=100, baseline="leave-one-out", seeds=2, unsafe=True,
    )  # fmt: skip
    found = list(train_adversary(config, Search(generations=8, population=8, seeds=2), iterations=25))
    assert np.mean([g.mean_return for g in found[-2:]]) < 0.8 * found[0].mean_return


@pytest.mark.parametrize(("option", "name"), [("learned:", "a:b.npz"), ("learned:file=", "a.npz")])
def test_an_adversary_that_is_trained_again_is_read_again(tmp_path, option, name):
    file = tmp_path / name
    config = resolve("default", env="TabularMDP", horizon=5, agents=5, byzantine=1, attack=f"{option}{file}")
    memories = []
    for value in (1.0, 2.0):
        save_adversary(file, StoredAdversary(np.full(SIZE, value), 2.5, {}))
        algorithm = cached_algorithm(config)
        assert cached_algorithm(config) is algorithm and family_of(config).description is None
        memories.append(float(algorithm.init(jax.random.key(0)).attack_memory.parameters[0]))
    assert memories == [1.0, 2.0]
