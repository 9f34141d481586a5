"""The same evaluations wherever the workers run: checkpoints and frames travel as values, losses are reported alike."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from imitate.crew.local import LocalBackend
from imitate.errors import CheckpointError, EnvError
from imitate.evaluate.evaluate import EvalJob, EvalSettings, evaluate, evaluate_all
from imitate.evaluate.worker import EpisodePool
from imitate.policy.checkpoint import checkpoint_from_bytes
from imitate.policy.loading import CheckpointFile, SentCheckpoint
from imitate.system.run_folder import find_checkpoint
from imitate.system.trust import trust_env
from tests.ray_cluster import MOSTLY_LOCAL, ONE_NODE
from tests.train.conftest import env_meta, write_expert

pytestmark = pytest.mark.usefixtures("importable_env")
SETTINGS = EvalSettings(episodes=12, horizon=30, seed=0, workers=2)


def played(backend, place, workers=2):
    ((_, outcome),) = evaluate_all([place], workers=workers, backend=backend)
    return outcome


@pytest.mark.slow("three processes play the same")
@pytest.mark.parametrize("backend", [*MOSTLY_LOCAL, ONE_NODE], indirect=True)
def test_the_same_episodes_and_the_same_video_wherever_they_are_played(tmp_path, backend):
    """With a policy that draws: its random numbers follow from the episode, not from the worker."""
    agent, videos = write_expert(tmp_path / "a.pth", noise=0.5), [tmp_path / "0.mp4"]
    filmed = {"video_episodes": 2, "video_skip": 1}
    here = evaluate(agent, None, EvalSettings(12, 30, video=videos[0], **filmed))
    for workers in (1, 2) if isinstance(backend, LocalBackend) else (2,):
        videos.append(tmp_path / f"{workers}.mp4")
        settings = replace(SETTINGS, video=videos[-1], **filmed)
        there = played(backend, EvalJob(agent, None, settings), workers)
        assert there.episodes == here.episodes
        assert [episode.frames > 0 for episode in there.episodes] == [True] * 2 + [False] * 10
        assert [episode.cpu for episode in there.episodes] == [here.episodes[0].cpu] * 12
        assert videos[-1].read_bytes() == videos[0].read_bytes()
    assert here.cpu_models and there.to_dict()["cpu_models"] == here.cpu_models


@pytest.mark.parametrize("backend", MOSTLY_LOCAL, indirect=True)
def test_dying_and_hanging_episodes_are_named_and_the_others_are_as_ever(tmp_path, backend):
    meta = env_meta(hang_in="step", hang_at=[7], die_at=[3])
    agent = write_expert(tmp_path / "a.pth", noise=0.5)
    found = played(backend, EvalJob(agent, meta, replace(SETTINGS, step_timeout_s=8.0)))
    sound = evaluate(agent, env_meta(), EvalSettings(episodes=12, horizon=30))
    assert [episode.index for episode in found.episodes if episode.error] == [3, 7]
    assert "its process died in reset() (exit code 7), in 2 tries" in found.episodes[3].error
    assert "step() did not return within 8 s, in 2 tries" in found.episodes[7].error
    for index in set(range(12)) - {3, 7}:
        assert found.episodes[index] == sound.episodes[index]


def test_an_episode_whose_worker_is_killed_once_is_played_again(tmp_path):
    meta = env_meta(die_at=[5], die_once_file=str(tmp_path / "died"))
    trust_env(meta)
    agent = write_expert(tmp_path / "a.pth")
    seen = []
    with closing(EvalJob(agent, meta, SETTINGS)) as job, EpisodePool(2) as pool:
        episodes = pool.run(job, seen.append)
    sound = evaluate(agent, env_meta(), EvalSettings(episodes=12, horizon=30))
    assert tuple(replace(episode, first_error=None) for episode in episodes) == sound.episodes
    assert "its process died in reset()" in episodes[5].first_error
    assert sorted(episode.index for episode in seen) == list(range(12))


@pytest.mark.parametrize(
    "start", ["forked_workers", pytest.param("spawned_workers", marks=pytest.mark.nightly)]
)
def test_workers_need_no_file(tmp_path, request, start):
    """The checkpoint is gone after the first episode, whose worker ends then."""
    request.getfixturevalue(start)
    agent = write_expert(tmp_path / "a.pth")
    meta = env_meta(die_at=[1], die_once_file=str(tmp_path / "died"))
    trust_env(meta)
    with closing(EvalJob(agent, meta, SETTINGS)) as job, EpisodePool(1) as pool:
        episodes = pool.run(job, lambda _: agent.unlink(missing_ok=True))
    assert all(episode.success for episode in episodes) and episodes[1].first_error


def test_a_checkpoint_by_its_bytes(tmp_path):
    agent = write_expert(tmp_path / "a.pth")
    sent = CheckpointFile(str(agent)).for_workers()
    assert isinstance(sent, SentCheckpoint) and sent.for_workers() is sent
    write_expert(agent, gain=0.0)
    assert CheckpointFile(str(agent)).for_workers().key != sent.key
    assert sent.load("cpu").algo.nets.state_dict().keys()
    missing = CheckpointFile(str(tmp_path / "no.pth"))
    assert missing.for_workers() is missing
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        missing.load("cpu")
    data = agent.read_bytes()
    assert checkpoint_from_bytes(data, agent)["algo_name"] == "bc"
    for broken in (data[:-100], b"", data.replace(b"algo_name", b"algo_nome", 1)):
        with pytest.raises(CheckpointError, match=f"^{agent}: "):
            checkpoint_from_bytes(broken, agent)


def test_a_policy_of_lerobot_travels_too():
    folder = Path(__file__).parents[1] / "interop/lerobot/fixtures/diffusion_state_ddim_0.6.1"
    source = CheckpointFile(str(find_checkpoint(folder / "pretrained")))
    sent, here = source.for_workers(), source.load("cpu")
    assert isinstance(sent, SentCheckpoint)
    there = sent.load("cpu")
    weights = there.algo.nets.state_dict()
    assert all(
        torch.equal(value, weights[key]) for key, value in here.algo.nets.state_dict().items()
    )


def test_data_of_a_real_robot_are_refused_before_processes_start(tmp_path):
    agent = write_expert(tmp_path / "a.pth")
    arm = {"env_name": "arm", "type": 4, "env_kwargs": {}}
    with pytest.raises(EnvError, match="is 4, a real robot.*--env"):
        EvalJob(agent, arm, SETTINGS)


def test_what_only_this_process_can_play_is_refused(tmp_path):
    agent = write_expert(tmp_path / "a.pth")
    for meta, settings, words in (
        ({"env_name": "robot:sim", "type": 4}, replace(SETTINGS, workers=1), "robot:sim.*--on"),
        (None, replace(SETTINGS, mode="vector"), "--mode vector plays all episodes in one process"),
    ):
        with pytest.raises(EnvError, match=words):
            list(evaluate_all([EvalJob(agent, meta, settings)], backend=LocalBackend()))


def test_episodes_that_were_played_before_are_not_played_again(tmp_path):
    agent, seen = write_expert(tmp_path / "a.pth"), []
    whole = evaluate(agent, settings=EvalSettings(episodes=4, horizon=30))
    settings = replace(SETTINGS, episodes=4)
    for earlier in (whole.episodes[1:3], whole.episodes):  # the second time nothing is left
        job = EvalJob(agent, None, settings)
        job.resume(earlier, seen.append)
        assert played(None, job).episodes == whole.episodes
        assert sorted(episode.index for episode in seen) == [0, 3]
    job = EvalJob(agent, None, replace(settings, video=tmp_path / "v.mp4", video_episodes=2))
    job.resume(whole.episodes, seen.append)
    assert job.earlier == whole.episodes[2:]
