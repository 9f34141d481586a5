"""A real simulator: Lift, a few steps."""

import pytest

from imitate.errors import EnvError
from imitate.evaluate.evaluate import EvalSettings, evaluate
from imitate.policy.rollout_policy import RolloutPolicy
from tests.tiny import tiny_algo, tiny_checkpoint

SHAPES = {"robot0_eef_pos": 3, "robot0_gripper_qpos": 2, "object": 10}
LIFT = {
    "env_name": "Lift",
    "type": 1,
    "env_kwargs": {
        "robots": ["Panda"],
        "control_freq": 20,
        "use_camera_obs": False,
        "has_offscreen_renderer": False,
        "reward_shaping": True,
    },
}


@pytest.mark.robosuite
@pytest.mark.nightly
def test_workers_and_this_process_agree_on_lift(tmp_path):
    path = tiny_checkpoint(tmp_path / "untrained.pth", env=LIFT, obs=SHAPES, action=7)
    settings = {"episodes": 3, "horizon": 5, "seed": 2}
    here = evaluate(path, settings=EvalSettings(**settings))
    workers = evaluate(path, settings=EvalSettings(workers=2, **settings))
    assert here.lengths == [5, 5, 5]
    assert here.success == [False, False, False]
    assert len(set(here.returns)) == 3  # three initial states, with a shaped reward
    assert workers.episodes == here.episodes
    with pytest.raises(
        EnvError,
        match=r"gives observation 'object' of shape \(\d+,\), but the checkpoint takes \(10,\)",
    ):
        evaluate(path, {**LIFT, "env_name": "Stack"}, EvalSettings(**settings))


@pytest.mark.robosuite
@pytest.mark.render
@pytest.mark.slow("draws the simulator")
def test_cameras_have_the_size_that_the_policy_was_trained_with():
    """The description of the environment knows of no camera."""
    algo = tiny_algo(obs={"frontview_image": (3, 40, 48)}, action=7)
    result = evaluate(RolloutPolicy(algo), LIFT, EvalSettings(episodes=1, horizon=2))
    assert result.lengths == [2]
    assert result.episodes[0].error is None
