"""Algorithm sections of earlier versions: they derive from Section, and have one method for each need of data."""

import pickle
from typing import ClassVar

import pytest
from pydantic import Field

from imitate.config import (
    AlgoSection,
    DataNeeds,
    OpenSection,
    Returns,
    Section,
    Subgoals,
    Transitions,
    load_config,
)
from imitate.config.algorithms import find, register
from imitate.config.former_hooks import adapted
from imitate.errors import ConfigError


class Former(Section):
    """A section as it was written for earlier versions."""

    tree_defaults = {"train": {"batch_size": 3}}
    acts = False
    reward_free: ClassVar[bool] = True

    horizon: int = Field(4, ge=1)
    scale: float | None = None

    def conflicts(self, config):
        found = super().conflicts(config)
        return found if config.train.seq_length == 1 else [*found, "train.seq_length: set it to 1"]

    def observed_steps(self, config):
        return config.train.frame_stack

    def transitions(self, config):
        assert super().transitions(config) is None
        return Transitions(0.5)

    def returns(self, config):
        return Returns(0.25)

    def subgoals(self, config):
        return Subgoals(("state",), self.horizon)

    def numbers_from_data(self, dataset):
        return {**super().numbers_from_data(dataset), "scale": float(len(dataset))}


class Current(AlgoSection):
    discount: float = 0.9

    def data_needs(self, config):
        return DataNeeds(transitions=Transitions(self.discount), observed_steps=1)

    def values_from_data(self, dataset):
        return {"a": 1, "b": 1}


class CurrentWithFormer(Current):
    """A subclass, in another package, of a section that has today's methods."""

    def transitions(self, config):
        below = super().transitions(config)
        return Transitions(below.discount, n_step=3)

    def numbers_from_data(self, dataset):
        return {**super().numbers_from_data(dataset), "b": 2}


class Plain(OpenSection):
    size: int = 1


with pytest.warns(DeprecationWarning) as warned:
    register("config_former", Former, lambda section: (object, {}))


def config(**algo):
    return load_config({"algo_name": "config_former", "algo": algo, "train": {"frame_stack": 2}})


def test_former_methods_are_the_fields_of_data_needs():
    made = config(horizon=7)
    assert made.algo.data_needs(made) == DataNeeds(
        transitions=Transitions(0.5),
        returns=Returns(0.25),
        subgoals=Subgoals(("state",), 7),
        observed_steps=2,
        environment_rewards=False,
    )
    assert made.algo.values_from_data([0, 0, 0]) == {"scale": 3.0}


def test_class_attributes_of_a_former_section_count():
    made = config()
    assert made.train.batch_size == 3
    assert made.algo.acts is False
    assert find("config_former").section.observations is None
    assert isinstance(made.algo, Former)


def test_conflicts_of_a_former_section_are_refused():
    with pytest.raises(ConfigError, match=r"train.seq_length: set it to 1"):
        config().with_overrides({"train.seq_length": 5})


def test_a_configuration_with_a_former_section_can_be_copied_and_pickled():
    made = config(horizon=9)
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert again.algo.data_needs(again).subgoals == Subgoals(("state",), 9)
    assert load_config(made.to_json()) == made


def test_former_methods_on_top_of_todays():
    with pytest.warns(DeprecationWarning, match=r"data_needs and values_from_data in place of"):
        section = adapted(CurrentWithFormer)()
    assert section.data_needs(None) == DataNeeds(
        transitions=Transitions(0.9, n_step=3), observed_steps=1
    )
    assert section.values_from_data([]) == {"a": 1, "b": 2}


def test_the_warning_names_the_class_and_the_remedy():
    (warning,) = warned
    words = str(warning.message)
    assert f"{__name__}.Former" in words
    assert "AlgoSection" in words
    assert "in place of observed_steps, transitions, returns, subgoals, numbers_from_data" in words


def test_a_section_without_methods_needs_nothing():
    with pytest.warns(DeprecationWarning, match=r"AlgoSection in place of Section$"):
        section = adapted(Plain)
    assert section(size=2, more="m").more == "m"
    assert section(size=2).data_needs(None) == DataNeeds()
    assert section().values_from_data([]) == {}


def test_todays_sections_stay_as_they_are(recwarn):
    assert adapted(Current) is Current
    assert not recwarn.list
    assert not hasattr(Plain, "transitions")
    assert not hasattr(Plain(), "data_needs")
