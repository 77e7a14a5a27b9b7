"""Environments: every gymnax environment, those jaxbyz adds, and agents whose environments differ."""

from jaxbyz.environments.base import ActionSpace, Environment, OwnParams, Step, check_environment
from jaxbyz.environments.catalogue import default_parameters, environments, make_environment
from jaxbyz.environments.gymnax_adapter import adapt
from jaxbyz.environments.held_actions import hold_actions
from jaxbyz.environments.heterogeneity import agent_params, heterogeneous
from jaxbyz.environments.observation_scaling import scale_observations
from jaxbyz.environments.tabular import tabular_mdp

__all__ = [
    "ActionSpace",
    "Environment",
    "OwnParams",
    "Step",
    "adapt",
    "agent_params",
    "check_environment",
    "default_parameters",
    "environments",
    "heterogeneous",
    "hold_actions",
    "make_environment",
    "scale_observations",
    "tabular_mdp",
]
