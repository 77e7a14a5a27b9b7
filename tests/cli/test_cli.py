"""The command line: what it writes, what it prints, and which mistakes it reports."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest

import jaxbyz as jb
from jaxbyz.accelerate.setup import FUSED_SMALL_LOOPS, WIDE_VECTORS, agents_can_share_cores, set_flags
from jaxbyz.attacks import attacks
from jaxbyz.certify import certify
from jaxbyz.cli import build_parser, main
from jaxbyz.cli.listing import KINDS, described
from jaxbyz.cli.options import choice_from
from jaxbyz.configuration.building import cached_algorithm
from jaxbyz.configuration.config import FIELDS
from jaxbyz.configuration.resolving import OTHER_NAMES, resolve
from jaxbyz.errors import UsageError
from jaxbyz.federation.launcher import node_command
from jaxbyz.files import json_text
from jaxbyz.registry import Registry
from jaxbyz.rules import aggregators
from jaxbyz.rules import from_function as rule_from_function
from jaxbyz.runs.plan import make_plan
from jaxbyz.runs.run import run as run_config
from jaxbyz.trained.evaluation import _player, evaluate

TINY = ["--agents", "5", "--byzantine", "1", "--N", "4", "--B", "2", "--horizon", "20", "--hidden", "4",
        "--trajectories", "12", "--p", "0.5", "--kappa", "2"]  # fmt: skip
SHARED = [*TINY, "--attack", "avg-zero", "--seeds", "3"]  # compiled once for all tests that do not need another program


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "one"
    assert main(["train", *SHARED, "--out", str(out), "--quiet"]) == 0
    return out


def refused(capsys, *arguments: str) -> str:
    """Check that a command exits with code 2 and prints one line on standard error only; return the line."""
    capsys.readouterr()
    try:
        code = main(list(arguments))
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2, captured
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("jaxbyz: error: "), captured.err
    return lines[0]


def test_a_run_folder_holds_what_it_should(folder):
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json", "environment.json", "metrics.npz", "policy.npz", "run.json", "state.npz",
    ]  # fmt: skip
    run = jb.load_run(folder)
    T = run.metrics["returns"].shape[1]
    for name in ("trajectories", "returns", "diameter", "coin", "ess", "max_weight", "byzantine_weight", "bytes_sent"):
        assert run.metrics[name].shape == (3, T), name
        assert np.isfinite(run.metrics[name]).all(), name
    spent = run.metrics["trajectories"]
    np.testing.assert_array_equal(np.diff(spent, axis=1, prepend=0), np.where(run.metrics["coin"], 4, 2))
    assert spent[0, -1] >= 12 > spent[0, -2]
    assert np.all(run.metrics["coin"] == run.metrics["coin"][:1])  # one coin sequence for all seeds
    size = jb.build(run.config).policy.size
    for output in ("last", "sampled", "best"):
        assert run.policy[output].shape == (3, 5, size)
    assert run.environment["versions"]["jax"] and run.environment["platform"] == "cpu"


def test_config_is_enough_to_run_it_again(folder):
    run = jb.load_run(folder)
    again = run_config(run.config)
    np.testing.assert_array_equal(again.policy["last"], run.policy["last"])
    np.testing.assert_array_equal(again.metrics["returns"], run.metrics["returns"])


@pytest.mark.slow
def test_seeds_do_not_influence_each_other(folder):
    """Seed 1 of three, trained alone with the same coins, agrees up to rounding."""
    from dataclasses import replace

    from jaxbyz import training

    run = jb.load_run(folder)
    plan = make_plan(run.config)
    alone = list(training.segments(plan.algorithm, plan.keys[1:2], plan.coins, plan.output_at(plan.iterations)[1:2]))
    np.testing.assert_allclose(alone[-1].metrics.returns[0], run.metrics["returns"][1], rtol=1e-4)
    own = run_config(replace(run.config, coin="own", seeds=2))
    assert own.metrics["coin"].shape[0] == 2 and own.metrics["coin"][:, 0].all()


def test_json_is_the_last_line(capsys, tmp_path):
    assert main(["train", *SHARED, "--json", "--out", str(tmp_path / "run")]) == 0
    summary = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert summary["seeds"] == 3 and summary["finite"] and summary["trajectories"] >= 12
    assert summary["return"]["mean"] > 0 and len(summary["return"]["seeds"]) == 3


def test_evaluate_runs_fresh_episodes(capsys, folder):
    assert main(["evaluate", str(folder), "--episodes", "7", "--json"]) == 0
    value = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert len(value["return"]["seeds"]) == 3 and 1 <= value["return"]["mean"] <= 20
    assert main(["evaluate", str(folder), "--episodes", "3", "--greedy", "--output", "best"]) == 0
    assert "agent=9" in refused(capsys, "evaluate", str(folder), "--agent", "9")
    assert "episodes=0" in refused(capsys, "evaluate", str(folder), "--episodes", "0")


def test_an_evaluation_is_compiled_once(folder):
    run = jb.load_run(folder)
    parameters = run.policy["last"][:, 0]
    one, two = (evaluate(run.config, parameters, 5, seed=seed) for seed in (0, 1))
    assert one["returns"].shape == two["length"].shape == (3, 5)
    play = _player(cached_algorithm(run.config), 5, run.config.horizon, False)
    assert play._cache_size() == 1


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_plot_draws(capsys, folder, tmp_path, suffix):
    picture = tmp_path / f"curves{suffix}"
    assert main(["plot", str(folder), str(folder), "--out", str(picture), "--width", "4"]) == 0
    assert picture.stat().st_size > 5000
    assert "decbyzpg, memory+rfa," in capsys.readouterr().out


def test_plot_refuses(capsys, folder, tmp_path):
    assert "no such folder" in refused(capsys, "plot", str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    assert "no run here" in refused(capsys, "plot", str(tmp_path / "empty"))
    assert "metric='retrun'" in refused(capsys, "plot", str(folder), "--metric", "retrun")
    assert "must end in" in refused(capsys, "plot", str(folder), "--out", str(tmp_path / "curves.txt"))


def test_plot_refuses_options_of_other_kinds(capsys, folder, tmp_path):
    out = ["--out", str(tmp_path / "heatmap.png")]
    error = refused(capsys, "plot", str(folder), "--kind", "heatmap", "--metric", "ess", "--iterations", "3", *out)
    assert "iterations=3: kind=heatmap does not read it; it is for kind=agreement" in error


def test_render_draws_an_episode(capsys, folder, tmp_path):
    from PIL import Image

    gif = tmp_path / "episode.gif"
    assert main(["render", str(folder), "--out", str(gif), "--width", "160", "--columns", "3"]) == 0
    assert "return" in capsys.readouterr().out
    with Image.open(gif) as picture:
        assert picture.is_animated and picture.size[0] == 160 and 5 < picture.n_frames <= 21
    assert (tmp_path / "episode-strip.png").stat().st_size > 500
    assert main(["render", str(folder), "--out", str(tmp_path / "begin.gif"), "--frames", "3"]) == 0
    with Image.open(tmp_path / "begin.gif") as picture:
        assert picture.n_frames == 3
    assert main(["export", str(folder), "--out", str(tmp_path / "policy.npz")]) == 0
    assert "replaced" not in capsys.readouterr().err
    for command, name in (("render", "episode.gif"), ("export", "policy.npz")):
        assert main([command, str(folder), "--out", str(tmp_path / name)]) == 0
        captured = capsys.readouterr()
        assert f"{tmp_path / name} existed and was replaced" in captured.err and str(tmp_path / name) in captured.out
    assert "must end in .gif" in refused(capsys, "render", str(folder), "--out", str(tmp_path / "episode.mp4"))
    assert "agent=7" in refused(capsys, "render", str(folder), "--agent", "7")


def test_list_names_everything(capsys):
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert set(listed) == {
        "environments", "algorithms", "aggregators", "pre_aggregators", "attacks", "agreements", "schedules",
        "compressions", "policies", "presets",
    }  # fmt: skip
    assert {"rfa", "krum", "mean"} <= set(listed["aggregators"]) and "bucketing" in listed["pre_aggregators"]
    assert {"none", "random-action", "large-noise", "avg-zero"} <= set(listed["attacks"])
    assert {"decbyzpg", "byzpg", "page-pg", "dec-page-pg", "fed-page-pg"} <= set(listed["algorithms"])
    assert {"cartpole-paper", "cartpole"} <= set(listed["presets"]) and "CartPole-v1" in listed["environments"]
    assert all(line.strip() for kind in listed.values() for line in kind.values())
    assert main(["list"]) == 0
    assert "geometric median" in capsys.readouterr().out


def test_list_of_one_kind_shows_options_and_limits(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["list", "rules"]) == 0
    text = capsys.readouterr().out
    assert "  krum: " in text and "f < K/4, so f ≤ 3 of 13" in text and "rounds=8, nu=0.001" in text
    assert "  bucketing: " in text and "min-max" not in text
    for kind in KINDS:
        assert main(["list", kind.replace("_", "-"), "--json"]) == 0
        (entries,) = json.loads(capsys.readouterr().out).values()
        assert entries and all(entry["summary"] for entry in entries.values())
    assert entries["cartpole"]["options"]["output_scale"] == 3.0
    known = {**described("aggregators"), **described("policies"), **described("environments")}
    for name, options in (("krum", {"neighbours": None}), ("cnn", {"kernel": 3}), ("CartPole-v1", {"gravity": 9.8})):
        entry = known[name]["options"]
        assert options.items() <= entry.items() and not {"byzantine", "environment"} & entry.keys()


@pytest.mark.parametrize(
    "kind", [[], ["rules"], ["attack"], ["policy"], ["compressions"], ["environments"]], ids=" ".join
)
def test_lists_fit_the_terminal(kind, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list", *kind]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_step_size_keeps_its_ratio_to_the_end_of_its_decay():
    assert resolve(eta=1e-4).eta_end == pytest.approx(1e-4 / 30) and resolve(eta=1e-4, eta_end=5e-5).eta_end == 5e-5
    assert resolve(eta=1e-4, eta_end=None).eta_end is None and resolve(eta="1e-4", eta_end="none").eta == 1e-4
    with pytest.raises(UsageError, match="the step size would grow"):
        resolve(eta=1e-4, eta_end=1e-3)


def test_a_smaller_large_batch_takes_the_small_one_along():
    assert (resolve().N, resolve().B) == (8, 8) and resolve(N=4).B == 4 and resolve(N=16).B == 8
    with pytest.raises(UsageError, match="B=5 exceeds N=4"):
        resolve(N=4, B=5)
    with pytest.raises(UsageError, match="N=0: must be"):
        resolve(N=0)


def test_help_shows_the_values_of_the_chosen_preset(capsys, monkeypatch):
    def text(*words):
        monkeypatch.setattr("sys.argv", ["jaxbyz", "train", *words])
        with pytest.raises(SystemExit):
            main(["train", *words])
        return " ".join(capsys.readouterr().out.split())

    usual, steady, lander = (
        text("--help"),
        text("--help", "--preset", "cartpole-steady"),
        text("--env=LunarLander-v3", "-h"),
    )
    assert "preset cartpole (" in usual and "step size η (0.015)" in usual and "Byzantine agents f, which" in usual
    assert "preset cartpole-steady (" in steady and "step size η (0.001)" in steady
    assert "preset lunarlander (" in lander and "separated by commas (64,64)" in lander
    groups = ("task:", "agents, faults and defence:", "messages:", "network:", "examples: jaxbyz train")
    assert [usual.count(group) for group in groups] == [1] * len(groups)
    assert [usual.index(group) for group in groups] == sorted(usual.index(group) for group in groups)


@pytest.mark.parametrize(
    ("word", "meant"),
    [("--lr", "--eta"), ("--learning-rate=3", "--eta"), ("--rule", "--aggregator"), ("--agent", "--agents")],
)
def test_options_with_other_names_are_suggested(word, meant, capsys):
    assert refused(capsys, "train", word, "3").endswith(f"; did you mean {meant}?")
    assert "did you mean" not in refused(capsys, "plot", "x", word)


def test_other_names_lead_to_options():
    assert set(OTHER_NAMES.values()) <= set(FIELDS) and not set(OTHER_NAMES) & set(FIELDS)
    with pytest.raises(UsageError, match="option 'lr' is unknown; did you mean 'eta'"):
        resolve(lr=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--byzantine", "4"], "byzantine=4 of agents=13 exceeds the limit 1/4 of agreement mda: at most 3"),
        (["--byzantine", "3", "--agreement", "gda"], "limit 1/5 of agreement gda: at most 2"),
        (["--byzantine", "4", "--agreement", "none", "--aggregator", "krum"], "limit 1/4 of aggregator krum"),
        (["--byzantine", "7", "--algorithm", "byzpg"], "exceeds the limit 1/2"),
        (["--byzantine", "3", "--agents", "3"], "byzantine=3 of agents=3"),
        (["--byzantine", "-1"], "byzantine=-1"),
        (["--p", "0"], "p=0.0: must be in (0, 1]"),
        (["--p", "1.5"], "p=1.5"),
        (["--p", "nan"], "p=nan"),
        (["--B", "60"], "B=60 exceeds N=8"),
        (["--N", "0"], "N=0: must be at least 1"),
        (["--horizon", "0"], "horizon=0"),
        (["--seeds", "0"], "seeds=0"),
        (["--seed", "-1"], "seed=-1"),
        (["--seeds", "2", "--seed", "4294967295"], "seed=4294967295"),
        (["--trajectories", "-3"], "trajectories=-3"),
        (["--eta", "-1"], "eta=-1.0"),
        (["--eta", "inf"], "eta=inf"),
        (["--agents", "three"], "agents='three' is not a whole number"),
        (["--gamma", "1.5"], "gamma=1.5"),
        (["--kappa", "zero"], "kappa='zero'"),
        (["--kappa", "²"], "kappa='²'"),
        (["--kappa", "1000001"], "kappa='1000001': must be a number of rounds from 1 to 1000000"),
        (["--kappa", "9" * 5000], "kappa='999"),
        (["--seeds", "1" + "0" * 400], "seeds: the number is too large"),
        (["--eta", "1e39"], "eta=1e+39: must be a positive float32 number"),
        (["--hidden", "0"], "hidden=0"),
        (["--hidden", "a,b"], "hidden='a,b'"),
        (["--aggregator", "rfaa"], "aggregator='rfaa' is unknown; did you mean 'rfa'?"),
        (["--preset", "cart"], "preset='cart' is unknown; did you mean"),
        (["--attack", "avgzero"], "did you mean 'avg-zero'"),
        (["--algorithm", "decbyz"], "did you mean 'decbyzpg'"),
        (["--agreement", "mdaa"], "did you mean 'mda'"),
        (["--pre-aggregator", "bucket"], "did you mean 'bucketing'?"),
        (["--env", "CartPole"], "did you mean 'CartPole-v1' or"),
        (["--preset", "cartpol"], "did you mean 'cartpole'"),
        (["--optimizer", "adma"], "did you mean 'adam'"),
        (["--aggregator", "rfa:rouds=3"], "unknown option 'rouds'"),
        (["--previous", "realized"], "previous='realized' needs a constant step size"),
        (["--nonsense", "1"], "unrecognized arguments: --nonsense"),
        (["--env", "MetaMaze-misc", "--hidden", "4", "--attack", "nothing"], "attack='nothing'"),
    ],
)
def test_bad_options_are_refused_in_one_line(capsys, tmp_path, options, message):
    out = tmp_path / "run"
    assert message in refused(capsys, "train", *options, "--out", str(out))
    assert not out.exists()


@pytest.mark.parametrize("name", ["eta", "seeds", "kappa", "weight_clip"])
def test_numbers_beyond_floats_are_refused(name):
    for size in (400, 5000):
        with pytest.raises(UsageError, match=f"^{name}: the number is too large$"):
            resolve(**{name: 10**size})


def test_the_theorem_has_rounds_for_every_probability():
    assert resolve(kappa="theorem", p=1e-200, N=50).kappa_rounds() == 1339
    assert resolve(kappa="theorem", p=0.2, N=50, agents=13).kappa_rounds() == 14


def test_unsafe_runs_what_is_refused(tmp_path):
    options = [*TINY, "--p", "1", "--byzantine", "2", "--unsafe", "--attack", "avg-zero", "--quiet"]
    assert main(["train", *options, "--out", str(tmp_path / "run")]) == 0


OWN = """
import jax.numpy as jnp
from jaxbyz.attacks import attacks, from_function as attack
from jaxbyz.rules import aggregators, from_function as rule

