"""`jaxbyz certify`: search for inputs on which rules break the paper's Definitions 2 and 4."""

from __future__ import annotations

import argparse
import json

from jaxbyz.cli.common import add, add_shared, message_printer, seed_number


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the rules to certify, the numbers of agents, the effort, and the output options."""
    add(parser, "rules", "krum, bucketing+rfa, agreement/mda, …; by default all", nargs="*", metavar="RULE")
    add(parser, "--agents", "number of agents K", 13)
    add(parser, "--byzantine", "number of Byzantine agents f", 3)
    parser.add_argument(
        "--assumed-byzantine", type=int, nargs="+", default=[], metavar="N",
        help="numbers of Byzantine agents that the rules defend against, one row for each (default: f)",
    )  # fmt: skip
    add(parser, "--seed", "seed of the search", 0, type=seed_number)
    add(parser, "--starts", "number of starting inputs", 768)
    add(parser, "--climbers", "number of searches that continue from the best of them", 32)
    add(parser, "--steps", "steps of each search", 200)
    add(parser, "--dimension", "length of the messages (default: the number of agents)", type=int)
    add(parser, "--out", "save the input that breaks a rule in this folder, as .npz", metavar="DIR")
    add(parser, "--json", "print one JSON list instead of tables", False)
    add_shared(parser, "--quiet")


def run(arguments: argparse.Namespace) -> int:
    """Certify the rules and print the results. The exit code is 0 even if a rule is broken."""
    from jaxbyz.certify import Budget, certify, format_table

    same = {name: getattr(arguments, name) for name in ("agents", "byzantine", "assumed_byzantine", "seed", "out")}
    budget = Budget(arguments.starts, arguments.climbers, arguments.steps, arguments.dimension)
    rows = certify(arguments.rules, **same, budget=budget, log=message_printer(arguments))
    if arguments.json:
        print(json.dumps([row.as_dict() for row in rows], indent=2, ensure_ascii=False))
        return 0
    if arguments.quiet:
        return 0
    print(format_table(rows))
    print("\nbroken: by Definition 2 or 4. Such a rule may still be useful in practice (docs/certificate.md)")
    for row in rows:
        if row.witness is not None:
            print(f"witness against {row.rule}: {row.witness}")
    return 0
