"""`jaxbyz certify`: search for inputs on which rules break the paper's Definitions 2 and 4."""

from __future__ import annotations

import argparse
import json

from jaxbyz.cli.common import add_quiet_option, message_printer, seed_number


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the rules to certify, the numbers of agents, the effort, and the output options."""
    parser.add_argument(
        "rules", nargs="*", metavar="RULE", help="krum, bucketing+rfa, agreement/mda, …; by default all"
    )
    parser.add_argument("--agents", type=int, default=13, help="number of agents K (default 13)")
    parser.add_argument("--byzantine", type=int, default=3, help="number of Byzantine agents f (default 3)")
    parser.add_argument(
        "--assumed-byzantine", type=int, nargs="+", default=[], metavar="N",
        help="numbers of Byzantine agents that the rules defend against, one row for each (default: f)",
    )  # fmt: skip
    parser.add_argument("--seed", type=seed_number, default=0, help="seed of the search")
    parser.add_argument("--starts", type=int, default=768, help="number of starting inputs (default 768)")
    parser.add_argument(
        "--climbers", type=int, default=32, help="number of searches that continue from the best of them (default 32)"
    )
    parser.add_argument("--steps", type=int, default=200, help="steps of each search (default 200)")
    parser.add_argument("--dimension", type=int, help="length of the messages (default: the number of agents)")
    parser.add_argument("--out", metavar="DIR", help="save the input that breaks a rule in this folder, as .npz")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of tables")
    add_quiet_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Certify the rules and print the results. The exit code is 0 even if a rule is broken."""
    from jaxbyz.certify import Budget, certify, format_table

    rows = certify(
        arguments.rules,
        agents=arguments.agents,
        byzantine=arguments.byzantine,
        assumed_byzantine=arguments.assumed_byzantine,
        seed=arguments.seed,
        budget=Budget(arguments.starts, arguments.climbers, arguments.steps, arguments.dimension),
        out=arguments.out,
        log=message_printer(arguments),
    )
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
