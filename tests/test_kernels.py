"""Functions over lanes as one GPU kernel: replayed on rows they do the same, and Triton accepts them."""

from __future__ import annotations

from contextlib import contextmanager
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxbyz as jb
from jaxbyz.accelerate import kernels, lane_steps, matrix_products
from jaxbyz.accelerate import trigonometry as angles
from jaxbyz.accelerate.kernels import one_kernel, sum_kernel, traced_step, traced_sums
from jaxbyz.accelerate.kernels.equations import BLOCK
from jaxbyz.accelerate.platform import trace_for
from jaxbyz.environments.gymnax_adapter import ActionSpace, Step
from jaxbyz.environments.lunar_lander import physics
from jaxbyz.environments.lunar_lander.environment import EnvParams, LunarLander
from jaxbyz.sampling import estimators, rollout


def mixed(a, b, flag):
    """Arrays [2, 3, L], [L] and flags [2, L]: indexing, stacking, loops, branches, questions to all lanes."""
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
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), tree)


@pytest.mark.parametrize("lanes", [2 * BLOCK, 5, pytest.param(BLOCK, marks=pytest.mark.slow)])
def test_a_kernel_does_what_its_function_does(lanes):
    keys = jax.random.split(jax.random.key(lanes), 3)
    a, b = jax.random.normal(keys[0], (lanes, 2, 3)), 3 * jax.random.normal(keys[1], (lanes,))
    flag = jax.random.bernoulli(keys[2], 0.3, (lanes, 2))
    got = one_kernel(mixed, a, b, flag, interpret=True)
    for first in range(0, lanes, BLOCK):  # every block decides on its own
        part = slice(first, first + BLOCK)
        expected = mixed(*lanes_last((a[part], b[part], flag[part])))
        for name, values in lanes_last(jax.tree.map(lambda v, part=part: v[part], got)).items():
            assert values.dtype == expected[name].dtype
            np.testing.assert_allclose(values, expected[name], rtol=1e-6, err_msg=name)


@pytest.fixture(autouse=True)
def traced_for_a_gpu(monkeypatch):
    """Formulas that are written differently for a CPU are those of a GPU here."""
    for module in (angles, matrix_products):
        monkeypatch.setattr(module, "on_cpu", lambda: False)


def worlds(lanes: int, steps: int) -> physics.World:
    """Landers after some steps of random engines."""
    env, params = LunarLander(), EnvParams()
    _, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(jax.random.key(0), lanes), params)

    def body(state, key):
        keys, actions = jax.random.split(key, lanes), jax.random.randint(key, (lanes,), 0, 4)
        return jax.vmap(env.step_env, (0, 0, 0, None))(keys, state, actions, params)[1], None

    return jax.jit(lambda s: lax.scan(body, s, jax.random.split(jax.random.key(1), steps))[0])(state).world


def test_the_landers_step_becomes_a_cuda_kernel():
    """Lowered for a GPU that need not be there."""
    one = physics.world_without_contact(jnp.zeros(11), jnp.zeros((3, 3)), jnp.zeros((3, 3)))
    world = jax.tree.map(lambda a: jnp.zeros((64, *a.shape), a.dtype), one)
    with trace_for("kernels"), mock.patch.object(lane_steps, "interpret_kernels", lambda: False):
        program = jax.jit(jax.vmap(physics.step)).trace(world, jnp.zeros(64, bool)).lower(lowering_platforms=("cuda",))
    assert program.as_text().count("__gpu$xla.gpu.triton") == 1


@pytest.mark.slow
def test_the_kernel_steps_landers_as_the_cpu_does():
    world = worlds(1024, 75)
    touching = (world.touching != 0).any(axis=1) & ~world.crashed
    assert touching.sum() >= 10
    some = jnp.argsort(~touching)[:96]  # those on the ground first
    world = jax.tree.map(lambda a: a[some], world)
    over = jnp.arange(96) % 7 == 0
    expected = jax.jit(jax.vmap(physics.step))(world, over)
    with trace_for("kernels"):
        got = jax.vmap(physics.step)(world, over)
    for name in physics.World._fields:
        np.testing.assert_allclose(getattr(got, name), getattr(expected, name), atol=2e-4, err_msg=name)


def counting() -> jb.Environment:
    """Three actions by `switch`, and an integer of which every bit counts."""

    def reset(key):
        state = {"x": jax.random.uniform(key), "number": jnp.int32(7)}
        return jnp.stack([state["x"], 1.0]), state

    def step(_, state, action):
        number = state["number"] * 1103515245 + 12345
        x = lax.switch(action, [lambda x: x + 0.1, lambda x: -x, lambda x: x * x], state["x"])
        reward = (number & 1023).astype(jnp.float32)
        return Step(jnp.stack([x, 1.0]), {"x": x, "number": number}, reward, jnp.abs(x) > 2, jnp.bool_(False))

    return jb.Environment("Counting", 2, ActionSpace(True, 3), reset, step)


