"""Compression of gradient messages: what a receiver decodes, how many bytes it took, and feedback of the error.

A compressor C maps a message to what a receiver decodes. With error feedback, an agent remembers what compression has
taken away and adds it to its next message:

    send C(g_t + e_t),    e_{t+1} = g_t + e_t − C(g_t + e_t),

so that the sum of all messages differs from the sum of all gradients by the last e only. Every C here is idempotent:
what has been decoded once decodes to itself, so Byzantine messages can be brought into the same format.

References:
    Karimireddy et al., Error feedback fixes SignSGD and other gradient compression schemes, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.errors import UsageError
from jaxbyz.protocol.placement import FLOAT_BYTES
from jaxbyz.registry import Registry

INDEX_BYTES = 4
INT8_LEVELS = 127


class Compressor(NamedTuple):
    """How a message is compressed.

    Attributes:
        decoded: `[D] -> [D]`, what a receiver decodes.
        size: `D -> bytes` of one message.
        feedback: whether the sender adds the error of its last message to the next.
    """

    decoded: Callable[[Float[Array, " D"]], Float[Array, " D"]]
    size: Callable[[int], int]
    feedback: bool = True


def top_k(*, share: float = 0.1, feedback: bool = True) -> Compressor:
    """Send the ⌈share·D⌉ entries of largest magnitude with their positions.

    Args:
        share: the part of the entries that is sent.
        feedback: add what was not sent to the next message.
    """
    if not 0 < share <= 1:
        raise UsageError(f"share={share}: must be in (0, 1]")

    def decoded(message: Array) -> Array:
        k = math.ceil(share * message.shape[0])
        _, kept = jax.lax.top_k(jnp.abs(message), k)
        return jnp.zeros_like(message).at[kept].set(message[kept])

    return Compressor(decoded, lambda D: math.ceil(share * D) * (FLOAT_BYTES + INDEX_BYTES), feedback)


def sign(*, feedback: bool = True) -> Compressor:
    """Send one bit per entry and the mean magnitude: every entry decodes to ± that mean."""

    def decoded(message: Array) -> Array:
        magnitude = jnp.mean(jnp.abs(message))
        return jnp.where(message < 0, -magnitude, magnitude)

    return Compressor(decoded, lambda D: -(-D // 8) + FLOAT_BYTES, feedback)


def int8(*, feedback: bool = True) -> Compressor:
    """Send one byte per entry, a multiple of 1/127 of the largest magnitude, and that magnitude."""

    def decoded(message: Array) -> Array:
        step = jnp.max(jnp.abs(message)) / INT8_LEVELS
        return jnp.round(message / jnp.where(step > 0, step, 1.0)) * step

    return Compressor(decoded, lambda D: D + FLOAT_BYTES, feedback)


compressors = Registry("compression")
compressors.add("none", lambda: None, "messages are sent as 32-bit floats")
compressors.add("top-k", top_k, "the largest entries with their positions; option share")
compressors.add("sign", sign, "one bit per entry and their mean magnitude")
compressors.add("int8", int8, "one byte per entry and the largest magnitude")
