"""Messages that are trees of arrays, rules in data-parallel training, and aggregation before an optimizer of optax."""

from __future__ import annotations

import importlib
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxbyz as jb
from jaxbyz.components import make_rule

K, F = 8, 2
KEY = jax.random.key(0)
MATRIX = np.random.default_rng(0).normal(size=(K, 9)).astype(np.float32)
MATRIX[-F:] += 30.0
TREE = {"kernel": MATRIX[:, :6].reshape(K, 2, 3), "bias": [MATRIX[:, 6:8], MATRIX[:, 8]]}


def test_a_tree_is_the_matrix_of_its_leaves():
    """Leaves are put side by side: a rule sees all of a sender's numbers, not one leaf after another."""

    def flat(tree):  # leaves `[…, shape]` in the order of the matrix
        lead = np.ndim(tree["bias"][1])
        return np.concatenate([leaf.reshape(*leaf.shape[:lead], -1) for leaf in (tree["kernel"], *tree["bias"])], -1)

    np.testing.assert_array_equal(flat(TREE), MATRIX)
    as_tree = jb.aggregate("krum", KEY, TREE, byzantine=1)
    assert as_tree["kernel"].shape == (2, 3) and as_tree["bias"][1].shape == ()
    order = np.r_[6:9, 0:6]  # dictionaries are sorted: bias, kernel
    matrix = MATRIX[:, order]
    np.testing.assert_array_equal(flat(as_tree)[order], jb.aggregate("krum", KEY, matrix, byzantine=1))
    agreed = jb.agree("mda", KEY, TREE, byzantine=1, attack="dissensus")
    np.testing.assert_array_equal(flat(agreed)[:, order], jb.agree("mda", KEY, matrix, byzantine=1, attack="dissensus"))
    received = jb.attack("alie", KEY, TREE, np.arange(K) >= K - F)
    assert received["kernel"].shape == (K, K, 2, 3) and received["bias"][1].shape == (K, K)
    np.testing.assert_array_equal(flat(received)[..., order], jb.attack("alie", KEY, matrix, np.arange(K) >= K - F))


def test_leaves_keep_their_program_and_their_type():
    tree = {
        "half": jnp.asarray(MATRIX, jnp.bfloat16),
        "numpy half": MATRIX.astype(ml_dtypes.bfloat16),
        "double": MATRIX.astype(np.float64) + 1e-12,
        "steps": np.full((K,), 2**40 + 1) + np.arange(K),
    }
    result = jb.aggregate("median", KEY, tree, byzantine=F)
    assert {name: (isinstance(leaf, jax.Array), leaf.dtype.name, leaf.shape) for name, leaf in result.items()} == {
        "half": (True, "bfloat16", (9,)),
        "numpy half": (False, "bfloat16", (9,)),
        "double": (False, "float64", (9,)),
        "steps": (False, "int64", ()),
    }
    np.testing.assert_allclose(result["double"], np.median(tree["double"], axis=0), rtol=1e-15)
    assert result["steps"] == np.median(tree["steps"]).round()
    result["double"] += 1.0  # results of NumPy can be written
    half = jb.aggregate("mean", KEY, jnp.full((255, 1), 1.0, jnp.bfloat16).at[0].set(256.0))
    assert half == jnp.asarray(2.0, jnp.bfloat16)  # a sum in bfloat16 would stop growing at 256
    assert jb.aggregate("mean", KEY, [[1, 2], [2, 4]]).tolist() == [1.5, 3.0]
    assert jb.aggregate("mean", KEY, np.array([[1, 2], [2, 5]])).tolist() == [2, 4]  # rounded to even


def test_trees_work_under_jit_and_have_gradients():
    def total(kernel):
        return jb.aggregate("mean", KEY, {"kernel": kernel, "fixed": MATRIX})["kernel"].sum()

    np.testing.assert_allclose(jax.jit(jax.grad(total))(jnp.asarray(MATRIX)), np.full((K, 9), 1 / K), rtol=1e-6)


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        (
            {"a": np.ones((3, 2)), "b": np.ones((4, 2))},
            r"messages\['b'\] has shape \(4, 2\): its first axis must be the 3",
        ),
        ({"a": np.ones((3, 2)), "b": 1.0}, r"messages\['b'\] has shape \(\)"),
        ({}, "messages has no arrays: it must be"),
        (np.ones((3, 0)), r"shape \(3, 0\): it must be \[K, D\]"),
        ([np.ones(4)] * 3, "messages is a list of 3 vectors: .*stack the vectors"),
        ([[1.0, 2.0], [3.0]], "messages is not an array of numbers"),
        ({"a": np.array(["x", "y"])}, r"messages\['a'\] is not an array of numbers"),
        (np.ones((3, 2), complex), "messages has type complex.*: it must have real or whole numbers"),
    ],
)
def test_messages_that_are_no_tree_of_senders_are_refused_in_one_line(messages, told):
    with pytest.raises(jb.UsageError, match=told) as refused:
        jb.aggregate("mean", KEY, messages)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["rfa", "krum", "monna", "centered-clipping", "bucketing+median"])
