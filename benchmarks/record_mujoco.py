"""Record gymnasium's MuJoCo tasks; needs `pip install gymnasium==1.4.0 mujoco==3.17.0 imageio` and nothing of jaxbyz.

    python record_mujoco.py steps OUT.npz --steps 80      # single steps from many states, in float64
    python record_mujoco.py episodes OUT.npz --episodes 1000 --policies policies.npz

Single steps start from states and actions that float32 can represent, with the solver's tolerance set to 0, so that the
result is exact. Every second one has gravity, masses, friction and damping multiplied by random factors. Tasks that
seldom reach the limits of their joints are put there in every third and fourth one.
"""

import argparse

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


def actions(kind, space, rng):
    """Yield actions: independent uniform ones, held for several steps, or a smooth random walk."""
    now, rest = rng.uniform(space.low, space.high), 0
    while True:
        if kind == "smooth":
            now = np.clip(0.9 * now + 0.3 * space.high * rng.standard_normal(space.shape), space.low, space.high)
        elif rest == 0:
            now = rng.uniform(space.low, space.high)
            rest = rng.integers(1, 20) if kind == "held" else 1
        rest -= 1
        yield now.astype(np.float32)


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
    """Return returns and lengths of episodes of the random policies, and of a linear one if there is one."""
    env = gymnasium.make(task)
    found = {}
    for kind in ("uniform", "smooth", *(["linear"] if task in policies else [])):
        results = []
        for _ in range(count):
            obs, _ = env.reset(seed=int(rng.integers(2**31)))
            policy, total, length, over = actions(kind, env.action_space, rng), 0.0, 0, False
            while not over:
                action = next(policy) if kind != "linear" else linear_action(policies[task], obs, env.action_space)
                obs, reward, terminated, truncated, _ = env.step(action)
                total, length, over = total + reward, length + 1, terminated or truncated
            results.append((total, length))
        found[kind] = np.array(results)
    return found


def linear_action(weights, obs, space):
    """Return the action of a linear policy, weights `[O + 1, actions]` with the bias in the last row."""
    return np.clip(obs @ weights[:-1] + weights[-1], space.low, space.high).astype(np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["steps", "episodes"])
    parser.add_argument("out")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--policies", help="an .npz file with weights per task")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    arrays = {"versions": np.array([gymnasium.__version__, mujoco.__version__])}
    policies = dict(np.load(given.policies)) if given.policies else {}
    for task in given.tasks:
        if given.what == "steps":
            found = record_steps(task, given.steps, rng)
        else:
            found = record_episodes(task, given.episodes, policies, rng)
        arrays |= {f"{task}/{name}": value for name, value in found.items()}
        print(task, flush=True)
    np.savez_compressed(given.out, **arrays)


if __name__ == "__main__":
    main()
