"""Bundles of every ready configuration act as the policies that they were made from."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from imitate import algo_factory, load_config
from imitate.algo.action_mask import ActionMask
from imitate.data import DatasetWriter
from imitate.data.language import Instructions
from imitate.deploy.bundle.archive import read_bundle
from imitate.deploy.bundle.comparison import SameNoise
from imitate.deploy.bundle.exporting import export_policy
from imitate.deploy.bundle.policy import BundlePolicy
from imitate.deploy.bundle.tracing import Draws
from imitate.errors import BundleError, NotFiniteError, UserError
from imitate.models.action_layout import ActionLayout
from imitate.models.preprocess import Preprocess
from imitate.policy.rollout_policy import RolloutPolicy
from tests.deploy.bundle import bundles

ROOT = Path(__file__).parents[3]
EXPORTED = {
    "bc",
    "act",
    "vq_bet",
    "flow_policy",
    "diffusion_policy",
    "causal_bc",
    "td3_bc",
    "iql",
    "sac",
    "td3",
    "ddpg",
    "cql",
    "awac",
    "bcq",
    "dt",
    "dqn",
    "residual",
    "ibrl",
}
TRAINING = {"optim_params", "loss", "discount", "n_step"}
NEARLY_EQUAL = {"bcq_distributional"}
"""It chooses among a hundred candidates whose values differ by rounding alone while it is not trained."""
SHAPES = {
    "robot0_eef_pos": (3,),
    "robot0_eef_quat": (4,),
    "robot0_gripper_qpos": (2,),
    "object": (10,),
    "flat": (11,),
    "observation": (10,),
    "desired_goal": (3,),
    "agentview_image": (3, 84, 84),
    "robot0_eye_in_hand_image": (3, 84, 84),
    "corner2_image": (3, 84, 84),
}
AC_DIM = 7


def configurations():
    """One ready configuration of each network: tasks differ in data, not in what is exported."""
    seen, chosen = set(), []
    for path in sorted((ROOT / "configs").rglob("*.json")):
        if {"schema", "paper"} & set(path.parts):
            continue
        config = load_config(path)
        if config.algo_name not in EXPORTED or path.stem in NEARLY_EQUAL:
            continue
        algo = {k: v for k, v in config.algo.to_dict().items() if k not in TRAINING}
        text = repr((config.algo_name, algo, config.observation, config.train.frame_stack))
        if text not in seen:
            seen.add(text)
            chosen.append(path)
    return chosen


def make_policy(path_or_tree, instructions=None, fit=False, **overrides):
    """A policy with random weights, and with normalization where ``fit`` says so."""
    torch.manual_seed(0)
    config = load_config(path_or_tree).with_overrides(
        {"experiment.epoch_every_n_steps": 10, **overrides}
    )
    keys = {*config.observation.modality_of("obs"), *config.observation.modality_of("goal")}
    shapes = {key: SHAPES.get(key, (4,)) for key in keys}
    algo = algo_factory(config.algo_name, config, shapes, AC_DIM, "cpu")
    if fit:
        generator = torch.Generator().manual_seed(1)
        for key, shape in algo.preprocess.raw_shapes.items():
            size = shape[-1:] if algo.preprocess.modalities[key] == "rgb" else shape
            offset, scale = torch.rand(2, *size, generator=generator)
            algo.preprocess.set_obs_normalization(key, offset, scale + 0.5)
        dim = algo.preprocess.action_dim
        algo.preprocess.normalization.action_offset.copy_(torch.linspace(-0.5, 0.5, dim))
        algo.preprocess.normalization.action_scale.copy_(torch.linspace(0.5, 2.0, dim))
    return RolloutPolicy(algo, [-0.9] * AC_DIM, [0.9] * AC_DIM, instructions, 20.0)


def observations(policy, count, seed=0):
    rng = np.random.default_rng(seed)
    preprocess = policy.algo.preprocess
    return [
        {
            key: rng.integers(256, size=preprocess.raw_shapes[key], dtype=np.uint8)
            if preprocess.modalities[key] == "rgb"
            else rng.normal(size=preprocess.raw_shapes[key])
            for key in (*policy.obs_keys, *policy.goal_keys)
        }
        for _ in range(count)
    ]


def check_equal(policy, bundle, steps, lang=None, tolerance=1e-5):
    """Two episodes with the same noise; in each the plan is discarded once."""
    bundle.seed(3)
    same = SameNoise(bundle.spec.noise, 3)
    for episode in range(2):
        policy.start_episode(lang)
        bundle.start_episode(lang)
        for step, ob in enumerate(observations(policy, steps, episode)):
            with Draws(same):
                expected = policy(ob, ob if policy.goal_keys else None)
            got = bundle(ob, ob if policy.goal_keys else None)
            assert got.shape == expected.shape
            assert got.dtype == np.float64
            np.testing.assert_allclose(got, expected, atol=tolerance)
            planned = policy.planned_actions()
            if planned is None:
                assert bundle.planned_actions() is None
            else:
                np.testing.assert_allclose(bundle.planned_actions(), planned[0], atol=tolerance)
            if step == steps // 2:
                policy.cut_plan()
                bundle.cut_plan()


@pytest.fixture(scope="module", params=configurations(), ids=lambda p: f"{p.parent.name}/{p.stem}")
def path(request):
    return request.param


def test_a_bundle_acts_as_its_policy(path, tmp_path):
    policy = make_policy(path, fit=True)
    export_policy(policy, tmp_path / "b.zip")
    bundle = BundlePolicy(tmp_path / "b.zip")
    assert bundle.obs_keys == policy.obs_keys
    assert bundle.history == policy.history
    assert bundle.control_freq == 20.0
    np.testing.assert_array_equal(bundle.limits, policy.limits)
    execution = policy.algo.execution
    check_equal(policy, bundle, 7 if execution is None else max(7, execution.execute + 3))


@pytest.mark.parametrize(
    ("frames", "execution"),
    [
        (1, {"execute": 3, "latency": 2}),
        (3, {"execute": 6}),
        (2, {"execute": 1, "temporal_ensemble": 0.1}),
    ],
)
def test_executions_of_chunks(tmp_path, frames, execution):
    policy = make_policy(
        ROOT / "configs/bc/bc_chunk.json",
        fit=True,
        **{
            "train.seq_length": 6,
            "train.frame_stack": frames,
            "algo.chunk.size": 6,
            **{f"algo.chunk.{key}": value for key, value in execution.items()},
        },
    )
    export_policy(policy, tmp_path / "b.zip")
    check_equal(policy, BundlePolicy(tmp_path / "b.zip"), 15)


def test_goals(tmp_path):
    tree = {
        "algo_name": "bc",
        "train": {"goal_mode": "last", "frame_stack": 3},
        "observation": {"modalities": {"obs": {"low_dim": ["a"]}, "goal": {"low_dim": ["a"]}}},
    }
    policy = make_policy(tree, fit=True)
    export_policy(policy, tmp_path / "b.zip")
    bundle = BundlePolicy(tmp_path / "b.zip")
    check_equal(policy, bundle, 5)
    with pytest.raises(UserError, match="the policy needs a, but was given nothing"):
        bundle({"a": np.zeros(4)})
    with pytest.raises(UserError, match="has goals"):
        bundle.predict_chunk([{"a": np.zeros(4)}])


def test_instructions(tmp_path):
    tree = {
        "algo_name": "bc",
        "observation": {"modalities": {"obs": {"low_dim": ["a", "lang_emb"]}}},
    }
    SHAPES["lang_emb"] = (2,)
    policy = make_policy(tree, Instructions.one_hot(["lift", "stack"]), fit=True)
    export_policy(policy, tmp_path / "b.zip")
    bundle = BundlePolicy(tmp_path / "b.zip")
    assert bundle.schema.languages == ("lift", "stack")
    check_equal(policy, bundle, 3, lang="lift")
    check_equal(policy, bundle, 3, lang="stack")
    bundle.start_episode()
    with pytest.raises(UserError, match="name one with start_episode"):
        bundle({"a": np.zeros(4)})
    with pytest.raises(UserError, match="instruction 'fold' is not known"):
        bundle.start_episode("fold")


def test_chunks_for_the_background(tmp_path):
    """predict_chunk gives what a fresh episode's first plan is, and leaves the memory as it is."""
    policy = make_policy(ROOT / "configs/act/act.json", fit=True)
    export_policy(policy, tmp_path / "b.zip")
    bundle = BundlePolicy(tmp_path / "b.zip")
    first, second = observations(policy, 2)
    bundle(first)
    before = bundle.planned_actions()
    chunk = bundle.predict_chunk([second])
    np.testing.assert_allclose(chunk, policy.predict_chunk([second]), atol=1e-5)
    np.testing.assert_array_equal(bundle.planned_actions(), before)
    with pytest.raises(UserError, match="cannot be guided"):
        bundle.predict_chunk([second], planned=chunk)
    with pytest.raises(UserError, match="empty history"):
        bundle.predict_chunk([])


