"""Measure how closely LunarLander follows Box2D: replays, closed loops on recorded terrain, and distributions.

    python benchmarks/recordings/lunar_lander_fidelity.py RECORDINGS [--episodes 600] [--out FILE]

RECORDINGS is a folder of files made by `record_box2d.py` and named `*_POLICY.npz`. A name must contain `continuous`,
`wind` or `gravity` if the file was recorded with that option. Every file is replayed with the same terrain, force,
actions and draws. For files of the heuristic, our heuristic also flies on the recorded terrain, force and draws. Files
of heuristic, random and noop are also compared with new episodes of the same policy. Results are written as JSON.
"""

import argparse
import json
import pathlib
import platform
import time

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.environments.lunar_lander import environment as lunar_lander
from jaxbyz.environments.lunar_lander import pilot as heuristic

HORIZON = 1000


def params_of(name):
    """Return the parameters that a file's name implies."""
    return lunar_lander.EnvParams(enable_wind="wind" in name, gravity=-7.0 if "gravity" in name else -10.0)


def reset_as_recorded(params, data):
    """Return observations and states after a reset with recorded terrain, force and wind."""
    wind = data.get("wind", np.zeros((len(data["force"]), 2), np.int32))
    state = jax.vmap(lambda h, f, w: lunar_lander.initial_state(params, h, f, w[0], w[1]))(
        jnp.asarray(data["heights"], jnp.float32), jnp.asarray(data["force"], jnp.float32), jnp.asarray(wind, jnp.int32)
    )
    return jax.vmap(lambda s: lunar_lander.observe(params, s))(state), state


def fly(params, obs, state, choose, draws):
    """Run episodes to the horizon with actions choose(obs `[E, 8]`, t) and draws `[E, T, 2]`."""

    def step(carry, inputs):
        obs, state = carry
        t, draw = inputs
        before = state.over
        obs, state, reward, over = jax.vmap(lambda s, a, d: lunar_lander.transition(params, s, a, d))(
            state, choose(obs, t), draw
        )
        return (obs, state), (obs, reward, over, before, state.world.asleep)

    steps = draws.shape[1]
    (_, _), out = jax.lax.scan(step, (obs, state), (jnp.arange(steps), jnp.asarray(draws).swapaxes(0, 1)))
    return out


def summary(out):
    """Summarise every episode by return, length and outcome."""
    obs, reward, over, before, asleep = (np.asarray(x) for x in out)
    length = (~before).sum(axis=0)
    last = obs[length - 1, np.arange(len(length))]
    ended = over[-1]
    outcome = np.where(~ended, 3, np.where(asleep[-1], 0, np.where(np.abs(last[:, 0]) >= 1, 2, 1)))
    return {"return": reward.sum(axis=0), "length": length, "outcome": outcome}


def replay(params, data):
    """Replay recorded episodes: errors at reset and before the first contact, and agreement of outcome and return."""
    obs, state = reset_as_recorded(params, data)
    actions = jnp.asarray(data["action"])
    actions = actions.astype(jnp.float32 if actions.ndim == 3 else jnp.int32).swapaxes(0, 1)
    run = jax.jit(lambda o, s: fly(params, o, s, lambda _, t: actions[t], data["draws"].astype(np.float32)))
    begin = time.perf_counter()
    program = run.lower(obs, state).compile()
    compiled = time.perf_counter() - begin
    out = program(obs, state)
    ours = np.concatenate([np.asarray(obs)[:, None], np.asarray(out[0]).swapaxes(0, 1)], axis=1)
    error = np.abs(ours - data["obs"]).max(axis=2)
    touched = np.cumsum(data["obs"][:, :, 6:].max(axis=2), axis=1) > 0
    flying = ~touched & (np.arange(error.shape[1]) < data["length"][:, None])
    flight = np.where(flying, error, 0).max(axis=1)
    got, returns = summary(out), data["reward"].sum(axis=1)
    alive = np.arange(data["reward"].shape[1])[None] < data["length"][:, None]
    our_returns = np.where(alive, np.asarray(out[1]).T, 0).sum(axis=1)
    return {
        "episodes": len(returns),
        "compile_seconds": round(compiled, 1),
        "reset_error": float(error[:, 0].max()),
        "flight_error_median": float(np.median(flight)),
        "flight_error_worst": float(flight.max()),
        "same_outcome": float((got["outcome"] == data["outcome"]).mean()),
        "return_difference_median": float(np.median(np.abs(our_returns - returns))),
    }


