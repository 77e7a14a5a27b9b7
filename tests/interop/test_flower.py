"""The strategy for Flower, on replies that are made here; docs/aggregation.md runs it in Flower's simulation."""

from __future__ import annotations

import numpy as np
import pytest

import jaxbyz as jb

pytestmark = pytest.mark.live
K, F = 10, 3
SENT = {"kernel": np.ones((2, 3), np.float32), "bias": np.zeros(2), "batches": np.array(7)}


@pytest.fixture(scope="module")
def flower():
    pytest.importorskip("flwr")
    from flwr import app
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = (
        1,
        1,
        1,
    )  # as Flower does before it starts a server
    return app


def reply(flower, node, arrays=None, metrics=None, error=None):
    asked = flower.Message(flower.RecordDict(), dst_node_id=node, message_type="train")
    if error is not None:
        return flower.Message(flower.Error(0, error), reply_to=asked)
    record = flower.ArrayRecord({name: flower.Array(np.asarray(values)) for name, values in arrays.items()})
    metric = flower.MetricRecord({"num-examples": 10, "loss": 1.0} if metrics is None else metrics)
    return flower.Message(flower.RecordDict({"arrays": record, "metrics": metric}), reply_to=asked)


def trained(step, seed):
    """What a client sends that has moved by about `step`."""
    noise = np.random.default_rng(seed).normal(scale=0.01, size=9)
    return {
        "kernel": SENT["kernel"] + np.float32(step) + noise[:6].reshape(2, 3).astype(np.float32),
        "bias": SENT["bias"] + step + noise[6:8],
        "batches": SENT["batches"] + 5,
    }


class Nodes:
    def get_node_ids(self):
        return range(1, K + 1)


def aggregated(flower, replies, rule="rfa", f=F, **options):
    """Return the arrays by name after one round, or None, and the metrics."""
    from jaxbyz.flower import RobustStrategy

    strategy = RobustStrategy(rule, f, **options)
    arrays = flower.ArrayRecord({name: flower.Array(values) for name, values in SENT.items()})
    assert len(strategy.configure_train(1, arrays, flower.ConfigRecord(), Nodes())) == K
    record, metrics = strategy.aggregate_train(1, replies)
    return record and {name: array.numpy() for name, array in record.items()}, dict(metrics or {})


def assert_moved(arrays, step, close=0.03):
    np.testing.assert_allclose(arrays["kernel"], SENT["kernel"] + step, atol=close)
    np.testing.assert_allclose(arrays["bias"], SENT["bias"] + step, atol=close)
    assert arrays["batches"] == 12
    assert {name: values.dtype for name, values in arrays.items()} == {name: v.dtype for name, v in SENT.items()}


def test_liars_do_not_move_the_model(flower):
    honest = [reply(flower, node, trained(0.5, node)) for node in range(1, 8)]
    liars = [reply(flower, node, trained(-40.0, node), {"num-examples": 10**12, "loss": 1e30}) for node in (8, 9, 10)]
    for rule in ("rfa", "trimmed-mean", "nnm+median"):
        arrays, metrics = aggregated(flower, honest + liars, rule)
        assert_moved(arrays, 0.5)
        assert metrics == {"loss": 1.0}
    assert aggregated(flower, honest + liars, "mean")[0]["kernel"].max() < -5


def test_replies_that_cannot_be_used_count_as_liars(flower, caplog):
    good, wrong = trained(0.5, 0), {}
    wrong["shape"] = {**good, "kernel": good["kernel"].T}
    wrong["names"] = {"kernel": good["kernel"]}
    wrong["numbers"] = {**good, "bias": np.array([0.0, np.nan])}
    wrong["kind"] = {**good, "bias": np.array(["a", "b"])}
    honest = [reply(flower, node, trained(0.5, node)) for node in range(1, 8)]
    for name, arrays in wrong.items():
        caplog.clear()
        replies = [*honest, reply(flower, 8, arrays), *(reply(flower, node, trained(-40.0, 1)) for node in (9, 10))]
        moved, _ = aggregated(flower, replies, "trimmed-mean")
        assert_moved(moved, 0.5)
        assert "Rejected the reply of node 8" in caplog.text, name
    no_record = flower.Message(flower.RecordDict(), reply_to=flower.Message(flower.RecordDict(), 8, "train"))
    assert_moved(aggregated(flower, [*honest, no_record])[0], 0.5)


def test_absent_clients_leave_the_defence_as_it_is(flower, caplog):
    honest = [reply(flower, node, trained(0.5, node)) for node in range(1, 5)]
    failed = [reply(flower, node, error="out of memory") for node in (5, 6, 7)]
    liars = [reply(flower, node, trained(-40.0, 1)) for node in (8, 9, 10)]
    assert_moved(aggregated(flower, honest + failed + liars, "median")[0], 0.5)  # three of seven
    arrays, metrics = aggregated(flower, honest[:3] + failed + liars, "median")  # three of six are too many
    assert arrays is None and metrics == {"loss": 1.0}
    assert "byzantine=3 of agents=6 exceeds the limit 1/2" in caplog.text
    assert aggregated(flower, failed) == (None, {})


def test_claimed_numbers_of_examples_count_up_to_a_limit(flower):
    counts = [10] * 8 + [40, 10**12]
    replies = [
        reply(flower, node, trained(1.0 if count > 10 else 0.0, node), {"num-examples": count, "loss": 0.0})
        for node, count in enumerate(counts, 1)
    ]
    equal, claimed = (aggregated(flower, replies, "mean", 0, weights=weights)[0] for weights in ("equal", "claimed"))
    np.testing.assert_allclose(equal["bias"], 0.2, atol=0.02)
    np.testing.assert_allclose(claimed["bias"], 0.4, atol=0.02)
    for claim in (0, -5.0, np.inf):
        with_lie = [*replies[:9], reply(flower, 10, trained(9.0, 1), {"num-examples": claim, "loss": 0.0})]
        assert abs(aggregated(flower, with_lie, "mean", 1, weights="claimed")[0]["bias"]).max() < 0.3


def test_evaluation_survives_clients_with_other_metrics(flower):
    from jaxbyz.flower import RobustStrategy

    metrics = [{"num-examples": 1, "accuracy": 0.9}] * 3 + [{"accuracy": np.nan}, {"other": 5.0}]
    found = RobustStrategy("rfa", 1).aggregate_evaluate(1, [reply(flower, n, SENT, m) for n, m in enumerate(metrics)])
    assert dict(found) == {"accuracy": 0.9}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"byzantine": -1}, "byzantine=-1: must be at least 0"),
        ({"weights": "examples"}, "weights='examples' is unknown"),
        ({"largest_weight": 0.5}, "largest_weight=0.5: must be at least 1"),
    ],
)
def test_wrong_options_are_refused(flower, options, told):
    from jaxbyz.flower import RobustStrategy

    with pytest.raises(jb.UsageError, match=told):
        RobustStrategy(**options)
