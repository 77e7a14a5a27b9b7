"""Runs that are trained side by side, because they share a program, and the state of each of them.

Runs of one family differ in numbers and attacks only, which are inputs of its programs. The rows of a batch are the
seeds of all of its members, one member after the other. Every member has its own folder, metrics and checkpoints, which
are those of a run that is trained alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxbyz.components import make_attack
from jaxbyz.configuration.building import ATTACK, family_of, without_numbers
from jaxbyz.configuration.config import Config
from jaxbyz.runs.checkpoints import Checkpoint
from jaxbyz.runs.plan import Plan
from jaxbyz.runs.state_file import to_arrays
from jaxbyz.trained.start_from import start_parameters

MEMORY = "state/attack_memory"  # the path of the adversary's memory in the arrays of a run
Arrays = Mapping[str, np.ndarray]


class Member(NamedTuple):
    """A run, alone or in a batch.

    Attributes:
        plan: what is decided before its first iteration.
        folder: its run folder, or None to write no files.
        start: where it continues, if it does.
    """

    plan: Plan
    folder: Path | None = None
    start: Checkpoint | None = None

    @property
    def config(self) -> Config:
        """Its configuration."""
        return self.plan.config

    @property
    def done(self) -> int:
        """The number of iterations that it starts with."""
        return 0 if self.start is None else self.start.done


class Batch(NamedTuple):
    """Members of one family with the same coins.

    Attributes:
        members: the members.
        attacks: the attacks that the programs have; with a single one, it is that of the family itself.
        rows: the number of runs that a call of the programs trains. Those after the seeds of all members repeat them.
    """

    members: Sequence[Member]
    attacks: tuple[str, ...] = ()
    rows: int | None = None

    @property
    def first(self) -> Plan:
        """The plan of the first member."""
        return self.members[0].plan

    @property
    def slices(self) -> list[slice]:
        """The rows of every member."""
        ends = np.cumsum([member.config.seeds for member in self.members])
        return [slice(end - member.config.seeds, end) for end, member in zip(ends, self.members, strict=True)]

    @property
    def row_at(self) -> np.ndarray:
        """The seed, counted over all members, of every row."""
        seeds = self.slices[-1].stop
        return np.arange(max(seeds, self.rows or 0)) % seeds

    @property
    def keys(self) -> PRNGKeyArray:
        """The random keys of all rows."""
        if len(self.members) == 1 and self.rows is None:
            return self.first.keys
        return jnp.concatenate([member.plan.keys for member in self.members])[self.row_at]

    @property
    def coins(self) -> np.ndarray:
        """The coins `[T]` that all rows share, or `[rows, T]`."""
        if self.first.coins.ndim == 1:
            return self.first.coins
        return np.concatenate([member.plan.coins for member in self.members])[self.row_at]

    def output_at(self, iterations: int) -> np.ndarray:
        """Return T̂ of all rows for a run of this many iterations."""
        return np.concatenate([member.plan.output_at(iterations) for member in self.members])[self.row_at]

    @property
    def numbers(self) -> dict[str, np.ndarray]:
        """The numbers of all rows, by name."""
        own = [member.plan.numbers | self._attack_of(member) for member in self.members]
        rows = np.repeat(np.arange(len(own)), [member.config.seeds for member in self.members])[self.row_at]
        return {
            name: np.array([numbers[name] for numbers in own], np.int32 if name == ATTACK else np.float32)[rows]
            for name in own[0]
        }

    def _attack_of(self, member: Member) -> dict[str, float]:
        return {ATTACK: self.attacks.index(member.config.attack)} if len(self.attacks) > 1 else {}

    def arrays_of(self, number: int, runs: Arrays) -> dict[str, np.ndarray]:
        """Return the state of a member as it is when the member is trained alone, from the arrays of all rows."""
        arrays = {path: values[self.slices[number]] for path, values in runs.items()}
        if len(self.attacks) < 2:
            return arrays
        own = f"{MEMORY}/memories/{self.attacks.index(self.members[number].config.attack)}"
        memory = {MEMORY + path.removeprefix(own): values for path, values in arrays.items() if _is_below(path, own)}
        return {path: values for path, values in arrays.items() if not _is_below(path, MEMORY)} | memory

    def restored(self, fresh: Arrays) -> dict[str, np.ndarray]:
        """Return the arrays of all rows where the members continue. Inverse of `arrays_of`.

        Args:
            fresh: those of runs that begin, from which the memories of attacks that a member does not use are taken.
        """
        arrays = {path: np.array(values) for path, values in fresh.items()}
        for member, rows in zip(self.members, self.slices, strict=True):
            assert member.start is not None
            for path, values in to_arrays(member.start.runs).items():
                if len(self.attacks) > 1 and _is_below(path, MEMORY):
                    own = f"/memories/{self.attacks.index(member.config.attack)}"
                    path = MEMORY + own + path.removeprefix(MEMORY)
                arrays[path][rows] = values
        return {path: values[self.row_at] for path, values in arrays.items()}


def _is_below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(f"{parent}/")


def batches_of(plans: Mapping[Any, Plan], at_once: int | None = None) -> list[tuple[list[Any], int]]:
    """Divide runs, name -> plan, into batches that one program trains side by side, in the order of their first runs.

    Args:
        plans: the plan of each run.
        at_once: the largest number of runs in a batch; None for any.

    Returns:
        The names in each batch, and the number of runs in the largest batch of the same program.
    """
    alike: dict[Any, list[Any]] = {}
    for name, plan in plans.items():
        coins = plan.coins.tobytes() if plan.coins.ndim == 1 else plan.coins.shape
        alike.setdefault((without_numbers(plan.config, "none"), plan.config.seeds, coins), []).append(name)
    batches = []
    for names in alike.values():
        for group in groups_of_attacks([plans[name].config.attack for name in names]):
            members = [name for name in names if plans[name].config.attack in group]
            count = 1 if at_once is None else -(-len(members) // at_once)
            ends = [i * len(members) // count for i in range(count + 1)]  # of equal length, or shorter by one
            batches += [(members[a:b], -(-len(members) // count)) for a, b in itertools.pairwise(ends)]
    order = list(plans)
    return sorted(batches, key=lambda batch: order.index(batch[0][0]))


def make_batch(members: Sequence[Member], rows: int | None = None, attacks: Sequence[str] = ()) -> Batch:
    """Return the batch of members that `batches_of` puts together.

    Args:
        members: the members, all at the same iteration.
        rows: as in `Batch`.
        attacks: the attacks that the programs have, at least those of the members.
    """
    several = tuple(dict.fromkeys([*attacks, *(member.config.attack for member in members)]))
    if len(several) == 1:
        return Batch(members, (), rows)
    families = [family_of(member.config, several, start_parameters) for member in members]
    planned = [m._replace(plan=m.plan._replace(family=family)) for m, family in zip(members, families, strict=True)]
    return Batch(planned, several, rows)


def groups_of_attacks(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Divide attacks into those that share a program, and every other one alone.

    An attack that searches for its messages would slow all others down, and only one of those that interfere in the
    environment can be part of a program.
    """
    shared: list[str] = []
    others: list[tuple[str, ...]] = []
    interferes = False
    for name in dict.fromkeys(names):
        attack = make_attack(name, 4, 1)  # the same for every number of agents
        if attack.searches or (interferes and attack.interfere is not None):
            others.append((name,))
        else:
            shared.append(name)
            interferes |= attack.interfere is not None
    return [tuple(shared), *others] if shared else others
