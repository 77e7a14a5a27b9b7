"""A tree of arrays comes back from a file as it was, or is refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxbyz.errors import UsageError
from jaxbyz.files import write_arrays
from jaxbyz.runs.state_file import DamagedError, below, from_arrays, read_state, to_arrays, under, write_state
from jaxbyz.training.devices import Shape, make_mesh


class Tree(NamedTuple):
    key: Any
    numbers: Any
    others: Any


def make_tree():
    others = {
        "flags": jnp.array([True, False]),
        "count": jnp.int32(2**31 - 1),
        "none": (),
        "no rows": jnp.zeros((0, 3)),
    }
    return Tree(jax.random.split(jax.random.key(3), 2), jnp.array([[1.5, jnp.nan], [-jnp.inf, 1e-45]]), [others])


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for name, values in to_arrays(a).items():
        other = to_arrays(b)[name]
        assert values.dtype == other.dtype
        np.testing.assert_array_equal(values, other, err_msg=name)


def test_a_tree_comes_back_bit_for_bit(tmp_path):
    tree = make_tree()
    arrays = to_arrays(tree)
    assert set(arrays) == {"key", "numbers", "others/0/flags", "others/0/count", "others/0/no rows"}
    write_state(tmp_path / "state.npz", under("tree", arrays), "mine")
    read = below("tree", read_state(tmp_path / "state.npz", "mine"))
    assert_same(from_arrays(read, tree), tree)
    assert_same(from_arrays(read, jax.eval_shape(lambda: tree)), tree)


def test_a_leaf_is_put_on_its_devices():
    sharding = NamedSharding(make_mesh(Shape(2, 1)), PartitionSpec("seeds"))
    tree = make_tree()
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree[:2])
    placed = from_arrays(to_arrays(tree[:2]), like)
    assert placed[1].sharding == sharding and jax.random.key_data(placed[0]).sharding.device_set == sharding.device_set
    assert_same(placed, tree[:2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"numbers": None}, r"numbers is missing; it must be float32\[2, 2\]"),
        ({"numbers": np.zeros((2, 3), np.float32)}, r"numbers is float32\[2, 3\]; it must be float32\[2, 2\]"),
        ({"key": np.zeros((2, 2), np.int32)}, r"key is int32\[2, 2\]; it must be uint32\[2, 2\]"),
    ],
)
def test_other_shapes_and_types_are_refused(changes, message):
    arrays = {name: values for name, values in {**to_arrays(make_tree()), **changes}.items() if values is not None}
    with pytest.raises(DamagedError, match=message):
        from_arrays(arrays, make_tree())


def test_files_of_others_are_refused_in_one_line(tmp_path):
    path = tmp_path / "state.npz"
    write_state(path, {"x": np.arange(3)}, "yours")
    with pytest.raises(UsageError, match="belongs to another configuration") as refusal:
        read_state(path, "mine")
    assert not isinstance(refusal.value, DamagedError)
    write_arrays(path, {"x": np.arange(3)})
    for damaged in (path, tmp_path / "missing.npz"):
        with pytest.raises(DamagedError, match="damaged, or not a stored state") as refusal:
            read_state(damaged, "mine")
        assert len(str(refusal.value).splitlines()) == 1
