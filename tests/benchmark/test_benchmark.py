"""The benchmark: suites and results are checked, scores are what they should be, and runs resume, merge and verify."""

from __future__ import annotations

import gzip
import importlib
import json
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from benchmark_results import SUITE, entries, made_up, make_results, result_path, write_suite
from scipy import stats

from jaxbyz.benchmark.checks import check_result, load_results
from jaxbyz.benchmark.entries import Cell, cell_config, cells_of, load_entries, parse_entries, reference_cells
from jaxbyz.benchmark.export import marl_eval, rliable
from jaxbyz.benchmark.leaderboard import load_leaderboard
from jaxbyz.benchmark.merging import merge
from jaxbyz.benchmark.records import hash_of, read_record, read_records, write_record
from jaxbyz.benchmark.reference_scores import References, normalise, references_of
from jaxbyz.benchmark.results import measurements, result_of
from jaxbyz.benchmark.running import run_cells
from jaxbyz.benchmark.scoring import score_entries
from jaxbyz.benchmark.suite import load_suite, suite_names
from jaxbyz.benchmark.table import both_tables
from jaxbyz.benchmark.tuning import average_returns, load_step_sizes, tune
from jaxbyz.benchmark.verify import choose, compare
from jaxbyz.cli import main
from jaxbyz.errors import UsageError
from jaxbyz.report.statistics import probability_of_improvement, window_averages
from jaxbyz.runs.run import run

ROOT = Path(__file__).parents[2]
# A released suite never changes: a new number here means that it must have a new name instead.
RELEASED = {
    "v1": "d06089ad1422d6a9", "v1-lite": "45a3b922779d752e", "v2": "0a73e8ab71dd0802", "v2-lite": "3d802764af6c5a53"
}  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """(suite file, folder of results)."""
    return make_results(tmp_path_factory.mktemp("benchmark"))


def test_suites_of_the_package_are_valid_and_unchanged():
    assert {"v1", "v1-lite", "v2", "v2-lite"} <= set(suite_names())
    for name in suite_names():
        suite = load_suite(name)
        competing = load_entries(None, suite.entries)
        assert suite.name == name and suite.seeds.count >= 10 and suite.hash == RELEASED.get(name, suite.hash)
        for cell in cells_of(suite, competing):  # every entry makes a configuration in every setting
            if cell.entry in competing and cell.attack == suite.attacks[0]:
                config = cell_config(suite, cell, competing[cell.entry].options_on(cell.task))
                assert config.coin == "own" and config.seeds == suite.seeds.count


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("count = 8", "count = 0", "seeds.count=0: must be at least 1"),
        ("count = 8", "", "seeds.count is missing"),
        ("threshold = 30.0", "treshold = 30.0", "tasks.easy.threshold is missing; there is 'treshold'"),
        ("references = 12", "references = 1.5", "seeds.references=1.5 is not of type int"),
        ("floor = -1.0", 'floor = "low"', "statistics.floor=low is not of type float"),
        ('measure = "average"', 'measure = "median"', "statistics.measure=median: must be average or final"),
        ("first = 1000", "first = 7", "tuning seeds and seeds of the suite must differ"),
        ("threshold = 30.0", "threshold = 30.0\ncolour = 1", "tasks.easy.colour is unknown"),
        ("threshold = 30.0", 'threshold = 30.0\nwithout = ["mimic"]', "tasks.easy.without: 'mimic' is not an attack"),
        ("threshold = 30.0", 'threshold = 30.0\nwithout = "alie"', "tasks.easy.without=alie is not of type list"),
        ("ranked = false", 'ranked = false\nwithout = ["mimic"]', "federations.k9.without: 'mimic' is not an attack"),
        ("ranked = false", 'ranked = false\nwithout = ["avg-zero"]', "federations.k9.without: 'avg-zero' is needed"),
        ("hidden = [2]", "hiden = [2]", "did you mean 'hidden'?"),
        ("hidden = [2]", "agents = 3", "tasks.easy.fixed.agents: the suite sets this option itself"),
        ('env = "TabularMDP"', 'env = "Chess"', "task easy, federation k5: env"),
        ('"large-noise"]', '"loud-noise"]', "attack"),
        ('easy = ["k5", "k9"]', 'easy = ["k6"]', "settings.easy: the suite has no federation 'k6'"),
        ("[tasks.easy.fixed]", "[tasks.easy.fixed", "not readable as TOML"),
        ("[federations.k5]", "[federations.K_5]", "'K_5' must consist of lowercase letters"),
        ("factors = [0.5, 1.0]", "factors = [0.5, -1]", "tuning.factors=[0.5, -1]: must be a list of positive numbers"),
        ("byzantine = 1", "byzantine = 9", "byzantine=9 of agents=5"),
        ('name = "tiny"', 'name = "tiny"\nreleased = 2024-01-01', "released is unknown"),
        ("eta = 0.05", "eta = 2024-01-01", "tasks.easy.alone.eta=2024-01-01: must not be a date"),
        ("eta = 0.05", "eta = inf", "tasks.easy.alone.eta=inf: must not be a date, a time or non-finite"),
        ("floor = -1.0", "floor = nan", "statistics.floor=nan: must be finite"),
        (
            "factors = [0.5, 1.0]",
            "factors = [0.5, inf]",
            "tuning.factors=[0.5, inf]: must be a list of positive numbers",
        ),
    ],
)
def test_bad_suites_are_refused_in_one_line(tmp_path, before, after, said):
    assert before in SUITE
    with pytest.raises(UsageError) as error:
        load_suite(write_suite(tmp_path, SUITE.replace(before, after, 1)))
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"mean": {"summary": "x"}}, "'mean' is a reference of every suite"),
        ({"x": {"algorithm": "byzpg"}}, "x.summary is missing"),
        ({"x": {"summary": "", "attack": "none"}}, "x.attack: the suite sets this option itself"),
        ({"x": {"summary": "", "tasks": {"easy": {"etta": 1}}}}, "did you mean 'eta'?"),
        ({"x": {"summary": "", "preset": "default"}}, "x: option 'preset' is unknown"),
        ({"x": {"summary": "", "eta": float("nan")}}, "x.eta=nan: must not be a date"),
        ({}, "names no entry"),
    ],
)
def test_bad_entries_are_refused_in_one_line(entry, said):
    with pytest.raises(UsageError, match=said.replace("?", r"\?")):
        parse_entries(entry, "mine.toml")


