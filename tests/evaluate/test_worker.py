"""Jobs that workers play: which episodes are missing, what becomes of lost ones, when a job is over."""

from types import SimpleNamespace as Words

import pytest

from imitate.crew import Lost
from imitate.errors import EnvError, EvaluationError, UserError
from imitate.evaluate.result import EpisodeResult
from imitate.evaluate.settings import EpisodePlan, EvalSettings
from imitate.evaluate.worker import EpisodePool, EpisodeWorker, RunningJob, failure


def episode(index, success=False):
    return EpisodeResult(index, index, success, 0.0, 5, success)


def job(*earlier, **settings):
    """A job of four episodes; notes the episodes that it is given."""
    made = Words(earlier=earlier, told=[], frames=[], on_frames=None, mode="processes", label="E")
    policy = Words(for_workers=lambda: "for workers")
    settings = EvalSettings(**{"episodes": 4, **settings})
    made.plan = EpisodePlan(policy, {"env_name": "E"}, "cpu", settings, 9, 3.0)
    made.teller = lambda on_episode: made.told.append
    return made


def test_the_missing_episodes_are_tasks_while_a_job_runs():
    given = job(episode(1, True))
    running = RunningJob(7, given, None)
    tasks = running.tasks()
    first = next(tasks)
    assert (first.number, first.index, first.plan.policy) == (7, 0, "for workers")
    assert next(tasks).index == 2
    for index in (0, 2, 3):
        assert not running.is_over
        running.note(index, episode(index))
    assert running.is_over and list(tasks) == []
    assert [each.index for each in given.told] == [0, 2, 3]
    assert [each.index for each in running.episodes()] == [0, 1, 2, 3]
    assert not running.is_reported
    assert running.reported() is running and running.is_reported and running.wall_s >= 0.0


def test_a_job_without_hope_is_over():
    running = RunningJob(0, job(episode(0), give_up_after=2), None)
    assert not running.is_over
    running.note(3, episode(3))
    assert not running.is_over
    running.note(1, episode(1))
    assert running.is_over
    assert [each.index for each in running.episodes()] == [0, 1]


def test_a_lost_episode_is_played_again_and_then_fails():
    given = job()
    running = RunningJob(0, given, None)
    died = Lost("died", died=True)
    assert running.note_loss(1, died)
    running.note(1, died)
    assert given.told == []
    assert running.note_loss(1, died)
    running.note(1, died)
    assert given.told[0].error == "environment 'E': died, in 2 tries"
    assert running.note_loss(0, died)
    assert not running.note_loss(2, died)  # the fourth, and none was played
    assert running.is_over
    with pytest.raises(EvaluationError, match="all 4 attempts"):
        running.episodes()


def test_an_error_of_the_work_ends_a_job():
    running = RunningJob(0, job(), None)
    first, second = EnvError("no such world"), EnvError("another")
    running.note(0, Lost("x", error=first))
    running.note(1, Lost("x", error=second))
    running.note(2, episode(2))
    assert running.is_over
    with pytest.raises(UserError) as caught:
        running.episodes()
    assert caught.value is first


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (Lost("r", died=True), "it died"),
        (Lost("r"), "the evaluation failed before an episode began: r"),
        (Lost("r", died=True, error=EnvError("own")), "own"),
    ],
)
def test_the_error_of_an_evaluation_without_episodes(lost, words):
    assert str(failure(lost, "it died")) == words


def test_frames_reach_the_video_of_a_job():
    given = job()
    RunningJob(0, given, None).take_frames("a")
    given.on_frames = given.frames.append
    RunningJob(0, given, None).take_frames("b")
    assert given.frames == ["b"]


class Crew:
    """Answers tasks with results in turn; notes what it is asked."""

    def __init__(self, *results):
        self.results, self.asked, self.limit = list(results), [], 2

    def as_completed(self, tasks, **words):
        self.asked.append(words)
        for task in tasks:
            yield Words(item=task, result=self.results.pop(0))


@pytest.fixture
def pool(monkeypatch):
    def make(*results):
        crew = Crew(*results)
        monkeypatch.setattr("imitate.evaluate.worker.Crew", lambda *given, **words: crew)
        monkeypatch.setattr("imitate.evaluate.worker.LocalBackend", lambda name: None)
        return EpisodePool(2), crew

    return make


def test_jobs_are_returned_as_they_end(pool):
    made, crew = pool(episode(0), episode(1), Lost("x", error=EnvError("broken")), episode(0))
    jobs = [job(episodes=2), job(*map(episode, range(4))), job(episodes=3), job(episodes=1)]
    over = list(made.run_all(jobs))
    assert [each.number for each in over] == [1, 0, 2, 3]
    assert [len(over[number].episodes()) for number in (0, 1, 3)] == [4, 2, 1]
    with pytest.raises(EnvError, match="broken"):
        over[2].episodes()
    assert crew.asked[0]["limits"].call_s == 3.0
    assert made.limit == 2
    made.limit = 1
    assert crew.limit == 1


def test_workers_are_processes_of_this_machine_unless_there_is_a_back_end(monkeypatch):
    made = []
    monkeypatch.setattr("imitate.evaluate.worker.Crew", lambda *given, **words: made.append(words))
    monkeypatch.setattr("imitate.evaluate.worker.LocalBackend", lambda name: f"local {name}")
    EpisodePool(2)
    EpisodePool(2, "cluster")
    assert made == [{"backend": "local imitate-episodes"}, {"backend": "cluster"}]


def test_a_worker_plays_tasks_with_one_runner_that_it_closes(monkeypatch):
    calls = []
    runner = Words(close=lambda: calls.append("closed"))
    monkeypatch.setattr("imitate.evaluate.worker.EpisodeRunner", lambda reports: runner)
    monkeypatch.setattr("torch.set_num_threads", calls.append)
    worker = EpisodeWorker("reports")
    assert worker(Words(play=lambda *given: given)) == (runner, "reports")
    worker.close()
    assert calls == [1, "closed"]


def test_a_job_in_lockstep_is_one_task(pool):
    made, crew = pool([episode(0), episode(1)], Lost("died", died=True))
    given = job()
    given.mode = "vector"
    assert [each.index for each in made.run(given)] == [0, 1]
    assert crew.asked[0]["tries"] == 1 and crew.asked[0]["limits"].call_s == 3.0
    crew.asked[0]["on_note"](None, episode(3))
    assert [each.index for each in given.told] == [3]
    with pytest.raises(EvaluationError, match="environment 'E': died"):
        made.run(given)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, None),
        (Lost("hung"), r"environment 'E': hung; to train without rollouts: "),
        (Lost("gone", begun=False), r"environment 'E': gone; a script that trains"),
        (Lost("x", error=EnvError("does not fit")), "does not fit"),
    ],
)
def test_an_environment_is_tried(pool, result, words):
    made, crew = pool(result)
    trial = Words(env_meta={"env_name": "E"})
    if words is None:
        made.try_env(trial, 5.0, lambda: False)
        assert crew.asked[0]["limits"].call_s == 5.0 and crew.asked[0]["tries"] == 1
        return
    with pytest.raises(EnvError, match=words):
        made.try_env(trial, 5.0, lambda: False)
