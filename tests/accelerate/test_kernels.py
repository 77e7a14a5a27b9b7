"""GPU kernels: interpreted on a CPU they agree with the plain versions, and Triton accepts them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import cuda_kernels_in
from jax import lax

from jaxbyz.accelerate.kernels import one_kernel
from jaxbyz.accelerate.kernels.row_kernels import WARP_LANES
from jaxbyz.accelerate.platform import trace_for
from jaxbyz.environments.lunar_lander import physics
from jaxbyz.environments.lunar_lander.environment import EnvParams, LunarLander


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
