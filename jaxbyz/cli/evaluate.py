"""`jaxbyz evaluate`: run the policy a run folder holds for fresh episodes."""

from __future__ import annotations

import argparse
import json

from jaxbyz.cli.arguments import seed_number


def add_options(parser: argparse.ArgumentParser) -> None:
    """The folder, how many episodes, which output."""
    parser.add_argument("folder", metavar="DIR", help="run folder")
    parser.add_argument("--episodes", type=int, default=100, help="fresh episodes a seed (default 100)")
    parser.add_argument("--agent", type=int, default=0, help="whose parameters (default 0, honest in a fixed schedule)")
    parser.add_argument("--output", choices=("last", "sampled", "best"), help="which parameters (default: the run's)")
    parser.add_argument("--greedy", action="store_true", help="take the likeliest action instead of drawing one")
    parser.add_argument("--seed", type=seed_number, default=10_000, help="seed of the fresh episodes")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print."""
    from jaxbyz.errors import UsageError
    from jaxbyz.experiments.run import evaluate
    from jaxbyz.experiments.run_folder import load_run

    data = load_run(arguments.folder)
    if not data.policy:
        raise UsageError(f"{arguments.folder}: policy.npz is missing; the run was not finished")
    if arguments.episodes < 1:
        raise UsageError(f"episodes={arguments.episodes}: must be at least 1")
    which = arguments.output or data.config.output
    parameters = data.policy[which]
    if not 0 <= arguments.agent < parameters.shape[1]:
        raise UsageError(f"agent={arguments.agent}: the run has agents 0 to {parameters.shape[1] - 1}")
    outcome = evaluate(
        data.config, parameters[:, arguments.agent], arguments.episodes, arguments.seed, arguments.greedy
    )
    means = outcome["returns"].mean(axis=1)
    if arguments.json:
        values = {"mean": float(means.mean()), "std": float(means.std()), "seeds": [float(m) for m in means]}
        print(
            json.dumps({"folder": arguments.folder, "output": which, "episodes": arguments.episodes, "return": values})
        )
        return 0
    print(f"{data.config.env}, {which} parameters of agent {arguments.agent}, {arguments.episodes} episodes a seed")
    for seed, row in enumerate(outcome["returns"]):
        print(f"  seed {data.config.seed + seed}: return {row.mean():.1f} ± {row.std():.1f}, worst {row.min():.1f}")
    return 0
