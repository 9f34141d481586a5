import json
from copy import deepcopy

import pytest

from imitate.config import load_config
from imitate.config.config import put
from imitate.errors import ConfigError

TOY = {"algo_name": "config_toy"}


def problem(source, *overrides):
    with pytest.raises(ConfigError) as error:
        load_config(source, overrides)
    return str(error.value)


def test_a_path_a_text_a_dict_and_a_config_give_the_same(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(TOY))
    config = load_config(TOY)
    assert load_config(path) == load_config(str(path)) == config
    assert load_config(' \n{"algo_name": "config_toy"}') == config
    assert load_config(config, ["train.seed=9"]).train.seed == 9


def test_the_source_is_not_changed():
    tree = {**TOY, "$schema": "x", "train": {"data": [{"path": "a"}]}}
    load_config(tree, ["train.data.0.path=b"])
    assert tree == {**TOY, "$schema": "x", "train": {"data": [{"path": "a"}]}}


def test_broken_json_names_file_line_and_column(tmp_path):
    path = tmp_path / "broken.json"
    path.write_text('{\n  "algo_name": "config_toy",\n  "train" {}\n}')
    assert problem(path) == f"{path}: line 3, column 11: not JSON: Expecting ':' delimiter"


def test_a_key_that_stands_twice_is_refused():
    text = '{"algo_name": "config_toy", "train": {"seed": 1, "seed": 2}}'
    assert problem(text) == "JSON text: key 'seed' occurs twice in one object: remove one"


def test_a_file_that_is_no_object(tmp_path):
    path = tmp_path / "list.json"
    path.write_text("[1]")
    assert problem(path) == f"{path}: the JSON text must be an object {{...}}, but is a list"


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "binary.json"
    path.write_bytes(b"\x89HDF\xff\xfe")
    assert problem(path).startswith(f"{path}: cannot be read as text: ")


def test_a_file_that_does_not_exist_and_a_folder(tmp_path):
    assert problem("robosuite/lift/bx.json") == (
        "robosuite/lift/bx.json: there is no such file, and no bundled configuration has this name; "
        "did you mean 'robosuite/lift/bc'?"
    )
    assert problem(tmp_path).startswith(f"{tmp_path}: is a folder, and no bundled configuration")


def test_a_misspelt_file_is_answered_with_the_file_beside_it(tmp_path, monkeypatch):
    (tmp_path / "own_robot.json").write_text(json.dumps(TOY))
    assert problem(tmp_path / "own_robt.json").endswith(
        f"did you mean '{tmp_path}/own_robot.json'?"
    )
    monkeypatch.chdir(tmp_path)
    assert problem("own_robt.json").endswith("did you mean 'own_robot.json'?")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("lift/bc", "did you mean 'robosuite/lift/bc' or"),
        ("bc_rnn_gmm", "did you mean 'bc/bc_rnn_gmm' or"),
        ("sacc", "did you mean 'sac/sac_pendulum' or"),
        ("bc/bcc", "did you mean 'bc/bc' or"),
        ("td3/td3", "did you mean 'td3/td3_pendulum'?"),
        ("quite something else", "`imitate config list` prints the"),
    ],
)
def test_a_name_is_answered_with_near_bundled_ones(name, near, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = problem(name)
    assert near in text
    assert len(text) < 300


@pytest.mark.parametrize(
    ("overrides", "start"),
    [
        (["trian.seed=2"], "--set trian.seed=2: trian: unknown key, did you mean 'train'?"),
        (["train.seed=x"], '--set train.seed=x: train.seed: got "x", wanted an integer'),
        (["train.seed=1", "train.seed=x"], "--set train.seed=x: train.seed: got"),
        (["train"], "--set train: 'train': wanted key=value"),
        (["train.data.4.weight=2"], "--set train.data.4.weight=2: train.data.4.weight: "),
        (["algo.loss=sequence"], "FILE with --set algo.loss=sequence: train.seq_length: is 1, but"),
        (
            ["algo.loss=sequence", "train.seq_length=1"],
            "--set train.seq_length=1: train.seq_length: is 1, but algo.loss is 'sequence'",
        ),
    ],
)
def test_an_override_is_blamed_for_its_own_error(overrides, start, tmp_path):
    path = tmp_path / "good.json"
    path.write_text(json.dumps({**TOY, "train": {"data": [{"path": "a"}]}}))
    assert problem(path, *overrides).startswith(start.replace("FILE", str(path)))


def test_the_file_is_blamed_where_the_override_is_good(tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**TOY, "train": {"sed": 1}}))
    assert problem(path, "train.batch_size=3").startswith(f"{path}: train.sed: unknown key")


