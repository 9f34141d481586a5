"""``imitate collect``, ``imitate dataset render``, and a policy of two collected tasks."""

import json

import numpy as np
import pytest

from imitate.cli.collect import _as_json, _as_text
from imitate.collect.collect import CollectionReport, collect
from imitate.collect.demonstrate import Plan
from imitate.collect.render import RenderReport
from imitate.data import DatasetFile
from imitate.envs.cameras import Camera
from imitate.policy.checkpoint import load_checkpoint
from imitate.policy.loading import policy_from_checkpoint
from imitate.system.run_folder import find_checkpoint
from imitate.system.seeding import seeded
from tests.tiny import tiny_checkpoint

BOUNDS = {"action_low": [-2.0], "action_high": [2.0]}


@pytest.mark.robosuite
@pytest.mark.slow("robosuite's demonstrator")
def test_one_demonstration_and_its_summary(call):
    """Written as by a person, who waits before the first motion."""
    report = call.json("collect --env Lift --num 1 --seed 4 --out lift.hdf5 --hold 2 --human-like")
    assert (report["demos"], report["solved"], report["success_rate"]) == (1, 1, 1.0)
    with DatasetFile("lift.hdf5") as file:
        assert file.length("demo_0") == report["steps"]
        assert file.read("demo_0", "terminals").sum() == 3
        assert file.filter_keys() == {"train": ["demo_0"]}
        assert (file.read("demo_0", "actions")[:5, :6] == 0.0).all()


@pytest.mark.robosuite
@pytest.mark.slow("robosuite's demonstrator")
def test_mixed_quality_with_dense_rewards(call):
    options = "--quality mixed --rewards dense --num 2 --horizon 20 --out mixed.hdf5"
    printed = call(f"collect --env Lift {options}").stdout
    assert "2 demonstrations (better 1, okay 1), 0 solve the task" in printed
    with DatasetFile("mixed.hdf5") as file:
        assert file.env_meta["env_kwargs"]["reward_shaping"] is True
        rewards = file.read("demo_0", "rewards")
        assert 0 < rewards.min() < rewards.max() < 1  # the nearer the hand, the more


@pytest.mark.slow("two workers of Meta-World")
def test_a_task_of_metaworld_by_two_workers(call):
    options = "--num 2 --workers 2 --env-kwargs '{\"reward_shaping\": true}' --out press.hdf5"
    printed = call(f"collect --env metaworld:button-press-v3 {options}").stdout
    assert "2 demonstrations (better 2), 2 solve the task" in printed
    with DatasetFile("press.hdf5") as file:
        assert file.env_meta["env_name"] == "metaworld:button-press-v3"
        assert file.env_meta["env_kwargs"] == {"reward_shaping": True}
        assert file.attrs("demo_0")["language"] == "press the button"
        assert 0 < file.read("demo_0", "rewards")[0] < 1


def test_the_rate_counts_what_was_recorded_now():
    report = CollectionReport("demos", demos=40, resumed=30, seconds=60.0)
    assert json.loads(_as_json(report))["demos_per_min"] == 10.0
    assert "60 s, 10 demonstrations/min" in _as_text(report, "demonstration")
    assert "demos: 40 episodes ()" in _as_text(report, "episode")


@pytest.mark.slow("collection, training and evaluation in Meta-World")
def test_a_policy_is_evaluated_in_each_of_its_tasks_with_its_instruction(call, tmp_path):
    tasks, data = ("button-press-v3", "reach-v3"), []
    for name in tasks:
        env_meta = {"env_name": f"metaworld:{name}", "type": 2, "env_kwargs": {}}
        collect(tmp_path / f"{name}.hdf5", Plan(env_meta, noise=0.0), num=1)
        with DatasetFile(f"{name}.hdf5") as file:
            assert file.control_freq == 80  # Meta-World's own, not said by env_kwargs
        data.append({"path": f"{name}.hdf5", "key": name})
    settings = {
        "train.data": data,
        "observation.modalities.obs.low_dim": ["hand_pos", "goal", "lang_emb"],
        "algo.actor_layer_dims": [8],
        "experiment.epoch_every_n_steps": 1,
        "experiment.rollout.enabled": False,
    }
    sets = [w for key, value in settings.items() for w in ("--set", f"{key}={json.dumps(value)}")]
    call("train --config metaworld/bc --epochs 1 --quiet", *sets)
    options = "--env all --episodes 2 --horizon 3 --workers 1 --out report.json"
    call(f"eval --agent runs/metaworld_bc {options}")
    played = json.loads((tmp_path / "report.json").read_text())["evaluations"]
    assert [(one["env"], one["episodes"]) for one in played] == [(name, 2) for name in tasks]
    learned = load_checkpoint(find_checkpoint(tmp_path / "runs/metaworld_bc"))["environments"]
    assert [env["lang"] for env in learned] == ["press the button", "reach the goal"]


