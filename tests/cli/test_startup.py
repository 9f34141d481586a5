"""Packages that a start must not import, since each takes a large part of the time until something happens."""

import subprocess
import sys

import pytest

from tests.tiny import tiny_checkpoint

BEGINNING = """
import sys, os, random
HEAVY = "torch numpy h5py pydantic gymnasium robosuite mujoco matplotlib tensorboard ray".split()
DYNAMO = ["torch._dynamo", "torch._inductor"]

def loaded(*others):
    return [name for name in (*HEAVY, *others) if name in sys.modules]
"""
LIGHT = """
import imitate, imitate.crew, imitate.system.recognition
imitate.system.recognition.recognise(".")
assert loaded() == []
from imitate.cli.main import app, main
sys.argv = ["imitate", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code
assert loaded() == []
import imitate.deploy.server.client, imitate.policy.asynchronous, imitate.deploy.robot.limits  # what a client imports
import imitate.cli.robot.run, imitate.deploy.check.first_look, imitate.deploy.bundle.policy, imitate.deploy.robot.loop
assert loaded() == ["numpy"]
import imitate.crew.serving, imitate.collect.demonstrate  # what workers import
assert loaded() == ["numpy", "gymnasium"]
import imitate.cli.collect
assert loaded() == ["numpy", "h5py", "gymnasium"]
import imitate.train.online.central.env_worker, imitate.collect.collect
from typer.testing import CliRunner
demos = sys.argv[-1]
for line in (
    *("dataset --help", "dataset convert --help", "dataset actions --help", "train --help", "eval --help"),
    *("collect --help", "config --help", "dataset convert --formats", "dataset stats FILE"),
    *("dataset filter FILE first --first 1 --out FILE.new", "info FILE"),
):
    done = CliRunner().invoke(app, [word.replace("FILE", demos) for word in line.split()])
    assert done.exit_code == 0, (line, done.output, done.exception)
    assert not {"torch", "ray"} & {*loaded()}, line
"""
"""Nothing is computed: each import of torch costs a second or two before the first line."""
LEARNING = """
import numpy as np, torch

def state():
    variables = {**os.environ, "PYGAME_HIDE_SUPPORT_PROMPT": ""}  # gymnasium sets it
    random_numbers = random.getstate(), np.random.get_state()[1].tolist(), torch.initial_seed()
    return variables, random_numbers, torch.get_num_threads(), torch.get_default_dtype()

before = state()
from imitate import policy_from_checkpoint
policy, _ = policy_from_checkpoint("cpu", sys.argv[1])
policy.start_episode()
policy({"pos": [0.0, 0.0]})
assert not {"h5py", "gymnasium"} & {*loaded()}
from imitate import Algo, RolloutPolicy, SequenceDataset, algo_factory
import imitate.algo.bc, imitate.train.trainer, imitate.cli.train, imitate.cli.info, imitate.data.batches.build
import imitate.envs, imitate.collect.collect
from imitate.policy.checkpoint import load_checkpoint, algo_from_checkpoint
assert before == state()
algo = algo_from_checkpoint(load_checkpoint(sys.argv[1]), "cpu")
algo.set_train()
batch = {"obs": {"pos": torch.zeros(4, 1, 2)}, "actions": torch.zeros(4, 1, 1)}
for _ in range(2):
    algo.train_on_batch(algo.process_batch_for_training(batch), 1)
algo.deserialize(algo.serialize())
assert not {"robosuite", "mujoco", "matplotlib", "tensorboard", "ray", *DYNAMO} & {*loaded(*DYNAMO)}
"""
"""Acting and training: no simulator, no compiler, and imports change no environment variable and no seed."""


def run(code, *words):
    command = [sys.executable, "-c", BEGINNING + code, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow("an interpreter that imports commands: what users wait for")
def test_help_and_commands_on_files_import_no_torch(demo_file):
    run(LIGHT.replace("sys.argv[-1]", repr(str(demo_file()))))


@pytest.mark.slow("an interpreter that imports torch: what users' first line costs")
def test_acting_and_training_import_no_more_than_they_need(tmp_path):
    run(LEARNING, tiny_checkpoint(tmp_path / "bc.pth", obs={"pos": 2}))
