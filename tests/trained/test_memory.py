"""Runs of policies with a memory: trained, resumed, evaluated, played and exported."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxbyz as jb
from jaxbyz.policies import initial_carry
from jaxbyz.runs.loop import Interrupted
from jaxbyz.runs.run import Experiment, resume, run
from jaxbyz.sampling.playback import play
from jaxbyz.trained.evaluation import evaluate
from tests.helpers import StopAt, assert_same_run

TINY = {"agents": 5, "byzantine": 1, "attack": "avg-zero", "N": 2, "B": 2, "horizon": 20, "hidden": (4,), "epochs": 2,
        "critic_hidden": (4,), "critic_steps": 2, "trajectories": 80, "kappa": "1"}  # fmt: skip
H = 4


def untrained(env: str, **options) -> Experiment:
    """A run of one seed and agent with random parameters."""
    config = jb.resolve(env=env, policy="gru", agents=1, **{"hidden": (3, H), **options})
    theta = np.random.default_rng(3).normal(size=jb.build(config).policy.size).astype(np.float32)
    return Experiment(config, {}, {"last": theta[None, None]}, True)


def test_a_run_is_resumed_evaluated_and_loaded(tmp_path):
    """With critics, several clipped steps per batch, and checkpoints: the resumed run has the same bits."""
    config = jb.resolve(env="CartPoleNoVelocity-v1", **TINY)
    assert config.policy == "gru" and config.baseline == "critic"
    whole = run(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(config, tmp_path / "part", StopAt(20))
    assert_same_run(resume(tmp_path / "part"), whole)
    loaded = jb.load_run(tmp_path / "part")
    found = evaluate(loaded.config, loaded.policy["last"][:, 0], 3, greedy=True)
    assert found["returns"].shape == (1, 3) and found["length"].max() <= 20
    assert loaded.player()(np.zeros(2)) in (0, 1)


@pytest.mark.parametrize("env", ["CartPoleNoVelocity-v1", "PendulumNoVelocity-v1"])
def test_players_functions_and_files_remember_alike(env, tmp_path):
    learnt = untrained(env)
    seen = np.random.default_rng(1).normal(size=(6, 3, 2)).astype(np.float32)  # steps, episodes, observation
    player = learnt.player()
    actions = np.stack([player(observation) for observation in seen])
    start, act = learnt.recurrent_function()
    carry, expected = jax.jit(lambda seen: jax.lax.scan(act, start(3), seen))(seen)
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    exported = jax.export.deserialize(bytearray(learnt.export(tmp_path / "p.jax").read_bytes()))
    kept = np.zeros((3, H), np.float32)
    for t, observation in enumerate(seen):
        chosen, _, kept = exported.call(observation, kept)
        np.testing.assert_allclose(chosen, actions[t], atol=1e-5)
    np.testing.assert_allclose(kept, carry, atol=1e-5)
    alone = learnt.player()
    np.testing.assert_allclose([alone(observation) for observation in seen[:, 1]], actions[:, 1], atol=1e-5)
    repeated = [player(seen[0], key) for key in jax.random.split(jax.random.key(0), 2)]
    assert np.shape(repeated) == (2, *actions.shape[1:])
    with np.load(learnt.export(tmp_path / "p.npz")) as file:
        stored = np.concatenate([file[name].ravel() for name in file.files if name != "schema"])
        assert json.loads(str(file["schema"]))["policy"] == "gru"
    np.testing.assert_array_equal(stored, learnt.parameters())  # so that `start=from:FILE` reads them


def test_a_player_forgets_the_episodes_that_have_ended():
    learnt = untrained("CartPoleNoVelocity-v1")
    player, first = learnt.player(), np.float32([[0.4, 0.3]] * 2)
    for _ in range(5):
        player(np.float32([[1.0, -1.0], [-0.5, 2.0]]))
    player.reset(np.array([True, False]))
    start, act = learnt.recurrent_function()
    (ended, running), fresh = player._carry, start(1)[0]
    np.testing.assert_array_equal(ended, fresh)
    assert np.abs(running).max() > 0.1
    with pytest.raises(jb.UsageError, match=r"the player is in 2 episode\(s\) side by side; call reset\(\)"):
        player(first[0])
    player.reset()
    assert player(first[0]) == int(act(start(1), first[0])[1])
    with pytest.raises(jb.UsageError, match=r"act with run\.player\(\), or in JAX with run\.recurrent_function\(\)"):
        learnt.act(first[0])


def test_without_a_memory_a_player_acts_like_the_run():
    config = jb.resolve(agents=1, hidden=(4,))
    theta = np.random.default_rng(3).normal(size=jb.build(config).policy.size).astype(np.float32)
    learnt = Experiment(config, {}, {"last": theta[None, None]}, True)
    seen = np.random.default_rng(1).normal(size=(5, 4))
    player = learnt.player()
    assert player(seen[0]) == learnt.act(seen[0])
    np.testing.assert_array_equal(player(seen), learnt.act(seen))


def test_an_episode_that_is_drawn_is_played_with_a_memory():
    """What the policy does in a playback is what it does in a loop with the same keys."""
    learnt = untrained("CartPoleNoVelocity-v1", output_scale=20.0)
    task, theta = jb.build(learnt.config), jnp.asarray(learnt.parameters())
    tree, carry = task.policy.unravel(theta), initial_carry(task.policy, 1)
    played = play(task.environment, task.policy, theta, jax.random.key(5), 30)
    key_reset, key_steps = jax.random.split(jax.random.key(5))
    observation, _ = task.environment.reset(key_reset)
    unroll = jax.jit(task.policy.recurrence.unroll)
    for t, key in enumerate(jax.random.split(key_steps, 30)[: len(played.actions)]):
        carry, distribution = unroll(tree, carry, jnp.asarray(observation)[:, None, None])
        noise = task.policy.noise(jax.random.split(key)[0], 1, 1)[0]
        assert int(task.policy.sample(distribution[:, 0], noise)[0]) == played.actions[t]
        observation = played.observations[t]


class Cell(nn.RNNCellBase):
    """A layer, flax's LSTM, and the logits."""

    outputs: int = 2

    @nn.compact
    def __call__(self, carry, x):
        carry, features = nn.OptimizedLSTMCell(3)(carry, nn.tanh(nn.Dense(4)(x)))
        return carry, nn.Dense(self.outputs)(features)

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        return nn.OptimizedLSTMCell(3, parent=None).initialize_carry(rng, (input_shape[0], 4))

    @property
    def num_feature_axes(self):
        return 1


