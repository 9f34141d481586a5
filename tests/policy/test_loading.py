"""Loading of policies: what has to be given, precisions, limits and instructions."""

import copy
import hashlib
import logging
import os

import numpy as np
import pytest
import torch

from imitate.errors import CheckpointError, UserError
from imitate.policy import loading
from imitate.policy import loading as sources
from imitate.policy.checkpoint import load_checkpoint
from imitate.policy.loading import CheckpointFile, SentCheckpoint, policy_from_checkpoint, policy_of
from tests.refusals import refused
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("loading") / "a.pt", action=2)


@pytest.fixture
def ckpt(path):
    return copy.deepcopy(load_checkpoint(path))


def test_a_file_or_a_dict_is_given(path, ckpt):
    for given in ({}, {"ckpt_path": path, "ckpt_dict": ckpt}):
        with refused("give either ckpt_path or ckpt_dict", error=CheckpointError):
            policy_from_checkpoint(**given)
    policy, found = policy_from_checkpoint(ckpt_path=path)
    again, same = policy_from_checkpoint(ckpt_dict=ckpt)
    assert found.keys() == same.keys()
    assert not policy.algo.nets.training and policy.algo.device.type == again.algo.device.type


def test_the_device_is_the_first_gpu_if_there_is_one(path, ckpt, monkeypatch):
    asked = []
    monkeypatch.setattr(loading, "policy_of", lambda _, *given, **words: asked.append(given))
    for available in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        policy_from_checkpoint(ckpt_path=path)
    policy_from_checkpoint("cpu:0", ckpt_dict=ckpt)
    assert asked == [("cuda", path), ("cpu", path), ("cpu:0", "ckpt_dict")]