def closed_loop(params, data, seed=0):
    """Fly the heuristic on recorded terrain, force and draws; draws after a recorded end are new."""
    obs, state = reset_as_recorded(params, data)
    episodes, steps = data["draws"].shape[:2]
    draws = np.random.default_rng(seed).uniform(-1, 1, (episodes, HORIZON, 2)).astype(np.float32)
    known = np.arange(steps)[None] < data["length"][:, None]
    draws[:, :steps][known] = data["draws"][known]
    out = jax.jit(lambda o, s: fly(params, o, s, lambda o, _: jax.vmap(pilot_for(data))(o), draws))(obs, state)
    got, returns = summary(out), data["reward"].sum(axis=1)
    return {
        "episodes": episodes,
        "same_outcome": float((got["outcome"] == data["outcome"]).mean()),
        "return_difference_median": float(np.median(np.abs(got["return"] - returns))),
        "mean_return": [float(got["return"].mean()), float(returns.mean())],
    }


def pilot_for(data):
    return heuristic.continuous_pilot if data["action"].ndim == 3 else heuristic.pilot


def new_episodes(params, policy, episodes, seed, continuous):
    """Run new episodes of a policy, with all random numbers drawn by JAX."""
    env = lunar_lander.LunarLanderContinuous() if continuous else lunar_lander.LunarLander()
    reset_key, draw_key, action_key = jax.random.split(jax.random.key(seed), 3)
    obs, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(reset_key, episodes), params)

    def choose(obs, t):
        if policy == "heuristic":
            return jax.vmap(heuristic.continuous_pilot if continuous else heuristic.pilot)(obs)
        if policy == "noop":
            return jnp.zeros((episodes, 2)) if continuous else jnp.zeros(episodes, jnp.int32)
        key = jax.random.fold_in(action_key, t)
        shape = (episodes, 2) if continuous else (episodes,)
        return (
            jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)
            if continuous
            else jax.random.randint(key, shape, 0, 4)
        )

    draws = jax.random.uniform(draw_key, (episodes, HORIZON, 2), minval=-1.0, maxval=1.0)
    return summary(jax.jit(lambda o, s: fly(params, o, s, choose, draws))(obs, state))


def describe(episodes):
    """Return statistics of a set of episodes."""
    returns, length, outcome = (np.asarray(episodes[k], float) for k in ("return", "length", "outcome"))
    count = len(returns)
    return {
        "episodes": count,
        "return": float(returns.mean()),
        "return_se": float(returns.std(ddof=1) / count**0.5),
        "quartiles": np.percentile(returns, [25, 50, 75]).round(2).tolist(),
        "length": float(length.mean()),
        "length_se": float(length.std(ddof=1) / count**0.5),
        "landed": float((outcome == 0).mean()),
        "crashed": float((outcome == 1).mean()),
        "unfinished": float((outcome == 3).mean()),
    }


def compare(ours, theirs):
    """Return both statistics and their differences in units of the combined standard error."""
    z = {
        f"{key}_z": (ours[key] - theirs[key]) / max(1e-9, (ours[f"{key}_se"] ** 2 + theirs[f"{key}_se"] ** 2) ** 0.5)
        for key in ("return", "length")
    }
    return {"jaxbyz": ours, "box2d": theirs, **{k: round(v, 2) for k, v in z.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recordings", type=pathlib.Path)
    parser.add_argument("--episodes", type=int, default=600)
    parser.add_argument("--only", default="", help="only files whose name contains this")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results/lunar_lander_fidelity.json")
    )
    given = parser.parse_args()
    report = {"jax": jax.__version__, "machine": platform.machine(), "python": platform.python_version()}
    for path in sorted(p for p in given.recordings.glob("*.npz") if given.only in p.name):
        data = dict(np.load(path))
        name, policy, params = path.stem, path.stem.split("_")[-1], params_of(path.stem)
        report[name] = {"replay": replay(params, data)}
        if policy == "heuristic":
            report[name]["paired"] = closed_loop(params, data)
        if policy in ("heuristic", "random", "noop"):
            theirs = {"return": data["reward"].sum(axis=1), "length": data["length"], "outcome": data["outcome"]}
            ours = new_episodes(params, policy, given.episodes, 1, data["action"].ndim == 3)
            report[name]["fresh"] = compare(describe(ours), describe(theirs))
        print(name, json.dumps(report[name], indent=1), flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
