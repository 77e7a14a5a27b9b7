"""GPU kernels: interpreted on a CPU they agree with the plain versions, and Triton accepts them."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import cuda_kernels_in
from jax import lax

from jaxbyz.accelerate.kernels import one_kernel, one_matrix_kernel
from jaxbyz.accelerate.kernels.row_kernels import WARP_LANES
from jaxbyz.accelerate.platform import trace_for
from jaxbyz.environments.lunar_lander import physics
from jaxbyz.environments.lunar_lander.environment import EnvParams, LunarLander
from jaxbyz.rules import Receiver
from jaxbyz.rules.caf import caf, filtered_shares
from jaxbyz.rules.memory import memory
from jaxbyz.rules.rfa import rfa


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


def sets_of_messages(n: int) -> np.ndarray:
    """Sets of n messages `[8, n, 6]`: random, far, clustered, equal, zero, long, short and unusable ones."""
    rng = np.random.default_rng(n)
    x, few = rng.normal(size=(n, 6)), np.arange(n)[:, None] < (n - 1) // 3
    unusable = np.where(few, np.nan, x)
    unusable[-1] = 1e30
    sets = [x, x + 8 * few, np.where(few, 5 + 1e-3 * x, x), 0 * x + x[0], 0 * x, 1e15 * x, 1e-15 * x, unusable]
    return np.stack(sets).astype(np.float32)


def share_function(f: int, make_rule=caf):
    """Return the function messages `[n, D]` -> shares of a rule. It is new, so that JAX traces it again."""
    rule = make_rule(f)

    def shares(x):
        receiver = Receiver(x[0], jnp.int32(0))
        before = rule.apply(jax.random.key(0), x[:, ::-1], receiver, rule.init(*x.shape))
        return rule.apply(jax.random.key(0), x, receiver, before.state).shares[0]

    return shares


def memory_in_front_of_rfa(f: int):
    return memory(f)(rfa())


@pytest.mark.parametrize(
    ("n", "make_rule"),
    [
        *((n, caf) for n in (3, 13, 33)),
        (13, memory_in_front_of_rfa),
        *(pytest.param(n, memory_in_front_of_rfa, marks=pytest.mark.slow) for n in (3, 33)),
    ],
)
def test_shares_in_a_kernel(n, make_rule):
    """Alone and in batches of batches; there is another number of padded rows for each n."""
    x, results = sets_of_messages(n), {}
    for platform in ("plain", "kernels"):
        with trace_for(platform):
            function = share_function((n - 1) // 3, make_rule)
            results[platform] = jax.jit(lambda x, f=function: (f(x[1]), jax.vmap(jax.vmap(f))(x[None])[0]))(x)
    for found, expected in zip(*results.values(), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6)
        assert np.isfinite(expected).all()


def test_derivatives_through_a_kernel_are_those_of_the_plain_filter():
    """First ones in reverse, and second ones in reverse over forward."""
    x, results = sets_of_messages(5)[:2], {}
    for platform in ("plain", "kernels"):
        with trace_for(platform):
            function = share_function(1)

            def loss(x, function=function):
                return function(x) @ jnp.arange(5.0)

            def slope(x, loss=loss):
                return jax.jvp(loss, (x,), (jnp.cos(x),))[1]

            results[platform] = jax.jit(lambda x, a=loss, b=slope: [jax.vmap(jax.grad(f))(x) for f in (a, b)])(x)
    for found, expected in zip(*results.values(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert np.abs(expected).max() > 0


@pytest.mark.parametrize(("n", "kernels"), [(13, 1), (64, 1), (65, 0)])
def test_filter_of_caf_is_one_cuda_kernel(n, kernels):
    filtered = partial(filtered_shares, n=n, byzantine=2)
    with trace_for("kernels", only_lowered=True):
        one_for_all = jax.vmap(jax.vmap(partial(one_matrix_kernel, filtered)))
        assert cuda_kernels_in(one_for_all, jnp.ones((10, 48, n, n)), jnp.ones((10, 48, n))) == kernels
