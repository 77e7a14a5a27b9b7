"""A function of one small matrix as a single GPU kernel.

On a GPU, XLA launches a kernel for every product of matrices and for every few formulas between them. If the matrix is
small, a function of hundreds of formulas takes as long as its launches. Here the whole function is one kernel, and the
matrix stays in one multiprocessor. `vmap` adds instances of the kernel, one per matrix.

The kernel is traced from the plain function, with sides that are powers of two, as Triton demands. Where Triton needs
another formula than XLA, the function calls one of the public functions below.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxbyz.accelerate.kernels.result_shapes import result_like
from jaxbyz.accelerate.platform import interpret_kernels, kernels_run

LEAST_SIDE, LARGEST_SIDE = 16, 64  # Triton multiplies matrices of 16 rows or more; beyond 64 registers do not suffice
ENTRIES_PER_WARP = 256  # 8 per thread: with 16, rows and columns of a product do not fit into a thread's registers

_in_kernel: ContextVar[bool] = ContextVar("_in_kernel", default=False)


def one_matrix_kernel(function: Callable[..., Array], *arrays: Array) -> Float[Array, " n"]:
    """Return `function(*arrays)`, in one kernel if Triton kernels run, n is at most 64 and numbers have 32 bits.

    Derivatives are always those of the plain function.

    Args:
        function: takes the arrays, padded with zeros to any larger n, and returns `[n]`. The padding must not
            influence the first entries of the result.
        *arrays: `[n, n]`, and after them one or more of `[n]`.
    """
    n = arrays[0].shape[0]
    if not kernels_run() or n > LARGEST_SIDE or any(array.dtype != jnp.float32 for array in arrays):
        return function(*arrays)

    @jax.custom_jvp
    def in_kernel(*arrays: Array) -> Array:
        return _call_kernel(function, arrays)

    @in_kernel.defjvp
    def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
        return jax.jvp(function, primals, tangents)

    return in_kernel(*arrays)


def _call_kernel(function: Callable[..., Array], arrays: tuple[Array, ...]) -> Float[Array, " n"]:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    n = arrays[0].shape[0]
    side = max(LEAST_SIDE, 1 << (n - 1).bit_length())
    padded = [jnp.pad(array, (0, side - n)) for array in arrays]
    matrices = [array for array in padded if array.ndim == 2]
    vectors = padded[len(matrices) :]
    sources = (*matrices, jnp.stack(vectors))  # vectors as one array, because XLA would pad each in a kernel of its own

    def kernel(*references: Any) -> None:
        *of_matrices, of_vectors, result = references
        token = _in_kernel.set(True)
        try:
            result[...] = function(*(of[...] for of in of_matrices), *(of_vectors[i] for i in range(len(vectors))))
        finally:
            _in_kernel.reset(token)

    return pl.pallas_call(
        kernel,
        out_shape=result_like(sources[0], (side,)),
        compiler_params=triton.CompilerParams(num_warps=side * side // ENTRIES_PER_WARP, num_stages=1),
        interpret=interpret_kernels(),
    )(*sources)[:n]


def matrix_vector(matrix: Float[Array, "m n"], vector: Float[Array, " n"]) -> Float[Array, " m"]:
    """Return `matrix @ vector` to full precision. Triton multiplies matrices only."""
    if _in_kernel.get():
        return jnp.sum(matrix * vector[None, :], axis=1)
    return jnp.matmul(matrix, vector, precision=lax.Precision.HIGHEST)


def inner_product(a: Float[Array, " n"], b: Float[Array, " n"]) -> Float[Array, ""]:
    """Return `Σ_i a_i b_i`."""
    return jnp.sum(a * b) if _in_kernel.get() else jnp.dot(a, b)


def computed_once(array: Array) -> Array:
    """Return an array that XLA does not compute again for each use. A kernel never does."""
    return array if _in_kernel.get() else lax.optimization_barrier(array)


def median_of_pairs(matrix: Float[Array, "m m"], n: int) -> Float[Array, ""]:
    """Return the median of the entries above the diagonal in the first n rows and columns. Triton cannot sort."""
    if not _in_kernel.get():
        return jnp.median(matrix[np.triu_indices(n, 1)])
    column = lax.broadcasted_iota(jnp.int32, matrix.shape, 1)
    chosen = (lax.broadcasted_iota(jnp.int32, matrix.shape, 0) < column) & (column < n)
    bits = lax.bitcast_convert_type(matrix, jnp.int32)
    keys = jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)  # in the same order as the numbers
    count = n * (n - 1) // 2
    lower = (count - 1) // 2

    def try_bit(i: Array, key: Array) -> Array:
        larger = key + (jnp.int32(1) << (31 - i))
        return jnp.where(jnp.sum((chosen & (keys < larger)).astype(jnp.int32)) <= lower, larger, key)

    low = chosen & (keys <= lax.fori_loop(0, 32, try_bit, jnp.int32(-(2**31))))
    middle = jnp.max(jnp.where(low, matrix, -jnp.inf))
    following = jnp.min(jnp.where(chosen & ~low, matrix, jnp.inf))
    ties = jnp.sum(low.astype(jnp.int32)) > count // 2
    return 0.5 * (middle + jnp.where(ties, middle, following))


def repeat(times: int, function: Callable[[Array], Array], start: Array) -> Array:
    """Apply a function several times. A kernel has a loop of it, because Triton compiles long programs slowly."""
    if _in_kernel.get():
        return lax.fori_loop(0, times, lambda _, value: function(value), start)
    for _ in range(times):
        start = function(start)
    return start
