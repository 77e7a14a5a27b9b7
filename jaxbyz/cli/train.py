"""`jaxbyz train`: train an algorithm and write a run folder."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jaxbyz.cli import common

if TYPE_CHECKING:
    from jaxbyz.experiments.config import Config


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `Config`, the output folder, and how to report."""
    from jaxbyz.cli.options import add_config_options

    parser.add_argument("--out", metavar="DIR", help="folder for the results (default: write nothing)")
    common.add_run_options(parser)
    add_config_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train; the exit codes are those of `run_and_report`."""
    from jaxbyz.cli.options import config_from, options_given
    from jaxbyz.experiments.run import run as run_config

    common.silence_other_processes(arguments)
    config = config_from(arguments)
    if not arguments.quiet:
        for line in options_without_effect(config, options_given(arguments)):
            common.print_message(line)
    reporter, settings = common.make_reporter(config, arguments), common.run_settings(arguments)
    return common.run_and_report(arguments, lambda: run_config(config, arguments.out, reporter, **settings))


def options_without_effect(config: Config, given: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each given option that makes no difference."""
    from jaxbyz.experiments.config import POLICY_OPTIONS, rule_spec
    from jaxbyz.policies import policies
    from jaxbyz.registry import parse_spec

    if config.byzantine == 0 and given.get("attack", "none") != "none":
        yield f"attack={given['attack']} has no effect: no agent is Byzantine (--byzantine)"
    for name, value in given.items():
        used = getattr(config, name)
        if value not in (used, rule_spec(config)):
            yield f"{name}={value} has no effect: {config.algorithm} uses {name}={used}"
    if config.policy is not None:
        taken = inspect.signature(policies[parse_spec(config.policy)[0]].factory).parameters
        for name in given.keys() & set(POLICY_OPTIONS) - set(taken):
            yield f"{name}={given[name]} has no effect: policy {config.policy} has no option {name}"
