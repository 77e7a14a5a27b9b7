"""`jaxbyz train`: train an algorithm and write a run folder."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from jaxbyz.cli import common
from jaxbyz.errors import UsageError

if TYPE_CHECKING:
    from jaxbyz.configuration.config import Config


EXAMPLES = """\
examples:
  jaxbyz train --byzantine 3 --attack avg-zero
      13 agents on CartPole, 3 of them Byzantine; the results go to runs/DATE-NAME
  jaxbyz train --byzantine 3 --attack alie --seeds 10 --out runs/best
      ten seeds side by side
  jaxbyz train --env LunarLander-v3 --byzantine 3 --checkpoint-every 100
      another task, with the best options that are known for it
  jaxbyz train --aggregator bucketing:size=2+rfa --attack ipm --byzantine 2
      components with options; `jaxbyz list rules` names them
  jaxbyz train --from runs/best --env-param gravity=12
      start from a learnt policy, in a changed environment
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `Config`, the output folder, and how to report."""
    from jaxbyz.cli.options import add_config_options

    common.add(parser, "--out", "folder for the results (default: runs/DATE-NAME)", metavar="DIR")
    common.add(parser, "--no-save", "write no folder", False)
    common.add(parser, "--name", "name of the run (default: algorithm, environment and attack)")
    parser.add_argument("--tag", action="append", default=[], help="a tag for run.json and loggers; may be repeated")
    parser.add_argument(
        "--from", dest="start", metavar="PATH", type=lambda path: f"from:{path}", default=argparse.SUPPRESS,
        help="start from the learnt policy of a run folder or exported .npz file; same as --start from:PATH",
    )  # fmt: skip
    common.add_run_options(parser)
    add_config_options(parser)
    parser.usage, parser.epilog = "%(prog)s [options]", EXAMPLES
    parser.formatter_class = common.HelpFormatter


def run(arguments: argparse.Namespace) -> int:
    """Train; the exit codes are those of `run_and_report`."""
    from jaxbyz.cli.options import choice_from, options_given
    from jaxbyz.configuration.ineffective import without_effect
    from jaxbyz.runs.run import run as run_config
    from jaxbyz.runs.run_record import check_labels
    from jaxbyz.training.processes import is_first_process

    if arguments.no_save and arguments.out is not None:
        raise UsageError(f"out={arguments.out} with no_save: give one of them")
    common.silence_other_processes(arguments)
    choice = choice_from(arguments)
    config = choice.config
    messages = without_effect(config, options_given(arguments)) if is_first_process() else []
    if not arguments.quiet:
        messages.insert(0, str(choice))
        if config.byzantine and config.attack == "none":
            messages.append(f"attack=none: the {config.byzantine} Byzantine agents behave as if they were honest")
    labels = {"name": arguments.name, "tags": arguments.tag}
    check_labels(**labels)
    if arguments.out is None and not arguments.no_save:
        arguments.out = str(_default_folder(config, arguments.name))
    reporter, settings = common.make_reporter(config, arguments, messages, **labels), common.run_settings(arguments)
    return common.run_and_report(
        arguments, lambda: run_config(config, arguments.out, reporter, **settings, **labels), config.trajectories,
        str(choice),
    )  # fmt: skip


def _default_folder(config: Config, name: str | None) -> Path:
    """Return a new folder below `runs/`, the same in all processes."""
    from jaxbyz.runs.run_record import default_folder
    from jaxbyz.training.processes import on_first_process

    attack = config.attack.partition(":")[0] if config.byzantine else "honest"
    year_2020 = 1_577_836_800  # the processes exchange 32-bit numbers
    now = year_2020 + on_first_process(lambda: int(time.time()) - year_2020)
    return default_folder(name or f"{config.algorithm}-{config.env}-{attack}", now)
