"""Bundles act as the policies that they were made from."""

import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest
import torch

from imitate import load_config
from imitate.data import DatasetFile
from imitate.deploy.bundle import exporting
from imitate.deploy.bundle.archive import read_bundle
from imitate.deploy.bundle.exporting import SameNoise, export_policy, random_observations
from imitate.deploy.bundle.policy import BundlePolicy
from imitate.deploy.bundle.tracing import Draws
from imitate.errors import BundleError, NotFiniteError, UserError
from imitate.models.categorical import ActionMask
from imitate.models.layout import ActionLayout
from imitate.models.preprocess import Preprocess
from imitate.policy.rollout_policy import RolloutPolicy
from tests.deploy.bundle import bundles
from tests.deploy.policies import CONFIGS, acting, instructed, observations, policy_of
from tests.refusals import refused
from tests.tiny import tiny_algo, tiny_demos

EXPORTED = {
    "bc", "bc_ensemble", "act", "vq_bet", "flow_policy", "diffusion_policy", "causal_bc", "td3_bc", "iql", "sac", "td3",
    "ddpg", "cql", "awac", "bcq", "dt", "dqn", "residual", "ibrl",
}  # fmt: skip
TRAINING = {"optim_params", "loss", "discount", "n_step"}
NEARLY_EQUAL = {"bcq_distributional"}
"""It chooses among a hundred candidates whose values differ by rounding alone while it is not trained."""
DEAR = {
    *(
        "bc_image",
        "act_image",
        "flow_policy_image",
        "diffusion_policy",
        "diffusion_policy_transformer",
    ),
    *("bc_transformer_gmm", "bc_transformer_rotary", "bcq_gmm"),
}
FOLDERS = {"metaworld", "stack", "lift"}
CHEAP = {"vq_bet", "td3_bc_mixed", "bc/bc_image"}
"""Nightly are the dear ones and those of the folders, but for these."""

ON, OFF = {"enabled": True}, {"enabled": False}
CHUNK = {"enabled": True, "size": 4, "execute": 3}
CORE = {"backbone_class": "ShallowConv", "pool_class": "SpatialSoftmax", "feature_dimension": 8}
TRANSFORMER = {
    "backbone_class": "SigLIP",
    "backbone_kwargs": {
        **{"width": 16, "depth": 1, "heads": 2, "image_size": 32},
        "imagenet_normalization": True,
    },
    "pool_class": "QueryPool",
    "feature_dimension": 8,
}


# ---- policies ------------------------------------------------------------------------------------


def fitted(policy):
    """Give a policy normalizations, and return it."""
    preprocess, generator = policy.algo.preprocess, torch.Generator().manual_seed(1)
    for key, shape in preprocess.raw_shapes.items():
        size = shape[-1:] if preprocess.modalities[key] == "rgb" else shape
        offset, scale = torch.rand(2, *size, generator=generator)
        preprocess.set_obs_normalization(key, offset, scale + 0.5)
    normalization, dim = preprocess.normalization, preprocess.action_dim
    normalization.action_offset.copy_(torch.linspace(-0.5, 0.5, dim))
    normalization.action_scale.copy_(torch.linspace(0.5, 2.0, dim))
    return policy


def ready(name, **overrides):
    return lambda: fitted(policy_of(name, **overrides))


def chunks(frames, **execution):
    chunk = {f"algo.chunk.{key}": value for key, value in {"size": 6, **execution}.items()}
    return ready("bc/bc_chunk", **{"train.seq_length": 6, "train.frame_stack": frames, **chunk})


def denoiser(name, **algo):
    return lambda: fitted(acting(tiny_algo(name, obs={"a": 4}, action=3, algo=algo)))


def prepared(preprocess, core=CORE, **chunk):
    """A policy of chunks behind a preprocessing of its own."""
    rgb = {"encoder": {"rgb": {"core_class": "VisualCore", "core_kwargs": core}}}
    words = {"train": {"seq_length": 4}, "algo": {"chunk": {**CHUNK, **chunk}}, "observation": rgb}
    algo = tiny_algo("bc", obs=preprocess.obs_shapes, action=preprocess.action_dim, **words)
    algo.preprocess = preprocess
    return RolloutPolicy(algo)