def test_robust_mean_is_the_rule_on_what_the_shards_hold(name):
    expected = jb.aggregate(name, KEY, TREE, byzantine=1)
    found = jax.vmap(lambda tree: jb.robust_mean(name, "shards", byzantine=1)(tree, KEY), axis_name="shards")(TREE)
    if not make_rule(name, K, 1).personal:
        assert all((np.asarray(leaf) == leaf[:1]).all() for leaf in jax.tree.leaves(found))  # the same on all shards
    jax.tree.map(lambda one, all_of: np.testing.assert_allclose(all_of[0], one, rtol=1e-5), expected, found)


@pytest.mark.parametrize("check", [True, False])
def test_robust_mean_in_shard_map(check):
    """Its result counts as the same on all shards, and gradients that JAX has summed before the rule are refused."""
    mesh, mean = Mesh(jax.devices()[:2], "shards"), jb.robust_mean("rfa", "shards")
    spread = {"mesh": mesh, "out_specs": P(), "check_vma": check}

    def step(parameters, x):
        return mean(jax.grad(lambda parameters: jnp.sum(parameters * x))(parameters))

    alike = jax.jit(jax.shard_map(step, in_specs=(P(), P("shards")), **spread))
    parameters, x = jnp.ones((1, 9)), jnp.asarray(MATRIX[:2])
    if check:
        with pytest.raises(jb.UsageError, match=r"the same on all shards of axis shards.*check_vma=False"):
            alike(parameters, x)
        own = jax.jit(jax.shard_map(step, in_specs=(P("shards"), P("shards")), **spread))
        found = own(jnp.ones((2, 9)), x)
    else:
        found = alike(parameters, x)
    np.testing.assert_allclose(found[0], jb.aggregate("rfa", KEY, x), rtol=1e-5)


def test_robust_mean_asks_for_a_key_if_the_rule_draws():
    with pytest.raises(jb.UsageError, match="key: must be given"):
        jax.vmap(jb.robust_mean("bucketing+rfa", "shards", byzantine=1), axis_name="shards")(TREE)


def test_gradients_are_aggregated_before_the_optimizer():
    """Six of eight workers pull towards their targets, two away from them: a rule follows the six."""
    targets = {"w": jax.random.normal(KEY, (K, 4)) * 0.1 + 1.0, "b": jax.random.normal(KEY, (K,)) * 0.1 - 1.0}
    signs = jnp.where(jnp.arange(K) < K - F, 1.0, -20.0)

    def loss(parameters, wanted, sign):
        gaps = jax.tree.map(lambda own, to: jnp.sum((own - to) ** 2), parameters, wanted)
        return sign * 0.5 * sum(jax.tree.leaves(gaps))

    def trained(rule):
        optimizer = optax.chain(jb.aggregate_gradients(rule, K, byzantine=F), optax.sgd(0.1))

        def step(carry, _):
            parameters, state = carry
            gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(parameters, targets, signs)
            updates, state = optimizer.update(gradients, state, parameters)
            return (optax.apply_updates(parameters, updates), state), None

        start = {"w": jnp.zeros(4), "b": jnp.float32(0)}
        return jax.jit(lambda: jax.lax.scan(step, (start, optimizer.init(start)), length=60)[0])()

    for rule in ("rfa", "bucketing+trimmed-mean", "centered-clipping:radius=0.5"):
        parameters, (state, _) = trained(rule)
        assert abs(parameters["b"] + 1.0) < 0.2 and abs(parameters["w"] - 1.0).max() < 0.2
        assert state.step == 60
    assert jnp.abs(state.rule).max() > 0.0  # centred clipping remembers where it was
    assert abs(trained("mean")[0]["b"]) > 10.0


def test_gradients_of_another_number_of_agents_are_refused():
    transformation = jb.aggregate_gradients("rfa", 5, byzantine=1)
    with pytest.raises(jb.UsageError, match="agents=5"):
        transformation.update(TREE, transformation.init(TREE))
    with pytest.raises(jb.UsageError, match="byzantine=2 of agents=5 exceeds"):
        jb.aggregate_gradients("krum", 5, byzantine=2)


def test_flower_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.delitem(sys.modules, "jaxbyz.flower", raising=False)
    with pytest.raises(jb.UsageError, match=r"pip install 'jaxbyz\[flower\]'"):
        importlib.import_module("jaxbyz.flower")
