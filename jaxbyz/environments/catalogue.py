"""All environments by name, and how they are made."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import socket
import struct
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxbyz.environments.base import Environment, check_gymnax
from jaxbyz.environments.clipped_actions import clip_actions
from jaxbyz.environments.gymnasium_adapter import PREFIX, check_name, gymnasium_environment
from jaxbyz.environments.gymnasium_adapter import names as gymnasium_names
from jaxbyz.environments.gymnax_adapter import adapt, known_names, make_by_name, register, replace_params
from jaxbyz.environments.held_actions import hold_actions
from jaxbyz.environments.observation_scaling import scale_observations
from jaxbyz.errors import UsageError, first_line, unknown
from jaxbyz.registry import Entry, Registry


class _Environments(Registry):
    """The table of environments, in which those of gymnasium have names that begin with `gymnasium:`."""

    def __getitem__(self, name: str) -> Entry:
        if not name.startswith(PREFIX):
            return super().__getitem__(name)
        own_name = name.removeprefix(PREFIX)
        check_name(own_name)
        return Entry(name, functools.partial(gymnasium_environment, own_name), "environment of gymnasium")

    def __contains__(self, name: str) -> bool:
        return name.startswith(PREFIX) or super().__contains__(name)

    def parse(self, text: str) -> list[tuple[str, dict[str, Any]]]:
        return [(text, {})]  # environments are named without options, which env_param has


def _gymnasium_hint(name: str) -> str:
    """Return what to do about a name of gymnasium, or an empty text."""
    try:
        known = gymnasium_names()
    except ImportError:
        return ""
    return f"; gymnasium has it: env={PREFIX}{name}" if name in known else ""


environments = _Environments("env", _gymnasium_hint)
DOWNLOADS = ("MNISTBandit-bsuite",)  # environments of gymnax that download data when they are made
DOWNLOAD_SECONDS = 20.0  # how long a server may keep an environment's download waiting


def _summary(name: str) -> str:
    family = name.rpartition("-")[2]
    return {"MinAtar": "MinAtar game", "bsuite": "behaviour suite task", "misc": "small task"}.get(
        family, "classic control"
    ) + " (gymnax)"


def _make_lander(class_name: str) -> Any:
    """Make a lander. Modules of environments are imported only when they are needed, because that takes time."""
    from jaxbyz.environments import lunar_lander

    return getattr(lunar_lander, class_name)()


def _make_mujoco(module: str) -> Any:
    """Make the environment of the MuJoCo task in a module."""
    from jaxbyz.environments.mujoco.task import MujocoEnvironment

    return MujocoEnvironment(importlib.import_module(f"jaxbyz.environments.mujoco.{module}").TASK)


def _make_partial_view(whole: tuple[str, str, tuple[int, ...]]) -> Any:
    """Make the environment that shows a part of another one."""
    from jaxbyz.environments.partial_views import PartialView

    return PartialView(*whole)


# The environments of this package: name -> (function that makes it, its argument, summary). They are registered with
# gymnax too, so that `gymnax.make` finds them.
_OWN: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    "LunarLander-v3": (_make_lander, "LunarLander", "Box2D's LunarLander in JAX, discrete engines"),
    "LunarLanderContinuous-v3": (
        _make_lander, "LunarLanderContinuous", "Box2D's LunarLander in JAX, continuous engines",
    ),
    "CartPoleNoVelocity-v1": (
        _make_partial_view, ("CartPoleNoVelocity-v1", "CartPole-v1", (0, 2)),
        "CartPole that shows positions only: needs a memory",
    ),
    "PendulumNoVelocity-v1": (
        _make_partial_view, ("PendulumNoVelocity-v1", "Pendulum-v1", (0, 1)),
        "Pendulum that shows its angle only: needs a memory",
    ),
    "InvertedPendulum-v5": (_make_mujoco, "inverted_pendulum", "MuJoCo in JAX: balance a pole on a cart"),
    "InvertedDoublePendulum-v5": (
        _make_mujoco, "inverted_double_pendulum", "MuJoCo in JAX: balance two poles on a cart",
    ),
    "Swimmer-v5": (_make_mujoco, "swimmer", "MuJoCo in JAX: three links swim in a viscous fluid"),
    "Reacher-v5": (_make_mujoco, "reacher", "MuJoCo in JAX: an arm reaches for a target"),
    "Hopper-v5": (_make_mujoco, "hopper", "MuJoCo in JAX: one leg hops"),
    "Walker2d-v5": (_make_mujoco, "walker2d", "MuJoCo in JAX: two legs walk"),
    "HalfCheetah-v5": (_make_mujoco, "half_cheetah", "MuJoCo in JAX: two legs and a torso run"),
}  # fmt: skip
for _name, (_make, _what, _line) in _OWN.items():
    environments.add(_name, functools.partial(_make, _what), _line)
    register(_name, functools.partial(_make, _what))
for _name in known_names():
    if _name not in environments:
        environments.add(_name, functools.partial(make_by_name, _name), _summary(_name))

# Parameters that every environment has: name -> what wraps the environment, given the value. They are applied in this
# order.
WRAPPERS: dict[str, Callable[[Environment, Any], Environment]] = {
    "clip": clip_actions,
    "hold": hold_actions,
    "scale": scale_observations,
}


def make_environment(name: str | Environment | Any, **params: Any) -> Environment:
    """Make an environment.

    Args:
        name: a registered name, a gymnax environment object, or an `Environment`, which only the
            parameters of `WRAPPERS` change.
        **params: values that replace fields of the environment's parameters, for example `gravity=9.0`. Parameters
            that gymnax derives from others, such as CartPole's `total_mass`, follow. Every environment also has
            `clip=True`, which clips actions to their bounds, `hold`, the number of steps for which an action is held,
            and `scale=True`, which scales observations by those of a common sample.

    Raises:
        UsageError: if the name or a parameter is unknown, a value is not a number where one is needed, or the spaces
            are not supported.
    """
    if wrapped := {key: params.pop(key) for key in WRAPPERS if key in params}:
        environment = make_environment(name, **params)
        for key, value in wrapped.items():
            environment = WRAPPERS[key](environment, value)
        return environment
    if isinstance(name, str) and name.startswith(PREFIX):
        return environments[name].call({}, params)
    raw = _make_raw(name) if isinstance(name, str) else name
    if isinstance(raw, Environment):
        if params:
            raise UsageError(f"env {raw.name}: {next(iter(params))!r} cannot be changed in an environment that is made")
        return raw
    check_gymnax(raw)
    settings = raw.default_params
    known = [field.name for field in dataclasses.fields(settings)] if params else []
    for field in params:
        if field not in known:
            raise UsageError(f"env {raw.name}: {unknown('parameter', field, known)}")
        if _is_number(getattr(settings, field)) and not _is_number(params[field]):
            raise UsageError(f"env {raw.name}: {field}={params[field]} is not a number")
    return adapt(raw, replace_params(settings, params))


def _is_number(value: Any) -> bool:
    """Whether a value is a number, or an array of one number."""
    if isinstance(value, bool | str) or value is None:
        return False
    return np.ndim(value) == 0 and np.result_type(value).kind in "iuf"


def _make_raw(name: str) -> Any:
    """Make a registered environment. Some of gymnax download data when they are made, for example MNISTBandit."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_SECONDS)
    try:
        return environments[name].factory()
    except (OSError, EOFError, struct.error) as error:  # no network, or half a file
        raise UsageError(
            f"env={name!r}: needs data that cannot be downloaded or read ({first_line(error)[:200]})"
        ) from error
    finally:
        socket.setdefaulttimeout(before)


def default_parameters(name: str) -> dict[str, Any]:
    """Return the parameters of a registered environment and their defaults, without those of `WRAPPERS`.

    The table is empty for environments without parameters, and for those that would have to download data.
    """
    raw = None if name in DOWNLOADS else _make_raw(name)
    settings = getattr(raw, "default_params", None)
    if not dataclasses.is_dataclass(settings):
        return {}
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {name: value.tolist() if isinstance(value, jax.Array) else value for name, value in values.items()}
