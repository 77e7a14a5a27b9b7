"""A process of its own in which XLA has its defaults: the plain program does not profit from the flags we set.

    prepare()  # first, instead of jaxbyz.accelerate.platform.prepare
    with_default_flags().submit(function, ...).result()

The process imports the script that made it, so that the function is one of a module.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

from jaxbyz.accelerate import platform as backend

_MARK = "JAXBYZ_DEFAULT_FLAGS"  # is set in that process
_GIVEN = os.environ.get("XLA_FLAGS", "")


def prepare() -> None:
    """As the command line does, but not in that process, which imports the same script."""
    if _MARK not in os.environ:
        backend.prepare()


@functools.cache
def with_default_flags() -> ProcessPoolExecutor:
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with mock.patch.dict(os.environ, {"XLA_FLAGS": _GIVEN, _MARK: "1"}):
        pool.submit(os.getpid).result()  # it starts now, with this environment
    return pool
