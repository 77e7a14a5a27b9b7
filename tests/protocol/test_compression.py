"""Compression of messages: what is decoded, that feedback loses nothing in the long run, and the bytes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxbyz.protocol.delivery import Delivery

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
    delivery = Delivery(compression=compressors[name].build(5, 1))
    forgetful = Delivery(compression=top_k(share=0.1, feedback=False))
    mask, T = np.zeros(5, bool), 30
    gradients = 0.1 * np.random.default_rng(0).normal(size=(T, 5, 8)) + np.array([3.0] + [0.2] * 7)
    gradients = gradients.astype(np.float32)

    def step(mail, inputs):
        arrived, mail = delivery.draw(KEY, mask, mail).collect(inputs, mail)
        return mail, arrived

    @jax.jit
    def run(gradients):
        kept, _ = forgetful.draw(KEY, mask, ()).collect(gradients[0], ())
        return *jax.lax.scan(step, delivery.no_mail(5, 8), gradients), kept

    mail, sent, kept = jax.device_get(run(gradients))
    np.testing.assert_allclose(sent.sum(axis=0), gradients.sum(axis=0) - mail.residual, rtol=1e-4, atol=1e-4)
    assert np.abs(mail.residual).max() < 15.0  # the sums grow to 90
    assert forgetful.no_mail(5, 8) == ()
    assert np.count_nonzero(kept[:, 1:]) == 0


def test_byzantine_messages_are_brought_into_the_format_and_nan_stays_unusable():
    messages = np.array([[1.0, 1.0], [1.0, 1.0], [100.0, 0.0]], np.float32)
    spoiled = np.array([[1.0, 1.0], [1.0, 1.0], [np.nan, np.nan]], np.float32)

    @jax.jit
    def run(messages, spoiled):
        arrivals = Delivery(compression=sign()).draw(KEY, jnp.arange(3) == 2, ())
        receiver = Receiver(messages[0], jnp.int32(0))
        heard, robust = arrivals.heard(mean()), arrivals.heard(median())
        # Rounding depends on the coordinates; parameters are not compressed.
        assert not heard.rotates and arrivals.heard(mean(), gradients=False).rotates
        return heard.apply(KEY, messages, receiver, ()).rows, robust.apply(KEY, spoiled, receiver, ()).rows

    rows, robust_rows = jax.device_get(run(messages, spoiled))
    np.testing.assert_allclose(rows[0], [52 / 3, 52 / 3], rtol=1e-6)  # (100, 0) decodes to (50, 50)
    assert np.isfinite(robust_rows).all()


@pytest.mark.slow
def test_a_federation_learns_from_signs_and_the_bytes_are_counted():
    env, policy = tabular.environment(), tabular.policy()
    page = jb.Page(N=20, B=5, estimator=jb.Estimator(gamma=tabular.GAMMA, horizon=tabular.HORIZON))
    options = {"agents": 5, "byzantine": 1, "attack": "avg-zero", "aggregator": "rfa", "page": page, "p": 1.0}
    found = {}
    for name in ("none", "sign"):
        delivery = Delivery(compression=compressors[name].build(5, 1))
        algorithm = jb.byzpg(env, policy, **options, optimizer=optax.sgd(0.3), delivery=delivery)
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


def test_momentum_is_the_moving_mean_of_the_gradients():
    """Against a loop in NumPy; absent agents keep theirs, and β = 0 is no mail at all."""
    delivery = Delivery(0.6, momentum=0.7)
    assert Delivery(momentum=0.0).no_mail(5, 3) == ()
    gradients = np.random.default_rng(0).normal(size=(12, 5, 3)).astype(np.float32)

    def step(mail, inputs):
        key, messages = inputs
        arrivals = delivery.draw(key, jnp.zeros(5, bool), mail)
        arrived, mail = arrivals.collect(messages, mail)
        return mail, (arrived, arrivals.takes_part)

    run = jax.jit(lambda g: jax.lax.scan(step, delivery.no_mail(5, 3), (jax.random.split(KEY, 12), g))[1])
    arrived, here = jax.device_get(run(gradients))
    momentum = [None] * 5
    for t, k in np.ndindex(12, 5):
        if here[t, k]:
            momentum[k] = gradients[t, k] if momentum[k] is None else 0.7 * momentum[k] + 0.3 * gradients[t, k]
            np.testing.assert_allclose(arrived[t, k], momentum[k], rtol=1e-4, atol=1e-5)
    with pytest.raises(jb.UsageError, match=r"momentum=1.0: must be in \[0, 1\)"):
        jb.resolve(momentum=1.0)
