"""`jaxbyz certify`: search for inputs on which rules break the paper's Definitions 2 and 4, or for sequences."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from jaxbyz.cli.common import add, add_shared, message_printer, seed_number
from jaxbyz.errors import UsageError

if TYPE_CHECKING:
    from jaxbyz.certify import Budget


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
    add(parser, "--starts", "number of starting inputs (default: 768, of plans 32)", type=int)
    add(parser, "--climbers", "number of searches from the best of them (default: 32, of plans 8)", type=int)
    add(parser, "--steps", "steps of each search (default: 200, of plans 60)", type=int)
    add(parser, "--dimension", "length of the messages (default: the number of agents, of plans 64)", type=int)
    add(
        parser, "--batches", "search for a plan of messages over this many batches, and report the lost progress",
        type=int,
    )  # fmt: skip
    add(parser, "--signal", "with --batches: the length of the gradient in lengths of the noise", 0.3)
    add(parser, "--out", "save the input that breaks a rule in this folder, as .npz", metavar="DIR")
    add(parser, "--json", "print one JSON list instead of tables", False)
    add_shared(parser, "--quiet")


def run(arguments: argparse.Namespace) -> int:
    """Certify the rules and print the results. The exit code is 0 even if a rule is broken."""
    from jaxbyz.certify import Budget, certify, format_table

    if arguments.batches is not None:
        return _run_plans(arguments)
    same = {name: getattr(arguments, name) for name in ("agents", "byzantine", "assumed_byzantine", "seed", "out")}
    budget = _budget(arguments, Budget())
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


def _budget(arguments: argparse.Namespace, default: Budget) -> Budget:
    """Return the effort that was asked for, or else the default."""
    given = {name: getattr(arguments, name) for name in ("starts", "climbers", "steps", "dimension")}
    return replace(default, **{name: value for name, value in given.items() if value is not None})


def _run_plans(arguments: argparse.Namespace) -> int:
    """Search for the worst plan against each rule, and print how much of the progress it takes."""
    from jaxbyz.certify.sequences import PLANS, lost_progress

    if not arguments.rules:
        raise UsageError("--batches needs the names of rules, such as rfa memory+rfa")
    if arguments.assumed_byzantine or arguments.out:
        raise UsageError("--batches cannot be combined with --assumed-byzantine or --out")
    found = lost_progress(
        arguments.rules, agents=arguments.agents, byzantine=arguments.byzantine, batches=arguments.batches,
        signal=arguments.signal, seed=arguments.seed, budget=_budget(arguments, PLANS),
    )  # fmt: skip
    if arguments.json:
        print(json.dumps([{**one._asdict(), "plan": one.plan.tolist()} for one in found], indent=2))
    elif not arguments.quiet:
        print("| rule | lost progress | standard error |\n| --- | --: | --: |")
        for one in found:
            print(f"| {one.rule} | {one.lost:.2f} | {one.error:.2f} |")
    return 0
