"""One policy in one environment: which settings fit, where it is played, what identifies and warns of it."""

from pathlib import Path

import pytest
import torch

from imitate.config.experiment import DEFAULT_HORIZON
from imitate.errors import EnvError, EvaluationError, UserError
from imitate.evaluate import job as module
from imitate.evaluate.job import (
    EvalJob,
    EvaluatedPolicy,
    default_workers,
    device_beside,
    subject_of,
)
from imitate.evaluate.result import EpisodeResult
from imitate.evaluate.settings import EpisodePlan, EvalSettings, Lateness
from imitate.policy.rollout_policy import RolloutPolicy
from tests.refusals import refused
from tests.tiny import tiny_algo, tiny_checkpoint

PENDULUM = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}
ROBOT = {"env_name": "robot:bench", "type": None}
TEAM = {"env_name": "pettingzoo:mpe2.simple_spread_v3", "type": 2}


def subject(weights=10, meta=PENDULUM, horizon=70, **more):
    return EvaluatedPolicy(Path("a.pth"), None, dict(meta), horizon, weights, **more)


def job(subject_=None, env_meta=None, **settings):
    return EvalJob(subject_ or subject(), env_meta, EvalSettings(**settings))


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    """Environments whose trust was checked; all are trusted."""
    seen = []
    monkeypatch.setattr(module, "check_trusted", seen.append)
    return seen


@pytest.fixture(scope="module")
def policy():
    return RolloutPolicy(tiny_algo())


def test_the_plan_of_a_job(checked):
    plan = job().plan
    assert checked == [PENDULUM]
    assert (plan.horizon, plan.step_timeout_s, plan.shown, plan.device) == (70, 60.0, 0, "cpu")
    assert (plan.env_meta, plan.frame_size, plan.camera) == (PENDULUM, 256, "agentview")
    plan = job(horizon=5, step_timeout_s=2.5, video="a.mp4", device="cuda:1", seed=3).plan
    assert (plan.horizon, plan.step_timeout_s, plan.shown, plan.device) == (5, 2.5, 0, "cuda:1")
    assert plan.seed_of(2) == 5 and plan.lang is None  # a GPU plays in lockstep, without video
    assert job(video="a.mp4", video_episodes=3).plan.shown == 3
    assert EvalJob(subject()).settings == EvalSettings()
    assert job(env_meta={**PENDULUM, "key": "own", "lang": "swing"}).label == "own"
    assert job(env_meta={**PENDULUM, "lang": "swing"}).plan.lang == "swing"


@pytest.mark.parametrize(
    ("weights", "meta", "settings", "mode"),
    [
        (50_000_000, PENDULUM, {}, "processes"),
        (50_000_001, PENDULUM, {}, "vector"),
        (10, PENDULUM, {"device": "cuda"}, "vector"),
        (10, PENDULUM, {"device": "cpu:0"}, "processes"),
        (10, PENDULUM, {"mode": "vector"}, "vector"),
        (10, PENDULUM, {"device": "cuda", "mode": "processes"}, "processes"),
        (10, PENDULUM, {"device": "cuda", "late": Lateness(5.0)}, "processes"),
        (10, PENDULUM, {"device": "cuda", "epsilon": 0.1}, "processes"),
        (10, ROBOT, {"device": "cuda"}, "processes"),
        (10, TEAM, {"device": "cuda"}, "processes"),
    ],
)
def test_the_mode(weights, meta, settings, mode):
    made = job(subject(weights, meta), **settings)
    assert made.mode == mode
    assert made.in_this_process == (meta is ROBOT)


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({}, False),
        ({"workers": 2}, True),
        ({"step_timeout_s": 1.0}, True),
        ({"workers": 2, "mode": "vector"}, False),
        ({"step_timeout_s": 1.0, "mode": "vector"}, True),
    ],
)
def test_worker_processes(settings, needed):
    assert job(**settings).needs_processes == needed
    if "mode" in settings:
        with refused("--mode vector plays all episodes in one process", error=EnvError):
            job(**settings).check_movable()
    else:
        job(**settings).check_movable()
    assert not job(subject(meta=ROBOT)).needs_processes
    with refused("robot:bench: is controlled by this process, so no worker", error=EnvError):
        job(subject(meta=ROBOT)).check_movable()


