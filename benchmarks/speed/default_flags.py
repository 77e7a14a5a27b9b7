"""A separate process in which XLA uses its default flags, so that the plain program does not profit from ours.

    prepare()  # first, instead of jaxbyz.accelerate.setup.prepare
    with_default_flags().submit(function, ...).result()

The process imports the script that started it, so the function must be defined in a module.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

from jaxbyz.accelerate import setup

_MARK = "JAXBYZ_DEFAULT_FLAGS"  # set in that process
_FLAGS_AT_START = os.environ.get("XLA_FLAGS", "")


def prepare() -> None:
    """Prepare JAX as the command line does, except in the process with the default flags."""
    if _MARK not in os.environ:
        setup.prepare()


@functools.cache
def with_default_flags() -> ProcessPoolExecutor:
    """Start the process, once."""
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with mock.patch.dict(os.environ, {"XLA_FLAGS": _FLAGS_AT_START, _MARK: "1"}):
        pool.submit(os.getpid).result()  # starts the process now, with this environment
    return pool
