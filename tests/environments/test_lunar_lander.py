"""LunarLander: replays of episodes recorded from Box2D, rules of the game, and behaviour under JAX's transforms."""

import functools
import os
import pathlib
import subprocess

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces
from jax.sharding import Mesh, PartitionSpec

from jaxbyz.accelerate.lane_steps import update_lanes
from jaxbyz.accelerate.platform import trace_for
from jaxbyz.accelerate.trigonometry import cos_sin
from jaxbyz.environments import make_environment, rendering
from jaxbyz.environments.lunar_lander import environment as lunar_lander
from jaxbyz.environments.lunar_lander import physics
from jaxbyz.environments.lunar_lander import pilot as heuristic
from jaxbyz.environments.lunar_lander.engines import thrust
from jaxbyz.policies import mlp_policy
from jaxbyz.sampling.rollout import collect

DATA = pathlib.Path(__file__).parents[1] / "data"
LANDED, CRASHED, OUT = 0, 1, 2
KINDS = {"heights": np.float32, "force": np.float32, "wind": np.int32}
DISCRETE = ("heuristic", "random", "noop", "lateral", "wind")


def recorded(names):
    """Load the episodes of several files, padded to the longest; `name` tells which file each one is from."""
    files = [dict(np.load(DATA / f"lunar_lander_{name}.npz")) for name in names]
    steps = max(data["reward"].shape[1] for data in files)

    def join(key, length):
        parts = []
        for data in files:
            short = data[key]
            grow = [(0, 0)] * short.ndim
            grow[1] = (0, length - short.shape[1])
            parts.append(np.pad(short, grow))
        return np.concatenate(parts)

    whole = {key: np.concatenate([data[key] for data in files]) for key in ("heights", "force", "wind", "outcome")}
    whole["length"] = np.concatenate([data["length"] for data in files])
    whole |= {key: join(key, steps) for key in ("action", "draws", "reward")} | {"obs": join("obs", steps + 1)}
    whole["name"] = np.concatenate([[name] * len(data["length"]) for name, data in zip(names, files, strict=True)])
    return whole


def initial_states(data, params):
    """Return initial states and observations; every lane has its own parameters."""

    @jax.jit
    @jax.vmap
    def start(params, heights, force, wind):
        state = lunar_lander.initial_state(params, heights, force, wind[0], wind[1])
        return state, lunar_lander.observe(params, state)

    return start(params, *(data[key].astype(kind) for key, kind in KINDS.items()))


def parameters(data):
    """Return environment parameters with one entry per episode."""
    lanes = len(data["length"])
    return lunar_lander.EnvParams(
        gravity=np.full(lanes, -10.0, np.float32),
        enable_wind=data["name"] == "wind",
        wind_power=np.full(lanes, 15.0, np.float32),
        turbulence_power=np.full(lanes, 1.5, np.float32),
        max_steps_in_episode=np.full(lanes, 1000),
    )


@jax.jit
def replayed(params, state, actions, draws):
    """Replay actions `[T, E]` with draws `[T, E, 2]`; return observations, rewards, ends and worlds, time first."""

    def step(state, inputs):
        obs, state, reward, over = jax.vmap(lunar_lander.transition)(params, state, *inputs)
        return state, (obs, reward, over, state.world)

    return jax.lax.scan(step, state, (actions, draws))[1]


@pytest.fixture(scope="module")
def flown():
    """All discrete recordings and their replay: (recordings, first observations, (obs, reward, over, world))."""
    data = recorded(DISCRETE)
    params = parameters(data)
    state, first = initial_states(data, params)
    actions = data["action"].astype(np.int32).T
    out = replayed(params, state, actions, data["draws"].swapaxes(0, 1))
    return data, np.asarray(first), jax.device_get(out)


def errors(data, first, obs):
    """Return the largest observation errors `[E, T+1]`, and which steps are before the recorded first contact."""
    mine = np.concatenate([first[:, None], obs.swapaxes(0, 1)], axis=1)
    error = np.abs(mine - data["obs"]).max(axis=2)
    inside = np.arange(error.shape[1]) < data["length"][:, None]
    touched = np.cumsum(data["obs"][:, :, 6:].max(axis=2), axis=1) > 0
    return error, inside & ~touched


def test_reset_matches_box2d(flown):
    data, first, _ = flown
    assert np.abs(first - data["obs"][:, 0]).max() < 5e-6


