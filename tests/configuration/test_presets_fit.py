"""A preset fits every algorithm that it is combined with, and the first line of a run says what was chosen."""

from __future__ import annotations

import pytest

from jaxbyz.algorithms import algorithms
from jaxbyz.cli import main
from jaxbyz.configuration.building import build
from jaxbyz.configuration.presets import PRESETS
from jaxbyz.configuration.resolving import choose, resolve
from jaxbyz.errors import UsageError

# Discrete and continuous actions, images, held actions, a table, and tasks with and without a preset of their own.
TASKS = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "LunarLander-v3", "Catch-bsuite", "Breakout-MinAtar", "TabularMDP")
TINY = ["--agents", "3", "--hidden", "4", "--horizon", "5", "--trajectories", "1", "--no-save"]


@pytest.mark.parametrize("env", TASKS)
def test_every_algorithm_can_be_built_for_a_task(env):
    for algorithm in algorithms.names():
        for byzantine in (0, 2):
            choice = choose(env=env, algorithm=algorithm, byzantine=byzantine)
            assert choice.config.env == env and choice.config.algorithm == algorithm
            assert build(choice.config).environment.actions is not None


@pytest.mark.parametrize("preset", [name for name, (_, options) in PRESETS.items() if "-v5" not in str(options)])
def test_every_algorithm_can_be_built_from_a_preset(preset):
    for algorithm in algorithms.names():
        assert build(choose(preset, algorithm=algorithm).config).policy.size > 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", algorithms.names())
@pytest.mark.parametrize("env", TASKS)
def test_every_algorithm_trains_on_every_task(env, algorithm, capsys):
    assert main(["train", "--env", env, "--algorithm", algorithm, *TINY, "--quiet"]) == 0


@pytest.mark.parametrize(
    ("env", "algorithm", "first"),
    [
        (
            "CartPole-v1", "res-nharpg",
            "preset cartpole (the best known for CartPole-v1), algorithm res-nharpg (as asked for), rule memory+rfa "
            "(the default under attack), agreement none (res-nharpg has none); for this algorithm B=1 instead of 8",
        ),
        (
            "Acrobot-v1", "fedpg-br",
            "preset acrobot (the best known for Acrobot-v1), algorithm fedpg-br (as asked for), rule memory+rfa (the "
            "default under attack), agreement none (fedpg-br has none); for this algorithm baseline=none instead of "
            "critic, estimator=whitened instead of gpomdp, weights=per-step instead of trajectory, advantages=plain "
            "instead of normalised, epochs=1 instead of 16, N=16 instead of 8, B=4 instead of 8",
        ),
    ],
)  # fmt: skip
def test_the_first_line_says_what_was_chosen(env, algorithm, first, capsys, monkeypatch):
    """The run itself is left out: the slow test above trains."""

    def start(config, out, reporter, **_):
        with reporter:
            pass

    monkeypatch.setattr("jaxbyz.runs.run.run", start)
    monkeypatch.setattr("jaxbyz.cli.common.run_and_report", lambda arguments, train, *_: train() or 0)
    options = ["--byzantine", "1", "--attack", "avg-zero"]
    assert main(["train", "--env", env, "--algorithm", algorithm, *options, *TINY]) == 0
    assert capsys.readouterr().err.splitlines()[0] == f"jaxbyz: {first}"


def test_values_that_the_user_gives_are_not_replaced():
    choice = choose(env="Acrobot-v1", algorithm="fedpg-br", N=12, eta=1e-3)
    assert (choice.config.N, choice.config.B, choice.config.eta) == (12, 4, 1e-3)
    assert choice.replaced["baseline"] == "critic" and not {"N", "eta"} & choice.replaced.keys()
    with pytest.raises(UsageError, match="critic"):
        build(choose(env="Acrobot-v1", algorithm="fedpg-br", baseline="critic").config)


def test_what_fits_is_not_replaced():
    choice = choose(byzantine=3)
    assert "rule memory+rfa (the default under attack), agreement mda (the default)" in str(choice)
    assert "rule mean (as no agent is Byzantine)" in str(choose())
    assert "preset cartpole-paper (as asked for)" in str(choose("cartpole-paper"))
    assert "rule bucketing+krum (as asked for)" in str(choose(byzantine=1, aggregator="bucketing+krum"))
    assert choose("cartpole-fedpg-br").replaced == {} and choose("cartpole-steady", algorithm="svrpg").replaced == {}


def test_the_help_shows_the_values_of_the_algorithm(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["jaxbyz", "train", "--env=Acrobot-v1", "--algorithm", "fedpg-br", "--help"])
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "those of the preset acrobot (" in text
    assert "large batch size (16)" in text and "small batch size (4)" in text


def test_a_rule_with_memory_is_not_the_default_where_it_cannot_hear_all():
    attacked = dict(env="Catch-bsuite", agents=13, byzantine=1, attack="avg-zero")
    assert resolve(**attacked).rule == "memory+rfa"
    assert resolve(**attacked, participation=0.8, absent="cached").rule == "memory+rfa"
    assert resolve(**attacked, participation=0.8).rule == "caf"
    assert resolve(**attacked, pre_aggregator="nnm").rule == "nnm+caf"
