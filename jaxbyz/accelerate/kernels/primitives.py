"""The types and the element-wise primitives that kernels can compute with."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

KERNEL_TYPES = (jnp.float32, jnp.int32, jnp.bool_)

# Element-wise primitives for which Triton's lowering rules can be used as they are.
ARITHMETIC = frozenset({
    "abs", "add", "and", "atan2", "ceil", "clamp", "convert_element_type", "cos", "div", "eq", "exp", "expm1", "floor",
    "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg",
    "not", "or", "pow", "rem", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "sin", "sqrt", "square",
    "sub", "tan", "tanh", "xor",
})  # fmt: skip

# Element-wise primitives without a lowering rule for Triton, expressed by others.
REWRITTEN: dict[str, Callable] = {
    "round": lambda x: jnp.floor(x + 0.5),  # differs from `jnp.round` at halves, so only `one_kernel` uses it
}
