"""Record gymnasium's MuJoCo tasks; needs `pip install gymnasium==1.4.0 mujoco==3.17.0 imageio packaging` alone.

    python record_mujoco.py steps OUT.npz --steps 80      # single steps from many states, in float64
    python record_mujoco.py episodes OUT.npz --episodes 1000 --policies policies.npz
    python record_mujoco.py replay FOLDER --tasks Hopper-v5   # for search_mujoco.py: see `answer_replays`
    python record_mujoco.py trained OUT.npz --episodes 1000 --policies policy.npz   # written by `jaxbyz export`

Single steps start from states and actions that float32 can represent, with the solver's tolerance set to 0, so that the
result is exact. Every second one has gravity, masses, friction and damping multiplied by random factors, and every
third one an action that is twice as large, also beyond its bounds. Tasks that seldom reach the limits of their joints
are put there in every third and fourth one, and links that seldom touch each other are made to touch.
"""

import argparse
import json
import sys
from pathlib import Path

import gymnasium
import mujoco
import numpy as np

TASKS = (
    "InvertedPendulum-v5",
    "InvertedDoublePendulum-v5",
    "Swimmer-v5",
    "Reacher-v5",
    "Hopper-v5",
    "Walker2d-v5",
    "HalfCheetah-v5",
)
SELDOM_AT_LIMITS = {
    "InvertedPendulum-v5": [0, 1],
    "InvertedDoublePendulum-v5": [0],
    "Swimmer-v5": [3, 4],
    "Reacher-v5": [1],
}  # tasks, and the joints that are put there
ACTIVATIONS = {"tanh": np.tanh, "identity": lambda x: x}  # of trained policies


def actions(kind, space, rng):
    """Yield actions: uniform ones, ones beyond the bounds, ones held for several steps, or a smooth random walk."""
    now, rest = rng.uniform(space.low, space.high), 0
    while True:
        if kind == "smooth":
            now = np.clip(0.9 * now + 0.3 * space.high * rng.standard_normal(space.shape), space.low, space.high)
        elif rest == 0:
            now = (2 if kind == "wide" else 1) * rng.uniform(space.low, space.high)
            rest = rng.integers(1, 20) if kind == "held" else 1
        rest -= 1
        yield now.astype(np.float32)


def touching_links(model, data, rng):
    """Return a healthy position of Hopper in which two of its links touch each other."""
    pairs = link_pairs(model)
    while True:
        data.qpos[:3] = 0.0, rng.uniform(1.3, 1.6), rng.uniform(-0.19, 0.19)
        data.qpos[3:] = rng.uniform(model.jnt_range[3:, 0] - 0.1, model.jnt_range[3:, 1] + 0.1)
        mujoco.mj_kinematics(model, data)
        if -0.004 < min(mujoco.mj_geomDistance(model, data, *pair, 1.0, None) for pair in pairs) < 0.002:
            return data.qpos.astype(np.float32)


def link_pairs(model):
    """Return the pairs of links that can touch each other, given by their geometries."""
    links = [geom for geom in range(model.ngeom) if model.geom_bodyid[geom] > 0]
    return [(a, b) for a in links for b in links if a < b and collide(model, a, b)]


def collide(model, a, b):
    """Return whether MuJoCo looks for contacts of two links, given by their geometries."""
    one, two = model.geom_bodyid[a], model.geom_bodyid[b]
    related = one == two or model.body_parentid[one] == two or model.body_parentid[two] == one
    wanted = model.geom_contype[a] & model.geom_conaffinity[b] or model.geom_contype[b] & model.geom_conaffinity[a]
    return bool(wanted) and not related


def scaled(model, original, factors):
    """Multiply the physical constants of a model, as one would at run time."""
    gravity, mass, friction, damping = factors
    model.opt.gravity[:] = gravity * original["gravity"]
    model.body_mass[:] = mass * original["body_mass"]
    model.body_subtreemass[:] = mass * original["body_subtreemass"]
    model.body_inertia[:] = mass * original["body_inertia"]
    model.geom_friction[:] = friction * original["geom_friction"]
    model.dof_damping[:] = damping * original["dof_damping"]


