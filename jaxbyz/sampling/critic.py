"""A critic per agent: a value network V that is trained on the agent's own episodes and never leaves the agent.

The advantage of step t is the generalised advantage estimate (Schulman et al. 2016)

    Â_t = Σ_{h≥t} (γλ)^{h−t} δ_h,    δ_h = r_h + γ V(s_{h+1}) − V(s_h),

where V(s_{h+1}) is 0 if the episode terminated with step h, and the critic's value of the last observation if the
horizon or the environment's time limit cut it there. The critic is then moved towards the targets Â_t + V(s_t).

Axes as in `jaxbyz.sampling.rollout`: n chunks, A agents, C steps per chunk, M episodes per agent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.accelerate.episode_sums import map_over_steps, repeatable_sum, sum_from_each_step
from jaxbyz.accelerate.living_strips import in_parts
from jaxbyz.options import COUNT, FROM_0_TO_1, POSITIVE, WIDTHS, Need, option
from jaxbyz.policies.networks import MLP
from jaxbyz.sampling.rollout import CHUNK, Episodes

# The weight of a new batch in the running mean and deviation of the targets is 1/(batches so far), but at least this.
NEWEST_BATCH = 0.1
# Lower limits of the scale: an absolute one, and one relative to the mean. If all targets are nearly equal, their
# deviation does not tell how large later errors will be.
SMALLEST_SCALE, SMALLEST_PART = 1e-4, 0.1


USES_CRITIC = Need(lambda config, _: config.baseline == "critic", "baseline={baseline}")
SEVERAL_CHUNKS = Need(
    lambda config, _: config.critic_parts == 1 or config.horizon > CHUNK,
    f"horizon={{horizon}}, and episodes of up to {CHUNK} steps are not divided",
)


@dataclass(frozen=True, kw_only=True)
class CriticSettings:
    """The network of a critic, how it is trained, and what becomes of the advantages; read with `baseline="critic"`.

    Attributes:
        gae_lambda: λ of the advantages.
        advantages: `"plain"`, or `"normalised"`: each agent scales its advantages to mean 0 and deviation 1 over the
            batch, and divides by the mean length of the episodes, as the estimator `"whitened"` does.
        critic_hidden: the widths of the hidden layers, with tanh after each.
        critic_eta: the step size of Adam.
        critic_steps: the number of local steps per batch.
        critic_parts: the number of parts P of a batch, which the local steps use in turn. Episodes are cut into chunks
            of 16 steps, and a part has every P-th chunk of all episodes.
    """

    gae_lambda: float = option(0.95, "λ of the critics' advantages", allowed=FROM_0_TO_1, needs=[USES_CRITIC])
    advantages: str = option(
        "plain", "normalised: every agent scales its own advantages to deviation 1", choices=("plain", "normalised"),
        needs=[USES_CRITIC],
    )  # fmt: skip
    critic_hidden: tuple[int, ...] = option(
        (32, 32), "hidden layer sizes of the critics", allowed=WIDTHS, needs=[USES_CRITIC]
    )
    critic_eta: float = option(3e-3, "step size of the critics", allowed=POSITIVE, needs=[USES_CRITIC])
    critic_steps: int = option(16, "local steps of every critic per batch", allowed=COUNT, needs=[USES_CRITIC])
    critic_parts: int = option(
        1, "parts of a batch, which the local steps of a critic use in turn", allowed=COUNT,
        needs=[USES_CRITIC, SEVERAL_CHUNKS],
    )  # fmt: skip


class CriticState(NamedTuple):
    """What one agent keeps for itself. The value of a state is V(s) = shift + scale · network(s).

    Attributes:
        network: the parameters of the network.
        optimizer: the state of its optimizer.
        shift: `[]`, the running mean of the targets.
        scale: `[]`, their running distance from it.
        batches: `[]`, the number of batches that the critic has been trained on.
    """

    network: Any
    optimizer: Any
    shift: Float[Array, ""]
    scale: Float[Array, ""]
    batches: Int[Array, ""]


class Critic(NamedTuple):
    """Functions of the critics of A agents, whose states have leaves `[A, …]`.

    Attributes:
        init: `key -> CriticState` of one agent.
        values: `(states, episodes) -> (V(s_t) [n, A, C, M], V of the observation after the last step [A, M])`.
        train: `(states, episodes, targets [n, A, C, M]) -> states`, the local steps on one batch.
    """

    init: Callable[[PRNGKeyArray], CriticState]
    values: Callable[[CriticState, Episodes], tuple[Float[Array, "n A C M"], Float[Array, "A M"]]]
    train: Callable[[CriticState, Episodes, Float[Array, "n A C M"]], CriticState]


def critic(observation_size: int, settings: CriticSettings) -> Critic:
    """Build a critic for observations of the given size."""
    mlp = MLP(tuple(settings.critic_hidden), 1, "tanh", "identity", "lecun")
    last_layer = f"Layer_{len(settings.critic_hidden)}"
    optimizer = optax.adam(settings.critic_eta)

    def output(network: Any, observations: Float[Array, "O L"]) -> Float[Array, " L"]:
        return jnp.asarray(mlp.apply(network, observations))[0]

    def init(key: PRNGKeyArray) -> CriticState:
        network = mlp.init(key, jnp.zeros((observation_size, 1)))
        return CriticState(network, optimizer.init(network), jnp.float32(0), jnp.float32(1), jnp.int32(0))

    def values(states: CriticState, episodes: Episodes) -> tuple[Array, Array]:
        outputs = map_over_steps(output, states.network, episodes.observations, episodes.alive, episodes.chunks)
        final = jax.vmap(output)(states.network, episodes.final_observations)
        shift, scale = states.shift[:, None], states.scale[:, None]
        on_steps = shift[None, :, None] + scale[None, :, None] * outputs
        return jnp.where(episodes.alive, on_steps, 0.0), shift + scale * final

    def rescale(state: CriticState, mean: Array, deviation: Array) -> CriticState:
        """Move shift and scale towards a batch.

        The last layer is changed so that no value changes (PopArt, van Hasselt et al. 2016), except before the first
        training, when the values mean nothing.
        """
        newest = jnp.maximum(1.0 / (1.0 + state.batches), NEWEST_BATCH)
        shift = state.shift + newest * (mean - state.shift)
        spread = jnp.sqrt(deviation**2 + (mean - shift) ** 2)  # of the batch around the new shift
        scale = state.scale + newest * (spread - state.scale)
        scale = jnp.maximum(scale, jnp.maximum(SMALLEST_SCALE, SMALLEST_PART * jnp.abs(shift)))
        layers = dict(state.network["params"])
        kernel, bias = layers[last_layer]["kernel"], layers[last_layer]["bias"]
        layers[last_layer] = {
            "kernel": kernel * state.scale / scale,
            "bias": (state.scale * bias + state.shift - shift) / scale,
        }
        network = jax.tree.map(partial(jnp.where, state.batches > 0), {"params": layers}, state.network)
        return state._replace(network=network, shift=shift, scale=scale, batches=state.batches + 1)

    def half_squared_error(network: Any, steps: tuple[Array, Array, Array]) -> Array:
        observations, targets, weights = steps
        return 0.5 * jnp.sum(weights * (output(network, observations) - targets) ** 2)

    def train(states: CriticState, episodes: Episodes, targets: Array) -> CriticState:
        mean, deviation = mean_and_deviation(targets, episodes.alive)
        states = jax.vmap(rescale)(states, mean, deviation)
        shift, scale = (x[None, :, None, None] for x in (states.shift, states.scale))
        parts = min(settings.critic_parts, len(episodes.alive))  # every part has a chunk
        weights = weights_in_parts(episodes.alive, parts)
        steps = (episodes.observations, (targets - shift) / scale, weights)
        gradients = repeatable_sum(
            jax.grad(half_squared_error), states.network, steps, episodes.alive, episodes.chunks, parts
        )

        living_parts = jnp.clip(episodes.chunks, 1, parts)  # those that contain a step

        def local_step(i: Array, states: CriticState) -> CriticState:
            part = 0 if parts == 1 else i % living_parts  # a constant compiles to a smaller program
            gradient = gradients(states.network, part)
            updates, optimizer_state = jax.vmap(optimizer.update)(gradient, states.optimizer)
            return states._replace(network=optax.apply_updates(states.network, updates), optimizer=optimizer_state)

        return jax.lax.fori_loop(0, settings.critic_steps, local_step, states)

    return Critic(init, values, train)


def weights_in_parts(alive: Bool[Array, "n A C M"], parts: int) -> Float[Array, "n A C M"]:
    """Return weights with which a sum over the steps of one agent in one part is their mean."""
    chunks = in_parts(alive, parts)  # [⌈n/P⌉, P, A, C, M]
    count = jnp.sum(chunks, axis=(0, 3, 4), keepdims=True)
    weights = chunks / jnp.maximum(count, 1).astype(jnp.float32)
    return weights.reshape(-1, *alive.shape[1:])[: len(alive)]


def advantages(
    episodes: Episodes,
    values: Float[Array, "n A C M"],
    final_values: Float[Array, "A M"],
    gamma: float,
    gae_lambda: float,
) -> Float[Array, "n A C M"]:
    """Compute Â_t, which is zero at steps that were not taken.

    Args:
        episodes: the batch.
        values: V(s_t).
        final_values: V of the observation after the last step, which is used if the episode was cut there.
        gamma: the discount γ.
        gae_lambda: λ. With 1 the critic is used only as a baseline, and as the value after a cut. Smaller values also
            use it instead of later rewards, which lowers the variance and adds the critic's error as a bias.
    """
    after_last = jnp.where(episodes.terminated, 0.0, final_values)
    following = jnp.where(_next_step(episodes.alive), _next_step(values), after_last[None, :, None])
    delta = jnp.where(episodes.alive, episodes.rewards + gamma * following - values, 0.0)
    return jnp.where(episodes.alive, sum_from_each_step(delta, episodes.chunks, gamma * gae_lambda), 0.0)


def normalised(advantages: Float[Array, "n A C M"], alive: Bool[Array, "n A C M"]) -> Float[Array, "n A C M"]:
    """Scale the advantages of each agent to mean 0 and deviation 1, and divide them by its mean episode length."""
    mean, deviation = (x[None, :, None, None] for x in mean_and_deviation(advantages, alive))
    length = jnp.sum(alive, axis=(0, 2, 3), keepdims=True) / alive.shape[3]
    return jnp.where(alive, (advantages - mean) / ((deviation + 1e-8) * jnp.maximum(length, 1.0)), 0.0)


def mean_and_deviation(
    values: Float[Array, "n A C M"], alive: Bool[Array, "n A C M"]
) -> tuple[Float[Array, " A"], Float[Array, " A"]]:
    """Return the mean and the standard deviation over the steps that each agent took."""
    count = jnp.maximum(jnp.sum(alive, axis=(0, 2, 3)), 1).astype(jnp.float32)
    mean = jnp.sum(jnp.where(alive, values, 0.0), axis=(0, 2, 3)) / count
    centred = jnp.where(alive, values - mean[None, :, None, None], 0.0)
    return mean, jnp.sqrt(jnp.sum(centred * centred, axis=(0, 2, 3)) / count)


def _next_step(x: Array) -> Array:
    """Return what follows each step: `[n, A, C, M]` shifted by one in time, with zeros at the end."""
    next_chunk = jnp.concatenate([x[1:, :, :1], jnp.zeros_like(x[:1, :, :1])])
    return jnp.concatenate([x[:, :, 1:], next_chunk], axis=2)
