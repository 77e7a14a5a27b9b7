"""Make a checked configuration from options and a preset, or from JSON values."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from functools import lru_cache
from typing import Any, NamedTuple

from jaxbyz.algorithms import Traits, algorithms, traits_of_algorithm
from jaxbyz.configuration.agent_values import as_text
from jaxbyz.configuration.check import check
from jaxbyz.configuration.config import DEFAULTS, FIELDS, TYPES, Config
from jaxbyz.configuration.presets import DEFAULT_PRESET, PRESETS, RULES_UNDER_ATTACK
from jaxbyz.configuration.task_presets import RULE_WITHOUT_MEMORY, general_preset
from jaxbyz.environments import Environment, make_environment
from jaxbyz.environments.gymnasium_adapter import PREFIX as GYMNASIUM
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.registry import Registry, convert, parse_assignments, parse_literal

# What other libraries and papers call our options.
OTHER_NAMES = {
    "lr": "eta", "learning_rate": "eta", "step_size": "eta", "alpha": "eta", "discount": "gamma", "K": "agents",
    "clients": "agents", "workers": "agents", "f": "byzantine", "attackers": "byzantine", "rule": "aggregator",
    "aggregation": "aggregator", "defence": "aggregator", "defense": "aggregator", "adversary": "attack",
    "batch_size": "N", "batch": "N", "minibatch": "B", "episodes": "trajectories", "iterations": "trajectories",
    "steps": "trajectories", "timesteps": "trajectories", "environment": "env",
    "task": "env", "network": "policy", "model": "policy", "layers": "hidden", "rounds": "kappa",
    "optim": "optimizer", "max_steps": "horizon", "algo": "algorithm", "random_seed": "seed", "num_seeds": "seeds",
}  # fmt: skip


def similar_option(name: str) -> str | None:
    """Return the option that a user may have meant, or None."""
    name = name.replace("-", "_")
    near = difflib.get_close_matches(name, FIELDS, n=1)
    return OTHER_NAMES.get(name) or (near[0] if near else None)


def unknown_option(name: str) -> str:
    """Return the message for an option that does not exist."""
    near = similar_option(name)
    return f"option {name!r} is unknown" + (f"; did you mean {near!r}?" if near else "")


class Choice(NamedTuple):
    """A configuration, and where its values come from.

    Attributes:
        config: the checked configuration.
        preset: the name of the preset that it starts from.
        replaced: the values of the preset that the algorithm cannot use, by option.
        decided: what decided the preset, the algorithm, the rule and the agreement.
    """

    config: Config
    preset: str
    replaced: dict[str, Any]
    decided: dict[str, str]

    def __str__(self) -> str:
        """Say in one line what was chosen, and what decided it."""
        config = self.config
        chosen = {
            "preset": self.preset, "algorithm": config.algorithm, "rule": config.rule, "agreement": config.agreement
        }  # fmt: skip
        line = ", ".join(f"{what} {value} ({self.decided[what]})" for what, value in chosen.items())
        changes = [f"{name}={getattr(config, name)} instead of {value}" for name, value in self.replaced.items()]
        return line + (f"; for this algorithm {', '.join(changes)}" if changes else "")


def resolve(preset: str | None = None, **options: Any) -> Config:
    """Return the checked configuration of the given options, with other values from the preset.

    Args:
        preset: the preset to start from; by default the one of the environment (`cartpole` for CartPole-v1), or a
            general one for its kind of actions and observations.
        **options: fields of `Config`. The aggregator `"bucketing+rfa"` is short for the aggregator `"rfa"` with the
            pre-aggregator `"bucketing"`. If neither the options nor the preset name an aggregator, it is the mean if
            nobody is Byzantine. If they name no horizon, it is the environment's own time limit. A
            smaller N than the preset's B reduces B to N, unless B is given too. With another eta, the preset's eta_end
            keeps its ratio to it, unless eta_end is given too. Values of the preset that the
            algorithm cannot use are replaced (`choose_preset`).

    Raises:
        UsageError: if an option is unknown or a value is not allowed.
    """
    return choose(preset, **options).config


def typed(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as their types. Numbers, None and lists may also be texts, written as on the command line."""
    found = {}
    for name, value in options.items():
        value, kind = as_text(name, value), TYPES[name]
        if isinstance(value, str) and kind == tuple[int, ...]:
            parts = tuple(parse_literal(part) for part in value.split(",") if part)
            value = parts if all(type(part) is int for part in parts) else value
        elif isinstance(value, str) and not (kind is str or typing.get_args(kind)[:1] == (str,)):
            value = parse_literal(value)
        found[name] = convert(name, kind, value)
    return found


