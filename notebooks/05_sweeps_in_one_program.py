# %% [markdown]
# # 5. Sweeps in one compiled program
#
# A run is a pure function of a key. A sweep over seeds is therefore a `vmap`, and so is a sweep over any continuous
# quantity, such as a step size or the strength of an attack. Attacks and rules are different programs, but one
# `jit` can compile all of them together. The notebook takes three minutes on two Xeon cores.

# %%
# %matplotlib inline
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxbyz as jb
from jaxbyz.report import plots

jb.prepare()
K, f, T = 13, 3, 40
env = jb.make_environment("CartPole-v1")
policy = jb.mlp_policy(env, hidden=(16, 16), output_scale=3.0)
N = 8
settings = jb.Settings(
    agents=K, byzantine=f, agreement="mda:rounds=2", p=1.0, N=N, B=N, baseline="leave-one-out",
    horizon=500,
)  # fmt: skip
coins = jnp.ones(T, bool)  # p = 1: every batch is large


def returns(key, attack, rule, eta):
    """Return the honest return of every iteration of one run, [T]."""
    algorithm = jb.decbyzpg(env, policy, settings, attack=attack, aggregator=rule, optimizer=optax.adam(eta))
    return jb.train(algorithm, key, T, coins).metrics.returns


# %% [markdown]
# ## Seeds × strength of the attack × step size
#
# Three nested `vmap`s. `scale` and `eta` are arrays, so the program does not depend on their values.

# %%
keys = jax.random.split(jax.random.key(0), 4)
scales = jnp.array([0.1, 10.0, 1000.0])
etas = jnp.array([1e-3, 1e-2, 3e-2])


def one(scale, eta, key):
    return returns(key, jb.large_noise(scale), jb.rfa(), eta)


over_seeds = jax.vmap(one, (None, None, 0))
over_steps = jax.vmap(over_seeds, (None, 0, None))
sweep = jax.jit(jax.vmap(over_steps, (0, None, None)))

started = time.monotonic()
compiled = sweep.lower(scales, etas, keys).compile()
print(f"compiled in {time.monotonic() - started:.1f} s")
started = time.monotonic()
curves = np.asarray(compiled(scales, etas, keys))  # [scales, etas, seeds, T]
print(f"{curves[..., 0].size} runs of {T} iterations in {time.monotonic() - started:.1f} s")

# %%
drawing, axes = plots.figure(len(scales), width=10, height=3.2, sharey=True, squeeze=False)
for panel, scale, rows in zip(axes[0], scales, curves, strict=True):
    for eta, seeds in zip(etas, rows, strict=True):
        plots.draw_curve(panel, N * (1 + np.arange(T)), seeds, f"η = {eta:g}")
    panel.set_title(f"noise of scale {scale:g}", fontsize=10)
    panel.set_xlabel("trajectories per agent")
axes[0, 0].set_ylabel("return of honest agents")
plots.legend_below(drawing, len(etas))
drawing

# %% [markdown]
# The scale of the noise does not matter to RFA.
#
# ## Seeds × attacks × rules
#
# Attacks and rules differ in what they compute. A dictionary of runs inside one `jit` is still one program, which is
# compiled and started once.

# %%
attacks = {"avg-zero": jb.avg_zero(), "large-noise": jb.large_noise()}
rules = {"mean": jb.mean(), "krum": jb.krum(f), "rfa": jb.rfa()}


@jax.jit
def table(keys):
    return {
        (attack, rule): jax.vmap(lambda key, a=attack, r=rule: returns(key, attacks[a], rules[r], 1e-2))(keys)
        for attack in attacks
        for rule in rules
    }


started = time.monotonic()
results = {pair: np.asarray(curves) for pair, curves in table(keys).items()}
print(f"{len(results) * len(keys)} runs in {time.monotonic() - started:.1f} s, compilation included")
print(" " * 12 + "".join(f"{rule:>10}" for rule in rules))
for attack in attacks:
    print(f"{attack:<12}" + "".join(f"{results[attack, rule][:, -5:].mean():10.1f}" for rule in rules))

# %% [markdown]
# For sweeps that take hours, `jaxbyz sweep` reads a grid of options from a TOML file, writes one folder per
# combination, and continues after an interruption.
