"""GPU kernels: interpreted on a CPU they agree with the plain versions, and Triton accepts them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import cuda_kernels_in
from jax import lax

import jaxbyz as jb
from jaxbyz.accelerate.kernels import one_kernel
from jaxbyz.accelerate.kernels.row_kernels import WARP_LANES, trace_step
from jaxbyz.accelerate.platform import trace_for
from jaxbyz.environments import ActionSpace, Step
from jaxbyz.environments.lunar_lander import physics
from jaxbyz.environments.lunar_lander.environment import EnvParams, LunarLander
from jaxbyz.sampling.rollout import Episodes, collect


def untraced(function):
    """The same function as a new object, for which JAX has no trace of another platform."""
    return lambda *args: function(*args)


def kernels_in(function, *args) -> int:
    """The number of kernels in the program of a function."""
    return str(jax.make_jaxpr(untraced(function))(*args)).count("pallas_call")


# --- one_kernel -------------------------------------------------------------------------------------------------------


def mixed(a, b, flag):
    """Indexing, stacking, loops, branches and reductions over lanes, of arrays [2, 3, L], [L] and flags [2, L]."""
    x, y, z = a[0]
    pair = jnp.stack([x + b, jnp.where(flag[1], y, jnp.round(z))])
    wide = jnp.concatenate([pair, a[1, 1:]], axis=0).reshape(2, 2, -1)
    total = lax.fori_loop(0, 5, lambda i, t: 0.5 * t + wide.sum(axis=0), pair)
    count, total = lax.while_loop(
        lambda c: (c[0] < 9) & (c[1].max() > 0.1), lambda c: (c[0] + 1, 0.5 * c[1]), (0, total)
    )
    chosen = lax.cond(flag.any(), lambda: total * 2, lambda: total - 1)
    number = jnp.left_shift(1, jnp.clip(jnp.abs(b).astype(jnp.int32), 0, 9)) + count * 0
    return {"chosen": chosen, "number": number, "all": flag.all(axis=0) & (b**3 > -1), "least": wide.min(axis=(0, 1))}


def lanes_last(tree):
    return jax.tree.map(lambda a: np.moveaxis(a, 0, -1), tree)


@pytest.mark.parametrize(
    "lanes", [2 * WARP_LANES, *(pytest.param(lanes, marks=pytest.mark.slow) for lanes in (WARP_LANES, 5))]
)
def test_one_kernel_computes_its_function(lanes):
    rng = np.random.default_rng(lanes)
    a, b = (size * rng.normal(size=(lanes, *shape)).astype(np.float32) for size, shape in ((1, (2, 3)), (3, ())))
    flag = rng.random((lanes, 2)) < 0.3
    got, plain = jax.device_get(jax.jit(lambda *x: one_kernel(mixed, *x))(a, b, flag)), jax.jit(mixed)
    for first in range(0, lanes, WARP_LANES):  # every block decides about its branches on its own
        part = slice(first, first + WARP_LANES)
        expected = plain(*lanes_last((a[part], b[part], flag[part])))
        for name, values in lanes_last(jax.tree.map(lambda v, part=part: v[part], got)).items():
            assert values.dtype == expected[name].dtype
            np.testing.assert_allclose(values, expected[name], rtol=1e-6, err_msg=name)


@pytest.mark.slow
def test_lunar_lander_step_is_one_cuda_kernel():
    one = physics.world_without_contact(jnp.zeros(11), jnp.zeros((3, 3)), jnp.zeros((3, 3)))
    world = jax.tree.map(lambda a: jnp.zeros((64, *a.shape), a.dtype), one)
    with trace_for("kernels", only_lowered=True):
        assert cuda_kernels_in(jax.vmap(physics.step), world, jnp.zeros(64, bool)) == 1


def flown_worlds(lanes: int, steps: int) -> physics.World:
    """Landers after some steps with random engines."""
    env, params = LunarLander(), EnvParams()
    _, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(jax.random.key(0), lanes), params)

    def body(state, key):
        keys, actions = jax.random.split(key, lanes), jax.random.randint(key, (lanes,), 0, 4)
        return jax.vmap(env.step_env, (0, 0, 0, None))(keys, state, actions, params)[1], None

    return jax.jit(lambda s: lax.scan(body, s, jax.random.split(jax.random.key(1), steps))[0])(state).world


@pytest.mark.slow
def test_lunar_lander_kernel_agrees_with_the_cpu():
    world = flown_worlds(1024, 75)
    touching = (world.touching != 0).any(axis=1) & ~world.crashed
    assert touching.sum() >= 10
    chosen = jnp.argsort(~touching)[:96]  # landers on the ground first
    world = jax.tree.map(lambda a: a[chosen], world)
    over = jnp.arange(96) % 7 == 0
    expected = jax.jit(jax.vmap(physics.step))(world, over)
    with trace_for("kernels"):
        got = jax.vmap(physics.step)(world, over)
    for name in physics.World._fields:
        np.testing.assert_allclose(getattr(got, name), getattr(expected, name), atol=2e-4, err_msg=name)


# --- scan_in_kernel ---------------------------------------------------------------------------------------------------


def counting() -> jb.Environment:
    """An environment with three actions and an integer of which every bit matters."""

    def reset(key):
        state = {"x": jax.random.uniform(key), "number": jnp.int32(7)}
        return jnp.stack([state["x"], 1.0]), state

    def step(_, state, action):
        number = state["number"] * 1103515245 + 12345
        x = state["x"]
        x = jnp.where(action == 0, x + 0.1, jnp.where(action == 1, -x, x * x))
        reward = (number & 1023).astype(jnp.float32)
        return Step(jnp.stack([x, 1.0]), {"x": x, "number": number}, reward, jnp.abs(x) > 2, jnp.bool_(False))

    return jb.Environment("Counting", 2, ActionSpace(True, 3), reset, step)


@pytest.mark.parametrize(
    ("name", "lanes"),
    [
        ("CartPole-v1", 35),
        *(pytest.param(name, 5, marks=pytest.mark.slow) for name in (counting(), "Pendulum-v1", "MountainCar-v0")),
    ],
)
def test_episodes_in_a_kernel_are_the_plain_ones(name, lanes):
    """Two of three agents are honest; the other one acts at random."""
    environment = jb.make_environment(name)
    policy = jb.mlp_policy(environment, hidden=(4, 4))
    uniform = jb.Interference(act=environment.actions.uniform_action)

    @jax.jit
    def start(key):
        keys = jax.random.split(key, 3)
        return jax.vmap(policy.init)(keys), keys

    def run(theta, keys):
        return collect(environment, policy, theta, keys, lanes, 20, uniform, jnp.arange(3) == 1)

    inputs, results = start(jax.random.key(3)), []
    for platform in ("plain", "kernels"):
        with trace_for(platform):
            program = jax.jit(untraced(run)).trace(*inputs)
            assert ("pallas_call" in str(program.jaxpr)) == (platform == "kernels")
            results.append(program.lower().compile()(*inputs))
    expected, got = results
    for field in Episodes._fields:
        a, b = getattr(got, field), getattr(expected, field)
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=1e-5, err_msg=field)


def test_an_environment_that_draws_random_numbers_in_its_step_has_no_kernel():
    """The torque noise of Acrobot needs a random number generator, which kernels do not have."""
    environment = jb.make_environment("Acrobot-v1")
    policy = jb.mlp_policy(environment)

    def run(key):
        return collect(environment, policy, jnp.zeros((2, policy.size)), jax.random.split(key, 2), 4, 8)

    with trace_for("kernels"):
        assert kernels_in(run, jax.random.key(0)) == 0


def test_steps_that_a_kernel_cannot_run_are_recognised():
    shared, noise = jnp.ones((2, 3)), jnp.ones((16, 2, 1, 5))

    def runs(change, dtype=jnp.float32) -> bool:
        carry = jnp.ones((2, 4, 5), dtype)
        return trace_step(lambda s, c, x, i: (change(c, s), x), shared, carry, noise) is not None

    assert runs(lambda c, s: jnp.concatenate([c[1:], c[:1]]) * s[0] + jnp.arange(4.0)[:, None])
    assert not runs(lambda c, s: c - c.mean(axis=1, keepdims=True))
    assert not runs(lambda c, s: c @ (c.T @ c))
    assert not runs(lambda c, s: c + c[:, :1])
    assert not runs(lambda c, s: c.reshape(-1, 4).T)
    assert not runs(lambda c, s: jnp.sort(c, axis=0))
    assert not runs(lambda c, s: jnp.round(c))
    assert not runs(lambda c, s: lax.select_n(c.astype(jnp.int32), c, c + 1, c + 2))
    assert not runs(lambda c, s: c[:2])  # the carry changes its shape
    assert not runs(lambda c, s: c, dtype=jnp.bfloat16)


@pytest.mark.parametrize("environment", ["CartPole-v1", pytest.param(counting(), marks=pytest.mark.slow)])
def test_a_chunk_is_one_cuda_kernel(environment):
    environment = jb.make_environment(environment)
    policy = jb.mlp_policy(environment)

    def run(key):
        return collect(environment, policy, jnp.zeros((13, policy.size)), jax.random.split(key, 13), 50, 500)

    with trace_for("kernels", only_lowered=True):
        assert cuda_kernels_in(run, jax.random.key(0)) == 1
