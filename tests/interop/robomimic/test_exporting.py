"""From robomimic's format to ours, back, and again: exact; and what cannot go back is named."""

import json

import pytest
import torch

from imitate import algo_factory, load_config
from imitate.errors import CheckpointError
from imitate.interop.robomimic import exporting
from imitate.interop.robomimic.exporting import ALGO, OBSERVATION, SHARED, SINCE_0_5
from imitate.interop.robomimic.importing import flattened
from imitate.policy.checkpoint import (
    algo_from_checkpoint,
    checkpoint_dict,
    converted,
    load_checkpoint,
    save_checkpoint,
)
from imitate.policy.export import to_robomimic
from tests.calling import call

from .conftest import further, names

NEW_IN_0_5 = {"bc_minmax", "bc_transformer_future"}


@pytest.fixture
def any_unet(monkeypatch):
    """Small U-Nets, as in the recordings, may be exported."""
    monkeypatch.setattr(exporting, "UNET", {})


OLD = ("bc", "bc_minmax", "bc_normobs", "bc_rnn_gmm", "bcq", "diffusion_ddim", "iql", "iris")
"""Written for the older release too; the others nightly."""


def round_trips():
    for name in [*names(), *further()]:
        for target in ("robomimic-0.5", "robomimic-0.3"):
            rare = name == "diffusion_resnet" or (target.endswith("0.3") and name not in OLD)
            if name != "bc_vae_image":
                yield pytest.param(name, target, marks=pytest.mark.nightly if rare else ())


@pytest.mark.parametrize(("any_name", "target"), list(round_trips()))
def test_round_trip_is_exact(any_name, target, recorded, any_unet):
    raw = recorded(any_name).raw()
    ours = converted(raw)
    if target == "robomimic-0.3" and (any_name in NEW_IN_0_5 or "diffusion" in any_name):
        with pytest.raises(CheckpointError, match=r"robomimic 0\.3 cannot act like this policy"):
            to_robomimic(ours, target)
        return
    theirs = to_robomimic(ours, target)
    before, after = flattened(raw["model"]), flattened(theirs["model"])
    for name, tensor in before.items():
        if "scale" in name and any_name == "bc_fixed_std":  # learned from nothing, used by nothing
            continue
        assert torch.equal(tensor, after[name]), name
    assert {name for name in after if "mask" not in name} == {n for n in before if "mask" not in n}
    again = converted(theirs)
    for name, tensor in ours["model"]["nets"].items():
        assert torch.equal(tensor, again["model"]["nets"][name])
    assert json.loads(again["config"])["algo"] == json.loads(ours["config"])["algo"]
    first, second = (algo_from_checkpoint(ckpt).preprocess for ckpt in (ours, again))
    for part in ("offset", "scale", "action_offset", "action_scale"):
        assert torch.equal(getattr(first, part), getattr(second, part))


def leaves(tree, path=()):
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def is_known(path, keys):
    if isinstance(keys, str):
        return path[0] in keys.split()
    if path[0] in keys:
        return is_known(path[1:], keys[path[0]])
    return path[0] in keys.get("", "").split()


@pytest.mark.parametrize(
    "name", ["bc_rnn_gmm", "bcq", "cql", "iql", "td3_bc", "diffusion_ddim", "gl_vae", "hbc", "iris"]
)
def test_only_keys_that_robomimic_knows(name, recorded, any_unet):
    theirs = to_robomimic(recorded(name).checkpoint(), "robomimic-0.5")
    tree = json.loads(theirs["config"])
    known = {
        **SHARED,
        "": "algo_name",
        "observation": OBSERVATION[theirs["algo_name"]],
        "algo": ALGO[theirs["algo_name"]],
    }
    injected = ("num_train_batches", "num_epochs")
    for path in leaves(tree):
        if path[-1] not in injected and "action_config" not in path:
            assert is_known(path, known), path


def test_0_3_has_none_of_the_keys_that_came_later(recorded):
    tree = json.loads(to_robomimic(recorded("bc").checkpoint(), "robomimic-0.3")["config"])
    for path in leaves(tree):
        assert not ".".join(path).startswith(SINCE_0_5)


def test_statistics_have_the_names_of_the_release(recorded):
    ckpt = recorded("bc_normobs").checkpoint()
    new, old = (to_robomimic(ckpt, f"robomimic-{release}") for release in ("0.5", "0.3"))
    assert set(new["obs_normalization_stats"]["object"]) == {"offset", "scale"}
    assert set(old["obs_normalization_stats"]["object"]) == {"mean", "std"}
    assert json.loads(old["config"])["train"]["hdf5_normalize_obs"] is True
    assert "action_normalization_stats" not in old
    assert new["action_normalization_stats"]["actions"]["scale"] == [[1.0] * 7]
    assert "nets" not in old["model"]


