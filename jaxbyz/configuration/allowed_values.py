"""Which values an option may have, and how the error message says it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.configuration.agent_values import values_per_agent
from jaxbyz.errors import UsageError
from jaxbyz.registry import parse_assignments

START_FROM = "from:"  # begins the values of `start` that name a learnt policy
MAX_ROUNDS = 10**6
MAX_TEXT = 1000
MAX_SEED = 2**32 - 1
FLOAT32_MAX = float(np.finfo(np.float32).max)


class Allowed(NamedTuple):
    """Which values an option may have.

    Attributes:
        test: whether a value is allowed.
        wording: completes the sentence "must be …" of the error message.
    """

    test: Callable[[Any], bool]
    wording: str


def _is_rounds(text: str) -> bool:
    """Return whether κ is `theorem` or a whole number in range; the length limit spares `int` thousands of digits."""
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_ROUNDS))
    return text == "theorem" or (digits and 1 <= int(text) <= MAX_ROUNDS)


def _are_spreads(text: str) -> bool:
    """Return whether a text assigns finite numbers of at least 0."""
    try:
        return all(type(s) in (int, float) and 0 <= s < math.inf for s in parse_assignments(text).values())
    except UsageError:
        return False


def _are_assignments(text: str) -> bool:
    """Return whether a text assigns values to names."""
    try:
        return bool(parse_assignments(text)) or not text
    except UsageError:
        return False


def _are_values_per_agent(text: str) -> bool:
    """Return whether a text is empty or a JSON object of lists."""
    try:
        return isinstance(values_per_agent(text), dict)
    except UsageError:
        return False


COUNT = Allowed(lambda n: n >= 1, "at least 1")
NOT_NEGATIVE = Allowed(lambda n: n >= 0, "at least 0")
SEED = Allowed(lambda n: 0 <= n <= MAX_SEED, f"a whole number from 0 to {MAX_SEED}")
PROBABILITY_OF_LOSS = Allowed(lambda x: 0 <= x < 1, "in [0, 1)")
MOMENTUM = Allowed(lambda x: 0 <= x < 1, "in [0, 1)")
UNIT_INTERVAL = Allowed(lambda x: 0 < x <= 1, "in (0, 1]")
FROM_0_TO_1 = Allowed(lambda x: 0 <= x <= 1, "in [0, 1]")
POSITIVE = Allowed(lambda x: 0 < x <= FLOAT32_MAX, "a positive float32 number")
FINITE = Allowed(lambda x: abs(x) <= FLOAT32_MAX, "a finite float32 number")
WIDTHS = Allowed(lambda widths: len(widths) > 0 and min(widths) >= 1, "one or more layer sizes of at least 1")
ASSIGNMENTS = Allowed(_are_assignments, "name=value,name=value")
SPREADS = Allowed(_are_spreads, "name=spread,name=spread with spreads of at least 0")
VALUES_PER_AGENT = Allowed(_are_values_per_agent, "a JSON file or text with one list of numbers per parameter")
START = Allowed(
    lambda text: text in ("own", "shared") or (text.startswith(START_FROM) and text != START_FROM),
    f"own, shared, or {START_FROM}PATH with a run folder or an exported .npz file",
)
ROUNDS = Allowed(_is_rounds, f"a number of rounds from 1 to {MAX_ROUNDS}, or 'theorem'")
