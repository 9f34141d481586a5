"""Steps of train.preprocess from a file to a policy that acts: trained, saved, loaded."""

import numpy as np
import pytest
import torch
from torch import nn

from imitate import RolloutPolicy, policy_from_checkpoint
from imitate.algo.relative import check_relative
from imitate.config import load_config
from imitate.data.file.writer import DatasetWriter, Episode
from imitate.errors import CheckpointError, ConfigError, UserError
from imitate.functional import poses, rotations
from imitate.train.setup import build, resolve
from imitate.train.trainer import train

TASKS = ("open the drawer", "lift the cup")
RELATIVE = {"step": "relative_actions", "observation": "pos"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Four demos of a hand at ``pos``; actions are places beside it, and a gripper."""
    path = tmp_path_factory.mktemp("data") / "hand.hdf5"
    rng = np.random.default_rng(0)
    with DatasetWriter(path, {"env_name": "hand", "type": 2, "env_kwargs": {}}) as writer:
        for demo in range(4):
            pos = 5.0 + rng.normal(size=(12, 3)).cumsum(0)
            goals = pos + rng.uniform(0.1, 0.3, size=(12, 3))
            writer.append_episode(
                Episode(
                    obs={
                        "pos": pos,
                        "grip": rng.normal(size=(12, 1)),
                        "camera": rng.integers(0, 256, size=(12, 8, 10, 3), dtype=np.uint8),
                    },
                    actions=np.concatenate([goals, rng.uniform(-1, 1, size=(12, 1))], 1),
                    rewards=np.zeros(12),
                    terminals=np.zeros(12),
                    timeouts=np.arange(12) == 11,
                    attrs={"language": TASKS[demo % 2]},
                )
            )
    return path


def config(data, steps=(), low_dim=("pos", "grip"), rgb=(), algo=None, encoder=None, **train):
    return load_config(
        {
            "algo_name": "bc",
            "experiment": {
                "name": "steps",
                "epoch_every_n_steps": 4,
                "logging": {"log_tb": False},
                "rollout": {"enabled": False},
                "render_video": False,
            },
            "train": {
                "data": str(data),
                "cuda": False,
                "batch_size": 8,
                "num_epochs": 1,
                "num_threads": 1,
                "preprocess": list(steps),
                "action_config": {"actions": {"normalization": "min_max"}},
                **train,
            },
            "algo": {"actor_layer_dims": [16], **(algo or {})},
            "observation": {
                "modalities": {"obs": {"low_dim": list(low_dim), "rgb": list(rgb)}},
                "encoder": encoder or {},
            },
        }
    )


def trained(config, tmp_path):
    """The policy of a few updates, loaded from its checkpoint, and the checkpoint."""
    result = train(config, output_dir=tmp_path, quiet=True)
    return policy_from_checkpoint(ckpt_path=result.checkpoint, device="cpu")


def built(config):
    return build(resolve(config, None, None), torch.device("cpu"))


def test_resized_images(data, tmp_path):
    steps = [{"step": "resize", "size": [6, 5]}]
    policy, ckpt = trained(config(data, steps, rgb=["camera"]), tmp_path)
    assert policy.algo.obs_shapes["camera"] == (3, 6, 5)
    camera = np.random.default_rng(0).integers(0, 256, size=(8, 10, 3), dtype=np.uint8)
    obs = {"pos": np.ones(3), "grip": np.ones(1), "camera": camera}
    assert policy(obs).shape == (4,)
    assert ckpt["format_version"] == 2
    assert ckpt["preprocess"]["steps"] == [*steps, {"step": "normalize"}]


def test_normalization_to_quantiles(data, tmp_path):
    chosen = config(
        data,
        obs_normalization="quantile",
        action_config={"actions": {"normalization": "quantile"}},
    )
    policy, _ = trained(chosen, tmp_path)
    setup = built(chosen)
    rows = np.arange(48)
    recorded = setup.train_set.store.field("obs/pos", rows).numpy()
    low, high = np.quantile(recorded, [0.01, 0.99], axis=0)
    obs = {"pos": np.stack([low, high]), "grip": np.zeros((2, 1))}
    prepared = policy.algo.preprocess.prepare_obs(obs)["pos"]
    np.testing.assert_allclose(prepared, [[-1] * 3, [1] * 3], atol=1e-5)
    assert policy({"pos": low, "grip": np.zeros(1)}).shape == (4,)


def test_quantiles_of_images_are_refused(data):
    with pytest.raises(ConfigError, match="obs_normalization of 'camera': 'quantile' is for vec"):
        built(config(data, rgb=["camera"], obs_normalization="quantile"))


def test_padded_vectors(data, tmp_path):
    steps = [{"step": "pad", "dim": 7}, {"step": "pad", "dim": 5, "observation": "pos"}]
    policy, _ = trained(config(data, steps, obs_normalization="mean_std"), tmp_path)
    assert policy.algo.ac_dim == 7
    assert policy.algo.obs_shapes == {"grip": (1,), "pos": (5,)}
    assert policy({"pos": np.ones(3), "grip": np.ones(1)}).shape == (4,)
    action, pos = policy.algo.preprocess.chosen_steps
    assert action.mask.tolist() == [True] * 4 + [False] * 3
    assert pos.mask.tolist() == [True] * 3 + [False] * 2


def test_clipped_values(data, tmp_path):
    steps = [{"step": "normalize"}, {"step": "clip", "limit": 1.5, "observations": ["pos"]}]
    policy, _ = trained(config(data, steps, obs_normalization="mean_std"), tmp_path)
    far = {"grip": np.full(1, 1e4), "pos": np.full(3, 1e4)}
    prepared = policy.algo.preprocess.prepare_obs(far)
    assert prepared["pos"].tolist() == [1.5] * 3
    assert prepared["grip"].item() > 1e3
    assert policy(far).shape == (4,)


def test_tokenized_instructions(data, tmp_path):
    chosen = config(
        data,
        [{"step": "tokenize", "length": 5, "vocabulary": 64}],
        low_dim=["pos", "grip", "lang_emb"],
        encoder={"lang_emb": {"core_class": "TokenCore", "core_kwargs": {"vocabulary": 64}}},
        obs_normalization="mean_std",
        obs_clip=3.0,
        language_bytes=32,
    )
    policy, _ = trained(chosen, tmp_path)
    obs = {"pos": np.full(3, 5.0), "grip": np.ones(1)}
    actions = []
    for words in (*TASKS, "Lift the CUP!", "close a door"):  # the last is not in the data
        policy.start_episode(lang=words)
        actions.append(policy(obs))
    assert not np.allclose(actions[0], actions[1])
    np.testing.assert_array_equal(actions[1], actions[2])
    assert not np.allclose(actions[1], actions[3])
    setup = built(chosen)
    batch = setup.algo.process_batch_for_training(setup.train_set[[0, 12]])
    text = b"open the drawer".ljust(32, b"\0")
    served = setup.algo.preprocess.prepare_obs(
        {"lang_emb": np.frombuffer(text, dtype=np.uint8).copy()}, ["lang_emb"]
    )
    tokens = batch["obs"]["lang_emb"][0]
    assert torch.equal(tokens, served["lang_emb"])
    assert tokens.tolist()[3:] == [0, 0]  # three words
    with pytest.raises(UserError, match="has 33 bytes; expected at most 32"):
        policy.start_episode(lang="x" * 33)


# ---- relative actions -------------------------------------------------------------------------


class Constant(nn.Module):
    """A head that predicts the same chunk wherever the robot is."""

    def __init__(self, values):
        super().__init__()
        self.values = values.flatten()

    def act(self, features, explore=False, generator=None):
        return self.values.expand(len(features), -1)


def chunks(frame_stack=1, **chunk):
    return {
        "algo": {"chunk": {"enabled": True, **chunk}},
        "frame_stack": frame_stack,
        "seq_length": chunk["size"],
    }


def observation(setup, row):
    row = np.array([row])
    return {k: setup.train_set.store.field(f"obs/{k}", row)[0].numpy() for k in ("pos", "grip")}


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_a_chunk_that_training_shows_is_the_one_that_serving_executes(data, frame_stack):
    setup = built(config(data, [RELATIVE], **chunks(frame_stack, size=4, execute=3)))
    first = 12 + 5  # row of the second demo
    raw = setup.train_set[[first]]
    learned = setup.algo.process_batch_for_training(raw)["actions"][0]
    policy = policy_of(setup, learned)
    for row in range(first - frame_stack + 1, first):
        policy.algo.nets["policy"].head = Constant(torch.zeros(4, 4))
        policy(observation(setup, row))
        policy.cut_plan()
    policy.algo.nets["policy"].head = Constant(learned)
    for step in range(3):
        action = policy(observation(setup, first + step))
        np.testing.assert_allclose(action, raw["actions"][0, frame_stack - 1 + step], atol=2e-5)
        planned = policy.planned_actions()
        np.testing.assert_allclose(planned[0, 0], action, atol=2e-5)
        np.testing.assert_allclose(planned[0, -1], raw["actions"][0, -1], atol=2e-5)


def policy_of(setup, learned):
    from imitate.policy.rollout_policy import RolloutPolicy

    setup.algo.nets["policy"].head = Constant(learned)
    return RolloutPolicy(setup.algo)


def test_a_new_chunk_has_a_new_reference(data):
    setup = built(config(data, [RELATIVE], **chunks(size=4, execute=2)))
    policy = policy_of(setup, torch.zeros(4, 4))
    steps = [np.array([0.0, 1.0, 2.0]), np.full(3, 9.0), np.full(3, -3.0), np.full(3, 7.0)]
    actions = [policy({"pos": pos, "grip": np.zeros(1)})[:3] for pos in steps]
    offset = setup.algo.preprocess.action_offset[:3].numpy()
    for action, pos in zip(actions, (steps[0], steps[0], steps[2], steps[2]), strict=True):
        np.testing.assert_allclose(action, pos + offset, atol=1e-5)


def test_each_environment_has_a_reference_of_its_own(data):
    setup = built(config(data, [RELATIVE], **chunks(size=4, execute=2)))
    policy = policy_of(setup, torch.zeros(4, 4))
    offset = setup.algo.preprocess.action_offset[:3].numpy()

    def act(*places):
        obs = {"pos": np.stack([np.full(3, place) for place in places]), "grip": np.zeros((2, 1))}
        return policy(obs, batched_ob=True)[:, :3] - offset

    np.testing.assert_allclose(act(1.0, 2.0), [[1.0] * 3, [2.0] * 3], atol=1e-5)
    policy.start_episode(mask=[False, True])
    np.testing.assert_allclose(act(5.0, 6.0), [[1.0] * 3, [6.0] * 3], atol=1e-5)
    np.testing.assert_allclose(act(3.0, 4.0), [[3.0] * 3, [6.0] * 3], atol=1e-5)


def test_an_ensemble_is_the_mean_of_actions_in_the_units_of_the_data(data):
    setup = built(
        config(data, [RELATIVE], **chunks(size=3, execute=1, temporal_ensemble=float(np.log(2.0))))
    )
    policy = policy_of(setup, torch.zeros(3, 4))
    offset = setup.algo.preprocess.action_offset[0].item()
    actions = [
        policy({"pos": np.full(3, place), "grip": np.zeros(1)})[0] - offset
        for place in (1.0, 3.0, 11.0)
    ]
    # Each chunk says: stay where it was predicted; weights 1, 1/2, 1/4 from the oldest on.
    wanted = [1.0, (1.0 + 3.0 / 2) / 1.5, (1.0 + 3.0 / 2 + 11.0 / 4) / 1.75]
    np.testing.assert_allclose(actions, wanted, atol=1e-5)


def test_during_the_latency_the_old_chunk_keeps_its_reference(data):
    setup = built(config(data, [RELATIVE], **chunks(size=4, execute=2, latency=1)))
    policy = policy_of(setup, torch.zeros(4, 4))
    offset = setup.algo.preprocess.action_offset[0].item()
    actions = [
        policy({"pos": np.full(3, place), "grip": np.zeros(1)})[0] - offset
        for place in (1.0, 2.0, 3.0, 4.0)
    ]
    np.testing.assert_allclose(actions, [1.0, 1.0, 1.0, 3.0], atol=1e-5)


def test_statistics_are_those_of_the_relative_actions(data):
    gaussian = {"actions": {"normalization": "gaussian"}}
    chosen = config(data, [RELATIVE], action_config=gaussian, **chunks(size=4, execute=2))
    setup = built(chosen)
    rows = np.arange(48)
    actions, pos = (
        setup.train_set.store.field(key, rows).numpy() for key in ("actions", "obs/pos")
    )
    relative = np.array(
        [
            actions[ahead] - np.append(pos[row], 0.0)
            for row in rows
            for ahead in range(row, min(row + 4, 12 * (row // 12 + 1)))  # no padded ones
        ]
    )
    pipeline = setup.algo.preprocess
    np.testing.assert_allclose(pipeline.action_offset, relative.mean(0), atol=1e-5)
    np.testing.assert_allclose(pipeline.action_scale, relative.std(0), atol=1e-5)


def test_single_actions_are_relative_to_their_own_step(data, tmp_path):
    chosen = config(
        data,
        [RELATIVE],
        algo={"rnn": {"enabled": True, "horizon": 4, "hidden_dim": 8}},
        seq_length=4,
    )
    setup = built(chosen)
    raw = setup.train_set[[2]]
    pipeline = setup.algo.preprocess
    learned = setup.algo.process_batch_for_training(raw)["actions"][0]
    relative = raw["actions"][0] - nn.functional.pad(raw["obs"]["pos"][0], (0, 1))
    wanted = (relative - pipeline.action_offset) / pipeline.action_scale
    torch.testing.assert_close(learned, wanted, atol=1e-5, rtol=1e-5)
    policy, _ = trained(chosen, tmp_path)
    assert policy({"pos": np.full(3, 5.0), "grip": np.ones(1)}).shape == (4,)


@pytest.mark.parametrize("name", ["bc", "act", "diffusion_policy"])
def test_policies_learn_relative_actions(data, tmp_path, name):
    frames = 2 if name == "diffusion_policy" else 1
    tree = config(data, [RELATIVE], **chunks(frames, size=4, execute=2)).to_dict()
    tree |= {"algo_name": name, "algo": SMALL[name]}
    policy, _ = trained(load_config(tree), tmp_path)
    pos = np.full(3, 5.0)
    for step in range(5):
        assert np.isfinite(policy({"pos": pos + step, "grip": np.ones(1)})).all()


def test_given_actions_are_relative_to_the_newest_observation(data, tmp_path):
    tree = config(data, [RELATIVE], **chunks(2, size=4, execute=2)).to_dict()
    section = {**SMALL["diffusion_policy"], "prefix": {"max_delay": 2}}
    tree |= {"algo_name": "diffusion_policy", "algo": section}
    policy, _ = trained(load_config(tree), tmp_path)
    history = [{"pos": np.full(3, place), "grip": np.ones(1)} for place in (4.0, 5.0)]
    planned = np.array([[5.1, 5.2, 5.3, 0.5], [5.4, 5.1, 5.2, -0.5]])
    chunk = policy.predict_chunk(history, planned, delay=2, guidance="prefix")
    np.testing.assert_allclose(chunk[:2], planned, atol=1e-5)


SMALL = {
    "bc": {"actor_layer_dims": [16], "chunk": {"enabled": True, "size": 4, "execute": 2}},
    "act": {
        "chunk": {"size": 4, "execute": 2},
        "transformer": {"embed_dim": 16, "num_heads": 2, "feedforward_dim": 16},
    },
    "diffusion_policy": {
        "horizon": {"prediction_horizon": 4, "action_horizon": 2},
        "unet": {"down_dims": [8, 16], "diffusion_step_embed_dim": 8, "n_groups": 4},
    },
}


def test_where_relative_actions_would_be_wrong_they_are_refused(data):
    algo = {"rnn": {"enabled": True}, "chunk": {"enabled": True, "size": 4, "execute": 2}}
    chosen = config(data, [RELATIVE], algo=algo, seq_length=13)
    with pytest.raises(ConfigError, match="bc with a memory predicts a chunk at each"):
        built(chosen)


def test_automatic_normalization_is_refused_with_relative_actions(data):
    with pytest.raises(ConfigError, match=r"actions.normalization is 'auto', which looks at"):
        built(config(data, [RELATIVE], action_config={"actions": {"normalization": "auto"}}))


def test_a_start_from_a_checkpoint_with_other_steps_is_refused(data, tmp_path):
    result = train(config(data, [RELATIVE]), output_dir=tmp_path, quiet=True)
    other = config(data).with_overrides({"experiment.ckpt_path": str(result.checkpoint)})
    with pytest.raises(CheckpointError, match="was trained with train.preprocess .*'relative_act"):
        built(other)


POSE = {"step": "relative_pose", "position": "pos", "rotation": "quat"}
OFFSET = poses.Pose(
    torch.tensor([0.1, 0.0, -0.05]), rotations.axis_angle_to_matrix(torch.tensor([0.0, 0.0, 0.3]))
)


def ahead(pos, quat):
    """The pose at a constant offset from the hand's: position and axis-angle."""
    hand = poses.Pose(
        torch.as_tensor(pos).float(), rotations.quaternion_to_matrix(torch.as_tensor(quat).float())
    )
    goal = poses.absolute_from_frame(OFFSET, hand)
    return torch.cat((goal.position, rotations.matrix_to_axis_angle(goal.rotation)), -1).numpy()


def hands(rng, count):
    quat = rng.normal(size=(count, 4))
    return rng.normal(size=(count, 3)), quat / np.linalg.norm(quat, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "algo", [{}, {"chunk": {"enabled": True, "size": 2, "execute": 1}}], ids=["single", "chunk"]
)
def test_a_motion_of_the_hand_is_the_same_at_poses_that_no_demo_has(tmp_path, algo):
    rng = np.random.default_rng(0)
    with DatasetWriter(
        tmp_path / "a.hdf5", {"env_name": "a", "type": 2, "env_kwargs": {}}
    ) as writer:
        for _ in range(40):
            (pos, quat), holds = hands(rng, 1), rng.integers(0, 2)
            actions = np.append(ahead(pos, quat)[0], 0.08 * holds)
            writer.append_episode(
                Episode(
                    obs={"pos": np.repeat(pos, 3, 0), "quat": np.repeat(quat, 3, 0), "holds": np.full((3, 1), holds)},
                    actions=np.repeat(actions[None], 3, 0),
                    rewards=np.zeros(3),
                    terminals=np.zeros(3),
                    timeouts=np.arange(3) == 2,
                )
            )  # fmt: skip
    steps = [POSE, {"step": "binary_actions", "dims": [9]}]
    learning = {"optim_params": {"policy": {"learning_rate": {"initial": 0.01}}}, **algo}
    chosen = config(
        tmp_path / "a.hdf5", steps, ("pos", "quat", "holds"), algo=learning, seq_length=2
    )
    chosen = chosen.with_overrides({"experiment.epoch_every_n_steps": 300})
    policy, _ = trained(chosen, tmp_path)
    low, high = policy.limits
    assert low[3:6].max() < -3.1 and high[3:6].min() > 3.1
    for holds in (0, 1):
        (pos,), (quat,) = hands(rng, 1)
        action = policy({"pos": pos, "quat": quat, "holds": np.full(1, holds)})
        policy.start_episode()
        assert action[6] == pytest.approx(0.08 * holds)
        found, wanted = (
            rotations.axis_angle_to_matrix(torch.as_tensor(turn).float())
            for turn in (action[3:6], ahead(pos, quat)[3:])
        )
        inside = np.clip(ahead(pos, quat)[:3], low[:3], high[:3])
        np.testing.assert_allclose(action[:3], inside, atol=0.05)
        torch.testing.assert_close(found, wanted, atol=0.1, rtol=0)


DELTA = {**RELATIVE, "step": "delta_actions"}


@pytest.mark.parametrize("name", ["act", "diffusion_policy"])
def test_differences_are_learned_and_the_recorded_actions_sent(data, name, monkeypatch):
    frames = 2 if name == "diffusion_policy" else 1
    gaussian = {"actions": {"normalization": "gaussian"}}
    chosen = config(data, [DELTA], action_config=gaussian, **chunks(frames, size=4, execute=2))
    tree = chosen.to_dict() | {"algo_name": name, "algo": SMALL[name]}
    setup = built(load_config(tree))
    algo, pipeline = setup.algo, setup.algo.preprocess
    raw = setup.train_set[[3]]
    now = frames - 1
    actions, pos = raw["actions"][0], raw["obs"]["pos"][0]
    learned = algo.process_batch_for_training(raw)["actions"]
    # The first one from the newest observation, each other from the one before; the gripper as it is.
    start = 0 if algo.aligned_with_oldest_frame else now
    recorded = actions[start : start + 4]
    wanted = recorded.clone()
    wanted[0, :3] -= pos[now]
    wanted[1:, :3] -= recorded[:-1, :3]
    wanted = (wanted - pipeline.action_offset) / pipeline.action_scale
    torch.testing.assert_close(learned[0], wanted, atol=1e-4, rtol=1e-4)
    assert learned[0, 1:, :3].abs().max() < 5  # scaled by the differences, not by places

    monkeypatch.setattr(algo, "_predict", lambda obs, goal, generator: learned)
    policy = RolloutPolicy(algo)
    seen = [{key: raw["obs"][key][0, step] for key in ("pos", "grip")} for step in range(now + 1)]
    for obs in seen:
        first = policy(obs)
    later = policy({"pos": pos[now] + 7.0, "grip": np.ones(1)})
    sent = actions[now : now + 2].numpy()
    if frames == 1:  # else the plan of the frame before is still executed
        np.testing.assert_allclose([first, later], sent, atol=1e-4)
    chunk = policy.predict_chunk(seen)
    np.testing.assert_allclose(chunk[:2], sent, atol=1e-4)
    with pytest.raises(UserError, match="learned differences between actions"):
        algo.predict_chunk({}, prefix=object())


def test_statistics_are_those_of_the_differences(data):
    gaussian = {"actions": {"normalization": "gaussian"}}
    chosen = config(data, [DELTA], action_config=gaussian, **chunks(size=4, execute=2))
    setup = built(load_config(chosen.to_dict() | {"algo_name": "act", "algo": SMALL["act"]}))
    rows = np.arange(48)
    actions, pos = (
        setup.train_set.store.field(key, rows).numpy() for key in ("actions", "obs/pos")
    )
    found = []
    for row in rows:
        chunk = actions[row : min(row + 4, 12 * (row // 12 + 1)), :3]  # no padded ones
        found += [chunk[0] - pos[row], *np.diff(chunk, axis=0)]
    offset, scale = (x[:3] for x in setup.algo.preprocess.normalization.action_affine("actions"))
    np.testing.assert_allclose(offset, np.mean(found, 0), atol=1e-4)
    np.testing.assert_allclose(scale, np.std(found, 0), atol=1e-4)


@pytest.mark.parametrize("name", ["act", "diffusion_policy"])
def test_policies_learn_differences(data, tmp_path, name):
    frames = 2 if name == "diffusion_policy" else 1
    tree = config(data, [DELTA], **chunks(frames, size=4, execute=2)).to_dict()
    tree |= {"algo_name": name, "algo": SMALL[name]}
    policy, _ = trained(load_config(tree), tmp_path)
    for step in range(3):
        assert np.isfinite(policy({"pos": np.full(3, 5.0 + step), "grip": np.ones(1)})).all()


def test_where_differences_would_be_wrong_they_are_refused(data):
    with pytest.raises(ConfigError, match="differences .* which bc does not know; expected act"):
        built(config(data, [DELTA], **chunks(size=4, execute=2)))
    with pytest.raises(ConfigError, match="expected a single step of differences, behind all"):
        built(config(data, [DELTA, {**RELATIVE, "dims": [3], "observation_dims": [0]}]))


def test_poses_are_refused_where_nothing_is_imitated(data):
    chosen = config(data, [{"step": "rotation_6d", "dims": [0, 1, 2]}])
    online = chosen.with_overrides({"train.online.enabled": True})
    with pytest.raises(
        ConfigError, match="'rotation_6d' changes actions, which online RL does not"
    ):
        check_relative(online, built(chosen).algo.preprocess)
