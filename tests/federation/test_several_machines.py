"""Nodes on several machines, which are network namespaces of this one, and the files that start them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("zmq")
pytest.importorskip("yaml")

import yaml
from federation_helpers import small_config
from federation_network import Network
from helpers import ROOT, finish, spawn

from jaxbyz.cli import build_parser, main
from jaxbyz.federation import keys
from jaxbyz.federation.launcher import create, statuses
from jaxbyz.federation.programs import build_programs, warm_up

DEPLOY = ROOT / "docs" / "deploy"
OPTIONS = {"agents": 5, "byzantine": 1, "aggregator": "krum", "agreement": "mda", "p": 1.0, "trajectories": 40}


def services():
    """The services of the compose file."""
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


def created_by(file, folder):
    """Run the `jaxbyz federation create` in the comment of a file; return the federation."""
    text = file.read_text().replace("\\\n#", "")
    (line,) = [line for line in text.splitlines() if "jaxbyz federation create" in line]
    line = line.lstrip("# ").replace('"${hosts%,}"', "node-00,node-01,node-02,node-03,node-04")
    words = [str(folder) if word == "fed" else word for word in shlex.split(line)[1:]]
    assert main([*words, "--horizon", "4", "--hidden", "2"]) == 0
    return keys.read_federation(folder)


def test_containers_start_the_nodes_that_the_command_creates(tmp_path, capsys):
    federation, containers = created_by(DEPLOY / "compose.yaml", tmp_path / "fed"), services()
    assert [member.address for member in federation.members] == [f"{name}:5700" for name in containers]
    for name, container in containers.items():
        assert container["volumes"] == [f"${{PWD}}/fed/{name}:/node"], "a container has no secrets but its own"
        arguments = build_parser("node").parse_args(container["command"])
        assert (arguments.folder, arguments.bind) == ("/node", "0.0.0.0:5700")


def test_pods_start_the_nodes_that_the_command_creates(tmp_path, capsys):
    federation = created_by(DEPLOY / "kubernetes.yaml", tmp_path / "fed")
    for i, member in enumerate(federation.members):
        service, claim, job = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text().replace("NN", f"{i:02d}"))
        pod = job["spec"]["template"]
        assert f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}" == member.address
        assert service["spec"]["selector"] == pod["metadata"]["labels"]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert volumes["secrets"]["secret"] == {"secretName": keys.node_name(i)}
        assert volumes["data"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"] == keys.node_name(i)
        assert build_parser("node").parse_args(pod["spec"]["containers"][0]["args"]).bind == "0.0.0.0:5700"
    # A volume of secrets consists of links, which a node does not follow: the first container copies the files.
    (first,) = pod["spec"]["initContainers"]
    secrets, data = tmp_path / "secrets", tmp_path / "data"
    (tmp_path / "hidden").mkdir()
    for file in ("federation.json", "node.json", "secret.key"):
        shutil.copyfile(tmp_path / "fed" / "node-04" / file, tmp_path / "hidden" / file)
    secrets.mkdir()
    for file in (tmp_path / "hidden").iterdir():
        (secrets / file.name).symlink_to(file)
    script = first["command"][-1].replace("/secrets", str(secrets)).replace("/data", str(data))
    subprocess.run(["sh", "-c", script], check=True)
    assert keys.read_identity(data / "node", keys.read_federation(data / "node")).node == 4


@pytest.fixture
def machines():
    """Five machines, 50 ms apart, between which 1 % of the packets are lost."""
    try:
        with Network(5, latency=0.05, loss=0.01) as network:
            yield network
    except OSError as error:
        pytest.skip(f"network namespaces are not permitted here: {error}")


@pytest.mark.slow
def test_machines_that_are_far_apart_train_together(tmp_path, machines):
    """The nodes run the command of the compose file."""
    config, folder = small_config(**OPTIONS), tmp_path / "fed"
    create(folder, config, machines.addresses, 5700)
    warm_up(build_programs(config), 0)  # the nodes find the programs in the cache
    nodes = []
    for i, (name, container) in enumerate(services().items()):
        words = [str(folder / name) if word == "/node" else word for word in container["command"]]
        nodes.append(spawn(*machines.command(i, sys.executable, "-m", "jaxbyz", *words)))
    for node in nodes:
        finish(node)
    found = statuses(folder)
    assert [status["phase"] for status in found] == ["finished"] * 5
    doubts = [doubt for status in found for doubt in status.get("doubts", {}).values()]
    assert all(doubt["state"] != "excluded" for doubt in doubts), "nobody is excluded because the network is slow"
    last = np.stack([np.load(folder / keys.node_name(i) / "parameters.npz")["parameters"][-1] for i in range(5)])
    np.testing.assert_allclose(last, last[[0] * 5], atol=1e-5)
    assert machines.carried > 1000 and machines.lost > 5, "all messages went through the network"