def test_an_entry_cannot_change_what_the_suite_fixes(tmp_path):
    suite = load_suite(write_suite(tmp_path))
    with pytest.raises(UsageError, match="entry robust: trajectories is fixed by the suite on task easy"):
        cell_config(suite, Cell("easy", "k5", "robust", "none"), {"trajectories": 9})
    # Changing any number makes another suite; comments do not.
    assert load_suite(write_suite(tmp_path, "# comment\n" + SUITE)).hash == suite.hash
    assert load_suite(write_suite(tmp_path, SUITE.replace("eta = 0.05", "eta = 0.06"))).hash != suite.hash


def test_cells_have_references_and_leave_servers_out_of_decentralised_federations(tmp_path):
    suite = load_suite(write_suite(tmp_path))
    names = [cell.name for cell in cells_of(suite, entries())]
    assert len(names) == len(set(names)) == 1 + 2 + 3 * 3
    assert names[:2] == ["easy.one-agent.alone.none", "easy.k5.mean.none"]
    assert "easy.k9.robust.avg-zero" in names and "easy.k9.central.avg-zero" not in names
    mean = cell_config(suite, Cell("easy", "k9", "mean", "none"), {"algorithm": "dec-page-pg"})
    assert (mean.agents, mean.byzantine) == (9, 0)


def test_scores_of_known_results(results):
    suite = load_suite(results[0])
    scores = score_entries(suite, load_results(results[1], suite))
    robust, central = scores["robust"]["easy", "k5"], scores["central"]["easy", "k5"]
    assert float(robust.attacks["avg-zero"].score.value) == pytest.approx(0.75)
    assert robust.worst == "large-noise" and tuple(map(float, robust.total.score)) == pytest.approx((0.5, 0.5, 0.5))
    assert robust.unattacked is not None and float(robust.unattacked.score.value) == pytest.approx(1.0)
    # (−100 − 10) / 20 is below the floor; 40 is better than the mean.
    assert central.worst == "large-noise" and float(central.total.score.value) == -1.0
    assert float(central.attacks["avg-zero"].score.value) == pytest.approx(1.5)
    assert robust.attacks["avg-zero"].reached_at != robust.attacks["avg-zero"].reached_at  # 25 < threshold: never
    assert central.attacks["avg-zero"].reached_at == 1  # the first point of the curve


