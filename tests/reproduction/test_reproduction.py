"""The reproduction of the paper's figures, and the settings of the published code."""

import gzip
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import RESULTS, needs_results

import jaxbyz as jb
from jaxbyz.algorithms import algorithms
from jaxbyz.cli import main
from jaxbyz.configuration.building import build
from jaxbyz.configuration.protocol_presets import PROTOCOL_TASKS
from jaxbyz.configuration.resolving import resolve, to_dict
from jaxbyz.errors import UsageError
from jaxbyz.files import add_row, read_rows, write_rows
from jaxbyz.reproduction.claims import check_claims, compare_claims, mean_of_last_1000
from jaxbyz.reproduction.comparison import comparison, curve_table
from jaxbyz.reproduction.drawing import draw_figure
from jaxbyz.reproduction.figures import FIGURES, SETTINGS, curve_in_paper, needed_trainings, select_figures
from jaxbyz.reproduction.protocols import protocol_configs, protocol_curves
from jaxbyz.reproduction.subprocesses import failure_reason
from jaxbyz.reproduction.training_results import (
    TrainingResult,
    batches_of_trainings,
    load_results,
    train_if_missing,
    training_config,
)
from jaxbyz.sampling.estimators import importance_weights
from jaxbyz.sampling.rollout import collect

TINY = ["--trajectories", "8", "--seeds", "2", "--quiet"]


def test_every_curve_of_every_figure_has_a_training_and_a_curve_in_paper():
    trainings = needed_trainings(select_figures("all"))
    assert len(trainings) == 2 * 19
    for setting in SETTINGS:
        for environment, curve in trainings.values():
            config = training_config(setting, environment, curve, 2, 0, 100)
            assert (config.agents, config.byzantine) == (curve.agents, curve.byzantine)
    for name, figure in FIGURES.items():
        for panel in figure.panels:
            for curve in panel.curves:
                x, y = curve_in_paper(name, panel.title, curve)
                assert x.shape == y.shape == (81,) and np.isfinite(y[:20]).all()


def test_curves_of_the_paper_are_read():
    """Read off the paper's figure: DecByzPG under AvgZero on CartPole ends above 450, the naive method near 16."""
    panel = next(p for p in FIGURES["cartpole"].panels if p.title == "AvgZero")
    ends = {curve.label: mean_of_last_1000(curve_in_paper("cartpole", "AvgZero", curve)) for curve in panel.curves}
    assert ends["DecByzPG (α=3/13)"] > 450 and ends["Dec-PAGE-PG (α=3/13)"] < 25


def test_claims_hold_and_fail_with_the_curves():
    x = np.arange(100, 8001, 100)
    level = {"PAGE-PG": 300.0, "Dec-PAGE-PG": 450.0, "DecByzPG": 440.0}

    def read(panel, curve, naive=20.0):
        value = naive if curve.method == "Dec-PAGE-PG" and curve.byzantine else level[curve.method] + curve.agents
        return x, np.full(80, value)

    assert all(claim.holds for claim in check_claims("CartPole", "DecByzPG", "Dec-PAGE-PG", read))
    unbroken = check_claims("CartPole", "DecByzPG", "Dec-PAGE-PG", lambda p, c: read(p, c, naive=430.0))
    assert [c.text for c in unbroken if not c.holds] == [
        "LargeNoise: Dec-PAGE-PG breaks",
        "AvgZero: Dec-PAGE-PG breaks",
    ]
    assert all(c.holds is None for c in check_claims("CartPole", "DecByzPG", "Dec-PAGE-PG", lambda *_: None))


