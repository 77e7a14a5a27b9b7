"""The command that a result file records."""

from __future__ import annotations

import shlex
import sys


def recorded_command() -> str:
    """Return the command of this process without `--out FOLDER`, which does not matter for the numbers."""
    words = list(sys.argv)
    if "--out" in words:
        at = words.index("--out")
        del words[at : at + 2]
    return shlex.join(["python", *words])
