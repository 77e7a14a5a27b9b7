"""Plans of messages over many batches: what they take from a rule, and that the search finds harmful ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbyz.certify import Budget, lost_progress
from jaxbyz.certify.sequences import _lost, _starting_plans
from jaxbyz.cli import main
from jaxbyz.components import make_rule
from jaxbyz.errors import UsageError

K, F, T, D, SIGNAL = 7, 2, 6, 5, 0.5


def lost_by_mean(plan, noise):
    """The same for the mean in NumPy, one message after another."""
    past, difference = np.zeros(D), 0.0
    unit = lambda x: x / (np.linalg.norm(x) or 1.0)  # noqa: E731
    for c, z in zip(plan, noise, strict=True):
        own = z + SIGNAL * np.eye(D)[0]
        mean = own[: K - F].mean(axis=0)
        length = np.median([np.linalg.norm(x) for x in own[: K - F]])
        lies = [
            length * (-c[j, 0] * unit(mean) - c[j, 1] * unit(past) + c[j, 2] * unit(own[K - F + j] - mean))
            for j in range(F)
        ]
        difference += (mean - np.mean([*own[: K - F], *lies], axis=0))[0]
        past = past + mean
    return difference / T / SIGNAL


def test_the_lost_progress_of_the_mean_is_what_its_formula_says():
    rng = np.random.default_rng(0)
    plan, noise = rng.normal(size=(T, F, 3)), rng.normal(size=(T, K, D))
    found = _lost(make_rule("mean", K, F), jnp.asarray(plan), jnp.asarray(noise), F, SIGNAL)
    np.testing.assert_allclose(found, lost_by_mean(plan, noise), rtol=1e-4)


def test_plans_begin_with_what_attackers_do():
    plans = np.asarray(_starting_plans(jax.random.key(0), T, F, 30))
    assert plans.shape == (30, T, F, 3) and len(np.unique(plans, axis=0)) == 30
    assert np.isfinite(plans).all()


@pytest.mark.slow
def test_memory_keeps_progress_that_its_rule_loses():
    rfa, remembering = lost_progress(["rfa", "memory+rfa"], batches=30, budget=Budget(28, 4, 20, 64))
    assert remembering.lost < 0.5 < rfa.lost
    assert rfa.plan.shape == (30, 3, 3)


def test_the_command_line_prints_what_the_search_found(capsys):
    small = ["--batches", "3", "--starts", "4", "--climbers", "1", "--steps", "2", "--dimension", "4"]
    assert main(["certify", "mean", "--agents", "5", "--byzantine", "1", *small]) == 0
    assert "| mean |" in capsys.readouterr().out
    assert main(["certify", *small]) == 2 and "--batches needs the names of rules" in capsys.readouterr().err
    assert main(["certify", "mean", "--batches", "0"]) == 2 and "batches=0" in capsys.readouterr().err
    with pytest.raises(UsageError, match="leave two honest agents"):
        lost_progress(["mean"], agents=4, byzantine=3)
