"""Compression of messages: what is decoded, that feedback loses nothing in the long run, and the bytes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from channel_helpers import begin, channel_of

import jaxbyz as jb
from jaxbyz.protocol.compression import compressors, int8, sign, top_k
from jaxbyz.rules import Receiver, mean, median
from jaxbyz.sampling import tabular_mdp as tabular

KEY = jax.random.key(0)
NAMES = [name for name in compressors.names() if name != "none"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_decoded_decodes_to_itself_and_is_nearer_than_nothing(name):
    """‖x − C(x)‖ < ‖x‖, which error feedback needs; and the same under jit and vmap."""
    compressor = compressors[name].build(5, 1)
    rows = np.random.default_rng(0).normal(size=(20, 37)).astype(np.float32)
    decode_all, decode = jax.jit(jax.vmap(compressor.decoded)), jax.jit(compressor.decoded)
    once = np.asarray(decode_all(rows))
    np.testing.assert_allclose(decode_all(once), once, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(decode(rows[0]), once[0], rtol=1e-5, atol=1e-6)
    assert np.all(np.linalg.norm(rows - once, axis=1) < np.linalg.norm(rows, axis=1))
    assert not np.any(decode(np.zeros(37, np.float32)))
    assert 0 < compressor.size(1000) < 4000


def test_decoded_messages_in_closed_form():
    x = np.array([3.0, -1.0, 0.5, -4.0], np.float32)
    decode_with_each = jax.jit(lambda x: [each.decoded(x) for each in (top_k(share=0.5), sign(), int8())])
    largest, signs, integers = decode_with_each(x)
    np.testing.assert_allclose(largest, [3.0, 0.0, 0.0, -4.0])
    np.testing.assert_allclose(signs, np.array([1, -1, 1, -1]) * 8.5 / 4)
    np.testing.assert_allclose(integers, np.round(x * 127 / 4) * 4 / 127, rtol=1e-6)
    assert [c.size(1000) for c in (top_k(share=0.1), sign(), int8())] == [100 * 8, 125 + 4, 1000 + 4]


@pytest.mark.parametrize("name", NAMES)
def test_feedback_loses_only_the_last_error(name):
    """Σ sent = Σ gradients − last residual, in NumPy; without feedback top-k never sends its small entries."""
    channel, forgetful = channel_of(5, compression=name), channel_of(5, compression="top-k:share=0.1,feedback=false")
    mask, T = np.zeros(5, bool), 30
    gradients = 0.1 * np.random.default_rng(0).normal(size=(T, 5, 8)) + np.array([3.0] + [0.2] * 7)
    gradients = gradients.astype(np.float32)

    def step(memory, inputs):
        arrived, memory = channel.send(begin(channel, KEY, mask), inputs, memory)
        return memory, arrived

    @jax.jit
    def run(gradients):
        kept, _ = forgetful.send(begin(forgetful, KEY, mask), gradients[0], forgetful.init(5, 8))
        return *jax.lax.scan(step, channel.init(5, 8), gradients), kept

    (residual, _), sent, kept = jax.device_get(run(gradients))
    np.testing.assert_allclose(sent.sum(axis=0), gradients.sum(axis=0) - residual, rtol=1e-4, atol=1e-4)
    assert np.abs(residual).max() < 15.0  # the sums grow to 90
    assert forgetful.init(5, 8)[0].size == 0
    assert np.count_nonzero(kept[:, 1:]) == 0


def test_byzantine_messages_are_brought_into_the_format_and_nan_stays_unusable():
    channel = channel_of(3, compression="sign")
    messages = np.array([[1.0, 1.0], [1.0, 1.0], [100.0, 0.0]], np.float32)
    spoiled = np.array([[1.0, 1.0], [1.0, 1.0], [np.nan, np.nan]], np.float32)

    @jax.jit
    def run(messages, spoiled):
        now, memory = begin(channel, KEY, jnp.arange(3) == 2), channel.init(3, 2)
        receiver = Receiver(messages[0], jnp.int32(0))
        heard, robust = (channel.hear_gradients(now, rule, memory) for rule in (mean(), median()))
        # Rounding depends on the coordinates; parameters are not compressed.
        assert not heard.rotates and channel.hear_parameters(now, mean()).rotates
        return heard.apply(KEY, messages, receiver, ()).rows, robust.apply(KEY, spoiled, receiver, ()).rows

    rows, robust_rows = jax.device_get(run(messages, spoiled))
    np.testing.assert_allclose(rows[0], [52 / 3, 52 / 3], rtol=1e-6)  # (100, 0) decodes to (50, 50)
    assert np.isfinite(robust_rows).all()


@pytest.mark.slow
def test_a_federation_learns_from_signs_and_the_bytes_are_counted():
    env, policy = tabular.environment(), tabular.policy()
    options = {"agents": 5, "byzantine": 1, "attack": "avg-zero", "aggregator": "rfa", "p": 1.0}
    options |= {"N": 20, "B": 5, "gamma": tabular.GAMMA, "horizon": tabular.HORIZON}
    found = {}
    for name in ("none", "sign"):
        algorithm = jb.byzpg(env, policy, **options, optimizer=optax.sgd(0.3), compression=name)
        run = jax.jit(lambda key, algorithm=algorithm: jb.train(algorithm, key, 150))(KEY)
        found[name] = float(tabular.value(run.run.state.parameters[0])), float(run.metrics.bytes_sent[0])
    assert found["sign"][0] > 2.3 and found["none"][0] > 2.3
    assert found["none"][1] == 2 * 5 * 6 * 4 and found["sign"][1] == 5 * 6 * 4 + 5 * (1 + 4)


@pytest.mark.parametrize(
    ("compression", "message"),
    [
        ("zip", "compression='zip' is unknown"),
        ("top-k:share=0", "share=0.0: must be in"),
        ("sign:k=3", "unknown option"),
    ],
)
def test_bad_values_end_in_one_line(compression, message):
    with pytest.raises(jb.UsageError, match=message):
        jb.build(jb.resolve(compression=compression))


def test_a_share_is_rounded_up_exactly():
    """0.07 · 100 is a little more than 7 in floating-point arithmetic."""
    assert [top_k(share=share).size(100) // 8 for share in (0.07, 0.29, 0.071)] == [7, 29, 8]
