"""Vectors of instructions when acting: known ones, and others by the table's text model."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from imitate.errors import ConfigError, UserError
from imitate.policy import rollout_policy
from imitate.policy.rollout_policy import vector_of
from imitate.system.instructions import Instructions

KNOWN = Instructions(("lift", "push it"), np.array([[4.0, 1], [7, 1]], np.float32), encoder="own")


class Lengths:
    """Embeds a text as its length and a constant."""

    def __init__(self, constant=1.0):
        self.constant = constant

    def embed(self, texts):
        return np.array([[len(text), self.constant] for text in texts], np.float32)


@pytest.fixture(autouse=True)
def _forget():
    rollout_policy.text_model.cache_clear()


def test_known_ones_need_no_model(monkeypatch):
    monkeypatch.setattr(rollout_policy, "TransformersText", None)
    assert vector_of(KNOWN, "push it").tolist() == [7, 1]


def test_others_are_embedded_once_loaded_and_without_downloads(monkeypatch):
    loaded = []
    monkeypatch.setattr(
        rollout_policy,
        "TransformersText",
        lambda name, local_only: loaded.append((name, local_only)) or Lengths(),
    )
    assert vector_of(KNOWN, "stack").tolist() == [5, 1]
    assert vector_of(KNOWN, "stack them").tolist() == [10, 1]
    assert loaded == [("own", True)]


def test_another_model_is_refused(monkeypatch):
    monkeypatch.setattr(rollout_policy, "TransformersText", lambda name, local_only: Lengths(2.0))
    with pytest.raises(
        UserError, match="'own' on this machine differs .* known instruction: lift; push"
    ):
        vector_of(KNOWN, "stack")


@pytest.mark.parametrize(("constant", "same"), [(1.041, True), (1.042, False), (0.958, False)])
def test_a_model_is_the_one_of_the_table_up_to_a_hundredth(monkeypatch, constant, same):
    """The table has (4, 1) of length 4.123, so 0.0412 is allowed."""
    monkeypatch.setattr(rollout_policy, "text_model", lambda name: Lengths(constant))
    if same:
        assert vector_of(KNOWN, "stack") == pytest.approx([5.0, 1.041])
    else:
        with pytest.raises(UserError, match="differs"):
            vector_of(KNOWN, "stack")


def test_a_model_with_larger_vectors_is_another_and_ten_instructions_are_listed(monkeypatch):
    table = Instructions(tuple("abcdefghijk"), np.ones((11, 3), np.float32), encoder="own")
    monkeypatch.setattr(rollout_policy, "text_model", lambda name: Lengths())
    with pytest.raises(
        UserError, match="differs .* known instruction: a; b; c; d; e; f; g; h; i; j$"
    ):
        vector_of(table, "stack")


def test_without_a_model_or_its_package(monkeypatch):
    with pytest.raises(UserError, match="instruction 'stack' is not known; known: 'a'"):
        vector_of(Instructions.one_hot(["a"]), "stack")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match="encoder 'own': the package 'transformers'"):
        vector_of(KNOWN, "stack")


def test_the_model_travels_with_the_table(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, instructions=["lift"], embeddings=np.ones((1, 2)), encoder=np.array("own"))
    table = Instructions.load(path)
    assert table.encoder == Instructions.from_dict(table.to_dict()).encoder == "own"
    np.savez(path, instructions=["lift"], embeddings=np.ones((1, 2)))
    assert Instructions.load(path).encoder is None


@pytest.mark.parametrize(("difference", "same"), [(1.0, True), (1.001, False)])
def test_a_difference_of_exactly_a_hundredth_is_the_same_model(monkeypatch, difference, same):
    table = Instructions(("a",), np.array([[60.0, 80.0]], np.float32), encoder="own")
    vectors = np.array([[60.0 + difference, 80.0], [5.0, 6.0]], np.float32)
    model = SimpleNamespace(embed=lambda texts: vectors)
    monkeypatch.setattr(rollout_policy, "text_model", lambda name: model)
    if same:
        assert vector_of(table, "stack").tolist() == [5.0, 6.0]
    else:
        with pytest.raises(UserError, match="differs"):
            vector_of(table, "stack")
