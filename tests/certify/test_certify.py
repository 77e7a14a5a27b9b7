"""The certifier breaks and clears the right rules, and its witnesses can be measured again."""

from __future__ import annotations

import argparse
import json
import math

import numpy as np
import pytest

from jaxbyz.certify import Budget, certify, every_rule, format_table, reproduce_witness
from jaxbyz.certify.averaging_agreement import measure_round
from jaxbyz.certify.certificates import rounds_to_halve
from jaxbyz.certify.proved_bounds import contraction_bound, ratio_bound
from jaxbyz.certify.robust_aggregation import error_decay, measure_ratio
from jaxbyz.errors import UsageError
from jaxbyz.rules import aggregators

SMALL = Budget(starts=96, climbers=8, steps=30)


def one(name: str, agents: int = 7, byzantine: int = 1, budget: Budget = SMALL, out=None):
    return certify([name], agents=agents, byzantine=byzantine, budget=budget, out=out)[0]


def test_the_mean_is_broken_with_a_witness(tmp_path) -> None:
    row = one("mean", out=tmp_path)
    assert row.verdict == "broken" and row.reason == "error without bound"
    with np.load(row.witness) as saved:
        messages, mask = saved["messages"], saved["mask"]
    assert mask.sum() <= 1 and messages.shape == (7, 7)
    honest = messages[~mask]
    error = ((messages.mean(0) - honest.mean(0)) ** 2).sum()
    spread = ((honest[:, None] - honest[None]) ** 2).sum() / (len(honest) * (len(honest) - 1))
    assert row.C_ra == pytest.approx(error / spread * 7, rel=1e-6), "C_ra is not Definition 2's"
    assert reproduce_witness(row.witness) == pytest.approx(error / spread, rel=1e-6)


@pytest.mark.slow
def test_plain_krum_is_broken_and_krum_behind_bucketing_cleared() -> None:
    """However small α is, Krum is as far from the mean as a message is; with bucketing the error falls with α."""
    assert error_decay("krum") < 0.1
    assert error_decay("bucketing+krum") > 0.8
    assert one("krum").reason == "error does not vanish with α"


def test_a_rule_that_cannot_be_built_is_refused_and_the_others_are_certified() -> None:
    refused, other = certify(["bulyan", "krum"], agents=8, byzantine=2, budget=Budget(starts=24, climbers=2, steps=3))
    assert refused.verdict == "refused" and "at most 1" in refused.reason
    assert other.verdict == "broken"
    with pytest.raises(UsageError, match="unknown option"):
        one("krum:nothing=1")


@pytest.mark.slow
def test_witnesses_of_random_rules_are_reproduced(tmp_path) -> None:
    """Half of RFA's buckets may be Byzantine here. The keys come from the seed of the search."""
    budget = Budget(starts=24, climbers=2, steps=3)
    row = certify(["bucketing:size=2+rfa"], agents=12, byzantine=3, seed=5, budget=budget, out=tmp_path)[0]
    assert row.reason == "error without bound"
    assert reproduce_witness(row.witness) == pytest.approx(row.C_ra * 3 / 12, rel=1e-6)


@pytest.mark.slow
def test_mda_is_cleared_and_contracts_as_proved() -> None:
    row = one("mda")
    assert row.verdict == "cleared" and row.decay > 0.9
    assert 0 < row.C_ra <= row.C_ra_bound
    row = one("agreement/mda")
    assert row.verdict == "cleared"
    assert 0.3 < row.contraction <= row.contraction_bound == pytest.approx(0.5)
    assert 0.2 < row.C_avg <= row.C_avg_bound == pytest.approx(1 / 3)


@pytest.mark.slow
def test_rules_beyond_their_breakdown_point_are_broken(tmp_path) -> None:
    """MDA with a Byzantine majority, and GDA with a quarter of Byzantine agents."""
    row = one("mda", agents=5, byzantine=3)
    assert row.verdict == "broken" and row.reason == "error without bound"
    row = one("agreement/gda", agents=4, byzantine=1, out=tmp_path)
    assert row.verdict == "broken" and row.contraction > 1
    assert reproduce_witness(row.witness) == pytest.approx(row.contraction, rel=1e-6)
    assert "(f beyond its limit)" in format_table([row])


