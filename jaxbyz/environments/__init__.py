"""Environments: those of gymnax, of gymnasium and of jaxbyz, and agents whose environments differ."""

from jaxbyz.environments.base import (
    ActionSpace,
    Environment,
    OwnParams,
    Step,
    check_environment,
    check_episodes,
    end_episodes,
)
from jaxbyz.environments.catalogue import default_parameters, environments, make_environment
from jaxbyz.environments.clipped_actions import clip_actions
from jaxbyz.environments.gymnasium_adapter import gymnasium_environment
from jaxbyz.environments.gymnax_adapter import adapt
from jaxbyz.environments.held_actions import hold_actions
from jaxbyz.environments.heterogeneity import agent_params, heterogeneous
from jaxbyz.environments.host_episodes import EnvironmentFailure
from jaxbyz.environments.observation_scaling import scale_observations
from jaxbyz.environments.tabular import tabular_mdp

__all__ = [
    "ActionSpace",
    "Environment",
    "EnvironmentFailure",
    "OwnParams",
    "Step",
    "adapt",
    "agent_params",
    "check_environment",
    "check_episodes",
    "clip_actions",
    "default_parameters",
    "end_episodes",
    "environments",
    "gymnasium_environment",
    "heterogeneous",
    "hold_actions",
    "make_environment",
    "scale_observations",
    "tabular_mdp",
]
