"""Pictures and the report show the numbers of the run folders."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import replace

import numpy as np
import pytest
from report_folders import altered, make_folders

import jaxbyz as jb
from jaxbyz.cli import build_parser, main
from jaxbyz.cli.options import choice_from
from jaxbyz.configuration.presets import PRESETS
from jaxbyz.errors import UsageError
from jaxbyz.report import plots
from jaxbyz.report.agreement_animation import agreement_animation, agreement_frames
from jaxbyz.report.agreement_rounds import AgreementTrace, project_to_plane, trace_run
from jaxbyz.report.animations import animate
from jaxbyz.report.findings import findings
from jaxbyz.report.heatmaps import heatmap, trust
from jaxbyz.report.html_report import fill_template, report_data, write_report
from jaxbyz.report.intervals import interquartile_mean, stratified_iqm
from jaxbyz.report.option_lines import final_against_option
from jaxbyz.report.result_table import method_names, result_table
from jaxbyz.report.runs import METRIC_LABELS, labels, load_runs, setting, shares_over_time, training_command
from jaxbyz.report.statistics import (
    failure_level,
    final_returns,
    final_values,
    mean_and_std,
    smoothed,
    smoothing_width,
    standard_deviation,
    trajectories_to_level,
    within,
)
from jaxbyz.report.styles import project_folder, styles
from jaxbyz.report.tables import comparison, mean_and_deviation, possible_range, summarise, summary_table


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return make_folders(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def runs(folders):
    return load_runs(folders)


def final_mean(folder):
    """Compute the final return of each seed from metrics.npz: the mean over the last 5 % of trajectories."""
    with np.load(folder / "metrics.npz") as data:
        late = data["trajectories"] >= 0.95 * data["trajectories"][:, -1:]
        rows = zip(data["returns"], data["batch"], late, strict=True)
        return np.array([np.average(row[keep], weights=batch[keep]) for row, batch, keep in rows])


def made_metrics(batches, returns):
    """Metrics of one seed with these batches and returns."""
    batch = np.array([batches])
    return {"batch": batch, "trajectories": np.cumsum(batch, axis=1), "returns": np.array([returns], float)}


def test_every_trajectory_counts_the_same_in_the_final_return():
    """The last 5 % of 1000 trajectories are a large batch of 46 with return 10 and a small one of 4 with return 60."""
    metrics = made_metrics([950, 46, 4], [0.0, 10.0, 60.0])
    assert final_returns(metrics) == pytest.approx([(950 * 0 + 46 * 10 + 4 * 60) / 1000])
    metrics = made_metrics([900, 50, 46, 4], [0.0, 0.0, 10.0, 60.0])
    assert final_returns(metrics) == pytest.approx([(46 * 10 + 4 * 60) / 100])


def test_levels_are_found_as_soon_as_a_large_batch_reaches_them():
    """The window is one large batch, whatever the length of the run, and is examined after every batch."""
    metrics = made_metrics([8] * 100, [0.0] * 5 + [1.0] * 95)
    assert trajectories_to_level(metrics, 1.0) == 48  # the sixth batch
    assert trajectories_to_level(made_metrics([8] * 1000, [0.0] * 5 + [1.0] * 995), 1.0) == 48
    mixed = made_metrics([16, 4, 4, 4, 4, 4], [0.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert trajectories_to_level(mixed, 0.5) == 24  # 8 of the last 16
    assert np.isnan(trajectories_to_level(metrics, 1.5))


def test_standard_deviations_over_seeds_have_n_minus_1():
    rows = np.array([[1.0, 5.0], [3.0, 5.0], [8.0, 5.0]])
    np.testing.assert_allclose(standard_deviation(rows), [np.sqrt((9 + 1 + 16) / 2), 0.0])
    assert np.isnan(standard_deviation(rows[:1])).all()
    np.testing.assert_array_equal(mean_and_std(rows[:1]).low, rows[0])
    summary = summary_table(jb.resolve(), {**summarise_like(), "seeds": 1})
    assert "honest return   3.0 over 1 seed(s)" in summary


def summarise_like():
    final = {"mean": 3.0, "std": float("nan"), "worst_seed": 3.0}
    rest = dict.fromkeys(("trajectories", "iterations", "diameter", "largest_weight", "smallest_ess", "bytes_sent"), 1)
    return {"return": final, **rest}


def test_a_curve_has_a_bounded_number_of_points():
    with pytest.raises(UsageError, match="give more than 100000 points"):
        smoothed(made_metrics([10**12], [0.0]), 100)
    assert np.isnan(trajectories_to_level(made_metrics([10**12], [0.0]), 1.0))


# ---- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_the_command_repeats_the_configuration(preset):
    config = jb.resolve(preset, seeds=3, attack="large-noise:scale=10.0", tolerance=1e-3, unsafe=True)
    words = shlex.split(training_command(config))
    assert words[:2] == ["jaxbyz", "train"]
    assert choice_from(build_parser("train").parse_args(words[1:])).config == config


def test_the_trace_repeats_the_run(runs):
    run = runs[0]
    T = run.metrics["returns"].shape[1]
    trace = trace_run(run.config, seed=1, iterations=T + 5)
    assert trace.parameters.shape == (T, 3, 5, run.policy["last"].shape[-1])
    np.testing.assert_array_equal(trace.byzantine, run.metrics["byzantine"][1])
    np.testing.assert_allclose(trace.parameters[-1, -1], run.policy["last"][1], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(trace.sent, trace.parameters)  # AvgZero does not attack the agreement
    with pytest.raises(jb.UsageError, match="no agreement"):
        trace_run(jb.resolve(algorithm="byzpg"))


def test_the_trace_has_the_forged_messages(tmp_path, runs):
    trace = trace_run(replace(runs[1].config, p=1.0), iterations=2)
    byzantine = trace.byzantine[0]
    assert np.abs(trace.sent[:, :, byzantine]).max() > 100  # LargeNoise
    np.testing.assert_array_equal(trace.sent[:, :, ~byzantine], trace.parameters[:, :, ~byzantine])
    spread = np.ptp(trace.parameters[:, :, ~byzantine], axis=2).max(axis=(0, 2))
    assert spread[0] > 0 and spread[-1] < 1e-3 * spread[0]  # [rounds]: honest agents meet
    from PIL import Image

    with Image.open(agreement_animation(trace, tmp_path / "agreement.gif", size=2.0)) as picture:
        assert picture.n_frames == 6


def test_frames_of_the_agreement(runs):
    generator = np.random.default_rng(0)
    held = np.stack([generator.normal(size=(5, 7)), np.zeros((5, 7))])  # proposals, then everybody at the same point
    sent = held.copy()
    sent[:, 4] = 1e6
    frames = agreement_frames(AgreementTrace(held[None], sent[None], np.arange(5)[None] == 4), size=2.0)
    titles = [frame.axes[0].get_title() for frame in frames]
    assert titles == ["iteration 1, proposals", "iteration 1, after round 1"]
    trace = AgreementTrace(held[None], sent[None], np.arange(5)[None] == 4)
    titled = agreement_frames(trace, size=2.0, title="MDA")
    assert titled[0].axes[0].get_title() == "MDA: iteration 1, proposals"
    axes = frames[1].axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["honest", "Byzantine"]
    honest, forged = (dots.get_offsets() for dots in axes.collections)
    np.testing.assert_allclose(honest, project_to_plane(held[1, :4], held[0, :4]), atol=1e-12)
    assert np.abs(forged).max() == pytest.approx(0.97 * axes.get_xlim()[1])  # far outside, drawn at the edge
    paths = [line.get_xydata() for line in axes.lines[:4]]
    np.testing.assert_allclose(np.stack(paths, axis=1)[0], project_to_plane(held[0, :4], held[0, :4]))


def test_the_projection_keeps_distances_within_a_plane():
    generator = np.random.default_rng(0)
    points = generator.normal(size=(6, 2)) @ generator.normal(size=(2, 9)) + 4.0
    flat = project_to_plane(points, points)
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.testing.assert_allclose(np.linalg.norm(flat[:, None] - flat[None], axis=-1), apart, atol=1e-9)
    np.testing.assert_allclose(project_to_plane(points[:1], points[:1]), 0.0)  # one point has no directions


# ---- runs ----------------------------------------------------------------------------------------------------------


def test_a_folder_of_runs_is_loaded_and_labelled(folders, runs):
    assert [run.folder for run in load_runs([folders[0].parent])] == sorted(folders)
    assert len(load_runs([*folders, *folders])) == 3
    assert labels(runs) == ["rfa, avg-zero", "rfa, large-noise", "krum, avg-zero"]  # only what differs
    assert labels(runs[:1]) == ["decbyzpg, rfa, avg-zero, K=5, 1 Byzantine"]
    assert setting(runs) == "CartPole-v1, decbyzpg, 5 agents, 1 Byzantine"
    assert setting(runs[:2]) == "CartPole-v1, decbyzpg · rfa, 5 agents, 1 Byzantine"
    varied = [run._replace(config=replace(run.config, env_spread="gravity=0.2")) for run in runs]
    assert setting(varied).startswith("CartPole-v1, agents differ by ±gravity=0.2, decbyzpg")
    assert "gravity" not in setting([*runs, varied[0]])
    twice = labels([runs[0], runs[0]._replace(folder=folders[0].parent / "again")])
    assert twice[1].endswith("again") and twice[0] != twice[1]
    honest = runs[0]._replace(config=replace(runs[0].config, byzantine=0, eta=0.5))
    assert labels([runs[0], honest]) == [f"avg-zero, eta={runs[0].config.eta}", "all honest, eta=0.5"]
    none = runs[0]._replace(config=replace(runs[0].config, agreement="none"))
    assert labels([runs[0], none]) == ["agreement=mda", "agreement=none"]


def test_one_colour_per_method(runs):
    rfa, noise, krum = styles(runs)
    assert rfa.colour == noise.colour != krum.colour and rfa.dash != noise.dash
    assert [style.dash for style in styles(runs, "attack")] == [0, 0, 0]  # panels tell attacks apart
    assert styles([runs[2]]) == [krum] and styles(runs[::-1])[0] == krum  # alone, or in another order
    rfa_only = styles(runs[:2])
    assert rfa_only[0] == rfa and rfa_only[1].colour not in (rfa.colour, krum.colour)
    many = [runs[0]._replace(config=replace(runs[0].config, eta=0.1 + i)) for i in range(9)]
    assert len(set(styles(many))) == 9


def test_colours_follow_the_start_of_runs_in_the_project(folders, tmp_path):
    """A method that is tried later does not change the colours of earlier ones, and folders of other projects none."""
    root = tmp_path / "runs" / "sweep"
    root.mkdir(parents=True)
    for name, started in (("b", "2026-01-02"), ("a", "2026-01-03")):
        rule = {"a": "median", "b": "krum"}[name]
        altered(folders[0], root / name, 0.0, aggregator=rule)
        (root / name / "run.json").write_text(json.dumps({"started": started}))
    krum, median = load_runs([root / "b", root / "a"])
    assert project_folder(root / "a") == tmp_path / "runs"
    assert (styles([krum])[0].colour, styles([median])[0].colour) == (0, 1)
    altered(folders[0], root / "0", 0.0, aggregator="rfa")
    (root / "0" / "run.json").write_text(json.dumps({"started": "2026-01-04"}))
    assert [style.colour for style in styles([median, krum])] == [1, 0]


def with_finals(run, finals, **options):
    """A run with these final returns, one per seed, that starts at a return of 20."""
    metrics = {name: np.repeat(rows[:1], len(finals), axis=0) for name, rows in run.metrics.items()}
    metrics["returns"] = np.repeat(np.array(finals, float)[:, None], metrics["batch"].shape[1], axis=1)
    metrics["returns"][:, 0] = 20.0
    metrics["finite"] = np.ones_like(metrics["finite"])
    return run._replace(metrics=metrics, config=replace(run.config, seeds=len(finals), **options))


def test_the_findings(runs):
    noise = np.random.default_rng(0).normal(size=10)
    high, near = with_finals(runs[0], 400 + noise), with_finals(runs[0], 400.1 + noise[::-1], aggregator="krum")
    low = with_finals(runs[0], [250.0] * 9 + [30.0], aggregator="median")
    first, failed, weights = findings([high, low])
    assert first.startswith("Highest final return under avg-zero: decbyzpg · rfa, 400.")
    assert "Lower: decbyzpg · median, 228.0 [" in first and "worst seed 30.0" in first
    assert failed == "decbyzpg · median failed in 1 of 10 seeds under avg-zero; the worst ends at 30.0."
    assert weights.startswith("Liars received")
    first = findings([high, near, low])[0]
    assert first.startswith("No difference in final return was measured under avg-zero between decbyzpg · krum, 400.")
    assert "decbyzpg · rfa, 400." in first and "seeds per method would show them in 80 % of all experiments" in first
    assert "Lower: decbyzpg · median" in first
    tie = findings([with_finals(runs[0], [500.0] * 5), with_finals(runs[0], [500.0] * 5, aggregator="krum")])[0]
    assert "No difference" in tie and "Their means are equal." in tie
    assert "Fewer than 5 seeds give no interval" in findings([runs[0], runs[2]])[0]
    lost = with_finals(runs[0], [400.0] * 5, aggregator="krum")
    lost.metrics["finite"][2, -1] = 0
    assert "decbyzpg · krum failed in 1 of 5 seeds under avg-zero; 1 became non-finite." in findings([high, lost])
    assert "No run ended better than the untrained policy." in findings([with_finals(runs[0], [10.0] * 5)])


def test_the_findings_name_liars_with_more_than_their_share(runs):
    def weighing(run, weight, **options):
        weights = np.full_like(run.metrics["byzantine_weight"], weight)
        return run._replace(metrics={**run.metrics, "byzantine_weight": weights})

    text = findings([weighing(runs[0], 0.1), weighing(runs[2], 0.5)])[-1]
    assert "more than their fair share of the weight in decbyzpg · krum under avg-zero (50%, fair 20%)" in text
    assert "no more than their fair share" in findings([weighing(runs[0], 0.1)])[-1]


def test_tables_fit_80_columns(runs):
    rows = [(name * 4, run.metrics) for name, run in zip(labels(runs), runs, strict=True)]
    lines = comparison(rows, (195, 400, 450)).splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) == 8  # long names have a line of their own
    assert max(map(len, summary_table(runs[0].config, summarise(runs[0].metrics)).splitlines())) <= 80


def test_tables_have_a_dash_for_what_is_unknown(runs):
    one = {name: values[:1] for name, values in runs[0].metrics.items()}
    lost = {**one, "finite": np.zeros_like(one["finite"])}
    lines = comparison([("one", one), ("lost", lost)]).splitlines()
    assert lines[1].split()[2] == "–" and lines[2].split()[1:] == ["–", "–", "–", "1/1"]


def test_the_table_of_defences_and_attacks(folders, runs):
    table = result_table(runs)
    assert (table.rows, table.columns) == (["decbyzpg · rfa", "decbyzpg · krum"], ["avg-zero", "large-noise"])
    np.testing.assert_allclose(table.cells[0][0].values, final_mean(folders[0]))
    assert table.cells[0][1].values.mean() == pytest.approx(final_mean(folders[0]).mean() + 3.25)
    assert table.cells[1][1] is None
    more = runs[0]._replace(config=replace(runs[0].config, seed=7))
    assert result_table([more, runs[0]]).cells[0][0].seeds.tolist() == [0, 1, 2, 7, 8, 9]  # the same experiment
    other = runs[0]._replace(config=replace(runs[0].config, eta=0.5))
    assert result_table([runs[0], other]).rows == [
        f"decbyzpg · rfa, eta={runs[0].config.eta}",
        "decbyzpg · rfa, eta=0.5",
    ]
    fewer = runs[0]._replace(config=replace(runs[0].config, byzantine=2))
    assert result_table([runs[0], fewer]).rows == ["decbyzpg · rfa, byzantine=1", "decbyzpg · rfa, byzantine=2"]


def test_the_same_seeds_never_count_twice(runs, folders):
    """The same configuration and seeds in two folders are two methods, which the folders name."""
    parent = folders[0].parent
    twice = [runs[0], runs[0]._replace(folder=parent / "again")]
    assert result_table(twice).rows == [f"decbyzpg · rfa ({folders[0]})", f"decbyzpg · rfa ({parent / 'again'})"]
    sweeps = [run._replace(folder=parent / name / run.folder.name) for name in ("old", "new") for run in runs[:2]]
    assert result_table(sweeps).rows == [f"decbyzpg · rfa ({parent / 'old'})", f"decbyzpg · rfa ({parent / 'new'})"]


def test_a_table_has_any_two_options(runs, folders):
    def with_options(**options):
        return runs[0]._replace(config=replace(runs[0].config, **options))

    grid = [with_options(eta=eta, aggregator=rule) for eta in (0.1, 0.01) for rule in ("rfa", "krum")]
    table = result_table(grid, x="eta", y="aggregator")
    assert (table.rows, table.columns) == (["rfa", "krum"], ["0.01", "0.1"])
    assert result_table(grid, x="aggregator").rows == ["eta=0.1", "eta=0.01"]
    with pytest.raises(UsageError, match="the runs also differ in attack"):
        result_table([*grid, with_options(eta=1.0, attack="ipm")], x="eta", y="aggregator")
    with pytest.raises(UsageError, match="x='etta' is unknown; did you mean 'eta'"):
        result_table(grid, x="etta")
    (axes, *_) = heatmap(grid, x="eta", y="aggregator").axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("eta", "aggregator")
    (axes,) = final_against_option(grid, "eta").axes
    for line in axes.lines[::3]:  # each has two caps
        np.testing.assert_allclose(line.get_xdata(), [0.01, 0.1], atol=0.01 * 0.09)
        np.testing.assert_allclose(line.get_ydata(), final_mean(folders[0]).mean())
    least, greatest = axes.get_ylim()
    assert least < final_mean(folders[0]).mean() < greatest
    assert axes.get_legend_handles_labels()[1] == ["decbyzpg · rfa", "decbyzpg · krum"]
    decaying = [
        with_options(eta=eta, eta_end=eta / 30, aggregator=rule) for eta in (0.1, 0.01) for rule in ("rfa", "krum")
    ]
    assert result_table(decaying, x="eta", y="aggregator").cells[1][1] is not None
    assert method_names(decaying, without="eta") == ["decbyzpg · rfa", "decbyzpg · krum"] * 2
    assert labels(decaying) == ["rfa, eta=0.1", "krum, eta=0.1", "rfa, eta=0.01", "krum, eta=0.01"]
    one_end = [with_options(eta=eta, eta_end=0.001) for eta in (0.1, 0.01)]
    assert labels(one_end) == ["eta=0.1", "eta=0.01"]
    (axes,) = final_against_option(decaying, "aggregator").axes
    assert len({line.get_color() for line in axes.lines}) == 2 and all(
        float(line.get_color()) < 1 for line in axes.lines
    )
    with pytest.raises(UsageError, match="all runs have kappa 2"):
        final_against_option(grid, "kappa")


def test_shares_over_time(runs):
    shares = shares_over_time(runs[0], intervals=2)
    trajectories, rows = runs[0].metrics["trajectories"][0], runs[0].metrics["shares"].mean(axis=0)
    half = -(-len(trajectories) // 2)
    np.testing.assert_allclose(shares.shares[:, 0], rows[:half].mean(axis=0))
    assert shares.trajectories.tolist() == [trajectories[half - 1], trajectories[-1]]
    assert shares.byzantine.tolist() == [False] * 4 + [True]
    server = {**runs[0].metrics, "shares": runs[0].metrics["shares"].copy()}
    server["shares"][:, 1] = 0.0  # a server's small batch: nobody's message is used
    assert (
        shares_over_time(runs[0]._replace(metrics=server)).trajectories.tolist() == np.delete(trajectories, 1).tolist()
    )


# ---- pictures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["curves", "heatmap", "diameter"])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures_are_written(capsys, folders, tmp_path, kind, suffix):
    out = tmp_path / f"picture{suffix}"
    options = ["--kind", kind, "--out", str(out), "--title", "A title & more"]
    options += ["--width", "4", "--statistic", "iqm"] if kind == "curves" else []
    assert main(["plot", *map(str, folders), *options]) == 0
    assert capsys.readouterr().out.strip().splitlines()[-1] == str(out)
    if suffix == ".png":
        assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    else:
        assert "A title &amp; more" in out.read_text()


def axis_texts(axes):
    """Title of the picture, axis labels and legend entries."""
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    return axes.figure.get_suptitle(), axes.get_xlabel(), axes.get_ylabel(), legend


@pytest.mark.parametrize("metric", ["returns", "worst_agent", "ess"])
def test_learning_curves_show_mean_and_standard_deviation(runs, metric):
    (axes,) = plots.learning_curves(runs, metric=metric, width=4).axes
    texts = (
        "CartPole-v1, decbyzpg, 5 agents, 1 Byzantine",
        "trajectories per agent",
        METRIC_LABELS[metric],
        labels(runs),
    )
    assert axis_texts(axes) == texts
    caption = " ".join(axes.figure.get_supxlabel().split())
    assert caption == (
        "Line: mean over seeds; band: ± one standard deviation (n − 1); 3 seeds; every point averages 4 trajectories."
    )
    assert len(axes.lines) == len(axes.collections) == 3
    for run, line, band in zip(runs, axes.lines, axes.collections, strict=True):
        x, y = smoothed(run.metrics, 4, metric)
        np.testing.assert_allclose(line.get_xydata(), np.stack([x, y.mean(axis=0)], axis=1))
        edges = band.get_paths()[0].vertices[:, 1]
        greatest = possible_range(run.config, metric)[1]
        assert edges.max() == pytest.approx(min((y.mean(axis=0) + y.std(axis=0, ddof=1)).max(), max(greatest, y.max())))
        assert edges.min() == pytest.approx((y.mean(axis=0) - y.std(axis=0, ddof=1)).min())


def test_learning_curves_show_the_interquartile_mean(runs):
    (axes,) = plots.learning_curves(runs[:1], width=4, statistic="iqm", title="Mine").axes
    assert not axes.collections, "three seeds have no interval"
    more = runs[0]._replace(metrics={name: np.concatenate([rows, rows + 1]) for name, rows in runs[0].metrics.items()})
    (axes,) = plots.learning_curves([more], width=4, statistic="iqm", title="Mine").axes
    value, low, high = stratified_iqm([smoothed(more.metrics, 4)[1]])
    np.testing.assert_allclose(axes.lines[0].get_ydata(), value)
    edges = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == (pytest.approx(low.min()), pytest.approx(high.max()))
    assert axes.figure.get_suptitle() == "Mine" and axes.get_legend() is None
    with pytest.raises(jb.UsageError, match="statistic='median' is unknown"):
        plots.learning_curves(runs, statistic="median")
    with pytest.raises(jb.UsageError, match="metric='return' is unknown; did you mean 'returns'"):
        plots.learning_curves(runs, metric="return")


def test_curves_in_panels(runs):
    drawing = plots.learning_curves(runs, facet="attack")
    left, right = drawing.axes
    assert left.get_xlabel() == right.get_xlabel() == "trajectories per agent"
    assert (left.get_title(), right.get_title()) == ("attack avg-zero", "attack large-noise")
    assert [len(axes.lines) for axes in drawing.axes] == [2, 1]
    assert left.lines[0].get_color() == right.lines[0].get_color() != left.lines[1].get_color()
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["rfa", "krum"]
    width = smoothing_width(runs[0].metrics)
    np.testing.assert_allclose(left.lines[0].get_xdata(), smoothed(runs[0].metrics, width)[0])
    with pytest.raises(jb.UsageError, match="facet=eta: all runs have eta"):
        plots.learning_curves(runs, facet="eta")
    with pytest.raises(jb.UsageError, match="facet='atack' is unknown; did you mean 'attack'"):
        plots.learning_curves(runs, facet="atack")


def test_panels_fill_the_grid(runs):
    shapes = {n: plots.grid_shape(n) for n in range(1, 13)}
    assert [shapes[n] for n in (1, 2, 3, 4, 5, 6)] == [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (3, 2)]
    assert all(columns * rows - n < columns for n, (columns, rows) in shapes.items())
    attacks = ("avg-zero", "large-noise", "ipm", "alie", "mimic")
    five = [runs[0]._replace(config=replace(runs[0].config, attack=name)) for name in attacks]
    axes = plots.learning_curves(five, facet="attack", width=4).axes
    assert [bool(panel.get_xlabel()) for panel in axes] == [False, False, True, True, True]
    for panel in axes:
        has_numbers = any(tick.label1.get_visible() for tick in panel.xaxis.get_major_ticks())
        assert has_numbers == bool(panel.get_xlabel())


def test_bands_end_at_what_is_possible():
    rows = np.array([[499.0, 10.0], [500.0, 30.0], [100.0, 20.0]])
    cut = within(mean_and_std(rows), rows, (0, 500))
    assert cut.high[0] == 500 and cut.high[1] == 30 and mean_and_std(rows).high[0] > 500
    assert within(mean_and_std(rows + 50), rows + 50, (0, 500)).high[0] == 550  # what was measured is possible
    config = jb.resolve(env="CartPole-v1", horizon=200)
    assert possible_range(config, "returns") == (0, 200) and possible_range(config, "ess") == (0, 1)


def test_a_picture_for_a_paper(runs, folders, tmp_path, monkeypatch, capsys):
    drawing = plots.learning_curves(runs, width=4, paper=1)
    (axes,) = drawing.axes
    assert drawing.get_figwidth() == 3.3 and not drawing.get_suptitle() and not drawing.get_supxlabel()
    assert axes.xaxis.label.get_size() == axes.get_yticklabels()[0].get_size() == 8
    drawing.canvas.draw()
    legend, frame = axes.get_legend().get_window_extent(), axes.get_window_extent()
    assert frame.x0 <= legend.x0 and legend.x1 <= frame.x1
    with pytest.raises(UsageError, match="paper=3: must be 1 or 2"):
        heatmap(runs, paper=3)
    monkeypatch.chdir(tmp_path)
    assert main(["plot", *map(str, folders), "--paper", "2"]) == 0
    assert "caption: Line: mean over seeds" in capsys.readouterr().out
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")


def test_the_smoothing_follows_the_run():
    assert smoothing_width(made_metrics([8] * 1000, [0.0] * 1000)) == 160
    assert smoothing_width(made_metrics([50] * 4, [0.0] * 4)) == 50  # not less than a batch


def test_every_metric_has_a_label(runs):
    assert {name for name, values in runs[0].metrics.items() if values.ndim == 2} == set(METRIC_LABELS)


def test_the_heatmap_shows_final_returns(runs, folders):
    axes, colour_bar = heatmap(runs).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["avg-zero", "large-noise"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["decbyzpg · rfa", "decbyzpg · krum"]
    means = [final_mean(folder).mean() for folder in folders]  # the third is the second row's first column
    expected = np.array([means[:2], [means[2], np.nan]])
    np.testing.assert_allclose(axes.images[0].get_array().filled(np.nan), expected)
    shown = {text.get_position(): text.get_text() for text in axes.texts}
    texts = [mean_and_deviation(final_mean(folder)) for folder in folders]
    level = failure_level([run.metrics for run in runs])
    failed = [int((final_mean(folder) < level).sum()) for folder in folders]
    assert 0 < sum(failed) < 9
    texts = [text + (f"\n{n} of 3 failed" if n else "") for text, n in zip(texts, failed, strict=True)]
    assert shown == {(0, 0): texts[0], (1, 0): texts[1], (0, 1): texts[2]}
    assert texts[0].startswith(f"{means[0]:.1f} ± {final_mean(folders[0]).std(ddof=1):.1f}")
    assert axes.images[0].get_clim() == (0, 500)  # the task's own range
    assert axes.figure.get_suptitle() == "CartPole-v1, decbyzpg, 5 agents, 1 Byzantine"
    assert axes.figure.caption == "Final honest return: mean ± standard deviation (n − 1) over 3 seeds."
    assert colour_bar.get_ylabel() == "final honest return"
    axes, _ = heatmap(runs, metric="ess", limits=(0.5, 2.0)).axes
    assert axes.images[0].get_clim() == (0.5, 2.0)
    np.testing.assert_allclose(axes.images[0].get_array()[0, 0], final_values(runs[0].metrics, "ess").mean())
    steep = runs[1]._replace(metrics={**runs[1].metrics, "gradient_norm": 2 * runs[1].metrics["gradient_norm"]})
    axes, _ = heatmap([runs[0], steep], metric="gradient_norm").axes
    values = [final_values(run.metrics, "gradient_norm").mean() for run in (runs[0], steep)]
    assert axes.images[0].get_clim() == (min(values), max(values))


def test_the_trust_picture_shows_shares(runs):
    axes, colour_bar = trust(runs[0], intervals=2).axes
    np.testing.assert_allclose(axes.images[0].get_array(), shares_over_time(runs[0], intervals=2).shares)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "1", "2", "3", "4 Byzantine"]
    assert axes.images[0].get_extent()[:2] == [0, runs[0].metrics["trajectories"][0, -1]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("trajectories per agent", "sender")
    assert axes.figure.get_suptitle() == "CartPole-v1, decbyzpg · rfa, 5 agents, 1 Byzantine (avg-zero)"
    assert axes.figure.caption == "Weight of each sender: mean over 3 seeds; equal: 0.2."
    assert colour_bar.get_ylabel() == "share in the aggregate (equal: 0.2)"


def test_the_diameter_picture_shows_median_and_range(runs):
    y = np.random.default_rng(0).uniform(0.1, 1.0, runs[0].metrics["diameter"].shape)
    (axes,) = plots.diameters([runs[0]._replace(metrics={**runs[0].metrics, "diameter": y})]).axes
    x = 1 + np.arange(y.shape[1])
    np.testing.assert_allclose(axes.lines[0].get_xydata(), np.stack([x, np.median(y, axis=0)], axis=1))
    edges = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == (pytest.approx(y.min()), pytest.approx(y.max()))
    title = "CartPole-v1, decbyzpg · rfa, 5 agents, 1 Byzantine (avg-zero)"
    texts = axes.figure.get_suptitle(), axes.get_xlabel(), axes.get_ylabel()
    assert texts == (title, "iteration", METRIC_LABELS["diameter"]) and axes.get_legend() is None
    assert axes.figure.caption.startswith("Diameter after agreement; line: median over seeds; band: their range")


def test_zero_diameters_are_not_drawn(runs, tmp_path):
    metrics = {**runs[0].metrics, "diameter": np.zeros_like(runs[0].metrics["diameter"])}
    text = plots.save(plots.diameters([runs[0]._replace(metrics=metrics)]), tmp_path / "zero.svg").read_text()
    assert "zero or not finite in every iteration" in text
    metrics["diameter"][0, 0] = 0.25
    metrics["diameter"][1, 1] = np.inf
    (axes,) = plots.diameters([runs[0]._replace(metrics=metrics)]).axes
    assert axes.lines[0].get_xydata().tolist() == [[1.0, 0.25]] and axes.get_yscale() == "log"


def test_trust_and_agreement_show_one_run(capsys, folders, tmp_path):
    assert main(["plot", str(folders[0]), "--kind", "trust", "--out", str(tmp_path / "trust.svg")]) == 0
    assert "4 Byzantine" in (tmp_path / "trust.svg").read_text()
    assert "shows one run: 3" in refused(capsys, "plot", *map(str, folders), "--kind", "trust")
    assert "must end in .gif" in refused(
        capsys, "plot", str(folders[0]), "--kind", "agreement", "--out", str(tmp_path / "x.png")
    )
    message = refused(capsys, "plot", *map(str, folders), "--kind", "heatmap", "--facet", "attack")
    assert "facet=attack: kind=heatmap does not read it; it is for kind=curves" in message
    assert "for example --x eta" in refused(capsys, "plot", *map(str, folders), "--kind", "option")
    message = refused(capsys, "plot", str(folders[0]), "--kind", "agreement", "--run-seed", "99")
    assert "run_seed=99: the run has" in message and "seeds, numbered from 0" in message


def test_missing_animations_have_a_reason(runs, tmp_path):
    own = runs[0]._replace(config=replace(runs[0].config, aggregator="mine"), record={"imported": ["my_rule.py"]})
    lines = []
    animations, missing = animate([own], lines.append)
    assert animations == [] and missing[0][0] == 0
    assert "aggregator='mine' is unknown" in missing[0][1] and "--import my_rule.py report" in missing[0][1]
    no_drawing = runs[0]._replace(config=replace(runs[0].config, env="Catch-bsuite", agreement="none"))
    reasons = [reason for _, reason in animate([no_drawing])[1]]
    assert reasons == [
        "no animation of the policy: Catch-bsuite has no drawing",
        "no animation of the agreement: decbyzpg has no agreement on parameters",
    ]
    write_report([own, runs[0]], tmp_path / "report.html", animations=1, log=lines.append)
    assert any(line.startswith("mine: no animation, because") for line in lines)
    assert embedded((tmp_path / "report.html").read_text())["missing_animations"] == [[0, missing[0][1]]]


# ---- bad input -----------------------------------------------------------------------------------------------------


def refused(capsys, *arguments: str) -> str:
    """Check for exit code 2 and one line on standard error; return the line."""
    capsys.readouterr()
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1 and captured.err.startswith("jaxbyz: error: ")
    return captured.err


@pytest.mark.parametrize("name", ["plot", "report"])
def test_bad_folders_are_refused(capsys, folders, tmp_path, name):
    out = ["--out", str(tmp_path / ("x.html" if name == "report" else "x.png"))]
    (tmp_path / "empty").mkdir()
    assert "no run here" in refused(capsys, name, str(tmp_path / "empty"), *out)
    half = altered(folders[0], tmp_path / "half", 0.0)
    (half / "metrics.npz").unlink()
    assert "has written no results yet" in refused(capsys, name, str(half), *out)
    other = altered(folders[0], tmp_path / "other", 0.0, env="Acrobot-v1")
    message = refused(capsys, name, str(folders[0]), str(other), *out)
    assert "different environments" in message and "Acrobot-v1, CartPole-v1" in message
    assert not list(tmp_path.glob("x.*"))


def test_a_missing_package_is_named(capsys, folders, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # where the default names of pictures would lead
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "[plots]'" in refused(capsys, "plot", str(folders[0]))
    for name in ("tensorboardX", "tensorboardX.event_file_writer"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "[tensorboard]'" in refused(capsys, "train", "--tensorboard", "somewhere")
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "[plots]'" in refused(capsys, "render", str(folders[0]))


def test_bad_picture_options_are_refused(capsys, folders, tmp_path):
    folder = str(folders[0])
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "x.gif"
    assert "width=3" in refused(capsys, "render", folder, "--width", "3")
    assert "fps=nan" in refused(capsys, "render", folder, "--fps", "nan")
    assert "cannot be written" in refused(capsys, "render", folder, "--out", str(below), "--width", "32")
    assert "cannot be written" in refused(capsys, "plot", folder, "--out", str(below.with_suffix(".png")))
    assert "width=0" in refused(capsys, "plot", folder, "--width", "0")


def test_bad_report_options_are_refused(capsys, folders, tmp_path):
    assert "must end in .html" in refused(capsys, "report", str(folders[0]), "--out", "report.txt")
    assert "animations=-1" in refused(capsys, "report", str(folders[0]), "--animations", "-1")
    (tmp_path / "file").write_text("")
    message = refused(
        capsys, "report", str(folders[0]), "--out", str(tmp_path / "file" / "x.html"), "--animations", "0"
    )
    assert "cannot be written" in message


# ---- the HTML report -----------------------------------------------------------------------------------------------


def embedded(text: str):
    """Return the data inside a report."""
    (numbers,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    return json.loads(numbers)


def test_the_report_has_the_numbers_of_the_files(folders, tmp_path):
    out = tmp_path / "report.html"
    assert main(["report", *map(str, folders), "--out", str(out), "--animations", "0", "--width", "4"]) == 0
    data = embedded(out.read_text())
    assert data["environment"] == "CartPole-v1" and data["differing"] == ["attack", "aggregator"]
    assert [shown["label"] for shown in data["runs"]] == labels(load_runs(folders))
    failed = []
    for folder, shown in zip(folders, data["runs"], strict=True):
        final = final_mean(folder)
        failed.append(int((final < data["failing"]).sum()))
        run = jb.load_run(folder)
        assert shown["seeds"] == pytest.approx(final.tolist())
        assert (shown["final"]["mean"], shown["final"]["worst"]) == pytest.approx((final.mean(), final.min()))
        assert shown["final"]["low"] is None and shown["failed"] == failed[-1]  # three seeds have no interval
        assert shown["config"]["aggregator"] == run.config.aggregator and shown["machine"] == run.environment
        x, y = smoothed(run.metrics, 4)
        curve = shown["curves"]["returns"]
        assert curve["x"] == x.tolist()
        std = y.std(0, ddof=1)
        highest = np.minimum(y.mean(0) + std, max(20.0, y.max()))  # bands end at the horizon
        np.testing.assert_allclose(curve["mean"], [y.mean(0), y.mean(0) - std, highest], rtol=1e-5)
        np.testing.assert_allclose(curve["seeds"], y, rtol=1e-4)
        np.testing.assert_allclose(shown["diameters"]["spread"][2], run.metrics["diameter"].max(axis=0), rtol=1e-4)
        np.testing.assert_allclose(np.sum(shown["trust"]["shares"], axis=0), 1.0, atol=1e-3)
        assert shown["trajectories"] == run.metrics["trajectories"].max()
        assert shown["megabytes"] == pytest.approx(run.metrics["bytes_sent"].sum() / 3 / 1e6)
        assert shown["diameter"] == pytest.approx(run.metrics["diameter"][:, -1].max())
        assert shown["reached_at"] == [None, None, None] and data["levels"] == [195, 400, 450]
        assert set(shown["curves"]) < set(data["metric_labels"])
    strata = [final_mean(folders[0]), final_mean(folders[1])]
    assert data["table"]["attacks"] == ["avg-zero", "large-noise"] and data["table"]["cells"][1][1] is None
    assert data["table"]["cells"][0][1]["mean"] == pytest.approx(strata[1].mean())
    row = data["table"]["rows"][0]
    assert row["iqm"]["value"] == pytest.approx(interquartile_mean(np.concatenate(strata)))
    assert (
        row["worst_attack"] == ["avg-zero", pytest.approx(strata[0].mean())]
        and row["failed"] == f"{failed[0] + failed[1]}/6"
    )
    assert row["worst_seed"] == pytest.approx(strata[0].min())


def test_the_report_loads_nothing(runs):
    text = fill_template(
        {**report_data(runs, title="</script><b>&"), "animations": [], "missing_animations": [], "not_animated": 0}
    )
    addresses = re.findall(r"""https?://[^"'\s]+""", text)
    assert set(addresses) == {"http://www.w3.org/2000/svg"}  # a namespace, which is not fetched
    assert not re.search(r"<(link|img|script)[^>]+(src|href)=", text) and "@import" not in text
    assert "<title>&lt;/script&gt;&lt;b&gt;&amp;</title>" in text and embedded(text)["title"] == "</script><b>&"
    assert "<!--" not in text.replace("<!doctype", "")


def test_non_finite_numbers_are_null(runs):
    broken = dict(runs[0].metrics)
    broken["byzantine_weight"] = np.full_like(broken["byzantine_weight"], np.nan)
    broken["shares"] = np.full_like(broken["shares"], np.nan)
    broken["returns"] = np.full_like(broken["returns"], np.inf)
    broken["diameter"] = np.full_like(broken["diameter"], np.nan)
    data = report_data([runs[0]._replace(metrics=broken)])
    assert data["runs"][0]["final"]["mean"] is None and data["runs"][0]["diameter"] is None
    assert data["runs"][0]["trust"] is None
    assert set(data["runs"][0]["curves"]["byzantine_weight"]["mean"][0]) == {None}
    json.dumps(data, allow_nan=False)