def test_a_rendering_has_the_options_and_prints_its_report(call, monkeypatch):
    told = []

    def drawn(source, out, cameras, **options):
        told.append((str(source), str(out), cameras, options))
        resumed = int(options["resume"])
        return RenderReport(
            "images.hdf5", demos=1, resumed=resumed, lost={} if resumed else {"demo_1": "gone"}
        )

    monkeypatch.setattr("imitate.cli.dataset.render.draw", drawn)
    line = "dataset render lift.hdf5 --out images.hdf5 --size agentview=24x32 --storage jpeg"
    line += " --only-images --depth --jpeg-quality 80 --demos demo_0"
    assert "  lost             demo_1: gone" in call(line, code=1).stdout
    assert "1 demo, complete already" in call(f"{line} --resume").stdout
    source, out, cameras, options = told[0]
    assert (source, out) == ("lift.hdf5", "images.hdf5")
    assert cameras == (
        Camera("agentview", 24, 32, True),
        Camera("robot0_eye_in_hand", 84, 84, True),
    )
    wanted = {"storage": "jpeg", "jpeg_quality": 80, "keep_obs": False, "next_obs": False}
    assert {key: options[key] for key in wanted} == wanted and options["selection"].demos == [
        "demo_0"
    ]


@pytest.mark.robosuite
@pytest.mark.render
@pytest.mark.nightly
def test_one_demo_is_rendered_as_jpeg(call):
    lift = {"env_name": "Lift", "type": 1, "env_kwargs": {}}
    collect("lift.hdf5", Plan(lift, seed=4, horizon=3, keep_failures=True), num=1)
    line = "dataset render lift.hdf5 --out images.hdf5"
    assert "did you mean 'agentview'" in call(f"{line} --cameras agentvew", code=2).stderr
    line += " --size agentview=24x32 --storage jpeg --only-images"
    report = call.json(line)
    call(line, code=2)
    assert "1 demo, complete already" in call(f"{line} --resume").stdout
    assert report["keys"] == ["agentview_image", "robot0_eye_in_hand_image"]
    assert (report["demos"], report["steps"], report["images"]) == (1, 3, 6)
    with DatasetFile("images.hdf5") as file:
        assert file.obs_keys("demo_0") == report["keys"]
        assert file.shape("demo_0", "obs/agentview_image") == (3, 24, 32, 3)
        assert file.shape("demo_0", "obs/robot0_eye_in_hand_image") == (3, 84, 84, 3)
        assert file.storage("demo_0", "obs/agentview_image") == "jpeg"
        image = file.read("demo_0", "obs/agentview_image")[0]
    # the white table below, the darker wall and robot above
    assert np.mean(image[-6:]) > np.mean(image[:4]) + 40


def test_a_policy_records_its_own_episodes(call, tmp_path):
    """Failures are kept, no noise is added, and the seeds of episodes alone choose the content."""
    env = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}
    train = {"experiment": {"rollout": {"horizon": 6}}}
    path = tiny_checkpoint(
        tmp_path / "p.pth", "flow_policy", env=env, obs={"flat": 3}, shapes=BOUNDS, **train
    )
    printed = call("collect --agent p.pth --num 3 --seed 5 --out own.hdf5").stdout
    assert "3 episodes (policy 3), success unknown" in printed and "solved" not in printed
    call("collect --agent p.pth --num 3 --seed 5 --workers 2 --out again.hdf5")
    policy, _ = policy_from_checkpoint(ckpt_path=path)
    with DatasetFile("own.hdf5") as file, DatasetFile("again.hdf5") as again:
        assert [file.length(demo) for demo in file.demos()] == [6, 6, 6]
        assert file.success("demo_1") is None  # the environment reports none
        actions = [file.read(demo, "actions") for demo in file.demos()]
        for demo, taken in zip(file.demos(), actions, strict=True):
            np.testing.assert_array_equal(taken, again.read(demo, "actions"))
            obs = file.read(demo, "obs/flat")
            with seeded(int(file.attrs(demo)["seed"])):
                policy.start_episode()
                wanted = [policy({"flat": each}) for each in obs]
            np.testing.assert_allclose(taken, wanted, rtol=1e-5)
    assert not np.array_equal(actions[0], actions[1])
    call("collect --agent p.pth --num 1 --out moon.hdf5 --env-kwargs", '{"g": 1.6}')
    with DatasetFile("moon.hdf5") as file:
        assert file.env_meta["env_kwargs"] == {"g": 1.6}


def test_a_fall_of_the_pole_is_a_terminal_and_no_timeout(call, tmp_path):
    env = {"env_name": "InvertedPendulum-v5", "type": 2, "env_kwargs": {}}
    train = {"experiment": {"rollout": {"horizon": 300}}}
    path = tiny_checkpoint(tmp_path / "p.pth", "bc", env=env, obs={"flat": 4}, **train)
    call("collect --num 2 --out fallen.hdf5 --agent", path)
    with DatasetFile("fallen.hdf5") as file:
        for demo in file.demos():
            terminals, timeouts = (file.read(demo, key) for key in ("terminals", "timeouts"))
            assert np.flatnonzero(terminals).tolist() == [file.length(demo) - 1]
            assert not timeouts.any()


@pytest.mark.parametrize(
    ("options", "words"),
    [("--out x.hdf5", "--env is missing"), ("--out x.hdf5 --agent p --noise 1", "--noise is for")],
)
def test_what_an_agent_does_not_go_with(call, options, words):
    assert words in call(f"collect {options}", code=2).stderr
