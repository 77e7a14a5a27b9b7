"""Policies: from a flat parameter vector and observations to distributions over actions."""

from jaxbyz.policies.networks import ACTIVATIONS, INITIALISERS, mlp_policy
from jaxbyz.policies.policy import Policy

__all__ = ["ACTIVATIONS", "INITIALISERS", "Policy", "mlp_policy"]
