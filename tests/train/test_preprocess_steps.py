"""Steps of train.preprocess from a file to a policy that acts: trained, saved, loaded."""

import numpy as np
import pytest
import torch
from torch import nn

from imitate import RolloutPolicy, policy_from_checkpoint
from imitate.algo.base.relative import check_relative
from imitate.errors import CheckpointError, ConfigError, UserError
from imitate.functional import rotations
from imitate.train.setup import build, resolve
from imitate.train.trainer import train
from tests.demo_files import episode, write_demos
from tests.refusals import refused
from tests.tiny import tiny_config

NIGHTLY = pytest.mark.nightly
TASKS = ("open the drawer", "lift the cup")
RELATIVE = {"step": "relative_actions", "observation": "pos"}


GAUSSIAN = {"actions": {"normalization": "gaussian"}}
META = {"env_name": "hand", "type": 2, "env_kwargs": {}}
IMAGES = {
    "obs": {"camera": (3, 8, 10)},
    "encoder": {"rgb": {"core_class": "VisualCore", "core_kwargs": {"pool_class": None}}},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Four demos of a hand at ``pos``; actions are places beside it, and a gripper."""
    rng = np.random.default_rng(0)

    def demonstration(number):
        pos = 5.0 + rng.normal(size=(12, 3)).cumsum(0)
        goals = pos + rng.uniform(0.1, 0.3, size=(12, 3))
        camera = rng.integers(0, 256, size=(12, 8, 10, 3), dtype=np.uint8)
        obs = {"pos": pos, "grip": rng.normal(size=(12, 1)), "camera": camera}
        actions = np.concatenate([goals, rng.uniform(-1, 1, size=(12, 1))], 1)
        return episode(12, obs, actions, "timeout", attrs={"language": TASKS[number % 2]})

    path = tmp_path_factory.mktemp("data") / "hand.hdf5"
    return write_demos(path, [demonstration(number) for number in range(4)], META)


def config(data, steps=(), name="bc", obs=(), algo=None, encoder=None, steps_of_epoch=4, **train):
    """Training on the data for a few updates; `obs`: shapes of more observations than pos and grip."""
    return tiny_config(
        name,
        obs=obs if "pos" in obs else {"pos": 3, "grip": 1, **dict(obs)},
        data=data,
        experiment={"epoch_every_n_steps": steps_of_epoch},
        train={
            **{"num_epochs": 1, "batch_size": 8, "preprocess": list(steps)},
            "action_config": {"actions": {"normalization": "min_max"}},
            **train,
        },
        algo=algo or {},
        observation={"encoder": encoder or {}},
    )


def seen(place, grip=1.0):
    """An observation: pos in one place, or given, and the gripper."""
    return {"pos": place * np.ones(3), "grip": np.full(1, grip)}


def trained(config, tmp_path):
    """The policy of a few updates, loaded from its checkpoint, and the checkpoint."""
    result = train(config, output_dir=tmp_path, quiet=True)
    return policy_from_checkpoint(ckpt_path=result.checkpoint, device="cpu")


def built(config):
    return build(resolve(config, None, None), torch.device("cpu"))


def test_resized_images(data, tmp_path):
    steps = [{"step": "resize", "size": [6, 5]}]
    policy, ckpt = trained(config(data, steps, **IMAGES), tmp_path)
    assert policy.algo.obs_shapes["camera"] == (3, 6, 5)
    camera = np.random.default_rng(0).integers(0, 256, size=(8, 10, 3), dtype=np.uint8)
    assert policy({**seen(1.0), "camera": camera}).shape == (4,)
    assert ckpt["format_version"] == 2
    assert ckpt["preprocess"]["steps"] == [*steps, {"step": "normalize"}]


def test_normalization_to_quantiles(data, tmp_path):
    actions = {"actions": {"normalization": "quantile"}}
    chosen = config(data, obs_normalization="quantile", action_config=actions)
    policy, _ = trained(chosen, tmp_path)
    recorded = built(chosen).train_set.store.field("obs/pos", np.arange(48)).numpy()
    low, high = np.quantile(recorded, [0.01, 0.99], axis=0)
    obs = {"pos": np.stack([low, high]), "grip": np.zeros((2, 1))}
    prepared = policy.algo.preprocess.prepare_obs(obs)["pos"]
    np.testing.assert_allclose(prepared, [[-1] * 3, [1] * 3], atol=1e-5)
    assert policy(seen(low)).shape == (4,)


def test_padded_vectors(data, tmp_path):
    steps = [{"step": "pad", "dim": 7}, {"step": "pad", "dim": 5, "observation": "pos"}]
    policy, _ = trained(config(data, steps, obs_normalization="mean_std"), tmp_path)
    assert policy.algo.ac_dim == 7
    assert policy.algo.obs_shapes == {"grip": (1,), "pos": (5,)}
    assert policy(seen(1.0)).shape == (4,)
    action, pos = policy.algo.preprocess.chosen_steps
    assert action.mask.tolist() == [True] * 4 + [False] * 3
    assert pos.mask.tolist() == [True] * 3 + [False] * 2


def test_clipped_values(data, tmp_path):
    steps = [{"step": "normalize"}, {"step": "clip", "limit": 1.5, "observations": ["pos"]}]
    policy, _ = trained(config(data, steps, obs_normalization="mean_std"), tmp_path)
    far = seen(1e4, 1e4)
    prepared = policy.algo.preprocess.prepare_obs(far)
    assert prepared["pos"].tolist() == [1.5] * 3
    assert prepared["grip"].item() > 1e3
    assert policy(far).shape == (4,)


def test_tokenized_instructions(data, tmp_path):
    chosen = config(
        data,
        [{"step": "tokenize", "length": 5, "vocabulary": 64}],
        obs={"lang_emb": 1},
        encoder={"lang_emb": {"core_class": "TokenCore", "core_kwargs": {"vocabulary": 64}}},
        obs_normalization="mean_std",
        obs_clip=3.0,
        language_bytes=32,
    )
    policy, _ = trained(chosen, tmp_path)
    actions = []
    for words in (*TASKS, "Lift the CUP!", "close a door"):  # the last is not in the data
        policy.start_episode(lang=words)
        actions.append(policy(seen(5.0)))
    assert not np.allclose(actions[0], actions[1])
    np.testing.assert_array_equal(actions[1], actions[2])
    assert not np.allclose(actions[1], actions[3])
    setup = built(chosen)
    batch = setup.algo.process_batch_for_training(setup.train_set[[0, 12]])
    text = np.frombuffer(b"open the drawer".ljust(32, b"\0"), dtype=np.uint8).copy()
    served = setup.algo.preprocess.prepare_obs({"lang_emb": text}, ["lang_emb"])
    tokens = batch["obs"]["lang_emb"][0]
    assert torch.equal(tokens, served["lang_emb"])
    assert tokens.tolist()[3:] == [0, 0]  # three words
    with refused("has 33 bytes; expected at most 32", error=UserError):
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
    algo = {"chunk": {"enabled": True, **chunk}}
    return {"algo": algo, "frame_stack": frame_stack, "seq_length": chunk["size"]}


def named(name, **section):
    """Keys of a configuration of an algorithm that predicts chunks of four and executes two."""
    algo = {
        "bc": {"chunk": {"enabled": True, "size": 4, "execute": 2}},
        "act": {},
        "diffusion_policy": {"horizon": {"prediction_horizon": 4, "action_horizon": 2}},
    }[name]
    frames = 2 if name == "diffusion_policy" else 1
    return {"name": name, "algo": {**algo, **section}, "frame_stack": frames, "seq_length": 4}


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
    setup.algo.nets["policy"].head = Constant(learned)
    return RolloutPolicy(setup.algo)


def still(data, **chunk):
    """A policy whose chunks stay where they are predicted, and what normalization adds to its actions."""
    setup = built(config(data, [RELATIVE], **chunks(**chunk)))
    offset = setup.algo.preprocess.action_offset[:3].numpy()
    return policy_of(setup, torch.zeros(chunk["size"], 4)), offset


def test_a_new_chunk_has_a_new_reference(data):
    policy, offset = still(data, size=4, execute=2)
    steps = [np.array([0.0, 1.0, 2.0]), 9.0, np.full(3, -3.0), 7.0]
    for pos, reference in zip(steps, (steps[0], steps[0], steps[2], steps[2]), strict=True):
        np.testing.assert_allclose(policy(seen(pos))[:3], reference + offset, atol=1e-5)


def test_each_environment_has_a_reference_of_its_own(data):
    policy, offset = still(data, size=4, execute=2)

    def act(*places):
        obs = {"pos": np.stack([np.full(3, place) for place in places]), "grip": np.zeros((2, 1))}
        return policy(obs, batched_ob=True)[:, :3] - offset

    np.testing.assert_allclose(act(1.0, 2.0), [[1.0] * 3, [2.0] * 3], atol=1e-5)
    policy.start_episode(mask=[False, True])
    np.testing.assert_allclose(act(5.0, 6.0), [[1.0] * 3, [6.0] * 3], atol=1e-5)
    np.testing.assert_allclose(act(3.0, 4.0), [[3.0] * 3, [6.0] * 3], atol=1e-5)


@pytest.mark.parametrize(
    ("chunk", "places", "wanted"),
    [
        # An ensemble is the mean of actions in the units of the data. Each chunk says: stay where it was
        # predicted; weights 1, 1/2, 1/4 from the oldest on.
        (
            {"size": 3, "execute": 1, "temporal_ensemble": float(np.log(2.0))},
            (1.0, 3.0, 11.0),
            [1.0, (1.0 + 3.0 / 2) / 1.5, (1.0 + 3.0 / 2 + 11.0 / 4) / 1.75],
        ),
        # During the latency the old chunk keeps its reference.
        ({"size": 4, "execute": 2, "latency": 1}, (1.0, 2.0, 3.0, 4.0), [1.0, 1.0, 1.0, 3.0]),
    ],
)
def test_chunks_that_overlap_have_a_reference_each(data, chunk, places, wanted):
    policy, offset = still(data, **chunk)
    actions = [policy(seen(place))[0] - offset[0] for place in places]
    np.testing.assert_allclose(actions, wanted, atol=1e-5)


def recorded(setup):
    rows = np.arange(48)
    field = setup.train_set.store.field
    return rows, field("actions", rows).numpy(), field("obs/pos", rows).numpy()


def test_statistics_are_those_of_the_relative_actions(data):
    setup = built(config(data, [RELATIVE], action_config=GAUSSIAN, **chunks(size=4, execute=2)))
    rows, actions, pos = recorded(setup)
    chunks_of = [
        (row, range(row, min(row + 4, 12 * (row // 12 + 1)))) for row in rows
    ]  # no padded ones
    relative = [actions[at] - np.append(pos[row], 0.0) for row, ahead in chunks_of for at in ahead]
    pipeline = setup.algo.preprocess
    np.testing.assert_allclose(pipeline.action_offset, np.mean(relative, 0), atol=1e-5)
    np.testing.assert_allclose(pipeline.action_scale, np.std(relative, 0), atol=1e-5)


def test_single_actions_are_relative_to_their_own_step(data, tmp_path):
    memory = {"rnn": {"enabled": True, "horizon": 4, "hidden_dim": 8}}
    chosen = config(data, [RELATIVE], algo=memory, seq_length=4)
    setup = built(chosen)
    raw = setup.train_set[[2]]
    pipeline = setup.algo.preprocess
    learned = setup.algo.process_batch_for_training(raw)["actions"][0]
    relative = raw["actions"][0] - nn.functional.pad(raw["obs"]["pos"][0], (0, 1))
    wanted = (relative - pipeline.action_offset) / pipeline.action_scale
    torch.testing.assert_close(learned, wanted, atol=1e-5, rtol=1e-5)
    policy, _ = trained(chosen, tmp_path)
    assert policy(seen(5.0)).shape == (4,)


DELTA = {**RELATIVE, "step": "delta_actions"}


@pytest.mark.parametrize(
    ("name", "step"),
    [
        *(("bc", RELATIVE), ("act", DELTA)),
        pytest.param("act", RELATIVE, marks=NIGHTLY),
        *(pytest.param("diffusion_policy", step, marks=NIGHTLY) for step in (RELATIVE, DELTA)),
    ],
)
def test_policies_learn_relative_actions_and_differences(data, tmp_path, name, step):
    policy, _ = trained(config(data, [step], **named(name)), tmp_path)
    for number in range(5):
        assert np.isfinite(policy(seen(5.0 + number))).all()


def test_given_actions_are_relative_to_the_newest_observation(data, tmp_path):
    words = named("diffusion_policy", prefix={"max_delay": 2})
    policy, _ = trained(config(data, [RELATIVE], **words), tmp_path)
    planned = np.array([[5.1, 5.2, 5.3, 0.5], [5.4, 5.1, 5.2, -0.5]])
    chunk = policy.predict_chunk([seen(4.0), seen(5.0)], planned, delay=2, guidance="prefix")
    np.testing.assert_allclose(chunk[:2], planned, atol=1e-5)


MEMORY = {"rnn": {"enabled": True}, "chunk": {"enabled": True, "size": 4, "execute": 2}}
AUTO = {"actions": {"normalization": "auto"}}
QUANTILES = {**IMAGES, "obs_normalization": "quantile"}
PARTLY = {**RELATIVE, "dims": [3], "observation_dims": [0]}


@pytest.mark.parametrize(
    ("steps", "words", "named"),
    [
        ([], QUANTILES, "obs_normalization of 'camera': 'quantile' needs quantiles, which are"),
        ([RELATIVE], {"algo": MEMORY, "seq_length": 13}, "bc with a memory predicts a chunk at"),
        ([RELATIVE], {"action_config": AUTO}, "actions.normalization is 'auto', which is compu"),
        ([DELTA], chunks(size=4, execute=2), "differences | which bc does not support; expected"),
        ([DELTA, PARTLY], {}, "expected a single step delta_actions, after all"),
    ],
)
def test_where_steps_would_be_wrong_they_are_refused(data, steps, words, named):
    with refused(named, error=ConfigError):
        built(config(data, steps, **words))


def test_a_start_from_a_checkpoint_with_other_steps_is_refused(data, tmp_path):
    result = train(config(data, [RELATIVE]), output_dir=tmp_path, quiet=True)
    other = config(data).with_overrides({"experiment.ckpt_path": str(result.checkpoint)})
    with refused("was trained with train.preprocess |'relative_act", error=CheckpointError):
        built(other)


POSE = {"step": "relative_pose", "position": "pos", "rotation": "quat"}
TURN = rotations.axis_angle_to_matrix(torch.tensor([0.0, 0.0, 0.3]))
OFFSET = rotations.Pose(torch.tensor([0.1, 0.0, -0.05]), TURN)


def ahead(pos, quat):
    """The pose at a constant offset from the hand's: position and axis-angle."""
    pos, quat = torch.as_tensor(pos).float(), torch.as_tensor(quat).float()
    hand = rotations.Pose(pos, rotations.quaternion_to_matrix(quat))
    goal = rotations.absolute_from_frame(OFFSET, hand)
    return torch.cat((goal.position, rotations.matrix_to_axis_angle(goal.rotation)), -1).numpy()


def hands(rng, count):
    quat = rng.normal(size=(count, 4))
    return rng.normal(size=(count, 3)), quat / np.linalg.norm(quat, axis=1, keepdims=True)


CHUNK = {"chunk": {"enabled": True, "size": 2, "execute": 1}}


@pytest.mark.slow("learns a motion")
@pytest.mark.parametrize("algo", [pytest.param({}, marks=NIGHTLY), CHUNK], ids=["single", "chunk"])
def test_a_motion_of_the_hand_is_the_same_at_poses_that_no_demo_has(tmp_path, algo):
    rng, made = np.random.default_rng(0), []
    for _ in range(40):
        (pos, quat), holds = hands(rng, 1), rng.integers(0, 2)
        values = {"pos": pos[0], "quat": quat[0], "holds": np.full(1, holds)}
        actions = np.append(ahead(pos, quat)[0], 0.08 * holds)
        seen = {key: np.tile(value, (3, 1)) for key, value in values.items()}
        made.append(episode(3, seen, np.tile(actions, (3, 1)), "timeout"))
    path = write_demos(tmp_path / "a.hdf5", made, META)
    steps = [POSE, {"step": "binary_actions", "dims": [9]}]
    learning = {"optim_params": {"policy": {"learning_rate": {"initial": 0.01}}}, **algo}
    words = {"obs": {"pos": 3, "quat": 4, "holds": 1}, "algo": learning, "seq_length": 2}
    chosen = config(path, steps, steps_of_epoch=300, **words)
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


@pytest.mark.parametrize("name", ["act", "diffusion_policy"])
def test_differences_are_learned_and_the_recorded_actions_sent(data, name, monkeypatch):
    words = named(name)
    setup = built(config(data, [DELTA], action_config=GAUSSIAN, **words))
    algo, pipeline = setup.algo, setup.algo.preprocess
    raw = setup.train_set[[3]]
    now = words["frame_stack"] - 1
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
    keys = ("pos", "grip")
    history = [{key: raw["obs"][key][0, step] for key in keys} for step in range(now + 1)]
    for obs in history:
        first = policy(obs)
    later = policy({"pos": pos[now] + 7.0, "grip": np.ones(1)})
    sent = actions[now : now + 2].numpy()
    if now == 0:  # else the plan of the frame before is still executed
        np.testing.assert_allclose([first, later], sent, atol=1e-4)
    chunk = policy.predict_chunk(history)
    np.testing.assert_allclose(chunk[:2], sent, atol=1e-4)
    with refused("learned differences between actions", error=UserError):
        algo.predict_chunk({}, prefix=object())


def test_statistics_are_those_of_the_differences(data):
    setup = built(config(data, [DELTA], action_config=GAUSSIAN, **named("act")))
    rows, actions, pos = recorded(setup)
    found = []
    for row in rows:
        chunk = actions[row : min(row + 4, 12 * (row // 12 + 1)), :3]  # no padded ones
        found += [chunk[0] - pos[row], *np.diff(chunk, axis=0)]
    offset, scale = (x[:3] for x in setup.algo.preprocess.normalization.action_affine("actions"))
    np.testing.assert_allclose(offset, np.mean(found, 0), atol=1e-4)
    np.testing.assert_allclose(scale, np.std(found, 0), atol=1e-4)


def test_poses_are_refused_where_nothing_is_imitated(data):
    chosen = config(data, [{"step": "rotation_6d", "dims": [0, 1, 2]}])
    online = chosen.with_overrides({"train.online.enabled": True})
    with refused("'rotation_6d' changes actions, which online RL does not", error=ConfigError):
        check_relative(online, built(chosen).algo.preprocess)