def affine(dim, offset, scale):
    return torch.full((dim,), offset), torch.full((dim,), scale)


def relative(rotation=None):
    """A resized image, actions relative to an observation, and a rotation."""
    steps = [
        {"step": "resize", "size": [12, 16]},
        {"step": "relative_actions", "observation": "p", "action": "pos"},
    ]
    return Preprocess(
        {"cam": (20, 30, 3), "p": (3,)},
        {"cam": "rgb", "p": "low_dim"},
        ActionLayout({"pos": 3, "rot": 3}, {"rot": rotation} if rotation else {}),
        obs_affine={"p": affine(3, 0.2, 2.0)},
        action_affine={"pos": affine(3, 0.1, 3.0)},
        steps=steps,
    )


def poses():
    """Poses relative to the hand, and a gripper of two values."""
    steps = [
        {"step": "relative_pose", "position": "p", "rotation": "q"},
        {"step": "binary_actions", "dims": [9], "values": [0.0, 0.08]},
    ]
    kinds = {"p": "low_dim", "q": "low_dim"}
    action_affine = {"actions": affine(10, 0.1, 0.7)}
    return Preprocess(
        {"p": (3,), "q": (4,)}, kinds, {"actions": 7}, action_affine=action_affine, steps=steps
    )


def configurations():
    """One ready configuration of each network: tasks differ in data, not in what is exported."""
    seen = set()
    for path in sorted(CONFIGS.rglob("*.json")):
        if {"schema", "paper"} & set(path.parts):
            continue
        config = load_config(path)
        if config.algo_name not in EXPORTED or path.stem in NEARLY_EQUAL:
            continue
        algo = {k: v for k, v in config.algo.to_dict().items() if k not in TRAINING}
        text = repr((config.algo_name, algo, config.observation, config.train.frame_stack))
        if text not in seen:
            seen.add(text)
            name = f"{path.parent.name}/{path.stem}"
            is_dear = path.parent.name in FOLDERS or path.stem in DEAR
            is_nightly = is_dear and not {path.stem, name} & CHEAP
            mark = pytest.mark.nightly if is_nightly else pytest.mark.later
            yield pytest.param(ready(path), None, id=name, marks=mark)


SAMPLE = {"num_train_timesteps": 20, "num_inference_timesteps": 7, "prediction_type": "sample"}
WIDE, SLIM = {**ON, "hidden_dim": 256}, {**ON, "hidden_dim": 32}
TWICE = {"integrator": "heun", "num_inference_steps": 2}
VELOCITY = {**ON, "prediction_type": "v_prediction", "clip_sample": False}
ENSEMBLE = {"execute": 1, "temporal_ensemble": 0.2}
OPEN_LOOP = {"algo.rnn.horizon": 4, "algo.rnn.open_loop": True, "algo.rnn.hidden_dim": 16}
CASES = {
    "late chunks": (chunks(1, execute=3, latency=2), 15),
    "chunks of frames": (chunks(3, execute=6), 15),
    "ensemble of frames": (chunks(2, execute=1, temporal_ensemble=0.1), 15),
    "steps of preparation": (lambda: prepared(relative()), 9),
    "rotation": (lambda: prepared(relative("rot_axis_angle")), 9),
    "poses": (lambda: prepared(poses()), 9),
    "vision transformer": (lambda: prepared(relative(), TRANSFORMER), 9),
    "ensemble of relative actions": (lambda: prepared(relative(), **ENSEMBLE), 9),
    "memory": (ready("bc/bc_rnn", **OPEN_LOOP, **{"train.seq_length": 4}), 13),
    "ddpm": (denoiser("diffusion_policy", ddpm={**SAMPLE, "prediction_type": "epsilon"}), 10),
    "few samples": (denoiser("diffusion_policy", unet=OFF, mlp=WIDE, ddpm=SAMPLE), 10),
    "ddim, velocity": (
        denoiser("diffusion_policy", unet=OFF, mlp=SLIM, ddpm=OFF, ddim=VELOCITY),
        10,
    ),
    "flow, heun": (denoiser("flow_policy", unet=OFF, mlp=SLIM, flow=TWICE), 10),
}