def test_data_may_be_a_list_of_paths():
    config = load_config(TOY, ['train.data=["a.hdf5", "b.hdf5"]'])
    assert [entry.path for entry in config.train.data] == ["a.hdf5", "b.hdf5"]
    config = load_config({**TOY, "train": {"data": ["a", {"path": "b", "weight": 2.0}]}})
    assert [(entry.path, entry.weight) for entry in config.train.data] == [("a", 1.0), ("b", 2.0)]


def test_every_problem_has_its_line_and_the_file(tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(
        json.dumps(
            {
                **TOY,
                "algo": {"widths": {"hiden": 1}},
                "train": {"batch_siz": 1, "seed": "3"},
                "extra": 1,
            }
        )
    )
    assert sorted(problem(path).splitlines()) == [
        f"{path}: algo.widths.hiden: unknown key, did you mean 'hidden'?",
        f"{path}: extra: unknown key, did you mean 'meta'?",
        f"{path}: train.batch_siz: unknown key, did you mean 'batch_size'?",
        f'{path}: train.seed: got "3", wanted an integer (Seed of all random numbers of the training)',
    ]


BAD_VALUES = """
train=null | train: got null, wanted an object {...}
algo=[] | algo: got [], wanted an object {...}
train.cuda=1 | train.cuda: got 1, wanted true or false
train.batch_size=0 | train.batch_size: got 0, wanted a number greater than 0
train.batch_size=1.5 | train.batch_size: got 1.5, wanted an integer
train.seed=4294967296 | wanted a number less than 4294967296
train.seed=-1 | train.seed: got -1, wanted a number of at least 0
train.max_grad_norm=NaN | wanted a finite number or null
train.max_grad_norm="1" | got "1", wanted a number or null
train.action_keys=[] | train.action_keys: got [], wanted a list that is not empty
train.action_keys="actions" | train.action_keys: got "actions", wanted a list
train.action_keys=["a", 1] | train.action_keys.1: got 1, wanted a text
train.precision="fp23" | got "fp23", wanted 'fp32', 'bf16' or 'auto', did you mean 'fp32'?
train.hdf5_cache_mode="none" | got "none", wanted 'auto', 'all' or 'low_dim' or null
train.device="gpu" | train.device: got "gpu", wanted another text or null (Device of
train.data=3 | train.data: got 3, wanted a list or null (Demonstrations: a path or URL, or
train.data=[3] | train.data.0: got 3, wanted an object {...}
train.data=[{}] | train.data.0.path: is missing (HDF5 file, folder of shards,
train.data=[{"path": "a", "filterkey": "b"}] | data.0.filterkey: unknown key, did you mean 'filter_key'?
train.action_config={"a": {"normalisation": 0}} | normalisation: unknown key, did you mean 'normalization'?
observation={"encoder": {"touch": {"core_clas": 0}}} | touch.core_clas: unknown key, did you mean 'core_class'?
observation={"encoder": {"rgb": {"obs_randomizer_class": 3}}} | got 3, wanted a text or a list or null
observation={"modalities": {"obs": {"touch": "finger"}}} | modalities.obs.touch: got "finger", wanted a list
algo.optimizer={"optimizer_type": "sgd"} | optimizer_type: got "sgd", wanted 'adam' or 'adamw'
algo_name=3 | algo_name: got 3, wanted a text (Name of the algorithm)
algo_name="" | algo_name: no algorithm '', valid names
algo_name="config_toi" | algo_name: no algorithm 'config_toi', did you mean 'config_toy'?
"""


@pytest.mark.parametrize("row", BAD_VALUES.strip().splitlines())
def test_a_bad_value_is_told_in_one_line(row):
    change, _, words = row.partition(" | ")
    path, _, value = change.partition("=")
    tree = deepcopy(TOY)
    put(tree, path, json.loads(value))
    text = problem(tree)
    assert words in text
    assert "\n" not in text


def test_a_missing_name_and_a_value_that_json_cannot_hold():
    assert "algo_name: is missing (Name of the algorithm)" in problem({})
    tree = {**TOY, "algo": {"widths": {"kwargs": {"a": {1}}}}}
    assert "false or null), not a set" in problem(tree)


def test_a_long_value_is_cut_short():
    text = problem({**TOY, "train": {"seed": "x" * 500}})
    assert '"' + "x" * 76 + "..." in text
    assert "x" * 77 not in text