def test_the_leaderboard_ranks_and_explains(results):
    board = load_leaderboard(str(results[0]), results[1])
    assert [entry["name"] for entry in board["entries"]] == ["robust", "central"]
    robust, central = board["entries"]
    assert robust["overall"]["value"] == pytest.approx(0.5)  # k9 is not ranked
    assert len(robust["settings"]) == 2 and len(central["settings"]) == 1
    assert robust["settings"][0]["worst_attack"] == "large-noise" and central["settings"][0]["worst_seed"] == -1.0
    # robust beats central under large-noise and loses under avg-zero, with every seed.
    assert board["improvement"][0][1]["value"] == pytest.approx(0.5)
    assert np.mean(robust["profile"]) == pytest.approx(np.mean(np.array(board["levels"]) <= 0.5))
    assert robust["settings"][0]["certificates"] == {"rfa": None, "agreement/trimmed-mean": None}


def test_an_attack_that_a_task_leaves_out_is_named(tmp_path, capsys):
    path = write_suite(tmp_path, SUITE.replace("threshold = 30.0", 'threshold = 30.0\nwithout = ["large-noise"]'))
    assert main(["benchmark", "list", str(path), "--attack", "large-noise"]) == 0
    assert "task easy, federation k5: run without large-noise" in capsys.readouterr().err


def test_a_setting_without_all_attacks_has_no_score(tmp_path):
    path, folder = make_results(tmp_path)
    result_path(folder, Cell("easy", "k5", "robust", "avg-zero")).unlink()
    board = load_leaderboard(str(path), folder)
    assert [entry["name"] for entry in board["entries"]] == ["central", "robust"]  # incomplete entries are last
    assert board["entries"][1]["overall"] is None
    assert board["entries"][1]["settings"][0]["missing"] == ["avg-zero"]
    # Without the references there is no scale, and with a federation that is worse than one agent neither.
    suite = load_suite(path)
    made_up(folder, suite, Cell("easy", "k5", "mean", "none"), np.full(12, 9.0))
    assert references_of(suite, load_results(folder, suite), "easy", "k5") == References(10.0, 9.0)
    assert ("easy", "k5") not in score_entries(suite, load_results(folder, suite))["central"]
    result_path(folder, Cell("easy", "k5", "mean", "none")).unlink()
    assert references_of(suite, load_results(folder, suite), "easy", "k5") is None


def test_non_finite_seeds_count_as_the_floor(tmp_path):
    path, folder = make_results(tmp_path)
    suite, cell = load_suite(path), Cell("easy", "k5", "robust", "avg-zero")
    made_up(folder, suite, cell, np.array([30.0, np.nan, 30.0, 30.0, 30.0, 30.0, 30.0, 30.0]))
    result = result_of(read_record(result_path(folder, cell), suite))
    assert result.finite.sum() == 7 and np.isnan(result.average[1])
    scores = normalise(result.average, References(10.0, 30.0), -1.0)
    assert scores.tolist() == [1.0, -1.0, *[1.0] * 6]
    assert load_leaderboard(str(path), folder)["entries"][0]["settings"][0]["worst_seed"] == -1.0


def test_statistics_against_independent_ones():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=9), rng.normal(0.5, size=7)
    wins = [(a > b) + 0.5 * (a == b) for a in x for b in y]
    found = probability_of_improvement([(x, y), (y, x)])
    assert float(found.value) == pytest.approx(0.5) and found.low < 0.5 < found.high
    found = probability_of_improvement([(x, y)])
    assert float(found.value) == pytest.approx(np.mean(wins)) and found.low <= found.value <= found.high
    assert float(probability_of_improvement([(np.ones(3), np.ones(4))]).value) == 0.5
    # Windows of a curve with batches of different size.
    metrics = {"trajectories": np.array([[2, 6, 8]]), "returns": np.array([[1.0, 2.0, 5.0]])}
    averages = window_averages(metrics, np.array([0.0, 4.0]), np.array([8.0, 8.0]))
    assert averages.tolist() == [[(2 * 1 + 4 * 2 + 2 * 5) / 8, (2 * 2 + 2 * 5) / 4]]


def test_bootstrap_intervals_are_percentiles(tmp_path):
    """The interval of a cell equals that of SciPy's percentile bootstrap, up to the noise of resampling."""
    path, folder = make_results(tmp_path)
    suite, cell = load_suite(path), Cell("easy", "k5", "robust", "avg-zero")
    returns = np.array([10.0, 14.0, 18.0, 20.0, 22.0, 26.0, 30.0, 50.0])
    made_up(folder, suite, cell, returns)
    found = score_entries(suite, load_results(folder, suite))["robust"]["easy", "k5"].attacks["avg-zero"]
    scores, random = (returns - 10) / 20, np.random.default_rng(0)

    def iqm(rows, axis):
        return stats.trim_mean(rows, 0.25, axis=axis)

    expected = stats.bootstrap((scores,), iqm, method="percentile", rng=random).confidence_interval
    assert float(found.score.value) == pytest.approx(iqm(scores, 0))
    assert float(found.score.low) == pytest.approx(expected.low, abs=0.06)
    assert float(found.score.high) == pytest.approx(expected.high, abs=0.06)


