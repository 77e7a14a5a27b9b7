"""`jaxbyz export`: write the policy of a run folder to one file for other programs."""

from __future__ import annotations

import argparse

from jaxbyz.cli import common


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the policy and the file."""
    common.add_policy_options(parser)
    common.add_shared(parser, "--run-seed")
    common.add(
        parser, "--out", ".npz or .safetensors: named arrays with a schema; .onnx or .jax: a function",
        "policy.npz", metavar="FILE",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Write the file and print its name."""
    from jaxbyz.runs.run_folder import load_run

    chosen = {"run_seed": arguments.run_seed, "agent": arguments.agent, "output": arguments.output}
    with common.saying_what_is_replaced(arguments.out):
        print(load_run(arguments.folder, log=common.print_message).export(arguments.out, **chosen))
    return 0
