"""Policies of ours in LeRobot's layout; tools/interop/lerobot_policies.sh lets LeRobot itself act with them."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from imitate import policy_from_checkpoint
from imitate.algo.base.factory import algo_factory
from imitate.config import load_config
from imitate.errors import CheckpointError
from imitate.interop.lerobot.exporting import LAYOUTS, export
from imitate.interop.lerobot.importing import from_lerobot
from imitate.models.preprocess import Preprocess
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint
from imitate.policy.export import to_lerobot
from imitate.policy.rollout_policy import RolloutPolicy
from tests.calling import call

from .test_importing import READ

STATISTICS = ("normalize_", "unnormalize_")
RGB = "observation.encoder.rgb"


def under(prefix, **values):
    return {f"{prefix}.{key}": value for key, value in values.items()}


SMALL_ACT = {
    "train.seq_length": 6,
    **under("algo.chunk", size=6, execute=3),
    **under("algo.transformer", embed_dim=16, num_heads=2, feedforward_dim=24),
    **under("algo.transformer", encoder_layers=1, decoder_layers=2),
    **under("algo.vae", latent_dim=4, encoder_layers=1),
}
MAPS = under(f"{RGB}.core_kwargs", pool_class=None, flatten=False, feature_dimension=None)
SMALL_DIFFUSION = {
    **under("algo.unet", down_dims=[8, 16], diffusion_step_embed_dim=8),
    **under("algo.ddpm", num_train_timesteps=5, num_inference_timesteps=5),
}
KEYPOINTS = under(f"{RGB}.core_kwargs", pool_kwargs={"num_kp": 4}, feature_dimension=8)
CROP = under(
    RGB,
    obs_randomizer_class="CropRandomizer",
    obs_randomizer_kwargs={"crop_height": 57, "crop_width": 69},
)
SHAPES = {"robot0_eef_pos": (3,), "object": (5,), "hand_image": (64, 72, 3)}


def policy_of(name, settings, shapes, seed=0):
    """A policy with random weights and statistics."""
    rgb = [key for key, shape in shapes.items() if len(shape) == 3]
    low_dim = [key for key in shapes if key not in rgb]
    modalities = under("observation.modalities.obs", low_dim=low_dim, rgb=rgb)
    settings = {**modalities, f"{RGB}.core_class": "VisualCore", **settings}
    config = load_config({"algo_name": name}).with_overrides(settings)
    seen = {k: (s[2], *s[:2]) if k in rgb else s for k, s in shapes.items()}
    torch.manual_seed(seed)
    algo = algo_factory(name, config, seen, 4, "cpu")
    draw = np.random.default_rng(seed)

    def affine(size):
        return torch.as_tensor(draw.normal(size=size)), torch.as_tensor(draw.uniform(0.5, 2, size))

    algo.preprocess = Preprocess(
        shapes,
        {key: "rgb" if key in rgb else "low_dim" for key in shapes},
        {"actions": 4},
        {key: affine(shape[-1]) for key, shape in shapes.items()},
        {"actions": affine(4)},
        steps=[entry.to_dict() for entry in config.train.preprocess],
    )
    with torch.no_grad():
        for value in algo.nets.buffers():  # statistics of BatchNorm
            if value.is_floating_point() and value.dim() == 1 and len(value) >= 16:
                value.uniform_(0.5, 1.5)
    algo.set_eval()
    return algo


def observation(shapes, seed):
    draw = np.random.default_rng(seed)
    return {
        key: draw.integers(0, 256, shape, dtype=np.uint8)
        if len(shape) == 3
        else draw.normal(size=shape).astype(np.float32)
        for key, shape in shapes.items()
    }


def there(obs, joined):
    """The observation under LeRobot's names."""
    vectors = np.concatenate([obs[key] for key in joined])
    return {"state": vectors, **{k: v for k, v in obs.items() if k not in joined}}


def actions(algo, observations):
    policy = RolloutPolicy(algo)
    policy.start_episode()
    found = []
    for step, obs in enumerate(observations):
        torch.manual_seed(step)
        found.append(policy(obs))
    return np.stack(found)


BACK = [(name, layout) for name in READ for layout in LAYOUTS if "images" not in name]
BACK += [("act_images_0.6.1", "lerobot"), ("diffusion_images_0.6.1", "lerobot-0.3")]