NAMES = {"a": "b"}


@pytest.mark.parametrize(
    ("meta", "settings", "words"),
    [
        ({}, {}, "a.pth: the checkpoint names no environment; give one with --env"),
        ({"env_name": "arm", "type": 4}, {}, "env_args['type'] is 4, a real robot"),
        ({"env_name": "No-v0", "type": 2}, {}, "No-v0"),
        (ROBOT, {"workers": 2}, "robot:bench is a single robot|(got 2 workers, mode auto)"),
        (ROBOT, {"mode": "vector"}, "robot:bench is a single robot|(got 1 workers, mode vector)"),
        (ROBOT, {"late": Lateness(5.0)}, "robot:bench: --latency-ms is for simulators"),
        (ROBOT, {"epsilon": 0.5}, "robot:bench: a robot takes no random actions"),
        (TEAM, {"mode": "vector"}, f"{TEAM['env_name']} has several agents: leave"),
        (TEAM, {"late": Lateness(5.0)}, "has several agents"),
        (TEAM, {"overlay": True}, "has several agents"),
        (TEAM, {"epsilon": 0.5}, "has several agents"),
    ],
)
def test_refused_jobs(meta, settings, words):
    with refused(words, error=UserError):
        job(subject(meta=meta), **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"step_timeout_s": 1.0}, "a policy object plays in this process, where a hanging"),
        ({"rename": NAMES}, "a policy object already has its names"),
        ({"precision": "bf16"}, "a policy object already has its precision"),
    ],
)
def test_settings_of_a_policy_object(policy, settings, words):
    with refused(words, error=UserError):
        job(policy, PENDULUM, **settings)
    with refused("a policy object needs env_meta", error=EnvError):
        job(policy)
    made = job(policy, PENDULUM)
    assert made.in_this_process and made.policy() is policy
    assert (made.plan.device, made.plan.horizon) == ("cpu", 10)
    assert made.subject.weights == sum(w.numel() for w in policy.algo.nets.parameters())
    assert subject_of(made.subject) is made.subject


def test_a_checkpoint_describes_its_policy(tmp_path):
    rollout = {"rollout": {"horizon": None}}
    found = subject_of(tiny_checkpoint(tmp_path / "a.pth", env=PENDULUM, experiment=rollout))
    assert found.file == found.path and found.policy is None
    assert found.horizon == DEFAULT_HORIZON == 400
    assert found.environments == (found.env_meta,) and found.obs_keys == ("s",)
    made = EvalJob(found, PENDULUM)
    assert found.weights == sum(w.numel() for w in made.policy().algo.nets.state_dict().values())
    plain = {"mode": "processes", "episodes": 50, "horizon": None, "seed": 0, "num_envs": None}
    same = {**plain, "terminate_on_success": True, "give_up_after": None, "late": None}
    same |= {"checkpoint": str(found.file.resolve()), "checkpoint_sha256": found.sha256}
    assert made.identity == {**same, "env_args": PENDULUM}
    more = {"workers": 3, "mode": "vector", "rename": NAMES, "precision": "bf16"}
    changed = {"mode": "vector", "num_envs": 3, "rename": NAMES, "precision": "bf16"}
    assert job(found, PENDULUM, **more).identity == {**made.identity, **changed}
    late = {"latency_ms": 5.0, "inference": "sync", "execute": None}
    assert job(found, PENDULUM, late=Lateness(5.0)).identity == {**made.identity, "late": late}
    assert job(found, PENDULUM, epsilon=0.5).identity == {**made.identity, "epsilon": 0.5}


def played(index, **more):
    return EpisodeResult(index, 40 + index, True, 1.0, 5, True, **more)


def test_episodes_are_taken_over_and_reported():
    kept, told = [], []
    made = job(video="a.mp4", video_episodes=2)
    made.resume([played(n) for n in range(4)], kept.append)
    assert [episode.index for episode in made.earlier] == [2, 3]
    made.teller(told.append)(played(5))
    made.teller(None)(played(6))
    assert ([e.index for e in kept], [e.index for e in told]) == ([5, 6], [5])
    assert made.on_frames is not None
    made.close()
    made.close()
    made = job(mode="vector")
    made.resume([played(0)], kept.append)
    made.teller(None)(played(7))
    assert made.earlier == () and len(kept) == 2 and made.on_frames is None
    made.close()


