import json

import pytest
from typer.testing import CliRunner

from imitate.cli.config import app
from imitate.config import load_config
from imitate.config.schema import schema_text
from imitate.errors import ConfigError
from imitate.train import forecast
from tests.demo_files import make_demo_file


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_show_prints_the_whole_tree_with_overrides():
    done = run("show", "robosuite/lift/bc", "--set", "train.batch_size=3", "--set", "train.seed=4")
    assert done.exit_code == 0
    tree = json.loads(done.stdout)
    assert (tree["train"]["batch_size"], tree["train"]["seed"]) == (3, 4)
    assert tree["train"]["frame_stack"] == 1
    assert load_config(tree) == load_config(done.stdout)


def test_list_gives_the_names_with_a_word_in_them():
    names = run("list", "stack").stdout.split()
    assert "robosuite/stack/bc_rnn_gmm" in names
    assert all("stack" in name for name in names)
    everything = json.loads(run("list", "--json").stdout)
    assert set(names) < set(everything)


def test_check_tells_of_every_file(tmp_path):
    good, broken, untrainable = (tmp_path / name for name in ("good.json", "bad.json", "no.json"))
    good.write_text('{"algo_name": "bc"}')
    broken.write_text('{"algo_name": "bc", "train": {"sed": 1}}')
    untrainable.write_text('{"algo_name": "bc", "experiment": {"validate": true}}')
    done = run("check", str(good), str(broken), str(untrainable))
    assert done.stdout == f"{good}: good\n"
    assert isinstance(done.exception, ConfigError)
    lines = str(done.exception).splitlines()
    assert lines[0] == f"{broken}: train.sed: unknown key, did you mean 'seed'?"
    assert lines[1].startswith(f"{untrainable}: train.hdf5_validation_filter_key: is null, but")
    assert len(lines) == 2
    assert run("check", str(good)).exit_code == 0


def test_schema_writes_a_file_per_algorithm(tmp_path, monkeypatch):
    monkeypatch.setattr("imitate.cli.config.available", lambda: ["bc", "sac"])
    folder = tmp_path / "new" / "folder"
    assert run("schema", "--out", str(folder)).exit_code == 0
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        f"{name}.json": schema_text(name) for name in ("bc", "sac")
    }


@pytest.mark.parametrize(
    ("arguments", "row"),
    [
        ([], "| `train.batch_size` | integer > 0 | `100` | Samples in a batch. |"),
        (["bc"], '| `algo.rnn.rnn_type` | `"LSTM"` or `"GRU"` | `"LSTM"` |'),
    ],
)
def test_keys_prints_the_table(arguments, row):
    done = run("keys", *arguments)
    assert done.exit_code == 0
    assert row in done.stdout


def test_a_key_that_is_dropped_is_told_once(tmp_path, caplog):
    file = tmp_path / "theirs.json"
    file.write_text(json.dumps({"algo_name": "bc", "experiment": {"mse": {"a": 1}}}))
    assert run("explain", str(file)).exit_code == 0
    assert [r.getMessage() for r in caplog.records] == ["experiment.mse: not supported: dropped"]


def differing(tmp_path, tree):
    file = tmp_path / "theirs.json"
    file.write_text(json.dumps(tree))
    found = json.loads(run("explain", str(file), "--differing", "--json").stdout)
    return {entry["path"] for entry in found}


def test_only_differences_that_concern_the_file_are_told(tmp_path):
    """All sections of a robomimic file, whose parts are switched off or hold nothing."""
    tree = json.loads(run("show", "bc/bc").stdout)
    tree["experiment"]["rollout"]["enabled"] = False
    tree["algo"]["optim_params"]["policy"]["learning_rate"]["warmup_steps"] = 0
    assert differing(tmp_path, tree) == set()
    tree["experiment"]["rollout"]["enabled"] = True
    tree["experiment"]["validate"] = True
    tree["train"].update({"frame_stack": 3, "seq_length": 5, "hdf5_validation_filter_key": "valid"})
    tree["algo"]["vae"].update({"enabled": True})
    tree["algo"]["vae"]["decoder"]["is_conditioned"] = False
    tree["observation"]["modalities"]["obs"]["rgb"] = ["camera_image"]
    tree["observation"]["encoder"]["rgb"]["obs_randomizer_class"] = "CropRandomizer"
    tree["observation"]["encoder"]["depth"]["obs_randomizer_class"] = "CropRandomizer"
    assert differing(tmp_path, tree) == {
        "experiment.rollout.n",
        "experiment.validate",
        "train.frame_stack",
        "train.pad_seq_length",
        "algo.vae.decoder.is_conditioned",
        "algo.optim_params.policy.learning_rate.scheduler_type",
        "observation.encoder.rgb.obs_randomizer_class",
    }