SCALE = 3.0
aggregators.add("own-rule", lambda: rule(lambda messages: jnp.median(messages, axis=0)), "my rule")
attacks.add("own-attack", lambda: attack(lambda key, messages, mask: -SCALE * messages), "my attack")
"""


def test_own_components_are_imported_and_plots_do_not_need_them(capsys, tmp_path, monkeypatch, registries_restored):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    out, imported = str(tmp_path / "run"), ["--import", "own.py"]
    options = [*TINY, "--p", "1", "--aggregator", "own-rule", "--attack", "own-attack", "--out", out, "--quiet"]
    assert "'own-attack' is unknown" in refused(capsys, "train", *options)
    assert main([*imported, "train", *options]) == 0
    assert node_command(tmp_path, 0)[4:7] == [*imported, "node"], "the processes of a federation import it too"
    assert "own.py" in refused(capsys, "--import", str(tmp_path / "nowhere" / "own.py"), "list")
    assert "no_such_module" in refused(capsys, "--import", "no_such_module", "list")
    (tmp_path / "wrong.py").write_text("x = 1\ndef f(:\n")
    assert "invalid syntax (line 2 of" in refused(capsys, "--import", str(tmp_path / "wrong.py"), "list")
    assert "`--import FILE`" in refused(capsys, "train", "--byzantine", "1", "--attack", "of-my-own", "--no-save")
    del aggregators._entries["own-rule"], attacks._entries["own-attack"]
    Registry.revision += 1
    assert main(["plot", out, "--out", str(tmp_path / "curves.png")]) == 0
    assert main(["report", out, "--out", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "own-attack" in page and "jaxbyz --import own.py train --preset default" in page
    assert "own-" in refused(capsys, "evaluate", out)
    assert "the run was started with --import own.py" in refused(capsys, "resume", out)
    assert main(["evaluate", out, "--episodes", "2", *imported]) == 0


def test_wrong_components_and_files_are_explained(capsys, tmp_path, folder, registries_restored):
    aggregators.add("untraced", lambda: rule_from_function(lambda messages: float(messages[0, 0]) * messages[0]))
    attacks.add("no-factory", lambda key, messages, mask: messages)
    untraced = "the rule is not a JAX function of its messages"
    assert untraced in refused(capsys, "train", *SHARED, "--aggregator", "untraced", "--no-save")
    assert untraced in certify(["untraced"], agents=5, byzantine=1)[0].reason
    lines = refused(capsys, "train", *TINY, "--attack", "no-factory", "--no-save")
    assert "no-factory: key is missing; what is registered must be a function of its options" in lines
    file = tmp_path / "policy.npz"
    file.touch()
    assert "policy.npz: is a file; name the folder of a run" in refused(capsys, "evaluate", str(file))
    assert "cannot be read (no such file" in refused(capsys, "--import", "nowhere.py", "list").lower()
    assert repr(jb.load_run(folder)).startswith(f"<finished run in {folder}: decbyzpg on CartPole-v1, ")


def test_none_on_the_command_line_overrides_the_preset():
    def read(*words: str):
        return choice_from(build_parser("train").parse_args(["train", *words])).config

    assert read().weight_clip == 1.0 and read("--weight-clip", "none").weight_clip is None
    assert read().eta_end == 5e-4 and read("--eta-end", "none").eta_end is None
    assert not read().unsafe and read("--unsafe").unsafe


def test_pre_aggregators_may_stand_before_the_aggregator(capsys):
    config = jb.resolve(aggregator="nnm+bucketing:size=2+rfa:rounds=3", byzantine=3)
    assert (config.pre_aggregator, config.aggregator) == ("nnm+bucketing:size=2", "rfa:rounds=3")
    assert "in one of them" in refused(capsys, "train", "--aggregator", "nnm+rfa", "--pre-aggregator", "bucketing")


def test_json_has_null_instead_of_nan():
    text = json_text({"mean": float("nan"), "seeds": [1.0, float("inf")], "finite": False})
    assert json.loads(text) == {"mean": None, "seeds": [1.0, None], "finite": False}


def test_an_existing_run_is_not_overwritten(capsys, folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "already holds a run" in refused(capsys, "train", *TINY, "--out", str(folder), "--quiet")
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_that_goes_non_finite_stops_and_keeps_what_it_had(capsys, tmp_path):
    out = tmp_path / "run"
    options = [*TINY, "--p", "1", "--algorithm", "dec-page-pg", "--attack", "nan", "--trajectories", "400", "--quiet"]
    assert main(["train", *options, "--out", str(out)]) == 3
    message = capsys.readouterr().err
    assert (
        "stopped: honest agents became non-finite in 1 of 1 seeds, first in iteration " in message
        and "mean" not in message.split("aggregator")[0]
    )
    run = jb.load_run(out)
    assert run.metrics["finite"][0, -1] == 0 and run.metrics["trajectories"][0, -1] < 400


def test_damaged_files_are_refused(capsys, folder, tmp_path):
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "metrics.npz").write_bytes((folder / "metrics.npz").read_bytes()[:100])
    assert "damaged" in refused(capsys, "plot", str(broken))
    (broken / "config.json").write_text("{")
    assert "not readable as JSON" in refused(capsys, "plot", str(broken))
    (broken / "config.json").write_text('{"format": 99}')
    assert "newer jaxbyz" in refused(capsys, "evaluate", str(broken))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_continuous_environments_train(name, tmp_path):
    out = tmp_path / name
    assert (
        main(
            [
                "train",
                *TINY,
                "--preset",
                "default",
                "--env",
                name,
                "--attack",
                "random-action",
                "--quiet",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    assert np.isfinite(jb.load_run(out).metrics["returns"]).all()


def test_help_and_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == jb.__version__
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for name in ("--N", "--B", "--p", "--eta", "--kappa", "--gamma", "--horizon", "--attack", "--json"):
        assert name in text
    assert resolve(hidden="16,16", eta_end="none").hidden == (16, 16)


def test_xla_flags_of_the_user_are_kept(monkeypatch):
    """XLA flags are added once, and flags that the user has set are kept."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_extra_options=mine=1")
    for _ in range(2):
        set_flags()
    flags = os.environ["XLA_FLAGS"].split()
    assert flags[0] == "--xla_backend_extra_options=mine=1" and agents_can_share_cores()
    assert len({flag.partition("=")[0] for flag in flags}) == len(flags) == 6
    monkeypatch.setenv("XLA_FLAGS", "")
    set_flags()
    assert {FUSED_SMALL_LOOPS, WIDE_VECTORS} < set(os.environ["XLA_FLAGS"].split()) and agents_can_share_cores()


