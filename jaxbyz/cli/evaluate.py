"""`jaxbyz evaluate`: run the policy of a run folder for fresh episodes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from jaxbyz.cli import common

if TYPE_CHECKING:
    from jaxbyz.configuration.config import Config


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the policy and the number of episodes."""
    common.add_policy_options(parser)
    common.add(parser, "--episodes", "fresh episodes per seed", 100, least=1)
    common.add(parser, "--greedy", "take the most likely action instead of drawing one", False)
    common.add(
        parser, "--own", "run every agent's policy in its own environment (env_spread, env_agents) instead of the "
        "nominal one", False,
    )  # fmt: skip
    parser.add_argument(
        "--env-param", metavar="NAME=VALUE", default="",
        help="play in a changed environment, for example gravity=12,length=0.8; replaces the run's own values",
    )  # fmt: skip
    common.add(parser, "--seed", "seed of the episodes", 10_000, type=common.seed_number)
    common.add_shared(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print."""
    import numpy as np

    from jaxbyz.errors import UsageError
    from jaxbyz.files import json_text
    from jaxbyz.report.intervals import FEWEST_FOR_INTERVAL, bootstrap_mean
    from jaxbyz.report.statistics import standard_deviation
    from jaxbyz.runs.run_folder import load_run
    from jaxbyz.trained.evaluation import evaluate, evaluate_agents

    data = load_run(arguments.folder, log=common.print_message)
    config = changed_environment(data.config, arguments.env_param)
    output = arguments.output or data.config.output
    if not data.policy:
        raise UsageError(f"{arguments.folder}: no policy was saved, because no seed stayed finite")
    policies = data.policy[output]  # [seeds, agents, D]
    if not 0 <= arguments.agent < policies.shape[1]:
        raise UsageError(f"agent={arguments.agent}: must be from 0 to {policies.shape[1] - 1}")
    settings = arguments.episodes, arguments.seed, arguments.greedy
    if arguments.own:  # [seeds, K, episodes] -> [seeds, K], one mean per agent
        returns = evaluate_agents(config, policies, *settings)["returns"].mean(axis=2)
        liars = ", Byzantine ones included" if data.config.byzantine else ""
        whose, unit = f"all {data.config.agents} agents{liars}, each in its own environment", "agent"
    else:
        returns = evaluate(config, policies[:, arguments.agent], *settings)["returns"]
        whose, unit = policy_owner(data.config, arguments.agent), "episode"
    # Episodes of one seed share its policy, so that seeds are resampled if there are several.
    resampled = "seeds" if len(returns) > 1 else f"{unit}s"
    mean, low, high = bootstrap_mean(returns.mean(axis=1) if len(returns) > 1 else returns[0])
    if arguments.json:
        means = returns.mean(axis=1)
        summary = {
            "mean": float(means.mean()), "std": float(standard_deviation(means)), "seeds": means.tolist(),
            "interval": [float(low), float(high)] if np.isfinite(low) else None,
            **({"agents": returns.tolist()} if arguments.own else {}),
        }  # fmt: skip
        given = {name: getattr(arguments, name) for name in ("folder", "episodes", "seed", "greedy")}
        print(json_text({**given, "output": output, "env_param": config.env_param, "return": summary}))
        return 0
    actions = "most likely actions" if arguments.greedy else "drawn actions"
    print(f"{config.env}{f' with {config.env_param}' if config.env_param else ''}, {output} parameters of {whose}, "
          f"{actions}, {arguments.episodes} episodes per seed")  # fmt: skip
    for seed, row in enumerate(returns, start=data.config.seed):
        spread = "" if len(row) == 1 else f" ± {standard_deviation(row):.1f}"
        print(f"  seed {seed}: return {row.mean():.1f}{spread}, worst {unit} {row.min():.1f}")
    found = f"95 % interval {low:.1f} to {high:.1f} (bootstrap over {resampled})"
    missing = f"no interval, which needs at least {FEWEST_FOR_INTERVAL} {resampled}"
    print(f"  mean {mean:.1f}, {found if np.isfinite(low) else missing}")
    return 0


def policy_owner(config: Config, agent: int) -> str:
    """Name whose parameters a policy of a run has: an agent's, the server's, or those of all that vote."""
    if config.traits.in_groups:
        return f"the {config.groups} groups, whose policies vote on every action"
    return "the server" if config.traits.central else f"agent {agent}"


def changed_environment(config: Config, text: str) -> Config:
    """Return the configuration with these parameters of the environment, besides those of the run."""
    from dataclasses import replace

    from jaxbyz.configuration.check import check
    from jaxbyz.registry import parse_assignments

    if not text:
        return config
    merged = {**parse_assignments(config.env_param), **parse_assignments(text)}
    return check(replace(config, env_param=",".join(f"{name}={value}" for name, value in merged.items())))
