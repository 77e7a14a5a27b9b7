"""Types of arguments that several commands share."""

from __future__ import annotations

import argparse


def seed_number(text: str) -> int:
    """A seed of JAX's generators."""
    if not (text.isdecimal() and int(text) < 2**32):
        raise argparse.ArgumentTypeError(f"seed={text!r}: seeds are numbers from 0 to 2³² − 1")
    return int(text)
