"""Agents that replay each other's trajectories, in the simulation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxbyz as jb
from jaxbyz.algorithms.audits import choose_targets
from jaxbyz.errors import UsageError
from jaxbyz.runs.plan import make_plan
from jaxbyz.sampling import tabular_mdp as tabular

AGENTS, BYZANTINE, ITERATIONS = 6, 2, 12
TASK = {"N": 4, "B": 2, "gamma": tabular.GAMMA, "horizon": tabular.HORIZON, "optimizer": optax.sgd(0.1), "p": 1.0}


def trained(attack: str, audit: float = 0.5, **options):
    """Train the naive federation on the tabular MDP."""
    algorithm = jb.dec_page_pg(
        tabular.environment(), tabular.policy(), agents=AGENTS, byzantine=BYZANTINE, attack=attack, audit=audit,
        **TASK, **options,
    )  # fmt: skip
    return jax.jit(lambda key: jb.train(algorithm, key, ITERATIONS))(jax.random.key(2))


@pytest.mark.parametrize("attack", ["avg-zero", "random-action"])
def test_liars_are_found_out_and_the_mean_of_the_others_is_left(attack):
    result = trained(attack)
    excluded_at = np.asarray(result.run.state.attack_memory.excluded_at)
    assert (excluded_at[:-BYZANTINE] == -1).all() and (excluded_at[-BYZANTINE:] >= 0).all()
    out = excluded_at.max() + 1
    assert out < ITERATIONS, "every liar is found out"
    fair = np.where(np.arange(AGENTS) < AGENTS - BYZANTINE, 1 / (AGENTS - BYZANTINE), 0.0)
    np.testing.assert_allclose(
        result.metrics.shares[out:], np.broadcast_to(fair, (ITERATIONS - out, AGENTS)), rtol=1e-6
    )
    batch = np.asarray(result.metrics.batch)
    assert (batch >= TASK["N"]).all() and (batch > TASK["N"]).mean() > 0.5, "replays are counted"
    assert np.asarray(result.metrics.finite).all() and float(result.metrics.byzantine_weight[-1]) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "found"), [("none", False), ("ipm:on=parameters", False), ("alie", True), ("large-noise", True)]
)
def test_who_sends_the_truth_is_not_found_out(attack, found):
    """Without an agreement, an attack on parameters sends nothing false."""
    result = trained(attack)
    assert (np.asarray(result.run.state.attack_memory.excluded_at) >= 0).any() == found


def test_audits_count_towards_the_budget():
    options = {"agents": 4, "N": 5, "p": 1.0, "trajectories": 100, "horizon": 4, "hidden": (2,)}
    free, audited = (make_plan(jb.resolve(**options, audit=audit)) for audit in (0.0, 0.25))
    assert (free.iterations, audited.iterations) == (20, 16)
    options["trajectories"] = audited.trajectories_after(10)
    assert make_plan(jb.resolve(**options, audit=0.25)).iterations == 10


def test_targets_are_others_that_are_not_excluded():
    excluded = jnp.array([False, True, False, False])
    draw = jax.jit(jax.vmap(lambda key, p: choose_targets(key, excluded, p), (0, None)))
    keys = jax.random.split(jax.random.key(0), 2000)
    always = np.asarray(draw(keys, 1.0))
    assert set(np.unique(always[:, 0])) == {2, 3} and set(np.unique(always[:, 1])) == {4}
    assert abs((always[:, 0] == 2).mean() - 0.5) < 0.05
    sometimes = np.asarray(draw(keys, 0.25))
    assert abs((sometimes[:, 3] < 4).mean() - 0.25) < 0.04


@pytest.mark.parametrize(
    "options", [{"schedule": "rotating"}, {"participation": 0.5}, {"delay": 1}, {"drop": 0.1}, {"local_steps": 2}]
)
def test_what_a_replay_of_one_iteration_cannot_check_is_refused(options):
    (name,) = options
    with pytest.raises(UsageError, match=rf"audit=0.1 with {name}=.*: audits need {name}="):
        jb.resolve(agents=5, byzantine=1, audit=0.1, **options)
    with pytest.raises(UsageError, match="audits need another agreement"):
        jb.resolve(agents=12, byzantine=1, audit=0.1, agreement="committees:size=6,inner=mda")
