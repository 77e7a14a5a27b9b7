"""Where the gradient-found attack starts: with the default messages of most other attacks."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.attacks.alie import alie_z
from jaxbyz.attacks.avg_zero import avg_zero_row
from jaxbyz.attacks.base import View, sent_by_all
from jaxbyz.attacks.fedpg_br_attacks import COLLUSION_REACH, NOISE_RANGES, collusion_row, range_noise
from jaxbyz.attacks.honest_statistics import honest_mean
from jaxbyz.attacks.ipm import EPSILON, ipm_row
from jaxbyz.attacks.line_search import scale_grid
from jaxbyz.attacks.min_max import DIRECTIONS, min_max_row, min_sum_row, perturbation
from jaxbyz.attacks.noise import GAUSSIAN_SCALE, LARGE_NOISE_SCALE


class Ingredients(NamedTuple):
    """Vectors of which every start is a linear combination.

    Its factors depend on the vectors' inner products and on the ranges of the messages, so that coordinates of the
    vectors in an orthonormal basis of the space that they span serve as well.

    Attributes:
        messages: `[K, D]`, the view's.
        directions: `[3, D]`, those of MinMax and MinSum.
        ones: `[1, D]`.
        normal: `[K, D]`, Gaussian noise.
        uniform: `[K, D]`, the same noise made uniform in (−1, 1): one draw shortens compilation.
    """

    messages: Float[Array, "K D"]
    directions: Float[Array, "3 D"]
    ones: Float[Array, "1 D"]
    normal: Float[Array, "K D"]
    uniform: Float[Array, "K D"]


def ingredients_of_starts(key: PRNGKeyArray, view: View) -> Ingredients:
    """Return the vectors; among them are 2K random ones, so that senders can also move away from all that is honest."""
    x = view.messages
    directions = jnp.stack([perturbation(view, direction) for direction in DIRECTIONS])
    normal = jax.random.normal(key, x.shape, x.dtype)
    uniform = jax.lax.erf(normal / jnp.sqrt(2.0).astype(x.dtype))
    return Ingredients(x, directions, jnp.ones_like(x[:1]), normal, uniform)


def in_subspace(vectors: Ingredients) -> tuple[Ingredients, Float[Array, "D m"]]:
    """Return the coordinates of m = 3K + 4 vectors in an orthonormal basis of the space they span, and the basis."""
    basis, coordinates = jnp.linalg.qr(jnp.concatenate(vectors).T)
    ends = list(accumulate(map(len, vectors[:-1])))
    return Ingredients(*jnp.split(coordinates.T, ends)), basis


def families_of_starts(
    view: View, vectors: Ingredients, ranges: Float[Array, "K 1"], *, huge: bool
) -> list[Float[Array, "C senders D"]]:
    """Return families of forged messages: `[C, 1, D]` where all senders send the same, otherwise `[C, K, D]`.

    They hold the default messages of the finite attacks that send every receiver the same, and the grids of optimal IPM
    and ALIE.

    Args:
        view: what the adversary sees; its messages are those of `vectors`.
        vectors: what the starts are made of.
        ranges: max g_b − min g_b of every message, which its coordinates in another basis do not tell.
        huge: also try a message that is finite, but too large for any robust rule to use.
    """
    x, mask = vectors.messages, view.mask
    mean, z, grid = honest_mean(x, mask), alie_z(view), scale_grid(x.dtype)
    std = -vectors.directions[DIRECTIONS.index("std")]

    rows = [jax.vmap(partial(row, view))(vectors.directions) for row in (min_max_row, min_sum_row)]
    furthest = jnp.concatenate(rows)
    others = [ipm_row(view, 1.0), ipm_row(view, EPSILON), mean - z * std, mean + z * std]
    others += [avg_zero_row(view), jnp.zeros_like(mean)]
    others_by_sender = jnp.broadcast_to(jnp.stack(others)[:, None], (len(others), *x.shape))
    noise = [scale * vectors.normal for scale in (100.0, GAUSSIAN_SCALE, LARGE_NOISE_SCALE)]
    noise += [sent_by_all(collusion_row(view, vectors.normal[0], COLLUSION_REACH), view)]
    noise += [range_noise(x, ranges, vectors.uniform, NOISE_RANGES)]
    if huge:
        noise += [jnp.broadcast_to(jnp.finfo(x.dtype).max ** 0.75 * vectors.ones, x.shape)]
    return [
        jax.vmap(partial(ipm_row, view))(grid)[:, None],
        (mean[None] - jnp.outer(grid, std))[:, None],
        (mean[None] + jnp.outer(grid, std))[:, None],
        jnp.concatenate([furthest, 2.0 * mean[None] - furthest])[:, None],
        jnp.concatenate([-x[None], others_by_sender]),
        jnp.stack(noise),
        jnp.where(mask[:, None], mean[None], x)[:, None],
    ]
