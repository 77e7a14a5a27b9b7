"""Paired scores: what they are, whom the worst attack is chosen by, and how often their intervals hold the truth."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from benchmark_results import GAINS, PAIRED, entries, paired_results, write_suite

from jaxbyz.benchmark.checks import load_results
from jaxbyz.benchmark.entries import Cell, cell_config, cells_of, options_of
from jaxbyz.benchmark.leaderboard import load_leaderboard
from jaxbyz.benchmark.merging import merge
from jaxbyz.benchmark.paired_scores import worst_on_other_seeds
from jaxbyz.benchmark.scoring import score_entries
from jaxbyz.benchmark.suite import load_suite
from jaxbyz.benchmark.table import both_tables
from jaxbyz.benchmark.tuning import tune
from jaxbyz.cli import main
from jaxbyz.errors import UsageError

ROOT = Path(__file__).parents[2]


def test_scores_are_gains_over_one_agent_on_the_same_seeds(tmp_path):
    path, folder = paired_results(tmp_path)
    suite = load_suite(path)
    robust = score_entries(suite, load_results(folder, suite))["robust"]["easy", "k5"]
    cell = robust.attacks["avg-zero"]
    assert float(cell.score.value) == pytest.approx(0.5) and cell.seeds == pytest.approx(
        GAINS["robust", "avg-zero"] / 20
    )
    assert float(cell.besides["gain"].value) == pytest.approx(10.0) and cell.besides["failed"] == 0.0
    assert robust.attacks["large-noise"].besides["failed"] == 1 / 8
    assert robust.attacks["large-noise"].besides["robust"] == pytest.approx(
        19.0 / 20.0
    )  # middle four; it hides the failure
    # The interval contains the noise of the references: the gain of 20 is itself uncertain.
    assert float(robust.unattacked.score.low) < 1.0 < float(robust.unattacked.score.high)
    assert robust.worst == "avg-zero" and float(robust.total.score.value) == pytest.approx(0.5)


def test_the_worst_attack_is_chosen_on_other_seeds():
    """One terrible seed makes its attack the worst for all seeds but those of its own part."""
    returns = np.zeros((10, 2))
    returns[3, 1] = -100.0
    returns[:, 0] = -1.0
    chosen = worst_on_other_seeds(returns)
    assert chosen[[3, 8]].tolist() == [0, 0] and np.delete(chosen, [3, 8]).tolist() == [1] * 8
    rng = np.random.default_rng(0)
    drawn = [rng.normal(size=(20, 8)) for _ in range(400)]  # the attacks are equally bad: the true worst mean is 0
    plain = np.mean([rows.mean(axis=0).min() for rows in drawn])
    crossed = np.mean([rows[np.arange(20), worst_on_other_seeds(rows)].mean() for rows in drawn])
    assert plain < -0.25 and abs(crossed) < 0.05


def test_a_task_counts_once_and_a_seed_without_result_as_the_floor(tmp_path):
    gains = {**GAINS, ("robust", "avg-zero"): np.array([np.nan, *[10.0] * 7])}
    text = PAIRED.replace("ranked = false\ndecentralised = true", "decentralised = true")
    path, folder = paired_results(tmp_path, gains, text)
    board = load_leaderboard(str(path), folder)
    robust = next(entry for entry in board["entries"] if entry["name"] == "robust")
    assert robust["overall"]["value"] == pytest.approx((7 * 10.0 - 20.0) / 8 / 20)
    assert board["ranked"] == [["easy", "k5"], ["easy", "k9"]]
    text = text.replace("[tasks.easy]", "[tasks.easy]\nranked = false")
    assert not load_suite(write_suite(tmp_path, text)).is_ranked("easy", "k5")


def test_the_pooled_learner_has_the_samples_of_all_agents(tmp_path):
    suite = load_suite(write_suite(tmp_path, PAIRED))
    cell = Cell("easy", "k9", "pooled", "none")
    assert cell in cells_of(suite, entries())
    config = cell_config(suite, cell, options_of(suite, {}, cell))
    assert (config.agents, config.N, config.B, config.trajectories) == (1, 9 * 2, 9 * 1, 9 * 6)


def test_tuning_uses_the_attacks_that_are_worst_on_the_tuning_seeds(tmp_path, monkeypatch):
    text = PAIRED.replace('attacks = ["none", "avg-zero"]', 'attacks = ["none", "avg-zero", "large-noise"]\nworst = 1')
    suite, asked = load_suite(write_suite(tmp_path, text)), []

    def average(config, attacks, factors, sharing, share):
        asked.append((attacks, factors.tolist()))
        return np.array([[{"none": 3.0, "avg-zero": 2.0, "large-noise": 1.0}[a] - f for f in factors] for a in attacks])

    monkeypatch.setattr("jaxbyz.benchmark.tuning.average_returns", average)
    found = tune(suite, entries(), "robust", "easy")
    assert asked == [(("none", "avg-zero", "large-noise"), [1.0]), (("large-noise",), [0.5, 1.0])]
    assert found.best == 0.05 and found.screened == {"none": 2.0, "avg-zero": 1.0, "large-noise": 0.0}
    for wrong, said in (("worst = 9", "there are 3 tuning attacks"), ("worst = -1", "must be at least 0")):
        with pytest.raises(UsageError, match=said):
            load_suite(write_suite(tmp_path, text.replace("worst = 1", wrong)))


def test_the_board_the_table_and_an_independent_script_agree(tmp_path, capsys, monkeypatch):
    path, folder = paired_results(tmp_path)
    merge([folder], tmp_path / "all.jsonl.gz", load_suite(path), print)
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "suite")
    again = importlib.import_module("recompute").recompute(str(path), str(tmp_path / "all.jsonl.gz"))
    board = load_leaderboard(str(path), folder)
    for entry in board["entries"]:
        assert entry["overall"]["value"] == pytest.approx(again[entry["name"]]["overall"])
        for setting in entry["settings"]:
            name = f"{setting['task']}.{setting['federation']}"
            assert setting["score"]["value"] == pytest.approx(again[entry["name"]][name])
    assert main(["benchmark", "table", str(path), str(folder)]) == 0
    text = capsys.readouterr().out
    assert (
        text.strip() == both_tables(board)
        and "| robust | 0.50 (" in text
        and "| easy k5 | 10.0 | 30.0 | 40.0 |" in text
    )
    page = tmp_path / "board.html"
    assert main(["benchmark", "page", str(path), str(folder), "--out", str(page)]) == 0
    drawn = json.loads(page.read_text().split('<script id="data" type="application/json">')[1].split("</script>")[0])
    assert drawn["entries"] == board["entries"]


@pytest.mark.parametrize("suite", ["v2", "v2-lite"])
def test_published_scores_follow_from_the_files(suite, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "suite")
    results = ROOT / f"benchmarks/results/benchmark/{suite}.jsonl.gz"
    again = importlib.import_module("recompute").recompute(
        str(ROOT / f"jaxbyz/benchmark/suites/{suite}.toml"), str(results)
    )
    page = (ROOT / f"docs/leaderboard-{suite}.html").read_text("utf-8")
    drawn = json.loads(page.split('<script id="data" type="application/json">')[1].split("</script>")[0])
    assert {entry["name"] for entry in drawn["entries"]} == again.keys()
    for entry in drawn["entries"]:
        for setting in entry["settings"]:
            for attack, cell in setting["cells"].items():
                if attack != "none" and setting["score"] is not None:
                    name = f"{setting['task']}.{setting['federation']}.{attack}"
                    assert cell["score"]["value"] == pytest.approx(again[entry["name"]][name], abs=1e-9)
        if entry["overall"] is not None:
            assert entry["overall"]["value"] == pytest.approx(again[entry["name"]]["overall"], abs=1e-9)


def test_intervals_contain_the_truth_in_the_simulation(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "suite")
    simulate = importlib.import_module("interval_coverage").simulate_paired
    rng = np.random.default_rng(0)
    populations = [(rng.normal(0.5, 0.5, (40, 6)), rng.normal(1.0, 0.3, 40)) for _ in range(3)]  # attacks are close
    found = simulate(populations, 20, 200, 200, np.random.default_rng(1))
    assert found["coverage"] >= 0.92 and found["chosen on all seeds"] < found["true"] <= found["estimated"] + 0.02
