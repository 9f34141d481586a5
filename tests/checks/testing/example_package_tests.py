"""Tests as a user writes them; run by ``test_testing.py`` in a pytest of its own."""

from example_package import CONFIG

from imitate.checks.testing import test_environment, test_pipeline, test_policy, test_trainer


def test_slide():
    test_environment("example_package:Slide-v0")


def test_the_policy():
    names = [finding.name for finding in test_policy(CONFIG)]
    assert "actions" in names and "training" not in names


def test_the_trainer():
    names = [finding.name for finding in test_trainer(CONFIG)]
    assert "resume" in names and "evaluation" not in names


def test_everything():
    assert test_pipeline(CONFIG)[-1].name == "evaluation"


def test_a_fault():
    test_environment(
        {"env_name": "example_package:Slide-v0", "type": 2, "env_kwargs": {"wild": True}}
    )
