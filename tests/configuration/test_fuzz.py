"""Random tiny configurations either train with finite honest parameters or are refused in one line."""

from __future__ import annotations

import faulthandler
import inspect
from dataclasses import fields

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from jaxbyz.algorithms import algorithms
from jaxbyz.attacks import attacks
from jaxbyz.configuration.building import build
from jaxbyz.configuration.config import FIELDS, OPTION_GROUPS
from jaxbyz.configuration.presets import PRESETS
from jaxbyz.configuration.resolving import resolve
from jaxbyz.errors import UsageError
from jaxbyz.protocol.agreements import agreements
from jaxbyz.protocol.schedules import schedules
from jaxbyz.rules import aggregators, pre_aggregators
from jaxbyz.runs.run import run as run_config

QUICK = ("CartPole-v1", "Pendulum-v1", "MountainCar-v0", "Catch-bsuite", "DiscountingChain-bsuite", "PointRobot-misc")
EXPECTED_NAN = {"shares", "byzantine_weight"}  # if a rule does not know the shares of its senders


def mostly(sensible: st.SearchStrategy, *strange) -> st.SearchStrategy:
    """Sensible values, and an invalid or extreme one in thirty."""
    return st.integers(0, 29).flatmap(lambda i: st.sampled_from(strange) if i == 29 else sensible)


def sizes(least: int, most: int) -> st.SearchStrategy:
    return mostly(st.integers(least, most), 0, -1, "3", 2.5, None, True)


def numbers(*sensible: float) -> st.SearchStrategy:
    strange = (0.0, -1.0, 1e-30, 1e30, 3.4e38, float("inf"), float("nan"), "0.1", None)
    return mostly(st.sampled_from(sensible), *strange)


def any_of(names) -> st.SearchStrategy:
    return mostly(st.sampled_from(sorted(names)), "", "nothing", 3, None)


def component(registry, *more: str) -> st.SearchStrategy:
    """A component with or without options; names, options and values may be invalid."""

    def spec(entry) -> st.SearchStrategy:
        known = list(inspect.signature(entry.factory).parameters)
        if not known:
            return st.just(entry.name)
        values = st.sampled_from(["0", "1", "2", "-1", "0.5", "1e9", "nan", "inf", "true", "none", "both", "abc", ""])
        one = st.tuples(st.sampled_from(known), values).map(lambda pair: f"{entry.name}:{pair[0]}={pair[1]}")
        return st.integers(0, 3).flatmap(lambda i: one if i == 3 else st.just(entry.name))

    return mostly(st.sampled_from(list(registry)).flatmap(spec), *more, "", "nothing", ":", "mean:=1", "mean:x=1", 7)


REQUIRED = {
    "agents": sizes(1, 6),
    "N": sizes(1, 4),
    "B": sizes(1, 3),
    "horizon": sizes(1, 9),
    "hidden": mostly(st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple), (), (0,), 3, ("a",)),
    "trajectories": sizes(1, 12),
    "seeds": sizes(1, 2),
}
OPTIONAL = {
    **{name: any_of(field.metadata["choices"]) for name, field in FIELDS.items() if field.metadata["choices"]},
    "byzantine": sizes(0, 3),
    "algorithm": any_of(algorithms.names()),
    "attack": component(attacks, "none"),
    "schedule": any_of(schedules.names()),
    "aggregator": component(aggregators),
    "pre_aggregator": component(pre_aggregators, "bucketing+nnm", "nnm+", "+"),
    "agreement": component(agreements, "none"),
    "kappa": mostly(st.sampled_from(["1", "2", 2, "theorem"]), "0", "-1", "x", "", "3.5", "²", "9" * 30),
    "tolerance": st.one_of(st.none(), numbers(1e-3, 0.1)),
    "seed": mostly(st.integers(0, 2**31), 2**32 - 1, 2**32, -1, 2**70),
    "p": numbers(0.2, 0.5, 1.0),
    "period": st.one_of(st.none(), sizes(1, 4)),
    "eta": numbers(1e-3, 0.1),
    "eta_end": st.one_of(st.none(), numbers(1e-4)),
    "decay_over": st.one_of(st.none(), sizes(1, 20)),
    "gamma": numbers(0.9, 0.999),
    "baseline_value": numbers(0.0, 5.0),
    "weight_clip": st.one_of(st.none(), numbers(1.0, 2.0)),
    "clip_norm": st.one_of(st.none(), numbers(1.0)),
    "output_scale": numbers(1.0, 3.0),
    "env_param": mostly(
        st.sampled_from(["", "max_steps_in_episode=7", "scale=true", "hold=2", "clip=true"]), "x", "=", "gravity=nan", 3
    ),
    "env_spread": mostly(st.sampled_from(["", "gravity=0.1"]), "gravity=2", "nothing=0.1", "gravity", 1),
    "env_agents": mostly(st.just(""), "no/such/file.json", 3),
    "assumed_byzantine": st.one_of(st.none(), sizes(0, 3)),
    "participation": numbers(0.5, 0.7, 1.0),
    "delay": sizes(0, 2),
    "drop": numbers(0.0, 0.2),
    "audit": numbers(0.0, 0.2, 1.0),
    "compression": mostly(
        st.sampled_from(["none", "sign", "int8", "top-k:share=0.5"]), "", "nothing", "top-k:share=2", 3
    ),
    "local_steps": sizes(1, 3),
    "groups": sizes(1, 3),
    "batch_spread": sizes(0, 2),
    "ratio_window": st.one_of(st.none(), numbers(0.01)),
    "momentum": numbers(0.0, 0.9),
    "gae_lambda": numbers(0.9, 1.0),
    "critic_hidden": mostly(st.just((2,)), (), (0,), 3),
    "critic_eta": numbers(1e-3),
    "critic_steps": sizes(1, 2),
    "critic_parts": sizes(1, 2),
    "epochs": sizes(1, 2),
    "minibatches": sizes(1, 2),
    "ratio_clip": numbers(0.2),
    "local_eta": st.one_of(st.none(), numbers(0.1)),
    "entropy": numbers(0.0, 0.01),
    "policy": mostly(st.sampled_from([None, "mlp", "cnn"]), "", "nothing", "mlp:x=1", 3),
    "initial_std": numbers(0.5, 1.0),
    "start": mostly(st.sampled_from(["own", "shared"]), "", "from:nowhere", "nothing", 3),
    "unsafe": mostly(st.booleans(), "yes", None),
    "preset": any_of(name for name, (_, values) in PRESETS.items() if values.get("env", "CartPole-v1") in QUICK),
    "env": any_of(QUICK),
}


