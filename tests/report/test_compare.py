"""Comparisons of methods: the numbers are those of the runs, in every format."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from run_folders import make_run

import jaxbyz as jb
from jaxbyz.cli import main
from jaxbyz.errors import UsageError
from jaxbyz.report.intervals import bootstrap_mean, difference_of_means, interquartile_mean
from jaxbyz.report.statistics import average_returns, failure_level

ATTACKS = ("avg-zero", "large-noise")


def finals(seed, mean, spread=5.0, seeds=6):
    return np.random.default_rng(seed).normal(mean, spread, seeds)


FINALS = {("krum", "avg-zero"): finals(0, 250), ("krum", "large-noise"): finals(1, 400),
          ("rfa", "avg-zero"): finals(2, 402), ("rfa", "large-noise"): finals(3, 400)}  # fmt: skip
FINALS["krum", "avg-zero"][3] = 25.0


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of two methods under two attacks, with known final returns after an untrained return of 20."""
    root = tmp_path_factory.mktemp("compared")
    found = []
    for (rule, attack), values in FINALS.items():
        options = {"agents": 5, "byzantine": 1, "seeds": len(values), "env": "CartPole-v1"}
        run = jb.load_run(make_run(root / f"{rule}-{attack}", aggregator=rule, attack=attack, **options))
        run.metrics["returns"] = np.repeat(values[:, None], run.metrics["batch"].shape[1], axis=1)
        run.metrics["returns"][:, 0] = 20.0
        np.savez(run.folder / "metrics.npz", **run.metrics)
        found.append(run)
    return found


def row_of(comparison, method, attack):
    (row,) = (row for row in comparison.rows if (row.method, row.attack) == (method, attack))
    return row


def test_rows_have_the_numbers_of_the_runs(runs):
    found = jb.compare(runs, baseline="decbyzpg · rfa")
    assert [row.attack for row in found.rows] == ["all 2"] * 2 + ["avg-zero"] * 2 + ["large-noise"] * 2
    assert found.failure_level == pytest.approx(failure_level([run.metrics for run in runs]))
    assert found.failure_level == pytest.approx(20 + 0.25 * (max(map(np.mean, FINALS.values())) - 20))
    row = row_of(found, "decbyzpg · krum", "avg-zero")
    values = FINALS["krum", "avg-zero"]
    assert row.final == bootstrap_mean(values) and row.robust.value == pytest.approx(interquartile_mean(values))
    assert row.area == bootstrap_mean(average_returns(runs[0].metrics))
    metrics = runs[0].metrics
    assert row.area.value == pytest.approx(np.average(metrics["returns"], axis=1, weights=metrics["batch"][0]).mean())
    assert (row.worst_seed, row.failed, row.results, row.worst_attack) == (25.0, 1, 6, None)
    expected = difference_of_means(values, FINALS["rfa", "avg-zero"], paired=True)
    assert row.difference.estimate == expected and row.difference.paired and row.difference.measured
    assert row_of(found, "decbyzpg · rfa", "avg-zero").difference is None


def test_all_attacks_together(runs):
    """A seed counts once, as its mean over attacks; the worst attack and all failed seeds stand in the row."""
    row = row_of(jb.compare(runs), "decbyzpg · krum", "all 2")
    first, second = FINALS["krum", "avg-zero"], FINALS["krum", "large-noise"]
    assert row.final == bootstrap_mean((first + second) / 2) and row.seeds == 6
    assert row.robust.value == pytest.approx(interquartile_mean(np.concatenate([first, second])))
    assert row.worst_attack == ("avg-zero", pytest.approx(first.mean())) and (row.failed, row.results) == (1, 12)
    fewer = jb.compare(runs[:3])  # RFA was run under one attack
    assert [row.attack for row in fewer.rows] == ["avg-zero", "avg-zero", "large-noise"]


