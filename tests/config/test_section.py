import pickle

import pytest
from pydantic import ValidationError

from imitate.config import OpenSection, OptimizerConfig, Section
from imitate.config.section import merged


class Inner(Section):
    size: int = 1
    name: str | None = None


class Outer(Section):
    inner: Inner = Inner(size=5)
    names: tuple[str, ...] = ("a",)
    free: OpenSection = OpenSection(depth=2)


def test_values_are_read_by_attribute_key_and_get():
    outer = Outer()
    assert outer.inner.size == 5
    assert outer["inner"]["size"] == 5
    assert outer.get("names") == ("a",)
    assert outer.get("nothing", 3) == 3
    assert "free" in outer
    assert "nothing" not in outer
    assert list(outer) == ["inner", "names", "free"]
    assert outer.keys() == ("inner", "names", "free")
    assert dict(outer.inner.items()) == {"size": 5, "name": None}
    assert outer.inner.values() == (5, None)
    with pytest.raises(KeyError):
        outer["nothing"]


def test_a_section_is_frozen_to_its_depths():
    outer = Outer.model_validate({"names": ["x", "y"], "free": {"a": [{"b": [1]}]}})
    with pytest.raises(ValidationError):
        outer.names = ()
    with pytest.raises(ValidationError):
        outer.inner.size = 2
    with pytest.raises(ValidationError):
        outer.free.a = 1
    with pytest.raises(ValidationError):
        outer.free.new = 1
    with pytest.raises(TypeError):
        outer["names"] = ()
    assert outer.names == ("x", "y")
    assert outer.free.a[0].b == (1,)


def test_a_partial_object_keeps_the_fields_own_defaults():
    outer = Outer.model_validate({"inner": {"name": "n"}, "free": {"width": 3}})
    assert outer.inner == Inner(size=5, name="n")  # not the class's default, 1
    assert outer.free.to_dict() == {"depth": 2, "width": 3}


def test_to_dict_is_plain_and_a_copy():
    outer = Outer()
    tree = outer.to_dict()
    assert tree == {"inner": {"size": 5, "name": None}, "names": ["a"], "free": {"depth": 2}}
    tree["names"].append("b")
    assert outer.names == ("a",)


@pytest.mark.parametrize(
    "tree",
    [
        {"inner": {"size": "1"}},
        {"inner": {"size": True}},
        {"inner": {"size": 1.0}},
        {"inner": None},
        {"names": "abc"},
        {"names": [1]},
        {"free": {"x": float("nan")}},
        {"free": {"x": [float("inf")]}},
        {"free": {"x": object()}},
        {"extra": 1},
    ],
)
def test_nothing_is_coerced_or_ignored(tree):
    with pytest.raises(ValidationError):
        Outer.model_validate(tree)


def test_free_keys_may_have_the_names_of_methods():
    section = OpenSection.model_validate({"keys": 1, "get": {"copy": 2}})
    assert section["keys"] == 1
    assert section["get"]["copy"] == 2
    assert section.to_dict() == {"keys": 1, "get": {"copy": 2}}


def test_a_section_survives_pickling():
    outer = Outer.model_validate({"free": {"a": [1, {"b": None}]}})
    again = pickle.loads(pickle.dumps(outer))
    assert again == outer
    assert again.free.a[1].b is None


def test_an_empty_section_is_false():
    assert not OpenSection()
    assert OpenSection(a=1)


def test_merged_replaces_lists_and_joins_objects():
    below = {"a": {"x": 1, "y": [1, 2]}, "b": 1}
    assert merged(below, {"a": {"y": [3]}, "b": {"c": 1}}) == {
        "a": {"x": 1, "y": [3]},
        "b": {"c": 1},
    }
    assert below == {"a": {"x": 1, "y": [1, 2]}, "b": 1}


def test_optimizer_defaults_are_robomimics():
    assert OptimizerConfig().to_dict() == {
        "optimizer_type": "adam",
        "betas": [0.9, 0.999],
        "learning_rate": {
            "initial": 0.0001,
            "decay_factor": 0.1,
            "epoch_schedule": [],
            "scheduler_type": "multistep",
            "warmup_steps": 0,
            "num_cycles": 0.5,
            "step_every_batch": True,
        },
        "regularization": {"L2": 0.0},
    }
