import json
from contextlib import contextmanager

import pytest
import torch

from imitate.config import TrainConfig
from imitate.errors import ConfigError
from imitate.models.precision import has_fast_bf16
from imitate.train import devices
from imitate.train.devices import choose_device, device_in_use, with_precision
from tests.refusals import refused
from tests.tiny import tiny_config, tiny_run


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


@pytest.mark.parametrize(
    ("device", "features", "bf16"),
    [
        ("cpu", {"avx512_bf16": True, "amx_bf16": False}, True),
        ("cpu", {"avx512_bf16": False, "amx_bf16": True}, True),
        ("cpu", {"avx2": True, "avx512_f": True, "avx512_bf16": False}, False),
        ("cuda:0", (7, 5), False),
        ("cuda:0", (8, 0), True),
        ("mps", None, False),
    ],
)
def test_precision_auto_is_bf16_on_a_device_that_computes_in_it(
    monkeypatch, device, features, bf16
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features, raising=False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)  # true of all of them
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: features)
    device = torch.device(device)
    assert has_fast_bf16(device) == bf16
    for algo, chosen in (("bc", ("fp32", "bf16")[bf16]), ("td3_bc", "fp32")):  # bf16 is too coarse
        config = with_precision(tiny_config(algo, "train.precision=auto"), device)
        assert config.train.precision == chosen
    assert with_precision(tiny_config("bc"), device).train.precision == "fp32"


def test_a_run_writes_the_precision_that_it_took_down(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "has_fast_bf16", lambda device: True)
    short = {"train": {"precision": "auto", "num_epochs": 1}}
    run = tiny_run(tmp_path, "bc", **short, experiment={"epoch_every_n_steps": 1})
    assert json.loads((run / "config.json").read_text())["train"]["precision"] == "bf16"
    assert "torch threads: 1, precision bf16" in (run / "log.txt").read_text()


def test_a_device_that_is_not_there_is_refused(machine):
    machine(cuda=1)
    with refused("cuda:1 was requested, but torch sees 1 CUDA devices", error=ConfigError):
        choose_device(TrainConfig(device="cuda:1"))
    with refused("mps was requested", error=ConfigError):
        choose_device(TrainConfig(device="mps"))