def test_the_result_and_its_warnings(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        module,
        "write_mosaic",
        lambda path, *rest, size: drawn.append((path, size)) or Path("b.mp4"),
    )
    episodes = [
        played(0, error="lost"),
        played(1, first_error="slow"),
        played(2, render_error="dark"),
        played(3, render_error="no"),
    ]
    made = job(subject(longest_demo=9), mode="vector", video="a.mp4", workers=2, seed=40)
    result = made.result(episodes, 2.5)
    assert result.warnings == (
        "episode 0 (seed 40) could not be played and counts as failed: lost",
        "episode 1 (seed 41) was played a second time, which counts; the first try: slow",
        "video incomplete or missing, rendering failed: dark",
        "no video: mode 'vector' renders none; use mode 'processes'",
    )
    found = (result.planned, result.horizon, result.seed, result.mode, result.workers)
    assert found == (50, 70, 40, "vector", 2)
    assert (result.wall_s, result.video, result.longest_demo) == (2.5, None, 9)
    assert result.checkpoint == "a.pth" and result.env_name == "Pendulum-v1"
    assert job().result([played(0)], 1.0).warnings == () and drawn == []
    assert job(video="a.mp4").result([played(0)], 1.0).video == "b.mp4" and drawn == [
        ("a.mp4", 256)
    ]
    assert job(mode="vector").result([played(0)], 1.0).warnings == ()
    with refused("no episode could be played: lost", error=EvaluationError):
        made.result(episodes[:1], 1.0)


def test_devices_and_workers(monkeypatch):
    cuda, cpu = torch.device("cuda:0"), torch.device("cpu")
    found = [device_beside(*words) for words in ((cuda, 5_000_000), (cuda, 5_000_001))]
    assert [*found, device_beside(cpu, 10**9)] == ["cpu", "cuda:0", "cpu"]
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: True)
    assert job(subject(5_000_001)).plan.device == "cuda"
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: False)
    assert job(subject(5_000_001)).plan.device == "cpu"
    for cores, episodes, workers in ((4, 9, 4), (4, 2, 2), (64, 99, 16), (4, 0, 1)):
        monkeypatch.setattr(module, "available_cores", lambda cores=cores: cores)
        assert default_workers(episodes) == workers


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"episodes": 0}, "episodes is 0, but must be at least 1"),
        ({"seed": -1}, "seed is -1, but must be at least 0"),
        ({"give_up_after": 0}, "give_up_after is 0, but must be at least 1"),
        ({"step_timeout_s": 0.0}, "step_timeout_s is 0.0, but must be above 0"),
        ({"step_timeout_s": float("nan")}, "step_timeout_s is nan"),
        ({"mode": "fast"}, "mode is 'fast', but must be one of auto, processes, vector"),
        ({"epsilon": -0.1}, "epsilon is -0.1, but must be between 0 and 1"),
        ({"epsilon": 1.01}, "epsilon is 1.01"),
        ({"epsilon": 0.1, "mode": "vector"}, "--epsilon needs --mode processes"),
        ({"epsilon": 0.1, "late": Lateness(1.0)}, "--epsilon needs --mode processes"),
        ({"late": Lateness(1.0), "mode": "vector"}, "--mode vector predicts for many"),
    ],
)
def test_settings(settings, words):
    with refused(words, error=UserError):
        EvalSettings(**settings)
    EvalSettings(1, 1, 0, 1, give_up_after=1, video_episodes=1, video_skip=1, epsilon=1.0)
    EvalSettings(step_timeout_s=0.5, epsilon=0.0, mode="vector")
    usual = EvalSettings()
    assert (usual.episodes, usual.seed, usual.workers, usual.mode) == (50, 0, 1, "auto")
    assert (usual.video_episodes, usual.video_skip, usual.overlay) == (9, 5, False)
    assert usual.terminate_on_success and usual.epsilon == 0.0 and Lateness(1.0).inference == "sync"
    plan = EpisodePlan(None, {}, "cpu", usual, 1, None)
    assert (plan.shown, plan.frame_size, plan.named) == (0, 256, ())
