"""One compiled program for the tuning of an entry and for its training under all attacks that can share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jaxbyz.benchmark.entries import NO_ATTACK
from jaxbyz.benchmark.suite import Suite
from jaxbyz.configuration.building import DATA
from jaxbyz.configuration.config import Config
from jaxbyz.runs.loop import Experiment
from jaxbyz.runs.members import groups_of_attacks
from jaxbyz.runs.together import train_together


class Sharing(NamedTuple):
    """What programs must have in common so that one compilation serves tuning and training.

    Attributes:
        attacks: the attacks of the program, of which a call may use some.
        at_once: the number of trainings in a call of the program.
    """

    attacks: tuple[str, ...]
    at_once: int


def sharing_of(suite: Suite, setting: tuple[str, str], attacks: Sequence[str]) -> Sharing | None:
    """Return what a program of these attacks has in common with others of the setting; None if it stands alone.

    A call trains what a step of tuning needs, rounded up to whole cells.
    """
    groups, tuning = groups_of_attacks((NO_ATTACK, *suite.attacks_in(*setting))), suite.tuning
    group = next((group for group in groups if set(attacks) <= set(group)), ())
    tried = len(set(group) & set(suite.tuning_attacks(setting[0])))
    if not group or (len(group) == 1 and not tried):
        return None
    worst = min(tuning.worst or tried, tried)
    runs = max(1, tried, worst * len(tuning.factors))
    cells = -(-runs * tuning.count // suite.seeds.count)
    return Sharing(group, cells * suite.seeds.count)


def train_planned(
    config: Config, attacks: Sequence[str], factors: np.ndarray, sharing: Sharing | None = None
) -> list[list[Experiment]]:
    """Train a configuration under each of these attacks, with its step size times each of these factors.

    Args:
        config: the configuration.
        attacks: attacks of a group of `groups_of_attacks`.
        factors: `[G]`.
        sharing: if given, the program depends neither on the step size nor on the seeds or on `attacks`.

    Returns:
        The results: attack -> factor -> experiment.
    """
    all_attacks, at_once = ((), None) if sharing is None else sharing
    steps = [{n: getattr(config, n) * float(f) for n in DATA if getattr(config, n) is not None} for f in factors]
    configs = [replace(config, attack=attack, **step) for attack in attacks for step in steps]
    found = train_together(configs, all_attacks, at_once)
    return [found[i : i + len(steps)] for i in range(0, len(found), len(steps))]
