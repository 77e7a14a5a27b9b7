"""One compiled program for the tuning of an entry and for its training under all attacks that can share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jaxbyz.algorithms import Metrics
from jaxbyz.benchmark.entries import NO_ATTACK
from jaxbyz.benchmark.suite import Suite
from jaxbyz.configuration.config import Config
from jaxbyz.errors import UsageError
from jaxbyz.runs.plan import make_plan
from jaxbyz.runs.together import groups_of_attacks, train_together


class Sharing(NamedTuple):
    """What programs must have in common so that one compilation serves tuning and training.

    Attributes:
        attacks: the attacks of the program, of which a call may use some.
        at_once: the number of trainings in a call of the program.
    """

    attacks: tuple[str, ...]
    at_once: int


def sharing_of(suite: Suite, attacks: Sequence[str]) -> Sharing | None:
    """Return what a program of these attacks has in common with others of the suite; None if it stands alone."""
    shared, tuning = groups_of_attacks((NO_ATTACK, *suite.attacks))[0], suite.tuning
    at_once = len(tuning.attacks) * len(tuning.factors) * tuning.count
    return Sharing(shared, at_once) if set(attacks) <= set(shared) else None


def train_planned(
    config: Config, attacks: Sequence[str], factors: np.ndarray, sharing: Sharing | None = None
) -> Metrics:
    """Train a configuration under these attacks, with its step size times these factors, for its own seeds.

    Args:
        config: the configuration.
        attacks: attacks of a group of `groups_of_attacks`.
        factors: `[G]`.
        sharing: if given, the program depends neither on the step size nor on the seeds or on `attacks`, except that
            with small batches the number of iterations T depends on the coins of the seeds.

    Returns:
        Metrics `[attacks, factors, seeds, T]`.

    Raises:
        UsageError: if the estimator uses the step size, as `previous=realized` does.
    """
    if config.previous == "realized" and not config.always_large:
        raise UsageError("previous=realized: small batches use the step size, which is data here; give eta yourself")
    plan = make_plan(config)
    all_attacks, at_once = (tuple(attacks), None) if sharing is None else sharing
    decay = None if config.eta_end is None else config.eta_end / config.eta
    unit = replace(config, eta=1.0, eta_end=decay)
    train = train_together(unit, plan.iterations, all_attacks, at_once)
    return train([all_attacks.index(name) for name in attacks], config.eta * factors, plan.keys, plan.coins)
