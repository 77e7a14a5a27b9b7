"""Options that make no difference are reported, and those that are reported really make none."""

from __future__ import annotations

import jax
import pytest

import jaxbyz as jb
from jaxbyz.cli import main
from jaxbyz.configuration.building import build
from jaxbyz.configuration.config import FIELDS
from jaxbyz.configuration.ineffective import without_effect
from jaxbyz.configuration.resolving import resolve
from jaxbyz.policies.options import NETWORK_OPTIONS
from jaxbyz.registry import Registry

TINY = dict(agents=3, hidden=(2,), N=3, B=2, horizon=4, trajectories=6)
ATTACKED = dict(agents=5, byzantine=1)
GOSSIP = "clipped-gossip:graph=ring,degree=2"
# given options, the option that has no effect, why, and another value of it that must give the same program
CASES = [
    ({"algorithm": "dec-page-pg", "aggregator": "krum"}, "aggregator", "dec-page-pg uses aggregator=mean", "rfa"),
    ({"algorithm": "byzpg", "agreement": "gda"}, "agreement", "byzpg uses agreement=none", "mda"),
    ({"algorithm": "page-pg", "agents": 5}, "agents", "page-pg uses agents=1", 7),
    ({"algorithm": "dec-page-pg", "assumed_byzantine": 2}, "assumed_byzantine", "dec-page-pg does not read it", 3),
    ({"algorithm": "page-pg", "participation": 0.5}, "participation", "page-pg does not read it", 0.7),
    ({"algorithm": "page-pg", "delay": 2}, "delay", "page-pg does not read it", 3),
    ({"algorithm": "page-pg", "drop": 0.1}, "drop", "page-pg does not read it", 0.2),
    ({"algorithm": "page-pg", "compression": "sign"}, "compression", "page-pg does not read it", "int8"),
    ({"algorithm": "page-pg", "local_steps": 2}, "local_steps", "page-pg does not read it", 3),
    ({"algorithm": "page-pg", "momentum": 0.5}, "momentum", "page-pg does not read it", 0.9),
    ({"algorithm": "page-pg", "absent": "cached"}, "absent", "page-pg does not read it", "ignore"),
    ({"algorithm": "byzpg", "audit": 0.5}, "audit", "byzpg does not read it", 0.25),
    ({"algorithm": "page-pg", "audit": 0.5}, "audit", "page-pg does not read it", 0.25),
    ({"small_batches": "workers"}, "small_batches", "decbyzpg does not read it", "server"),
    ({"algorithm": "byzpg", "p": 1, "small_batches": "workers"}, "small_batches", "every batch is large", "server"),
    ({"algorithm": "byzpg", "batch_spread": 2}, "batch_spread", "byzpg does not read it", 1),
    ({"algorithm": "byzpg", "ratio_window": 0.1}, "ratio_window", "byzpg does not read it", 0.2),
    ({"groups": 5}, "groups", "decbyzpg does not read it", 4),
    ({"absent": "cached"}, "absent", "all agents take part", "ignore"),
    ({"agents": 3, "participation": 0.9}, "participation", "rounded up, is all of them", 0.8),
    (
        {"baseline": "critic", "critic_hidden": (2,), "critic_parts": 2, "horizon": 12},
        "critic_parts",
        "are not divided",
        3,
    ),
    ({"algorithm": "page-pg", "arrivals": "adversarial"}, "arrivals", "page-pg does not read it", "random"),
    ({"arrivals": "adversarial"}, "arrivals", "every message arrives at once", "random"),
    ({"attack": "avg-zero"}, "attack", "no agent is Byzantine (--byzantine)", None),
    ({"schedule": "rotating"}, "schedule", "no agent is Byzantine (--byzantine)", None),
    ({**ATTACKED, "attack": "ipm:on=parameters", "agreement": "none"}, "attack", "so nobody attacks", "none"),
    ({**ATTACKED, "attack": "ipm:on=parameters", "algorithm": "byzpg"}, "attack", "so nobody attacks", "none"),
    ({**ATTACKED, "attack": "dissensus", "algorithm": "dec-page-pg"}, "attack", "so nobody attacks", "none"),
    ({"algorithm": "byzpg", "kappa": 3}, "kappa", "do not agree on parameters", 9),
    ({"agreement": "none", "tolerance": 0.1}, "tolerance", "do not agree on parameters", 0.2),
    ({"agreement": "mda:rounds=2", "kappa": "3"}, "kappa", "agreement=mda:rounds=2 names the number", "9"),
    ({"algorithm": "fedpg-br", "p": 0.2}, "p", "fedpg-br does not read it", 0.9),
    ({"algorithm": "svrpg", "p": 0.3}, "p", "svrpg does not read it", 0.9),
    ({"period": 3, "p": 0.3}, "p", "period=3 replaces the coin", 0.9),
    ({"algorithm": "fedpg-br", "period": 3}, "period", "fedpg-br does not read it", 5),
    ({"algorithm": "fedpg-br", "anchor": "proposed"}, "anchor", "its last snapshot", "previous"),
    ({"algorithm": "svrpg", "anchor": "previous"}, "anchor", "its last snapshot", "proposed"),
    ({"baseline_value": 2.0}, "baseline_value", "baseline=leave-one-out", 3.0),
    ({"baseline": "leave-one-out", "N": 1, "B": 1, "p": 0.2}, "baseline", "leave no other one", "none"),
    ({"gae_lambda": 0.5}, "gae_lambda", "baseline=leave-one-out", 0.9),
    ({"advantages": "normalised"}, "advantages", "baseline=leave-one-out", "plain"),
    ({"critic_hidden": (4,)}, "critic_hidden", "baseline=leave-one-out", (5,)),
    ({"critic_eta": 0.1}, "critic_eta", "baseline=leave-one-out", 0.2),
    ({"critic_steps": 2}, "critic_steps", "baseline=leave-one-out", 3),
    ({"critic_parts": 2}, "critic_parts", "baseline=leave-one-out", 3),
    ({"minibatch_of": "steps"}, "minibatch_of", "a batch has one part", "episodes"),
    ({"local_eta": 0.1}, "local_eta", "every batch is used once", 0.3),
    ({"ratio_clip": 0.1}, "ratio_clip", "every batch is used once", 0.3),
    ({"p": 1, "weight_clip": 2.0}, "weight_clip", "every batch is large", None),
    ({"p": 1, "weights": "per-decision"}, "weights", "every batch is large", "trajectory"),
    ({"p": 1, "previous": "own"}, "previous", "every batch is large", None),
    ({"p": 1, "anchor": "proposed"}, "anchor", "every batch is large", None),
    ({"period": 1, "B": 2}, "B", "every batch is large", None),
    ({"algorithm": "res-nharpg", "weights": "per-decision"}, "weights", "has no importance weights", "trajectory"),
    ({"algorithm": "res-nharpg", "weight_clip": 2.0}, "weight_clip", "has no importance weights", 3.0),
    ({"algorithm": "res-nharpg", "previous": "own"}, "previous", "has no importance weights", "aggregated"),
    ({"algorithm": "res-nharpg", "entropy": 0.1}, "entropy", "res-nharpg does not read it", 0.2),
    ({"algorithm": "res-nharpg", "p": 0.5}, "p", "res-nharpg does not read it", 0.9),
    ({"algorithm": "res-nharpg", "seeds": 2, "coin": "own"}, "coin", "the batch sizes are not random", "shared"),
    ({"coin": "own"}, "coin", "there is one seed", "shared"),
    ({"eta_end": None, "decay_over": 4}, "decay_over", "the step size is constant", 2),
    ({"coin": "own", "seeds": 2, "p": 1}, "coin", "the batch sizes are not random", "shared"),
    ({"unsafe": True}, "unsafe", "no limit is exceeded", False),
    ({**ATTACKED, "agreement": GOSSIP}, "agreement", "degree has no effect: graph=ring does not read it", None),
]