def test_changed_and_foreign_results_are_refused(tmp_path):
    path, folder = make_results(tmp_path)
    suite, cell = load_suite(path), Cell("easy", "k5", "robust", "none")
    file = result_path(folder, cell)
    content = json.loads(file.read_text())
    check_result(read_record(file, suite), suite)

    def refused(changed: dict, said: str, rehash: bool = False) -> None:
        changed = {**content, **changed}
        file.write_text(json.dumps({**changed, "hash": hash_of(changed)} if rehash else changed))
        with pytest.raises(UsageError, match=said):
            check_result(read_record(file, suite), suite)

    refused({"average": [99.0] * 8}, "the contents do not fit the hash")
    refused({"format": 99}, "of another version")
    refused({"suite": {"name": "tiny", "hash": "0"}}, "made with suite", rehash=True)
    refused({"average": [1.0]}, r"average has shape \(1,\)", rehash=True)
    refused({"seeds": None}, "seeds is missing", rehash=True)
    refused({"finite": [True]}, r"finite has shape \(1,\)", rehash=True)
    refused({"finite": [[True], *[True] * 7]}, "not a result of the benchmark", rehash=True)
    refused({"cell": {**content["cell"], "task": 3}}, "task is missing or not of type str", rehash=True)
    refused({"cell": {**content["cell"], "colour": "red"}}, "not a result of the benchmark", rehash=True)
    refused({"config": {**content["config"], "eta": 9.0}}, r"made with other options \(eta\)", rehash=True)
    refused({"cell": {**content["cell"], "attack": "avg-zero"}}, r"holds easy\.k5\.robust\.avg-zero", rehash=True)
    file.write_text("{")
    with pytest.raises(UsageError, match="not readable as JSON"):
        read_record(file, suite)


def test_references_are_verified_with_the_options_of_the_suite(tmp_path):
    path, folder = make_results(tmp_path)
    suite, cell = load_suite(path), Cell("easy", "one-agent", "alone", "none")
    check_result(read_record(result_path(folder, cell), suite), suite)
    content = json.loads(result_path(folder, cell).read_text())
    content["options"]["eta"] = content["config"]["eta"] = 0.9
    result_path(folder, cell).write_text(json.dumps({**content, "hash": hash_of(content)}))
    with pytest.raises(UsageError, match="the reference alone was not run with the options of the suite"):
        check_result(read_record(result_path(folder, cell), suite), suite)
    unknown = result_path(folder, cell._replace(task="hard"))
    content["cell"]["task"] = "hard"
    unknown.write_text(json.dumps({**content, "hash": hash_of(content)}))
    with pytest.raises(UsageError, match="the suite tiny has no such reference"):
        check_result(read_record(unknown, suite), suite)


def test_comparison_of_a_second_run(results):
    suite = load_suite(results[0])
    result = result_of(read_record(result_path(results[1], Cell("easy", "k5", "robust", "none")), suite))
    result = result._replace(average=30 + np.arange(8.0))
    assert compare(result, result.average, True).verdict == "identical"
    rounded = result.average + np.array([0.5, -0.5] * 4)
    assert compare(result, rounded, True).verdict == "different"
    assert compare(result, rounded, False).verdict == "consistent"
    assert compare(result, result.average + 20, False).verdict == "different"
    assert compare(result, np.where(np.arange(8) == 3, np.nan, result.average), False).verdict == "consistent"


def test_merging_keeps_the_first_of_two_results(tmp_path, capsys):
    path, folder = make_results(tmp_path)
    suite, cell = load_suite(path), Cell("easy", "k5", "robust", "none")
    other = tmp_path / "other"
    other.mkdir()
    made_up(other, suite, cell, np.full(8, 31.0))
    names = sorted(file.name for file in folder.glob("*.json"))
    for name in names[::2]:  # half of the cells were run elsewhere
        if name != f"{cell.name}.json":
            (folder / name).rename(other / name)
    out = tmp_path / "all"
    assert main(["benchmark", "merge", str(path), str(folder), str(other), "--out", str(out)]) == 0
    assert f"{cell.name}: kept that of {folder}" in capsys.readouterr().err
    assert sorted(file.name for file in out.glob("*.json")) == names
    assert load_results(out, suite)[cell].average[0] == 30.0
    assert load_leaderboard(str(path), out)["entries"][0]["overall"]["value"] == pytest.approx(0.5)
    changed = json.loads(result_path(other, cell).read_text())
    del changed["config"]["ratio_window"]  # as if the file were older than this option, and so had its default
    result_path(other, cell).write_text(json.dumps({**changed, "hash": hash_of(changed)}))
    assert main(["benchmark", "merge", str(path), str(folder), str(other), "--out", str(out)]) == 0
    changed["config"]["eta"] = 5.0
    result_path(other, cell).write_text(json.dumps({**changed, "hash": hash_of(changed)}))
    assert main(["benchmark", "merge", str(path), str(folder), str(other), "--out", str(out)]) == 2
    assert "has another configuration than" in capsys.readouterr().err


