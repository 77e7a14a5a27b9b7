"""Functions over lanes as one GPU kernel: replayed on rows they do the same, and Triton accepts them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxbyz.environments import lunar_lander_physics as physics
from jaxbyz.environments.kernel import BLOCK, one_kernel
from jaxbyz.environments.lunar_lander import EnvParams, LunarLander


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


@pytest.mark.parametrize("lanes", [BLOCK, 2 * BLOCK, 5])
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
    one = physics.at_rest(jnp.zeros(11), jnp.zeros((3, 3)), jnp.zeros((3, 3)))
    world = jax.tree.map(lambda a: jnp.zeros((64, *a.shape), a.dtype), one)
    program = jax.jit(physics.step_kernel).trace(world, jnp.zeros(64, bool)).lower(lowering_platforms=("cuda",))
    assert program.as_text().count("__gpu$xla.gpu.triton") == 1


@pytest.mark.slow
def test_the_kernel_steps_landers_as_the_cpu_does():
    world = worlds(1024, 75)
    touching = (world.touching != 0).any(axis=1) & ~world.crashed
    assert touching.sum() >= 10
    some = jnp.argsort(~touching)[:96]  # those on the ground first
    world = jax.tree.map(lambda a: a[some], world)
    over = jnp.arange(96) % 7 == 0
    expected = jax.jit(physics.step)(world, over)
    got = physics.step_kernel(world, over, interpret=True)
    for name in physics.World._fields:
        np.testing.assert_allclose(getattr(got, name), getattr(expected, name), atol=2e-4, err_msg=name)
