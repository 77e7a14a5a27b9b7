"""Train configurations that share a program, without run folders, checkpoints and reports of progress."""

from __future__ import annotations

from collections.abc import Sequence

from jaxbyz.configuration.config import Config
from jaxbyz.runs.loop import Experiment, train
from jaxbyz.runs.members import Member, make_batch
from jaxbyz.runs.plan import make_plan
from jaxbyz.runs.settings import RunSettings


def train_together(configs: Sequence[Config], attacks: Sequence[str] = (), rows: int | None = None) -> list[Experiment]:
    """Train configurations that `batches_of` puts into one batch, and return the results of each.

    Args:
        configs: the configurations.
        attacks: the attacks of the program, so that it also serves other calls; at least those of the configurations.
        rows: the number of seeds per call of the program, for the same reason; by default all of them.
    """
    members = [Member(make_plan(config)) for config in configs]
    at_once = len(members) if rows is None else max(1, rows // configs[0].seeds)
    parts = [members[i : i + at_once] for i in range(0, len(members), at_once)]
    return [one for part in parts for one in train(make_batch(part, rows, attacks), RunSettings())]