def test_free_flight_matches_box2d(flown):
    data, first, (obs, *_) = flown
    error, flying = errors(data, first, obs)
    assert flying.sum() > 2000
    largest = np.where(flying, error, 0).max(axis=1)
    assert np.median(largest) < 5e-5
    assert largest.max() < 1e-3


def test_same_end_at_the_same_step(flown):
    """Landing is chaotic, so that some lengths may differ by a few steps, but outcomes and returns must agree."""
    data, _, (obs, reward, over, world) = flown
    length = over.argmax(axis=0) + 1
    assert over[-1].all()
    assert np.mean(length == data["length"]) > 0.7
    sideways = np.abs(obs[length - 1, np.arange(len(length)), 0]) >= 1
    outcome = np.where(world.asleep[-1], LANDED, np.where(sideways, OUT, CRASHED))
    assert np.mean(outcome == data["outcome"]) > 0.95
    difference = np.abs(reward.sum(axis=0) - data["reward"].sum(axis=1))
    assert np.median(difference) < 0.1


def test_contact_flags_and_rewards_follow_box2d(flown):
    """Until chaos separates the episodes, flags are equal and rewards are close, also in contact."""
    data, first, (obs, reward, *_) = flown
    error, _ = errors(data, first, obs)
    steps = np.arange(reward.shape[0])[:, None]
    together = (np.cumsum(error[:, 1:], axis=1).T < 0.02) & (steps < data["length"])
    touching = together & (data["obs"][:, 1:, 6:].max(axis=2).T > 0)
    assert touching.sum() > 100
    np.testing.assert_array_equal(obs[together][:, 6:], data["obs"][:, 1:].swapaxes(0, 1)[together][:, 6:])
    assert np.abs(reward - data["reward"].T)[together].max() < 3


def test_flag_reads_zero_while_a_leg_touches(flown):
    """A leg that slides onto the next segment loses its flag, in Box2D and here."""
    data, first, (obs, _, _, world) = flown
    error, _ = errors(data, first, obs)
    together = np.cumsum(error[:, 1:], axis=1).T < 0.02
    quirk = (world.touching != 0) & ~world.contact_flag & together[:, :, None]
    quirk &= (np.arange(len(obs))[:, None] < data["length"])[:, :, None]
    assert quirk.sum() > 10
    assert (data["obs"][:, 1:, 6:].swapaxes(0, 1)[quirk] == 0).all()


@pytest.mark.parametrize(
    ("flag", "before", "now", "after"),
    [
        (False, 0b0000, 0b0001, True),  # touches a segment
        (True, 0b0001, 0b0011, True),  # touches a second one
        (True, 0b0011, 0b0010, False),  # leaves the first and still stands on the second
        (False, 0b0010, 0b0010, False),  # continues to stand there
        (True, 0b0001, 0b0010, False),  # moves from one to the other
        (True, 0b0001, 0b0000, False),
        (False, 0b0000, 0b0000, False),
    ],
)
def test_flag_rule(flag, before, now, after):
    arrays = np.array(flag), np.array(before), np.array(now)
    assert bool(jax.jit(physics.updated_flag)(*arrays)) is after


def test_sleep_after_exactly_25_still_steps(flown):
    _, _, (obs, reward, over, world) = flown
    landed = np.flatnonzero(world.asleep[-1])
    assert len(landed) >= 8
    for lane in landed:
        end = over[:, lane].argmax()
        np.testing.assert_array_equal(world.still_steps[end - 24 : end + 1, lane], np.arange(1, 26))
        assert world.still_steps[end - 25, lane] == 0
        assert reward[end, lane] == 100
        assert not world.asleep[end - 1, lane]
        assert (obs[end, lane, [2, 3, 5]] == 0).all()  # a sleeping body has no velocity


def test_terminal_rewards(flown):
    _, _, (_, reward, over, world) = flown
    end = over.argmax(axis=0)
    final = reward[end, np.arange(len(end))]
    np.testing.assert_array_equal(final, np.where(world.asleep[-1], 100.0, -100.0))


def test_an_ended_episode_does_not_change(flown):
    _, _, (obs, reward, over, _) = flown
    lane = int(over.argmax(axis=0).argmin())
    end = over[:, lane].argmax()
    assert end + 5 < len(over)
    assert (reward[end + 1 :, lane] == 0).all()
    assert over[end:, lane].all()
    assert (obs[end:, lane] == obs[end, lane]).all()


