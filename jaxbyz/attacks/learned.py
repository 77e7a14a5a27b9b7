"""A learned adversary: a small network that decides in every iteration how to combine the directions of known attacks.

`jaxbyz.runs.adversary` trains the network; this module defines what it sees, what it sends and how it is stored.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxbyz.attacks.base import Attack, View, same_row
from jaxbyz.attacks.honest_statistics import honest_deviations, honest_mean, honest_std, overflow_safe_norm, unit
from jaxbyz.errors import UsageError

HIDDEN = 8
FEATURES = 5
DIRECTIONS = 4
SIZE = FEATURES * HIDDEN + HIDDEN + HIDDEN * DIRECTIONS + DIRECTIONS  # of the network's parameters
MEMORY_DECAY = 0.9
TIME_SCALE = 50.0  # iterations after which the time feature is 1/2
FORMAT = 1
DEFAULT_FILE = Path(__file__).with_name("learned_against_rfa.npz")
LARGEST_FILE = 1_000_000  # bytes; a file holds 84 numbers and a short description


class Memory(NamedTuple):
    """What the adversary carries from one iteration to the next.

    Attributes:
        parameters: `[SIZE]`, the network. It is part of the memory, so that one program can play many networks.
        average: `[D]`, the moving average of the honest mean.
        iterations: `[]`, the number of iterations so far.
    """

    parameters: Float[Array, " SIZE"]
    average: Float[Array, " D"]
    iterations: Int[Array, ""]


def network(parameters: Float[Array, " SIZE"], features: Float[Array, " FEATURES"]) -> Float[Array, " DIRECTIONS"]:
    """Return one number in (−1, 1) per direction: two layers with tanh."""
    sizes = (FEATURES * HIDDEN, HIDDEN, HIDDEN * DIRECTIONS)
    w1, b1, w2, b2 = jnp.split(parameters, np.cumsum(sizes))
    hidden = jnp.tanh(features @ w1.reshape(FEATURES, HIDDEN) + b1)
    return jnp.tanh(hidden @ w2.reshape(HIDDEN, DIRECTIONS) + b2)


def features_of(view: View, average: Float[Array, " D"]) -> Float[Array, " FEATURES"]:
    """Return what the network sees, all of order 1 and independent of the scale of the messages.

    They are the size of the honest mean in honest spreads, the cosines of the honest mean with its moving average and
    with the honest standard deviation, the time, and a constant.
    """
    mean, std = honest_mean(view.messages, view.mask), honest_std(view.messages, view.mask)
    tiny = jnp.finfo(mean.dtype).tiny
    size = jnp.log1p(overflow_safe_norm(mean) / jnp.maximum(overflow_safe_norm(std), tiny))
    time = view.step / (view.step + TIME_SCALE)
    return jnp.stack([size, unit(mean) @ unit(average), unit(mean) @ unit(std), time, jnp.ones_like(size)])


def directions_of(view: View, average: Float[Array, " D"]) -> Float[Array, "DIRECTIONS D"]:
    """Return the unit directions that the network combines.

    They are those of IPM, −μ; of ALIE and MinMax, −s; of drift, minus the moving average of μ; and of mimic, from μ to
    the honest message that is farthest from it.
    """
    mean, std = honest_mean(view.messages, view.mask), honest_std(view.messages, view.mask)
    deviations = honest_deviations(view.messages, view.mask)
    farthest = deviations[jnp.argmax(jnp.sum(deviations * deviations, axis=1))]
    return jnp.stack([-unit(mean), -unit(std), -unit(average), unit(farthest)])


def learned_from(parameters: Float[Array, " SIZE"], reach: float = 3.0) -> Attack:
    """Return the attack of a network: every Byzantine agent sends μ + reach·s̄·Σ_i a_i·d_i.

    Args:
        parameters: `[SIZE]`, the network's parameters, with which the attack's memory starts.
        reach: the largest distance along one direction d_i, in honest spreads s̄ = √((1/h) Σ ‖x_i − μ‖²).
    """

    def trend(view: View) -> Float[Array, " D"]:
        mean = honest_mean(view.messages, view.mask)
        moved = MEMORY_DECAY * view.memory.average + (1.0 - MEMORY_DECAY) * mean
        return jnp.where(view.memory.iterations == 0, mean, moved)

    def remember(view: View) -> Memory:
        return Memory(view.memory.parameters, trend(view), view.memory.iterations + 1)

    def row(view: View) -> Array:
        average = trend(view)
        amounts = network(view.memory.parameters.astype(view.messages.dtype), features_of(view, average))
        spread = overflow_safe_norm(honest_std(view.messages, view.mask))
        shift = reach * spread * (amounts @ directions_of(view, average))
        return honest_mean(view.messages, view.mask) + shift

    def init(K: int, D: int) -> Memory:
        return Memory(jnp.asarray(parameters), jnp.zeros(D), jnp.int32(0))

    return same_row(row, "gradients", init=init, remember=remember)


def learned(*, file: str | None = None) -> Attack:
    """Play the adversary that `jaxbyz adversary` has trained and stored in a file.

    Args:
        file: the path of the file; `learned:PATH` is short for `learned:file=PATH`. The default is the adversary in the
            package, which was trained against RFA on CartPole (docs/measurements/attacks.md has the command).
    """
    stored = load_adversary(DEFAULT_FILE if file is None else file)
    return learned_from(jnp.asarray(stored.parameters), stored.reach)


class StoredAdversary(NamedTuple):
    """A trained adversary: the network's parameters, its reach, and how it was trained."""

    parameters: np.ndarray
    reach: float
    training: dict[str, Any]


def save_adversary(file: str | Path, adversary: StoredAdversary) -> None:
    """Write an adversary to an `.npz` file."""
    description = {"format": FORMAT, "reach": adversary.reach, "training": adversary.training}
    with open(file, "wb") as stream:
        np.savez(stream, parameters=adversary.parameters.astype(np.float32), description=json.dumps(description))


def load_adversary(file: str | Path) -> StoredAdversary:
    """Read an adversary.

    Raises:
        UsageError: if the file does not hold one.
    """
    path = Path(file)
    problem = f"learned: {file} is not a file that `jaxbyz adversary` wrote"
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_FILE:
            raise UsageError(f"learned: {file} is not a file" if not path.is_file() else problem)
        with np.load(path, allow_pickle=False) as arrays:
            parameters, description = np.asarray(arrays["parameters"]), json.loads(str(arrays["description"]))
        reach, training = float(description["reach"]), dict(description["training"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(problem) from error
    if parameters.shape != (SIZE,) or not np.isfinite(parameters).all() or not 0 < reach < 1e6:
        raise UsageError(problem)
    return StoredAdversary(parameters.astype(np.float32), reach, training)


def first_guess(key: PRNGKeyArray) -> Float[Array, " SIZE"]:
    """Return a network near the attack "one honest spread against the honest mean", from which training starts."""
    parameters = 0.1 * jax.random.normal(key, (SIZE,))
    return parameters.at[SIZE - DIRECTIONS].add(0.35)
