"""Tensors of torch as messages."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jaxbyz as jb

pytestmark = pytest.mark.live
torch = pytest.importorskip("torch")
KEY = jax.random.key(0)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32", "float64", "int64"])
def test_tensors_come_back_as_tensors(kind):
    values = (torch.arange(35).reshape(5, 7) ** 2 % 31).to(getattr(torch, kind))
    result = jb.aggregate("median", KEY, {"a": values, "b": values[:, 2:4]}, byzantine=1)
    assert all(isinstance(leaf, torch.Tensor) and leaf.dtype == values.dtype for leaf in result.values())
    expected = np.median(values.double().numpy(), axis=0)
    np.testing.assert_array_equal(result["a"].double().numpy(), expected)
    np.testing.assert_array_equal(result["b"].double().numpy(), expected[2:4])


def test_memory_is_shared_and_inputs_may_be_changed_afterwards():
    """Large tensors are read where they are; a computation is over before its caller can change them."""
    values = torch.ones(8, 1_000_000)
    shared = jax.dlpack.from_dlpack(values)
    assert shared.unsafe_buffer_pointer() == values.data_ptr()
    for number in range(5):
        result = jb.aggregate("median", KEY, values, byzantine=2)
        values += 1.0
        assert (result == number + 1.0).all()
    result += 1.0  # results can be written


def test_parameters_strided_tensors_and_mixed_programs():
    layer = torch.nn.Linear(4, 6)
    tree = {"weight": layer.weight, "strided": torch.arange(24.0).reshape(4, 6).T, "numpy": np.ones((6, 2), np.float32)}
    result = jb.agree("mda", KEY, tree, byzantine=1)
    assert not result["weight"].requires_grad and result["strided"].shape == (6, 4)
    assert isinstance(result["numpy"], np.ndarray)
    received = jb.attack("avg-zero", KEY, tree, np.arange(6) >= 5)
    assert received["weight"].shape == (6, 6, 4)
    np.testing.assert_allclose(received["weight"][0].mean(0).numpy(), 0.0, atol=1e-6)