def test_mda_needs_several_rounds_to_halve() -> None:
    """A round built by hand attains the bound: it leaves 0.9 of the diameter at K=13, f=3, and can be repeated."""
    K, f = 13, 3
    parameters = np.zeros((K, 1))
    mask = np.arange(K) < f
    parameters[f : 2 * f], parameters[2 * f : K - f], parameters[K - f :] = 0.0, 0.5, 1.0
    forged = np.repeat(parameters[None], 2, axis=0)
    forged[0][mask], forged[1][mask] = -0.499999, 1.499999
    witness = {"parameters": parameters, "forged": forged, "mask": mask, "receivers": np.array([f, K - 1])}
    value = measure_round("agreement/mda", K, f, witness, "contraction")
    assert value == pytest.approx(contraction_bound("mda", K, f, 1), abs=1e-5) == pytest.approx(0.9)
    # Agents that are sent nothing usable end up in the middle, so the next round starts from the same arrangement.
    forged[1][mask] = np.inf
    witness["receivers"] = np.array([f, 2 * f])
    assert measure_round("agreement/mda", K, f, witness, "contraction") == pytest.approx(0.45, abs=1e-5)
    assert rounds_to_halve(0.9) == 7 and rounds_to_halve(0.5) == 1 and rounds_to_halve(1.0) == math.inf


def test_bounds_are_the_formulas_of_the_literature() -> None:
    h = 10
    assert ratio_bound("krum", 13, 3) == pytest.approx(6 * (1 + 3 / 7) * (h - 1) / (2 * h))
    assert ratio_bound("nnm+krum", 13, 3) == pytest.approx(2.4 * (6 * (1 + 3 / 7) + 1) * (h - 1) / (2 * h))
    assert ratio_bound("smea", 13, 3) == pytest.approx(4 * 3 / 7 * (h - 1) / (2 * h))
    assert ratio_bound("smea", 50, 10) is None  # not exact there
    assert ratio_bound("bucketing+krum", 13, 3) is None and ratio_bound("krum", 13, 7) is None
    assert contraction_bound("mda", 16, 4, 8) == 1.0 and contraction_bound("gda", 15, 3, 8) == 1.0


def test_inputs_lost_in_rounding_have_ratio_zero() -> None:
    """If all honest messages are equal, the definition says 0 ≤ 0, and the ratio would only measure rounding."""
    messages = np.ones((5, 3)) / 3
    assert measure_ratio("rfa", 5, 1, messages, np.arange(5) == 0) == 0.0


def test_names_cover_every_registered_aggregator() -> None:
    names = every_rule()
    assert set(aggregators.names()) <= set(names)
    assert {"bucketing+krum", "bucketing+rfa", "nnm+krum", "agreement/mda", "agreement/gda"} <= set(names)
    for wrong, match in (("krun", "did you mean"), ("agreement/none", "no rule"), ("bucketin+krum", "bucketing")):
        with pytest.raises(UsageError, match=match):
            certify([wrong], agents=7, byzantine=1, budget=SMALL)
    with pytest.raises(UsageError, match="byzantine=0"):
        certify(["krum"], agents=7, byzantine=0)


def test_the_folder_for_witnesses_is_created_before_the_search(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"out=.*cannot be created"):
        certify(["mean"], out=tmp_path / "file" / "witnesses", log=pytest.fail)


def test_command_prints_json(capsys) -> None:
    from jaxbyz.cli.certify import add_options, run

    parser = argparse.ArgumentParser()
    add_options(parser)
    effort = f"--starts {SMALL.starts} --climbers {SMALL.climbers} --steps {SMALL.steps}"
    assert run(parser.parse_args(f"mean --agents 7 --byzantine 1 {effort} --json".split())) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["rule"] == "mean" and row["verdict"] == "broken" and row["contraction"] is None
    with pytest.raises(UsageError, match="climbers"):
        run(parser.parse_args(["mean", "--starts", "4"]))


@pytest.mark.slow
def test_the_papers_choices_are_cleared_at_full_effort() -> None:
    rows = certify(["bucketing+krum", "bucketing+rfa", "mda", "agreement/mda"], agents=13, byzantine=3)
    rows += certify(["agreement/gda"], agents=13, byzantine=2)
    assert [row.verdict for row in rows] == ["cleared"] * 5