# ---- tests ---------------------------------------------------------------------------------------


def exported(policy, folder, **options):
    export_policy(policy, folder / "b.zip", **options)
    return BundlePolicy(folder / "b.zip")


def check_equal(policy, bundle, steps, lang=None, tolerance=1e-5):
    """Two episodes with the same noise; in each the plan is discarded once."""
    bundle.seed(3)
    same = SameNoise(bundle.spec.noise, 3)
    for episode in range(2):
        policy.start_episode(lang)
        bundle.start_episode(lang)
        for step, ob in enumerate(observations(policy, steps, episode)):
            goal = ob if policy.goal_keys else None
            with Draws(same):
                expected = policy(ob, goal)
            got = bundle(ob, goal)
            assert (got.shape, got.dtype) == (expected.shape, np.float64)
            np.testing.assert_allclose(got, expected, atol=tolerance)
            planned = policy.planned_actions()
            if planned is None:
                assert bundle.planned_actions() is None
            else:
                np.testing.assert_allclose(bundle.planned_actions(), planned[0], atol=tolerance)
            if step == steps // 2:
                policy.cut_plan()
                bundle.cut_plan()


@pytest.mark.parametrize(
    ("make", "steps"),
    [*configurations(), *(pytest.param(*case, id=name) for name, case in CASES.items())],
)
def test_a_bundle_acts_as_its_policy(make, steps, tmp_path):
    policy = make()
    bundle = exported(policy, tmp_path)
    assert (bundle.obs_keys, bundle.history) == (policy.obs_keys, policy.history)
    assert bundle.control_freq == policy.control_freq
    np.testing.assert_array_equal(bundle.limits, policy.limits)
    execution = policy.algo.execution
    check_equal(
        policy, bundle, steps or (7 if execution is None else max(7, execution.execute + 3))
    )


def test_a_weight_is_written_once_whatever_the_number_of_steps(tmp_path):
    policy = CASES["few samples"][0]()
    weights = sum(p.numel() for p in policy.algo.active_nets.parameters())
    assert weights > 100_000
    assert export_policy(policy, tmp_path / "b.zip").size_mb < 5e-6 * weights + 1.0


def test_goals(tmp_path):
    policy = fitted(acting(tiny_algo("bc", obs={"a": 4}, goal=("a",), train={"frame_stack": 3})))
    bundle = exported(policy, tmp_path)
    check_equal(policy, bundle, 5)
    with refused("the policy needs a, but got nothing", error=UserError):
        bundle({"a": np.zeros(4)})
    with refused("has goals", error=UserError):
        bundle.predict_chunk([{"a": np.zeros(4)}])


def test_instructions(tmp_path):
    policy = fitted(instructed(("lift", "stack")))
    bundle = exported(policy, tmp_path)
    assert bundle.schema.languages == ("lift", "stack")
    for lang in ("lift", "stack"):
        check_equal(policy, bundle, 3, lang=lang)
    bundle.start_episode()
    with refused("name one with start_episode", error=UserError):
        bundle({"object": np.zeros(10)})
    with refused("instruction 'fold' is not known", error=UserError):
        bundle.start_episode("fold")


def test_chunks_for_the_background(tmp_path):
    """predict_chunk gives what a fresh episode's first plan is, and leaves the memory as it is."""
    policy = ready("act/act")()
    bundle = exported(policy, tmp_path)
    first, second = observations(policy, 2)
    bundle(first)
    before = bundle.planned_actions()
    chunk = bundle.predict_chunk([second])
    np.testing.assert_allclose(chunk, policy.predict_chunk([second]), atol=1e-5)
    np.testing.assert_array_equal(bundle.planned_actions(), before)
    with refused("cannot be guided", error=UserError):
        bundle.predict_chunk([second], planned=chunk)
    with refused("history is empty", error=UserError):
        bundle.predict_chunk([])


