"""The benchmark where something is missing, short, diverged or refused: one bad part does not hide the others."""

from __future__ import annotations

import json

import numpy as np
import pytest
from benchmark_results import ENTRIES, RETURNS, SUITE, entries, made_up, make_results, write_suite

from jaxbyz.benchmark import tuning
from jaxbyz.benchmark.checks import load_results
from jaxbyz.benchmark.entries import Cell, cell_config, cells_of, parse_entries, with_step_sizes
from jaxbyz.benchmark.leaderboard import load_leaderboard
from jaxbyz.benchmark.records import write_record
from jaxbyz.benchmark.reference_scores import References, references_of
from jaxbyz.benchmark.results import measurements, write_result
from jaxbyz.benchmark.running import RuleToCertify, rules_to_certify, run_cells
from jaxbyz.benchmark.sharing import Sharing, sharing_of
from jaxbyz.benchmark.suite import load_suite
from jaxbyz.benchmark.table import both_tables, verdict
from jaxbyz.benchmark.tuning import average_returns, load_step_sizes, tune_if_missing, tuning_config
from jaxbyz.cli import main
from jaxbyz.errors import UsageError
from jaxbyz.runs.loop import Experiment

CELL = Cell("easy", "k5", "robust", "avg-zero")


def test_a_seed_that_ends_below_its_budget_is_not_diverged(tmp_path):
    """FedPG-BR waits in iterations without trajectories, which the plan counts as small batches."""
    path, folder = make_results(tmp_path)
    suite = load_suite(path)
    config = cell_config(suite, CELL, entries()["robust"].options)  # a budget of 6 trajectories
    metrics = {
        "returns": np.repeat([[20.0, 99.0, 40.0]], 8, axis=0),
        "trajectories": np.array([[2, 2, 4]] * 7 + [[2, 4, 6]]),
        "finite": np.array([[1, 1, 1]] * 6 + [[1, 0, 1]] + [[1, 1, 1]]),
        "bytes_sent": np.zeros((8, 3)),
    }
    found = measurements(config, metrics)
    assert found["finite"] == [True] * 6 + [False, True]
    np.testing.assert_allclose(found["average"], [30.0] * 6 + [np.nan, 53.0])
    np.testing.assert_allclose(found["final"], [40.0] * 6 + [np.nan, 40.0])
    np.testing.assert_allclose(found["return"][0], [20.0, 20.0, 40.0, 40.0, np.nan, np.nan])
    # The curve shows the seeds that have sampled something, and ends where no seed has.
    for last, end in ((6, 40.0), (4, None)):
        metrics["trajectories"][7, 1:] = last - 2, last
        write_result(folder, suite, CELL, entries()["robust"].options, config, metrics, 1.0)
        settings = {entry["name"]: entry["settings"] for entry in load_leaderboard(str(path), folder)["entries"]}
        curve = settings["robust"][0]["cells"]["avg-zero"]["curve"]
        assert (
            curve["mean"][:2] == curve["high"][:2] == [20.0] * 2 and curve["mean"][4:] == curve["low"][4:] == [end] * 2
        )


def test_tables_of_partial_and_diverged_results(tmp_path, capsys):
    path, folder = make_results(tmp_path)
    suite = load_suite(path)
    returns = 30.0 + np.arange(12)
    for diverged, reference in ((1, 34.5), (4, -np.inf)):  # of twelve; the three lowest and highest are discarded
        made_up(folder, suite, Cell("easy", "k5", "mean", "none"), np.where(returns > 41 - diverged, np.nan, returns))
        assert references_of(suite, load_results(folder, suite), "easy", "k5") == References(10.0, reference)
    board = load_leaderboard(str(path), folder)
    assert board["ranked"] == [] and "| easy k5 | 10.0 (10.0 to 10.0) | – | – | – |" in both_tables(board)
    assert not References(-np.inf, 30.0).make_scale and not References(np.nan, 30.0).make_scale
    for file in folder.glob("*.mean.none.json"):
        file.unlink()
    for option in ([], ["--attacks"]):
        assert main(["benchmark", "table", str(path), str(folder), *option]) == 0
    assert "| robust | – | – | – | – | – |" in capsys.readouterr().out


def test_the_verdict_is_the_worst_one_and_needs_all_certificates():
    def of(*texts):
        return verdict([{"certificates": dict(enumerate(texts))}])

    assert of("cleared", "cleared: nothing found") == "cleared"
    assert of("cleared", None) == of(None) == of() == verdict([]) == "–"
    assert of("cleared", "refused: needs more agents") == of(None, "refused: needs more agents") == "refused"
    assert of("refused: needs more agents", "broken: found", "cleared") == "broken"


