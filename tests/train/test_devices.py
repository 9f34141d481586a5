import pytest
import torch

from imitate.config import TrainConfig
from imitate.errors import ConfigError
from imitate.train.devices import choose_device


@pytest.fixture
def machine(monkeypatch):
    def has(cuda=0, mps=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "some GPU")
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return has


@pytest.mark.parametrize(
    ("has", "train", "device", "words"),
    [
        ({}, {"cuda": True}, "cpu", "sees no GPU"),
        ({}, {"cuda": False}, "cpu", "train.cuda is false"),
        ({"cuda": 2}, {"cuda": True}, "cuda", "some GPU"),
        ({"cuda": 2}, {"cuda": False}, "cpu", "train.cuda is false"),
        ({"mps": True}, {"cuda": True}, "mps", "mps"),
        ({"cuda": 2, "mps": True}, {"device": "cpu"}, "cpu", "train.device"),
        ({"cuda": 2}, {"device": "cuda:1", "cuda": False}, "cuda:1", "train.device"),
    ],
)
def test_choice(machine, has, train, device, words):
    machine(**has)
    chosen, said = choose_device(TrainConfig(**train))
    assert chosen == torch.device(device)
    assert words in said


def test_a_device_that_is_not_there_is_refused(machine):
    machine(cuda=1)
    with pytest.raises(ConfigError, match="cuda:1 was requested, but torch sees 1 CUDA devices"):
        choose_device(TrainConfig(device="cuda:1"))
    with pytest.raises(ConfigError, match="mps was requested"):
        choose_device(TrainConfig(device="mps"))
