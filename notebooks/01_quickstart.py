# %% [markdown]
# # 1. Quickstart
#
# Thirteen agents learn to balance a pole together. Three of them lie: they collude, and send gradients that make
# the mean of all gradients zero. We train a federation that tolerates liars and one that does not, look at
# both, and watch the policy.

# %%
# %matplotlib inline
import os
import tempfile

import jax
import jax.numpy as jnp
from IPython.display import Image

import jaxbyz as jb
from jaxbyz.accelerate.platform import prepare
from jaxbyz.cli.progress import make_progress
from jaxbyz.environments.rendering import draw_frames, save_gif
from jaxbyz.experiments import run as experiment
from jaxbyz.report import plots
from jaxbyz.sampling.playback import play

prepare()  # one device a core, and compiled programs kept between sessions

# %% [markdown]
# Everything that decides a run is an option; `jaxbyz train --help` explains each, and a preset chooses where
# unset ones come from. With `JAXBYZ_QUICK` set, as in the tests, this notebook runs with numbers so small that
# nothing is learnt.

# %%
options = {"preset": "cartpole-best", "agents": 13, "byzantine": 3, "attack": "avg-zero", "seeds": 4}
options["trajectories"] = 1000
algorithms = ["decbyzpg", "dec-page-pg"]  # tolerant and naive
if "JAXBYZ_QUICK" in os.environ:
    options = {"agents": 5, "byzantine": 1, "attack": "avg-zero", "seeds": 3, "trajectories": 12}
    options |= {"N": 4, "B": 2, "p": 0.5, "horizon": 20, "hidden": (4,), "kappa": "2"}
    algorithms = ["decbyzpg"]

folder = tempfile.mkdtemp()
runs = []
for name in algorithms:
    progress = make_progress(options["trajectories"], quiet=False)
    runs.append(experiment.run_experiment(algorithm=name, out=f"{folder}/{name}", reporter=progress, **options))

# %% [markdown]
# ## What came of it
#
# The same pictures are drawn by `jaxbyz plot`, and `jaxbyz report` puts all of them on one page.

# %%
plots.learning_curves(runs, width=options["trajectories"] // 20 or 1)

# %% [markdown]
# Whom do honest agents listen to? RFA, the geometric median, gives the liars, far out on the other side, little
# weight; the mean would give each of them one thirteenth.

# %%
plots.trust(runs[0])

# %% [markdown]
# `metrics` holds arrays of shape `[seeds, iterations]`, the same that `metrics.npz` in the run folder has.

# %%
run = jb.load_run(f"{folder}/decbyzpg")
print("final return of each seed:", run.metrics["returns"][:, -5:].mean(axis=1).round(1))
print("distance between honest agents:", run.metrics["diameter"].max())
print(sorted(run.metrics))

# %% [markdown]
# ## Watch it
#
# An episode of the learnt policy (`jaxbyz render DIR` does the same).

# %%
algorithm = jb.build(run.config)
theta = jnp.asarray(run.policy["last"][0, 0])  # first seed, first agent
episode = play(algorithm.environment, algorithm.policy, theta, jax.random.key(1), run.config.horizon)
print(f"return {episode.rewards.sum():.0f} in {len(episode.rewards)} steps")
every = max(1, len(episode.rewards) // 100)
states = jax.tree.map(lambda leaf: leaf[::every], episode.states)
frames = draw_frames(run.config.env, algorithm.environment.params, states, 300, episode.actions[::every])
Image(filename=save_gif(frames, f"{folder}/episode.gif"), format="gif")