def test_one_compressed_file_holds_what_a_folder_holds(tmp_path, capsys):
    """Every command reads it, it can be unpacked, and the same records give the same bytes in any order."""
    path, folder = make_results(tmp_path)
    suite, tuned = load_suite(path), {"task": "easy", "entry": "robust", "best": 0.2}
    write_record(folder / "easy.robust.json", suite, tuned)
    write_record(
        folder / "certificate.k5.rfa.json",
        suite,
        {"federation": "k5", "rule": "rfa", "certificate": {"verdict": "cleared", "reason": ""}},
    )
    packed, again, unpacked = tmp_path / "all.jsonl.gz", tmp_path / "again.jsonl.gz", tmp_path / "unpacked"

    def shown(*arguments: str) -> str:
        assert main(["benchmark", arguments[0], str(path), *map(str, arguments[1:])]) == 0
        return capsys.readouterr().out

    assert f"{packed}: 14 record(s) added" in shown("merge", folder, "--out", packed)
    assert f"{unpacked}: 14 record(s) added" in shown("merge", packed, "--out", unpacked)
    assert {file.name: file.read_bytes() for file in unpacked.iterdir()} == {
        file.name: file.read_bytes() for file in folder.iterdir()
    }
    (half := tmp_path / "half").mkdir()
    for file in sorted(unpacked.iterdir())[::2]:
        file.rename(half / file.name)
    for sources in ([unpacked], [half, packed]):
        shown("merge", *sources, "--out", again)
    written = again.stat().st_mtime_ns
    assert "0 record(s) added" in shown("merge", packed, "--out", again)
    assert again.read_bytes() == packed.read_bytes() and again.stat().st_mtime_ns == written

    for action in (["table"], ["table", "--json"], ["table", "--attacks"]):
        assert shown(action[0], packed, *action[1:]) == shown(action[0], folder, *action[1:])
    for name in ("curves.json", "scores.npz", "board.html"):
        action = "page" if name.endswith("html") else "export"
        for source, out in ((packed, tmp_path / name), (folder, half / name)):
            shown(action, source, "--out", out)
        assert (tmp_path / name).read_bytes() == (half / name).read_bytes()
    listed = shown("list", "--out", packed)
    assert "easy.k5.mean.none (finished)" in listed and "easy.k5.naive.none\n" in listed
    names = [[record.content["cell"] for record in choose(source, suite, 5, 0)] for source in (packed, folder)]
    assert names[0] == names[1] and len(names[0]) == 5
    assert load_step_sizes(packed, suite) == {("easy", "robust"): 0.2}
    rows = gzip.decompress(packed.read_bytes()).splitlines(keepends=True)
    assert len(rows) == 14 and all(json.loads(row)["suite"] == suite.label for row in rows)


def test_damaged_compressed_files_are_refused_with_the_line(tmp_path):
    path, folder = make_results(tmp_path)
    suite, packed = load_suite(path), tmp_path / "all.jsonl.gz"
    merge([folder], packed, suite, print)
    rows = gzip.decompress(packed.read_bytes()).splitlines(keepends=True)

    def refused(content: bytes, said: str) -> None:
        packed.write_bytes(content)
        with pytest.raises(UsageError, match=re.escape(f"{packed}{said}")):
            read_records(packed, suite)

    refused(
        gzip.compress(b"".join([*rows[:2], rows[2].replace(b'"seconds": 1.5', b'"seconds": 1.6')])),
        ", line 3: the contents do not fit",
    )
    refused(gzip.compress(b"".join([*rows, rows[4]])), ", line 13: holds ")
    refused(gzip.compress(rows[0] + b"[]\n"), ", line 2: not readable as JSON (Expected `object`")
    refused(gzip.compress(rows[0] + b" " * 2**20 + rows[1]), ", line 2: not readable as JSON (larger than")
    refused(gzip.compress(b"".join(rows))[:-20], ", line ")
    refused(b"".join(rows), ", line 1: not readable as a gzip file")
    for name in ("none.jsonl.gz", "results.json"):
        with pytest.raises(UsageError, match="no such folder of results"):
            read_records(tmp_path / name, suite)


