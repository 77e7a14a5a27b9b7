"""Several processes that train one run together; `cli.joining.join_processes` connects them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxbyz.errors import UsageError

FAILED = -1  # what the first process broadcasts instead of a result


def is_first_process() -> bool:
    """Return whether this is the process that writes files and prints messages."""
    return jax.process_index() == 0


def max_over_processes(number: int) -> int:
    """Return the largest of the numbers that the processes pass."""
    if jax.process_count() == 1:
        return number
    return int(np.max(multihost_utils.process_allgather(np.int32(number))))


def on_first_process(work: Callable[[], int | None]) -> int:
    """Call a function in the first process only and return its result in all processes.

    Args:
        work: returns a number of at least 0; None counts as 0.

    Raises:
        UsageError: in every process if `work` raises it in the first one.
    """
    if jax.process_count() == 1:
        return work() or 0
    result, failure = 0, None
    if is_first_process():
        try:
            result = work() or 0
        except UsageError as error:
            result, failure = FAILED, error
    result = int(multihost_utils.broadcast_one_to_all(np.int32(result)))
    if result == FAILED:
        raise failure or UsageError("the first process refused to continue; its message says why")
    return result
