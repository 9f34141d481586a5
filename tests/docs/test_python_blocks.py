"""Python in the documentation runs, in front of small stand-ins for the reader's robot, data and checkpoint."""

import types

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch

from imitate import policy_from_checkpoint
from imitate.algo.gail import GAILRewards
from imitate.config.algorithms import find
from imitate.data import DatasetFile
from imitate.deploy import PolicyServer
from imitate.deploy.bundle.exporting import export_policy
from imitate.deploy.server.served import ServedPolicy
from tests.docs.pages import PAGES, ROOT, python_blocks
from tests.forked import Forked
from tests.loading import load
from tests.point_policy import save_point_policy

ELSEWHERE = {
    "docs/own_algorithm.md": "tests/examples/test_own_algorithm.py",
    "docs/policies.md": "tests/examples/test_own_step.py",
}
"""Pages whose blocks another test runs."""
OTHERS = ("docs/algorithms/",)
"""Folders whose pages have tests of their own."""


OWN_DATA = load("examples/write_own_dataset.py")
OWN_ROBOT = load("examples/own_robot.py")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def checkpoint(folder):
    """A small policy of a point that is pushed to a goal, under the names that pages have for a checkpoint."""
    for name in ("best.pth", "last.pth"):
        save_point_policy(folder / name)
    return folder / "best.pth"


OBS = {"position": np.zeros(2), "goal": np.full(2, 0.5)}


class Soon:
    """False when it is asked for the first two times, then true."""

    def __init__(self):
        self.asked = 0

    def __bool__(self):
        self.asked += 1
        return self.asked > 2


def run(page, number, changes=(), **names):
    """Run a block of a page; ``changes`` are (text of the page, text that a test can run)."""
    text = python_blocks(page)[number]
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    space = {"__name__": "a_page", **names}
    exec(compile(text, f"{page}, block {number}", "exec"), space)
    return space


# ---- policies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["README.md", "docs/deployment.md"])
def test_a_policy_from_a_checkpoint(page, checkpoint):
    assert run(page, 0, obs=OBS, done=Soon())["action"].shape == (2,)


def test_the_shapes_in_a_checkpoint(checkpoint):
    space = run("docs/reference/index.md", 1)
    assert space["checkpoint"]["shape_metadata"]["all_shapes"] == {"goal": [2], "position": [2]}


def test_a_checkpoint_of_robomimic(folder):
    fixtures = ROOT / "tests" / "policy" / "fixtures" / "robomimic"
    (folder / "robomimic.pth").write_bytes((fixtures / "bc.pth").read_bytes())
    recorded = np.load(fixtures / "bc.npz")
    policy, _ = policy_from_checkpoint(ckpt_path="robomimic.pth")
    obs = {key: recorded[f"seq/obs/{key}"][0] for key in policy.obs_keys}
    action = run("docs/from_robomimic.md", 0, obs=obs)["action"]
    assert np.allclose(action, recorded["seq/actions"][0], atol=1e-5)


def test_a_policy_of_lerobot(folder):
    recorded = load("tests/interop/lerobot/conftest.py").Recorded
    place = folder / "outputs" / "train" / "act" / "checkpoints" / "last" / "pretrained_model"
    place.parent.mkdir(parents=True)
    theirs = recorded("act_images_0.6.1", place)
    space = run("docs/from_lerobot.md", 0, **theirs.observation(0))
    assert np.allclose(space["action"], theirs.vectors["action"][0], atol=1e-4)


def test_a_policy_over_the_network(checkpoint):
    policy, _ = policy_from_checkpoint(ckpt_path=checkpoint, device="cpu")
    policy.start_episode()
    expected = policy(OBS)
    with PolicyServer(ServedPolicy(policy), port=0) as server:
        space = run("docs/deployment.md", 1, [("ws://127.0.0.1:8000", server.url)], obs=OBS)
    assert np.allclose(space["action"], expected)


def test_a_bundle(checkpoint):
    policy, _ = policy_from_checkpoint(ckpt_path=checkpoint, device="cpu")
    export_policy(policy, "lift.zip")
    policy.start_episode()
    expected = policy(OBS)
    assert np.allclose(run("docs/deployment.md", 2, obs=OBS)["action"], expected, atol=1e-5)


# ---- robots --------------------------------------------------------------------------------------


def test_the_outline_of_a_robot():
    assert run("docs/robots.md", 0)["Arm"]().limits.speed is not None


def test_a_robot_as_an_environment():
    space = run(
        "docs/robots.md",
        1,
        [("rate_hz=10)", "rate_hz=10, prepare=False)")],  # nobody is at the terminal of a test
        Arm=OWN_ROBOT.PointArm,
        action=np.zeros(2),
    )
    assert set(space["obs"]) == {"position", "goal", "camera_image"}
    assert space["terminated"] is False


def test_the_control_loop(checkpoint):
    space = run("docs/own_data.md", 2, [("steps=200", "steps=3")], MyArm=OWN_ROBOT.PointArm)
    assert space["report"].steps == 3


