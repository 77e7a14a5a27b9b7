"""Validate a configuration against the declarations of its options and the limits of its components."""

from __future__ import annotations

from dataclasses import replace

from jaxbyz.algorithms.settings import check_settings
from jaxbyz.configuration.config import FIELDS, MAX_SEED, Config
from jaxbyz.errors import UsageError
from jaxbyz.rules import pre_aggregators


def check(config: Config, *, names: bool = True) -> Config:
    """Validate a configuration and return the `effective` one.

    Args:
        config: what to validate.
        names: if False, accept rules and attacks that are not registered in this process.

    Raises:
        UsageError: one line that names the option, its value and what is allowed.
    """
    check_settings(config)
    if names:
        _check_names(config)
    if config.seed + config.seeds - 1 > MAX_SEED:
        raise UsageError(f"seed={config.seed} with seeds={config.seeds}: the last seed must be at most {MAX_SEED}")
    config = effective(config)
    if names:
        config.traits.check(config)
    return config


def effective(config: Config) -> Config:
    """Return the configuration with the values that the algorithm fixes itself."""
    traits = config.traits
    if traits.single:
        config = replace(config, agents=1, byzantine=0, attack="none", schedule="fixed")
    if traits.naive:
        config = replace(config, aggregator="mean", pre_aggregator="none")
    if traits.naive or traits.central:
        config = replace(config, agreement="none")
    if "small_batches" in traits.ignores:
        config = replace(config, small_batches=None)
    return config


def _check_names(config: Config) -> None:
    """Refuse names that are not registered, also of components that the algorithm does not use."""
    for name, described in FIELDS.items():
        registry, value = described.metadata["registry"], getattr(config, name)
        if registry is None or value is None or (registry is pre_aggregators and value == "none"):
            continue
        for component, _ in registry.parse(value):
            registry[component]


def unregistered(config: Config) -> str | None:
    """Return which component of the configuration is not registered in this process, in words; None if all are."""
    try:
        _check_names(config)
    except UsageError as error:
        return str(error).partition(";")[0]
    return None
