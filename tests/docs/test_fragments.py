"""JSON and TOML of the documentation: parts of configurations and of a package's pyproject.toml."""

import copy
import json
import re
import sys

import pytest
import torch

from imitate.config import algorithms
from imitate.config.axes import expand_all
from imitate.data.formats import registry
from imitate.deploy.robot import robot
from imitate.envs.experts import expert
from imitate.errors import ConfigError
from imitate.models import key_encoder
from imitate.models.preprocessing.steps import ENTRY_POINTS, make_steps
from tests.docs.pages import PAGES, blocks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it there

PLACES = {"curriculum": ("train", "online"), "core_kwargs": ("observation", "encoder", "rgb")}
"""Sections of parts that do not begin at the root of a configuration, by the part's first key."""
IMAGES = (3, 84, 84)
WRITTEN_ON_THE_PAGE = {"log_force"}
"""Preprocessing steps of an example; tests/examples/test_own_step.py installs it and trains with the block."""
GROUPS = {
    *(algorithms.ENTRY_POINTS, key_encoder.ENTRY_POINTS, ENTRY_POINTS),
    *(registry.ENTRY_POINTS, expert.GROUP, robot.ROBOTS, robot.TELEOPERATORS),
}
"""Entry point groups that pages name."""


def tree_of(text):
    """The configuration of a JSON block: whole, or a part without its outer braces, placed where it belongs."""
    tree = json.loads(text if text.lstrip().startswith("{") else f"{{{text}}}")
    for section in reversed(PLACES.get(next(iter(tree)), ())):
        tree = {section: tree}
    return {"algo_name": "bc", **tree}


def check(text):
    """Raise an error unless the configuration loads and what it leaves free-form can be made."""
    tree = tree_of(text)
    config = expand_all([copy.deepcopy(tree)])[0][0].config  # of its values to try
    steps = tree.get("train", {}).get("preprocess", [])
    make_steps([one for one in steps if one.get("step") not in WRITTEN_ON_THE_PAGE])
    if "rgb" in tree.get("observation", {}).get("encoder", {}):
        section = config.observation.encoder["rgb"].to_dict()
        section["core_kwargs"].get("backbone_kwargs", {}).pop("pretrained", None)  # a file
        core = section["core_class"] or "VisualCore"
        with torch.device("meta"):
            key_encoder.make_key_encoder("image", IMAGES, "rgb", section | {"core_class": core}, {})


FRAGMENTS = [(page, text) for page in PAGES for text in blocks(page, "json")]
TOML = [(page, text) for page in PAGES for text in blocks(page, "toml")]


def test_there_are_many():
    assert len(FRAGMENTS) > 15 and len(TOML) > 2


@pytest.mark.parametrize(("page", "text"), FRAGMENTS, ids=[page for page, _ in FRAGMENTS])
def test_a_json_block_is_a_configuration_or_a_part_of_one(page, text):
    check(text)


@pytest.mark.parametrize(
    "text",
    [
        '"train": {"batch_sise": 8}',
        '"trian": {}',
        '"train": {"preprocess": [{"step": "resize", "sise": [8, 8]}]}',
        '"train": {"preprocess": [{"step": "normalise"}]}',
        '"curriculum": {"stages": [{"untill": {}}, {}]}',
        '"core_kwargs": {"backbone_klass": "DINOv2"}',
        '"core_kwargs": {"backbone_kwargs": {"pretraned": "weights.pth"}}',
        '"observation": {"encoder": {"rgb": {"obs_randomizer_class": "CropRandomiser"}}}',
    ],
)
def test_a_key_or_name_that_does_not_exist_is_found(text):
    with pytest.raises(ConfigError):
        check(text)


@pytest.mark.parametrize(("page", "text"), TOML, ids=[page for page, _ in TOML])
def test_a_toml_block_names_groups_and_classes_that_exist(page, text):
    points = tomllib.loads(text)["project"]["entry-points"]
    written = "\n".join(blocks(page, "python"))
    for group, entries in points.items():
        assert group in GROUPS
        for place in entries.values():
            name = place.partition(":")[2]
            assert re.search(rf"^(class|def) {name}\b", written, re.MULTILINE), name


def test_there_is_no_yaml():
    """A page that gets one needs a test of it."""
    assert [page for page in PAGES for _ in blocks(page, "ya?ml")] == []
