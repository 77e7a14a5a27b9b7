"""Top-k sends ⌈share·D⌉ entries, computed without the rounding of binary fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from jaxbyz.protocol.compression import top_k

BYTES_PER_ENTRY = 8  # a float and its position


@pytest.mark.parametrize(("share", "size", "entries"), [(0.07, 100, 7), (0.29, 100, 29), (0.1, 37, 4), (1.0, 37, 37)])
def test_top_k_sends_the_share_rounded_up(share, size, entries):
    compressor = top_k(share=share)
    assert compressor.size(size) == entries * BYTES_PER_ENTRY
    decoded = compressor.decoded(jnp.asarray(np.random.default_rng(0).normal(size=size), jnp.float32))
    assert jnp.count_nonzero(decoded) == entries


def test_every_share_of_two_digits_is_exact():
    for percent in range(1, 101):
        expected = math.ceil(Fraction(percent, 100) * 100)
        assert top_k(share=percent / 100).size(100) == expected * BYTES_PER_ENTRY
