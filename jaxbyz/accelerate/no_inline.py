"""Functions that XLA calls instead of inlining.

On CPU, XLA fuses a value into each of its consumers and computes it again in every one. In long chains of small
element-wise formulas, such as a physics solver, that multiplies both run time and compile time. A call that stays a
call stops it: its results are stored.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import jax

from jaxbyz.accelerate.platform import on_cpu

try:
    from jax.experimental import xla_metadata
except ImportError:  # an older or newer JAX: everything still works, compiled as one piece
    xla_metadata = None  # type: ignore[assignment]

P = ParamSpec("P")
R = TypeVar("R")


_in_kernel: contextvars.ContextVar[bool] = contextvars.ContextVar("_in_kernel", default=False)


@contextlib.contextmanager
def in_kernel() -> Iterator[None]:
    """What is traced within becomes part of one GPU kernel."""
    token = _in_kernel.set(True)
    try:
        yield
    finally:
        _in_kernel.reset(token)


def branches_pay() -> bool:
    """Whether skipping work is cheaper than doing it: on a CPU and within a kernel, not between kernels of a GPU."""
    return on_cpu() or _in_kernel.get()


def apart(function: Callable[P, R], static_argnames: tuple[str, ...] = ()) -> Callable[P, R]:
    """Mark a function of arrays as compiled apart on CPU; elsewhere (GPUs fuse without repeating) it is unchanged."""

    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        with xla_metadata.set_xla_metadata(inlineable=None):  # calls within, such as jnp.where's own, are inlined
            return function(*args, **kwargs)

    compiled = jax.jit(inside, static_argnames=static_argnames)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if xla_metadata is None or not on_cpu():
            return function(*args, **kwargs)
        with xla_metadata.set_xla_metadata(inlineable="false"):
            return compiled(*args, **kwargs)

    return call
