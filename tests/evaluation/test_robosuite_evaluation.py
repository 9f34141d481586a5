"""A real simulator: Lift, a few steps."""

import pytest

from imitate.algo.factory import algo_factory
from imitate.config import load_config
from imitate.errors import EnvError
from imitate.evaluation.evaluate import evaluate
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy

SHAPES = {"robot0_eef_pos": (3,), "robot0_gripper_qpos": (2,), "object": (10,)}
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
    tree = {
        "algo_name": "bc",
        "algo": {"actor_layer_dims": [8]},
        "observation": {"modalities": {"obs": {"low_dim": list(SHAPES)}}},
    }
    config = load_config(tree)
    algo = algo_factory("bc", config, SHAPES, 7, "cpu")
    path = tmp_path / "untrained.pth"
    save_checkpoint(
        checkpoint_dict(
            algo, env_metadata=LIFT, shape_metadata={"action_low": [-1] * 7, "action_high": [1] * 7}
        ),
        path,
    )
    settings = {"episodes": 3, "horizon": 5, "seed": 2}
    here = evaluate(path, **settings)
    workers = evaluate(path, workers=2, **settings)
    assert here.lengths == [5, 5, 5]
    assert here.success == [False, False, False]
    assert len(set(here.returns)) == 3  # three initial states, with a shaped reward
    assert workers.episodes == here.episodes
    with pytest.raises(
        EnvError,
        match=r"gives observation 'object' of shape \(\d+,\), the checkpoint takes \(10,\)",
    ):
        evaluate(path, {**LIFT, "env_name": "Stack"}, **settings)


@pytest.mark.robosuite
@pytest.mark.render
def test_cameras_have_the_size_that_the_policy_was_trained_with():
    """The description of the environment knows of no camera."""
    tree = {
        "algo_name": "bc",
        "algo": {"actor_layer_dims": [8]},
        "observation": {"modalities": {"obs": {"low_dim": [], "rgb": ["frontview_image"]}}},
    }
    algo = algo_factory("bc", load_config(tree), {"frontview_image": (3, 24, 32)}, 7, "cpu")
    result = evaluate(RolloutPolicy(algo), LIFT, episodes=1, horizon=2)
    assert result.lengths == [2]
    assert result.episodes[0].error is None