def test_a_run_folder_is_its_best_checkpoint(path, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with refused(f"{tmp_path}: it has no checkpoint", error=CheckpointError):
        policy_from_checkpoint(ckpt_path=tmp_path)
    (tmp_path / "checkpoints" / "best.pth").write_bytes(path.read_bytes())
    (tmp_path / "checkpoints" / "last.pth").touch()
    policy, _ = policy_from_checkpoint(ckpt_path=tmp_path)
    assert policy.algo.ac_dim == 2


@pytest.mark.parametrize(
    ("verbose", "lines"), [({}, 0), ({"verbose": False}, 0), ({"verbose": True}, 1)]
)
def test_what_was_loaded_is_logged(ckpt, caplog, verbose, lines):
    ckpt["train_state"] = {"epoch": 12}
    with caplog.at_level(logging.INFO, loading.__name__):
        policy_from_checkpoint("cpu", ckpt_dict=ckpt, **verbose)
    words = [record.getMessage() for record in caplog.records if record.name == loading.__name__]
    assert len(words) == lines and all("trained for 12 epochs, on cpu" in line for line in words)


@pytest.mark.parametrize(
    ("precision", "device", "bf16", "int8", "words"),
    [
        ("bf16", "cpu", True, False, None),
        ("bf16", "cpu", False, True, "'bf16' needs a CPU|'cpu' does not: choose 'fp32'"),
        ("bf16", "meta", True, True, "'bf16' needs a CPU|'meta' does not"),
        ("int8", "cpu", False, True, None),
        ("int8", "cpu", True, False, "'int8' needs an x86 CPU; device 'cpu'"),
        ("int8", "meta", True, True, "'int8' needs an x86 CPU; device 'meta'"),
        ("fp32", "cpu", False, False, None),
        ("fp16", "cpu", True, True, "precision 'fp16': expected one of fp32, bf16, int8"),
    ],
)
def test_precisions(ckpt, monkeypatch, precision, device, bf16, int8, words):
    packed, algo_of = [], loading.algo_from_checkpoint

    def algo(*args, **words):
        made = algo_of(*args, **words)
        made.device = torch.device(device)
        return made

    monkeypatch.setattr(loading, "algo_from_checkpoint", algo)
    monkeypatch.setattr(loading, "has_fast_bf16", lambda device: bf16)
    monkeypatch.setattr(loading, "has_int8", lambda: int8)
    monkeypatch.setattr(loading, "pack_linears", lambda nets, dtype: packed.append(dtype))
    if words is not None:
        with refused(words, error=UserError):
            policy_of(ckpt, "cpu", "a.pt", precision=precision)
        return
    policy_of(ckpt, "cpu", "a.pt", precision=precision)
    dtypes = {"bf16": torch.bfloat16, "int8": torch.int8, "fp32": torch.float32}
    assert packed == [dtypes[precision]]


@pytest.mark.parametrize("name", ["action_low", "action_high"])
def test_limits_of_another_size_are_refused(ckpt, name):
    ckpt["shape_metadata"][name] = [0.0]
    with refused(
        f"a.pt: '{name}'|has 1 numbers, but an action of the policy has 2", error=CheckpointError
    ):
        policy_of(ckpt, "cpu", "a.pt")
    ckpt["shape_metadata"][name] = None
    policy_of(ckpt, "cpu", "a.pt")


@pytest.mark.parametrize(
    ("vectors", "names", "words"),
    [
        (np.zeros((1, 3), np.float32), ["lift", "place"], "a table of instructions"),
        (np.zeros((0, 3), np.float32), [], "a table of instructions"),
        (np.full((2, 3), np.nan, np.float32), ["lift", "place"], "a table of instructions"),
    ],
)
def test_a_table_of_instructions_that_does_not_fit_is_refused(ckpt, vectors, names, words):
    ckpt["language"] = {"instructions": names, "embeddings": torch.as_tensor(vectors)}
    with refused(f"a.pt: 'language' of the checkpoint is not {words}", error=CheckpointError):
        policy_of(ckpt, "cpu", "a.pt")


def test_a_table_of_instructions_reaches_the_policy(ckpt, monkeypatch):
    given = []
    monkeypatch.setattr(loading, "RolloutPolicy", lambda algo, *parts: given.append(parts))
    vectors = torch.arange(6.0).reshape(2, 3)
    policy_of(ckpt, "cpu", "a.pt")
    ckpt["language"] = {"instructions": ["lift", "place"], "embeddings": vectors}
    ckpt["shape_metadata"].update(action_low=[-1.0, -2.0], action_high=[1.0, 2.0], names={"n": 1})
    ckpt.update(rename={"a": "b"}, provenance={"observations": {"o": 1}})
    ckpt["env_metadata"] = {"env_name": "E", "type": 2, "env_kwargs": {"control_freq": 5}}
    policy_of(ckpt, "cpu", "a.pt", rename={"c": "d"})
    assert given[0][2:] == (None, None, None, {}, None, None)
    low, high, table, rate, names, rename, ranges, known = given[1]
    assert (low, high, rate, names) == ([-1.0, -2.0], [1.0, 2.0], 5.0, {"n": 1})
    assert (rename, ranges, known) == ({"a": "b", "c": "d"}, {"o": 1}, None)
    assert list(table.names) == ["lift", "place"] and table.vectors.tolist() == vectors.tolist()


def test_other_faults_name_the_file(ckpt):
    with refused("a.pt: ", error=UserError):
        policy_of(ckpt, "cpu", "a.pt", rename={"place": "none"})


def test_a_checkpoint_is_sent_with_its_bytes(tmp_path):
    path = tiny_checkpoint(tmp_path / "a.pt", obs={"pos": 3})
    os.utime(path, ns=(5, 7))
    plain = CheckpointFile(str(path))
    assert plain.key == f"{path} 7 fp32"
    source = CheckpointFile(str(path), {"z": "pos", "b": "other"}, "int8")
    assert source.key == f"{path} 7 b=other z=pos int8"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    sent = source.for_workers()
    assert isinstance(sent, SentCheckpoint) and sent.for_workers() is sent
    assert sent.key == f"{digest} b=other z=pos int8"
    assert (sent.name, sent.data.get()) == (str(path), path.read_bytes())
    assert SentCheckpoint("a", "0", sent.data).key == "0 fp32"
    mine, theirs = plain.load("cpu"), plain.for_workers().load("cpu")
    assert theirs.algo.obs_shapes == mine.algo.obs_shapes
    for name, weight in mine.algo.nets.state_dict().items():
        assert torch.equal(weight, theirs.algo.nets.state_dict()[name])


def test_new_names_reach_the_policy(tmp_path):
    path = tiny_checkpoint(tmp_path / "a.pt", obs={"pos": 3})
    source = CheckpointFile(str(path), {"place": "pos"})
    for made in (source, source.for_workers()):
        assert made.load("cpu").rename == {"place": "pos"}


def test_a_file_that_is_gone_is_reported_by_the_worker(tmp_path):
    source = CheckpointFile(str(tmp_path / "none.pt"))
    assert source.key == f"{tmp_path / 'none.pt'} 0 fp32"
    assert source.for_workers() is source


def test_a_single_file_is_sent_as_it_is_and_a_folder_as_one(tmp_path, monkeypatch):
    path = tmp_path / "a.pt"
    path.write_bytes(b"file")
    monkeypatch.setattr(sources, "load_checkpoint", lambda path: {"of": str(path)})
    monkeypatch.setattr(sources, "checkpoint_to_bytes", lambda ckpt: ckpt["of"].encode())
    for folder, data in ((None, b"file"), (tmp_path, str(path).encode())):
        monkeypatch.setattr(sources, "lerobot_policy", lambda path, folder=folder: folder)
        assert CheckpointFile(str(path)).for_workers().data.get() == data
