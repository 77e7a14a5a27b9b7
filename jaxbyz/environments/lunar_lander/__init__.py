"""LunarLander in JAX: the game in `environment`, the physics of Box2D in the other modules."""

from jaxbyz.environments.lunar_lander.environment import LunarLander, LunarLanderContinuous

__all__ = ["LunarLander", "LunarLanderContinuous"]
