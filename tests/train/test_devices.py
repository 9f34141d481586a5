from contextlib import contextmanager

import pytest
import torch

from imitate.config import TrainConfig
from imitate.errors import ConfigError
from imitate.models.precision import autocast_dtype
from imitate.train.devices import choose_device, device_in_use
from tests.refusals import refused


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


def test_a_training_makes_its_gpu_the_present_one_and_lets_cudnn_choose(monkeypatch):
    seen = []

    @contextmanager
    def present(device):
        seen.append(device)
        yield

    monkeypatch.setattr(torch.cuda, "device", present)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    with device_in_use(torch.device("cpu")):
        assert not torch.backends.cudnn.benchmark
    with device_in_use(torch.device("cuda:1")):
        assert torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.benchmark
    assert seen == [torch.device("cuda:1")]


@pytest.mark.parametrize(("major", "dtype"), [(7, torch.float32), (8, torch.bfloat16)])
def test_auto_takes_bf16_on_gpus_that_do_not_emulate_it(monkeypatch, major, dtype):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)  # true of all of them
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (major, 5))
    assert autocast_dtype("auto", torch.device("cuda:0")) == dtype


def test_a_device_that_is_not_there_is_refused(machine):
    machine(cuda=1)
    with refused("cuda:1 was requested, but torch sees 1 CUDA devices", error=ConfigError):
        choose_device(TrainConfig(device="cuda:1"))
    with refused("mps was requested", error=ConfigError):
        choose_device(TrainConfig(device="mps"))
