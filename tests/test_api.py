"""One-call forms on plain arrays are traced once per component, options and shapes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbyz as jb
from jaxbyz.algorithms import algorithms
from jaxbyz.protocol.graphs import metropolis_weights, ring
from jaxbyz.rules import from_function
from jaxbyz.rules.clipped_gossip import clipped_gossip
from jaxbyz.sampling import tabular_mdp as tabular

KEY = jax.random.key(0)
MESSAGES = jax.random.normal(KEY, (7, 4))


def test_a_second_call_is_not_traced_again():
    traces = []

    def average(messages):
        traces.append(messages.shape)
        return messages.mean(axis=0)

    for _ in range(3):
        np.testing.assert_allclose(jb.aggregate(average, KEY, MESSAGES), MESSAGES.mean(axis=0), rtol=1e-6)
    assert traces == [(7, 4)]
    jb.aggregate(average, KEY, MESSAGES[:5])
    assert traces == [(7, 4), (5, 4)]


def test_options_and_later_registrations_are_told_apart(registries_restored):
    loose = jb.aggregate("rfa", KEY, MESSAGES, rounds=1)
    tight = jb.aggregate("rfa", KEY, MESSAGES, rounds=30)
    assert float(jnp.abs(loose - tight).max()) > 1e-4
    for factor in (1.0, 2.0):
        jb.aggregators.add("scaled", lambda factor=factor: from_function(lambda x: factor * x.mean(axis=0)))
        np.testing.assert_allclose(jb.aggregate("scaled", KEY, MESSAGES), factor * MESSAGES.mean(axis=0), rtol=1e-5)


def test_a_rule_that_cannot_be_hashed_works():
    rule = clipped_gossip(metropolis_weights(ring(7)), 0)
    once, again = (jb.agree(rule, KEY, MESSAGES, rounds=2) for _ in range(2))
    np.testing.assert_array_equal(once, again)


@pytest.mark.parametrize("name", [entry.name for entry in algorithms if not entry.factory.traits.naive])
@pytest.mark.parametrize(("byzantine", "assumed"), [(6, 1), (1, 6)])
def test_limits_refer_to_the_larger_of_the_assumed_and_the_real_number(name, byzantine, assumed):
    environment = jb.make_environment("CartPole-v1")
    policy, build = jb.mlp_policy(environment), algorithms[name].factory
    options = dict(agents=13, aggregator="krum", byzantine=byzantine, assumed_byzantine=assumed)
    with pytest.raises(jb.UsageError, match="byzantine=6 of agents=13"):
        build(environment, policy, **options)
    assert build(environment, policy, **options, unsafe=True).settings.defended == assumed
    build(environment, policy, **{**options, "byzantine": 1, "assumed_byzantine": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unsafe": "no"}, "unsafe='no' is not true or false"),
        ({"baseline": 3}, "baseline='3' is unknown"),
        ({"eta": "fast"}, "eta='fast' is not a number"),
        ({"agents": 2.5}, "agents='2.5' is not a whole number"),
        ({"delay": [1]}, "delay='\\[1\\]' is not a whole number"),
        ({"optimiser": "sgd"}, "option='optimiser' is unknown; did you mean 'optimizer'"),
        ({"settings": {"agents": 3}}, "settings=dict: must be `jaxbyz.Settings`"),
        ({"byzantine": 1, "assumed_byzantine": 6, "aggregator": "krum"}, "assumed_byzantine=6 of agents=13 exceeds"),
    ],
)
def test_wrong_values_of_every_type_end_in_one_line(options, message):
    environment, policy = tabular.environment(), tabular.policy()
    with pytest.raises(jb.UsageError, match=message) as refused:
        jb.decbyzpg(environment, policy, **options)
    assert "\n" not in str(refused.value)