@pytest.mark.parametrize(("name", "layout"), BACK)
def test_what_was_read_is_written_back(name, layout, recorded, tmp_path):
    policy = recorded(name)
    export(from_lerobot(policy.folder).algo, tmp_path / "back", layout)
    before = load_file(policy.folder / "model.safetensors")
    after = load_file(tmp_path / "back" / "model.safetensors")
    weights = {key for key in before if not key.startswith(STATISTICS)}
    assert {key for key in after if not key.startswith(STATISTICS)} == weights
    for key in weights:
        torch.testing.assert_close(after[key], before[key], rtol=0, atol=1e-6)
    assert policy.error(tmp_path / "back") < 1e-4


def test_fine_tuning_goes_on_with_the_same_optimizer(recorded, tmp_path):
    policy = recorded("diffusion_state_ddpm_0.3.3")
    algo = from_lerobot(policy.folder).algo
    assert algo.optimizers["policy"].param_groups[0]["betas"] == (0.95, 0.999)
    export(algo, tmp_path / "back", "lerobot")
    back = json.loads((tmp_path / "back" / "config.json").read_text())
    keys = ("optimizer_lr", "optimizer_betas", "optimizer_weight_decay", "scheduler_warmup_steps")
    assert [back[key] for key in keys] == [policy.config[key] for key in keys]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vectors_of_other_names_become_the_state(layout, tmp_path):
    settings = {**SMALL_ACT, **MAPS, "algo.tokens.camera_positions": False}
    algo = policy_of("act", settings, SHAPES)
    export(algo, tmp_path / "act", layout)
    back = from_lerobot(tmp_path / "act").algo
    back.set_eval()
    assert back.obs_shapes.keys() == {"state", "hand_image"}
    seen = [observation(SHAPES, seed) for seed in range(7)]
    joined = ["object", "robot0_eef_pos"]
    wanted = actions(algo, seen)
    np.testing.assert_allclose(actions(back, [there(o, joined) for o in seen]), wanted, atol=2e-5)
    assert np.ptp(wanted, axis=0).min() > 1e-3


def test_diffusion_with_crops_imagenet_and_an_average(tmp_path):
    shapes = {**SHAPES, "top_image": (64, 72, 3)}
    settings = {**SMALL_DIFFUSION, **KEYPOINTS, **CROP}
    settings[f"{RGB}.core_kwargs.backbone_kwargs"] = {"imagenet_normalization": True}
    settings[f"{RGB}.obs_randomizer_kwargs.centre"] = "even"
    algo = policy_of("diffusion_policy", settings, shapes)
    with torch.no_grad():
        for weight in algo.ema.module.parameters():
            weight.mul_(1.1)
    algo.set_eval()
    export(algo, tmp_path / "diffusion", "lerobot")
    back = from_lerobot(tmp_path / "diffusion").algo
    back.set_eval()
    assert back.global_config.observation.encoder.rgb.share is False
    seen = [observation(shapes, seed) for seed in range(4)]
    joined = ["object", "robot0_eef_pos"]
    wanted = actions(algo, seen)
    np.testing.assert_allclose(actions(back, [there(o, joined) for o in seen]), wanted, atol=2e-4)


