"""Validate a configuration against the descriptions of its options and the limits of its components."""

from __future__ import annotations

from typing import Any

from jaxbyz.algorithms.base import always_large, check_federation
from jaxbyz.configuration.allowed_values import MAX_SEED, MAX_TEXT
from jaxbyz.configuration.config import FIELDS, Config, check_tolerance, effective, page_of, traits_of
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.registry import parse_spec
from jaxbyz.rules import pre_aggregators


def check(config: Config, *, names: bool = True) -> Config:
    """Validate a configuration and return the `effective` one.

    Args:
        config: what to validate.
        names: if False, accept rules and attacks that are not registered in this process.

    Raises:
        UsageError: one line that names the option, its value and what is allowed.
    """
    for name in FIELDS:
        _check_option(name, getattr(config, name))
    if names:
        _check_names(config)
    if config.seed + config.seeds - 1 > MAX_SEED:
        raise UsageError(f"seed={config.seed} with seeds={config.seeds}: the last seed must be at most {MAX_SEED}")
    check_federation(config.agents, config.byzantine, config.assumed_byzantine, config.p, config.period)
    page = page_of(config)
    # An algorithm with snapshots compares small batches with the last snapshot, whatever the option anchor says.
    (page._replace(anchor="snapshot") if traits_of(config).snapshot else page).check()
    page.check_switch(always_large(config.p, config.period))
    config = effective(config)
    if names:
        check_tolerance(config)
    return config


def _check_option(name: str, value: Any) -> None:
    """Refuse a value that the description of the option does not allow."""
    rule, optional = FIELDS[name].metadata, FIELDS[name].default is None
    if isinstance(value, str) and not (value.isprintable() and len(value) <= MAX_TEXT):
        raise UsageError(f"{name}={value[:60]!a}: must be printable text of at most {MAX_TEXT} characters")
    if rule["choices"] and not (optional and value is None):
        check_choice(name, value, rule["choices"])
    if rule["allowed"] is None or (optional and value is None) or rule["allowed"].test(value):
        return
    shown = repr(value[:60]) if isinstance(value, str) else str(value).replace(" ", "").strip("(,)")
    raise UsageError(f"{name}={shown}: must be {rule['allowed'].wording}{', or None' if optional else ''}")


def _check_names(config: Config) -> None:
    """Refuse names that are not registered, also of components that the algorithm does not use."""
    for name, described in FIELDS.items():
        registry, value = described.metadata["registry"], getattr(config, name)
        if registry is None or value is None or (registry is pre_aggregators and value == "none"):
            continue
        for part in value.split("+"):
            registry[parse_spec(part)[0]]


def registered(config: Config) -> bool:
    """Return whether every component that the configuration names is registered in this process."""
    try:
        _check_names(config)
    except UsageError:
        return False
    return True