@pytest.mark.slow
def test_continuous_matches_box2d_and_nan_is_off():
    data = recorded(("continuous",))
    params = parameters(data)
    state, first = initial_states(data, params)
    actions = jnp.asarray(data["action"]).swapaxes(0, 1)
    draws = jnp.asarray(data["draws"]).swapaxes(0, 1)
    obs, _, over, _ = replayed(params, state, actions, draws)
    error, flying = errors(data, np.asarray(first), np.asarray(obs))
    largest = np.where(flying, error, 0).max(axis=1)
    assert np.median(largest) < 5e-5
    assert largest.max() < 1e-3
    assert np.asarray(over)[-1].all()
    # Inside jit, NaN switches its engine off and infinities are clipped.
    bad = jnp.full_like(actions, jnp.nan).at[:, 1].set(jnp.array([jnp.inf, -jnp.inf]))
    off = jnp.zeros_like(actions).at[:, 1].set(jnp.array([1.0, -1.0]))
    for got, wanted in zip(
        replayed(params, state, bad, draws)[:2], replayed(params, state, off, draws)[:2], strict=True
    ):
        assert np.isfinite(got).all()
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("action", "wanted"),
    [
        (0, (0, 0)),
        (1, (0, -1)),
        (2, (1, 0)),
        (3, (0, 1)),
        (4, (0, 0)),
        (-1, (0, 0)),
        ((0.0, 0.5), (0, 0)),
        ((1.0, -0.75), (1, -0.75)),
        ((0.2, 0.51), (0.6, 0.51)),
        ((-1.0, -3.0), (0, -1)),
        ((float("nan"), float("nan")), (0, 0)),
    ],
)
def test_engine_rule(action, wanted):
    main, side, direction = jax.device_get(jax.jit(thrust)(np.asarray(action)))
    np.testing.assert_allclose((main, side * direction), wanted, rtol=1e-6)


@pytest.mark.parametrize("most", [0.8, 10.0, 1000.0])
def test_cosine_and_sine(most):
    angles = np.random.default_rng(0).uniform(-most, most, 100_000).astype(np.float32)
    cos, sin = jax.jit(cos_sin)(angles)
    np.testing.assert_allclose(cos, np.cos(angles.astype(np.float64)), atol=1.2e-7)
    np.testing.assert_allclose(sin, np.sin(angles.astype(np.float64)), atol=1.2e-7)


def test_terrain_and_wind_formulas():
    heights = np.random.default_rng(0).uniform(0, 20 / 3, 12)
    raw = heights.copy()
    raw[3:8] = 10 / 3
    wanted = [0.33 * (raw[i - 1] + raw[i] + raw[i + 1]) for i in range(11)]
    np.testing.assert_allclose(jax.jit(lunar_lander.terrain)(heights), wanted, rtol=1e-6)
    index = np.array([-9999, -1, 0, 17, 500, 9998])
    wanted = np.tanh(np.sin(0.02 * index) + np.sin(np.pi * 0.01 * index))
    np.testing.assert_allclose(jax.jit(lunar_lander.gust)(index), wanted, atol=3e-4)


def test_the_pilot_agrees_with_gymnasium():
    data = recorded(("heuristic",))
    inside = np.arange(data["action"].shape[1]) < data["length"][:, None]
    actions = jax.jit(jax.vmap(heuristic.pilot))(data["obs"][:, :-1][inside])
    assert np.mean(np.asarray(actions) == data["action"][inside]) > 0.999
    data = recorded(("continuous",))
    inside = np.arange(data["action"].shape[1]) < data["length"][:, None]
    actions = jax.jit(jax.vmap(heuristic.continuous_pilot))(data["obs"][:, :-1][inside])
    np.testing.assert_allclose(actions, data["action"][inside], atol=1e-5)