@pytest.mark.parametrize(("given", "option", "why", "_"), CASES)
def test_options_without_effect_are_reported(given, option, why, _):
    (line,) = without_effect(resolve(**given), given)
    assert line.startswith(f"{option}={given[option]}") and why in line


@pytest.mark.parametrize(
    "given",
    [
        {
            "aggregator": "nnm+rfa",
            "byzantine": 3,
            "attack": "avg-zero",
            "hidden": (4,),
            "weight_clip": None,
            "kappa": 2,
        },
        {"attack": "none", "schedule": "fixed", "tolerance": None, "unsafe": False, "baseline": "none", "period": None},
        {**ATTACKED, "attack": "ipm:on=parameters", "schedule": "random"},
        {**ATTACKED, "attack": "random-action", "algorithm": "byzpg"},
        {"kappa": "theorem", "period": 3, "p": 0.3},
        {"algorithm": "fedpg-br", "B": 2, "coin": "own", "seeds": 2, "weights": "trajectory"},
        {"baseline": "constant", "baseline_value": 1.0, "estimator": "gpomdp"},
        {"agents": 5, "byzantine": 2, "unsafe": True},
        {"algorithm": "byzpg", "aggregator": "fltrust", "p": 1, "B": 2},
        {**ATTACKED, "agreement": "clipped-gossip:graph=random-regular,degree=2,seed=3"},
    ],
)
def test_options_that_are_read_are_not_reported(given):
    assert without_effect(resolve(**given), given) == []


