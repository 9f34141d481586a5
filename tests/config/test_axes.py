"""Lists of values to try."""

import json

import pytest

from imitate.config.axes import combinations, expand, expand_all
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
    assert [one.name for one in made] == [
        "seed=1,actor_layer_dims=64",
        "seed=1,actor_layer_dims=128x128",
        "seed=2,actor_layer_dims=64",
        "seed=2,actor_layer_dims=128x128",
    ]
    assert made[1].values == {"train.seed": 1, "algo.actor_layer_dims": [128, 128]}


def test_keys_with_the_same_last_word_are_told_apart():
    grid = ["algo.gmm.min_std=[0.1,0.2]", "algo.gaussian.min_std=[0.3]"]
    first, _ = combinations(*expand({"algo_name": "bc"}, grid))
    assert first.name == "gmm.min_std=0.1,gaussian.min_std=0.3"


@pytest.mark.parametrize(
    ("grid", "names"),
    [
        (
            "train.seq_length,algo.rnn=[[10,{'horizon':10}],[20,{'horizon':20}]]",
            ["seq_length=10,horizon=10", "seq_length=20,horizon=20"],
        ),
        (
            "algo.rnn=[{'hidden_dim':400,'kwargs':{'bidirectional':true}}]",
            ["hidden_dim=400,bidirectional=true"],
        ),
    ],
)
def test_keys_vary_together_and_objects_are_named_by_their_leaves(grid, names):
    made = combinations(*expand({"algo_name": "bc"}, [grid.replace("'", '"')]))
    assert [one.name for one in made] == names
    assert made[-1].config.algo.rnn.horizon == made[-1].values.get("train.seq_length", 10)


def test_values_have_to_be_valid_beside_the_overrides_of_all_runs():
    grid = ['algo.rnn=[{"enabled":true,"hidden_dim":4},{"enabled":true,"hidden_dim":8}]']
    with pytest.raises(ConfigError, match="train.seq_length is 1"):
        expand_all([{"algo_name": "bc"}], grid)
    for sources in ([{"algo_name": "bc"}], [{"algo_name": "bc"}, {"algo_name": "hbc"}]):
        made, _ = expand_all(sources, grid[: len(sources) % 2], ["train.seq_length=10"])
        assert {one.config.train.seq_length for one in made} == {10}


def test_another_algorithm_does_not_get_the_templates_section(caplog):
    template = {"algo_name": "bc", "algo": {"rnn": {"hidden_dim": 7}}, "train": {"batch_size": 9}}
    template["train"]["hdf5_load_next_obs"] = False  # as in robomimic's templates
    grid = ['algo_name=["iql","bc"]', "train.seed=[1,2]"]
    made = combinations(*expand(template, grid))
    assert [one.name for one in made][::2] == ["algo_name=iql,seed=1", "algo_name=bc,seed=1"]
    assert made[2].config.algo.rnn.hidden_dim == 7
    assert {one.config.train.batch_size for one in made} == {9}
    assert caplog.messages == ["the settings of bc are left out for iql"]


def test_several_configurations_are_the_first_axis(tmp_path):
    paths = []
    for name, keys in {"a": {"batch_size": [8, 9]}, "b": {}}.items():
        (tmp_path / name).mkdir()
        paths.append(tmp_path / name / "lift.json")
        paths[-1].write_text(json.dumps({"algo_name": "bc", "train": keys}))
    made, axes = expand_all(paths, ["train.seed=[1,2]"])
    assert [one.name for one in made][1:5] == [
        "a_lift,batch_size=8,seed=2",
        "a_lift,batch_size=9,seed=1",
        "a_lift,batch_size=9,seed=2",
        "b_lift,seed=1",
    ]
    assert axes["config"] == ["a_lift", "b_lift"] and made[4].values["config"] == "b_lift"
    with pytest.raises(ConfigError, match="act: seed=1,hidden_dims=4: algo.hidden_dims: unknown"):
        expand_all([{"algo_name": "act"}, paths[1]], ["train.seed=[1]", "algo.hidden_dims=[4]"])
    with pytest.raises(ConfigError, match="given twice"):
        expand_all([paths[0], paths[0]])


def test_meta_of_robomimics_hyperparam_helper_is_a_remark():
    """As its ConfigGenerator writes it: one value each, under short names, those of values too."""
    meta = {
        "hp_base_config_file": "/tmp/gen_configs/base.json",
        "hp_keys": ["plr", "gmm", "mlp"],
        "hp_values": [0.001, "t", "1024"],
    }
    made, axes = expand_all([{"algo_name": "bc", "meta": meta}], ["train.seed=[1,2]"])
    assert list(axes) == ["train.seed"] and len(made) == 2
    assert made[0].config.meta.hp_keys == ("plr", "gmm", "mlp")


@pytest.mark.parametrize(
    ("source", "grid", "words"),
    [
        (tree(), ["train.seed=3"], "wanted a list of values"),
        (tree(), ["train.sed=[1,2]"], "did you mean 'seed'"),
        (tree(), ["train.seed=[]"], "is empty"),
        (tree(), ["train.seed=[1,1]"], "occurs twice"),
        (tree(), ["train.seed,train.batch_size=[1,2]"], r"each value is a list of 2, such as '"),
        (tree(), ["train.seq_length=[1,0]"], "seed=1,seq_length=0"),
    ],
)
def test_what_cannot_be_tried_is_said(source, grid, words):
    with pytest.raises(ConfigError, match=words):
        combinations(*expand(source, grid))
