"""The command line, `jaxbyz COMMAND`. Every command has one file, a thin layer over the library."""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NoReturn

from jaxbyz.errors import UsageError, first_line, install_command, printable, unknown

# command -> (module, one line of help); every module has `add_options(parser)` and `run(arguments) -> exit code`
COMMANDS = {
    "train": ("jaxbyz.cli.train", "train an algorithm and write a run folder"),
    "resume": ("jaxbyz.cli.resume", "continue an interrupted run, or extend a finished one"),
    "sweep": ("jaxbyz.cli.sweep", "train every combination of options that a TOML file lists"),
    "compare": (
        "jaxbyz.cli.compare",
        "compare methods in a table: final returns, failures and differences, with intervals",
    ),
    "plot": ("jaxbyz.cli.plot", "draw run folders: curves, heatmap, diameter, trust, agreement"),
    "reproduce": ("jaxbyz.cli.reproduce", "train and draw the figures of the paper, next to its own curves"),
    "benchmark": ("jaxbyz.cli.benchmark", "run a suite of tasks and attacks, score entries, publish a leaderboard"),
    "evaluate": ("jaxbyz.cli.evaluate", "run a trained policy for fresh episodes"),
    "export": ("jaxbyz.cli.export", "write a trained policy to one file for other programs"),
    "render": ("jaxbyz.cli.render", "draw an episode of a trained policy as a GIF and a strip of frames"),
    "adversary": ("jaxbyz.cli.adversary", "train an adversary against a federation and write it to a file"),
    "certify": ("jaxbyz.cli.certify", "search for inputs that violate the paper's Definitions 2 and 4"),
    "list": ("jaxbyz.cli.listing", "list environments, algorithms, rules, attacks, agreements, schedules and presets"),
    "report": ("jaxbyz.cli.report", "write one HTML page about run folders"),
    "federation": ("jaxbyz.cli.federation", "create, run and watch a federation of separate processes"),
    "node": ("jaxbyz.cli.node", "run one node of a federation of processes"),
    "doctor": ("jaxbyz.cli.doctor", "check the installation and report problems"),
    "completion": ("jaxbyz.cli.completion", "print a completion script for a shell"),
}
# The other commands load JAX first, which takes longer than people wait without a message.
SHORT = ("list", "export", "federation", "node", "doctor", "completion")
# package -> the extra that installs it
OPTIONAL = {
    "matplotlib": "plots",
    "PIL": "plots",
    "tensorboardX": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "zmq": "federation",
    "flwr": "flower",
    "onnx": "onnx",
    "gymnasium": "gymnasium",
    "cloudpickle": "gymnasium",
}
USAGE_ERROR = 2  # exit code
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # how XLA says it


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are reported as all others are."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def build_parser(only: str | None = None) -> Parser:
    """Return the parser. With `only`, add the options of that command alone, which makes the start faster."""
    parser = Parser(prog="jaxbyz", description="Byzantine-fault-tolerant federated policy gradient in JAX.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--import", metavar="FILE", help="run this .py file or import this module first, to register "
                        "your own rules, attacks or environments; may be repeated")  # fmt: skip
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, (module, line) in COMMANDS.items():
        command = commands.add_parser(name, help=line, description=line, allow_abbrev=False)
        if only in (None, name):
            importlib.import_module(module).add_options(command)
    return parser