def test_spaces_agree_with_gymnasium():
    high = np.array([2.5, 2.5, 10, 10, 2 * np.pi, 10, 1, 1], np.float32)
    for env, shape in ((lunar_lander.LunarLander(), ()), (lunar_lander.LunarLanderContinuous(), (2,))):
        space = env.observation_space(env.default_params)
        np.testing.assert_array_equal(space.high, high)
        np.testing.assert_array_equal(space.low, np.where(np.arange(8) < 6, -high, 0))
        assert env.action_space(env.default_params).shape == shape
        assert env.default_params.max_steps_in_episode == 1000
    assert lunar_lander.LunarLander().action_space().n == 4
    box = lunar_lander.LunarLanderContinuous().action_space()
    assert isinstance(box, spaces.Box)
    np.testing.assert_array_equal([box.low, box.high], [[-1, -1], [1, 1]])


@pytest.mark.parametrize("cls", [lunar_lander.LunarLander, lunar_lander.LunarLanderContinuous])
def test_gymnax_interface_shapes(cls):
    """Shapes of gymnax's own jitted reset and step under two vmaps; nothing is compiled."""
    env = cls()
    params = env.default_params
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (2, 3)))
    twice = lambda f, axes: jax.vmap(jax.vmap(f, axes), axes)  # noqa: E731
    obs, state = jax.eval_shape(twice(env.reset, (0, None)), keys, params)
    action = np.zeros((2, 3, *env.action_space(params).shape), np.float32 if env.continuous else np.int32)
    out = jax.eval_shape(twice(env.step, (0, 0, 0, None)), keys, state, action, params)
    assert obs.shape == out[0].shape == (2, 3, 8)
    assert obs.dtype == out[0].dtype == jnp.float32
    assert jax.tree.map(lambda a: (a.shape, a.dtype), state) == jax.tree.map(lambda a: (a.shape, a.dtype), out[1])
    assert [x.shape for x in out[2:5]] == [(2, 3)] * 3
    assert isinstance(env, gymnax.environments.environment.Environment)


@pytest.mark.parametrize("name", ["LunarLander-v3", "LunarLanderContinuous-v3"])
def test_a_rollout_can_be_traced(name):
    """Shapes only, of as many landers as in the test above, so that the physics need not be traced again."""
    environment = make_environment(name)

    def run():
        policy = mlp_policy(environment, (4,))
        return collect(environment, policy, jnp.zeros((2, policy.size)), jax.random.split(jax.random.key(0), 2), 3, 40)

    shapes = jax.eval_shape(run)
    assert shapes.rewards.shape[1::2] == (2, 3) and shapes.rewards.dtype == jnp.float32
    assert shapes.observations.shape[2] == environment.observation_size == 8 and environment.limit == 1000


def test_reset_draws_what_gymnasium_draws():
    env = lunar_lander.LunarLander()

    @jax.jit
    def reset():
        keys = jax.random.split(jax.random.key(1), 500)
        return jax.vmap(env.reset_env, (0, None))(keys, env.default_params)

    obs, state = reset()
    terrain = np.asarray(state.world.terrain)
    np.testing.assert_allclose(terrain[:, 4:7], 3.3, rtol=1e-6)
    assert (terrain >= 0).all() and (terrain <= 0.33 * 20).all()
    assert terrain[:, 0].std() > 0.8
    speed = np.asarray(obs)[:, 2:4]  # affine in the force, whose range is ±1000 N
    assert 0.78 < np.abs(speed[:, 0]).max() < 0.81
    assert abs(speed[:, 0].mean()) < 0.1
    assert len(np.unique(np.asarray(state.wind_index))) > 400


@pytest.fixture(scope="module")
def moment(flown):
    """Landers `[4, 4]`, some on the ground, the same as `[16]`, and a program that steps 16 landers."""
    _, _, (_, _, _, world) = flown
    contact = np.flatnonzero((world.touching[60:100] != 0).any(axis=(0, 2)))
    busy = [int(lane) for lane in contact[:2]] + [0, 1]
    moment = jax.tree.map(lambda a: jnp.asarray(a[60:100:13, busy]), world)
    assert (np.asarray(moment.touching) != 0).any() and not (np.asarray(moment.touching) != 0).all()
    return moment, jax.tree.map(lambda a: a.reshape(16, *a.shape[2:]), moment), jax.jit(jax.vmap(physics.step))


@pytest.mark.slow
def test_ended_lanes_do_not_change_and_do_not_affect_others(moment):
    _, flat, step = moment
    ended = jnp.arange(16) % 3 != 0
    wanted, beside = step(flat, jnp.zeros(16, bool)), step(flat, ended)
    for a, b, c in zip(*(jax.tree.leaves(w) for w in (wanted, beside, flat)), strict=True):
        np.testing.assert_allclose(a[~ended], b[~ended], atol=1e-4)
        np.testing.assert_array_equal(b[ended], c[ended])


