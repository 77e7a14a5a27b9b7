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
from scipy import stats

import jaxbyz as jb
from jaxbyz.cli import build_parser, main
from jaxbyz.cli.options import choice_from
from jaxbyz.configuration.presets import PRESETS
from jaxbyz.errors import UsageError
from jaxbyz.report import plots
from jaxbyz.report.agreement_rounds import AgreementTrace, project_to_plane, trace_run
from jaxbyz.report.findings import findings
from jaxbyz.report.html_report import fill_template, report_data
from jaxbyz.report.runs import (
    METRIC_LABELS,
    attack_table,
    labels,
    load_runs,
    setting,
    shares_over_time,
    styles,
    training_command,
)  # fmt: skip
from jaxbyz.report.statistics import (
    final_returns,
    final_values,
    interquartile_mean,
    mean_and_std,
    smoothed,
    smoothing_width,
    standard_deviation,
    stratified_iqm,
    trajectories_to_level,
)
from jaxbyz.report.tables import comparison, mean_and_deviation, summarise, summary_table


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


def test_levels_are_found_between_multiples_of_100():
    """With batches of 8, the average of the last 100 trajectories reaches 1/2 after the 50th trajectory of return 1."""
    metrics = made_metrics([8] * 100, [0.0] * 25 + [1.0] * 75)
    assert trajectories_to_level(metrics, 0.5) == 252
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


@pytest.mark.parametrize("n", [1, 3, 4, 10, 11])
def test_interquartile_mean_is_the_trimmed_mean(n):
    scores = np.random.default_rng(n).normal(size=(n, 5))
    np.testing.assert_allclose(interquartile_mean(scores), stats.trim_mean(scores, 0.25, axis=0))


def test_stratified_intervals_agree_with_rliable():
    """Recorded from rliable 1.2.0: get_interval_estimates of aggregate_iqm, 20000 resamples, the same scores."""
    scores = np.random.default_rng(0).normal(size=(3, 10))  # tasks × seeds
    value, low, high = stratified_iqm(list(scores), resamples=4000)
    assert value == pytest.approx(-0.14516161, abs=1e-8)
    assert (low, high) == (pytest.approx(-0.41877, abs=0.02), pytest.approx(0.17185, abs=0.02))


def test_the_bootstrap_resamples_within_strata():
    """Differences between strata do not widen the interval: with constant strata it has length zero."""
    value, low, high = stratified_iqm([np.full(4, 1.0), np.full(4, 9.0)], resamples=200)
    assert value == low == high == 5.0


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

    with Image.open(plots.agreement_animation(trace, tmp_path / "agreement.gif", size=2.0)) as picture:
        assert picture.n_frames == 6


def test_frames_of_the_agreement(runs):
    generator = np.random.default_rng(0)
    held = np.stack([generator.normal(size=(5, 7)), np.zeros((5, 7))])  # proposals, then everybody at the same point
    sent = held.copy()
    sent[:, 4] = 1e6
    frames = plots.agreement_frames(AgreementTrace(held[None], sent[None], np.arange(5)[None] == 4), size=2.0)
    titles = [frame.axes[0].get_title() for frame in frames]
    assert titles == ["iteration 1, proposals", "iteration 1, after round 1"]
    trace = AgreementTrace(held[None], sent[None], np.arange(5)[None] == 4)
    titled = plots.agreement_frames(trace, size=2.0, title="MDA")
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
    many = [runs[0]._replace(config=replace(runs[0].config, eta=0.1 + i)) for i in range(9)]
    assert len(set(styles(many))) == 9 and styles(many)[8] == (0, 1)


def test_the_findings(runs):
    found = findings(runs)
    means = [final_returns(run.metrics).mean() for run in runs]
    assert found[0].startswith(f"decbyzpg · rfa has the highest final return under avg-zero, {means[0]:.1f}")
    assert "decbyzpg · krum ends at" in found[0] and found[1].startswith("decbyzpg · rfa ends at")

    def shifted(run, returns, weight, **options):
        metrics = {**run.metrics, "returns": np.zeros_like(run.metrics["returns"]) + returns}
        metrics["returns"][:, 0] = 20.0
        metrics["byzantine_weight"] = np.full_like(run.metrics["byzantine_weight"], weight)
        return run._replace(metrics=metrics, config=replace(run.config, **options))

    text = " ".join(findings([shifted(runs[0], 500.0, 0.1), shifted(runs[2], 25.0, 0.5)]))
    assert "decbyzpg · krum is broken under avg-zero: 25.0 ± 0.0, 1% of the way" in text
    assert "more than their fair share of the weight in decbyzpg · krum under avg-zero (50%, fair 20%)" in text
    text = " ".join(findings([shifted(runs[0], np.nan, 0.1)]))
    assert "decbyzpg · rfa became non-finite under avg-zero" in text and "no more than their fair share" in text
    assert "No run improved on the untrained policy" in " ".join(findings([shifted(runs[0], 10.0, 0.1)]))