def test_exports(results, tmp_path):
    suite = load_suite(results[0])
    loaded = load_results(results[1], suite)
    data = marl_eval(suite, loaded)
    run = data["tiny"]["easy.k5.avg-zero"]["robust"]["seed_3"]
    assert run["step_5"] == {"step_count": 6, "return": [25.0]} and run["absolute_metrics"] == {"return": [25.0]}
    arrays = rliable(suite, loaded)
    assert arrays["problems"].tolist() == ["easy.k5.avg-zero", "easy.k5.large-noise"]  # what both entries have
    assert arrays["robust"].shape == (8, 2) and arrays["robust"][0].tolist() == pytest.approx([0.75, 0.5])
    for name in ("x.json", "x.npz"):
        assert main(["benchmark", "export", str(results[0]), str(results[1]), "--out", str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size > 500
    assert main(["benchmark", "export", str(results[0]), str(results[1]), "--out", "x.csv"]) == 2


def test_table_and_page_show_the_numbers(results, tmp_path, capsys):
    assert main(["benchmark", "table", str(results[0]), str(results[1])]) == 0
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in capsys.readouterr().out.splitlines()]
    assert rows[2][:4] == ["robust", "0.50 (0.50 to 0.50)", "0.50 (large-noise)", "0.50 (large-noise)"]
    assert rows[2][4:6] == ["0.50", "1.00"]  # worst seed, without attack
    assert rows[3][:6] == ["central", "−1.00 (−1.00 to −1.00)", "−1.00 (large-noise)", "–", "−1.00", "0.50"]
    assert rows[-2] == ["easy k5", "10.0 (10.0 to 10.0)", "30.0 (30.0 to 30.0)", "0.00", "1.00"]  # the scale
    assert main(["benchmark", "table", str(results[0]), str(results[1]), "--attacks"]) == 0
    text = capsys.readouterr().out
    assert "| easy k5 | none | avg-zero | large-noise |" in text and "| robust | 1.00 | 0.75 | **0.50** |" in text
    page = tmp_path / "board.html"
    assert main(["benchmark", "page", str(results[0]), str(results[1]), "--out", str(page)]) == 0
    text = page.read_text()
    assert '"worst_attack": "large-noise"' in text and "<!--" not in text and "https://" not in text
    assert main(["benchmark", "page", str(results[0]), str(results[1]), "--out", "board.txt"]) == 2


def test_the_table_shows_that_the_seeds_of_entries_are_harder(tmp_path):
    path, folder = make_results(tmp_path)
    suite = load_suite(path)
    for name, far in (("alone", 11.0), ("mean", 31.0)):  # of twelve seeds, the last four are not those of entries
        (cell,) = (cell for cell in reference_cells(suite, "easy", "k5") if cell.entry == name)
        made_up(folder, suite, cell, np.array([far - 6.0] * 8 + [far] * 4))  # five of the middle six are lower
    board = load_leaderboard(str(path), folder)
    assert board["settings"][0]["references"] == pytest.approx({"alone": 6.0, "mean": 26.0})
    assert board["settings"][0]["on_entry_seeds"] == pytest.approx({"alone": -0.05, "mean": 0.95})
    assert "| −0.05 | 0.95 |" in both_tables(board)


@pytest.mark.parametrize(
    ("suite", "shown_in", "complete"),
    [
        ("v1", ("docs/measurements/benchmark_v1.md",), 15),
        ("v1-lite", ("docs/measurements/benchmark_v1.md",), 15),
        ("v2", ("docs/benchmark.md", "README.md"), 29),
        ("v2-lite", ("docs/benchmark.md",), 30),
    ],
)
def test_what_is_published_follows_from_the_results(suite, shown_in, complete, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "suite")
    publish = importlib.import_module("publish_benchmark")
    board = load_leaderboard(suite, publish.published("benchmark", suite))
    assert sum(entry["overall"] is not None for entry in board["entries"]) >= complete
    blocks = publish.blocks(board)
    for name in shown_in:
        text = (ROOT / name).read_text("utf-8")
        assert f"<!-- leaderboard {suite} -->\n\n{blocks[name]}\n\n<!-- end -->" in text, name
    page = (ROOT / f"docs/leaderboard-{suite}.html").read_text("utf-8")
    drawn = json.loads(page.split('<script id="data" type="application/json">')[1].split("</script>")[0])
    for shown, entry in zip(drawn["entries"], board["entries"], strict=True):
        assert shown["name"] == entry["name"] and shown["overall"] == pytest.approx(entry["overall"])
        for there, here in zip(shown["settings"], entry["settings"], strict=True):
            assert {k: v["hash"] for k, v in there["cells"].items()} == {k: v["hash"] for k, v in here["cells"].items()}


MINE = '[mine]\nsummary = "median"\nalgorithm = "decbyzpg"\naggregator = "median"\nagreement = "none"\n'


def test_run_resumes_and_verify_repeats(tmp_path, capsys):
    """One cell of real training beside made-up references; what is finished is not trained again."""
    path, made = make_results(tmp_path)
    mine, out, cell = tmp_path / "mine.toml", tmp_path / "out", "easy.k5.mine.avg-zero.json"
    mine.write_text(MINE)
    out.mkdir()
    for name in ("easy.one-agent.alone.none.json", "easy.k5.mean.none.json"):
        (made / name).rename(out / name)
    command = ["benchmark", "run", str(path), "--entries", str(mine), "--federation", "k5", "--attack", "avg-zero",
               "--out", str(out)]  # fmt: skip
    assert main([*command, "--no-certify"]) == 0
    assert capsys.readouterr().err.count("easy.") == 1 and not (out / ".working").exists()
    written = (out / cell).stat().st_mtime_ns
    assert main([*command, "--no-certify"]) == 0
    assert "easy." not in capsys.readouterr().err and (out / cell).stat().st_mtime_ns == written
    assert load_leaderboard(str(path), out)["entries"][0]["settings"][0]["missing"] == ["large-noise"]
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / cell).write_bytes((out / cell).read_bytes())
    assert main(["benchmark", "verify", str(path), str(alone)]) == 0
    assert capsys.readouterr().out.startswith("identical")
    # Other options in the same folder are refused.
    mine.write_text(MINE + "eta = 0.3\n")
    assert main([*command, "--no-certify"]) == 2
    assert "made with other options (eta)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_factor_on_the_step_size_is_another_step_size(tmp_path):
    """Training with twice the step size agrees with the factor 2, and the factor 1 changes nothing."""
    suite = load_suite(write_suite(tmp_path))
    cell, options = Cell("easy", "k5", "robust", "avg-zero"), entries()["robust"].options
    config = cell_config(suite, cell, {**options, "eta": 0.1, "eta_end": 0.05})
    (found,) = average_returns(config, ("avg-zero",), np.array([1.0, 2.0]))
    for eta, value in ((0.1, found[0]), (0.2, found[1])):
        config = cell_config(suite, cell, {**options, "eta": eta, "eta_end": eta / 2})
        assert value == pytest.approx(np.mean(measurements(config, run(config).metrics)["average"]), rel=1e-4)