def test_cells_of_flax_become_policies():
    """The distributions of an episode are those of the cell called step by step; its carry is a tree of two arrays."""
    environment = jb.make_environment("CartPoleNoVelocity-v1")
    policy = jb.flax_policy(Cell(), environment, output_scale=2.0)
    observations = jax.random.normal(jax.random.key(1), (2, 5, 3))

    @jax.jit
    def both():
        tree = policy.unravel(policy.init(jax.random.key(0)))
        ours = policy.recurrence.unroll(tree, initial_carry(policy, 3), observations)
        carry, logits = Cell().initialize_carry(jax.random.key(0), (3, 2)), []
        for t in range(5):
            carry, outputs = Cell().apply(tree["core"], carry, observations[:, t].T)
            logits.append(jax.nn.log_softmax(2.0 * outputs).T)
        return ours, (carry, jnp.stack(logits, axis=1))

    ours, theirs = both()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, theirs)
    with pytest.raises(jb.UsageError, match=r"Cell returns \[3, 5\] for 3 observations; it must return \[3, 2\]"):
        jb.flax_policy(Cell(outputs=5), environment)


def test_partial_views_are_the_same_tasks_with_fewer_observations():
    key, shown = jax.random.key(2), [0, 2]
    part, whole = (jb.make_environment(name, gravity=5.0) for name in ("CartPoleNoVelocity-v1", "CartPole-v1"))
    assert (part.name, part.observation_size, part.limit) == ("CartPoleNoVelocity-v1", 2, 500)

    @jax.jit
    def three_steps():
        found = []
        for environment in (part, whole):
            observation, state = environment.reset(key)
            seen = [observation]
            for action in (1, 1, 0):
                after = environment.step(key, state, jnp.int32(action))
                observation, state = after.observation, after.state
                seen.append(observation)
            found.append(jnp.stack(seen))
        return found

    few, all_of_them = three_steps()
    np.testing.assert_array_equal(few, all_of_them[:, shown])
