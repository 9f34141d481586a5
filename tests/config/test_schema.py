import json

import pytest

from imitate.config import Config, DatasetConfig, load_config
from imitate.config.algorithms import find
from imitate.config.loading import folder, names
from imitate.config.schema import _text, json_schema, keys, schema_text

COMMITTED = sorted((folder() / "schema").glob("*.json"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_the_committed_schema_is_the_generated_one(path):
    generated = json.loads(schema_text(path.stem))
    assert json.loads(path.read_text()) == generated, "run: imitate config schema"


def test_each_algorithm_of_the_configurations_has_a_schema():
    used = {load_config(name).algo_name for name in names()}
    assert used <= {path.stem for path in COMMITTED}


def test_what_the_schema_says():
    schema = json_schema("config_toy")
    assert schema["required"] == ["algo_name"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["algo_name"]["const"] == "config_toy"
    parts = schema["$defs"]
    train = parts["TrainConfig"]["properties"]
    assert train["batch_size"] == {
        "type": "integer",
        "exclusiveMinimum": 0,
        "default": 100,
        "description": "Samples in a batch.",
    }
    assert [option.get("type") for option in train["data"]["anyOf"]] == ["string", "array", "null"]
    assert parts["TrainConfig"]["additionalProperties"] is False
    assert parts["OpenSection"]["additionalProperties"] == {}
    assert parts["EncodersConfig"]["additionalProperties"] == {"$ref": "#/$defs/EncoderConfig"}
    assert parts["ModalityGroup"]["additionalProperties"]["type"] == "array"
    assert parts["Widths"]["properties"]["hidden"]["description"] == "Hidden units."


def test_rows_have_type_range_default_and_meaning():
    rows = {row.path: row for row in keys(Config, "")}
    assert rows["algo_name"].default == "required"
    assert rows["train.batch_size"].kind == "integer > 0"
    assert rows["train.seed"].kind == "integer ≥ 0 < 4294967296"
    assert rows["experiment.save.every_n_seconds"].kind == "number > 0 or null"
    assert (
        rows["train.obs_normalization"].kind
        == '`"mean_std"` or `"min_max"` or `"quantile"` or `"quantile10"` or null'
    )
    assert rows["train.dataset_keys"].default == '`["actions", "rewards", "dones"]`'
    assert rows["observation.encoder.rgb.core_class"].default == '`"VisualCore"`'
    assert rows["train.action_config.<name>.format"].default == "`null`"
    algo = {row.path: row for row in keys(find("config_toy").section, "algo")}
    assert algo["algo.widths.hidden"] == (
        "algo.widths.hidden",
        "integer > 0",
        "`16`",
        "Hidden units.",
    )
    assert algo["algo.optimizer.optimizer_type"].default == '`"adamw"`'


def test_a_default_in_a_file_may_hold_sections():
    assert _text((DatasetConfig(path="d.hdf5"),)).startswith('`[{"path": "d.hdf5"')


def test_every_shared_key_says_what_it_means():
    assert [row.path for row in keys(Config, "") if not row.meaning.endswith(".")] == []