def test_tables_fit_80_columns(runs):
    rows = [(name * 4, run.metrics) for name, run in zip(labels(runs), runs, strict=True)]
    lines = comparison(rows, (195, 400, 450)).splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) == 7  # long names have a line of their own
    assert max(map(len, summary_table(runs[0].config, summarise(runs[0].metrics)).splitlines())) <= 80


def test_the_table_of_defences_and_attacks(folders, runs):
    table = attack_table(runs)
    assert (table.defences, table.attacks) == (["decbyzpg · rfa", "decbyzpg · krum"], ["avg-zero", "large-noise"])
    np.testing.assert_allclose(table.returns[0][0], final_mean(folders[0]))
    assert table.returns[0][1].mean() == pytest.approx(final_mean(folders[0]).mean() + 3.25)
    assert table.returns[1][1] is None
    more = runs[0]._replace(config=replace(runs[0].config, seed=7))
    assert len(attack_table([runs[0], more]).returns[0][0]) == 6  # the same experiment with other seeds
    other = runs[0]._replace(config=replace(runs[0].config, eta=0.5))
    assert attack_table([runs[0], other]).defences == [
        f"decbyzpg · rfa, eta={runs[0].config.eta}",
        "decbyzpg · rfa, eta=0.5",
    ]


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
    options = ["--kind", kind, "--out", str(out), "--width", "4", "--statistic", "iqm", "--title", "A title & more"]
    assert main(["plot", *map(str, folders), *options]) == 0
    assert capsys.readouterr().out.strip().splitlines()[-1] == str(out)
    if suffix == ".png":
        assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    else:
        assert "A title &amp; more" in out.read_text()


def axis_texts(axes):
    """Title, axis labels and legend entries."""
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    return axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), legend


@pytest.mark.parametrize("metric", ["returns", "worst_agent", "ess"])
def test_learning_curves_show_mean_and_standard_deviation(runs, metric):
    (axes,) = plots.learning_curves(runs, metric=metric, width=4).axes
    title = "CartPole-v1, decbyzpg, 5 agents, 1 Byzantine\nmean ± standard deviation (n − 1) over seeds"
    assert axis_texts(axes) == (title, "trajectories per agent", METRIC_LABELS[metric], labels(runs))
    assert len(axes.lines) == len(axes.collections) == 3
    for run, line, band in zip(runs, axes.lines, axes.collections, strict=True):
        x, y = smoothed(run.metrics, 4, metric)
        np.testing.assert_allclose(line.get_xydata(), np.stack([x, y.mean(axis=0)], axis=1))
        edges = band.get_paths()[0].vertices[:, 1]
        assert edges.max() == pytest.approx((y.mean(axis=0) + y.std(axis=0, ddof=1)).max())
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
    assert axes.get_title() == "Mine"
    with pytest.raises(jb.UsageError, match="statistic='median' is unknown"):
        plots.learning_curves(runs, statistic="median")
    with pytest.raises(jb.UsageError, match="metric='return' is unknown; did you mean 'returns'"):
        plots.learning_curves(runs, metric="return")


def test_curves_in_panels(runs):
    drawing = plots.learning_curves(runs, facet="attack")
    left, right = drawing.axes
    assert (left.get_title(), right.get_title()) == ("attack avg-zero", "attack large-noise")
    assert [len(axes.lines) for axes in drawing.axes] == [2, 1]
    assert left.lines[0].get_color() == right.lines[0].get_color() != left.lines[1].get_color()
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["rfa", "krum"]
    width = smoothing_width(runs[0].metrics)
    np.testing.assert_allclose(left.lines[0].get_xdata(), smoothed(runs[0].metrics, width)[0])
    with pytest.raises(jb.UsageError, match="facet='atack' is unknown; did you mean 'attack'"):
        plots.learning_curves(runs, facet="atack")


def test_the_smoothing_follows_the_run():
    assert smoothing_width(made_metrics([8] * 1000, [0.0] * 1000)) == 160
    assert smoothing_width(made_metrics([50] * 4, [0.0] * 4)) == 50  # not less than a batch


def test_every_metric_has_a_label(runs):
    assert {name for name, values in runs[0].metrics.items() if values.ndim == 2} == set(METRIC_LABELS)