def configurations(most_options: int = 7) -> st.SearchStrategy:
    """Tiny sizes and a handful of other options at once."""
    chosen = st.lists(st.sampled_from(sorted(OPTIONAL)), max_size=most_options, unique=True)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({**REQUIRED, **{n: OPTIONAL[n] for n in names}}))


def refusal(error: UsageError) -> str:
    text = str(error)
    assert text and "\n" not in text and len(text) < 1500, f"not one line: {text!r}"
    return "refused"


def drafted(options: dict) -> str:
    """Check, build and trace one iteration; return `refused` or `fit`."""
    try:
        algorithm = build(resolve(**options), 5)
        state = jax.eval_shape(algorithm.init, jax.eval_shape(lambda: jax.random.key(0)))
        after, metrics = jax.eval_shape(algorithm.step, state, jax.ShapeDtypeStruct((), bool))
    except UsageError as error:
        return refusal(error)
    shape = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)  # noqa: E731
    assert shape(after) == shape(state) and metrics.returns.shape == ()
    return "fit"


def trained(options: dict) -> str:
    """Train; return `refused`, `trained`, or `stopped`, which only naive or extreme configurations may do."""
    try:
        config = resolve(**options)
        done = run_config(config)
    except UsageError as error:
        return refusal(error)
    if not done.finite:
        naive = config.traits.naive or config.aggregator.startswith("mean") or config.unsafe
        enormous = config.eta > 1 or config.output_scale > 1e3 or abs(config.baseline_value) > 1e3
        assert naive or enormous, f"{options}: honest parameters are not finite"
        return "stopped"
    honest = ~done.metrics["byzantine"][:, -1].astype(bool)
    for name, values in done.policy.items():
        rows = values if values.shape[1] == 1 else values[honest]
        assert np.isfinite(rows).all(), f"{options}: {name} is not finite"
    for name, values in done.metrics.items():
        assert name in EXPECTED_NAN or np.isfinite(values).all(), f"{options}: {name} is not finite"
    return "trained"


def fuzzed(check, examples: int, part: int = 0) -> dict[str, int]:
    counts: dict[str, int] = {}

    @seed(part)
    @settings(
        max_examples=examples, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    @given(configurations())
    def run(options):
        faulthandler.dump_traceback_later(600, exit=True)  # a test that hangs prints a traceback and ends
        outcome = check(options)
        faulthandler.cancel_dump_traceback_later()
        counts[outcome] = counts.get(outcome, 0) + 1

    run()
    print(counts)
    return counts


def test_every_option_is_fuzzed():
    assert set(REQUIRED) | set(OPTIONAL) == set(FIELDS) | {"preset"}


def test_every_option_is_in_one_group_of_the_help_text():
    grouped = [field.name for records in OPTION_GROUPS.values() for record in records for field in fields(record)]
    assert sorted(grouped) == sorted(FIELDS)


def test_a_few_configurations_fit_or_are_refused():
    counts = fuzzed(drafted, 20)
    assert counts["fit"] >= 2 and counts["refused"] >= 2


@pytest.mark.slow
def test_a_thousand_configurations_fit_or_are_refused():
    counts = fuzzed(drafted, 1200)
    assert counts["fit"] >= 200 and counts["refused"] >= 200


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
def test_configurations_train_or_are_refused(part):
    """1120 configurations, in parts that several cores share (`make fuzz`)."""
    counts = fuzzed(trained, 70, part)
    assert counts["trained"] >= 15
