import json
import math
from multiprocessing import active_children

import numpy as np
import pytest
import torch
from imageio.v2 import get_reader

from imitate.errors import CheckpointError, EnvError, UserError
from imitate.evaluate.evaluate import EvalSettings, evaluate
from imitate.evaluate.job import device_beside
from imitate.evaluate.result import EpisodeResult, EvalResult, hopeless, in_order, result_from_dict
from imitate.evaluate.worker import EpisodePool
from imitate.policy.loading import policy_from_checkpoint
from imitate.system.run_folder import to_json
from tests.tiny import tiny_checkpoint
from tests.train.conftest import env_meta, write_expert

pytestmark = pytest.mark.usefixtures("importable_env")


@pytest.fixture(scope="module")
def pool(importable_env):
    """Two workers for the whole module: starting one takes seconds."""
    with EpisodePool(2) as pool:
        yield pool


@pytest.fixture
def expert(tmp_path):
    return write_expert(tmp_path / "expert.pth")


def play(agent, pool=None, **settings):
    return evaluate(agent, settings=EvalSettings(**settings), pool=pool)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"episodes": 0}, "episodes is 0, but must be at least 1"),
        ({"seed": -1}, "seed is -1, but must be at least 0"),
        ({"step_timeout_s": 0.0}, "step_timeout_s is 0.0, but must be above 0"),
        ({"mode": "fast"}, "mode is 'fast', but must be one of auto, processes, vector"),
        ({"epsilon": 1.5}, "epsilon is 1.5, but must be between 0 and 1"),
        ({"epsilon": 0.5, "mode": "vector"}, "--epsilon needs --mode processes"),
    ],
)
def test_settings_out_of_their_range_are_refused(settings, words):
    with pytest.raises(UserError, match=words):
        EvalSettings(**settings)


def test_a_good_policy_succeeds_and_the_episodes_are_those_of_the_seeds(expert):
    result = play(expert, episodes=3, horizon=30, seed=5)
    assert (result.success, result.seeds) == ([True, True, True], [5, 6, 7])
    assert result.returns == [1.0, 1.0, 1.0]
    # The network ends in tanh.
    for seed, length in zip(result.seeds, result.lengths, strict=True):
        pos, goal = np.random.Generator(np.random.PCG64(seed)).uniform(-0.5, 0.5, (2, 2))
        steps = 0
        while np.linalg.norm(pos - goal) >= 0.05:
            pos = pos + 0.1 * np.tanh(4 * (goal - pos))
            steps += 1
        assert length == steps
    # Wilson interval of 3 of 3.
    assert result.rate.interval == (pytest.approx(0.4385, abs=1e-4), 1.0)


def test_random_actions_keep_a_good_policy_from_its_goal(expert):
    settings = {"episodes": 4, "horizon": 12, "seed": 5}
    good, noisy, random = (play(expert, epsilon=x, **settings) for x in (0.0, 0.3, 1.0))
    assert good.success == [True] * 4
    assert sum(random.success) < 2 and noisy.lengths != good.lengths
    assert play(expert, epsilon=0.3, **settings).lengths == noisy.lengths  # the seeds decide


def test_episodes_do_not_end_at_success_when_told_so(expert):
    result = play(expert, episodes=1, horizon=30, terminate_on_success=False)
    assert (result.lengths, result.success) == ([30], [True])
    assert result.returns[0] > 5


@pytest.mark.slow("episodes to their end, in three ways")
def test_a_success_that_does_not_last_is_told_from_one_that_does(tmp_path):
    hasty = write_expert(tmp_path / "hasty.pth", gain=30.0)
    settings = {"episodes": 8, "horizon": 30, "seed": 0, "terminate_on_success": False}
    passed, stayed = [], []
    for seed in range(8):
        pos, goal = np.random.Generator(np.random.PCG64(seed)).uniform(-0.5, 0.5, (2, 2))
        near = []
        for _ in range(30):
            pos = pos + 0.1 * np.tanh(30 * (goal - pos))
            near.append(bool(np.linalg.norm(pos - goal) < 0.05))
        passed.append(any(near))
        stayed.append(near[-1])
    assert sum(passed) > sum(stayed)
    for mode in ("processes", "vector"):
        result = play(hasty, mode=mode, workers=1 if mode == "processes" else 2, **settings)
        assert result.success == passed
        assert [episode.success_at_end for episode in result.episodes] == stayed
        assert result.to_dict()["success_rate_at_end"] == pytest.approx(sum(stayed) / 8)
    ended = play(hasty, **{**settings, "terminate_on_success": True})
    assert [episode.success_at_end for episode in ended.episodes] == passed


@pytest.mark.parametrize("mode", ["processes", "vector"])
def test_success_that_is_not_reported_is_unknown(tmp_path, mode):
    silent = write_expert(tmp_path / "silent.pth", env_meta(silent=True))
    result = play(silent, mode=mode, episodes=2, horizon=12, give_up_after=1)
    assert (result.success, result.rate, result.lengths) == ([None] * 2, None, [12, 12])
    assert (result.out_of_time, result.ended_by_env, result.gave_up) == (0, None, False)
    entry = json.loads(to_json(result.to_dict()))
    unknown = ("successes", "success_rate", "success_rate_95", "success_rate_at_end")
    assert {entry[key] for key in unknown} == {entry["per_episode"][0]["success"]} == {None}
    assert result_from_dict(entry).episodes == result.episodes


