"""Vectors of texts, with stand-ins for Hugging Face's models."""

import sys
import types

import numpy as np
import pytest
import torch

from imitate.errors import ConfigError
from imitate.policy.language import TransformersText, mean_over_tokens


def tokenizer(texts, padding, truncation, return_tensors):
    """A token is the length of a word."""
    assert padding in (True, "max_length")
    assert (truncation, return_tensors) == (True, "pt")
    words = [[len(word) for word in text.split()] for text in texts]
    longest = 8 if padding == "max_length" else max(map(len, words))
    return {
        "input_ids": torch.tensor([w + [9] * (longest - len(w)) for w in words]),
        "attention_mask": torch.tensor([[1] * len(w) + [0] * (longest - len(w)) for w in words]),
    }


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, input_ids, attention_mask):
        hidden = torch.stack([input_ids, -input_ids], -1) * self.scale
        return types.SimpleNamespace(last_hidden_state=hidden)


class Clip(torch.nn.Module):
    def forward(self, input_ids, attention_mask):
        return types.SimpleNamespace(text_embeds=input_ids[:, :1].half())


class Siglip(torch.nn.Module):
    def forward(self, input_ids, attention_mask):
        return types.SimpleNamespace(pooler_output=input_ids.sum(-1, keepdim=True))


@pytest.fixture
def transformers(monkeypatch):
    asked = []

    def loading(result):
        def from_pretrained(name, **options):
            asked.append(options)
            if name not in ("plain", "clip", "siglip"):
                raise OSError(f"{name} is not a local folder\nand more")
            return result(name)

        return types.SimpleNamespace(from_pretrained=from_pretrained)

    module = types.ModuleType("transformers")
    module.AutoTokenizer = loading(lambda name: tokenizer)
    module.AutoConfig = loading(lambda name: types.SimpleNamespace(model_type=name))
    module.AutoModel = loading(lambda name: Plain())
    module.CLIPTextModelWithProjection = loading(lambda name: Clip())
    module.SiglipTextModel = loading(lambda name: Siglip())
    monkeypatch.setitem(sys.modules, "transformers", module)
    return asked


@pytest.mark.parametrize(("given", "local"), [({}, False), ({"local_only": True}, True)])
def test_a_model_runs_no_code_of_its_own_and_is_read_from_safetensors(transformers, given, local):
    text = TransformersText("plain", **given)
    safe = {"local_files_only": local, "trust_remote_code": False}
    assert transformers == [safe, safe, {**safe, "use_safetensors": True}]
    assert not text.model.training


@pytest.mark.usefixtures("transformers")
def test_the_mean_over_the_tokens_of_a_text():
    vectors = TransformersText("plain").embed(["lift it", "put the red cube down"])
    assert vectors.dtype == np.float32
    # Words of 4 and 2 letters, and of 3, 3, 3, 4 and 4.
    assert vectors == pytest.approx(np.array([[3.0, -3.0], [3.4, -3.4]]))


@pytest.mark.usefixtures("transformers")
def test_clips_own_embedding():
    vectors = TransformersText("clip").embed(["lift it", "stack them"])
    assert (vectors.dtype, vectors.tolist()) == (np.float32, [[4.0], [5.0]])


@pytest.mark.usefixtures("transformers")
def test_siglip_sees_texts_of_its_full_length():
    vectors = TransformersText("siglip").embed(["lift it"])  # 4 + 2 and six of padding, 9 each
    assert vectors.tolist() == [[60.0]]


def test_padding_is_left_out():
    hidden = torch.tensor([[[1.0], [3.0], [100.0]], [[2.0], [4.0], [6.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert mean_over_tokens(hidden, mask).tolist() == [[2.0], [4.0]]


@pytest.mark.usefixtures("transformers")
def test_a_model_that_cannot_be_had():
    with pytest.raises(ConfigError, match="encoder 'no/such' cannot be loaded .no/such is not a"):
        TransformersText("no/such")


@pytest.mark.usefixtures("transformers")
def test_a_model_that_is_not_here_and_must_not_be_fetched():
    with pytest.raises(ConfigError, match="first download the text model: hf download no/such"):
        TransformersText("no/such", local_only=True)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        ConfigError,
        match="package 'transformers' is not installed; do: pip install 'transformers>=4.40'",
    ):
        TransformersText("clip")


def test_an_error_of_the_import_without_a_name_is_one_of_transformers(monkeypatch):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "transformers":
                raise ImportError("no kernel")

    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ConfigError, match="'transformers' is installed.* imported: no kernel"):
        TransformersText("clip")