def record_steps(task, count, rng):
    """Visit states of random episodes and record one step from each of `count` of them."""
    env, probe = gymnasium.make(task).unwrapped, gymnasium.make(task).unwrapped
    model = probe.model
    model.opt.tolerance, model.opt.iterations = 0, 200
    names = ("body_mass", "body_subtreemass", "body_inertia", "geom_friction", "dof_damping")
    original = {"gravity": model.opt.gravity.copy(), **{name: getattr(model, name).copy() for name in names}}
    rows = []
    while len(rows) < count:
        env.reset(seed=int(rng.integers(2**31)))
        policy = actions(rng.choice(["uniform", "held", "smooth"]), env.action_space, rng)
        chosen = rng.integers(0, 25)
        for number, action in zip(range(120), policy, strict=False):
            if number == chosen and len(rows) < count:
                factors = np.ones(4, np.float32)
                if len(rows) % 2:
                    factors = rng.uniform(0.5, 1.5, 4).astype(np.float32)
                scaled(model, original, factors)
                qpos, qvel = env.data.qpos.astype(np.float32), env.data.qvel.astype(np.float32)
                if task in SELDOM_AT_LIMITS and len(rows) % 4 >= 2:
                    joint = rng.choice(SELDOM_AT_LIMITS[task])
                    qpos[joint] = rng.choice(model.jnt_range[joint]) + rng.uniform(-0.02, 0.02)
                if task == "Hopper-v5" and len(rows) % 4 == 3:
                    qpos = touching_links(model, probe.data, rng)
                if len(rows) % 3 == 2:
                    action = 2 * action
                probe.reset()
                probe.set_state(qpos.astype(float), qvel.astype(float))
                obs, reward, terminated, *_ = probe.step(action)
                rows.append((qpos, qvel, action, factors, probe.data.qpos.copy(), probe.data.qvel.copy(), obs, reward,
                             terminated, probe.data.nefc))  # fmt: skip
                chosen += rng.integers(1, 25)
            if env.step(action)[2]:
                break
    fields = ["qpos", "qvel", "action", "factors", "next_qpos", "next_qvel", "obs", "reward", "terminated", "rows"]
    return {name: np.stack(column) for name, column in zip(fields, zip(*rows, strict=True), strict=True)}


def record_episodes(task, count, policies, rng):
    """Return returns and lengths of episodes of each policy, `[count, 2]`.

    Args:
        task: its name.
        count: the number of episodes per policy.
        policies: functions by name; each takes the space of actions and returns the policy of one episode, a function
            of the observation.
        rng: draws the seeds of the episodes.
    """
    env = gymnasium.make(task)
    found = {}
    for name, begin in policies.items():
        results = []
        for _ in range(count):
            obs, _ = env.reset(seed=int(rng.integers(2**31)))
            act, total, length, over = begin(env.action_space), 0.0, 0, False
            while not over:
                obs, reward, terminated, truncated, _ = env.step(act(obs))
                total, length, over = total + reward, length + 1, terminated or truncated
            results.append((total, length))
        found[name] = np.array(results)
    return found


def replay(task, sequences, seed):
    """Play sequences of actions from one initial state until the episode ends or the sequence does.

    Returns:
        One row per step, and `closest`, the smallest distance `[n, pairs]` of every pair of links that can touch.
    """
    env = gymnasium.make(task).unwrapped
    model, data = env.model, env.data
    model.opt.tolerance, model.opt.iterations = 0, 12  # all of them are made
    pairs = link_pairs(model)
    rows, closest = [], np.full((len(sequences), len(pairs)), np.inf)
    for number, sequence in enumerate(sequences):
        env.reset(seed=seed)
        for action in sequence:
            before = data.qpos.copy(), data.qvel.copy()
            mujoco.mj_kinematics(model, data)
            distances = [mujoco.mj_geomDistance(model, data, *pair, 1.0, None) for pair in pairs]
            closest[number] = np.minimum(closest[number], distances)
            _, reward, terminated, *_ = env.step(action)
            rows.append((number, *before, action, data.qpos.copy(), data.qvel.copy(), reward, terminated))
            if terminated:
                break
    names = [f"{model.geom(a).name} {model.geom(b).name}" for a, b in pairs]
    fields = ["number", "qpos", "qvel", "action", "next_qpos", "next_qvel", "reward", "terminated"]
    columns = {name: np.stack(column) for name, column in zip(fields, zip(*rows, strict=True), strict=True)}
    return columns | {"closest": closest, "pairs": np.array(names, str)}