@pytest.mark.slow
def test_lanes_do_not_depend_on_batching(moment):
    """Lanes under two vmaps, sharded over devices, or traced for the plain program step as in one batch."""
    square, flat, step = moment
    playing = jnp.zeros(16, bool)
    wanted = step(flat, playing)
    nested = jax.vmap(jax.vmap(physics.step))(square, playing.reshape(4, 4))
    mesh = Mesh(np.array(jax.devices()[:2]), ("lanes",))
    spec = PartitionSpec("lanes")
    sharded = jax.jit(jax.shard_map(jax.vmap(physics.step), mesh=mesh, in_specs=spec, out_specs=spec))(flat, playing)
    with trace_for("plain"):
        plain = jax.jit(jax.vmap(lambda world, over: physics.step(world, over)))(flat, playing)
    for a, b, c, d in zip(*(jax.tree.leaves(w) for w in (wanted, nested, sharded, plain)), strict=True):
        np.testing.assert_allclose(a, b.reshape(a.shape), atol=1e-4)
        np.testing.assert_allclose(a, c, atol=1e-4)
        np.testing.assert_allclose(a, d, atol=1e-4)


def halve_until_small(x, flags):
    x = jax.lax.while_loop(lambda x: (jnp.abs(x) > 1).any(), lambda x: jnp.where(jnp.abs(x) > 1, x / 2, x), x)
    return {"x": x, "count": (flags.sum(axis=0) * 3).astype(jnp.int32), "any": flags.any(axis=0)}


@functools.cache
def lane_update(group, platform):
    """`update_lanes` as a program for a platform."""

    @jax.jit
    def run(masks, default, x, flags):
        with trace_for(platform):
            return update_lanes(halve_until_small, masks, group, default, x, flags)

    return run


