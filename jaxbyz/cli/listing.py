"""`jaxbyz list`: all components and presets, with one line each."""

from __future__ import annotations

import argparse
import json


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def catalogue() -> dict[str, dict[str, str]]:
    """Return the summary of every component by kind and name."""
    from jaxbyz.algorithms import algorithms
    from jaxbyz.attacks import attacks
    from jaxbyz.environments import environments
    from jaxbyz.experiments.presets import PRESETS
    from jaxbyz.policies import policies
    from jaxbyz.protocol.agreements import agreements
    from jaxbyz.protocol.schedules import schedules
    from jaxbyz.rules import aggregators, pre_aggregators

    kinds = {
        "environments": environments,
        "algorithms": algorithms,
        "aggregators": aggregators,
        "pre_aggregators": pre_aggregators,
        "attacks": attacks,
        "agreements": agreements,
        "schedules": schedules,
        "policies": policies,
    }
    listed = {}
    for kind, registry in kinds.items():
        listed[kind] = {
            entry.name: entry.summary + (f"; f < {entry.limit}·K" if entry.limit is not None else "")
            for entry in registry
        }
    listed["presets"] = {name: line for name, (line, _) in PRESETS.items()}
    return listed


def run(arguments: argparse.Namespace) -> int:
    """Print the catalogue."""
    listed = catalogue()
    if arguments.json:
        print(json.dumps(listed, indent=2, ensure_ascii=False))
        return 0
    for kind, entries in listed.items():
        print(kind.replace("_", "-"))
        width = max(map(len, entries))
        for name, line in entries.items():
            print(f"  {name:<{width}}  {line}")
    return 0