def answer_replays(task, folder):
    """Answer each number on standard input, the seed of an initial state.

    The sequences are those of `actions.npy` in the folder; the steps are written to `steps.npz` there.
    """
    for line in sys.stdin:
        np.savez(folder / "steps.npz", **replay(task, np.load(folder / "actions.npy"), int(line)))
        print("done", flush=True)


def random_policy(kind, rng):
    """Return the random policy of `actions` for `record_episodes`."""

    def begin(space):
        drawn = actions(kind, space, rng)
        return lambda obs: next(drawn)

    return begin


def linear_policy(weights):
    """Return a linear policy, weights `[O + 1, actions]` with the bias in the last row."""
    return lambda space: lambda obs: clipped(obs @ weights[:-1] + weights[-1], space)


def trained_policy(file, rng=None):
    """Return a perceptron that `jaxbyz export` has written; with `rng` its actions are drawn.

    Args:
        file: the arrays of the file.
        rng: draws actions; without it they are the most likely ones.
    """
    schema = json.loads(str(file["schema"]))
    parameters = dict(item.split("=") for item in schema["env_param"].split(",") if item)
    options, scales = schema["options"], schema["observation_scales"]
    count = len(options["hidden"]) + 1
    followed = schema["policy"] == "followed"  # it has scales of its own
    part = "policy/" if followed else ""
    layers = [[file[f"{part}net/params/Layer_{i}/{name}"] for name in ("kernel", "bias")] for i in range(count)]
    deviation = np.exp(file[f"{part}log_std"])
    activation, last_activation = (ACTIVATIONS[options[name]] for name in ("activation", "output_activation"))

    def begin(space):
        centre, half_width = (space.high + space.low) / 2, (space.high - space.low) / 2

        def act(obs):
            x = obs
            if scales:
                x = (x - scales["mean"]) / scales["deviation"]
                x = np.clip(x, -scales["largest"], scales["largest"])
            if followed:
                x = np.clip((x - file["mean"]) / file["deviation"], -10, 10)
            for number, (kernel, bias) in enumerate(layers, start=1):
                x = (activation if number < count else last_activation)(kernel @ x + bias)
            action = centre + half_width * options["output_scale"] * x
            if rng is not None:
                action = action + deviation * rng.standard_normal(len(action))
            return clipped(action, space)

        return held(act, int(parameters.get("hold", 1)))

    return begin


def held(act, steps):
    """Return a policy of one episode whose actions are held for so many steps."""
    passed, action = 0, None

    def act_or_hold(obs):
        nonlocal passed, action
        if passed % steps == 0:
            action = act(obs)
        passed += 1
        return action

    return act_or_hold


def clipped(action, space):
    """Return an action within its bounds, as gymnasium expects it."""
    return np.clip(action, space.low, space.high).astype(np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["steps", "episodes", "replay", "trained"])
    parser.add_argument("out")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--policies", help="an .npz file with weights per task, or one trained policy")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    arrays = {"versions": np.array([gymnasium.__version__, mujoco.__version__])}
    policies = dict(np.load(given.policies)) if given.policies else {}
    if given.what == "replay":
        return answer_replays(given.tasks[0], Path(given.out))
    if given.what == "trained":
        given.tasks = [json.loads(str(policies["schema"]))["environment"]]
    for task in given.tasks:
        if given.what == "steps":
            found = record_steps(task, given.steps, rng)
        elif given.what == "episodes":
            chosen = {kind: random_policy(kind, rng) for kind in ("uniform", "wide", "smooth")}
            chosen |= {"linear": linear_policy(policies[task])} if task in policies else {}
            found = record_episodes(task, given.episodes, chosen, rng)
        else:
            chosen = {"most likely": trained_policy(policies), "drawn": trained_policy(policies, rng)}
            found = record_episodes(task, given.episodes, chosen, rng)
        arrays |= {f"{task}/{name}": value for name, value in found.items()}
        print(task, flush=True)
    np.savez_compressed(given.out, **arrays)


if __name__ == "__main__":
    main()