@pytest.mark.parametrize(("lanes", "group"), [(21, 4), (3, 8), (1, 1)])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_updating_lanes_in_groups_agrees_with_the_plain_version(lanes, group, share):
    rng = np.random.default_rng(lanes)
    x, flags = 9 * rng.normal(size=(2, 3, lanes)).astype(np.float32), rng.random((2, lanes)) < 0.5
    default = {"x": x, "count": np.arange(lanes, dtype=np.int32), "any": np.zeros(lanes, bool)}
    selected, first = rng.random(lanes) < share, rng.random(lanes) < 0.5
    masks = [selected & first, selected & ~first]
    results = [lane_update(group, platform)(masks, default, x, flags) for platform in ("plain", "cpu", "gpu")]
    for a, b, c in zip(*map(jax.tree.leaves, results), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


@pytest.fixture(scope="module")
def placeholder_state():
    """A state of wrong shapes, which suffices because invalid actions are refused before anything is computed."""
    world = physics.World(*(np.zeros(()) for _ in physics.World._fields))
    return lunar_lander.EnvState(*(np.zeros(()) if name != "world" else world for name in ("time", "world", *"abcd")))


@pytest.mark.parametrize("action", [4, -1, 1.5])
def test_action_outside_the_space(action, placeholder_state):
    env, state = lunar_lander.LunarLander(), placeholder_state
    with pytest.raises(ValueError, match=rf"action={action} is not one of LunarLander's actions 0, 1, 2, 3"):
        lunar_lander.transition(env.default_params, state, action, np.zeros(2))
    with pytest.raises(ValueError, match="action="):
        env.step_env(jax.random.key(0), state, action, env.default_params)


def test_bad_continuous_actions(placeholder_state):
    params, state = lunar_lander.EnvParams(), placeholder_state
    with pytest.raises(ValueError, match="NaN"):
        lunar_lander.transition(params, state, np.array([np.nan, 0.0]), np.zeros(2))
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        lunar_lander.transition(params, state, np.zeros(3), np.zeros(2))
    with pytest.raises(ValueError, match="takes two floats"):
        lunar_lander.LunarLanderContinuous().step_env(jax.random.key(0), state, 2, params)
    with pytest.raises(ValueError, match="takes one integer"):
        lunar_lander.LunarLander().step_env(jax.random.key(0), state, np.zeros(2), params)


@pytest.mark.parametrize("horizon", [0, -5])
def test_horizon_must_be_positive(horizon):
    env = lunar_lander.LunarLander()
    with pytest.raises(ValueError, match=f"max_steps_in_episode={horizon} must be at least 1"):
        env.reset_env(jax.random.key(0), env.default_params.replace(max_steps_in_episode=horizon))


@pytest.mark.parametrize("gravity", [-12.0, 0.0, 9.81])
def test_gravity_is_bounded(gravity):
    with pytest.raises(ValueError, match=f"gravity={gravity}"):
        lunar_lander.initial_state(lunar_lander.EnvParams(gravity=gravity), np.zeros(12), np.zeros(2))


def test_drawing_a_lander(flown, tmp_path):
    from PIL import Image

    _, _, (_, _, _, world) = flown
    steps = slice(10, 130, 20)
    count = len(range(10, 130, 20))
    lane = jax.tree.map(lambda a: a[steps, 0], world)
    zero = np.zeros(count)
    states = lunar_lander.EnvState(np.arange(count), lane, zero, zero, zero, zero)
    params = lunar_lander.EnvParams()
    quiet = rendering.draw_frames("LunarLander-v3", params, states, width=120)
    firing = rendering.draw_frames("LunarLander-v3", params, states, width=120, actions=np.full(count, 2))
    assert len(quiet) == count and quiet[0].size == firing[0].size == (120, 86)
    assert all(np.any(np.asarray(a) != np.asarray(b)) for a, b in zip(quiet, firing, strict=True))
    assert np.any(np.asarray(quiet[0]) != np.asarray(quiet[-1]))
    with Image.open(rendering.save_gif(quiet, tmp_path / "a" / "lander.gif", fps=10)) as gif:
        assert gif.n_frames == count and gif.info["duration"] == 100
    with Image.open(rendering.save_strip(quiet, tmp_path / "strip.png", columns=3)) as strip:
        assert strip.size == (3 * 124 - 4, 86)


def test_drawing_a_cart(tmp_path):
    env, params = gymnax.make("CartPole-v1")
    _, state = jax.device_get(jax.jit(env.reset_env)(jax.random.key(0), params))
    upright = jax.tree.map(lambda a: np.stack([a, a]), state.replace(theta=np.zeros(()), time=0))
    tilted = upright.replace(theta=np.full(2, 0.2))
    first, second = (rendering.draw_frames("CartPole-v1", params, s, 100, [0, 1]) for s in (upright, tilted))
    assert np.any(np.asarray(first[0]) != np.asarray(second[0]))
    assert np.any(np.asarray(first[0]) != np.asarray(first[1]))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"env_name": "Catch-bsuite"}, "has no picture of its own; possible: Acrobot-v1, CartPole-v1"),
        ({"width": 3}, "width=3"),
        ({"actions": [0]}, "1 entries for 2 states"),
    ],
)
def test_drawing_errors(arguments, match):
    _, params = gymnax.make("CartPole-v1")
    states = {"x": np.zeros(2)}
    with pytest.raises(ValueError, match=match):
        rendering.draw_frames(**({"env_name": "CartPole-v1", "params": params, "states": states} | arguments))
    with pytest.raises(ValueError, match="frames is empty"):
        rendering.save_gif([], "never.gif")
    with pytest.raises(ValueError, match="frames is empty"):
        rendering.save_strip([], "never.png")


@functools.cache
def closed_loop(policy, episodes=2000, seed=0):
    """Run new episodes: returns, lengths, fraction landed and fraction unfinished."""
    env = lunar_lander.LunarLander()
    params = env.default_params
    reset_key, run_key = jax.random.split(jax.random.key(seed))
    obs, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(reset_key, episodes), params)

    def step(carry, key):
        obs, state = carry
        before = state.over
        random = jax.random.randint(key, (episodes,), 0, 4)
        action = {"heuristic": jax.vmap(heuristic.pilot)(obs), "random": random, "noop": 0 * random}[policy]
        obs, state, reward, _, _ = jax.vmap(env.step_env, (0, 0, 0, None))(
            jax.random.split(key, episodes), state, action, params
        )
        return (obs, state), (reward, ~before)

    (_, state), (reward, alive) = jax.jit(lambda c, k: jax.lax.scan(step, c, k))(
        (obs, state), jax.random.split(run_key, 1000)
    )
    asleep = np.asarray(state.world.asleep)
    return np.asarray(reward.sum(axis=0)), np.asarray(alive.sum(axis=0)), asleep.mean(), 1 - np.mean(state.over)


