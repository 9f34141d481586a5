"""Names and arguments of a configuration."""

import pytest

from imitate.errors import ConfigError
from imitate.models.options import arguments, chosen, relevant


class Small:
    def __init__(self, input_shape, size=1, width=2):
        pass


class Large:
    def __init__(self, input_channel, depth=3):
        pass


TABLE = {"Small": Small, "Large": Large}


def test_a_class_is_looked_up():
    assert chosen(TABLE, "Large", "core_class") is Large
    with pytest.raises(ConfigError, match="core_class: unknown 'Larg'; did you mean 'Large'"):
        chosen(TABLE, "Larg", "core_class")


def test_what_the_builder_gives_is_no_option():
    assert arguments(Small) == ["size", "width"]
    assert arguments(Large) == ["depth"]


def test_options_of_other_classes_are_left_out_and_unknown_ones_refused():
    assert relevant(TABLE, Small, {"size": 4, "depth": 5}, "kwargs") == {"size": 4}
    assert relevant(TABLE, Small, None, "kwargs") == {}
    with pytest.raises(ConfigError, match="kwargs: unknown key 'dept'; did you mean 'depth'"):
        relevant(TABLE, Small, {"dept": 4}, "kwargs")
