"""Packages that a start must not import, since each takes a large part of the time until something happens."""

import subprocess
import sys

import pytest

from tests.tiny import tiny_checkpoint

HELP = """
import sys
from imitate.cli.main import main
sys.argv = ["imitate", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code
"""
POLICY = """
import sys
from imitate import policy_from_checkpoint
policy, _ = policy_from_checkpoint("cpu", sys.argv[1])
policy.start_episode()
policy({"pos": [0.0, 0.0]})
"""
LEARN = """
import sys
from imitate.policy.checkpoint import load_checkpoint, algo_from_checkpoint
import torch
algo = algo_from_checkpoint(load_checkpoint(sys.argv[1]), "cpu")
algo.set_train()
batch = {"obs": {"pos": torch.zeros(4, 1, 2)}, "actions": torch.zeros(4, 1, 1)}
for _ in range(2):
    algo.train_on_batch(algo.process_batch_for_training(batch), 1)
algo.deserialize(algo.serialize())
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("policy") / "bc.pth", obs={"pos": 2})


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        (HELP, {"torch", "numpy", "h5py", "pydantic"}),
        (POLICY, {"torch._dynamo", "torch._inductor", "h5py", "gymnasium", "matplotlib"}),
        (LEARN, {"torch._dynamo", "torch._inductor", "matplotlib", "tensorboard"}),
    ],
    ids=["help", "policy", "learn"],
)
def test_a_start_imports_no_more_than_it_needs(checkpoint, code, unwanted):
    tell = f"\nprint('imported:', *sorted({unwanted!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + tell, str(checkpoint)],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert done.stdout.splitlines()[-1] == "imported:"
