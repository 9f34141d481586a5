"""Sources of policies: their keys, and the bytes for workers on other machines."""

import hashlib
import os

import torch

from imitate.policy import source as sources
from imitate.policy.source import CheckpointFile, SentCheckpoint
from tests.tiny import tiny_checkpoint


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
