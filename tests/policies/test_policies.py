"""Networks: convolutions are right, flax modules become policies, and named policies train, resume and load."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxbyz as jb
from jaxbyz.accelerate.convolutions import convolve, plain_convolve
from jaxbyz.components import make_policy
from jaxbyz.configuration.ineffective import without_effect
from jaxbyz.policies import policies
from jaxbyz.runs.loop import Interrupted
from jaxbyz.runs.run import resume, run
from jaxbyz.trained.evaluation import evaluate
from tests.helpers import StopAt, assert_same_run

BREAKOUT, CARTPOLE = "Breakout-MinAtar", "CartPole-v1"
KEY = jax.random.key(0)


class Perceptron(nn.Module):
    """Two layers, written batch-first."""

    outputs: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.outputs)(jnp.tanh(nn.Dense(5)(x)))


class Images(nn.Module):
    """MinAtar's network with flax's own convolution, and axes for batches in front."""

    outputs: int

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(3, (3, 3), padding="VALID")(x))
        x = nn.relu(nn.Dense(6)(x.reshape(x.shape[0], -1)))
        return nn.Dense(self.outputs)(x)


def test_small_outputs_differ_from_lecun_in_the_scale_of_the_last_kernel_only():
    environment = jb.make_environment("CartPole-v1")
    small, plain = (jb.mlp_policy(environment, (5,), initialiser=name) for name in ("small-outputs", "lecun"))
    found, expected = (policy.unravel(policy.init(KEY))["params"] for policy in (small, plain))
    expected["Layer_1"]["kernel"] = expected["Layer_1"]["kernel"] / 100
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


@pytest.mark.parametrize(("size", "stride"), [(1, 1), (3, 1), (3, 2), (2, 3)])
def test_a_convolution_is_the_sum_over_its_window(size, stride):
    images = np.random.default_rng(0).normal(size=(4, 8, 7, 5))
    kernel = np.random.default_rng(1).normal(size=(3, size * size * 4))
    h, w = (8 - size) // stride + 1, (7 - size) // stride + 1
    expected = np.empty((3, h, w, 5))
    for row, column in np.ndindex(h, w):
        window = images[:, row * stride : row * stride + size, column * stride : column * stride + size]
        expected[:, row, column] = kernel @ np.moveaxis(window, 0, 2).reshape(-1, 5)
    both = jax.jit(lambda k, x: (convolve(k, x, size, stride), plain_convolve(k, x, size, stride)))
    for result in both(jnp.float32(kernel), jnp.float32(images)):
        np.testing.assert_allclose(result, expected, atol=1e-5)


def test_the_network_for_images_is_the_flax_network():
    """With the same numbers in its kernels; the pixels of a flat observation are in the order row, column, channel."""
    environment = jb.make_environment(BREAKOUT)
    ours = jb.cnn_policy(environment, channels=(3,), hidden=(6,))
    theirs = jb.flax_policy(Images(environment.actions.n), environment)
    assert ours.size == theirs.size
    parameters = jax.jit(lambda key: theirs.unravel(theirs.init(key)))(KEY)
    tree = jax.tree.map(np.asarray, parameters["params"])
    # Our features are channel-first when they are flattened, those of flax channel-last.
    first = tree["Dense_0"]["kernel"].reshape(8, 8, 3, 6).transpose(3, 2, 0, 1).reshape(6, -1)
    conv = {"kernel": tree["Conv_0"]["kernel"].transpose(3, 0, 1, 2).reshape(3, -1), "bias": tree["Conv_0"]["bias"]}
    last = {"kernel": tree["Dense_1"]["kernel"].T, "bias": tree["Dense_1"]["bias"]}
    perceptron = {"Layer_0": {"kernel": first, "bias": tree["Dense_0"]["bias"]}, "Layer_1": last}
    same = {"params": {"Convolution_0": conv, "perceptron": perceptron}}
    assert jax.tree.structure(same) == jax.tree.structure(jax.eval_shape(lambda: ours.unravel(ours.init(KEY))))
    observations = jax.random.normal(KEY, (environment.observation_size, 7))
    expected = jax.jit(theirs.apply)(parameters, observations)
    np.testing.assert_allclose(jax.jit(ours.apply)(same, observations), expected, atol=1e-5)


def test_a_flax_module_sees_observations_in_their_own_shape():
    """The distribution of a lane is that of the module alone on the observation of this lane."""
    environment = jb.make_environment(BREAKOUT)
    module = Images(environment.actions.n)
    policy = jb.flax_policy(module, environment, output_scale=2.0)
    tree = jax.jit(lambda key: policy.unravel(policy.init(key)))(KEY)
    observations = jax.random.normal(KEY, (environment.observation_size, 4))
    logits = jax.jit(module.apply)(tree, observations[:, 2].reshape(1, *environment.observation_shape))
    np.testing.assert_allclose(policy.apply(tree, observations)[:, 2], jax.nn.log_softmax(2.0 * logits[0]), atol=1e-5)
    continuous = jb.make_environment("Pendulum-v1")
    gaussian = jb.flax_policy(Perceptron(1), continuous)
    shape = jax.eval_shape(lambda: gaussian.apply(gaussian.unravel(gaussian.init(KEY)), jnp.ones((3, 2)))).shape
    assert shape == (2, 2)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Perceptron(3), r"returns \[3, 3\] for 3 observations; it must return \[3, 2\]"),
        (Images(2), r"Images fails on observations \[3, 4\] of CartPole-v1"),
        (nn.BatchNorm(use_running_average=True), "variables batch_stats: a policy may have parameters only"),
        (nn.Dropout(0.5, deterministic=True), "Dropout has no parameters"),
        (nn.Dense(2, param_dtype=jnp.float16), "parameters of type float16"),
    ],
)
def test_modules_that_cannot_be_a_policy_are_refused(module, message):
    with pytest.raises(jb.UsageError, match=message):
        jb.flax_policy(module, jb.make_environment(CARTPOLE))


def test_the_default_network_suits_the_observations():
    for name, expected in ((BREAKOUT, "cnn"), (CARTPOLE, "mlp"), ("Catch-bsuite", "mlp")):
        environment = jb.make_environment(name)
        assert make_policy(None, environment).size == make_policy(expected, environment).size
    built = jb.build(jb.resolve(env=BREAKOUT, hidden=(7,), activation="relu")).policy
    assert built.size == jb.cnn_policy(jb.make_environment(BREAKOUT), hidden=(7,)).size  # hidden comes from the options
    named = jb.build(jb.resolve(env=BREAKOUT, policy="cnn:channels=4x2,hidden=5,stride=2", hidden=(7,))).policy
    environment = jb.make_environment(BREAKOUT)
    assert named.size == jb.cnn_policy(environment, channels=(4, 2), hidden=(5,), stride=2).size


@pytest.mark.parametrize(
    ("env", "policy", "message"),
    [
        (CARTPOLE, "cnn", r"observations of CartPole-v1 have the shape \[4\]; it needs images"),
        (BREAKOUT, "cnn:kernel=11", "the image of 10 × 10 is too small"),
        (BREAKOUT, "cnn:channels=4x0", "channels=0: must be at least 1"),
        (BREAKOUT, "cnn:width=4", "cnn: unknown option 'width'; options: channels, kernel"),
        (BREAKOUT, "cnn:environment=4", "cnn: unknown option 'environment'"),
        (CARTPOLE, "mlp:hidden=a", "mlp: hidden='a' is not a list of whole numbers"),
        (CARTPOLE, "nlp", "policy='nlp' is unknown; did you mean 'mlp'"),
    ],
)
def test_wrong_policies_are_refused(env, policy, message):
    with pytest.raises(jb.UsageError, match=message):
        jb.build(jb.resolve(env=env, policy=policy))


def test_a_registered_policy_is_trained_resumed_loaded_and_evaluated(tmp_path, registries_restored):
    def own(environment, width: int = 3, activation: str = "relu"):
        return jb.flax_policy(nn.Sequential([nn.Dense(width), jnp.tanh, nn.Dense(environment.actions.n)]), environment)

    policies.add("own", own, "one hidden layer")
    config = jb.resolve(policy="own:width=4", agents=3, N=4, B=4, p=1.0, horizon=8, trajectories=160, seeds=2)
    assert jb.build(config).policy.size == 4 * 4 + 4 + 4 * 2 + 2
    lines = without_effect(config, {"hidden": (16, 16), "activation": "tanh", "policy": "own:width=4"})
    assert lines == ["hidden=(16, 16) has no effect: policy own:width=4 has no option hidden"]
    whole = run(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(config, tmp_path / "part", StopAt(20))
    assert_same_run(resume(tmp_path / "part"), whole)
    loaded = jb.load_run(tmp_path / "part")
    assert loaded.config.policy == "own:width=4"
    assert evaluate(loaded.config, loaded.policy["last"][:, 0], 2)["returns"].shape == (2, 2)
    policies.add("own", lambda environment: environment)
    with pytest.raises(jb.UsageError, match="unknown option 'width'"):
        jb.build(config)


def test_folders_from_before_there_was_a_choice_hold_perceptrons():
    from jaxbyz.configuration.resolving import from_dict, to_dict

    values = to_dict(jb.resolve(env=BREAKOUT))
    del values["policy"]
    assert from_dict(values).policy == "mlp" and jb.resolve(env=BREAKOUT).policy is None
