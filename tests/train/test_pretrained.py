"""Checksums of pretrained weights in the configuration of a run."""

import hashlib

import pytest

from imitate.config import load_config
from imitate.errors import ConfigError
from imitate.models.vit import VC1
from imitate.train.pretrained import with_checksums


def config(**trunk):
    core = {"core_class": "VisualCore", "core_kwargs": {"backbone_kwargs": trunk}}
    tree = {"algo_name": "bc", "observation": {"encoder": {"rgb": core, "depth": core}}}
    return load_config(tree)


def trunk_of(found, modality="rgb"):
    return found.observation.encoder[modality].core_kwargs.backbone_kwargs.to_dict()


def test_paths_become_absolute_and_files_are_remembered(tmp_path, monkeypatch):
    (tmp_path / "w.pth").write_bytes(b"weights")
    monkeypatch.chdir(tmp_path)
    found = with_checksums(config(pretrained="w.pth", freeze=True))
    for modality in ("rgb", "depth"):
        assert trunk_of(found, modality) == {
            "pretrained": str(tmp_path / "w.pth"),
            "pretrained_sha256": hashlib.sha256(b"weights").hexdigest(),
            "freeze": True,
        }
    (tmp_path / "w.pth").write_bytes(b"others")
    with pytest.raises(ConfigError, match="has the SHA-256"):
        VC1(**trunk_of(with_checksums(found)))


@pytest.mark.parametrize("source", [True, False, "gone.pth"])
def test_without_a_file_nothing_changes(source):
    given = config(pretrained=source)
    assert with_checksums(given).to_dict() == given.to_dict()
