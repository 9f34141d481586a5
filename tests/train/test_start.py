"""Trainings that start from a checkpoint, also from one of robomimic; what they resolve before."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch

from imitate.config import load_config
from imitate.config.config import put
from imitate.errors import CheckpointError, ConfigError
from imitate.models.vit import VC1
from imitate.policy.checkpoint import load_checkpoint, save_checkpoint
from imitate.train.online.setup import build_online
from imitate.train.setup import load_resolved
from imitate.train.start import with_checksums
from imitate.train.trainer import train
from tests.cli.conftest import Caller
from tests.demo_files import make_demo_file
from tests.refusals import refused
from tests.tiny import tiny_checkpoint, tiny_tree

from .conftest import config_dict

THEIRS = Path(__file__).parents[1] / "policy" / "fixtures" / "robomimic"
QUIET = [
    *("train.num_epochs=1", "train.cuda=false", "train.batch_size=8"),
    *("experiment.epoch_every_n_steps=2", "experiment.rollout.enabled=false"),
    *("experiment.validate=false", "experiment.logging.log_tb=false"),
    "experiment.render_video=false",
]
NETWORKS = {"iql": ("actor", "critic", "vf"), "td3_bc": ("actor", "critic")}


def go_on(name, data, tmp_path, *overrides):
    """Two updates on our data, from robomimic's checkpoint of that name."""
    path = THEIRS / f"{name}.pth"
    result = train(
        load_checkpoint(path)["config"],
        dataset=data,
        output_dir=tmp_path / "runs",
        overrides=[*QUIET, f"experiment.ckpt_path={path}", *overrides],
        quiet=True,
    )
    return load_checkpoint(path), load_checkpoint(result.checkpoint)


RARELY = [pytest.param(name, marks=pytest.mark.nightly) for name in ("bc_rnn_gmm", "td3_bc")]


@pytest.mark.parametrize("name", ["bc_normobs", "bc_minmax", "iql", "bc_gmm_v030", *RARELY])
def test_weights_and_normalization_are_taken_over(name, demo_file, tmp_path):
    nets = NETWORKS.get(name, ("policy",))
    still = [f"algo.optim_params.{net}.learning_rate.initial=1e-12" for net in nets]
    before, after = go_on(name, demo_file(), tmp_path, *still)
    for key, tensor in before["model"]["nets"].items():
        if "target" not in key:
            assert torch.allclose(tensor, after["model"]["nets"][key], atol=1e-6), key
    for group in ("obs", "actions"):
        for key, entry in before["preprocess"][group].items():
            for part in ("offset", "scale"):
                assert torch.equal(entry[part], after["preprocess"][group][key][part])


def test_moments_go_on(demo_file, tmp_path):
    before, after = go_on("iql", demo_file(), tmp_path, "experiment.ckpt_optimizers=true")
    for net in ("actor", "critic", "vf"):
        old, new = (c["model"]["optimizers"][net]["state"] for c in (before, after))
        assert set(old) == set(new)
        for number, state in old.items():
            assert float(new[number]["step"]) == float(state["step"]) + 2
            # Adam forgets little in two updates: 0.9^2 of the first moment, 0.999^2 of the second.
            kept = 0.999**2 * state["exp_avg_sq"]
            assert bool((new[number]["exp_avg_sq"] >= kept * (1 - 1e-5)).all())