def test_results_are_kept_and_joined(tmp_path, capsys):
    out, table = ["--out", str(tmp_path), "--only", "cartpole-page-pg"], tmp_path / "steady.jsonl.gz"
    assert main(["reproduce", "speedup", *TINY, *out]) == 0
    before = table.stat().st_mtime_ns
    assert main(["reproduce", "speedup", *TINY, *out]) == 0
    assert table.stat().st_mtime_ns == before
    assert (tmp_path / "speedup-steady.png").stat().st_size > 10_000
    assert main(["reproduce", "speedup", *TINY, *out, "--list"]) == 0
    assert "cartpole-page-pg (finished)" in capsys.readouterr().out
    # A row of the same training with other seeds, as from another machine, is joined.
    (row,) = read_rows(table)
    other = {**row, "name": "cartpole-page-pg.s2-3", "config": {**row["config"], "seed": 2}}
    table.write_bytes(table.read_bytes() + gzip.compress(json.dumps(other).encode()))
    result = load_results(table)["cartpole-page-pg"]
    assert result.seeds == [0, 1, 2, 3] and result.returns.shape == (4, len(result.trajectories))
    add_row(table, {**other, "config": {**other["config"], "eta": 1.0}})
    with pytest.raises(UsageError, match=r"s2-3: made with other options \(eta\); other rows of this training differ"):
        load_results(table)
    write_rows(table, [row])
    text = (tmp_path / "table-steady.md").read_text()
    assert "| PAGE-PG (K=1) | 2 |" in text and "| –: curves missing | yes: " in text
    # Other options in the same folder are refused, and nothing is overwritten.
    capsys.readouterr()
    assert main(["reproduce", "speedup", *TINY[2:], "--trajectories", "9", *out]) == 2
    assert "made with other options (trajectories); choose another folder" in capsys.readouterr().err
    add_row(table, {**row, "format": 99})
    assert main(["reproduce", "speedup", *TINY, *out, "--draw"]) == 2
    assert "results of another version (format 99" in capsys.readouterr().err


def test_attacks_that_are_trained_together_have_the_results_of_each_alone(tmp_path):
    options = {"env": "TabularMDP", "algorithm": "dec-page-pg", "agents": 5, "byzantine": 1, "seeds": 2, "eta": 0.5}
    options |= {"trajectories": 40, "N": 4, "p": 1.0, "optimizer": "sgd"}  # Adam would enlarge rounding errors
    attacks = ("random-action", "avg-zero")
    configs = {attack: resolve("cartpole-steady", attack=attack, **options) for attack in attacks}
    configs["six"] = resolve("cartpole-steady", attack="avg-zero", **{**options, "agents": 6})
    configs["searching"] = resolve("cartpole-steady", attack="gradient-found", **options)
    batches = batches_of_trainings(configs, together=True)
    assert [list(batch) for batch in batches] == [list(attacks), ["searching"], ["six"]]
    assert batches_of_trainings(configs, together=False) == [{name: config} for name, config in configs.items()]
    tables = tmp_path / "together.jsonl.gz", tmp_path / "alone.jsonl.gz"
    train_if_missing(tables[0], batches[0])
    train_if_missing(tables[1], {"avg-zero": configs["avg-zero"]})
    together, alone = load_results(tables[0]), load_results(tables[1])["avg-zero"]
    np.testing.assert_array_equal(together["avg-zero"].trajectories, alone.trajectories)
    np.testing.assert_allclose(together["avg-zero"].returns, alone.returns, atol=0.011)  # rows are rounded
    ends = np.array([together[attack].returns[:, -1] for attack in attacks])
    assert (np.ptp(ends, axis=0) > 0.1).all()  # the attacks differ


