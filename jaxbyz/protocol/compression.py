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
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.errors import UsageError
from jaxbyz.options import option, reads
from jaxbyz.protocol.channel import Channel
from jaxbyz.protocol.iteration import Iteration
from jaxbyz.protocol.placement import FLOAT_BYTES
from jaxbyz.registry import Registry
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState

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

    def entries(D: int) -> int:
        return math.ceil(Fraction(str(share)) * D)  # 0.07 · 100 is 7, not a little more

    def decoded(message: Array) -> Array:
        _, kept = jax.lax.top_k(jnp.abs(message), entries(message.shape[0]))
        return jnp.zeros_like(message).at[kept].set(message[kept])

    return Compressor(decoded, lambda D: entries(D) * (FLOAT_BYTES + INDEX_BYTES), feedback)


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


@dataclass(frozen=True, kw_only=True)
class Compression:
    """How gradient messages are compressed: a name, or a `Compressor`; None or "none" for 32-bit floats."""

    compression: str | Any = option(
        "none", "compression of gradients: top-k:share=0.1, sign, int8, with error feedback", registry=compressors,
        needs=[reads("compression")],
    )  # fmt: skip


def with_compression(channel: Channel, compressor: Compressor) -> Channel:
    """Compress what is sent. Byzantine messages are brought into the same format where they are received."""
    decoded, feedback = jax.vmap(compressor.decoded), compressor.feedback

    def init(K: int, D: int) -> Any:
        return jnp.zeros((K, D if feedback else 0)), channel.init(K, D)

    def send(now: Iteration, gradients: Array, memory: Any) -> tuple[Array, Any]:
        residual, inner = memory
        corrected = gradients + residual if feedback else gradients
        messages = decoded(corrected)
        if feedback:
            left = corrected - messages
            usable = now.takes_part & jnp.all(jnp.isfinite(left), axis=1)
            residual = jnp.where(usable[:, None], left, residual)
        arrived, inner = channel.send(now, messages, inner)
        return arrived, (residual, inner)

    def hear_gradients(now: Iteration, rule: Rule, memory: Any) -> Rule:
        heard = channel.hear_gradients(now, rule, memory[1])

        def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
            rows = jnp.where(now.mask[:, None], decoded(messages), messages)
            return heard.apply(key, rows, receiver, state)

        # Compression looks at coordinates.
        return heard._replace(apply=apply, rotates=False, averages=False, translates=False)

    return channel._replace(init=init, send=send, hear_gradients=hear_gradients, message_bytes=compressor.size)
