# %% [markdown]
# # 1. Quickstart
#
# Thirteen agents learn to balance a pole together. Three of them are Byzantine: they collude, and send gradients
# that make the mean of all gradients zero. We train a federation that tolerates this and one that does not, compare
# the two, and watch the learnt policy.

# %%
# %matplotlib inline
import tempfile

from IPython.display import Image

import jaxbyz as jb
from jaxbyz.environments.rendering import save_gif
from jaxbyz.report import heatmaps, plots
from jaxbyz.report.episodes import render_episode
from jaxbyz.report.statistics import final_returns
from jaxbyz.runs.progress import make_progress

jb.prepare()  # use all cores, and keep compiled programs for the next session

# %% [markdown]
# Options decide everything about a run. `jaxbyz train --help` explains them, and a preset supplies those that are
# not given. The whole notebook takes a minute on two Xeon cores.

# %%
options = {"preset": "cartpole", "agents": 13, "byzantine": 3, "attack": "avg-zero", "seeds": 4}
options["trajectories"] = 1000
algorithms = ["decbyzpg", "dec-page-pg"]  # tolerant and naive

folder = tempfile.mkdtemp()
runs = []
for name in algorithms:
    progress = make_progress(options["trajectories"], quiet=False)
    runs.append(jb.run_experiment(algorithm=name, out=f"{folder}/{name}", reporter=progress, **options))

# %% [markdown]
# ## Results
#
# `jaxbyz plot` draws the same pictures, and `jaxbyz report` puts all of them on one page.

# %%
plots.learning_curves(runs, width=50)

# %% [markdown]
# Whom do the honest agents trust? RFA, the geometric median, gives small shares to the Byzantine messages, which are
# far from all others. The mean would give each of them one thirteenth.

# %%
heatmaps.trust(runs[0])

# %% [markdown]
# `metrics` holds arrays of shape `[seeds, iterations]`, under the same names as in the file `metrics.npz` of the run
# folder.

# %%
run = jb.load_run(f"{folder}/decbyzpg")
print("final return of each seed:", final_returns(run.metrics).round(1))
print("distance between honest agents:", run.metrics["diameter"].max())
print(sorted(run.metrics))

# %% [markdown]
# ## The policy
#
# An episode of the learnt policy, as `jaxbyz render DIR` draws it.

# %%
theta = run.policy["last"][0, 0]  # first seed, first agent
episode = render_episode(run.config, theta, seed=1, width=300, max_frames=100)
print(f"return {episode.total_return:.0f} in {episode.steps} steps")
Image(filename=save_gif(episode.frames, f"{folder}/episode.gif"), format="gif")
