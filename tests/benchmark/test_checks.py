"""Results that cannot be what they say are refused in one line, also with a correct hash."""

from __future__ import annotations

import json

import numpy as np
import pytest
from benchmark_results import SUITE, entries, made_up, make_results, result_path, write_suite

from jaxbyz.benchmark.checks import load_results
from jaxbyz.benchmark.entries import Cell
from jaxbyz.benchmark.merging import merge
from jaxbyz.benchmark.records import hash_of
from jaxbyz.benchmark.suite import load_suite
from jaxbyz.cli import main
from jaxbyz.environments.return_bounds import return_bounds
from jaxbyz.errors import UsageError

CELL = Cell("easy", "k5", "robust", "avg-zero")
LONG = SUITE.replace("trajectories = 6", "trajectories = 60")  # curves with 40 points


@pytest.fixture
def folder(tmp_path):
    return make_results(tmp_path)


def rewrite(file, **changes):
    """Change a record and give it a correct hash."""
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({**content, "hash": hash_of(content)}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": list(range(1, 9))}, "has the seeds"),
        ({"finite": [False] * 8}, "finite and average contradict each other"),
        ({"average": [1e6] * 8}, "has a return of 1e"),
        ({"final": [-1e6] * 8}, "on TabularMDP returns are from"),
        ({"average": [26.0] * 8}, "the average of a seed is not that of its curve"),
    ],
)
def test_impossible_results_are_refused_by_every_command(folder, tmp_path, capsys, changes, said):
    path, results = folder
    rewrite(result_path(results, CELL), **changes)
    out = tmp_path / "out"
    for words in (["table"], ["verify"], ["page", "--out", f"{out}.html"], ["export", "--out", f"{out}.json"]):
        assert main(["benchmark", words[0], str(path), str(results), *words[1:]]) == 2
        text = capsys.readouterr().err
        assert said in text and len(text.splitlines()) == 1
    assert main(["benchmark", "merge", str(path), str(results), "--out", f"{out}.jsonl.gz"]) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.glob("out*"))


def test_a_copied_result_is_refused(tmp_path):
    path = write_suite(tmp_path, LONG)
    suite, results = load_suite(path), tmp_path / "results"
    results.mkdir()
    curves = np.random.default_rng(0).uniform(-5, 5, (8, 40))
    same = {
        "return": curves.tolist(),
        "average": curves.mean(axis=1).tolist(),
        "final": curves[:, -4:].mean(axis=1).tolist(),
    }
    same["trajectories"] = np.linspace(0, 60, 41).round()[1:].astype(int).tolist()
    same["average"] = (curves @ np.diff(same["trajectories"], prepend=0) / 60).tolist()
    for cell in (CELL, CELL._replace(attack="none"), CELL._replace(federation="k9")):
        made_up(results, suite, cell, np.zeros(8))
        rewrite(result_path(results, cell), **same)
        if cell.federation == "k5":  # a rule that excludes all liars has the same returns under several attacks
            assert cell in load_results(results, suite)
    with pytest.raises(UsageError, match=r"repeats the returns of .*, which is of another setting"):
        load_results(results, suite)
    result_path(results, CELL._replace(federation="k9")).unlink()
    repeated = [same["return"][0], *same["return"][:-1]]
    rewrite(result_path(results, CELL), **{"return": repeated, "average": [same["average"][0], *same["average"][:-1]]})
    with pytest.raises(UsageError, match="two seeds have the same curve"):
        load_results(results, suite)


def test_an_attack_of_another_setting_is_refused(tmp_path):
    _, results = make_results(tmp_path)
    leaving_out = SUITE.replace("threshold = 30.0", 'threshold = 30.0\nwithout = ["large-noise"]')
    suite = load_suite(write_suite(tmp_path, leaving_out))
    for file in results.glob("*.json"):
        rewrite(file, suite=suite.label)
    with pytest.raises(UsageError, match="the suite tiny has no such attack in this setting"):
        load_results(results, suite)


def test_a_record_without_a_seed_is_exported_and_merged(folder, tmp_path, capsys):
    path, results = folder
    file = result_path(results, CELL)
    config = json.loads(file.read_text())["config"]
    del config["seed"]
    rewrite(file, config=config)
    assert main(["benchmark", "export", str(path), str(results), "--out", str(tmp_path / "x.json")]) == 0
    assert "seed_7" in (tmp_path / "x.json").read_text()
    assert merge([results], tmp_path / "all.jsonl.gz", load_suite(path), print) == 12


def test_control_characters_do_not_reach_the_terminal(folder, tmp_path, capsys):
    path, results = folder
    escape = "\x1b[31m"
    content = json.loads(result_path(results, CELL).read_text())
    cell = {**content["cell"], "entry": f"robust{escape}"}
    file = results / f"{escape}.json"
    for changes in ({"cell": cell}, {"suite": {"name": escape, "hash": "0"}}, {"format": escape}):
        file.write_text(json.dumps({**content, **changes}))
        for words in (["table"], ["list", "--out"]):
            assert main(["benchmark", words[0], str(path), *words[1:], str(results)]) == 2
            shown = capsys.readouterr()
            assert "a text in it contains control characters" in shown.err and "\x1b" not in shown.err + shown.out


def test_bounds_of_returns():
    assert return_bounds("CartPole-v1", 500) == (0.0, 500.0)
    assert return_bounds("Acrobot-v1", 500) == (-500.0, 0.0)
    assert return_bounds("Catch-bsuite", 10) == (-1.0, 1.0)
    assert return_bounds("CartPole-v1", None) == (0.0, np.inf)
    assert return_bounds("Reacher-v5", 50) == (-np.inf, np.inf)


def test_references_have_the_names_of_no_entry():
    assert not {"alone", "mean", "pooled"} & set(entries())