@pytest.mark.slow
def test_heuristic_lands_as_often_as_in_box2d():
    """Box2D, 10,000 episodes: return 238.5 ± 1.1, landed 92.0 %, unfinished 1.5 %, quartiles 248, 266, 283."""
    returns, _, landed, unfinished = closed_loop("heuristic")
    error = (returns.var(ddof=1) / len(returns) + 1.1**2) ** 0.5
    assert abs(returns.mean() - 238.5) < 2 * error
    assert abs(landed - 0.920) < 0.03
    assert abs(unfinished - 0.015) < 0.02
    assert np.abs(np.percentile(returns, [25, 50, 75]) - [248, 266, 283]).max() < 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "box2d", "box2d_error", "length", "length_error"),
    [("random", -187.7, 4.1, 92.35, 1.46), ("noop", -132.1, 2.4, 68.98, 1.67)],
)
def test_other_policies_fare_as_in_box2d(policy, box2d, box2d_error, length, length_error):
    returns, lengths, _, _ = closed_loop(policy)
    assert abs(returns.mean() - box2d) < 2 * (returns.var() / len(returns) + box2d_error**2) ** 0.5
    assert abs(lengths.mean() - length) < 2 * (lengths.var() / len(lengths) + length_error**2) ** 0.5


@pytest.mark.live
@pytest.mark.parametrize("options", [[], ["--wind"], ["--continuous"], ["--gravity", "-7"]])
@pytest.mark.parametrize("policy", ["noisy", "lateral", "bounce"])
def test_against_live_box2d(policy, options, tmp_path):
    """Record new episodes with the Python that JAXBYZ_BOX2D_PYTHON names, and replay them."""
    python = os.environ.get("JAXBYZ_BOX2D_PYTHON")
    if not python:
        pytest.skip("JAXBYZ_BOX2D_PYTHON names no Python with gymnasium and Box2D")
    script = pathlib.Path(__file__).parents[2] / "benchmarks" / "recordings" / "record_box2d.py"
    out = tmp_path / "episodes.npz"
    subprocess.run([python, script, policy, "24", "31000", out, *options], check=True)
    data = dict(np.load(out))
    data["name"] = np.array(["wind" if "--wind" in options else policy] * 24)
    params = parameters(data).replace(gravity=jnp.full(24, -7.0 if "--gravity" in options else -10.0))
    state, first = initial_states(data, params)
    actions = jnp.asarray(data["action"]).swapaxes(0, 1)
    actions = actions if actions.ndim == 3 else actions.astype(jnp.int32)
    obs, reward, *_ = replayed(params, state, actions, jnp.asarray(data["draws"]).swapaxes(0, 1))
    error, flying = errors(data, np.asarray(first), np.asarray(obs))
    # After hundreds of steps without feedback, rounding moves the first contact of slow landings by a step or two.
    touches = np.concatenate([np.asarray(first)[:, None], np.asarray(obs).swapaxes(0, 1)], axis=1)[:, :, 6:].any(axis=2)
    recorded = data["obs"][:, :, 6:].any(axis=2)
    first_contact = recorded.argmax(axis=1)
    shift = np.abs(touches.argmax(axis=1) - first_contact)[first_contact < 400]
    assert np.mean(shift > 0) < 0.1 and shift.max() <= 2
    flying &= np.cumsum(touches, axis=1) == 0
    early = (
        np.arange(error.shape[1]) < 400
    )  # replayed without feedback, a hover of 1000 steps drifts by a few hundredths
    largest = np.where(flying & early, error, 0).max(axis=1)
    assert error[:, 0].max() < 1e-4
    assert np.median(largest) < 1e-4 and largest.max() < 0.01
    difference = np.asarray(reward).sum(axis=0) - data["reward"].sum(axis=1)
    if policy == "bounce":  # chaotic after hundreds of steps on the ground: only means agree
        assert abs(difference.mean()) < 2.5 * difference.std(ddof=1) / len(difference) ** 0.5
    else:
        assert np.median(np.abs(difference)) < 1
