"""`python -m jaxbyz` is the command `jaxbyz`."""

import os
import sys
from pathlib import Path

# Python puts the current folder first. Nothing is imported from there, except this package if that is where it is.
if sys.path[0] in ("", os.getcwd()) and Path(__file__).parents[1] != Path.cwd():
    del sys.path[0]

from jaxbyz.cli import main

raise SystemExit(main())