def test_files_of_another_kind_are_refused_in_one_line(tmp_path):
    path, folder = make_results(tmp_path)
    suite = load_suite(path)
    with pytest.raises(UsageError, match="no tuning results here"):
        load_step_sizes(folder, suite)
    content = {"federation": "k5", "rule": "rfa"}
    for certificate, said in (({}, "neither a result nor a certificate"), ({"certificate": {}}, "verdict is missing")):
        write_record(folder / "certificate.k5.rfa.json", suite, {**content, **certificate})
        with pytest.raises(UsageError, match=said):
            load_leaderboard(str(path), folder)


def test_federations_of_one_size_share_certificates(tmp_path):
    suite_text = SUITE.replace("agents = 9\nbyzantine = 2", "agents = 5\nbyzantine = 1")
    path = write_suite(tmp_path, suite_text)
    suite = load_suite(path)
    assert [suite.first_of_size(name) for name in ("k5", "k9")] == ["k5", "k5"]
    robust = {"robust": entries()["robust"]}
    rules = rules_to_certify(suite, robust, cells_of(suite, robust))
    assert rules == [RuleToCertify("k5", "rfa"), RuleToCertify("k5", "agreement/trimmed-mean")]
    for cell in cells_of(suite, robust):
        seeds = suite.seeds.count if cell.entry == "robust" else suite.seeds.references
        made_up(tmp_path, suite, cell, np.full(seeds, RETURNS[cell.entry, cell.attack]))
    content = {"federation": "k5", "rule": "rfa"}
    certificate = {"verdict": "cleared", "reason": ""}
    write_record(tmp_path / "certificate.k5.rfa.json", suite, {**content, "certificate": certificate})
    (entry,) = load_leaderboard(str(path), tmp_path)["entries"]
    verdicts = [setting["certificates"] for setting in entry["settings"]]
    assert verdicts == [{"rfa": "cleared", "agreement/trimmed-mean": None}] * 2


def test_one_bad_entry_does_not_stop_the_others(tmp_path, capsys):
    """Its cells fail and are named; the rules of the others are certified."""
    path, folder = make_results(tmp_path)
    suite = load_suite(path)
    described = {**ENTRIES, "bad": {"summary": "", "algorithm": "decbyzpg", "N": -1}}
    competing = parse_entries(described, "mine.toml")
    cells = cells_of(suite, competing)
    assert Cell("easy", "k9", "bad", "none") in cells and Cell("easy", "k9", "central", "none") not in cells
    rules = rules_to_certify(suite, competing, cells)
    assert RuleToCertify("k5", "rfa") in rules and rules == rules_to_certify(
        suite, entries(), cells_of(suite, entries())
    )
    mine = tmp_path / "mine.toml"
    mine.write_text('[bad]\nsummary = ""\nalgorithm = "decbyzpg"\nN = -1\n')
    assert main(["benchmark", "run", str(path), "--entries", str(mine), "--out", str(folder)]) == 1
    assert "easy.k5.bad.none and 5 more failed: N=-1" in capsys.readouterr().err
    best = {("easy", "bad"): 0.3, ("easy", "robust"): 0.4, ("gone", "robust"): 0.5}
    tuned = with_step_sizes(suite, {**competing, "bad": competing["bad"]._replace(options={"eta": "x"})}, best)
    assert tuned["bad"].options_on("easy") == {"eta": "x"} and tuned["robust"].by_task == {"easy": {"eta": 0.4}}


def test_tuning_and_the_run_keep_the_decay_of_the_step_size(tmp_path):
    suite = load_suite(write_suite(tmp_path))  # its step size is 0.1
    own = {"summary": "", "algorithm": "decbyzpg", "aggregator": "rfa", "eta": 0.4, "eta_end": 0.1}
    competing = parse_entries({"mine": own}, "mine.toml")
    config = tuning_config(suite, competing, "mine", "easy", "none")
    assert (config.eta, config.eta_end) == (0.1, pytest.approx(0.025))
    assert (config.seed, config.seeds) == (1000, 2)
    tuned = with_step_sizes(suite, competing, {("easy", "mine"): 0.05})["mine"].options_on("easy")
    run = cell_config(suite, CELL._replace(entry="mine"), tuned)  # 0.05 is below the entry's own final step size
    assert (run.eta, run.eta_end) == (0.05, pytest.approx(0.0125))
    # A decay of the task itself is kept in the same way, and a constant step size stays constant.
    decaying = load_suite(write_suite(tmp_path, SUITE.replace("eta = 0.1", "eta = 0.1\neta_end = 0.05")))
    assert with_step_sizes(decaying, entries(), {("easy", "robust"): 0.02})["robust"].by_task["easy"] == {
        "eta": 0.02,
        "eta_end": pytest.approx(0.01),
    }
    assert tuning_config(suite, entries(), "central", "easy", "none").eta_end is None


def test_attacks_that_try_the_rule_have_programs_of_their_own():
    """Tuning and training share the program of an attack that both use."""
    suite, setting = load_suite("v2-lite"), ("catch", "k13")
    others = sharing_of(suite, setting, ("mimic", "alie"))
    assert not {"normalized", "opt-ipm"} & set(others.attacks) and others.at_once == 40  # two attacks, five step sizes
    assert sharing_of(suite, setting, ("opt-ipm",)) == Sharing(("opt-ipm",), 20)
    assert sharing_of(load_suite("v1"), ("cartpole", "k13"), ("gradient-found",)) is None  # not tuned