def test_trainings_in_several_processes(tmp_path, capsys):
    """One training finds its row and keeps it; the other one fails and is reported."""
    environment, curve = needed_trainings(select_figures("speedup"))["cartpole-page-pg"]
    config = training_config("steady", environment, curve, 2, 0, 8)
    kept = {"name": "cartpole-page-pg.s0-1", "format": 1, "config": to_dict(config)}
    write_rows(tmp_path / "steady.jsonl.gz", [kept, {**kept, "name": "cartpole-decbyzpg-k5.s0-1"}])
    names = ["cartpole-page-pg", "cartpole-decbyzpg-k5"]
    arguments = ["--only", *names, "--jobs", "2", "--no-draw", "--out", str(tmp_path)]
    assert main(["reproduce", "speedup", *TINY, *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cartpole-decbyzpg-k5 failed: jaxbyz: error: ") and "made with other options" in line


@pytest.mark.parametrize(
    ("code", "messages", "said"),
    [
        (
            1,
            "Traceback:\n  File x\nValueError: bad\n-----\nFor simplicity, JAX has removed frames.\n",
            "ValueError: bad",
        ),
        (2, "jaxbyz: error: seed=-1\n", "jaxbyz: error: seed=-1"),
        (-9, "W1115 a warning\n", "ended by signal SIGKILL"),
        (3, "", "ended with code 3"),
    ],
)
def test_the_reason_of_a_failure_is_one_line(code, messages, said):
    assert failure_reason(code, messages) == said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cartpol"], "did you mean 'cartpole',"),
        (["speedup", "--seeds", "1"], "standard deviations need at least 2 seeds"),
        (["speedup", "--draw", "--out", "nowhere"], "no results here"),
        (["speedup", "--setting", "mine"], "invalid choice"),
        (["speedup", "--jobs", "0"], "jobs=0"),
        (["speedup", "--draw", "--no-draw"], "exclude each other"),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys):
    try:
        code = main(["reproduce", *arguments])
    except SystemExit as stop:
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2 and message in error and len(error.strip().splitlines()) == 1


def test_table_compares_with_the_paper():
    x = np.arange(100, 8001, 100)
    results = {name: TrainingResult(x, np.full((3, 80), 200.0), [0, 1, 2]) for name in needed_trainings(["cartpole"])}
    rows = [line for line in curve_table(["cartpole"], results) if line.startswith("| AvgZero | DecByzPG")]
    assert rows[0].startswith("| AvgZero | DecByzPG (α=3/13) | 3 | 200 (70) |") and "| 100 (" in rows[0]
    assert len(compare_claims(results)) > 20


def test_figures_show_our_curves_and_those_of_the_paper():
    x = np.arange(100, 8001, 100)
    returns = np.stack([np.full(80, 190.0), np.full(80, 210.0)])
    results = {name: TrainingResult(x, returns, [0, 1]) for name in needed_trainings(["cartpole"])}
    del results["cartpole-page-pg"]
    drawing = draw_figure("cartpole", results, setting="steady")
    unattacked, *panels = drawing.axes
    assert [axes.get_title() for axes in drawing.axes] == ["no attack", "RandomAction", "LargeNoise", "AvgZero"]
    title = "DecByzPG under attack, CartPole, setting steady\nmean ± standard deviation over 2 seeds; dashed: the paper"
    assert drawing.get_suptitle() == title and unattacked.get_ylabel() == "honest return"
    assert [axes.get_xlabel() for axes in drawing.axes] == ["", "", *["trajectories per agent"] * 2]
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == [
        "PAGE-PG (K=1), only in the paper", "Dec-PAGE-PG (α=0)", "Dec-PAGE-PG (α=3/13)", "DecByzPG (α=3/13)",
        "the paper",
    ]  # fmt: skip
    for axes, panel in zip(panels, FIGURES["cartpole"].panels, strict=True):
        dashed = [line for line in axes.lines if line.get_linestyle() == "--" and len(line.get_xdata())]
        thin, *solid = [line for line in axes.lines if line.get_linestyle() == "-"]
        for line, curve in zip(dashed, panel.curves[2:], strict=True):
            np.testing.assert_array_equal(line.get_ydata(), curve_in_paper("cartpole", panel.title, curve)[1])
        assert [line.get_color() for line in solid] == [line.get_color() for line in dashed]
        assert thin.get_linewidth() < 1 and thin.get_color() not in {line.get_color() for line in solid}
        for line, band in zip(solid, axes.collections, strict=True):
            np.testing.assert_array_equal(line.get_xydata(), np.stack([x, np.full(80, 200.0)], axis=1))
            assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(200 - 10 * 2**0.5)  # n − 1
    assert len(unattacked.collections) == 1, "the band of the naive federation, which is not repeated elsewhere"
    assert not draw_figure("cartpole", results, spread=False).axes[0].collections
    assert draw_figure("lunar", results) is None


@needs_results
@pytest.mark.parametrize("setting", ["steady", "paper", "published"])
def test_the_committed_tables_follow_from_the_committed_results(setting):
    folder = RESULTS / "reproduction"
    text = comparison(list(FIGURES), load_results(folder / f"{setting}.jsonl.gz"), setting)
    assert text == (folder / f"table-{setting}.md").read_text()


def test_published_weights_are_one_for_short_episodes_and_zero_for_long_ones():
    algorithm = build(resolve("cartpole-published", agents=1), 1)
    theta = jnp.zeros((1, algorithm.policy.size))  # every action with probability 1/2
    keys = jax.random.split(jax.random.key(1), 1)
    episodes = collect(algorithm.environment, algorithm.policy, theta, keys, 64, 200)
    weights = importance_weights(algorithm.settings, algorithm.policy, theta, episodes).values
    likelihood = 0.5 ** np.asarray(episodes.lengths, np.float64)
    np.testing.assert_allclose(weights, likelihood / (likelihood + 1e-9), rtol=1e-3, atol=1e-6)
    assert weights.max() > 0.999 and weights.min() < 0.01


@pytest.mark.slow
def test_the_published_code_compares_with_the_proposed_parameters():
    """Without agreement these are the current parameters, so the correction of a small batch cancels."""
    options = {"algorithm": "dec-page-pg", "agents": 2, "N": 2, "B": 2, "horizon": 16, "hidden": (4,)}
    algorithm = build(resolve("cartpole-published", **options), 1)
    state, _ = jax.jit(algorithm.step)(algorithm.init(jax.random.key(0)), jnp.bool_(True))
    np.testing.assert_array_equal(state.anchor, state.parameters)
    faithful = build(resolve("cartpole-paper", **options), 1)
    state, _ = jax.jit(faithful.step)(faithful.init(jax.random.key(0)), jnp.bool_(True))
    assert not np.array_equal(state.anchor, state.parameters)


def test_shared_start_is_the_same_for_every_seed():
    algorithm = build(resolve(start="shared"), 1)
    first, second = (algorithm.init(jax.random.key(seed)).parameters for seed in (3, 4))
    np.testing.assert_array_equal(first, second)
    with pytest.raises(UsageError, match="start='mine': must be own, shared"):
        resolve(start="mine")


def test_protocols_train_every_algorithm_on_equal_trajectories():
    curves = protocol_curves()
    assert {curve.label for curve in curves} == {*algorithms.names(), "gpomdp"}
    for name in PROTOCOL_TASKS:
        configs = protocol_configs(name, 2, 0, None)
        assert set(configs) == {curve.training for curve in curves}
        assert {config.trajectories for config in configs.values()} == {resolve(name).trajectories}
        attacked = [config for config in configs.values() if config.agents > 1]
        assert {(c.agents, c.byzantine, c.horizon, c.hidden) for c in attacked} == {
            (10, 3, resolve(name).horizon, resolve(name).hidden)
        }
        assert len({config.attack for config in attacked}) == 4
        adam = {(c.N, c.B, c.eta, c.momentum) for c in configs.values() if c.algorithm != "res-nharpg"}
        common = PROTOCOL_TASKS[name].common
        assert adam == {(common["N"], common["B"], common["eta"], None)}  # whichever algorithm the preset has
    assert resolve("fan2021-lunarlander").aggregator == "fedpg-br:sigma=0.07,delta=0.6,batch=32"
    assert resolve("ganesh2024-hopper").algorithm == "res-nharpg"


def test_an_algorithm_without_traits_takes_part_in_protocols(monkeypatch):
    monkeypatch.setattr(algorithms, "_entries", dict(algorithms._entries))
    algorithms.add("own", jb.decbyzpg, "DecByzPG under another name, registered without traits")
    assert protocol_configs("fan2021-cartpole", 2, 0, None)["own.random-noise"].aggregator == "rfa"


def test_a_protocol_is_drawn_from_what_is_finished(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    common = {"format": 1, "finite": True, "trajectories": [100, 200], "return": [[20.0, 60.0], [30.0, 80.0]]}
    rows = [
        {**common, "name": f"{name}.s0-1", "training": name, "config": to_dict(config)}
        for name, config in protocol_configs("fan2021-cartpole", 2, 0, 200).items()
        if name.startswith(("decbyzpg.", "page-pg."))
    ]
    write_rows(tmp_path / "fan2021-cartpole.jsonl.gz", rows)
    assert main(["reproduce", "fan2021-cartpole", "--draw", "--seeds", "2", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "fan2021-cartpole.png").stat().st_size > 10_000
    table = (tmp_path / "fan2021-cartpole.md").read_text()
    assert table.count("70.0 ± 14.1") == 8 and "| `fedpg-br` | – | – | – | – |" in table
    assert main(["reproduce", "fan2021-cartpole", "--setting", "paper", "--list"]) == 2
    assert "fan2021-cartpole has its own" in capsys.readouterr().err
    assert main(["reproduce", "fan2021-cartpol", "--list"]) == 2
    assert "did you mean 'fan2021-cartpole'" in capsys.readouterr().err
