"""Every gymnax environment can be used, and spaces that policies do not support are refused."""

from __future__ import annotations

import subprocess
import sys
from urllib.error import URLError

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

import jaxbyz as jb
from jaxbyz.accelerate.jaxprs import flat_equations
from jaxbyz.accelerate.platform import trace_for
from jaxbyz.accelerate.trigonometry import with_fast_trigonometry
from jaxbyz.environments import adapt, environments
from jaxbyz.sampling.rollout import collect

OFFLINE = {"MNISTBandit-bsuite"}  # downloads its data
# Tracing these takes longest. Other tasks of MinAtar and MuJoCo are traced every day, and test_lunar_lander.py traces
# rollouts of LunarLander.
LONG_PROGRAMS = {
    "Asterix-MinAtar", "Freeway-MinAtar", "Seaquest-MinAtar",
    "HalfCheetah-v5", "Hopper-v5", "InvertedDoublePendulum-v5", "InvertedPendulum-v5", "Swimmer-v5",
    "LunarLander-v3", "LunarLanderContinuous-v3",
}  # fmt: skip
ENVIRONMENTS = [
    pytest.param(entry.name, marks=pytest.mark.slow if entry.name in LONG_PROGRAMS else ())
    for entry in environments
    if entry.name not in OFFLINE
]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_traces_into_a_rollout(name):
    """Shapes only: reset, act and step fit together, observations are flat, rewards are numbers."""
    environment = jb.make_environment(name)

    def run():
        policy = jb.mlp_policy(environment, (4,))
        keys = jax.random.split(jax.random.key(0), 2)
        with jax.numpy_rank_promotion("allow"):  # gymnax's own code
            return collect(environment, policy, jnp.zeros((2, policy.size)), keys, 3, 40)

    shapes = jax.eval_shape(run)
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


def test_spaces_that_policies_do_not_support_are_refused():
    with pytest.raises(jb.UsageError, match="env='odd' has actions Dict"):
        adapt(Odd(spaces.Dict({}), jnp.zeros(2)), None)
    with pytest.raises(jb.UsageError, match="env='odd' has observations"):
        adapt(Odd(spaces.Discrete(2), {"a": jnp.zeros(2)}), None)


def test_environments_of_gymnasium_are_explained():
    import gymnasium

    for make, message in (
        (lambda: jb.make_environment("FrozenLake-v1"), "gymnasium has it: env=gymnasium:FrozenLake-v1"),
        (lambda: jb.resolve(env="FrozenLake-v1"), "gymnasium has it: env=gymnasium:FrozenLake-v1"),
        (lambda: jb.make_environment(gymnasium.make("CartPole-v1")), "not a gymnax .* jb.gymnasium_environment"),
    ):
        with pytest.raises(jb.UsageError, match=message):
            make()
    with pytest.raises(jb.UsageError, match="is unknown") as error:
        jb.make_environment("NoSuchTask")
    assert "gymnasium" not in str(error.value)


def test_parameters_can_be_replaced_and_unknown_ones_are_refused():
    assert float(jb.make_environment("CartPole-v1", gravity=5.0).params.gravity) == 5.0
    with pytest.raises(jb.UsageError, match="parameter='gravitas' is unknown; did you mean 'gravity'"):
        jb.make_environment("CartPole-v1", gravitas=5.0)
    for given in ({"gravity": "abc"}, {"masscart": None}, {"hold": 2, "max_steps_in_episode": "abc"}):
        with pytest.raises(jb.UsageError, match="is not a number"):
            jb.make_environment("CartPole-v1", **given)
    made = jb.make_environment("CartPole-v1")
    assert jb.make_environment(made) is made and jb.make_environment(made, hold=2).limit == 250
    with pytest.raises(jb.UsageError, match="'gravity' cannot be changed in an environment that is made"):
        jb.make_environment(made, gravity=1.0, hold=2)


def test_plotting_libraries_are_loaded_when_they_are_first_used():
    """In a new process, because this one may have loaded seaborn and pyplot already."""
    program = """
import sys
from jaxbyz.environments import make_environment
assert make_environment("CartPole-v1").observation_size == 4
heavy = ("seaborn", "matplotlib", "rich", "scipy.stats", "pandas")
assert not any(name in sys.modules for name in heavy), [name for name in heavy if name in sys.modules]
from gymnax.environments.misc import pong
import matplotlib.pyplot as plt
assert pong.plt.subplots is plt.subplots
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name", ["Pendulum-v1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("CartPole-v1", "MountainCar-v0"))]
)
def test_fast_trigonometry_does_not_change_episodes(name):
    environment = jb.make_environment(name)
    policy = jb.mlp_policy(environment, (4,))
    key = jax.random.key(0)
    episodes = []
    for platform in ("cpu", "plain"):
        with trace_for(platform), jax.numpy_rank_promotion("allow"):
            _, state = jax.eval_shape(environment.reset, key)
            traced = jax.make_jaxpr(lambda *x: environment.step(*x))(key, state, np.int32(1))
            names = {equation.primitive.name for equation in flat_equations(traced.jaxpr)}
            assert names.isdisjoint({"cos", "sin"}) == (platform == "cpu")
            run = jax.jit(lambda theta, key: collect(environment, policy, theta, jax.random.split(key, 1), 5, 20))
            episodes.append(run(np.zeros((1, policy.size), np.float32), key))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), *episodes)


def test_functions_without_cosines_or_with_custom_batching_are_not_changed():
    @jax.custom_batching.custom_vmap
    def own(x):
        return jnp.cos(x)

    own.def_vmap(lambda size, batched, x: (jnp.cos(x), batched[0]))
    for function in (own, lambda x: x * x):
        traced = str(jax.make_jaxpr(with_fast_trigonometry(function))(1.0))
        assert traced == str(jax.make_jaxpr(function)(1.0))
    function = with_fast_trigonometry(lambda x: {"a": jnp.cos(x) + jnp.sin(x), "b": jax.nn.relu(x)})
    both = jax.jit(function)(np.float32(2.0))
    np.testing.assert_allclose([both["a"], both["b"]], [np.cos(2) + np.sin(2), 2.0], rtol=1e-6)


def test_an_environment_whose_data_cannot_be_downloaded_is_refused(monkeypatch):
    def offline(*_):
        raise URLError("Name or service not known")

    monkeypatch.setattr("gymnax.utils.load_mnist.urlretrieve", offline)
    monkeypatch.setattr("gymnax.utils.load_mnist.path.isfile", lambda path: False)
    with pytest.raises(
        jb.UsageError, match=r"'MNISTBandit-bsuite': needs data that cannot be downloaded or read \(.*not"
    ):
        jb.make_environment("MNISTBandit-bsuite")
