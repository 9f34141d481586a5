"""Lists of values to try."""

import json

import pytest

from imitate.config.axes import combinations, expand
from imitate.errors import ConfigError


def tree(**algo):
    return {"algo_name": "bc", "train": {"seed": [1, 2], "batch_size": 64}, "algo": algo}


def test_a_list_where_the_key_takes_one_value():
    _, axes = expand(tree(actor_layer_dims=[[64], [128, 128]]))
    assert axes == {"train.seed": [1, 2], "algo.actor_layer_dims": [[64], [128, 128]]}


def test_a_list_that_the_key_takes_is_a_value():
    plain, axes = expand(
        {
            "algo_name": "bc",
            "train": {"action_keys": ["actions"], "data": [{"path": "a.hdf5"}]},
            "algo": {"actor_layer_dims": [64, 64]},
            "observation": {"modalities": {"obs": {"low_dim": ["a", "b"]}}},
        }
    )
    assert axes == {}
    assert plain["algo"]["actor_layer_dims"] == [64, 64]


def test_every_combination_has_a_name_and_a_configuration():
    made = combinations(*expand(tree(actor_layer_dims=[[64], [128, 128]])))
    assert [name for name, _ in made] == [
        "seed=1,actor_layer_dims=64",
        "seed=1,actor_layer_dims=128x128",
        "seed=2,actor_layer_dims=64",
        "seed=2,actor_layer_dims=128x128",
    ]
    assert (made[1][1].train.seed, made[1][1].algo.actor_layer_dims) == (1, (128, 128))


def test_keys_with_the_same_last_word_are_told_apart():
    grid = ["algo.gmm.min_std=[0.1,0.2]", "algo.gaussian.min_std=[0.3]"]
    (name, _), _ = combinations(*expand({"algo_name": "bc"}, grid))
    assert name == "gmm.min_std=0.1,gaussian.min_std=0.3"


def test_the_words_of_robomimic(tmp_path):
    base = tmp_path / "base.json"
    base.write_text(json.dumps({"algo_name": "bc", "train": {"batch_size": 32}}))
    made = combinations(
        *expand(
            {
                "algo_name": "bc",
                "meta": {
                    "hp_base_config_file": str(base),
                    "hp_keys": ["train.seed", "algo.rnn.hidden_dim"],
                    "hp_values": [[1, 2], [100]],
                },
            }
        )
    )
    assert [name for name, _ in made] == ["seed=1,hidden_dim=100", "seed=2,hidden_dim=100"]
    assert (made[1][1].train.batch_size, made[1][1].algo.rnn.hidden_dim) == (32, 100)


@pytest.mark.parametrize(
    ("source", "grid", "words"),
    [
        (tree(), ["train.seed=3"], "wanted a list of values"),
        (tree(), ["train.sed=[1,2]"], "did you mean 'seed'"),
        (tree(), ["train.seed=[]"], "is empty"),
        (tree(), ["train.seed=[1,1]"], "occurs twice"),
        (
            {"algo_name": "bc", "meta": {"hp_keys": ["train.seed"]}},
            [],
            "one list of values for each",
        ),
        (tree(), ["train.seq_length=[1,0]"], "seed=1,seq_length=0"),
    ],
)
def test_what_cannot_be_tried_is_said(source, grid, words):
    with pytest.raises(ConfigError, match=words):
        combinations(*expand(source, grid))