def test_what_a_checkpoint_lacks_or_does_not_fit_is_refused(demo_file, tmp_path):
    with refused("contains no optimizer moments of policy", error=CheckpointError):
        go_on("bc_gmm_v030", demo_file(), tmp_path, "experiment.ckpt_optimizers=true")
    sizes = {"object": 4, "robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2}
    words = "bc.pth do not fit this configuration: |'object': (10,)"
    with refused(words, error=CheckpointError):
        go_on("bc", demo_file(obs_dims=sizes), tmp_path)


def test_chosen_parts_are_loaded_and_all_else_begins_anew(demo_file, tmp_path):
    def started(*parts, more=()):
        named = f"experiment.ckpt_parts={json.dumps(parts)}"
        still = "algo.optim_params.policy.learning_rate.initial=1e-12"
        return go_on("bc_normobs", demo_file(), tmp_path, still, named, *more)

    before, after = started("policy.head")
    for key, tensor in before["model"]["nets"].items():
        same = torch.allclose(tensor, after["model"]["nets"][key], atol=1e-6)
        assert same == key.startswith("policy.head"), key
    assert not torch.equal(*(c["preprocess"]["obs"]["object"]["offset"] for c in (before, after)))
    for part, more, words in (
        ("policy.haed", (), "no part 'policy.haed'; did you mean 'policy.head'"),
        (
            "policy.head",
            ("algo.actor_layer_dims=[7]",),
            "'policy.head' of | weights have another shape",
        ),
    ):
        with refused(words, error=CheckpointError):
            started(part, more=more)
    with refused("experiment.ckpt_optimizers: optimizer state", error=ConfigError):
        started("policy", more=("experiment.ckpt_optimizers=true",))


def test_init_on_the_command_line(demo_file, tmp_path):
    sets = [part for override in QUIET for part in ("--set", override)]
    words = [
        "--init",
        THEIRS / "bc.pth",
        "--dataset",
        demo_file(),
        "--output-dir",
        tmp_path / "runs",
    ]
    Caller()("train --quiet --json", *words, *sets)
    (config,) = (tmp_path / "runs").glob("*/*/config.json")
    tree = json.loads(config.read_text())
    assert tree["algo"]["actor_layer_dims"] == [32, 48]
    assert tree["experiment"]["ckpt_path"].endswith("bc.pth")
    said = config.with_name("log.txt").read_text()
    assert re.search(r"^weights: all of .*robomimic/bc\.pth$", said, re.MULTILINE)
    make_demo_file(tmp_path / "other.hdf5", obs_dims={"front": 3})
    words[3] = tmp_path / "other.hdf5"
    refusal = Caller()("train --quiet", *words, *sets, code=2).stderr
    assert re.search(
        r"`imitate dataset rename-key [^`]+other.hdf5'? obs/\w+ obs/\w+ --out", refusal
    )
    assert "modalities=auto" not in refusal


def test_online_after_offline_keeps_the_scale_that_the_data_gave(tmp_path):
    path, obs = tmp_path / "a.pth", {"flat": 3}
    ckpt = load_checkpoint(tiny_checkpoint(path, "iql", obs=obs))
    save_checkpoint({**ckpt, "provenance": {"reward": {"divisor": 8.0}}}, path)
    train = {
        "reward": {"normalization": "return_range", "scale": 100.0},
        "online": {"enabled": True, "env": "Pendulum-v1"},
    }
    config = load_config(tiny_tree("iql", obs=obs, train=train))
    with refused("normalization=null --set train.reward.scale=SCALE", error=ConfigError):
        build_online(config, torch.device("cpu"))
    save_checkpoint({**ckpt, "provenance": {"reward": {}}}, tmp_path / "b.pth")
    unfitted = config.with_overrides({"experiment.ckpt_path": str(tmp_path / "b.pth")})
    with refused("normalization=null --set train.reward.scale=SCALE", error=ConfigError):
        build_online(unfitted, torch.device("cpu"))
    after = config.with_overrides({"experiment.ckpt_path": str(path)})
    reward = build_online(after, torch.device("cpu")).config.train.reward
    assert (reward.normalization, reward.scale) == (None, 12.5)


# ---- keys that an option of the command line would replace are refused, not dropped --------------


@pytest.mark.parametrize("key", ["train.data", "train.data.0.demo_limit"])
def test_data_are_named_once(demos, key):
    value = json.dumps([{"path": str(demos), "demo_limit": 2}]) if key == "train.data" else "2"
    with refused(f"--dataset replaces train.data, so {key} has no effect", error=ConfigError):
        load_resolved(config_dict(demos), [f"{key}={value}"], demos, None)
    with refused("--dataset replaces", error=ConfigError):
        load_resolved(config_dict(demos), [], demos, None, grid=[key])


def test_each_alone_is_taken(demos, tmp_path):
    part = json.dumps([{"path": str(demos), "demo_limit": 2}])
    config = load_resolved(config_dict(demos), [f"train.data={part}"], None, tmp_path)
    assert config.train.data[0].demo_limit == 2
    assert config.train.output_dir == str(tmp_path)
    assert load_resolved(config_dict(demos), [], demos, None).train.data[0].demo_limit is None
    with refused("--output-dir replaces train.output_dir", error=ConfigError):
        load_resolved(config_dict(demos), ["train.output_dir=elsewhere"], None, tmp_path)


@pytest.mark.parametrize(
    ("algo", "key"), [("gl", "experiment.rollout.enabled"), ("bc", "experiment.validate")]
)
def test_robomimics_templates_are_trained_with_a_line_for_each_change(demos, caplog, algo, key):
    """Their folder is beside its package; gl.json rolls out a planner, bc_transformer.json names no demos."""
    tree = tiny_tree(algo, obs={"goal": 2, "pos": 2})
    put(tree, key, True)
    put(tree, "train.output_dir", f"../{algo}_trained_models")
    config = load_resolved(tree, [], demos, None)
    assert (config.train.output_dir, config.experiment.validate) == ("runs", False)
    assert not config.experiment.rollout.enabled
    assert [line.partition(":")[0] for line in caplog.messages] == ["train.output_dir", key]
    assert caplog.messages[0].endswith("a folder beside robomimic's package; here it is runs")
    assert load_resolved(tree, [], demos, "mine").train.output_dir == "mine"
    assert [line.partition(":")[0] for line in caplog.messages[2:]] == [key]


# ---- checksums of pretrained weights -------------------------------------------------------------


def pretrained(**trunk):
    core = {"core_class": "VisualCore", "core_kwargs": {"backbone_kwargs": trunk}}
    tree = {"algo_name": "bc", "observation": {"encoder": {"rgb": core, "depth": core}}}
    return load_config(tree)


def trunk_of(found, modality="rgb"):
    return found.observation.encoder[modality].core_kwargs.backbone_kwargs.to_dict()


def test_paths_become_absolute_and_files_are_remembered(tmp_path, monkeypatch):
    (tmp_path / "w.pth").write_bytes(b"weights")
    monkeypatch.chdir(tmp_path)
    found = with_checksums(pretrained(pretrained="w.pth", freeze=True))
    for modality in ("rgb", "depth"):
        assert trunk_of(found, modality) == {
            "pretrained": str(tmp_path / "w.pth"),
            "pretrained_sha256": hashlib.sha256(b"weights").hexdigest(),
            "freeze": True,
        }
    (tmp_path / "w.pth").write_bytes(b"others")
    with refused("has the SHA-256", error=ConfigError):
        VC1(**trunk_of(with_checksums(found)), width=24, depth=1, heads=2, patch=8, image_size=16)


@pytest.mark.parametrize("source", [True, False, "gone.pth"])
def test_without_a_file_nothing_changes(source):
    given = pretrained(pretrained=source)
    assert with_checksums(given).to_dict() == given.to_dict()