def import_components(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Import what every `--import FILE` names, and return these names and the other arguments."""
    from jaxbyz.files import reason
    from jaxbyz.registry import Registry

    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--import", dest="sources", action="append", default=[])
    parsed, others = parser.parse_known_args(arguments)
    for source in parsed.sources:
        try:
            if source.endswith(".py"):
                sys.path.insert(0, os.path.dirname(os.path.abspath(source)))  # as Python does for a script
                runpy.run_path(source)
            else:
                importlib.import_module(source)
        except SyntaxError as error:
            raise UsageError(f"--import {source}: {error.msg} (line {error.lineno} of {error.filename})") from error
        except (OSError, ImportError) as error:
            why = f"cannot be read ({reason(error)})" if isinstance(error, OSError) else error
            raise UsageError(f"--import {source}: {why}") from error
    Registry.imported = tuple(parsed.sources)
    return parsed.sources, others


def _unrecognised(words: Sequence[str], command: str | None) -> str:
    """Return the message for arguments that no option takes, with the option that may have been meant."""
    line = f"unrecognized arguments: {' '.join(words)}"
    if command not in ("train", "federation", "adversary") or not words[0].startswith("--"):
        return line
    from jaxbyz.configuration.resolving import similar_option

    near = similar_option(words[0][2:].partition("=")[0])
    return line if near is None else f"{line}; did you mean --{near.replace('_', '-')}?"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Mistakes of the user end in one line on standard error and exit code 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--version"]:
        from jaxbyz import __version__

        print(__version__)
        return 0
    command = next((word for word in arguments if word in COMMANDS), "")
    takes_long = command in COMMANDS and command not in SHORT
    if argv is None and takes_long and not {"--quiet", "--json", "-h", "--help"} & set(arguments):
        print(f"jaxbyz {command}: starting …", file=sys.stderr, flush=True)
    if argv is None:
        gc.disable()  # imports leave no garbage
    if "--distributed" in arguments:  # before the first import of JAX: errors are reported in one line, by Python
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "--deterministic" in arguments:
        os.environ["JAXBYZ_DETERMINISTIC"] = "1"
    from jaxbyz.accelerate import stored_programs
    from jaxbyz.accelerate.setup import prepare

    for stream in (sys.stdout, sys.stderr):  # a terminal without Unicode, or a file name that is not text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    prepare()
    stored_programs.enable(argv is None and not any(word.startswith("--import") for word in arguments))
    code = _reporting_errors(lambda: _run(arguments, as_process=argv is None))
    if code == USAGE_ERROR and "--distributed" in arguments:
        os._exit(code)  # a normal exit would wait for the other processes, which are to fail at once
    return code


def _run(arguments: list[str], as_process: bool) -> int:
    """Parse the arguments and run the command."""
    from jaxbyz.cli.common import print_message
    from jaxbyz.cli.joining import join_processes
    from jaxbyz.runs.signals import acknowledge_signals

    if "--distributed" in arguments:
        join_processes()  # before any import that starts JAX, such as gymnax
    sources, words = import_components(arguments)
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        raise UsageError(f"{unknown('command', words[0], COMMANDS)} (`jaxbyz --help` lists all)")
    parser = build_parser(next((word for word in words if word in COMMANDS), ""))
    parsed, unrecognised = parser.parse_known_args(words)
    if unrecognised:
        raise UsageError(_unrecognised(unrecognised, parsed.command))
    if parsed.command is None:
        parser.print_help()
        return USAGE_ERROR
    if as_process:
        gc.freeze()
        gc.enable()
    parsed.sources = sources
    run = importlib.import_module(COMMANDS[parsed.command][0]).run
    # Answer Ctrl-C at once in commands that may compile for a long time.
    with nullcontext() if parsed.command in SHORT else acknowledge_signals(print_message):
        return run(parsed)


def _reporting_errors(run: Callable[[], int]) -> int:
    """Run a command and return its exit code; what went wrong is said in one line."""
    try:
        return run()
    except UsageError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        print("jaxbyz: interrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        return _fail(f"the package {error.name} is missing: {install_command(OPTIONAL[error.name])}")
    except BrokenPipeError:
        return 1
    except OSError as error:
        named = "" if error.filename is None else f"{error.filename}: "
        return _fail(f"{named}{error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or OUT_OF_MEMORY in str(error)):
            raise
        return _fail(f"out of memory ({first_line(error)[:200]}); reduce the sizes of the run")


def _fail(message: str) -> int:
    """Print an error in one line and return the exit code."""
    print(f"jaxbyz: error: {printable(' '.join(message.splitlines()))}", file=sys.stderr, flush=True)
    return USAGE_ERROR


if __name__ == "__main__":
    raise SystemExit(main())
