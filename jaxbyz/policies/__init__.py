"""Policies: from a flat parameter vector and observations to distributions over actions."""

from jaxbyz.policies.networks import ACTIVATIONS, INITIALISERS, Policy, mlp_policy

__all__ = ["ACTIVATIONS", "INITIALISERS", "Policy", "mlp_policy"]
