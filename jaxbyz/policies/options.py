"""The options of networks: those that a policy has are passed to it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from jaxbyz.options import POSITIVE, WIDTHS, Need, option
from jaxbyz.policies import ACTIVATIONS, INITIALISERS, policies
from jaxbyz.policies.distributions import DEVIATIONS
from jaxbyz.registry import parse_spec


def policy_takes(part: str) -> Need:
    """The policy has this option; one that is chosen by the observations reads all of them."""
    return Need(
        lambda config, _: config.policy is None or policies[parse_spec(config.policy)[0]].takes(part),
        f"policy {{policy}} has no option {part}",
    )


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """The defaults of every policy that has these options."""

    hidden: tuple[int, ...] = option(
        (16, 16), "hidden layer sizes, separated by commas", allowed=WIDTHS, needs=[policy_takes("hidden")]
    )
    activation: str = option(
        "tanh", "activation of the hidden layers", choices=ACTIVATIONS, needs=[policy_takes("activation")]
    )
    output_activation: str = option(
        "tanh", "activation of the output layer", choices=ACTIVATIONS, needs=[policy_takes("output_activation")]
    )
    output_scale: float = option(
        1.0, "factor on the activated outputs", allowed=POSITIVE, needs=[policy_takes("output_scale")]
    )
    initialiser: str = option(
        "lecun", "initialisation of the network", choices=INITIALISERS, needs=[policy_takes("initialiser")]
    )
    initial_std: float = option(
        0.5, "initial standard deviation of continuous actions, in units of half the width of their range",
        allowed=POSITIVE, needs=[policy_takes("initial_std")],
    )  # fmt: skip
    deviation: str = option(
        "common", "standard deviations of continuous actions: common to all states, or computed from the state",
        choices=DEVIATIONS, needs=[policy_takes("deviation")],
    )  # fmt: skip


NETWORK_OPTIONS = tuple(field.name for field in fields(NetworkOptions))
