"""Where the gradient-found attack starts: with the default messages of most other attacks."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.attacks.alie import alie_row, alie_z
from jaxbyz.attacks.avg_zero import avg_zero_row
from jaxbyz.attacks.base import View, sent_by_all
from jaxbyz.attacks.fedpg_br_attacks import COLLUSION_REACH, NOISE_RANGES, collusion_row, range_noise
from jaxbyz.attacks.honest_statistics import honest_mean
from jaxbyz.attacks.ipm import EPSILON, ipm_row
from jaxbyz.attacks.line_search import scale_grid
from jaxbyz.attacks.min_max import DIRECTIONS, min_max_row, min_sum_row, perturbation
from jaxbyz.attacks.noise import GAUSSIAN_SCALE, LARGE_NOISE_SCALE


def families_of_starts(key: PRNGKeyArray, view: View, *, huge: bool) -> list[Float[Array, "C senders D"]]:
    """Return families of forged messages: `[C, 1, D]` where all senders send the same, otherwise `[C, K, D]`.

    They hold the default messages of the finite attacks that send every receiver the same, and the grids of optimal IPM
    and ALIE.

    Args:
        key: random key of the noise.
        view: what the adversary sees.
        huge: also try a message that is finite, but too large for any robust rule to use.
    """
    x, mask = view.messages, view.mask
    mean, z, grid = honest_mean(x, mask), alie_z(view), scale_grid(x.dtype)

    directions = _directions(view)
    furthest = jnp.concatenate([jax.vmap(partial(row, view))(directions) for row in (min_max_row, min_sum_row)])
    others = [ipm_row(view, 1.0), ipm_row(view, EPSILON), alie_row(view, -z), alie_row(view, z)]
    others += [avg_zero_row(view), jnp.zeros_like(mean)]
    others_by_sender = jnp.broadcast_to(jnp.stack(others)[:, None], (len(others), *x.shape))
    noise = _noise(key, view)
    if huge:
        noise = jnp.concatenate([noise, jnp.full((1, *x.shape), jnp.finfo(x.dtype).max ** 0.75, x.dtype)])
    return [
        jax.vmap(partial(ipm_row, view))(grid)[:, None],
        jax.vmap(partial(alie_row, view))(-grid)[:, None],
        jax.vmap(partial(alie_row, view))(grid)[:, None],
        jnp.concatenate([furthest, 2.0 * mean[None] - furthest])[:, None],
        jnp.concatenate([-x[None], others_by_sender]),
        noise,
        jnp.where(mask[:, None], mean[None], x)[:, None],
    ]


def vectors_that_span_the_starts(key: PRNGKeyArray, view: View) -> Float[Array, "m D"]:
    """Return m = 3K + 4 vectors of which every message and every start is a linear combination.

    Among them are 2K random ones, so that Byzantine senders can also move away from all that is honest.
    """
    x = view.messages
    return jnp.concatenate([x, _directions(view), jnp.ones_like(x[:1]), *_normal_and_uniform(key, view)])


def _directions(view: View) -> Float[Array, "3 D"]:
    """Return the directions of MinMax and MinSum."""
    return jnp.stack([perturbation(view, direction) for direction in DIRECTIONS])


def _normal_and_uniform(key: PRNGKeyArray, view: View) -> tuple[Float[Array, "K D"], Float[Array, "K D"]]:
    """Return Gaussian noise, and the same noise made uniform in (−1, 1): one draw shortens compilation."""
    x = view.messages
    normal = jax.random.normal(key, x.shape, x.dtype)
    return normal, jax.lax.erf(normal / jnp.sqrt(2.0).astype(x.dtype))


def _noise(key: PRNGKeyArray, view: View) -> Float[Array, "5 K D"]:
    """Return Gaussian noise at three scales and FedPG-BR's two attacks."""
    normal, uniform = _normal_and_uniform(key, view)
    collusion = sent_by_all(collusion_row(view, normal[0], COLLUSION_REACH), view)
    gaussian = [scale * normal for scale in (100.0, GAUSSIAN_SCALE, LARGE_NOISE_SCALE)]
    return jnp.stack([*gaussian, collusion, range_noise(view, uniform, NOISE_RANGES)])