def test_long_commands_say_at_once_that_they_start(monkeypatch, capsys):
    def loading_fails(*_):
        raise RuntimeError("the rest of the command")

    monkeypatch.setattr("jaxbyz.accelerate.setup.prepare", loading_fails)
    for words, expected in ((["train"], "jaxbyz train: starting …\n"), (["train", "--quiet"], ""), (["list"], "")):
        monkeypatch.setattr(sys, "argv", ["jaxbyz", *words])
        with pytest.raises(RuntimeError, match="the rest"):
            main()
        assert capsys.readouterr().err == expected


def test_a_misspelt_command_is_answered_with_few_suggestions(capsys):
    assert main(["trian"]) == 2
    assert "command='trian' is unknown; did you mean 'train'?" in capsys.readouterr().err
    assert main(["train", "--preset", "cartpole-stead"]) == 2
    assert capsys.readouterr().err.count("'cartpole") <= 6  # the name itself, and five suggestions


@pytest.mark.parametrize(
    ("words", "before", "rule"),
    [
        (["--preset", "default"], "none", "rfa"),
        (["--env", "LunarLander-v3"], "memory", "rfa"),
        (["--env", "Asterix-MinAtar"], "none", "caf"),
    ],
)
def test_the_help_shows_the_rule_of_the_task(words, before, rule, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["jaxbyz", "train", *words])
    with pytest.raises(SystemExit):
        main(["train", *words, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"options as name:option=value ({rule})" in text
