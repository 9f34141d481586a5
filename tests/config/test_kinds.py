"""Components of several kinds in the configuration: problems, meanings and tables name the keys of the kind."""

from importlib.metadata import EntryPoint
from typing import Annotated

import pytest
from pydantic import ConfigDict, Field

from imitate.config import AlgoSection, Section, load_config
from imitate.config.algorithms import register
from imitate.config.axes import expand
from imitate.config.kinds import Kinds
from imitate.config.schema import explain, keys
from imitate.errors import ConfigError


class Part(Section):
    model_config = ConfigDict(extra="allow")

    type: str = Field("wheel", description="kind of part")


class Wheel(Part):
    model_config = {**Section.model_config}

    spokes: int = Field(8, description="number of spokes")


class Belt(Part):
    model_config = {**Section.model_config}

    length: float = Field(1.0, description="length in m")


PARTS = Kinds("algo.part", "tests.config", "imitate.no_such_parts", Part, ("wheel", "belt"))
PARTS.register("wheel", Wheel)(object)
PARTS.register("belt", Belt)(object)


class Spares(Section):
    """Parts by names of one's choice."""

    model_config = ConfigDict(extra="allow")
    entry_type = PARTS

    __pydantic_extra__: dict[str, Annotated[Part, PARTS]] = Field(init=False)


class Machine(AlgoSection):
    part: Annotated[Part, PARTS] = Field(Wheel(), description="the part")
    second: Annotated[Part | None, PARTS] = Field(None, description="another part")
    spares: Spares = Field(Spares())


register("config_machine", Machine, lambda section: (object, {}))


def load(**algo):
    return load_config({"algo_name": "config_machine", "algo": algo})


def test_values_are_checked_by_the_section_of_their_kind():
    algo = load(part={"type": "belt", "length": 2.0}, second={"spokes": 3}, spares={"a": {}}).algo
    assert algo.part == Belt(type="belt", length=2.0)
    assert algo.second == Wheel(spokes=3) and algo.spares["a"] == Wheel()
    assert load().algo.second is None


BELT = {"type": "belt"}


@pytest.mark.parametrize(
    ("algo", "problem"),
    [
        ({"part": {"type": "belts"}}, "algo.part: no type 'belts'; did you mean 'belt'?"),
        ({"spares": {"a": {"type": "rod"}}}, "algo.spares.a: no type 'rod'; valid names: belt, wheel"),
        ({"part": BELT | {"lenght": 1.0}}, "algo.part.lenght: unknown key, did you mean 'length'?"),
        ({"spares": {"a": BELT | {"spokes": 1}}}, "algo.spares.a.spokes: unknown key, valid names: length, type"),
        ({"second": BELT | {"length": "x"}}, 'algo.second.length: got "x", wanted a number (length in m)'),
    ],
)  # fmt: skip
def test_problems_name_the_keys_of_the_kind_once(algo, problem):
    with pytest.raises(ConfigError) as caught:
        load(**algo)
    assert str(caught.value) == problem


def test_meanings_are_those_of_the_kind():
    tree = {
        "algo_name": "config_machine",
        "algo": {"part": {"type": "belt", "length": 2.0}, "spares": {"a": {"spokes": 2}}},
        "observation": {"modalities": {"obs": {"touch": ["t"]}}},
    }
    found = {one.path: one.meaning for one in explain(tree, load_config(tree))}
    assert found["algo.part.length"] == "length in m"
    assert found["algo.spares.a.spokes"] == "number of spokes"
    assert found["observation.modalities.obs.touch"].startswith("Observation keys by modality")


def test_the_table_has_the_keys_of_the_kind_that_is_the_default():
    rows = {row.path: row.default for row in keys(Machine, "algo")}
    assert rows["algo.part.spokes"] == "`8`"
    assert "algo.part.length" not in rows


def test_values_to_try_of_a_kind():
    tree = {"algo_name": "config_machine", "algo": {"part": {"type": "belt", "length": [1.0, 2.0]}}}
    assert expand(tree)[1] == {"algo.part.length": [1.0, 2.0]}


def test_a_kind_of_another_package_registers_itself_when_its_entry_point_is_loaded(monkeypatch):
    parts = Kinds("algo.part", "imitate.algo.slots", "imitate.parts", Part, ("wheel",))

    class Point:
        name = "theirs"

        def load(self):
            parts.register("theirs", Wheel)(object)

    points = {("imitate.parts", None): [Point()], ("imitate.parts", "theirs"): [Point()]}
    monkeypatch.setattr(
        "imitate.config.kinds.installed_points",
        lambda group, name=None: points.get((group, name), []),
    )
    with pytest.raises(ConfigError, match=r"algo\.part: no type 'thiers'; did you mean 'theirs'"):
        parts.find("thiers")
    assert parts.find("theirs") == (object, Wheel)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            "no_such_module:Part",
            "which cannot be loaded .No module named 'no_such_module'.: repair",
        ),
        ("json:no_such_name", "which cannot be loaded .module 'json' has no attribute"),
        ("json:loads", "which registers no type of this name: repair that package"),
    ],
)
def test_a_broken_entry_point_of_a_kind_is_named(monkeypatch, value, words):
    parts = Kinds("algo.part", "imitate.algo.slots", "imitate.parts", Part, ("wheel",))
    point = EntryPoint("theirs", value, "imitate.parts")
    monkeypatch.setattr("imitate.config.kinds.installed_points", lambda *of: [point])
    with pytest.raises(ConfigError, match=f"algo.part: 'theirs' is {value}, {words}"):
        parts.find("theirs")


@pytest.mark.parametrize("name", ["whel", "os.path", "../x", ""])
def test_what_is_no_name_of_a_kind_imports_nothing(name):
    with pytest.raises(ConfigError, match=r"algo\.part: no type"):
        PARTS.find(name)
