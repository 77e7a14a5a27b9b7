"""Environments: every gymnax environment, and those jaxbyz adds."""

from jaxbyz.environments.gymnax_adapter import ActionSpace, Environment, Step, adapt, environments, make_environment

__all__ = ["ActionSpace", "Environment", "Step", "adapt", "environments", "make_environment"]
