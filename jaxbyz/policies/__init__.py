"""Policies: from a flat parameter vector and observations to distributions over actions."""

from jaxbyz.environments import Environment
from jaxbyz.policies.convolutional import cnn_policy
from jaxbyz.policies.flax_modules import flax_policy
from jaxbyz.policies.followed import followed_policy
from jaxbyz.policies.networks import ACTIVATIONS, INITIALISERS, mlp_policy
from jaxbyz.policies.policy import Policy, initial_carry, most_likely, respond
from jaxbyz.policies.recurrent import gru_policy
from jaxbyz.policies.voting import voting
from jaxbyz.registry import Registry

# A factory takes the argument `environment`; its other arguments are options.
policies = Registry("policy")
policies.add("mlp", mlp_policy, "multilayer perceptron on the flat observation")
policies.add("followed", followed_policy, "the same, with observations scaled by what the policy sees")
policies.add("gru", gru_policy, "a gated recurrent unit, which remembers what was observed in the episode")
policies.add("cnn", cnn_policy, "convolutions, then a multilayer perceptron; observations are images")


def default_policy(environment: Environment) -> str:
    """Return the name of the policy that suits the observations: `cnn` for images `[height, width, channels]`."""
    return "cnn" if len(environment.observation_shape) == 3 else "mlp"


__all__ = [
    "ACTIVATIONS",
    "INITIALISERS",
    "Policy",
    "cnn_policy",
    "default_policy",
    "flax_policy",
    "followed_policy",
    "gru_policy",
    "initial_carry",
    "mlp_policy",
    "most_likely",
    "policies",
    "respond",
    "voting",
]
