"""Options that make no difference to a run, derived from what `Config` and the components say they read."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxbyz.configuration.config import FIELDS, Config
from jaxbyz.configuration.resolving import typed
from jaxbyz.registry import Registry

ASK_FOR_NOTHING = (
    None,
    False,
    "none",
    "fixed",
)  # values that need not be reported, because nothing is expected of them


def without_effect(config: Config, given: dict[str, Any]) -> list[str]:
    """Return a line for each given option that makes no difference, and why.

    Args:
        config: the checked configuration that the options led to.
        given: the options that the user named, with their values.
    """
    return [line for name, value in typed(given).items() for line in _lines(config, name, value)]


def _lines(config: Config, name: str, value: Any) -> list[str]:
    used, described = getattr(config, name), FIELDS[name].metadata
    for need in described["needs"] if value not in ASK_FOR_NOTHING else ():
        if not need.test(config, config.traits):
            return [f"{name}={value} has no effect: {need.otherwise.format_map(dataclasses.asdict(config))}"]
    if value not in (used, config.rule):
        return [f"{name}={value} has no effect: {config.algorithm} uses {name}={used}"]
    if value in ASK_FOR_NOTHING:
        return []
    return [] if described["registry"] is None else _component_options(name, value, described["registry"])


def _component_options(name: str, value: str, registry: Registry) -> list[str]:
    """Return a line for each option in a component's name that is not read, as in `gossip:graph=ring,degree=4`."""
    return [
        f"{name}={value}: {option} has no effect: {reason}"
        for component, options in registry.parse(value)
        if component in registry
        for option, reason in registry[component].not_read(options)
    ]