STATE = {"state": (3,), "environment_state": (5,)}
DIFFUSION, SEPARATE = "diffusion_policy", {"algo.tokens.separate_vectors": True}
WITH_MAPS, AT_NO_PLACE = {**SMALL_ACT, **MAPS}, {"algo.tokens.camera_positions": False}
TRANSFORMER = {"algo.unet.enabled": False, **under("algo.transformer", enabled=True, embed_dim=16)}
RESIZE = {"train.preprocess": [{"step": "resize", "size": [32, 36]}]}
WIDE = {**SMALL_DIFFUSION, f"{RGB}.core_kwargs.feature_dimension": 10}
REFUSED = {
    "learned positions": ("act", WITH_MAPS, SHAPES, "cameras have learned position embeddings"),
    "vectors alone": ("act", SMALL_ACT, {"object": (5,)}, "need a vector, and also an image or environment_state"),
    "one token": ("act", SMALL_ACT, STATE, "share one token, but LeRobot needs one for each"),
    "posterior": ("act", SMALL_ACT | SEPARATE, STATE, "the posterior takes env.*_state, state; LeRobot's takes state"),
    "a token each": ("act", WITH_MAPS | SEPARATE, SHAPES, "each of object, robot0_eef_pos has its own token"),
    "vectors of images": ("act", SMALL_ACT | AT_NO_PLACE, SHAPES, "cameras are encoded as vectors"),
    "frames": ("act", {**WITH_MAPS, "train.frame_stack": 2}, SHAPES, "frame_stack is 2"),
    "transformer": (DIFFUSION, TRANSFORMER, STATE, "algo.unet.enabled is false"),
    "pool": (DIFFUSION, WIDE, SHAPES, "needs SpatialSoftmax with num_kp"),
    "centre": (DIFFUSION, {**SMALL_DIFFUSION, **KEYPOINTS, **CROP}, SHAPES, "begins a pixel before"),
    "clip": ("act", WITH_MAPS, SHAPES, "train.obs_clip is 5"),
    "resize": ("act", WITH_MAPS | AT_NO_PLACE | RESIZE, SHAPES, "train.preprocess resizes images"),
    "other": ("bc", {}, STATE, "no policy that acts like 'bc' .only like act, diffusion_policy."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, tmp_path):
    name, settings, shapes, words = REFUSED[case]
    algo = policy_of(name, settings, shapes)
    if case == "clip":
        algo.preprocess.obs_clip = 5.0
    with pytest.raises(CheckpointError, match=words):
        export(algo, tmp_path / "out", "lerobot")
    assert list(tmp_path.iterdir()) == []


def test_the_way_into_a_file_of_ours_is_named_where_robomimic_has_no_such_policy(
    recorded, tmp_path
):
    policy = recorded("act_state_0.6.1")
    done = call("convert-checkpoint", policy.folder, tmp_path / "a.pth", code=2)
    assert "; --to imitate writes imitate's own format" in done.output


def test_an_existing_folder_is_left_alone(recorded, tmp_path):
    policy = recorded("act_state_0.6.1")
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "mine").touch()
    call("convert-checkpoint --to lerobot --overwrite", policy.folder, kept, code=2)
    assert [path.name for path in kept.iterdir()] == ["mine"]


def test_conversion_on_the_command_line(recorded, tmp_path):
    policy = recorded("act_state_0.3.3")
    done = call("convert-checkpoint --to lerobot", policy.folder, tmp_path / "new")
    assert "act, for lerobot" in done.output
    assert (tmp_path / "new" / "policy_preprocessor.json").is_file()
    assert policy.error(tmp_path / "new") < 1e-4


def test_names_saved_in_a_checkpoint_stay_out_of_other_layouts_and_the_command_says_so(tmp_path):
    shapes = {"object": (5,), "robot0_eef_pos": (3,)}
    algo = policy_of("bc", {}, shapes)
    ckpt = checkpoint_dict(algo, env_metadata={}, shape_metadata={})
    source, target = tmp_path / "renamed.pth", tmp_path / "plugin"
    save_checkpoint({**ckpt, "rename": {"block": "object"}}, source)
    done = call("convert-checkpoint --to lerobot-plugin", source, target)
    assert "with the names of its data; " in done.output
    assert "renamed.pth takes 'block' as 'object'" in done.output
    config = json.loads((target / "config.json").read_text())
    policy, _ = policy_from_checkpoint(ckpt_path=target / config["checkpoint"])
    assert set(policy.obs_keys) == set(config["observations"]["observation.state"])


def test_any_policy_goes_into_a_folder_of_the_plugin(tmp_path):
    shapes = {"object": (5,), "robot0_eef_pos": (3,), "hand_image": (64, 72, 3)}
    algo = policy_of("bc", {"observation.encoder.rgb.core_kwargs.feature_dimension": 8}, shapes)
    parts = {"env_metadata": {}, "shape_metadata": {}}
    to_lerobot(checkpoint_dict(algo, **parts), tmp_path / "bc", "lerobot-plugin")
    config = json.loads((tmp_path / "bc" / "config.json").read_text())
    assert config["type"] == "imitate"
    assert config["input_features"] == {
        "observation.state": {"type": "STATE", "shape": [8]},
        "observation.images.hand": {"type": "VISUAL", "shape": [3, 64, 72]},
    }
    assert config["observations"] == {
        "observation.state": ["object", "robot0_eef_pos"],
        "observation.images.hand": ["hand_image"],
    }
    policy, _ = policy_from_checkpoint(ckpt_path=tmp_path / "bc" / config["checkpoint"])
    policy.start_episode()
    seen = [observation(shapes, 0)]
    np.testing.assert_allclose(policy(seen[0]), actions(algo, seen)[0], atol=1e-5)
    names = {"policy_preprocessor.json", "policy_postprocessor.json", "config.json", "policy.pth"}
    assert {path.name for path in (tmp_path / "bc").iterdir()} == names
