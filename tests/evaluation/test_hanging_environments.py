"""Environments that never return: their processes are replaced, their episodes are named and never count as success."""

import multiprocessing

import pytest

from imitate.errors import EnvError, EvaluationError
from imitate.evaluation.episode_pool import EpisodePool
from imitate.evaluation.evaluate import evaluate
from imitate.policy.loading import policy_from_checkpoint
from imitate.train.trainer import train
from tests.train.conftest import config_dict, env_meta, write_demos, write_expert

LIMIT_S = 2.0


@pytest.fixture(scope="module")
def pool(importable_env):
    with EpisodePool(2) as pool:
        yield pool


def hanging(tmp_path, where, once=False, **kwargs):
    if once:
        kwargs["hang_once_file"] = str(tmp_path / "hung")
    return write_expert(tmp_path / "expert.pth", env_meta(hang_in=where, **kwargs))


def test_an_episode_that_hangs_fails_by_name_and_the_others_go_on(tmp_path, pool):
    path = hanging(tmp_path, "step", hang_at=[1])
    result = evaluate(path, episodes=3, horizon=30, pool=pool, step_timeout_s=LIMIT_S)
    assert result.success == [True, False, True] and result.not_played == 1
    (warning,) = result.warnings
    assert "episode 1 (seed 1) could not be played and counts as failed" in warning
    assert "'point_mass:PointMass-v0': step() did not return within 2 s, in 2 tries" in warning


@pytest.mark.parametrize("where", ["reset", "render"])
def test_an_episode_that_hangs_once_is_played_again_and_that_is_told(tmp_path, pool, where):
    path = hanging(tmp_path, where, once=True, hang_at=[1])
    result = evaluate(
        path,
        episodes=3,
        horizon=30,
        pool=pool,
        step_timeout_s=LIMIT_S,
        video=tmp_path / "episodes.mp4",
    )
    assert result.success == [True] * 3 and result.not_played == 0
    assert result.warnings == (
        "episode 1 (seed 1) was played a second time, which counts; the first try: "
        f"{where}() did not return within 2 s",
    )
    assert result.episodes[1].to_dict()["first_error"].startswith(where)


def test_nothing_can_be_played_where_making_hangs_even_with_one_worker(tmp_path, importable_env):
    path = hanging(tmp_path, "make")
    before = set(multiprocessing.active_children())
    words = "all 4 attempts to play an episode failed; .* making the environment did not return within 1.5 s"
    with pytest.raises(EvaluationError, match=words):
        evaluate(path, episodes=9, workers=1, step_timeout_s=0.3)
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize("where", ["reset", "step"])
def test_lockstep(tmp_path, pool, where):
    """One copy of two hangs, in the episode of seed 2."""
    path = hanging(tmp_path, where, hang_at=[2])
    seen = []
    result = evaluate(
        path,
        episodes=4,
        horizon=30,
        mode="vector",
        workers=2,
        pool=pool,
        step_timeout_s=LIMIT_S,
        on_episode=seen.append,
    )
    assert result.success == [True, True, False, True] and result.not_played == 1
    assert "episode 2 (seed 2) could not be played and counts as failed" in result.warnings[0]
    assert f"{where}() did not return within 2 s, in 2 tries" in result.warnings[0]
    assert sorted(episode.index for episode in seen) == [0, 1, 2, 3]


def test_lockstep_in_this_process_and_making_in_a_worker(tmp_path, pool):
    once = evaluate(
        hanging(tmp_path, "step", once=True, hang_at=[1]),
        episodes=2,
        horizon=30,
        mode="vector",
        workers=2,
        pool=pool,
        step_timeout_s=LIMIT_S,
    )
    assert once.success == [True, True]
    assert "the first try: step() did not return within 2 s" in once.warnings[0]
    path = hanging(tmp_path, "make")
    with pytest.raises(EvaluationError, match="making the environment did not return within 1.5"):
        evaluate(path, episodes=2, mode="vector", workers=2, pool=pool, step_timeout_s=0.3)


def test_a_policy_at_hand_has_no_limit(tmp_path):
    policy, _ = policy_from_checkpoint(ckpt_path=write_expert(tmp_path / "expert.pth"))
    with pytest.raises(EnvError, match="leave step_timeout_s out, or give a checkpoint"):
        evaluate(policy, env_meta(), step_timeout_s=1.0)


def test_an_environment_that_exits_is_told_as_that(tmp_path, pool):
    path = write_expert(tmp_path / "expert.pth", env_meta(exit_at=[0, 1]))
    for where in ({"pool": pool}, {}):
        result = evaluate(path, episodes=3, horizon=30, **where)
        assert result.success == [False, False, True]
        assert "the environment or the policy called sys.exit(5)" in result.warnings[0]
    path = write_expert(tmp_path / "dying.pth", env_meta(die_at=list(range(9))))
    with pytest.raises(EvaluationError) as caught:
        evaluate(path, episodes=9, horizon=5, pool=pool)
    assert "its process died in reset() (exit code 7)" in str(caught.value)
    assert "__main__" not in str(caught.value)


def test_a_training_ends_although_its_evaluations_hang(tmp_path, importable_env):
    result = trained(tmp_path, env_meta(hang_in="step", hang_at=list(range(100000, 100008))))
    assert (result.status, result.exit_code) == ("finished", 1)
    (failure,) = result.results["evaluation_failures"]
    assert "step() did not return within 0.5 s" in failure


def test_an_environment_that_always_hangs_is_found_before_the_first_update(
    tmp_path, importable_env
):
    words = "step.. did not return within 0.5 s; to train without rollouts"
    with pytest.raises(EnvError, match=words):
        trained(tmp_path, env_meta(hang_in="step"))


def trained(tmp_path, meta):
    data = write_demos(tmp_path / "demos.hdf5", meta=meta)
    rollout = {"enabled": True, "n": 8, "rate": 9, "num_workers": 1, "step_timeout_s": 0.5}
    tree = config_dict(data, experiment={"rollout": rollout}, train={"num_epochs": 1})
    return train(tree, output_dir=tmp_path, quiet=True)
