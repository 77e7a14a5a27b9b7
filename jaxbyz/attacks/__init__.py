"""What liars do: in the environment, on gradients, on parameters; and the registry of attacks."""

from jaxbyz.attacks.base import Attack, Interference, View, from_function, honest_mean, honest_std
from jaxbyz.attacks.paper import avg_zero, large_noise, no_attack, random_action
from jaxbyz.registry import Registry

attacks = Registry("attack")
attacks.add("none", no_attack)
attacks.add("random-action", random_action)
attacks.add("large-noise", large_noise)
attacks.add("avg-zero", avg_zero)

__all__ = [
    "Attack",
    "Interference",
    "View",
    "attacks",
    "avg_zero",
    "from_function",
    "honest_mean",
    "honest_std",
    "large_noise",
    "no_attack",
    "random_action",
]