def planned(returns: np.ndarray, batch: np.ndarray, finite: np.ndarray):
    """Return a stand-in for `train_planned` that trained with these metrics `[G, T]`."""

    def train(config, attacks, factors, sharing=None):
        def run(g):
            rows = {"returns": returns, "batch": batch, "finite": finite, "trajectories": np.cumsum(batch, axis=1)}
            metrics = {name: np.broadcast_to(row[g], (config.seeds, row.shape[1])) for name, row in rows.items()}
            return Experiment(config, metrics, {}, bool(np.all(finite[g])))

        return [[run(g) for g in range(len(factors))] for _ in attacks]

    return train


def test_tuning_measures_what_is_scored_and_notices_other_options(tmp_path, monkeypatch):
    """The first step size has the better average, the second the better end."""
    returns = np.array([[40.0] * 10, [0.0] * 9 + [90.0]])
    batch, finite = np.full((2, 10), 2), np.ones((2, 10))
    monkeypatch.setattr(tuning, "train_planned", planned(returns, batch, finite))
    average = load_suite(write_suite(tmp_path))
    final = load_suite(write_suite(tmp_path, SUITE.replace('measure = "average"', 'measure = "final"')))
    config = tuning_config(average, entries(), "robust", "easy", "none")
    assert average_returns(config, ("none",), np.ones(2)).tolist() == [[40.0, 9.0]]
    np.testing.assert_allclose(average_returns(config, ("none",), np.ones(2), share=0.15), [[40.0, 60.0]])
    assert tune_if_missing(average, entries(), "robust", "easy", tmp_path) == 0.05
    (tmp_path / "final").mkdir()
    assert tune_if_missing(final, entries(), "robust", "easy", tmp_path / "final") == 0.1
    # The file is reused only with the same options. Files that do not say their options are trusted.
    changed = parse_entries({**ENTRIES, "robust": {**ENTRIES["robust"], "aggregator": "median"}}, "mine.toml")
    with pytest.raises(UsageError, match=r"made with other options \(aggregator\)"):
        tune_if_missing(average, changed, "robust", "easy", tmp_path)
    file = tmp_path / "easy.robust.json"
    older = {key: value for key, value in json.loads(file.read_text()).items() if key not in ("config", "hash")}
    write_record(file, average, older)
    assert tune_if_missing(average, changed, "robust", "easy", tmp_path) == 0.05
    assert load_step_sizes(tmp_path, average) == {("easy", "robust"): 0.05}
    # A step size with which everything diverges is not chosen.
    monkeypatch.setattr(tuning, "train_planned", planned(returns, batch, 0 * finite))
    with pytest.raises(UsageError, match="task easy, entry central: a seed became non-finite with every step size"):
        tune_if_missing(average, entries(), "central", "easy", tmp_path)
    assert not (tmp_path / "easy.central.json").exists()


def test_settings_can_be_chosen_and_missing_scores_are_explained(tmp_path, capsys):
    path, folder = make_results(tmp_path)
    (folder / "easy.k5.robust.avg-zero.json").unlink()
    assert main(["benchmark", "table", str(path), str(folder)]) == 0
    shown = capsys.readouterr()
    assert "easy k9" in shown.out and "1 of 2 entries lack results and have no overall score" in shown.err
    assert main(["benchmark", "table", str(path), str(folder), "--federation", "k9"]) == 0
    assert "easy k5" not in capsys.readouterr().out
    assert main(["benchmark", "table", str(path), str(folder), "--task", "esay"]) == 2
    assert "did you mean 'easy'" in capsys.readouterr().err


def test_mistakes_in_entries_are_said_before_anything_is_trained(tmp_path, capsys):
    path, _ = make_results(tmp_path)
    wrong, said = parse_entries({"x": {"summary": "", "aggregator": "nope"}}, "mine.toml"), []
    cells = [cell for cell in cells_of(load_suite(path), wrong) if cell.entry == "x"]
    failed = run_cells(load_suite(path), wrong, cells, tmp_path / "out", log=said.append)
    assert len(said) == 1 and said[0].startswith("entry x cannot be run: aggregator='nope' is unknown")
    assert failed.keys() == {cell.name for cell in cells}
    mine = tmp_path / "mine.toml"
    mine.write_text('[x]\nsummary = ""\n[x.tasks.esay]\neta = 0.1\n')
    assert main(["benchmark", "list", str(path), "--entries", str(mine)]) == 2
    assert "entry x: task='esay' is unknown; did you mean 'easy'" in capsys.readouterr().err
    assert main(["benchmark", "list", str(path), "--attack", "alie"]) == 2
    assert "a suite file of your own can name others" in capsys.readouterr().err