def test_init_writes_a_file_that_check_finds_good(tmp_path):
    demos = make_demo_file(tmp_path / "own.hdf5", obs_dims={"joints": 3}, action_dim=3)
    out = tmp_path / "my.json"
    done = run("init", str(demos), "--algo", "bc", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    topics = [line.split()[0] for line in done.stderr.splitlines()]
    assert {"data", "vectors", "actions", "updates", "time", "written", "next"} <= set(topics)
    assert f"imitate train --config {out}" in done.stderr
    assert run("check", str(out)).stdout == f"{out}: good\n"
    again = run("init", str(demos), "--out", str(out))
    assert "exists already: name another with --out, or add --overwrite" in str(again.exception)


def test_init_prints_json_alone_to_the_pipe(tmp_path):
    demos = make_demo_file(tmp_path / "own.hdf5", obs_dims={"joints": 3}, action_dim=3)
    done = run("init", str(demos), "--no-forecast")
    assert load_config(done.stdout).observation.modalities.obs.low_dim == ("joints",)
    assert "time" not in [line.split()[0] for line in done.stderr.splitlines()]


@pytest.mark.parametrize(("bf16_ms", "chosen"), [(5.0, ("bf16", 2)), (9.5, ("fp32", 1))])
def test_init_measures_on_request(tmp_path, monkeypatch, bf16_ms, chosen):
    """The fastest is written; one thread in fp32 takes 10 ms, which is near enough to 9.5."""

    def measured(config, device):
        ms = {("fp32", 1): 10.0, ("bf16", 2): bf16_ms}
        return [1.0, ms.get((config.train.precision, config.train.num_threads), 20.0) / 1e3], 0.0

    monkeypatch.setattr(forecast, "_measured", measured)
    monkeypatch.setattr(forecast, "precisions", lambda config, device: ("fp32", "bf16"))
    monkeypatch.setattr(forecast.torch, "get_num_threads", lambda: 2)
    demos = make_demo_file(tmp_path / "own.hdf5", obs_dims={"joints": 3}, action_dim=3)
    done = run("init", str(demos), "--algo", "bc", "--no-forecast", "--measure")
    train = load_config(done.stdout).train
    assert (train.precision, train.num_threads) == chosen
    assert "10 ms with fp32 and 1 thread, " in done.stderr
    assert f"{bf16_ms:g} ms with bf16 and 2 threads" in done.stderr


def test_explain_says_what_a_key_means_and_what_robomimic_does(tmp_path):
    file = tmp_path / "theirs.json"
    file.write_text(
        json.dumps(
            {
                "algo_name": "diffusion_policy",
                "algo": {"unet": {"down_dims": [64, 128]}},
                "train": {"max_grad_norm": 1.0, "batch_size": 8, "action_keys": ["actions"]},
                "observation": {"encoder": {"rgb": {"core_kwargs": {"feature_dimension": 32}}}},
            }
        )
    )
    found = {
        entry["path"]: entry for entry in json.loads(run("explain", str(file), "--json").stdout)
    }
    assert set(found) == {
        "algo_name",
        "algo.unet.down_dims",
        "train.max_grad_norm",
        "train.batch_size",
        "train.action_keys",
        "observation.encoder.rgb.core_kwargs.feature_dimension",
    }
    assert found["train.batch_size"]["meaning"] == "Samples in a batch."
    assert found["train.batch_size"]["robomimic"] == ""
    assert found["algo.unet.down_dims"]["robomimic"].startswith("ignored: the U-Net always has 256")
    assert found["observation.encoder.rgb.core_kwargs.feature_dimension"]["meaning"] != ""
    text = run("explain", str(file), "--differing").stdout
    assert "train.max_grad_norm = 1.0" in text
    assert "used by BC only" in text
    assert "batch_size" not in text
