"""`jaxbyz doctor` and `jaxbyz completion`."""

from __future__ import annotations

import json
import os
import subprocess

import jax
import pytest

from jaxbyz.cli import doctor, main


def test_doctor_reports_problems(capsys, monkeypatch):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == [] and found["versions"]["jax"] == jax.__version__
    assert found["devices"] == len(jax.devices()) and found["cores"] >= 1 and {
        "plots": True, "tensorboard": True, "federation": True,
    }.items() <= found["optional"].items()  # fmt: skip
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: os.listdir(f"{dir}/no/such/folder"))
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "NVIDIA GPU" in printed and "cannot be written (No such file" in printed and "cores available" in printed


def test_doctor_checks_declared_versions(monkeypatch):
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["jax>=99", "nonesuch>=1", 'x>=1; extra == "docs"'])
    wrong = doctor._versions()
    assert len(wrong) == 2 and "is not >=99" in wrong[0] and "nonesuch is missing" in wrong[1]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_options_and_names(capsys, shell):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("train", "doctor", "tensorboard", "avg-zero", "krum", "CartPole-v1", "cartpole-steady"):
        assert word in script, word


def test_bash_completion(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    (tmp_path / "jaxbyz.bash").write_text(capsys.readouterr().out)
    ask = ". ./jaxbyz.bash; COMP_WORDS=(jaxbyz train --attack avg); COMP_CWORD=3; _shtab_jaxbyz; echo ${COMPREPLY[@]}"
    answer = subprocess.run(["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert answer.split() == ["avg-zero"]
