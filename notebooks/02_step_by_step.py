# %% [markdown]
# # 2. The algorithm, step by step
#
# In one iteration of DecByzPG every agent **estimates** a gradient, Byzantine agents **attack** by sending forged
# messages, every agent **aggregates** what it receives and takes a step, and all **agree** on parameters. Here we do
# each step by hand, on CartPole. Messages have hundreds of entries; we plot them along the two directions in which
# the honest estimates differ most. The notebook takes two minutes on two Xeon cores.

# %%
# %matplotlib inline
import tempfile
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import Image

import jaxbyz as jb
from jaxbyz.report import plots
from jaxbyz.report.agreement_animation import agreement_animation
from jaxbyz.report.agreement_rounds import AgreementTrace, project_to_plane, trace_agreement
from jaxbyz.sampling.page import sampler
from jaxbyz.sampling.scoring import SamplingInputs

jb.prepare()
K, f = 13, 3
mask = jnp.arange(K) >= K - f  # the last three agents are Byzantine

# %% [markdown]
# ## Estimate
#
# With probability p the agents sample a large batch of N trajectories, otherwise a small batch of B trajectories that
# corrects the previous estimate:
#
# $$\tilde v_t = \frac1B\sum_i g(\tau_i\mid\theta_t) + v_{t-1} - \frac1B\sum_i g^{\omega}(\tau_i\mid\theta_{t-1}).$$

# %%
env = jb.make_environment("CartPole-v1")
policy = jb.mlp_policy(env, hidden=(16, 16))
N, B = 50, 4
settings = jb.Sampling(N=N, B=B, baseline="leave-one-out", weight_clip=1.0, horizon=500)
sample = sampler(env, policy, settings)
uncorrected = sampler(env, policy, replace(settings, N=B))  # small batches by themselves

keys = jax.random.split(jax.random.key(0), 5)
theta = jnp.tile(policy.init(keys[0]), (K, 1))  # [K, D], equal for all agents
agent_keys = [jax.random.split(key, K) for key in keys[1:]]
nobody, nothing = jnp.zeros(K, bool), jnp.zeros_like(theta)


def estimates(batch, number, theta, anchor=nothing, previous=nothing):
    """Return the estimates of all agents from one batch each, [K, D]; nobody interferes in its environment."""
    inputs = SamplingInputs(theta, anchor, previous, agent_keys[number], interferes=nobody, environment={})
    return jax.jit(batch)(inputs).sampled.estimate


large = estimates(sample.large, 0, theta)
previous = jnp.tile(large[:10].mean(axis=0), (K, 1))  # v_{t−1} without an attack
after = theta + 1e-3 * previous / jnp.linalg.norm(previous[0])  # θ_t, after a short step
corrected = estimates(sample.small, 1, after, anchor=theta, previous=previous)
small = estimates(uncorrected.large, 2, after)
fresh = estimates(sample.large, 3, after)
truth = fresh.mean(axis=0)  # a good approximation of the gradient


def scatter(axes, points, title, onto=large[:10], **style):
    """Plot points [n, D] along the two directions in which the rows of `onto` differ most."""
    axes.scatter(*project_to_plane(np.asarray(points), np.asarray(onto)).T, **style)
    axes.set_title(title, fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])


drawing, axes = plots.figure(3, width=10, height=3.4, sharex=True, sharey=True)
panels = ((large, f"large batches, N={N}"), (small, f"small batches, B={B}"), (corrected, "small batches, corrected"))
for panel, (points, title) in zip(axes, panels, strict=True):
    scatter(panel, points, title, color=plots.HONEST_COLOUR)
    scatter(panel, truth[None], title, color="black", marker="+", s=120)
drawing

# %% [markdown]
# The cross is the mean of thirteen fresh large batches, a good approximation of the gradient. A small batch by itself
# is a poor estimate. A small batch that corrects the previous estimate, the mean of ten large batches, keeps
# the accuracy of that estimate at a fraction of the trajectories.

# %%
for name, points in (("large", large), ("small", small), ("small, corrected", corrected)):
    print(f"{name:>17}: distance to the gradient {np.linalg.norm(points - truth[None], axis=1).mean():.2f}")

# %% [markdown]
# ## Attack
#
# Byzantine agents see everything and collude. `jb.attack` returns what each receiver gets, `[receiver, sender, D]`.

# %%
names = ["avg-zero", "large-noise:scale=20", "ipm", "alie"]
received = {name: jb.attack(name, keys[3], large, mask, rule="rfa")[0] for name in names}  # by agent 0, [K, D]
drawing, axes = plots.figure(len(names), width=11, height=3.2, sharex=True, sharey=True)
for panel, (name, messages) in zip(axes, received.items(), strict=True):
    scatter(panel, messages[~mask], name, color=plots.HONEST_COLOUR, label="honest")
    scatter(panel, messages[mask], name, color=plots.BYZANTINE_COLOUR, marker="X", s=60, label="Byzantine")
axes[0].legend(fontsize=8)
drawing

# %% [markdown]
# ## Aggregate
#
# Every agent combines the messages that it received into one vector. How far is it from the mean of the honest
# messages?

# %%
rules = ["mean", "trimmed-mean", "krum", "rfa"]
honest = large[~mask].mean(axis=0)
print(" " * 22 + "".join(f"{rule:>14}" for rule in rules))
results = {}
for name, messages in received.items():
    results[name] = [jb.aggregate(rule, keys[2], messages, byzantine=f) for rule in rules]
    errors = [float(jnp.linalg.norm(vector - honest)) for vector in results[name]]
    print(f"{name:<22}" + "".join(f"{error:14.2f}" for error in errors))

drawing, axes = plots.figure(len(names), width=11, height=3.2)
for panel, (name, messages) in zip(axes, received.items(), strict=True):
    scatter(panel, messages[~mask], name, color=plots.HONEST_COLOUR, alpha=0.3)
    for rule, vector, colour in zip(rules, results[name], plots.COLOURS[1:], strict=False):
        scatter(panel, vector[None], name, color=colour, marker="D", label=rule)
axes[0].legend(fontsize=8)
drawing

# %% [markdown]
# ## Agree
#
# If Byzantine agents send different messages to different receivers, the honest agents end up with different
# parameters. κ rounds of averaging agreement bring them together again, even though the Byzantine agents attack every
# round. Here the rule is MDA, the mean of the K − f vectors with the smallest diameter.

# %%
attack = jb.large_noise(scale=0.01)
rows = jb.attack(attack, keys[1], large / jnp.linalg.norm(honest), mask)  # different noise for each receiver
steps = jax.vmap(lambda messages: jb.aggregate("rfa", keys[1], messages, byzantine=f))(rows)
proposed = theta + 1e-2 * steps + 2e-3 * jax.random.normal(keys[2], theta.shape)
agreement = jb.Agreement(jb.mda(f), rounds=4)
held, sent = jax.jit(lambda key: trace_agreement(key, agreement, proposed, mask, attack))(keys[3])
for i, now in enumerate(np.asarray(held)):
    distances = np.linalg.norm(now[: K - f, None] - now[None, : K - f], axis=-1)
    print(f"after {i} rounds: diameter {distances.max():.2e}")

# %%
trace = AgreementTrace(np.asarray(held)[None], np.asarray(sent)[None], np.asarray(mask)[None])
path = agreement_animation(trace, tempfile.mkdtemp() + "/agreement.gif", fps=1.5, size=3.6)
Image(filename=path, format="gif")

# %% [markdown]
# `jaxbyz plot DIR --kind agreement` draws this animation for the first iterations of a run.