def choose(preset: str | None = None, **options: Any) -> Choice:
    """Return the configuration of `resolve`, the preset, and which of its values the algorithm replaced."""
    if unknown := [name for name in options if name not in FIELDS]:
        raise UsageError(unknown_option(unknown[0]))
    options = given = typed(options)
    named = preset is not None
    preset, fitting = choose_preset(convert("preset", str | None, preset), options)
    before, plus, last = options.get("aggregator", "").rpartition("+")
    if plus and "pre_aggregator" in options:
        raise UsageError(
            f"aggregator={options['aggregator']!r} with pre_aggregator={options['pre_aggregator']!r}: name the "
            "pre-aggregators in one of them"
        )
    if plus:
        options |= {"aggregator": last, "pre_aggregator": before}
    values = {**PRESETS[preset][1], **fitting, **options}
    if "aggregator" not in values:
        values |= _default_rule(preset, values)
    if "N" in options and "B" not in options:
        values["B"] = min(values.get("B", Config.B), max(1, options["N"]))
    if "horizon" not in values and (environment := _environment(values)) is not None:
        values["horizon"] = int(environment.limit or Config.horizon)
    original = {**DEFAULTS, **PRESETS[preset][1]}
    if "eta" in options and "eta_end" not in options and values.get("eta_end") is not None:
        values["eta_end"] *= options["eta"] / original["eta"]
    config = check(Config(**values))
    if config.eta_end is not None and config.eta_end > config.eta:
        raise UsageError(
            f"eta={config.eta:g} with eta_end={config.eta_end:g}: the step size would grow; give a smaller "
            "eta_end, or none for a constant step size"
        )
    decided = _decided(config, given, preset)
    decided["preset"] = "as asked for" if named else f"the best known for {config.env}"
    if not named and preset not in DEFAULT_PRESET.values():
        decided["preset"] = f"{config.env} has none of its own"
    replaced = {n: original[n] for n in fitting if original[n] != getattr(config, n)}
    return Choice(config, preset, replaced, decided)


def _default_rule(preset: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the rule of a configuration that names none."""
    if not values.get("byzantine", Config.byzantine):
        return {"aggregator": "mean"}
    before, _, last = RULES_UNDER_ATTACK.get(preset, Config.aggregator).rpartition("+")
    absent = values.get("participation", Config.participation) < 1 and values.get("absent", Config.absent) != "cached"
    if before and (absent or "pre_aggregator" in values):
        return {"aggregator": RULE_WITHOUT_MEMORY}
    return {"aggregator": last} | ({"pre_aggregator": before} if before else {})


def _decided(config: Config, given: dict[str, Any], preset: str) -> dict[str, str]:
    """Return what decided the algorithm, the rule and the agreement of a configuration."""
    decided = {}
    for what, name in (("algorithm", "algorithm"), ("rule", "aggregator"), ("agreement", "agreement")):
        if name in given and given[name] in (getattr(config, name), config.rule):
            decided[what] = "as asked for"
        elif name in PRESETS[preset][1]:
            decided[what] = "of the preset"
        else:
            decided[what] = "the default"
    traits = config.traits
    if traits.naive:
        decided["rule"] = f"all that {config.algorithm} has"
    elif decided["rule"] == "the default":
        decided["rule"] = "the default under attack" if config.byzantine else "as no agent is Byzantine"
    if (traits.naive or traits.central) and config.agreement == "none":
        decided["agreement"] = f"{config.algorithm} has none"
    return decided


def choose_preset(preset: str | None, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the preset to start from, and the values that replace those that the algorithm cannot use.

    The presets of tasks have a critic per agent and use a batch several times. An algorithm that samples small batches
    at a server, or corrects its momentum with a Hessian, can do neither; its traits say what it uses instead.

    Args:
        preset: the name that the user gave, or None.
        options: the options that the user gave.
    """
    preset = default_preset(options) if preset is None else preset
    check_choice("preset", preset, PRESETS)
    chosen = Config(**{**PRESETS[preset][1], **options})
    traits = traits_of_algorithm(chosen.algorithm) if chosen.algorithm in algorithms else Traits()
    used_once = chosen.epochs == chosen.minibatches == 1
    fits_split = chosen.B < chosen.N and chosen.anchor == "previous"
    if chosen.baseline != "critic" and used_once and (fits_split or not traits.splits_batch):
        return preset, {}
    return preset, {option: value for option, value in traits.instead.items() if option not in options}


def default_preset(options: dict[str, Any]) -> str:
    """Return the preset of an environment: its own, or a general one that suits its actions and observations."""
    own = DEFAULT_PRESET.get(options.get("env", Config.env).removeprefix(GYMNASIUM))
    if own is not None:
        return own
    environment = _environment(options)
    return "default" if environment is None else general_preset(environment)


def _environment(options: dict[str, Any]) -> Environment | None:
    """Return the environment of some options; None if it cannot be made, which `check` and `build` explain."""
    try:
        return environment_once(options.get("env", Config.env), options.get("env_param", Config.env_param))
    except UsageError:
        return None


def environment_once(name: str, params: str) -> Environment:
    """Return the environment with these parameters, `"name=value,…"`, made once because that traces its reset."""
    return _environment_once(name, params, Registry.revision)


@lru_cache(maxsize=16)
def _environment_once(name: str, params: str, revision: int) -> Environment:
    """Make an environment; `revision` makes the cache notice environments that are registered again."""
    return make_environment(name, **parse_assignments(params))


def to_dict(config: Config) -> dict[str, Any]:
    """Return the options as JSON values."""
    return {**dataclasses.asdict(config), "hidden": list(config.hidden), "critic_hidden": list(config.critic_hidden)}


def from_dict(values: dict[str, Any], *, names: bool = True) -> Config:
    """Return the checked configuration of JSON values; inverse of `to_dict`. `names` is passed to `check`."""
    values = {"policy": "mlp", **values}  # what every run used before there was a choice
    known = {name: convert(name, TYPES[name], values[name]) for name in FIELDS if name in values}
    return check(Config(**known), names=names)
