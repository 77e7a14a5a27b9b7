"""Every gymnax id serves as an environment, and what policies cannot serve is refused."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from gymnax.environments import spaces

import jaxbyz as jb
from jaxbyz.environments import adapt, environments
from jaxbyz.rollout import collect

OFFLINE = {"MNISTBandit-bsuite"}  # downloads its data


@pytest.mark.parametrize("name", [entry.name for entry in environments if entry.name not in OFFLINE])
def test_every_environment_traces_into_a_rollout(name):
    """Shapes only: reset, act and step fit together, observations are flat, rewards are numbers."""
    environment = jb.make_environment(name)
    policy = jb.mlp_policy(environment, (4,))

    def run(parameters, keys):
        with jax.numpy_rank_promotion("allow"):  # gymnax's own code
            return collect(environment, policy, parameters, keys, 3, 40)

    shapes = jax.eval_shape(run, jnp.zeros((2, policy.size)), jax.random.split(jax.random.key(0), 2))
    assert shapes.rewards.shape[1::2] == (2, 3) and shapes.rewards.dtype == jnp.float32
    assert shapes.observations.shape[2] == environment.observation_size
    assert environment.limit is None or environment.limit > 0


class Odd:
    """An environment whose spaces can be set."""

    name = "odd"

    def __init__(self, actions, observation):
        self._actions, self._observation = actions, observation

    def action_space(self, params):
        return self._actions

    def observation_space(self, params):
        return spaces.Box(0.0, 1.0, (2,))

    def reset_env(self, key, params):
        return self._observation, ()


def test_spaces_a_policy_cannot_serve_are_refused():
    with pytest.raises(jb.UsageError, match="env='odd' has actions Dict"):
        adapt(Odd(spaces.Dict({}), jnp.zeros(2)), None)
    with pytest.raises(jb.UsageError, match="env='odd' has observations"):
        adapt(Odd(spaces.Discrete(2), {"a": jnp.zeros(2)}), None)


def test_parameters_can_be_replaced_and_unknown_ones_are_refused():
    assert float(jb.make_environment("CartPole-v1", gravity=5.0).params.gravity) == 5.0
    with pytest.raises(jb.UsageError, match="unknown parameter 'gravitas'"):
        jb.make_environment("CartPole-v1", gravitas=5.0)


def test_what_gymnax_draws_with_is_loaded_when_it_is_used():
    """In a process of its own: seaborn and pyplot are not there until gymnax's code looks into them."""
    program = """
import sys
from jaxbyz.environments import make_environment
assert make_environment("CartPole-v1").observation_size == 4
heavy = ("seaborn", "matplotlib.pyplot", "scipy.stats", "pandas")
assert not any(name in sys.modules for name in heavy), [name for name in heavy if name in sys.modules]
from gymnax.environments.misc import pong
import matplotlib.pyplot as plt
assert pong.plt.subplots is plt.subplots
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
