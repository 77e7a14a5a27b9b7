"""What agents sample with, where a test does not care about most of it."""

from __future__ import annotations

import jax.numpy as jnp

from jaxbyz.sampling.scoring import SamplingInputs


def sampling_inputs(theta, keys, interferes=None, *, anchor=None, previous=None, private=()):
    """Return inputs of honest agents without an earlier estimate, unless something else is given."""
    honest = jnp.zeros(jnp.shape(theta)[:-1], bool) if interferes is None else interferes
    anchor, previous = (theta if rows is None else rows for rows in (anchor, previous))
    return SamplingInputs(theta, anchor, previous, keys, honest, {}, private)
