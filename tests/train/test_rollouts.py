"""Evaluations beside a training: their schedule, workers, files and lines, with an evaluation of a few lines."""

import io
import threading
from types import SimpleNamespace as Words

import pytest

from imitate.evaluate.result import EpisodeResult, EvalResult
from imitate.evaluate.worker import EvaluationCancelledError
from imitate.system.run_folder import create_run_folder
from imitate.train import evaluations as module
from imitate.train.console import Console
from imitate.train.evaluations import Rollouts


class Pool:
    """Worker processes that do nothing."""

    limit = None

    def __init__(self, workers):
        self.workers, self.ends, self.tried = workers, [], []

    def cancel(self):
        self.ends.append("cancel")

    def close(self):
        self.ends.append("close")

    def try_env(self, trial, timeout_s, stopped):
        self.tried.append((trial, timeout_s, stopped()))
        raise EvaluationCancelledError


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Builds evaluations of two environments; notes what is evaluated and recorded."""
    seen = Words(evaluated=[], recorded=[], pools=[], stream=io.StringIO(), clock=0.0, best=set())
    seen.gate, seen.error = None, None

    def pool(workers):
        seen.pools.append(Pool(workers))
        return seen.pools[-1]

    def evaluate(checkpoint, env_meta, settings, pool, on_episode):
        seen.evaluated.append((checkpoint.name, env_meta["env_name"], settings, pool))
        if seen.gate is not None:
            seen.gate.acquire()
        if seen.error is not None:
            raise seen.error
        seen.clock += 1.1172839
        if settings.video is not None:
            settings.video.parent.mkdir(exist_ok=True)
            settings.video.touch()
        episode = EpisodeResult(0, 3, False, 2.0, 50, False)
        on_episode(episode)
        seen.pulse = seen.made.pulse_words()
        words = {"planned": 1, "horizon": 50, "seed": 3, "mode": "processes", "workers": 1}
        more = {"warnings": ("slow",), "longest_demo": 40, "wall_s": 1.0}
        return EvalResult(env_meta["env_name"], None, (episode,), **words, **more)

    monkeypatch.setattr(module, "EpisodePool", pool)
    monkeypatch.setattr(module, "evaluate", evaluate)
    monkeypatch.setattr(module, "default_workers", lambda count: min(count, 4))
    monkeypatch.setattr(module.time, "perf_counter", lambda: seen.clock)
    folder = create_run_folder(tmp_path, "run")
    seen.videos = folder.videos

    def record(request, numbers):
        seen.recorded.append((request.epoch, request.step, numbers))
        return seen.best

    def candidate(epoch):
        path = tmp_path / f"{epoch}.pth"
        path.touch()
        return path

    def build(*, curriculum=None, keep_all_videos=False, render_video=True, **rollout):
        settings = {
            **{"n": 8, "num_workers": 0, "background": False, "horizon": 50, "seed": 3},
            **{"enabled": True, "terminate_on_success": True, "give_up_after": None},
            **{"step_timeout_s": 7.0, "warmstart": 0, "rate": 1},
        }
        experiment = Words(
            rollout=Words(**{**settings, **rollout}),
            video_skip=5,
            render_video=render_video,
            keep_all_videos=keep_all_videos,
        )
        metas = [{"env_name": "A"}, {"env_name": "B", "key": "B far"}]
        checkpoints = Words(candidate=candidate)
        words = (checkpoints, Console(seen.stream), record, curriculum)
        seen.made = Rollouts(experiment, folder, metas, *words)
        seen.files = lambda: sorted(path.name for path in tmp_path.glob("*.pth"))
        seen.shown = lambda: sorted(path.name for path in folder.videos.glob("*"))
        return seen.made, seen

    return build


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [
        ({"rate": 3}, [3, 6, 9]),
        ({"rate": 3, "warmstart": 3}, [6, 9]),
        ({"rate": 1, "warmstart": 7}, [8, 9]),
        ({"rate": 1, "enabled": False}, []),
    ],
)
def test_the_epochs_that_are_evaluated(make, settings, epochs):
    made, _ = make(**settings)
    assert [epoch for epoch in range(1, 10) if made.due(epoch)] == epochs


@pytest.mark.parametrize(
    ("settings", "workers", "limit", "shared"),
    [
        ({"num_workers": None, "background": True}, 4, 3, 3),
        ({"num_workers": None, "background": True, "n": 1}, 1, 1, 1),
        ({"num_workers": 2, "background": True}, 2, None, 2),
        ({"num_workers": None}, 4, None, 0),
        ({"num_workers": 0, "background": True}, None, None, 0),
        ({"num_workers": 2, "background": True, "enabled": False}, 2, None, 0),
    ],
)
def test_workers(make, settings, workers, limit, shared):
    made, seen = make(**settings)
    assert made.shared_workers == shared
    assert [(pool.workers, pool.limit) for pool in seen.pools] == (
        [] if workers is None else [(workers, limit)]
    )
    made.training_is_over()
    assert all(pool.limit == workers for pool in seen.pools)
    made.close()
    assert all(pool.ends == ["cancel", "close"] for pool in seen.pools)


def test_an_evaluation_at_once(make):
    made, seen = make()
    made.submit(3, 30)
    (first, a, settings, pool), (_, b, other, _) = seen.evaluated
    assert (first, a, b, pool) == ("3.pth", "A", "B", None)
    assert (settings.episodes, settings.horizon, settings.seed, settings.workers) == (8, 50, 3, 1)
    assert (settings.video_episodes, settings.video_skip, settings.step_timeout_s) == (4, 5, None)
    assert (settings.video.name, other.video.name) == ("epoch_3.mp4", "epoch_3_B_far.mp4")
    ((epoch, step, numbers),) = seen.recorded
    assert (epoch, step, numbers["Rollout/Return"]) == (3, 30, 2.0)
    assert numbers["Timing/Rollout_s"] == 2.235
    assert seen.pulse == "evaluating epoch 3: 2/16 episodes"
    assert seen.files() == [] and made.best_epoch is None and made.pending == set()
    lines = seen.stream.getvalue().splitlines()
    assert [line.partition(" ")[0] for line in lines] == [
        "epoch",
        "warning:",
        "note:",
        "epoch",
        "warning:",
    ]
    assert lines[0].startswith("epoch 3: A 0/1 succeed") and lines[1] == "warning: slow"
    assert lines[2].endswith("--set experiment.rollout.horizon=80")
    made.submit(4, 40)
    assert "note:" not in "\n".join(seen.stream.getvalue().splitlines()[5:])


@pytest.mark.parametrize("keep", [False, True])
def test_videos_of_the_best_and_the_latest_evaluation_are_kept(make, keep):
    made, seen = make(keep_all_videos=keep)
    seen.videos.mkdir(exist_ok=True)
    (seen.videos / "epoch_x.mp4").touch()
    for epoch, best in ((1, set()), (2, {"return", "best"}), (3, {"return"})):
        seen.best = best
        made.submit(epoch, epoch)
    assert made.best_epoch == 2 and list(made.latest) == [1, 2, 3]
    epochs = (1, 2, 3) if keep else (2, 3)
    names = [f"epoch_{n}{end}.mp4" for n in epochs for end in ("", "_B_far")]
    assert seen.shown() == sorted([*names, "epoch_x.mp4"])


def test_without_videos(make):
    made, seen = make(render_video=False)
    made.submit(1, 1)
    assert [settings.video for _, _, settings, _ in seen.evaluated] == [None, None]


def test_a_failed_evaluation_is_reported_and_a_cancelled_one_is_not(make):
    made, seen = make()
    seen.error = ValueError("no camera")
    made.submit(3, 30)
    assert made.failures == ["evaluation of epoch 3 failed: ValueError: no camera"]
    assert seen.stream.getvalue() == f"error: {made.failures[0]}\n"
    assert seen.files() == [] and seen.recorded == []
    seen.error = EvaluationCancelledError()
    made.submit(4, 40)
    assert len(made.failures) == 1 and seen.files() == ["4.pth"] and made.latest == {}


def test_a_newer_epoch_takes_the_place_of_one_that_waits(make):
    made, seen = make(num_workers=2, background=True)
    seen.gate = threading.Semaphore(0)
    for epoch in (1, 2, 3):
        made.submit(epoch, epoch)
    assert made.pending == {1, 3} and seen.files() == ["1.pth", "3.pth"]
    assert seen.stream.getvalue() == (
        "evaluation of epoch 2 skipped: epoch 1 is still evaluated, and epoch 3 is newer\n"
    )
    made.collect()
    assert seen.recorded == []
    seen.gate.release(4)
    while made.pending:
        made.collect(timeout_s=0.1)
    assert [epoch for epoch, _, _ in seen.recorded] == [1, 3]
    assert {settings.step_timeout_s for _, _, settings, _ in seen.evaluated} == {7.0}
    assert all(pool is seen.pools[0] for *_, pool in seen.evaluated)
    made.close()


def test_each_environment_is_tried_once(make):
    trial = Words(played=[])
    trial.play = lambda: trial.played.append(1)
    for settings, played, tried in (
        ({}, 1, None),
        ({"enabled": False}, 1, None),
        ({"num_workers": 2}, 1, [(trial, 7.0, False)]),
    ):
        made, seen = make(**settings)
        made.try_environments([trial])
        assert len(trial.played) == played
        assert tried is None or seen.pools[-1].tried == tried


def test_a_curriculum_chooses_the_environments(make):
    curriculum = Words(
        evaluated=({"env_name": "B"},), numbers=lambda results: {"Curriculum/Stage": 1.0}
    )
    made, seen = make(curriculum=curriculum)
    made.submit(1, 10)
    assert [name for _, name, _, _ in seen.evaluated] == ["B"]
    ((_, _, numbers),) = seen.recorded
    assert (numbers["Curriculum/Stage"], numbers["Rollout/Return"]) == (1.0, 2.0)
    assert seen.pulse == "evaluating epoch 1: 1/8 episodes"
