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

from jaxbyz.attacks.base import Attack, View, on_messages, sent_by_all
from jaxbyz.attacks.honest_statistics import honest_deviations, honest_mean, honest_std, overflow_safe_norm, unit
from jaxbyz.errors import UsageError

HIDDEN = 8
FEATURES = 8
DIRECTIONS = 5
SIZE = FEATURES * HIDDEN + HIDDEN + HIDDEN * DIRECTIONS + DIRECTIONS  # of the network's parameters
# Older networks saw nothing of the rule's memory, and all senders sent the same.
FIRST_FEATURES, FIRST_DIRECTIONS, FIRST_SIZE = 5, 4, 84
MEMORY_DECAY = 0.9
TIME_SCALE = 50.0  # iterations after which the time feature is 1/2
FORMAT = 1
DEFAULT_FILE = Path(__file__).with_name("learned_against_rfa.npz")
LARGEST_FILE = 1_000_000  # bytes; a file holds 117 numbers and a short description


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


def layers_of(parameters: Any, features: int = FEATURES, directions: int = DIRECTIONS) -> tuple[Any, Any, Any, Any]:
    """Return the weights and biases of both layers, `[features, HIDDEN]` and `[HIDDEN, directions]`."""
    ends = np.cumsum((features * HIDDEN, HIDDEN, HIDDEN * directions))
    w1, b1, w2, b2 = (parameters[a:b] for a, b in zip((0, *ends), (*ends, None), strict=True))
    return w1.reshape(features, HIDDEN), b1, w2.reshape(HIDDEN, directions), b2


def network(parameters: Float[Array, " SIZE"], features: Float[Array, "K FEATURES"]) -> Float[Array, "K DIRECTIONS"]:
    """Return one number in (−1, 1) per sender and direction: two layers with tanh."""
    w1, b1, w2, b2 = layers_of(parameters)
    return jnp.tanh(jnp.tanh(features @ w1 + b1[None]) @ w2 + b2[None])


def features_of(view: View, average: Float[Array, " D"]) -> Float[Array, "K FEATURES"]:
    """Return what the network sees for each sender, all of order 1 and independent of the scale of the messages.

    For all senders they are the size of the honest mean in honest spreads, the cosines of the honest mean with its
    moving average and with the honest standard deviation, the time, and a constant. If the rule remembers senders, each
    of them also sees its trust, whether it is excluded, and by how much it is more like another sender than the median
    honest sender is; otherwise these are zero.
    """
    mean, std = honest_mean(view.messages, view.mask), honest_std(view.messages, view.mask)
    tiny = jnp.finfo(mean.dtype).tiny
    size = jnp.log1p(overflow_safe_norm(mean) / jnp.maximum(overflow_safe_norm(std), tiny))
    time = view.step / (view.step + TIME_SCALE)
    common = jnp.stack([size, unit(mean) @ unit(average), unit(mean) @ unit(std), time, jnp.ones_like(size)])
    own = jnp.zeros((len(view.mask), FEATURES - len(common)))
    if view.senders is not None:
        others = ~jnp.eye(len(view.mask), dtype=bool)
        likeness = view.senders.likeness / jnp.maximum(view.senders.spread[1], 1.0)
        most = jnp.max(jnp.where(others, likeness, -1.0), axis=1)
        usual = jnp.nanmedian(jnp.where(view.mask, jnp.nan, most))
        own = jnp.stack([view.senders.trust, view.senders.excluded.astype(most.dtype), most - usual], axis=1)
    return jnp.concatenate([jnp.broadcast_to(common, (len(own), len(common))), own], axis=1)


def directions_of(view: View, average: Float[Array, " D"]) -> Float[Array, "DIRECTIONS K D"]:
    """Return the unit directions that the network combines, for each sender.

    They are those of IPM, −μ; of ALIE and MinMax, −s; of drift, minus the moving average of μ; of mimic, from μ to the
    honest message that is farthest from it; and of scattered, from μ to what the sender would send if it were honest.
    """
    mean, std = honest_mean(view.messages, view.mask), honest_std(view.messages, view.mask)
    deviations = honest_deviations(view.messages, view.mask)
    farthest = deviations[jnp.argmax(jnp.sum(deviations * deviations, axis=1))]
    common = [sent_by_all(row, view) for row in (-unit(mean), -unit(std), -unit(average), unit(farthest))]
    return jnp.stack([*common, jax.vmap(unit)(view.messages - mean[None])])


def learned_from(parameters: Float[Array, " SIZE"], reach: float = 3.0) -> Attack:
    """Return the attack of a network: Byzantine agent b sends μ + reach·s̄·Σ_i a_bi·d_bi.

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

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        average = trend(view)
        amounts = network(view.memory.parameters.astype(view.messages.dtype), features_of(view, average))
        spread = overflow_safe_norm(honest_std(view.messages, view.mask))
        shift = reach * spread * jnp.einsum("bi,ibd->bd", amounts, directions_of(view, average))
        return honest_mean(view.messages, view.mask)[None] + shift

    def init(K: int, D: int) -> Memory:
        return Memory(jnp.asarray(parameters), jnp.zeros(D), jnp.int32(0))

    return on_messages(forge, "gradients", init=init, remember=remember)


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
    if parameters.shape == (FIRST_SIZE,):
        parameters = with_absent_inputs(parameters)
    if parameters.shape != (SIZE,) or not np.isfinite(parameters).all() or not 0 < reach < 1e6:
        raise UsageError(problem)
    return StoredAdversary(parameters.astype(np.float32), reach, training)


def with_absent_inputs(parameters: np.ndarray) -> np.ndarray:
    """Return the network that ignores the features and directions which did not exist when this one was trained."""
    w1, b1, w2, b2 = layers_of(parameters, FIRST_FEATURES, FIRST_DIRECTIONS)
    added = DIRECTIONS - FIRST_DIRECTIONS
    w1, w2 = np.pad(w1, ((0, FEATURES - FIRST_FEATURES), (0, 0))), np.pad(w2, ((0, 0), (0, added)))
    return np.concatenate([w1.ravel(), b1, w2.ravel(), np.pad(b2, (0, added))])


def first_guess(key: PRNGKeyArray) -> Float[Array, " SIZE"]:
    """Return a network near the attack "one honest spread against the honest mean", from which training starts."""
    parameters = 0.1 * jax.random.normal(key, (SIZE,))
    return parameters.at[SIZE - DIRECTIONS].add(0.35)