@contextmanager
def interpreted(user, place, name, in_kernel=True):
    """The kernel that `user` finds at place.name, run without a GPU; a list of the calls that were made to it."""
    made, kernel = [], getattr(place, name)

    def call(*args):
        made.append(args)
        return kernel(*args, interpret=True)

    with mock.patch.object(user, "kernels_run", lambda: in_kernel), mock.patch.object(place, name, call):
        yield made


def collected(environment: str | jb.Environment, *, in_kernel: bool, lanes: int = 5, horizon: int = 20) -> tuple:
    """Episodes of three agents, the ordinary way or a chunk a kernel; and how many kernels were made."""
    environment = jb.make_environment(environment)
    policy = jb.mlp_policy(environment, hidden=(4, 4))
    keys = jax.random.split(jax.random.key(3), 3)
    theta = jax.vmap(policy.init)(keys)
    with interpreted(rollout, rollout, "scan_kernel", in_kernel) as made:
        run = jax.jit(lambda theta, keys: rollout.collect(environment, policy, theta, keys, lanes, horizon))
        return run(theta, keys), len(made)


@pytest.mark.parametrize(
    ("name", "lanes"),
    [
        ("CartPole-v1", 35),
        (counting(), 5),
        *(pytest.param(name, 5, marks=pytest.mark.slow) for name in ("Pendulum-v1", "MountainCar-v0")),
    ],
)
def test_episodes_in_a_kernel_are_the_same(name, lanes):
    expected, none = collected(name, in_kernel=False, lanes=lanes)
    got, some = collected(name, in_kernel=True, lanes=lanes)
    assert none == 0 and some > 0
    for field in rollout.Episodes._fields:
        a, b = getattr(got, field), getattr(expected, field)
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=1e-5, err_msg=field)


def test_an_environment_that_draws_numbers_in_its_step_is_left_to_xla():
    """Acrobot's torque noise needs a generator, which a kernel of rows has not."""
    environment = jb.make_environment("Acrobot-v1")
    policy = jb.mlp_policy(environment)
    keys = jax.random.split(jax.random.key(0), 2)
    with mock.patch.object(rollout, "kernels_run", lambda: True), mock.patch.object(rollout, "scan_kernel", None):
        jax.eval_shape(lambda k: rollout.collect(environment, policy, jax.vmap(policy.init)(k), k, 4, 8), keys)


def test_lanes_are_kept_apart():
    """What a kernel would do wrongly, or cannot do, it leaves to XLA."""
    shared, noise = jnp.ones((2, 3)), jnp.ones((16, 2, 1, 5))

    def runs(change, kind=jnp.float32) -> bool:
        carry = jnp.ones((2, 4, 5), kind)
        return traced_step(lambda s, c, x, i: (change(c, s), x), shared, carry, noise) is not None

    assert runs(lambda c, s: jnp.concatenate([c[1:], c[:1]]) * s[0] + jnp.arange(4.0)[:, None])
    assert not runs(lambda c, s: c - c.mean(axis=1, keepdims=True))
    assert not runs(lambda c, s: c @ (c.T @ c))
    assert not runs(lambda c, s: c + c[:, :1])
    assert not runs(lambda c, s: c.reshape(-1, 4).T)
    assert not runs(lambda c, s: jnp.sort(c, axis=0))
    assert not runs(lambda c, s: jnp.round(c))
    assert not runs(lambda c, s: c[:2])  # not what it was given
    assert not runs(lambda c, s: c, kind=jnp.bfloat16)


@pytest.mark.parametrize("environment", ["CartPole-v1", counting()])
def test_a_chunk_becomes_one_cuda_kernel(environment):
    environment = jb.make_environment(environment)
    policy = jb.mlp_policy(environment)
    keys = jax.random.split(jax.random.key(0), 13)
    with mock.patch.object(rollout, "kernels_run", lambda: True):
        program = jax.jit(lambda k: rollout.collect(environment, policy, jax.vmap(policy.init)(k), k, 50, 500))
        text = program.trace(keys).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") == 1


