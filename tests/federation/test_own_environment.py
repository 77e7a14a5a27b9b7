"""A node with an environment of its own trains with the others, skips a round in which it fails, and goes on."""

from __future__ import annotations

import pytest

pytest.importorskip("zmq")

import numpy as np
from federation_helpers import Threads, small_config

import jaxbyz as jb
from jaxbyz.errors import UsageError
from jaxbyz.federation.own_environment import own_environment
from jaxbyz.federation.programs import build_programs
from jaxbyz.federation.settings import NodeSettings

FIVE = {"agents": 5, "byzantine": 1, "aggregator": "krum", "agreement": "mda", "p": 1.0, "trajectories": 40}
ROBOT = """
import pathlib
import gymnasium

class Robot(gymnasium.Wrapper):
    '''CartPole that fails once, in its fourth episode.'''

    episodes, once = 0, pathlib.Path({once!r})

    def reset(self, **options):
        self.episodes += 1
        if self.episodes == 4 and self.once.exists():
            self.once.unlink()
            raise OSError("the battery is empty")
        return super().reset(**options)

def environment():
    return Robot(gymnasium.make("CartPole-v1"))
"""


def written(path, text):
    path.write_text(text)
    return str(path)


@pytest.mark.slow
def test_a_node_whose_environment_fails_skips_the_round(tmp_path):
    config, once = small_config(**FIVE), tmp_path / "once"
    once.touch()
    robot = own_environment(config, written(tmp_path / "robot.py", ROBOT.format(once=str(once))))
    assert robot.observation_size == 4 and robot.host is not None
    common, own = (build_programs(config, environment=where)._replace(sizes=frozenset({5})) for where in (None, robot))
    # So slow that rounds remain when the environment is back.
    settings = dict.fromkeys(range(5), NodeSettings(floor=2.0, slow=0.15))
    federation = Threads(tmp_path / "fed", config, settings, programs=common, own_programs={4: own}).join()
    assert federation.errors == {}, federation.lines
    (line,) = [line for line in federation.lines if "skips this round" in line]
    assert "agent 4 failed in reset of episode" in line and "OSError: the battery is empty" in line
    returns = federation.nodes[4].record.rows["returns"]
    assert federation.nodes[4].t == federation.nodes[0].t == 20
    failed = int(line.split("iteration ")[1].split(":")[0])
    assert np.isnan(returns[failed]) and np.isfinite(returns[failed + 1 :]).any()
    assert np.isfinite(federation.parameters()).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"robot.py: failed \(FileNotFoundError"),
        ("a = 1", r"must define a function environment\(\)"),
        ("def environment():\n    raise OSError('no arm')", r"failed \(OSError: no arm\)"),
        (
            "import gymnasium\ndef environment():\n    return gymnasium.make('Pendulum-v1')",
            r"has observations \[3\] and 1 continuous actions; those of the federation, CartPole-v1, are observations "
            r"\[4\] and 2 discrete actions",
        ),
    ],
)
def test_files_that_cannot_be_used_are_refused(text, message, tmp_path):
    file = tmp_path / "robot.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=message) as error:
        own_environment(small_config(), str(file))
    assert "\n" not in str(error.value)


def test_observations_and_actions_are_prepared_as_those_of_the_federation(tmp_path):
    config = small_config(env="Pendulum-v1", env_param="hold=2,scale=true", p=1.0)
    text = "import jaxbyz\ndef environment():\n    return jaxbyz.make_environment('Pendulum-v1')"
    own = own_environment(config, written(tmp_path / "robot.py", text))
    assert own.limit == 100 and own.scales is jb.build(config).environment.scales
