"""`jaxbyz evaluate`: run the policy of a run folder for fresh episodes."""

from __future__ import annotations

import argparse

from jaxbyz.cli import common


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the policy and the number of episodes."""
    common.add_policy_options(parser)
    parser.add_argument("--episodes", type=int, default=100, help="fresh episodes per seed (default 100)")
    parser.add_argument("--greedy", action="store_true", help="take the most likely action instead of drawing one")
    parser.add_argument(
        "--own", action="store_true",
        help="run every agent's policy in its own environment (env_spread, env_agents) instead of the nominal one",
    )  # fmt: skip
    parser.add_argument("--seed", type=common.seed_number, default=10_000, help="seed of the episodes (default 10000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print."""
    from jaxbyz.experiments.evaluation import evaluate, evaluate_agents
    from jaxbyz.experiments.run_folder import load_run
    from jaxbyz.files import json_text
    from jaxbyz.report.statistics import standard_deviation

    common.check_at_least(arguments, episodes=1)
    data = load_run(arguments.folder)
    parameters, output = common.selected_parameters(arguments, data), arguments.output or data.config.output
    settings = arguments.episodes, arguments.seed, arguments.greedy
    if arguments.own:  # [seeds, K, episodes] -> [seeds, K], one mean per agent
        returns = evaluate_agents(data.config, data.policy[output], *settings)["returns"].mean(axis=2)
        whose, unit = f"all {data.config.agents} agents, each in its own environment", "agent"
    else:
        returns = evaluate(data.config, parameters, *settings)["returns"]
        whose, unit = f"agent {arguments.agent}", "episode"
    if arguments.json:
        means = returns.mean(axis=1)
        summary = {"mean": float(means.mean()), "std": float(standard_deviation(means)), "seeds": means.tolist()}
        if arguments.own:
            summary["agents"] = returns.tolist()
        described = {"folder": arguments.folder, "output": output, "episodes": arguments.episodes}
        print(json_text({**described, "return": summary}))
        return 0
    print(f"{data.config.env}, {output} parameters of {whose}, {arguments.episodes} episodes per seed")
    for seed, row in enumerate(returns, start=data.config.seed):
        spread = "" if len(row) == 1 else f" ± {standard_deviation(row):.1f}"
        print(f"  seed {seed}: return {row.mean():.1f}{spread}, worst {unit} {row.min():.1f}")
    return 0
