"""`imitate cluster`."""

import json
import os
from pathlib import Path

import pytest

from imitate.crew.ray_cluster import differing, node_facts
from imitate.system.version import __version__
from tests.calling import call

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(imitate):
    def cluster(*words, path=(), **environ):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            return imitate("cluster", *words, cwd=ROOT, check=False, path=path)

    return cluster


def test_this_machine():
    found = call.json("cluster --on local")
    (node,) = found["nodes"]
    assert node["facts"] == node_facts() and node["facts"]["imitate"] == __version__
    assert found["places"] == len(os.sched_getaffinity(0)) and found["differing"] == {}


def test_in_which_facts_nodes_differ():
    facts = {
        "a": {"torch": "2.4", "cpu": "x"},
        "b": {"torch": "2.5", "cpu": "x"},
        "c": {"torch": "2.4", "cpu": "x"},
    }
    assert differing(facts) == {"torch": {"2.4": ["a", "c"], "2.5": ["b"]}}
    assert differing({}) == {}


@pytest.mark.ray
@pytest.mark.nightly
def test_two_nodes(run, ray_nodes):
    done = run("--on", ray_nodes.on, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [node["resources"]["CPU"] for node in found["nodes"]] == [2.0, 2.0]
    assert found["places"] == 4 and found["spilled_bytes"] == 0 and found["differing"] == {}
    assert all(node["facts"] == node_facts() for node in found["nodes"])


def test_clusters_without_tokens_are_refused(run):
    done = run("--on", "ray:127.0.0.1:9", RAY_AUTH_MODE="disabled")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "without token authentication" in done.stderr


@pytest.mark.ray
@pytest.mark.nightly
def test_another_token_is_refused(run, ray_nodes):
    wrong = run("--on", ray_nodes.on, RAY_AUTH_TOKEN_PATH="", RAY_AUTH_TOKEN="0" * 64)
    assert wrong.returncode == 2
    assert (
        wrong.stderr.count("\n") == 1
        and "put its token into the file RAY_AUTH_TOKEN_PATH names" in wrong.stderr
    )


def test_a_cluster_that_does_not_answer(run):
    done = run("--on", "ray:127.0.0.1:9")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "no Ray cluster answers at 127.0.0.1:9" in done.stderr


def test_without_ray_one_line_says_how_to_install_it(run, tmp_path):
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('no', name='ray')")
    done = run(path=[tmp_path], RAY_ADDRESS="local")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "pip install 'ray>=2.52'" in done.stderr
