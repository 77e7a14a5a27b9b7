"""Convolutions with lanes on the last axis."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.accelerate.platform import plain


def convolve(
    kernel: Float[Array, "out K"], x: Float[Array, "C H W L"], size: int, stride: int
) -> Float[Array, "out h w L"]:
    """Convolve the images of L lanes without padding.

    `vmap` over agents turns XLA's convolution into a grouped one, which is slow. Here it is one matrix product per row
    of the kernel.

    Args:
        kernel: `[out, size·size·C]`; within a row, the order is row of the kernel, column, channel.
        x: the images.
        size: height and width of the kernel.
        stride: distance between two positions of the kernel.
    """
    if plain():
        return plain_convolve(kernel, x, size, stride)
    out, (channels, height, width, lanes) = kernel.shape[0], x.shape
    h, w = ((side - size) // stride + 1 for side in (height, width))
    columns = [x[:, :, j : j + stride * (w - 1) + 1 : stride] for j in range(size)]
    gathered = jnp.concatenate(columns)  # [size·C, H, w, L]

    def product(i: int) -> Array:
        rows = gathered[:, i : i + stride * (h - 1) + 1 : stride]
        return kernel[:, i * size * channels : (i + 1) * size * channels] @ rows.reshape(size * channels, h * w * lanes)

    return functools.reduce(jnp.add, map(product, range(size))).reshape(out, h, w, lanes)


def plain_convolve(kernel: Array, x: Array, size: int, stride: int) -> Array:
    """Compute `convolve` with XLA's convolution."""
    weights = kernel.reshape(kernel.shape[0], size, size, x.shape[0])
    return jax.lax.conv_general_dilated(
        x, weights, (stride, stride), "VALID", dimension_numbers=("CHWN", "OHWI", "CHWN")
    )
