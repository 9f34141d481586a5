"""Pretrained weights: files of several kinds, torchvision, what is refused."""

import json
import struct
import sys
import types

import pytest
import torch

from imitate.errors import ConfigError
from imitate.models.resnet import ResNet18Conv, ResNet34Conv


@pytest.fixture(scope="module")
def weights():
    """As torchvision has them: the trunk's and those of the last layer."""
    torch.manual_seed(7)
    trunk = ResNet18Conv()
    trunk.train()(torch.rand(4, 3, 40, 40))  # statistics other than 0 and 1
    return {**trunk.state_dict(), "fc.weight": torch.rand(1000, 512), "fc.bias": torch.rand(1000)}


def save_safetensors(tensors, path):
    names = {torch.float32: "F32", torch.int64: "I64"}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, value in tensors.items():
        raw = value.contiguous().numpy().tobytes()
        header[name] = {
            "dtype": names[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def assert_loaded(trunk, weights, but=()):
    for name, value in trunk.state_dict().items():
        if name not in but and not name.endswith("num_batches_tracked"):
            assert torch.equal(value, weights[name]), name


@pytest.mark.parametrize("kind", ["pth", "safetensors", "state_dict", "r3m", "without counters"])
def test_files(weights, tmp_path, kind):
    path = tmp_path / ("w.safetensors" if kind == "safetensors" else "w.pth")
    content = dict(weights)
    if kind == "state_dict":
        content = {"epoch": 3, "state_dict": content}
    elif kind == "r3m":
        inner = {f"module.convnet.{name}": v for name, v in weights.items() if "fc" not in name}
        content = {"r3m": {**inner, "module.lang_rew.weight": torch.zeros(3)}}
    elif kind == "without counters":  # as torchvision's own files were before 2018
        content = {n: v for n, v in weights.items() if not n.endswith("num_batches_tracked")}
    if kind == "safetensors":
        save_safetensors(content, path)
    else:
        torch.save(content, path)
    trunk = ResNet18Conv(pretrained=str(path))
    assert_loaded(trunk, weights)
    assert trunk.normalizes
    assert all(p.requires_grad for p in trunk.parameters())


def test_first_convolutions_of_other_inputs(weights, tmp_path):
    path = str(tmp_path / "w.pth")
    torch.save(weights, path)
    with_places = ResNet18Conv(3, pretrained=path, input_coord_conv=True)
    assert torch.equal(with_places.conv1.weight[:, :3], weights["conv1.weight"])
    assert with_places.conv1.weight[:, 3:].abs().sum() > 0
    depth = ResNet18Conv(1, pretrained=path)
    assert depth.conv1.weight.shape[1] == 1
    for trunk in (with_places, depth):
        assert_loaded(trunk, weights, but=["conv1.weight"])


def test_other_normalization_takes_the_affine_maps(weights, tmp_path):
    path = str(tmp_path / "w.pth")
    torch.save(weights, path)
    assert_loaded(ResNet18Conv(pretrained=path, norm="group"), weights)
    kept = ResNet18Conv(pretrained=path, default_norm="group")
    kept.train()(torch.rand(4, 3, 40, 40)).sum().backward()
    assert_loaded(kept, weights)
    assert kept.bn1.weight.grad is None
    assert kept.conv1.weight.grad is not None


def test_no_file_is_read_where_a_checkpoint_brings_the_weights(tmp_path):
    trunk = ResNet18Conv(pretrained=str(tmp_path / "gone.pth"), load_pretrained=False)
    assert trunk.normalizes


class Code:
    def __reduce__(self):
        return (print, ("ran",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file .*; docs/encoders.md has the commands"),
        (Code(), "was refused: .* could run code when loaded"),
        (torch.zeros(3), "contains a Tensor; expected a state_dict"),
        ({"a": torch.zeros(3)}, "has 0 weights named 'conv1.weight'"),
        ({"conv1.weight": torch.zeros(64, 3, 7, 7)}, "lacks 'bn1.weight', which ResNet18Conv has"),
        ({"conv1.weight": torch.zeros(64, 3, 3, 3)}, "is .64, 3, 3, 3., but ResNet18Conv needs"),
        ("text", "was refused: it is not a file of weights"),
    ],
)
def test_refused_files(tmp_path, content, message, capsys):
    path = tmp_path / "w.pth"
    if content == "text":
        path.write_text("no weights")
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(ConfigError, match=f"backbone_kwargs.pretrained: .*{message}"):
        ResNet18Conv(pretrained=str(path))
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize("keep", [3, 100, -100])
def test_safetensors_cut_short_are_refused(weights, tmp_path, keep):
    path = tmp_path / "w.safetensors"
    save_safetensors(weights, path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ConfigError, match="cannot be read"):
        ResNet18Conv(pretrained=str(path))


def test_weights_of_a_larger_network_are_refused(tmp_path):
    path = tmp_path / "w.pth"
    torch.save(ResNet34Conv().state_dict(), path)
    with pytest.raises(ConfigError, match="'layer1.2.conv1.weight', which ResNet18Conv does not"):
        ResNet18Conv(pretrained=str(path))


def fake_torchvision(monkeypatch, get_state_dict):
    models = types.ModuleType("torchvision.models")
    asked = []

    def get_weight(name):
        asked.append(name)
        return types.SimpleNamespace(get_state_dict=get_state_dict)

    models.get_weight = get_weight
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    return asked


def test_torchvisions_weights(weights, monkeypatch):
    asked = fake_torchvision(monkeypatch, lambda progress: weights)
    assert_loaded(ResNet18Conv(pretrained=True), weights)
    assert asked == ["ResNet18_Weights.IMAGENET1K_V1"]


def test_no_network_and_no_torchvision(monkeypatch):
    def offline(progress):
        raise OSError("no route to host")

    both = "install a torchvision.*or give the path of a file"
    fake_torchvision(monkeypatch, offline)
    with pytest.raises(ConfigError, match=f"could not fetch .*resnet18 .no route to host.: {both}"):
        ResNet18Conv(pretrained=True)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(ConfigError, match=f"torchvision cannot be imported .*{both}"):
        ResNet18Conv(pretrained=True)