def test_the_heatmap_shows_final_returns(runs, folders):
    axes, colour_bar = plots.heatmap(runs).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["avg-zero", "large-noise"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["decbyzpg · rfa", "decbyzpg · krum"]
    means = [final_mean(folder).mean() for folder in folders]  # the third is the second row's first column
    expected = np.array([means[:2], [means[2], np.nan]])
    np.testing.assert_allclose(axes.images[0].get_array().filled(np.nan), expected)
    shown = {text.get_position(): text.get_text() for text in axes.texts}
    texts = [mean_and_deviation(final_mean(folder)) for folder in folders]
    assert shown == {(0, 0): texts[0], (1, 0): texts[1], (0, 1): texts[2]}
    assert texts[0] == f"{means[0]:.1f} ± {final_mean(folders[0]).std(ddof=1):.1f}"
    assert axes.images[0].get_clim() == (0, 500)  # the task's own range
    assert axes.get_title().startswith("CartPole-v1, decbyzpg, 5 agents, 1 Byzantine\nfinal honest return, mean ±")
    assert colour_bar.get_ylabel() == "final honest return"
    axes, _ = plots.heatmap(runs, metric="ess", limits=(0.5, 2.0)).axes
    assert axes.images[0].get_clim() == (0.5, 2.0)
    np.testing.assert_allclose(axes.images[0].get_array()[0, 0], final_values(runs[0].metrics, "ess").mean())
    steep = runs[1]._replace(metrics={**runs[1].metrics, "gradient_norm": 2 * runs[1].metrics["gradient_norm"]})
    axes, _ = plots.heatmap([runs[0], steep], metric="gradient_norm").axes
    values = [final_values(run.metrics, "gradient_norm").mean() for run in (runs[0], steep)]
    assert axes.images[0].get_clim() == (min(values), max(values))


def test_the_trust_picture_shows_shares(runs):
    axes, colour_bar = plots.trust(runs[0], intervals=2).axes
    np.testing.assert_allclose(axes.images[0].get_array(), shares_over_time(runs[0], intervals=2).shares)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "1", "2", "3", "4 Byzantine"]
    assert axes.images[0].get_extent()[:2] == [0, runs[0].metrics["trajectories"][0, -1]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("trajectories per agent", "sender")
    assert axes.get_title().startswith("CartPole-v1, decbyzpg · rfa, 5 agents, 1 Byzantine (avg-zero)\nweight of each")
    assert colour_bar.get_ylabel() == "share in the aggregate (equal: 0.2)"


def test_the_diameter_picture_shows_median_and_range(runs):
    y = np.random.default_rng(0).uniform(0.1, 1.0, runs[0].metrics["diameter"].shape)
    (axes,) = plots.diameters([runs[0]._replace(metrics={**runs[0].metrics, "diameter": y})]).axes
    x = 1 + np.arange(y.shape[1])
    np.testing.assert_allclose(axes.lines[0].get_xydata(), np.stack([x, np.median(y, axis=0)], axis=1))
    edges = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == (pytest.approx(y.min()), pytest.approx(y.max()))
    title = "CartPole-v1, decbyzpg · rfa, 5 agents, 1 Byzantine (avg-zero)"
    title += "\ndiameter after agreement: median and range over seeds"
    assert axis_texts(axes) == (title, "iteration", METRIC_LABELS["diameter"], labels(runs[:1]))


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
    message = refused(capsys, "plot", str(folders[0]), "--kind", "agreement", "--run-seed", "99")
    assert "run_seed=99: the run has" in message and "seeds, numbered from 0" in message


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
    for folder, shown in zip(folders, data["runs"], strict=True):
        final = final_mean(folder)
        run = jb.load_run(folder)
        assert shown["seeds"] == pytest.approx(final.tolist())
        assert shown["final"] == pytest.approx({"mean": final.mean(), "std": final.std(ddof=1), "worst": final.min()})
        assert shown["config"]["aggregator"] == run.config.aggregator and shown["machine"] == run.environment
        x, y = smoothed(run.metrics, 4)
        curve = shown["curves"]["returns"]
        assert curve["x"] == x.tolist()
        std = y.std(0, ddof=1)
        np.testing.assert_allclose(curve["mean"], [y.mean(0), y.mean(0) - std, y.mean(0) + std], rtol=1e-5)
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
    assert data["table"]["iqm"][0]["value"] == pytest.approx(interquartile_mean(np.concatenate(strata)))


def test_the_report_loads_nothing(runs):
    text = fill_template({**report_data(runs, title="</script><b>&"), "animations": [], "not_animated": 0})
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
