"""`jaxbyz adversary`: train an adversary against a federation, and compare it with known attacks."""

from __future__ import annotations

import argparse

from jaxbyz.cli.common import add, add_shared, message_printer, saying_what_is_replaced

COMPARED = ["none", "avg-zero", "ipm", "alie", "min-max"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the federation and of the search."""
    from jaxbyz.cli.options import add_config_options
    from jaxbyz.runs.adversary import Search

    defaults = Search()
    add(parser, "--out", "the .npz file to write", required=True, metavar="FILE")
    add(parser, "--iterations", "length of each training", 60, least=1, metavar="T")
    add(parser, "--generations", "steps of the search", defaults.generations, metavar="G")
    add(parser, "--population", "trainings per step and seed, even", defaults.population, metavar="P")
    add(parser, "--reach", "largest shift per direction, in honest spreads", defaults.reach, metavar="R")
    add(parser, "--fresh-seeds", "seeds of the comparison with other attacks", 8, least=1, metavar="S")
    add_shared(parser, "--quiet")
    add_config_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train, write the file, and print the final return under the learned and under other attacks."""
    import numpy as np

    from jaxbyz.attacks.learned import StoredAdversary, save_adversary
    from jaxbyz.cli.options import choice_from
    from jaxbyz.errors import check_ending
    from jaxbyz.registry import FILE_ENDING
    from jaxbyz.report.tables import mean_and_deviation
    from jaxbyz.runs.adversary import Search, compare, train_adversary

    check_ending(arguments.out, FILE_ENDING)
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
    for generation in train_adversary(config, search, arguments.iterations):
        log(f"generation {generation.number + 1:>3}: mean return {generation.mean_return:.4g}")
    learned = generation.parameters
    facts = {name: getattr(config, name) for name in ("env", "aggregator", "agreement", "agents", "byzantine")}
    facts |= {"iterations": arguments.iterations, **search._asdict()}
    with saying_what_is_replaced(arguments.out):
        save_adversary(arguments.out, StoredAdversary(np.asarray(learned), search.reach, facts))
    if arguments.quiet:
        return 0
    results = compare(config, learned, search, arguments.iterations, COMPARED, arguments.fresh_seeds)
    print(f"{'attack':<12} final return (mean ± standard deviation over {arguments.fresh_seeds} fresh seeds)")
    for name, values in results.items():
        print(f"{name:<12} {mean_and_deviation(np.asarray(values))}")
    print(f"use it with --attack learned:{arguments.out}")
    return 0