def test_a_person_who_takes_over():
    class Device:
        held = True

        def pressed(self):
            return self.held

        def action(self):
            return np.ones(2)

    hand = run("docs/interactive.md", 0, my_spacemouse=Device)["Hand"]()
    assert hand({}, np.zeros(2)).tolist() == [1.0, 1.0]
    hand.device.held = False
    assert hand({}, np.zeros(2)) is None


# ---- data ----------------------------------------------------------------------------------------


def test_a_file_is_read_in_batches(folder):
    OWN_DATA.record(OWN_DATA.PointRobot(seed=0), OWN_DATA.Teacher(), "own.hdf5", 3)
    (batch,) = run("docs/data.md", 0)["loader"]
    assert batch["obs"]["position"].shape[1:] == (10, 2)


def test_labels_of_rewards(folder):
    OWN_DATA.record(OWN_DATA.PointRobot(seed=0), OWN_DATA.Teacher(), "labelled.hdf5", 3)
    with h5py.File("labelled.hdf5", "r+") as file:
        del file["data/demo_0/rewards"]
        file["data/demo_1"].attrs["success"] = False
    run("docs/offline_rl.md", 0)
    with DatasetFile("labelled.hdf5") as file:
        returns = [file.read(demo, "rewards").sum() for demo in file.demos()[:2]]
    assert returns == [1, 0]


def test_an_instruction(folder):
    told = {}

    class Policy:
        def start_episode(self, lang):
            told["lang"] = lang

    run("docs/data.md", 1, policy=Policy())
    assert told["lang"] == "stack the red cube on the green one"


def test_a_recording_of_ones_own(folder):
    class Person(OWN_DATA.Teacher):
        def says(self, word):
            return word == "success"

    names = [f"demo_{i}" for i in range(4)]
    run(
        "docs/own_data.md",
        0,
        num_episodes=4,
        horizon=60,
        robot=OWN_DATA.PointRobot(seed=0),
        teacher=Person(),
        names_of_the_good_ones=names,
    )
    with DatasetFile("own.hdf5") as file:
        assert file.filter_keys() == {"train": names[:2], "valid": names[2:]}
        assert file.attrs("demo_0")["language"] == "push the point to the goal"


def test_recordings_of_another_layout(folder):
    with h5py.File("recorded.h5", "w") as file:
        for number in range(2):
            group = file.create_group(f"episode_{number}")
            group["joint_positions"] = np.arange(14.0).reshape(7, 2) + number
            group["camera"] = np.full((7, 8, 8, 3), number, np.uint8)
            group["command"] = np.full((7, 2), 0.1 * number)
    run("docs/own_data.md", 1)
    with DatasetFile("converted.hdf5") as file:
        assert file.read("demo_1", "obs/joints")[0].tolist() == [1, 2]
        assert file.read("demo_1", "obs/wrist_image")[6].max() == 1
        assert np.allclose(file.read("demo_1", "actions"), 0.1)
        assert file.read("demo_0", "terminals").tolist() == [0] * 6 + [1]
        assert file.read("demo_0", "rewards").tolist() == [0] * 6 + [1]


class Pendulums:
    """A model of Stable-Baselines3 after some steps in two copies of Pendulum: what the page uses of it.

    Its buffer is a ring of 500 steps of which the first 30 were overwritten: episodes of 200 steps end at the clock.
    """

    def __init__(self):
        self.replay_buffer = buffer = types.SimpleNamespace(
            buffer_size=500, pos=30, full=True, n_envs=2
        )
        random = np.random.default_rng(0)
        buffer.observations = np.zeros((500, 2, 3), np.float32)
        buffer.next_observations = np.zeros((500, 2, 3), np.float32)
        buffer.actions = np.zeros((500, 2, 1), np.float32)
        buffer.rewards = np.zeros((500, 2), np.float32)
        buffer.dones = np.zeros((500, 2), np.float32)
        buffer.timeouts = np.zeros((500, 2), np.float32)
        for copy in range(2):
            env = gym.make("Pendulum-v1")
            obs, _ = env.reset(seed=copy)
            for step in range(530):
                place, action = step % 500, random.uniform(-1, 1, 1).astype(np.float32)
                after, reward, terminal, timeout, _ = env.step(2 * action)
                buffer.observations[place, copy], buffer.next_observations[place, copy] = obs, after
                buffer.actions[place, copy], buffer.rewards[place, copy] = action, reward
                buffer.dones[place, copy], buffer.timeouts[place, copy] = (
                    terminal or timeout,
                    timeout,
                )
                obs = env.reset()[0] if timeout else after

    def predict(self, obs, deterministic):
        assert deterministic
        return np.clip(-obs[1:2], -2, 2), None