def test_a_policy_with_another_memory_predicts_no_chunks(tmp_path):
    policy = CASES["memory"][0]()
    with refused("a memory beyond its last observations", error=UserError):
        exported(policy, tmp_path).predict_chunk(observations(policy, 1))


def masked():
    """Random observations, on which a bundle is compared with its policy, would allow no choice."""
    policy = policy_of("dqn/dqn_cartpole")
    policy.algo.action_mask = ActionMask("action_mask")
    return policy


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: policy_of("mbrl/mbrl"),
            "mbrl cannot be exported|the policy plans each action by a search",
        ),
        (
            lambda: policy_of("hbc/hbc"),
            "hbc cannot be exported|the levels of its hierarchy act at different rates",
        ),
        (lambda: policy_of("gl/gl"), "gl cannot be exported|the algorithm has no actions"),
        (masked, "dqn cannot be exported|observation 'action_mask' masks"),
        (
            lambda: prepared(relative("rot_axis_angle"), **ENSEMBLE),
            "temporal ensembling averages rotations",
        ),
    ],
)
def test_what_cannot_be_exported_says_why(tmp_path, make, words):
    with refused(words, error=BundleError):
        export_policy(make(), tmp_path / "b.zip")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["taken", "absent/b.zip"])
def test_a_place_that_cannot_be_written_is_not_the_policys_fault(tmp_path, place):
    (tmp_path / "taken").mkdir()
    path = tmp_path / place
    with refused(f"{path}: cannot be written", error=BundleError):
        export_policy(bundles.small_policy(), path, overwrite=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def test_a_file_is_replaced_only_if_told(tmp_path):
    target, policy = tmp_path / "b.zip", bundles.small_policy()
    target.write_text("mine")
    with refused("exists already; add --overwrite", error=BundleError):
        export_policy(policy, target)
    assert target.read_text() == "mine"
    exported(policy, tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["b.zip"]


def test_errors_leave_the_memory_as_it_was(tmp_path):
    policy = prepared(relative())
    bundle = exported(policy, tmp_path)
    (ob,) = observations(policy, 1)
    bundle(ob)
    before = bundle.state
    for change, kind in (
        ({"p": np.full(3, np.nan)}, NotFiniteError),
        ({"p": np.zeros(4)}, UserError),
        ({"p": np.zeros((5, 3))}, UserError),
        ({"cam": ob["cam"].astype(float)}, UserError),
        ({"p": np.array(["a", "b", "c"])}, UserError),
        ({"p": None}, UserError),
    ):
        given = {key: value for key, value in {**ob, **change}.items() if value is not None}
        with pytest.raises(kind) as expected:
            policy(given)
        with pytest.raises(kind) as got:
            bundle(given)
        assert str(got.value) == str(expected.value)
    assert bundle.state is before
    floats = {**ob, "cam": ob["cam"] / 255.0}
    policy.start_episode()
    np.testing.assert_allclose(
        bundle.predict_chunk([floats]), policy.predict_chunk([ob]), atol=1e-5
    )


def test_a_bundle_needs_no_torch(tmp_path):
    policy = denoiser("flow_policy")()
    bundle, (ob,) = exported(policy, tmp_path), observations(policy, 1)
    np.savez(tmp_path / "ob.npz", **ob)
    code = (
        "import sys, numpy\n"
        "from imitate.deploy import BundlePolicy\n"
        f"policy = BundlePolicy({str(tmp_path / 'b.zip')!r}, seed=0)\n"
        f"print(policy(dict(numpy.load({str(tmp_path / 'ob.npz')!r}))).tolist())\n"
        "bad = [m for m in ('torch', 'onnx', 'h5py', 'gymnasium', 'pydantic', 'typer', 'msgpack', 'websockets', "
        "'typing_extensions') if m in sys.modules]\n"
        "assert not bad, bad\n"
        "from imitate.deploy import PolicyServer\n"
        "from imitate.deploy.bundle.policy import ServedBundle\n"
        "PolicyServer(ServedBundle(policy), port=0).close()\n"
        "assert not {'torch', 'h5py', 'gymnasium', 'pydantic'} & {*sys.modules}"
    )
    environ = {**os.environ, "PYTHONPATH": str(CONFIGS.parent)}
    words = {"check": True, "capture_output": True, "text": True, "env": environ}
    done = subprocess.run([sys.executable, "-c", code], **words)
    bundle.seed(0)
    assert json.loads(done.stdout) == bundle(ob).tolist()


def test_predictions_are_recorded_on_demonstrations(tmp_path):
    demos = tiny_demos(tmp_path / "demos.hdf5", {"a": 4}, 3, num_demos=1, length=9)
    bundle = exported(bundles.small_policy(), tmp_path, dataset=demos)
    read = read_bundle(tmp_path / "b.zip")
    with DatasetFile(demos) as file:
        rows = file.read("demo_0", "obs/a")
    for check, row in zip(read.description["checks"], (0, 4, 8), strict=True):
        np.testing.assert_allclose(read.array(check["obs"]["a"]), rows[row], rtol=1e-6)
    assert bundle.obs_keys == ("a",)


@pytest.mark.parametrize(
    ("key", "size", "words"),
    [("b", 4, "lacks the policy's observation 'a'"), ("a", 5, "the policy takes")],
)
def test_demonstrations_of_other_observations_are_refused(tmp_path, key, size, words):
    demos = tiny_demos(tmp_path / "demos.hdf5", {key: size}, 3)
    with refused(words, error=BundleError):
        export_policy(bundles.small_policy(), tmp_path / "b.zip", dataset=demos)
    assert not (tmp_path / "b.zip").exists()


def test_the_parts_of_a_small_bundle(tmp_path):
    policy = bundles.small_policy()
    made = export_policy(policy, tmp_path / "a.zip", environment={"name": "Lift"})
    assert made.path == tmp_path / "a.zip"
    assert made.size_mb == made.path.stat().st_size / 1e6
    assert made.steps == 48 and 0.0 <= made.difference < 1e-5
    spec = made.spec
    assert (spec.frames, spec.stacks, spec.cut, spec.memory) == (1, (1, 4), (), {})
    assert (spec.noise.normal, spec.noise.exponential, spec.languages) == (0, 0, None)
    assert (spec.execution.size, spec.execution.execute, spec.execution.latency) == (4, 2, 0)
    assert spec.schema.rate_hz == 20.0 and spec.schema.action_low == (-1.0,) * 3
    assert spec.environment == {"name": "Lift"}
    parts = bundles.parts_of(made.path)
    found = json.loads(parts["bundle.json"])
    arrays = [
        (check["obs"]["a"]["offset"], check["actions"]["offset"]) for check in found["checks"]
    ]
    assert arrays == [(0, 16), (64, 80), (128, 144)] and len(parts["arrays.bin"]) == 192
    assert found["opset"] == 17
    # the recorded actions are those of the policy, which begins an episode with each observation
    for obs_at, actions_at in arrays:
        obs = np.frombuffer(parts["arrays.bin"], np.float32, 4, obs_at)
        chunk = np.frombuffer(parts["arrays.bin"], np.float32, 12, actions_at).reshape(4, 3)
        policy.start_episode()
        np.testing.assert_allclose(policy({"a": obs}), np.clip(chunk[0], -1, 1), atol=1e-5)


def binary(**chunk):
    """Actions of a number and a gripper of two values."""
    steps = [{"step": "binary_actions", "dims": [1], "values": [0.0, 0.08]}]
    layout = {"action_affine": {"actions": affine(2, 0.0, 1.0)}, "steps": steps}
    return prepared(Preprocess({"p": (3,)}, {"p": "low_dim"}, {"actions": 2}, **layout), **chunk)


def test_two_values_cannot_be_averaged(tmp_path):
    assert exported(binary(), tmp_path).spec.execution.temporal_ensemble is None
    with refused("ensembling averages rotations and binary actions", error=BundleError):
        export_policy(binary(**ENSEMBLE), tmp_path / "c.zip")


def test_a_policy_on_another_device_or_with_other_names_is_refused(tmp_path):
    policy = bundles.small_policy()
    policy.rename = {"b": "a"}
    with refused("bc cannot be exported: the checkpoint takes ", error=BundleError):
        export_policy(policy, tmp_path / "b.zip")
    policy.algo.device = torch.device("meta")
    with refused(
        "bc cannot be exported: the policy is on meta: load it with device='cpu'", error=BundleError
    ):
        export_policy(policy, tmp_path / "b.zip")


def test_a_bundle_is_compared_without_limits_and_removed_if_it_acts_differently(
    tmp_path, monkeypatch
):
    seen = []

    def differs(own, bundle, spec):
        own_low, own_high = own.limits
        seen.extend([np.isinf(own_low).all(), np.isinf(own_high).all(), bundle._clip])
        seen.extend(path.suffix for path in tmp_path.iterdir())
        raise BundleError(f"{bundle_path()}: they differ")

    def bundle_path():
        return next(tmp_path.iterdir())

    monkeypatch.setattr(exporting, "compare", differs)
    with pytest.raises(BundleError, match="^bc cannot be exported: they differ$"):
        export_policy(bundles.small_policy(), tmp_path / "b.zip")
    assert seen == [True, True, False, ".unchecked"] and list(tmp_path.iterdir()) == []


def test_the_description_of_a_small_bundle(tmp_path):
    policy = bundles.small_policy()
    algo = policy.algo
    spec = export_policy(policy, tmp_path / "a.zip").spec
    assert spec.schema.max_prefix == 0 and spec.environment == {} and spec.any_pixels == ()
    saved = algo.preprocess.to_dict()
    parts = {group: saved[group].items() for group in ("obs", "actions")}
    assert spec.statistics == {
        group: {
            key: {name: list(entry[name]) for name in ("offset", "scale")} for key, entry in items
        }
        for group, items in parts.items()
    }
    assert len(spec.statistics["obs"]) == len(spec.statistics["actions"]) == 1
    found = read_bundle(tmp_path / "a.zip")
    observations = random_observations(policy, 3, seed=1)
    for check, observation in zip(found.description["checks"], observations, strict=True):
        assert found.array(check["obs"]["a"]).tolist() == observation["obs"]["a"].tolist()


def test_statistics_of_observations_that_only_a_critic_needs_are_left_out():
    policy = bundles.small_policy()
    algo = policy.algo
    encoding = types.SimpleNamespace(shapes=lambda which: {"a": (4,)} if which == "critic" else {})
    stand_in = types.SimpleNamespace(preprocess=algo.preprocess, encoding=encoding)
    assert exporting.statistics_of(stand_in)["obs"] == {}
    assert list(exporting.statistics_of(stand_in)["actions"]) == ["actions"]


def test_a_memory_that_changes_in_another_way_than_to_its_beginning_is_refused():
    begin = {"a": torch.zeros(2), "flag": torch.zeros(1, dtype=torch.bool), "b": torch.ones(1)}
    predictor = types.SimpleNamespace(
        memory=begin, state_of=lambda memory: memory, memory_of=lambda state: state
    )

    def cutting(**after):
        return types.SimpleNamespace(
            cut_plan=lambda state: {"policy": {**state["policy"], **after}}
        )

    assert exporting.cut_inputs(cutting(), predictor) == ()
    assert exporting.cut_inputs(cutting(a=begin["a"], flag=begin["flag"]), predictor) == (
        "a",
        "flag",
    )
    with refused(
        "discarding a plan sets the policy's memory 'a' to other values", error=BundleError
    ):
        exporting.cut_inputs(cutting(a=torch.full((2,), 3.0)), predictor)