def test_what_cannot_be_exported_says_why(tmp_path):
    for name, reason in {
        "hbc/hbc": "hbc cannot be exported: its parts act in turn",
        "gl/gl": "gl cannot be exported: it does not act",
    }.items():
        with pytest.raises(BundleError, match=reason):
            export_policy(make_policy(ROOT / f"configs/{name}.json"), tmp_path / "b.zip")
    assert list(tmp_path.iterdir()) == []


def test_a_policy_with_masked_choices_is_refused_by_name(tmp_path):
    """Random observations, on which a bundle is compared with its policy, would allow no choice."""
    policy = make_policy(ROOT / "configs/dqn/dqn_cartpole.json")
    policy.algo.action_mask = ActionMask("action_mask")
    with pytest.raises(
        BundleError, match="dqn cannot be exported: observation 'action_mask' masks"
    ):
        export_policy(policy, tmp_path / "b.zip")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_only_if_told(tmp_path):
    target = tmp_path / "b.zip"
    target.write_text("mine")
    policy = make_policy(ROOT / "configs/bc/bc.json")
    with pytest.raises(BundleError, match="exists already; add --overwrite"):
        export_policy(policy, target)
    assert target.read_text() == "mine"
    export_policy(policy, target, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["b.zip"]


def test_errors_leave_the_memory_as_it_was(tmp_path):
    policy = make_policy(ROOT / "configs/bc/bc_image.json")
    export_policy(policy, tmp_path / "b.zip")
    bundle = BundlePolicy(tmp_path / "b.zip")
    (ob,) = observations(policy, 1)
    bundle(ob)
    before = bundle.state
    image, vector = "agentview_image", "robot0_eef_pos"
    wrong = [
        ({**ob, vector: np.full(3, np.nan)}, NotFiniteError),
        ({**ob, vector: np.zeros(4)}, UserError),
        ({**ob, vector: np.zeros((5, 3))}, UserError),
        ({**ob, image: ob[image].astype(float)}, UserError),
        ({**ob, vector: np.array(["a", "b", "c"])}, UserError),
        ({key: value for key, value in ob.items() if key != vector}, UserError),
    ]
    for given, kind in wrong:
        with pytest.raises(kind) as expected:
            policy(given)
        with pytest.raises(kind) as got:
            bundle(given)
        assert str(got.value) == str(expected.value)
    assert bundle.state is before
    floats = {**ob, image: ob[image] / 255.0}
    policy.start_episode()
    np.testing.assert_allclose(
        bundle.predict_chunk([floats]), policy.predict_chunk([ob]), atol=1e-5
    )


def test_a_bundle_needs_no_torch(tmp_path):
    policy = make_policy(ROOT / "configs/flow_policy/flow_policy.json")
    export_policy(policy, tmp_path / "b.zip")
    (ob,) = observations(policy, 1)
    np.savez(tmp_path / "ob.npz", **ob)
    code = (
        "import sys, numpy\n"
        "from imitate.deploy import BundlePolicy\n"
        f"policy = BundlePolicy({str(tmp_path / 'b.zip')!r}, seed=0)\n"
        f"print(policy(dict(numpy.load({str(tmp_path / 'ob.npz')!r}))).tolist())\n"
        "bad = [m for m in ('torch', 'onnx', 'h5py', 'gymnasium', 'pydantic', 'typer', 'msgpack', 'websockets', "
        "'typing_extensions') if m in sys.modules]\n"
        "assert not bad, bad"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert json.loads(done.stdout) == BundlePolicy(tmp_path / "b.zip", seed=0)(ob).tolist()


def prepared_policy(algo_name, algo, rotation=None, core=None):
    """A policy with a resized image, actions relative to an observation, and a rotation."""
    layout = ActionLayout({"pos": 3, "rot": 3}, {"rot": rotation} if rotation else {})
    preprocess = Preprocess(
        {"cam": (20, 30, 3), "p": (3,)},
        {"cam": "rgb", "p": "low_dim"},
        layout,
        obs_affine={"p": (torch.full((3,), 0.2), torch.full((3,), 2.0))},
        action_affine={"pos": (torch.full((3,), 0.1), torch.full((3,), 3.0))},
        steps=[
            {"step": "resize", "size": [12, 16]},
            {"step": "relative_actions", "observation": "p", "action": "pos"},
        ],
    )
    tree = {
        "algo_name": algo_name,
        "experiment": {"epoch_every_n_steps": 10},
        "train": {"seq_length": 4},
        "observation": {
            "modalities": {"obs": {"low_dim": ["p"], "rgb": ["cam"]}},
            "encoder": {"rgb": {"core_class": "VisualCore", "core_kwargs": core or CORE}},
        },
        "algo": algo,
    }
    torch.manual_seed(0)
    made = algo_factory(
        algo_name, load_config(tree), preprocess.obs_shapes, preprocess.action_dim, "cpu"
    )
    made.preprocess = preprocess
    return RolloutPolicy(made)


CORE = {"backbone_class": "ShallowConv", "pool_class": "SpatialSoftmax", "feature_dimension": 8}
CHUNK = {"enabled": True, "size": 4, "execute": 3}


@pytest.mark.parametrize("rotation", [None, "rot_axis_angle"])
def test_steps_of_preparation(tmp_path, rotation):
    policy = prepared_policy("bc", {"chunk": CHUNK, "actor_layer_dims": [16]}, rotation)
    export_policy(policy, tmp_path / "b.zip")
    check_equal(policy, BundlePolicy(tmp_path / "b.zip"), 9)


def test_poses_relative_to_the_hand_and_a_gripper(tmp_path):
    preprocess = Preprocess(
        {"p": (3,), "q": (4,)},
        {"p": "low_dim", "q": "low_dim"},
        {"actions": 7},
        action_affine={"actions": (torch.full((10,), 0.1), torch.full((10,), 0.7))},
        steps=[
            {"step": "relative_pose", "position": "p", "rotation": "q"},
            {"step": "binary_actions", "dims": [9], "values": [0.0, 0.08]},
        ],
    )
    tree = {
        "algo_name": "bc",
        "train": {"seq_length": 4},
        "observation": {"modalities": {"obs": {"low_dim": ["p", "q"]}}},
        "algo": {"chunk": CHUNK, "actor_layer_dims": [16]},
    }
    torch.manual_seed(0)
    algo = algo_factory(
        "bc", load_config(tree), preprocess.obs_shapes, preprocess.action_dim, "cpu"
    )
    algo.preprocess = preprocess
    policy = RolloutPolicy(algo)
    export_policy(policy, tmp_path / "b.zip")
    check_equal(policy, BundlePolicy(tmp_path / "b.zip"), 9)


def test_a_vision_transformer(tmp_path):
    core = {
        "backbone_class": "SigLIP",
        "backbone_kwargs": {
            **{"width": 16, "depth": 1, "heads": 2, "image_size": 32},
            "imagenet_normalization": True,
        },
        "pool_class": "QueryPool",
        "feature_dimension": 8,
    }
    policy = prepared_policy("bc", {"chunk": CHUNK, "actor_layer_dims": [16]}, core=core)
    export_policy(policy, tmp_path / "b.zip")
    check_equal(policy, BundlePolicy(tmp_path / "b.zip"), 9)


def test_ensembles_of_relative_actions(tmp_path):
    ensemble = {**CHUNK, "execute": 1, "temporal_ensemble": 0.2}
    policy = prepared_policy("bc", {"chunk": ensemble, "actor_layer_dims": [16]})
    export_policy(policy, tmp_path / "b.zip")
    check_equal(policy, BundlePolicy(tmp_path / "b.zip"), 9)
    turned = prepared_policy(
        "bc", {"chunk": ensemble, "actor_layer_dims": [16]}, rotation="rot_axis_angle"
    )
    with pytest.raises(BundleError, match="temporal ensembling averages rotations"):
        export_policy(turned, tmp_path / "turned.zip")


SMALL = {"enabled": True, "diffusion_step_embed_dim": 16, "down_dims": [16, 32]}
DENOISERS = {
    "ddpm": ("diffusion_policy", {"unet": SMALL, "ddpm": {"enabled": True}}),
    "ddpm, few steps, sample": (
        "diffusion_policy",
        {
            "unet": {"enabled": False},
            "mlp": {"enabled": True},
            "ddpm": {"num_inference_timesteps": 7, "prediction_type": "sample"},
        },
    ),
    "ddim, velocity": (
        "diffusion_policy",
        {
            "unet": SMALL,
            "ddpm": {"enabled": False},
            "ddim": {"enabled": True, "prediction_type": "v_prediction", "clip_sample": False},
        },
    ),
    "flow U-Net, heun": (
        "flow_policy",
        {"unet": SMALL, "mlp": {"enabled": False}, "flow": {"integrator": "heun"}},
    ),
}


@pytest.mark.parametrize("name", DENOISERS)
def test_samplers(tmp_path, name):
    algo_name, algo = DENOISERS[name]
    tree = {
        "algo_name": algo_name,
        "observation": {"modalities": {"obs": {"low_dim": ["a"]}}},
        "algo": algo,
    }
    policy = make_policy(tree, fit=True)
    size = export_policy(policy, tmp_path / "b.zip").size_mb
    weights = sum(p.numel() for p in policy.algo.active_nets.parameters())
    assert size < 5e-6 * weights + 1.0  # each weight once, whatever the number of steps
    check_equal(policy, BundlePolicy(tmp_path / "b.zip"), 10)


def test_a_loop_over_memory_is_exported_with_its_horizon(tmp_path):
    """The recurrent state is zeroed every few steps, and an open loop sees the first observation of them."""
    policy = make_policy(
        ROOT / "configs/bc/bc_rnn.json",
        fit=True,
        **{
            "algo.rnn.horizon": 4,
            "algo.rnn.open_loop": True,
            "algo.rnn.hidden_dim": 16,
            "train.seq_length": 4,
        },
    )
    export_policy(policy, tmp_path / "b.zip")
    bundle = BundlePolicy(tmp_path / "b.zip")
    check_equal(policy, bundle, 13)
    with pytest.raises(UserError, match="remembers more than its last observations"):
        bundle.predict_chunk(observations(policy, 1))


@pytest.mark.parametrize("place", ["taken", "absent/b.zip"])
def test_a_place_that_cannot_be_written_is_not_the_policys_fault(tmp_path, place):
    (tmp_path / "taken").mkdir()
    path = tmp_path / place
    with pytest.raises(BundleError, match="cannot be written") as raised:
        export_policy(bundles.small_policy(), path, overwrite=True)
    assert str(raised.value).startswith(f"{path}: cannot be written")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def recorded(path, key="a", size=4):
    with DatasetWriter(path, {"env_name": "Mine", "type": 4, "env_kwargs": {}}) as writer:
        writer.start_episode()
        for step in range(9):
            writer.append(obs={key: np.full(size, step, np.float32)}, action=np.sin([step, 1, 2.0]))
        writer.finish_episode(success=True)
    return path


def test_predictions_are_recorded_on_demonstrations(tmp_path):
    path = tmp_path / "b.zip"
    export_policy(bundles.small_policy(), path, dataset=recorded(tmp_path / "demos.hdf5"))
    bundle = read_bundle(path)
    seen = [bundle.array(check["obs"]["a"]).tolist() for check in bundle.description["checks"]]
    assert seen == [[0.0] * 4, [4.0] * 4, [8.0] * 4]
    BundlePolicy(path)


@pytest.mark.parametrize(
    ("key", "size", "words"), [("b", 4, "lacks its observation 'a'"), ("a", 5, "it takes")]
)
def test_demonstrations_of_other_observations_are_refused(tmp_path, key, size, words):
    file = recorded(tmp_path / "demos.hdf5", key, size)
    with pytest.raises(BundleError, match=words):
        export_policy(bundles.small_policy(), tmp_path / "b.zip", dataset=file)
    assert not (tmp_path / "b.zip").exists()