@pytest.mark.parametrize("left_out", [[], ["avg-zero"]])
def test_tuning_and_the_run_share_one_program(tmp_path, monkeypatch, left_out):
    """Its step size, seeds and attack are data, so the calls differ in nothing that is compiled.

    A task that leaves out an attack neither compiles it nor tunes with it.
    """
    text = SUITE.replace("[tasks.easy]", f"[tasks.easy]\nwithout = {left_out}")
    suite, programs = load_suite(write_suite(tmp_path, text)), []

    def recorded(batch, settings):
        programs.append((batch.first.family, batch.first.coins.ndim, len(batch.row_at), batch.attacks))
        raise RuntimeError("recorded")

    monkeypatch.setattr("jaxbyz.runs.together.train", recorded)
    with pytest.raises(RuntimeError, match="recorded"):
        tune(suite, entries(), "central", "easy")
    cells = [cell for cell in cells_of(suite, entries()) if cell.entry == "central"]
    assert all("recorded" in reason for reason in run_cells(suite, entries(), cells, tmp_path, together=True).values())
    tuned, trained = programs
    kept = tuple(name for name in ("none", "avg-zero", "large-noise") if name not in left_out)
    assert tuned == trained and tuned[2:] == (8, kept)
    assert suite.tuning_attacks("easy") == kept[: 2 - len(left_out)]

    def alone(config, *others, **options):
        raise RuntimeError("trained alone")

    monkeypatch.setattr("jaxbyz.benchmark.running.ensure", alone)
    references = [cell for cell in cells_of(suite, entries()) if cell.entry not in entries()]
    failed = run_cells(suite, entries(), references, tmp_path / "references", together=True)
    assert failed and all("trained alone" in reason for reason in failed.values())


