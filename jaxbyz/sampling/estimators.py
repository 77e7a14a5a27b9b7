"""Gradient estimates from episodes: GPOMDP and REINFORCE, baselines, importance weights (appendix A.1 of the paper).

Every estimator is (1/M) Σ_i Σ_t q_t^i ∇ log π(a_t^i | s_t^i; θ) and differs from the others in its coefficients q_t^i
only. Axes as in `jaxbyz.sampling.rollout`: n chunks, A agents, C steps per chunk, M episodes per agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.accelerate.episode_sums import sum_from_each_step
from jaxbyz.errors import UsageError
from jaxbyz.options import COUNT, FINITE, POSITIVE, UNIT_INTERVAL, Need, option, reads
from jaxbyz.policies import Policy
from jaxbyz.sampling.differentiation import gradient_over_steps, log_probs
from jaxbyz.sampling.rollout import Episodes

LARGEST_LOG_WEIGHT = 40.0  # e⁴⁰ is useless as a weight, but it is finite
PUBLISHED_FLOOR = 1e-9  # the published code adds it to p(τ|θ)

OTHER_TRAJECTORIES = Need(
    lambda config, _: config.baseline != "leave-one-out" or config.N > 1, "batches of one trajectory leave no other one"
)
CONSTANT_BASELINE = Need(lambda config, _: config.baseline == "constant", "baseline={baseline}")
SMALL_BATCHES = Need(lambda config, traits: traits.has_small_batches(config), "every batch is large")
IMPORTANCE_WEIGHTS = Need(lambda _, traits: "weights" not in traits.ignores, "{algorithm} has no importance weights")


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """How a batch of episodes becomes a gradient estimate.

    Attributes:
        estimator: which coefficients q_t are used. `"gpomdp"`: q_t = Σ_{h≥t} (γ^h r_h − b_h). `"reinforce"`:
            q_t = Σ_h γ^h r_h − b. `"whitened"`, the estimate of FedPG-BR: q_t is the reward to go Σ_{h≥t} γ^{h−t} r_h,
            shifted and scaled to mean 0 and standard deviation 1 over each episode, and divided by the mean length of
            the episodes. It does not estimate ∇J, but its size is bounded.
        gamma: the discount γ.
        horizon: the largest number of steps of an episode, H. Rewards after the end of an episode are zero, but with
            GPOMDP the baselines b_h of these steps are still subtracted.
        baseline: `"none"`; `"constant"`: b_h = b = `baseline_value`; `"leave-one-out"`: the mean over the *other*
            episodes of the batch, for every time step on its own with GPOMDP. These three leave the estimate unbiased.
            `"critic"`: q_t is the advantage Â_t of `jaxbyz.sampling.critic`, without the factor γ^t.
        baseline_value: the constant baseline b.
        entropy: the factor β of the entropy of the policy. The gradient of β times the entropy in every visited state
            is added to an estimate, summed over the steps of an episode; with normalised advantages, averaged over
            them. That an action leads to states with more entropy is not rewarded.
        weights: the importance weights of a small batch. `"trajectory"`, the paper's: ω(τ) = p(τ|θ')/p(τ|θ).
            `"per-decision"`: reward h is weighted by the actions up to h. `"per-step"`, for `"whitened"`: the term of
            step t is weighted by the ratio of its own action. `"published"`, as in the paper's code:
            p(τ|θ')/(p(τ|θ) + 1e-9) with products in float32, which are 0 for long episodes.
        weight_clip: the largest weight that is used; None for no limit, as in the paper.
        clip_norm: the largest norm of an estimate, which is scaled down to it before it is sent; None for no limit.
    """

    gamma: float = option(0.999, "discount factor γ", allowed=UNIT_INTERVAL)
    horizon: int = option(500, "task horizon H, by default the limit of the environment", allowed=COUNT)
    estimator: str = option("gpomdp", "gradient estimator", choices=("gpomdp", "reinforce", "whitened"))
    baseline: str = option(
        "none", "baseline of the gradient estimator", choices=("none", "constant", "leave-one-out", "critic"),
        needs=[OTHER_TRAJECTORIES],
    )  # fmt: skip
    baseline_value: float = option(0.0, "value of the constant baseline", allowed=FINITE, needs=[CONSTANT_BASELINE])
    entropy: float = option(
        0.0, "factor of the entropy of the policy that is added to the objective; negative for a more certain policy",
        allowed=FINITE, needs=[reads("entropy")],
    )  # fmt: skip
    weights: str = option(
        "trajectory", "importance weights; trajectory is the paper's choice",
        choices=("trajectory", "per-decision", "per-step", "published"), needs=[SMALL_BATCHES, IMPORTANCE_WEIGHTS],
    )  # fmt: skip
    weight_clip: float | None = option(
        None, "clip importance weights at this value", allowed=POSITIVE, needs=[SMALL_BATCHES, IMPORTANCE_WEIGHTS]
    )
    clip_norm: float | None = option(None, "scale estimates down to this norm before they are sent", allowed=POSITIVE)

    @property
    def uses_critic(self) -> bool:
        """Whether every agent has a critic."""
        return self.baseline == "critic"


def check_estimator(chosen: Estimator) -> None:
    """Refuse an estimator, weights and a baseline that cannot be combined.

    Raises:
        UsageError: one line that says why.
    """
    kind, weights, baseline = chosen.estimator, chosen.weights, chosen.baseline
    if kind == "reinforce" and weights == "per-decision":
        problem = "weights=per-decision with estimator=reinforce: biased; per-decision weights need estimator=gpomdp"
    elif (kind == "whitened") != (weights == "per-step"):
        problem = f"weights={weights} with estimator={kind}: per-step weights and estimator=whitened need each other"
    elif kind == "whitened" and baseline != "none":
        problem = f"baseline={baseline} with estimator=whitened: whitening already subtracts a mean; use baseline=none"
    elif baseline == "critic" and (kind, weights) != ("gpomdp", "trajectory"):
        problem = (
            f"baseline=critic with estimator={kind}, weights={weights}: needs estimator=gpomdp, weights=trajectory"
        )
    else:
        return
    raise UsageError(problem)


def estimate(
    estimator: Estimator,
    policy: Policy,
    parameters: Float[Array, "A D"],
    episodes: Episodes,
    weights: Float[Array, "n A C M"] | Float[Array, "A M"] | None = None,
) -> Float[Array, "A D"]:
    """Compute (1/M) Σ_i Σ_t q_t^i ∇ log π(a_t^i | s_t^i; θ) for each agent.

    Args:
        estimator: which coefficients q_t^i are used.
        policy: the policy π.
        parameters: `[A, D]`, the parameters θ of each agent.
        episodes: the batch.
        weights: importance weights of the terms: ω `[A, M]` of whole episodes, or ω_{0:h} `[n, A, C, M]`.
    """

    return sum_of_scores(policy, parameters, episodes, coefficients(estimator, episodes, weights))


def sum_of_scores(
    policy: Policy,
    parameters: Float[Array, "A D"],
    episodes: Episodes,
    q: Float[Array, "n A C M"],
    bonus: Float[Array, "n A C M"] | None = None,
) -> Float[Array, "A D"]:
    """Compute (1/M) Σ_i Σ_t ∇(q_t^i log π(a_t^i | s_t^i; θ) + b_t^i H(π(· | s_t^i; θ))) for each agent.

    Args:
        policy: the policy π, with its entropy H.
        parameters: `[A, D]`, the parameters θ of each agent.
        episodes: the batch.
        q: the coefficients of the scores, zero at steps that were not taken.
        bonus: the coefficients b of the entropy; None for none.
    """

    def weighted_log_likelihood(distribution: Array, steps: tuple[Array, ...]) -> Array:
        actions, q, *bonus = steps
        return jnp.sum(policy.log_prob(distribution, actions) * q) + entropy_bonus(policy, distribution, *bonus)

    steps = (episodes.observations, episodes.actions, q, *(() if bonus is None else (bonus,)))
    return gradient_over_steps(weighted_log_likelihood, policy, parameters, steps, episodes.alive, episodes.chunks)


def entropy_bonus(policy: Policy, distribution: Array, bonus: Float[Array, " L"] | None = None) -> Array | float:
    """Compute Σ b H over steps; 0 without coefficients b."""
    if bonus is None:
        return 0.0
    assert policy.entropy is not None
    return jnp.sum(policy.entropy(distribution) * bonus)


def coefficients(
    estimator: Estimator,
    episodes: Episodes,
    weights: Float[Array, "n A C M"] | Float[Array, "A M"] | None = None,
) -> Float[Array, "n A C M"]:
    """Compute q_t^i, which is zero at steps that were not taken."""
    if estimator.estimator == "whitened":
        whitened = whitened_coefficients(estimator, episodes)
        return whitened if weights is None else whitened * weights
    n, _, C, M = episodes.rewards.shape
    b, baseline, reinforce = estimator.baseline_value, estimator.baseline, estimator.estimator == "reinforce"
    if weights is None:
        weights = jnp.ones(episodes.rewards.shape[1::2])
    per_step = weights[None, :, None] if weights.ndim == 2 else weights
    chunks = episodes.chunks

    h = jnp.arange(n * C).reshape(n, 1, C, 1)
    terms = episodes.rewards * jnp.power(estimator.gamma, h)  # γ^h r_h
    if baseline == "leave-one-out" and M > 1:
        # Relative to one episode, so that equal rewards give exact zeros instead of rounding errors.
        terms = terms - terms[..., :1]
        terms = terms - (jnp.sum(terms, axis=3, keepdims=True) - terms) / (M - 1)
    if baseline == "constant" and not reinforce:
        terms = terms - b * (h < estimator.horizon)
        chunks = jnp.int32(n)  # the baseline is also subtracted after the last episode has ended
    terms = terms * per_step
    if reinforce:
        q = jnp.sum(terms, axis=(0, 2), keepdims=True)
        if baseline == "constant":
            q = q - b * per_step[-1:, :, -1:]
    else:
        q = sum_from_each_step(terms, chunks)
    return jnp.where(episodes.alive, q, 0.0)


def whitened_coefficients(estimator: Estimator, episodes: Episodes) -> Float[Array, "n A C M"]:
    """Compute the rewards to go of each episode with mean 0 and deviation 1, divided by the mean episode length."""
    to_go = sum_from_each_step(episodes.rewards, episodes.chunks, estimator.gamma)
    length = jnp.maximum(episodes.lengths, 1).astype(jnp.float32)[None, :, None]
    mean = jnp.sum(jnp.where(episodes.alive, to_go, 0.0), axis=(0, 2), keepdims=True) / length
    centred = jnp.where(episodes.alive, to_go - mean, 0.0)
    deviation = jnp.sqrt(jnp.sum(centred * centred, axis=(0, 2), keepdims=True) / length)
    return centred / ((deviation + 1e-8) * jnp.mean(length, axis=3, keepdims=True))


def log_ratios(policy: Policy, parameters: Float[Array, "A D"], episodes: Episodes) -> Float[Array, "n A C M"]:
    """Compute log π(a_t | s_t; θ') − log π(a_t | s_t; θ) at every step, where the episodes were drawn at θ.

    Args:
        policy: the policy π.
        parameters: `[A, D]`, the other parameters θ' of each agent.
        episodes: the batch, with the log-probabilities at θ.
    """
    return log_probs(policy, parameters, episodes) - episodes.log_probs


def mean_ratio(policy: Policy, previous: Float[Array, "A D"], episodes: Episodes) -> Float[Array, " A"]:
    """Return the mean of π(a_t | s_t; θ')/π(a_t | s_t; θ) over all steps of each agent's episodes, drawn at θ.

    The expectation of each ratio is 1 for every θ'. The farther θ' is from θ, the more the mean scatters around 1.

    Args:
        policy: the policy π.
        previous: `[A, D]`, the parameters θ' of each agent.
        episodes: the batch, drawn at θ.
    """
    ratios = jnp.exp(jnp.minimum(log_ratios(policy, previous, episodes), LARGEST_LOG_WEIGHT))
    total = jnp.sum(jnp.where(episodes.alive, ratios, 0.0), axis=(0, 2, 3))
    return total / jnp.sum(episodes.alive, axis=(0, 2, 3))


class Weights(NamedTuple):
    """Importance weights of a batch.

    Attributes:
        values: the weights that `estimate` takes, `[A, M]` or `[n, A, C, M]`.
        ess: `[A]`, the relative effective sample size (Σω)²/(n·Σω²) of n weights, in [0, 1]. With per-step weights
            every step up to the horizon counts, those after an episode's end with weight 1.
        largest: `[A]`, the largest weight before clipping.
    """

    values: Array
    ess: Float[Array, " A"]
    largest: Float[Array, " A"]


def importance_weights(
    estimator: Estimator, policy: Policy, previous: Float[Array, "A D"], episodes: Episodes
) -> Weights:
    """Compute ω(τ | θ, θ') = p(τ | θ')/p(τ | θ) in log space, for episodes drawn at θ.

    Args:
        estimator: which kind of weights, and where to clip them.
        policy: the policy π.
        previous: `[A, D]`, the parameters θ' of each agent.
        episodes: the batch, drawn at θ.
    """
    ratios = log_ratios(policy, previous, episodes)
    if estimator.weights == "per-decision":
        within = jnp.cumsum(ratios, axis=2)
        chunks = jnp.cumsum(within[:, :, -1:], axis=0)
        logs = within + jnp.concatenate([jnp.zeros_like(chunks[:1]), chunks[:-1]])
    elif estimator.weights == "per-step":
        logs = ratios
    else:
        logs = jnp.sum(ratios, axis=(0, 2))
    if estimator.weights == "published":
        behaviour = jnp.sum(episodes.log_probs, axis=(0, 2))
        omega = jnp.exp(behaviour + logs) / (jnp.exp(behaviour) + PUBLISHED_FLOOR)
    else:
        omega = jnp.exp(jnp.minimum(logs, LARGEST_LOG_WEIGHT))
    values = omega if estimator.weight_clip is None else jnp.minimum(omega, estimator.weight_clip)
    samples, unclipped = _one_weight_per_sample(estimator, values), _one_weight_per_sample(estimator, omega)
    squares = samples.shape[1] * jnp.sum(samples * samples, axis=1)
    ess = jnp.sum(samples, axis=1) ** 2 / jnp.maximum(squares, jnp.finfo(samples.dtype).tiny)
    return Weights(values, ess, jnp.max(unclipped, axis=1))


def _one_weight_per_sample(estimator: Estimator, weights: Array) -> Float[Array, "A samples"]:
    """The weight of each step for per-step weights, of each whole episode otherwise."""
    if estimator.weights == "per-step":
        return jnp.swapaxes(weights, 0, 1).reshape(weights.shape[1], -1)
    return weights if weights.ndim == 2 else weights[-1, :, -1]