def test_one_known_success_makes_the_others_failures_and_lost_episodes_have_no_return():
    def made(*episodes):
        found = [
            EpisodeResult(i, i, success, total, 5, success, error=error)
            for i, (success, total, error) in enumerate(episodes)
        ]
        return EvalResult("Hopper-v5", None, tuple(found), len(found), 10, 0, "processes", 1, 0.0)

    lost = (False, 0.0, "gone")
    result = made((True, 3.0, None), (None, 5.0, None), lost)
    assert result.rate == (1, 3) and result.over_episodes[:1] == (4.0,)
    silent = made((None, 1607.0138475, None), lost)
    assert silent.rate is None and silent.d4rl_score == pytest.approx(50.0)
    assert made(lost).rate == (0, 1) and math.isnan(made(lost).mean_return)


@pytest.mark.slow("the same episodes in three ways")
def test_workers_here_and_lockstep_agree(expert, pool):
    settings = {"episodes": 5, "horizon": 30, "seed": 11}
    here = play(expert, **settings)
    workers = play(expert, pool=pool, **settings)
    lockstep = play(expert, workers=2, mode="vector", **settings)
    assert workers.episodes == here.episodes
    assert lockstep.episodes == here.episodes


def test_a_sampling_policy_gives_the_same_episodes_with_any_number_of_workers(tmp_path, pool):
    path = write_expert(tmp_path / "noisy.pth", noise=0.5)
    here = play(path, episodes=4, horizon=10, seed=3)
    workers = play(path, pool=pool, episodes=4, horizon=10, seed=3)
    assert here.episodes == workers.episodes
    other = play(path, episodes=4, horizon=10, seed=4)
    assert [e.length for e in here.episodes[1:]] == [e.length for e in other.episodes[:3]]


def test_evaluation_leaves_generators_and_threads_alone(expert):
    torch.manual_seed(0)
    np.random.seed(0)
    play(expert, episodes=1, horizon=3)
    after = torch.rand(1).item(), np.random.rand()
    torch.manual_seed(0)
    np.random.seed(0)
    assert after == (torch.rand(1).item(), np.random.rand())


def test_a_policy_object_plays_in_this_process(expert):
    policy, _ = policy_from_checkpoint(device="cpu", ckpt_path=expert)
    result = evaluate(policy, env_meta(), EvalSettings(episodes=2, horizon=30))
    assert result.rate.successes == 2 and result.checkpoint is None
    with pytest.raises(EnvError, match="env_meta"):
        play(policy, episodes=2)


def test_a_run_folder_stands_for_its_best_checkpoint(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    write_expert(tmp_path / "checkpoints" / "last.pth", gain=0.0)
    assert play(tmp_path, episodes=1, horizon=5).checkpoint.endswith("last.pth")
    write_expert(tmp_path / "checkpoints" / "best.pth")
    assert play(tmp_path, episodes=1, horizon=5).checkpoint.endswith("best.pth")
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        evaluate(tmp_path / "nothing.pth")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_hopeless_evaluation_is_given_up_with_the_same_count(tmp_path, pool, workers):
    path = write_expert(tmp_path / "bad.pth", env_meta(impossible_at=[0, 1, 2, 3]))
    result = play(path, pool=pool if workers > 1 else None, episodes=12, horizon=3, give_up_after=3)
    assert len(result.episodes) == 3
    assert result.gave_up
    assert result.to_dict()["planned_episodes"] == 12


def test_what_hopeless_means():
    def episode(index, success):
        return EpisodeResult(index, index, success, 0.0, 1, success)

    failed = {i: episode(i, False) for i in (0, 1, 5)}
    assert not hopeless(failed, None) and hopeless(failed, 2)
    assert not hopeless(failed, 3)
    assert [e.index for e in in_order(failed, 2)] == [0, 1]
    assert not hopeless({0: episode(0, True), 1: episode(1, False)}, 2)


def test_a_pool_keeps_its_workers(expert):
    others = set(active_children())
    with EpisodePool(1) as pool:
        first = play(expert, pool=pool, episodes=2, horizon=30)
        (worker,) = set(active_children()) - others
        again = play(expert, pool=pool, episodes=2, horizon=30, workers=2)
        assert set(active_children()) - others == {worker}
    assert first.episodes == again.episodes
    assert worker.exitcode == 0


def test_an_environment_that_cannot_render_says_so(tmp_path):
    name = "imitate.envs.worlds.tasks:RecallContinuous-v0"
    env = {"env_name": name, "type": 2, "env_kwargs": {}}
    policy = tiny_checkpoint(tmp_path / "a.pth", obs={"flat": 2}, env=env)
    result = play(policy, episodes=2, horizon=2, video=tmp_path / "m.mp4")
    (warning,) = result.warnings
    assert f"rendering failed: {name} cannot render: omit the video" in warning


def test_a_video_shows_the_first_episodes(expert, tmp_path):
    video = tmp_path / "v" / "m.mp4"
    filmed = {"video": video, "video_episodes": 2, "video_skip": 2}
    result = play(expert, episodes=3, horizon=30, **filmed)
    assert result.video == str(video)
    assert [e.frames > 0 for e in result.episodes] == [True, True, False]
    # Frame at step 0, each second step, and the last one.
    assert result.episodes[0].frames == 1 + -(-result.lengths[0] // 2)
    with get_reader(result.video) as reader:
        frames = [np.asarray(frame) for frame in reader]
    assert frames[0].shape == (268, 536, 3)
    red, green, blue = frames[-1][2, 100].astype(int)
    assert green > 120 > red and green > blue + 60
    assert list(video.parent.iterdir()) == [video]


@pytest.mark.parametrize(
    ("learns_on", "weights", "acts_on"),
    [
        ("cpu", 6_000_000, "cpu"),
        ("cuda:1", 5_000_000, "cpu"),
        ("cuda:1", 5_000_001, "cuda:1"),
        ("mps", 6_000_000, "cpu"),
    ],
)
def test_evaluations_of_a_training_act_beside_it(learns_on, weights, acts_on):
    assert device_beside(torch.device(learns_on), weights) == acts_on
