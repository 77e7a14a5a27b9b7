# %% [markdown]
# # 2. The algorithm, step by step
#
# One iteration of DecByzPG: every agent **estimates** a gradient, liars **attack** what they send, every agent
# **aggregates** what it received and takes a step, and all **agree** on parameters. Here each step is done by
# hand, on CartPole, and shown in two dimensions: messages have hundreds of entries, and we look at them along
# the two directions in which honest estimates differ most.

# %%
# %matplotlib inline
import os
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import Image

import jaxbyz as jb
from jaxbyz.accelerate.platform import prepare
from jaxbyz.report import plots
from jaxbyz.report.agreement_rounds import AgreementTrace, project_to_plane, trace_agreement
from jaxbyz.sampling.page import sampler

prepare()
QUICK = "JAXBYZ_QUICK" in os.environ  # small numbers, for the tests
K, f = 13, 3
mask = jnp.arange(K) >= K - f  # who lies: the last three

# %% [markdown]
# ## Estimate
#
# The paper's switch: with probability p a large batch of N trajectories, otherwise a small one of B that
# corrects the previous estimate,
#
# $$\tilde v_t = \frac1B\sum_i g(\tau_i\mid\theta_t) + v_{t-1} - \frac1B\sum_i g^{\omega}(\tau_i\mid\theta_{t-1}).$$

# %%
env = jb.make_environment("CartPole-v1")
policy = jb.mlp_policy(env, hidden=(4,) if QUICK else (16, 16))
N, B = (2, 2) if QUICK else (50, 4)
estimator = jb.Estimator(baseline="leave-one-out", clip=1.0, horizon=20 if QUICK else 500)
sample = sampler(env, policy, jb.Page(N=N, B=B, estimator=estimator), None)
alone = sampler(env, policy, jb.Page(N=B, B=B, estimator=estimator), None)  # a small batch that corrects nothing

keys = jax.random.split(jax.random.key(0), 5)
theta = jnp.tile(policy.init(keys[0]), (K, 1))  # all start alike, [K, D]
agents = [jax.random.split(key, K) for key in keys[1:]]
large = jax.jit(sample.large)(theta, agents[0], mask).estimate  # [K, D]
memory = jnp.tile(large[:10].mean(axis=0), (K, 1))  # v_{t−1}, had nobody lied
after = theta + 1e-3 * memory / jnp.linalg.norm(memory[0])  # θ_t, a short step on
corrected = jax.jit(sample.small)(after, theta, memory, agents[1], mask).estimate
small = jax.jit(alone.large)(after, agents[2], mask).estimate
fresh = jax.jit(sample.large)(after, agents[3], mask).estimate
truth = fresh.mean(axis=0)  # as near as K fresh large batches come


def scatter(axes, points, title, onto=large[:10], **style):
    """Points [n, D] along the two directions in which `onto` differs most."""
    axes.scatter(*project_to_plane(np.asarray(points), np.asarray(onto)).T, **style)
    axes.set_title(title, fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])


drawing, axes = plots.figure(3, width=10, height=3.4, sharex=True, sharey=True)
for panel, (points, title) in zip(
    axes, [(large, f"large batches, N={N}"), (small, f"small batches alone, B={B}"), (corrected, "small, corrected")],
    strict=True,
):  # fmt: skip
    scatter(panel, points, title, color=plots.HONEST_COLOUR)
    scatter(panel, truth[None], title, color="black", marker="+", s=120)
drawing

# %% [markdown]
# The cross is the mean of thirteen fresh large batches, as near to the gradient as we come. A small batch alone
# is a poor estimate. Correcting the previous estimate, which is an aggregate of ten agents' large batches, hands
# its accuracy on for a fraction of the trajectories.

# %%
for name, points in (("large", large), ("small alone", small), ("small, corrected", corrected)):
    print(f"{name:>17}: distance to the gradient {np.linalg.norm(points - truth[None], axis=1).mean():.2f}")

# %% [markdown]
# ## Attack
#
# Liars see everything and agree among themselves. `jb.attack` says what each receiver gets, `[receiver, sender,
# D]`.

# %%
names = ["avg-zero", "ipm"] if QUICK else ["avg-zero", "large-noise:scale=20", "ipm", "alie"]
heard = {name: jb.attack(name, keys[3], large, mask, rule="rfa")[0] for name in names}  # by the first agent, [K, D]
drawing, axes = plots.figure(len(names), width=11, height=3.2, sharex=True, sharey=True)
for panel, (name, messages) in zip(axes, heard.items(), strict=True):
    scatter(panel, messages[~mask], name, color=plots.HONEST_COLOUR, label="honest")
    scatter(panel, messages[mask], name, color=plots.BYZANTINE_COLOUR, marker="X", s=60, label="liars")
axes[0].legend(fontsize=8)
drawing

# %% [markdown]
# ## Aggregate
#
# Every agent makes one vector of what it heard. How far is it from what honest agents said on average?

# %%
rules = ["mean", "rfa"] if QUICK else ["mean", "trimmed-mean", "krum", "rfa"]
honest = large[~mask].mean(axis=0)
print(" " * 22 + "".join(f"{rule:>14}" for rule in rules))
results = {}
for name, messages in heard.items():
    results[name] = [jb.aggregate(rule, keys[2], messages, byzantine=f) for rule in rules]
    errors = [float(jnp.linalg.norm(vector - honest)) for vector in results[name]]
    print(f"{name:<22}" + "".join(f"{error:14.2f}" for error in errors))

drawing, axes = plots.figure(len(names), width=11, height=3.2)
for panel, (name, messages) in zip(axes, heard.items(), strict=True):
    scatter(panel, messages[~mask], name, color=plots.HONEST_COLOUR, alpha=0.3)
    for rule, vector, colour in zip(rules, results[name], plots.COLOURS[1:], strict=False):
        scatter(panel, vector[None], name, color=colour, marker="D", label=rule)
axes[0].legend(fontsize=8)
drawing

# %% [markdown]
# ## Agree
#
# Liars that tell each receiver something else leave honest agents with different parameters. κ rounds of
# averaging agreement (here MDA: average the K − f vectors with the least diameter) bring them together again,
# while the liars go on lying.

# %%
attack = jb.large_noise(scale=0.01)
rows = jb.attack(attack, keys[1], large / jnp.linalg.norm(honest), mask)  # each receiver hears its own noise
steps = jax.vmap(lambda messages: jb.aggregate("rfa", keys[1], messages, byzantine=f))(rows)
proposed = theta + 1e-2 * steps + 2e-3 * jax.random.normal(keys[2], theta.shape)
held, sent = jax.jit(lambda key: trace_agreement(key, jb.Agreement(jb.mda(f), 4), proposed, mask, attack))(keys[3])
for i, now in enumerate(np.asarray(held)):
    apart = np.linalg.norm(now[: K - f, None] - now[None, : K - f], axis=-1)
    print(f"after {i} rounds: diameter {apart.max():.2e}")

# %%
trace = AgreementTrace(np.asarray(held)[None], np.asarray(sent)[None], np.asarray(mask)[None])
path = plots.agreement_animation(trace, tempfile.mkdtemp() + "/agreement.gif", fps=1.5, size=3.6)
Image(filename=path, format="gif")

# %% [markdown]
# `jaxbyz plot DIR --kind agreement` draws this for the first iterations of a run of yours.
