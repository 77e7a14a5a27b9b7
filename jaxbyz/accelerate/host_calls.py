"""Calls of NumPy functions from compiled programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from jaxbyz.accelerate.platform import on_cpu


def call_on_host(function: Callable[..., tuple[np.ndarray, ...]], results: Any, *arguments: Any) -> Any:
    """Call a NumPy function from a compiled program, once for everything that `vmap` maps over.

    On a CPU, the function reads and writes the buffers of the program: a call takes about 0.1 ms. JAX's own callbacks
    copy every argument with another program, which takes longer and needs a thread that the waiting programs may
    occupy. The function must not raise errors, because other devices would wait for the one whose program ended.

    Args:
        function: gets arrays that all have the mapped axes first, and returns a tuple of arrays that have them too. It
            must not keep its arguments.
        results: a tuple with the shapes and types of the results, without the mapped axes. If it is empty, the call is
            made nevertheless.
        *arguments: its arguments.
    """
    if not on_cpu():
        call = jax.tree_util.Partial(_on_copies, function)
        if results:
            return jax.pure_callback(call, results, *arguments, vmap_method="broadcast_all")
        return io_callback(call, results, *arguments)

    def in_place(context: Any, outputs: Any, *inputs: Any) -> None:
        values = function(*(np.asarray(buffer) for buffer in inputs))
        for output, value in zip(outputs, values, strict=True):
            np.asarray(output)[...] = value

    return buffer_callback(in_place, results, has_side_effect=True, vmap_method="broadcast_all")(*arguments)


def _on_copies(function: Callable[..., tuple[np.ndarray, ...]], *arguments: Any) -> tuple[np.ndarray, ...]:
    return function(*(np.asarray(argument) for argument in arguments))