def sums_of_lanes(shared, inputs):
    """Sums of rows, of everything, and products along lanes; something after them, and something without lanes."""
    a, numbers = inputs
    soft = jnp.tanh(a * shared["w"][:, None])
    mixed = jnp.outer(shared["w"], shared["w"]) @ soft - soft.max(axis=0, keepdims=True)
    single = shared["w"][None] @ a  # one row
    gram = mixed @ a.T
    return {
        "gram": gram + gram[:1],
        "rows": jnp.where(numbers[None] > 2, mixed, 1.0).sum(axis=1),
        "all": (soft * soft).sum() + jnp.exp(single).sum(),
        "single": single @ a.T + (shared["w"][:, None] @ single) @ soft.T,
        "own": 2 * shared["w"],
    }


@pytest.mark.parametrize(
    ("lanes", "chunks"), [(2 * BLOCK, 2), (5, 3), (5, 0), pytest.param(BLOCK, 3, marks=pytest.mark.slow)]
)
def test_a_kernel_sums_over_lanes(lanes, chunks):
    keys = jax.random.split(jax.random.key(lanes), 3)
    shared = {"w": jax.random.normal(keys[0], (2, 3))}
    inputs = (jax.random.normal(keys[1], (3, 2, 3, lanes)), jax.random.randint(keys[2], (3, 2, lanes), 0, 5))
    sums = traced_sums(sums_of_lanes, shared, inputs)
    assert sums is not None
    got = sum_kernel(sums, shared, inputs, jnp.int32(chunks), interpret=True)
    together = jax.tree.map(lambda a: jnp.moveaxis(a[:chunks], 0, -2).reshape(*a.shape[1:-1], -1), inputs)
    expected = jax.vmap(sums_of_lanes)(shared, together)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, atol=1e-6 * (1 + float(jnp.abs(value).max())), err_msg=name)


def test_what_is_not_a_sum_over_lanes_is_left_to_xla():
    shared, inputs = jnp.ones((2, 3)), jnp.ones((4, 2, 3, 5))

    def runs(function, given=inputs) -> bool:
        return traced_sums(function, shared, given) is not None

    assert runs(lambda s, x: (s[:, None] * x).sum(axis=1))
    assert not runs(lambda s, x: x.max(axis=1))
    assert not runs(lambda s, x: x)  # lanes as they are
    assert not runs(lambda s, x: (x - x.sum(axis=1, keepdims=True)).sum())  # a sum goes back to the lanes
    assert not runs(lambda s, x: jnp.sort(x, axis=0).sum())
    assert not runs(lambda s, x: jnp.round(x).sum())  # halves go another way
    assert not runs(lambda s, x: x.sum(axis=1), given=inputs.astype(jnp.bfloat16))
    assert not runs(lambda s, x: (x @ x.T).astype(jnp.float32), given=inputs.astype(jnp.int32))
    assert not runs(lambda s, x: x.sum(axis=1), given=jnp.ones((4, 2, 65, 5)))  # too wide for a tile


@pytest.mark.parametrize(
    ("name", "episodes", "hidden", "activation"),
    [
        ("CartPole-v1", 4, (16, 16), "tanh"),
        pytest.param("CartPole-v1", 3, (17, 1), "relu", marks=pytest.mark.slow),
        pytest.param("MountainCar-v0", 3, (), "identity", marks=pytest.mark.slow),
        pytest.param("MountainCar-v0", 3, (5,), "gelu", marks=pytest.mark.slow),
    ],
)
def test_the_gradient_in_a_kernel_is_the_same(name, episodes, hidden, activation):
    environment = jb.make_environment(name)
    policy = jb.mlp_policy(environment, hidden=hidden, activation=activation)
    keys = jax.random.split(jax.random.key(3), 3)
    theta = jax.vmap(policy.init)(keys)
    batch = jax.jit(lambda t, k: rollout.collect(environment, policy, t, k, episodes, 40))(theta, keys)
    estimator = jb.Estimator(gamma=0.99, horizon=40, baseline="leave-one-out")
    expected = estimators.estimate(estimator, policy, theta, batch)
    with interpreted(estimators, kernels, "sum_kernel") as made:
        got = jax.jit(lambda t, b: estimators.estimate(estimator, policy, t, b))(theta, batch)
    assert len(made) == 1
    np.testing.assert_allclose(got, expected, atol=1e-6 * float(jnp.abs(expected).max()))


def test_a_gradient_becomes_one_cuda_kernel():
    environment = jb.make_environment("CartPole-v1")
    policy = jb.mlp_policy(environment)
    keys = jax.random.split(jax.random.key(0), 13)
    theta = jax.vmap(policy.init)(keys)
    batch = jax.eval_shape(lambda t, k: rollout.collect(environment, policy, t, k, 50, 500), theta, keys)
    with mock.patch.object(estimators, "kernels_run", lambda: True):
        program = jax.jit(lambda t, b: estimators.estimate(jb.Estimator(), policy, t, b))
        text = program.trace(theta, batch).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") == 1