def program(options: dict) -> str:
    Registry.revision += 1
    algorithm = build(resolve(**options), 2)
    state = jax.eval_shape(algorithm.init, jax.eval_shape(lambda: jax.random.key(0)))
    settings = algorithm.settings
    coins = (settings.p if settings.period is None else None, settings.period)
    return f"{coins} {jax.make_jaxpr(algorithm.step)(state, jax.ShapeDtypeStruct((), bool))}"


@pytest.mark.slow
@pytest.mark.parametrize(("given", "option", "_", "other"), [case for case in CASES if case[3] is not None])
def test_options_without_effect_do_not_change_the_program(given, option, _, other):
    assert program({**TINY, **given}) == program({**TINY, **given, option: other})


def test_every_need_can_be_unmet():
    """Every condition of every option has a case above, so that a new one comes with its test.

    The policies of this package read all options of networks; `tests/policies/test_policies.py` registers one that does
    not.
    """
    for name, field in FIELDS.items():
        for need in field.metadata["needs"] if name not in NETWORK_OPTIONS else ():
            cases = [resolve(**given) for given, option, *_ in CASES if option == name]
            unmet = [config for config in cases if not need.test(config, config.traits)]
            assert unmet, f"{name}: no case in which it is not read because {need.otherwise!r}"


def test_every_way_of_starting_a_run_reports_them(tmp_path, capsys, monkeypatch):
    """The command line prints a line even if it is quiet, Python warns, a sweep says in how many members."""

    def start(config, out=None, reporter=None, **_):
        if reporter is not None:
            with reporter:
                pass

    monkeypatch.setattr("jaxbyz.runs.run.run", start)
    monkeypatch.setattr("jaxbyz.cli.common.run_and_report", lambda arguments, train, *_: train() or 0)
    assert main(["train", "--quiet", "--baseline-value", "3"]) == 0
    assert "jaxbyz: baseline_value=3.0 has no effect: baseline=leave-one-out" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="attack=avg-zero has no effect"):
        jb.run_experiment(attack="avg-zero")
    (tmp_path / "sweep.toml").write_text("[fixed]\np = 1.0\n[grid]\nB = [1, 2]\nalgorithm = ['byzpg', 'svrpg']")
    monkeypatch.setattr("jaxbyz.runs.sweep.ensure", lambda *_, **__: 1 / 0)
    main(["sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert "p=1.0 has no effect: svrpg does not read it (in 2 of 4 members)" in error
    assert "B=1 has no effect: every batch is large (in 1 of 4 members)" in error
