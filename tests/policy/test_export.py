"""Configurations whose policies LeRobot can take, and what the export of a checkpoint passes on."""

from types import SimpleNamespace as Words

import pytest

from imitate.policy import export as module
from imitate.policy.export import (
    lerobot_refusal,
    lerobot_resizes,
    to_lerobot,
    to_robomimic,
    write_lerobot_keys,
)
from tests.tiny import tiny_tree

RESNET = {"backbone_class": "ResNet18Conv"}
ACT = {
    "core_class": "VisualCore",
    "core_kwargs": {**RESNET, "pool_class": None, "flatten": False, "feature_dimension": None},
    "share": True,
}
UNET = {
    "core_class": "VisualCore",
    "core_kwargs": {
        **RESNET,
        "pool_class": "SpatialSoftmax",
        "pool_kwargs": {"num_kp": 32},
        "feature_dimension": 64,
    },
}
CROP = {"crop_height": 8, "crop_width": 9}


def tree(name, vectors, cameras=("front",), preprocess=(), algo=None):
    encoder = {"rgb": {"obs_randomizer_kwargs": CROP}}
    seen = {"low_dim": list(vectors), **({"rgb": list(cameras)} if cameras else {})}
    observation = {"modalities": {"obs": seen}, "encoder": encoder}
    train = {"preprocess": [{"step": step} for step in preprocess]}
    return {"algo_name": name, "algo": algo or {}, "train": train, "observation": observation}


@pytest.mark.parametrize(
    ("vectors", "own", "keys"),
    [
        (["state"], True, ["state"]),
        (["state", "environment_state"], True, ["state"]),
        (["pos", "joints"], False, ["joints", "pos"]),
        (["state", "pos"], False, ["pos", "state"]),
    ],
)
def test_act_has_the_tokens_of_lerobot(vectors, own, keys):
    given = tree("act", vectors, algo={"tokens": {"more": 1}, "vae": {"beta": 2}})
    write_lerobot_keys(given)
    tokens = {"separate_vectors": own, "shared_maps": True, "camera_positions": False}
    assert given["algo"]["tokens"] == {"more": 1, **tokens}
    assert given["algo"]["vae"] == {"beta": 2, "posterior_keys": keys}
    assert given["observation"]["encoder"] == {"rgb": ACT}
    plain = tree("act", vectors)
    write_lerobot_keys(plain)
    assert (plain["algo"]["tokens"], plain["algo"]["vae"]) == (tokens, {"posterior_keys": keys})


def test_a_diffusion_policy_has_the_encoder_of_lerobot():
    given = tree("diffusion_policy", ["state"])
    write_lerobot_keys(given)
    crop = {**CROP, "centre": "even"}
    cropped = {"obs_randomizer_class": "CropRandomizer", "obs_randomizer_kwargs": crop}
    assert given["observation"]["encoder"] == {"rgb": {**UNET, **cropped}}
    assert given["algo"] == {}
    resized = tree("diffusion_policy", ["state"], preprocess=["flip", "resize"])
    write_lerobot_keys(resized)
    assert resized["observation"]["encoder"] == {"rgb": UNET}
    without = tree("diffusion_policy", ["state"], cameras=())
    before = dict(without["observation"]["encoder"])
    write_lerobot_keys(without)
    assert without["observation"]["encoder"] == before


def test_only_diffusion_resizes():
    assert lerobot_resizes({"algo_name": "diffusion_policy"}) and not lerobot_resizes(
        {"algo_name": "act"}
    )


def test_why_lerobot_could_not_take_a_policy():
    shapes, actions = {"state": (3,), "environment_state": (2,)}, {"actions": 2}
    obs = {"state": 3, "environment_state": 2}
    given = tiny_tree("act", obs=obs)
    write_lerobot_keys(given)
    assert lerobot_refusal(given, shapes, actions) == ""
    assert "bc" in lerobot_refusal(tiny_tree("bc", obs=obs), shapes, actions)


def test_what_an_export_is_given(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(module, "algo_from_checkpoint", lambda ckpt, source: f"algo of {source}")
    monkeypatch.setattr(module, "exported", lambda *given, **words: calls.append((given, words)))
    monkeypatch.setattr(module, "save_checkpoint", lambda ckpt, path: calls.append((ckpt, path)))
    writers = Words(PLUGIN="lerobot-plugin", export=lambda *given: calls.append(given))
    writers.export_plugin = lambda algo, folder, save, has_instructions: calls.append(
        (save("p"), has_instructions)
    )
    monkeypatch.setattr(module, "exporting", writers)
    algo, ckpt = "algo of the checkpoint", {"env_metadata": {"e": 1}}
    for state, epoch in (({}, 0), ({"train_state": {"epoch": 7}}, 7)):
        to_robomimic({**ckpt, **state}, "robomimic-0.5")
        words = {"env_metadata": {"e": 1}, "epoch": epoch}
        assert calls.pop() == ((algo, "robomimic-0.5"), words)
    to_lerobot(ckpt, tmp_path)
    assert calls.pop() == (algo, tmp_path, "lerobot")
    to_lerobot({**ckpt, "rename": {"a": "b"}, "language": {"x": 1}}, tmp_path, "lerobot-plugin")
    assert calls == [({**ckpt, "language": {"x": 1}}, "p"), (None, True)]
    to_lerobot({**ckpt, "language": None}, tmp_path, "lerobot-plugin")
    assert calls[-1] == (None, False)
