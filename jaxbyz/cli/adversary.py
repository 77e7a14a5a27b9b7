"""`jaxbyz adversary`: train an adversary against a federation, and compare it with known attacks."""

from __future__ import annotations

import argparse

from jaxbyz.cli.common import add_quiet_option, message_printer, saying_what_is_replaced

COMPARED = ["none", "avg-zero", "ipm", "alie", "min-max"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the federation and of the search."""
    from jaxbyz.cli.options import add_config_options
    from jaxbyz.runs.adversary import Search

    defaults = Search()
    parser.add_argument("--out", metavar="FILE", required=True, help="the .npz file to write")
    parser.add_argument("--iterations", type=int, default=60, metavar="T", help="length of each training (default: 60)")
    parser.add_argument("--generations", type=int, default=defaults.generations, metavar="G",
                        help=f"steps of the search (default: {defaults.generations})")  # fmt: skip
    parser.add_argument("--population", type=int, default=defaults.population, metavar="P",
                        help=f"trainings per step and seed, even (default: {defaults.population})")  # fmt: skip
    parser.add_argument("--reach", type=float, default=defaults.reach, metavar="R",
                        help=f"largest shift per direction, in honest spreads ({defaults.reach:g})")  # fmt: skip
    parser.add_argument("--fresh-seeds", type=int, default=8, metavar="S",
                        help="seeds of the comparison with other attacks (default: 8)")  # fmt: skip
    add_quiet_option(parser)
    add_config_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train, write the file, and print the final return under the learned and under other attacks."""
    import numpy as np

    from jaxbyz.attacks.learned import StoredAdversary, save_adversary
    from jaxbyz.cli.options import choice_from
    from jaxbyz.errors import UsageError
    from jaxbyz.registry import FILE_ENDING
    from jaxbyz.report.tables import mean_and_deviation
    from jaxbyz.runs.adversary import Search, compare, train_adversary

    if not arguments.out.endswith(FILE_ENDING):
        raise UsageError(f"--out {arguments.out}: the name of the file must end in {FILE_ENDING}")
    for name, value in (("iterations", arguments.iterations), ("fresh-seeds", arguments.fresh_seeds)):
        if value < 1:
            raise UsageError(f"--{name} {value}: must be at least 1")
    choice, log = choice_from(arguments), message_printer(arguments)
    config = choice.config
    search = Search(
        arguments.generations, arguments.population, seeds=config.seeds, reach=arguments.reach, seed=config.seed
    )
    search.check()
    log(str(choice))
    log(
        f"training an adversary against {config.aggregator} on {config.env}: {search.generations} generations of "
        f"{search.population} × {search.seeds} trainings of {arguments.iterations} iterations"
    )
    first = last = None
    for generation in train_adversary(config, search, arguments.iterations):
        first = generation if first is None else first
        last = generation
        log(f"generation {generation.number + 1:>3}: mean return {generation.mean_return:.4g}")
    assert last is not None and first is not None
    facts = {
        "env": config.env, "aggregator": config.aggregator, "agreement": config.agreement, "agents": config.agents,
        "byzantine": config.byzantine, "iterations": arguments.iterations, **search._asdict(),
    }  # fmt: skip
    with saying_what_is_replaced(arguments.out):
        save_adversary(arguments.out, StoredAdversary(np.asarray(last.parameters), search.reach, facts))
    if arguments.quiet:
        return 0
    results = compare(config, last.parameters, search, arguments.iterations, COMPARED, arguments.fresh_seeds)
    print(f"{'attack':<12} final return (mean ± standard deviation over {arguments.fresh_seeds} fresh seeds)")
    for name, values in results.items():
        print(f"{name:<12} {mean_and_deviation(np.asarray(values))}")
    print(f"use it with --attack learned:{arguments.out}")
    return 0