@pytest.mark.slow
def test_cells_trained_together_have_the_numbers_of_cells_trained_alone(tmp_path):
    text = SUITE.replace('["avg-zero", "large-noise"]', '["avg-zero", "random-action", "mimic-warmup", "large-noise"]')
    suite = load_suite(write_suite(tmp_path, text))
    cells = [cell for cell in cells_of(suite, entries()) if cell.federation == "k5" and cell.entry != "mean"]
    for together in (False, True):
        assert run_cells(suite, entries(), cells, tmp_path / str(together), together=together) == {}
    alone, shared = (load_results(tmp_path / str(together), suite) for together in (False, True))
    assert alone.keys() == shared.keys() == set(cells)
    for cell, result in shared.items():
        assert result.together
        np.testing.assert_allclose(result.average, alone[cell].average, rtol=1e-5, err_msg=cell.name)
        assert result.bytes_sent == alone[cell].bytes_sent and result.config == alone[cell].config


@pytest.mark.slow
def test_a_whole_small_suite_in_two_processes(tmp_path, capsys, registries_restored):
    """Tuning, training, certificates and the page, with an attack that only the file of `--import` registers."""
    own = tmp_path / "own.py"
    own.write_text("from jaxbyz.attacks import attacks\nattacks.add('loud', attacks['gaussian'].factory)\n")
    path = write_suite(tmp_path, SUITE.replace('"large-noise"]', '"loud"]').replace('["k5", "k9"]', '["k5"]'))
    mine, out, tuned = tmp_path / "mine.toml", str(tmp_path / "out"), str(tmp_path / "tuned")
    mine.write_text(MINE)
    common = ["--import", str(own), "benchmark"]
    options = ["--entries", str(mine), "--jobs", "2"]
    assert main([*common, "run", str(path), "--out", out, "--tune", "--tuned", tuned, "--together", *options]) == 0
    assert len(list((tmp_path / "out").glob("*.json"))) == 2 + 3 + 1 and not (tmp_path / "out" / ".working").exists()
    assert [file.name for file in (tmp_path / "tuned").glob("*.json")] == ["easy.mine.json"]
    best = load_step_sizes(tuned, load_suite(path))["easy", "mine"]
    trained = load_results(out, load_suite(path))
    assert {result.config["eta"] for cell, result in trained.items() if cell.entry == "mine"} == {best}
    assert main([*common, "tune", str(path), "--out", tuned, *options]) == 0
    assert {file.name for file in (tmp_path / "tuned").glob("*.json")} == {
        f"easy.{name}.json" for name in ("alone", "mean", "mine")
    }
    assert main([*common, "page", str(path), out, "--out", str(tmp_path / "board.html")]) == 0
    assert main([*common, "verify", str(path), out, "--count", "1"]) == 0
    assert "different" not in capsys.readouterr().out


@pytest.mark.slow
def test_the_lite_suite_shortened(tmp_path):
    """Every entry trains under an attack, and one under every attack of v1-lite; budgets and seeds are cut."""
    text = (resources.files("jaxbyz.benchmark") / "suites" / "v1-lite.toml").read_text()
    text = re.sub(r"trajectories = \d+", "trajectories = 8", text).replace("count = 10", "count = 2")
    path = write_suite(tmp_path, text.replace("horizon = 500", "horizon = 20"))
    out = str(tmp_path / "out")
    command = ["benchmark", "run", str(path), "--task", "cartpole", "--out", out, "--no-certify", "--jobs", "2"]
    assert main([*command, "--attack", "avg-zero"]) == 0
    assert main([*command, "--entry", "decbyzpg-rfa"]) == 0
    suite = load_suite(path)
    found = load_results(out, suite)
    assert {cell.entry for cell in found} == {"alone", "mean", *load_entries()}
    assert {cell.attack for cell in found} == {"none", *suite.attacks}
    assert all(result.finite.all() for result in found.values())


def test_parts_and_filters(tmp_path, capsys):
    suite = str(write_suite(tmp_path))
    assert main(["benchmark", "list", suite, "--entry", "naive", "--attack", "avg-zero", "--federation", "k5"]) == 0
    listed = capsys.readouterr().out.split()
    assert listed == ["easy.one-agent.alone.none", "easy.k5.mean.none", "easy.k5.naive.avg-zero"]
    assert main(["benchmark", "list", suite, "--entry", "nave"]) == 2
    assert "entry='nave'" in capsys.readouterr().err
    assert main(["benchmark", "run", suite, "--part", "3/2", "--out", str(tmp_path / "x")]) == 2
    assert "part='3/2': must be like 1/4" in capsys.readouterr().err
    assert main(["benchmark", "list"]) == 0
    assert "v1-lite" in capsys.readouterr().out
