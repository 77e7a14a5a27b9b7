"""The coefficients q_t of an estimate, without critics and with one critic per agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.environments import Environment, OwnParams
from jaxbyz.policies import Policy
from jaxbyz.sampling.critic import advantages, critic, normalised
from jaxbyz.sampling.differentiation import memory_size, with_memories
from jaxbyz.sampling.estimators import coefficients
from jaxbyz.sampling.rollout import Episodes
from jaxbyz.sampling.settings import Sampling


class SamplingInputs(NamedTuple):
    """What A agents sample with. Every array has one row per agent.

    Attributes:
        parameters: `[A, D]`, θ_t.
        anchor: `[A, D]`, the parameters θ' that a small batch is compared with.
        previous: `[A, D]`, the estimate v_{t−1} that a small batch corrects.
        keys: `[A]`, random keys.
        interferes: `[A]`, which agents do something wrong in their own environment.
        environment: `{name: [A, …]}`, parameters in which the agents' environments differ.
        private: what every agent keeps for itself, such as its critic.
    """

    parameters: Float[Array, "A D"]
    anchor: Float[Array, "A D"]
    previous: Float[Array, "A D"]
    keys: PRNGKeyArray
    interferes: Bool[Array, " A"]
    environment: OwnParams
    private: Any = ()


class Scorer(NamedTuple):
    """How episodes get their coefficients.

    Attributes:
        init: `key -> private` of one agent.
        score: `(inputs, episodes) -> (episodes as reported, q, private)`.
    """

    init: Callable[[PRNGKeyArray], Any]
    score: Callable[[SamplingInputs, Episodes], tuple[Episodes, Float[Array, "n A C M"], Any]]


def plain_scorer(settings: Sampling) -> Scorer:
    """Return the coefficients of an estimator without critics."""
    return Scorer(lambda key: (), lambda inputs, episodes: (episodes, coefficients(settings, episodes), inputs.private))


def critic_scorer(environment: Environment, policy: Policy, settings: Sampling) -> Scorer:
    """Return advantages from a critic per agent, which is trained on the same episodes afterwards.

    The critic of a policy with a memory sees what the policy remembers beside every observation.
    """
    judging = critic(environment.observation_size + memory_size(policy), settings)

    def score(inputs: SamplingInputs, episodes: Episodes) -> tuple[Episodes, Array, Any]:
        seen = with_memories(policy, inputs.parameters, episodes)
        values, final_values = judging.values(inputs.private, seen)
        q = advantages(episodes, values, final_values, settings.gamma, settings.gae_lambda)
        critics = judging.train(inputs.private, seen, q + values)
        return episodes, normalised(q, episodes.alive) if settings.advantages == "normalised" else q, critics

    return Scorer(judging.init, score)
