"""Rules that remember senders inside the algorithms: batches of several messages, channels, equivocation, a server."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbyz as jb
from jaxbyz.rules import senders_of
from jaxbyz.sampling import tabular_mdp as tabular

PARTS = {
    "agents": 9, "byzantine": 2, "aggregator": "memory+rfa", "N": 4, "B": 4, "p": 1.0, "eta": 0.05,
    "gamma": tabular.GAMMA, "horizon": tabular.HORIZON,
}  # fmt: skip
slow = pytest.mark.slow


def after(iterations, algorithm="decbyzpg", **options):
    """Return the state after some iterations, and the metrics of all of them."""
    built = getattr(jb, algorithm)(tabular.environment(), tabular.policy(), **{**PARTS, **options})
    out = jax.jit(lambda key: jb.train(built, key, iterations))(jax.random.key(0))
    return out.run.state, out.metrics


@pytest.mark.parametrize("options", [
    {"attack": "equivocating-min-max", "drop": 0.1},
    pytest.param({"attack": "sign-flip", "delay": 2}, marks=slow),
    pytest.param({"attack": "sign-flip", "compression": "top-k:share=0.5"}, marks=slow),
    pytest.param({"attack": "large-noise", "participation": 0.7, "absent": "cached"}, marks=slow),
    pytest.param({"attack": "nan"}, marks=slow),
])  # fmt: skip
def test_honest_agents_agree_although_they_judge_for_themselves(options):
    state, metrics = after(20, agreement="trimmed-mean", kappa=12, **options)
    assert np.isfinite(state.parameters).all() and metrics.finite.all()
    assert metrics.diameter[-1] < (0.5 if "absent" in options else 1e-2)  # absent agents hold older parameters
    assert metrics.byzantine_weight[10:].mean() < 2 / 9


def test_a_batch_of_several_messages_is_judged_once():
    """The sum of a batch has all of its messages, and the past only batches that have ended."""
    state, _ = after(1, epochs=3)
    remembered = senders_of(state.rules)
    assert not np.any(remembered.past) and np.all(np.any(remembered.batch, axis=2))
    state, _ = after(2, epochs=3)
    lengths = np.sort(np.linalg.norm(senders_of(state.rules).past[0], axis=1))
    np.testing.assert_allclose(lengths[-3], 1.0, rtol=1e-5)  # one batch, divided by its third longest sum


@slow
def test_a_server_remembers_its_workers():
    state, metrics = after(20, "byzpg", attack="sign-flip")
    assert senders_of(state.rules).trust.shape == (1, 9)
    assert metrics.byzantine_weight[10:].mean() < 2 / 9


@slow
def test_attacks_see_what_the_rule_remembers():
    seen = []

    def forge(key, view, receiver):
        seen.append(view.senders)
        return -view.messages

    after(2, attack=jb.Attack(gradients=forge))
    assert seen and all(senders.trust.shape == (9,) for senders in seen)
    assert jnp.shape(seen[0].past) == (9, tabular.policy().size)
