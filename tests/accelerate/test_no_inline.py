"""Functions that XLA calls instead of inlining: they are called once, and what they use is inlined into them."""

import re

import jax
import jax.numpy as jnp
import pytest

from jaxbyz.accelerate.no_inline import not_inlined, one_compiled_function, stored
from jaxbyz.accelerate.platform import trace_for


@not_inlined
def bounded(x):
    return jnp.where(x > 0, jnp.clip(x, 0, 3), 2 * x)


@one_compiled_function
def bounded_repeatedly(x):
    return jax.lax.fori_loop(0, 5, lambda _, x: jnp.where(x > 0, jnp.clip(x, 0, 3), 2 * x), x)


@pytest.mark.parametrize("function", [bounded, bounded_repeatedly])
@pytest.mark.parametrize("axes", [0, 1, 2])
def test_only_the_function_itself_is_called(function, axes):
    for _ in range(axes):
        function = jax.vmap(function)
    lowered = jax.jit(function).lower(jnp.ones((4,) * max(axes, 1))).as_text()
    assert len(re.findall(r'call @.*inlineable = "false"', lowered)) == 1
    assert lowered.count('inlineable = "false"') == 1  # neither jnp.where nor jnp.clip, which are calls as well


def test_a_stored_value_is_computed_once():
    """Without storing the median, XLA computes it again for every row that is compared with it."""

    def programs(keep):
        def distances(x):
            return jnp.abs(x - keep(jnp.maximum(jnp.minimum(x[0], x[1]), jnp.minimum(x[1], x[2])))[None])

        return jax.jit(distances).lower(jnp.ones((3, 64))).compile().as_text().split("\n\n")

    def both(programs):
        return any(" minimum(" in program and " abs(" in program for program in programs)

    assert both(programs(lambda x: x))
    assert not both(programs(stored))


def test_other_platforms_inline():
    with trace_for("gpu"):
        assert 'inlineable = "false"' not in jax.jit(jax.vmap(bounded)).lower(jnp.ones((2, 4))).as_text()