def policy(algo=None, train=None, name="bc", rgb=None, obs_clip=None):
    """A checkpoint of a new policy; with `rgb`, keyword arguments of its core, it sees a camera alone."""
    kinds, shapes = {"low_dim": ["state"]}, {"state": (3,)}
    if rgb is not None:
        kinds, shapes = {"low_dim": [], "rgb": ["camera"]}, {"camera": (3, 40, 40)}
    encoder = {"rgb": {"core_kwargs": rgb or {}}}
    observation = {"modalities": {"obs": kinds}, "encoder": encoder}
    tree = {"algo_name": name, "algo": algo or {}, "train": train or {}, "observation": observation}
    built = algo_factory(name, load_config(tree), shapes, 2, "cpu")
    ckpt = checkpoint_dict(built, env_metadata={"env_name": "Lift"}, shape_metadata={})
    if obs_clip is not None:
        ckpt["preprocess"]["obs_clip"] = obs_clip
    return ckpt


ON, LONG, FRAMES = {"enabled": True}, {"seq_length": 16}, {"frame_stack": 2, "seq_length": 16}
ATTENTION = {**ON, "context_length": 3, "embed_dim": 8, "num_heads": 2}
SMALL = {"down_dims": [16, 32]}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"algo": {"chunk": ON}, "train": LONG}, "algo.chunk.enabled"),
        ({"train": {"frame_stack": 2}}, "train.frame_stack 2"),
        ({"algo": {"rnn": ON}, "train": LONG, "name": "iql"}, "algo.rnn.enabled: its iql has no memory"),
        ({"obs_clip": 10.0}, r"train\.obs_clip"),
        ({"name": "flow_policy", "train": FRAMES}, "no algorithm 'flow_policy'"),
        ({"algo": {"transformer": ATTENTION}, "train": {"frame_stack": 4}}, "train.frame_stack 4"),
        ({"algo": {"unet": SMALL}, "train": FRAMES, "name": "diffusion_policy"},
         r"algo\.unet\.down_dims is \(16, 32\): it always builds \(256, 512, 1024\)"),
        ({"rgb": {"backbone_class": "ResNet34Conv"}}, "ResNet34Conv"),
        ({"rgb": {"backbone_kwargs": {"norm": "group"}}}, "backbone_kwargs.norm"),
        ({"algo": {"critic": {"layer_norm": True}}, "name": "iql"}, "no counterpart of 'critic.norms"),
    ],
)  # fmt: skip
def test_what_robomimic_cannot_do_is_named(made, words):
    with pytest.raises(CheckpointError, match=words):
        to_robomimic(policy(**made), "robomimic-0.5")


def test_an_average_of_weights_takes_their_place():
    ckpt = policy({"ema": {"enabled": True}, "actor_layer_dims": [4]})
    for tensor in ckpt["model"]["ema"]["module"].values():
        tensor.add_(1.0)
    theirs = to_robomimic(ckpt, "robomimic-0.5")
    averaged = ckpt["model"]["ema"]["module"]["policy.head.action.bias"]
    assert torch.equal(theirs["model"]["nets"]["policy.nets.decoder.nets.action.bias"], averaged)


COSINE = {"learning_rate": {"scheduler_type": "cosine", "epoch_schedule": [3]}}


def test_schedules_are_such_as_the_release_can_build():
    """robomimic 0.5 builds them on loading: a cosine only with a key that its BC does not have."""
    theirs = to_robomimic(policy({"optim_params": {"policy": COSINE}}), "robomimic-0.5")
    rate = json.loads(theirs["config"])["algo"]["optim_params"]["policy"]["learning_rate"]
    assert rate["scheduler_type"] == "multistep"
    assert rate["epoch_schedule"] == []
    assert "step_every_batch" not in rate


def test_the_command(tmp_path, recorded):
    source, target = tmp_path / "ours.pth", tmp_path / "theirs.pth"
    save_checkpoint(recorded("bc_gmm").checkpoint(), source)

    call("convert-checkpoint --to robomimic-0.3", source, target)
    assert load_checkpoint(target)["provenance"]["imported_from"] == "robomimic"
    call("convert-checkpoint", source, target, code=2)
    call("convert-checkpoint --to robomimic-0.4", source, tmp_path / "x", code=2)
    call("convert-checkpoint --to imitate", target, tmp_path / "back.pth")
    assert torch.load(tmp_path / "back.pth", weights_only=True)["format_version"] == 1


def test_a_run_folder_stands_for_its_checkpoint(tmp_path, recorded):
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    save_checkpoint(recorded("bc_gmm").checkpoint(), folder / "last.pth")
    target = tmp_path / "theirs.pth"
    call("convert-checkpoint", tmp_path / "run", target)
    assert load_checkpoint(target)["provenance"]["imported_from"] == "robomimic"