def test_demonstrations_of_a_model(folder):
    run("docs/from_sb3.md", 0, [("range(50)", "range(2)")], model=Pendulums())
    with DatasetFile("expert.hdf5") as file:
        assert len(file.demos()) == 2
        obs, actions = file.read("demo_1", "obs/flat"), file.read("demo_1", "actions")
        assert obs.shape == (200, 3)
        assert np.allclose(actions, -obs[:, 1:2])
        assert file.read("demo_1", "timeouts").tolist() == [0] * 199 + [1]


def test_demonstrations_of_a_replay_buffer(folder):
    run("docs/from_sb3.md", 1, model=Pendulums())
    env = gym.make("Pendulum-v1").unwrapped
    env.reset(seed=0)
    with DatasetFile("buffer.hdf5") as file:
        assert [file.length(demo) for demo in file.demos()] == [170, 200, 170, 200]
        for demo in file.demos():
            obs, after = file.read(demo, "obs/flat"), file.read(demo, "next_obs/flat")
            assert not file.read(demo, "terminals").any()
            for step in (0, 100, len(obs) - 1):
                cosine, sine, speed = obs[step]
                env.state = np.array([np.arctan2(sine, cosine), speed], dtype=np.float64)
                seen, reward, *_ = env.step(file.read(demo, "actions")[step])
                assert np.allclose(seen, after[step], atol=1e-5)
                assert np.isclose(reward, file.read(demo, "rewards")[step], atol=1e-4)


def test_a_loop_around_a_policy_of_di_engine():
    info = run("docs/from_other_rl.md", 0, [("[:64]", "[:8]")])["info"]
    assert len(info["priority"]) == 8


def test_a_policy_of_srl(checkpoint):
    result = run("docs/from_other_rl.md", 1)["result"]
    assert result.action.shape == (8, 2)


# ---- configuration, networks, tests, workers -----------------------------------------------------


def test_a_configuration():
    config = run("docs/reference/index.md", 0)["config"]
    assert (config.train.batch_size, config.train.seed) == (128, 2)


def test_an_encoder():
    core = run("docs/encoders.md", 0)["TouchCore"]((4, 4), width=8)
    assert core(torch.zeros(2, 4, 4)).shape == (2, *core.output_shape)


def test_a_network_of_named_steps():
    trunk = run("docs/encoders.md", 1)["trunk"]({"position": (2,), "goal": (2,)}, 2)
    assert trunk({"position": torch.zeros(5, 2), "goal": torch.ones(5, 2)}).shape == (5, 64)


def test_an_algorithm_of_two_slots(folder):
    """In a process of its own, since an algorithm is registered for good."""

    def work(say):
        run("docs/rl_with_demonstrations.md", 0)
        say(find("gail_sac").section.reward_source is GAILRewards)

    with Forked(work) as process:
        assert (process.rest(), process.code) == (["True"], 0)


def test_tests_of_ones_own_package():
    space = run("docs/environments.md", 1, [("my_package:MyEnv-v0", "CartPole-v1")])
    space["test_my_environment"]()
    assert callable(space["test_my_algorithm"])


def test_a_collection(folder, capsys):
    run(
        "docs/environments.md",
        0,
        [
            ('"Lift", "type": 1', '"metaworld:button-press-v3", "type": 2'),
            ("num=100, workers=2", "num=1, workers=1"),
        ],
        __name__="__main__",
    )
    assert capsys.readouterr().out.startswith("1.0 ")
    with DatasetFile("lift.hdf5") as file:
        assert file.demos() == ["demo_0"]


def prepare(reports):
    """The work of a crew: the length of the shared value, and the number of the item."""
    return lambda item: (len(item[0].get()), item[1])


def test_items_of_workers(capsys):
    run(
        "docs/cluster.md",
        0,
        [('open_backend("ray", cpus=2)', 'open_backend("local")'), ("range(1000)", "range(5)")],
        prepare=prepare,
        checkpoint_bytes=b"1234",
    )
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines == [f"{seed} (4, {seed})" for seed in range(5)]


# ---- all of them ---------------------------------------------------------------------------------

RUN = {
    "README.md": 1,
    "docs/cluster.md": 1,
    "docs/data.md": 2,
    "docs/deployment.md": 3,
    "docs/encoders.md": 2,
    "docs/environments.md": 2,
    "docs/from_lerobot.md": 1,
    "docs/from_other_rl.md": 2,
    "docs/from_robomimic.md": 1,
    "docs/from_sb3.md": 2,
    "docs/interactive.md": 1,
    "docs/offline_rl.md": 1,
    "docs/own_data.md": 3,
    "docs/reference/index.md": 2,
    "docs/rl_with_demonstrations.md": 1,
    "docs/robots.md": 2,
}
"""Number of blocks of each page that the tests above run."""


def test_no_block_is_left_out():
    found = {
        page: len(python_blocks(page))
        for page in PAGES
        if page not in ELSEWHERE and not page.startswith(OTHERS) and python_blocks(page)
    }
    assert found == RUN, "a page has other blocks: run them in a test above, then change RUN"
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())