def test_what_no_interval_shows_is_not_called_a_difference(runs):
    first, second, *_ = jb.compare(runs[1], runs[3]).rows
    assert not second.difference.measured and first.difference is None
    (sentence,) = jb.compare(runs[1], runs[3]).sentences()
    assert sentence.startswith(
        "No difference was measured between decbyzpg · rfa and decbyzpg · krum under large-noise"
    )
    assert f"about {second.difference.seeds_needed} seeds per method would show one of this size" in sentence
    (sentence,) = jb.compare(runs[0], runs[2]).sentences()
    assert sentence.startswith("decbyzpg · rfa ends higher than decbyzpg · krum under avg-zero: difference ")


def test_other_seeds_are_not_paired(runs):
    other = runs[2]._replace(config=replace(runs[2].config, seed=100))
    row = jb.compare(runs[0], other).rows[1]
    assert not row.difference.paired
    expected = difference_of_means(FINALS["rfa", "avg-zero"], FINALS["krum", "avg-zero"], paired=False)
    assert row.difference.estimate == expected
    assert "unpaired" in str(jb.compare(runs[0], other))


def test_a_seed_that_became_non_finite_has_failed(runs):
    lost = runs[2]._replace(metrics={**runs[2].metrics, "finite": runs[2].metrics["finite"].copy()})
    lost.metrics["finite"][1, 2] = 0
    found = jb.compare(runs[0], lost)
    row = found.rows[1]
    assert row.failed == 1 and np.isnan(row.final.value) and np.isnan(row.worst_seed)
    finite = np.sort(np.delete(FINALS["rfa", "avg-zero"], 1))
    assert row.robust.value == pytest.approx(finite[:-1].mean())  # it counts as the lowest
    assert f"| – | {finite[:-1].mean():.1f} | – | – | 1/6 | – |" in found.markdown()
    assert "cannot be compared" in found.sentences()[0]


def test_one_or_few_seeds_have_no_interval(runs):
    def shortened(run, seeds):
        return run._replace(metrics={name: rows[:seeds] for name, rows in run.metrics.items()})

    for seeds in (1, 3):
        text = str(jb.compare(shortened(runs[1], seeds), shortened(runs[3], seeds)))
        assert "nan" not in text and "±" not in text and "[" not in text
        assert "fewer than 5 seeds give no interval" in text and "of this size" not in text


def test_the_formats_agree(capsys, runs, tmp_path):
    folder, files = str(runs[0].folder.parent), [tmp_path / f"table{ending}" for ending in (".md", ".csv", ".tex")]
    outs = [word for file in files for word in ("--out", str(file))]
    assert main(["compare", folder, "--baseline", str(runs[2].folder), *outs]) == 0
    found = jb.compare(folder, baseline="decbyzpg · rfa")
    markdown, table, latex = (file.read_text() for file in files)
    assert capsys.readouterr().out.strip() == markdown.strip() == found.markdown()
    records = list(csv.DictReader(io.StringIO(table)))
    assert [float(record["final"]) for record in records] == [float(row.final.value) for row in found.rows]
    assert records[0]["worst_attack"] == "avg-zero" and records[1]["difference"] == ""
    cells = [line.split(" & ") for line in latex.splitlines() if " & " in line]
    assert len(cells) == 7 and len({len(row) for row in cells}) == 1
    shown = [line.strip("|").split("|") for line in markdown.splitlines() if line.startswith("| decbyzpg")]
    assert [row[3].strip() for row in shown] == [row[3] for row in cells[1:]]
    assert r"decbyzpg $\cdot$ krum" in latex and r"\toprule" in latex


def test_bad_comparisons_are_refused(capsys, runs, tmp_path):
    with pytest.raises(UsageError, match="all runs are of one method, decbyzpg · krum"):
        jb.compare(runs[:2])
    with pytest.raises(UsageError, match="baseline=median: must be a run folder or one of decbyzpg · krum, "):
        jb.compare(runs, baseline="median")
    with pytest.raises(UsageError, match="holds several methods"):
        jb.compare(runs, baseline=runs[0].folder.parent)
    with pytest.raises(UsageError, match="no runs"):
        jb.compare([])
    assert main(["compare", str(runs[0].folder), "--out", str(tmp_path / "table.xls")]) == 2
    assert "must end in .md, .csv or .tex" in capsys.readouterr().err
