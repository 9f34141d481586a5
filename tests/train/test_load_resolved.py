"""Keys that an option of the command line would replace are refused, not dropped."""

import json

import pytest

from imitate.errors import ConfigError
from imitate.train.setup import load_resolved
from tests.train.conftest import config_dict


@pytest.mark.parametrize("key", ["train.data", "train.data.0.demo_limit"])
def test_data_are_named_once(demos, key):
    value = json.dumps([{"path": str(demos), "demo_limit": 2}]) if key == "train.data" else "2"
    with pytest.raises(ConfigError, match=f"--dataset replaces train.data, so {key} has no effect"):
        load_resolved(config_dict(demos), [f"{key}={value}"], demos, None)
    with pytest.raises(ConfigError, match="--dataset replaces"):
        load_resolved(config_dict(demos), [], demos, None, grid=[key])


def test_each_alone_is_taken(demos, tmp_path):
    part = json.dumps([{"path": str(demos), "demo_limit": 2}])
    config = load_resolved(config_dict(demos), [f"train.data={part}"], None, tmp_path)
    assert config.train.data[0].demo_limit == 2
    assert config.train.output_dir == str(tmp_path)
    assert load_resolved(config_dict(demos), [], demos, None).train.data[0].demo_limit is None
    with pytest.raises(ConfigError, match="--output-dir replaces train.output_dir"):
        load_resolved(config_dict(demos), ["train.output_dir=elsewhere"], None, tmp_path)
