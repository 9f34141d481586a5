"""Scheduling of evaluations: here or in workers, how many of them, in which order, and what a failure leaves."""

from types import SimpleNamespace

import pytest

import imitate.evaluate.evaluate as module
from imitate.errors import EnvError, EvaluationError, RobotError
from imitate.evaluate.evaluate import EvalSettings, evaluate, evaluate_all
from imitate.evaluate.result import EpisodeResult


def episode(index, success=False, error=None):
    return EpisodeResult(index, 100 + index, success, 0.0, 1, success, error=error)


class Job:
    """An evaluation whose result is the list of its episodes; ``calls`` has what happened to it."""

    in_this_process, mode, needs_processes, earlier = False, "processes", False, ()

    def __init__(self, subject=None, meta=None, settings=None, **own):
        self.subject, self.calls = subject, []
        settings = settings or EvalSettings(episodes=4)
        self.plan = SimpleNamespace(settings=settings, env_meta=meta, seed_of=lambda k: 100 + k)
        self.on_frames = "frames"
        vars(self).update(own)

    def policy(self, ckpt=None):
        self.calls.append(("policy", ckpt))
        return "policy"

    def teller(self, on_episode):
        return on_episode or (lambda episode: None)

    def result(self, played, wall_s):
        self.calls.append("result")
        if not played:
            raise EvaluationError("nothing played")
        assert wall_s >= 0
        return [one.index for one in played], wall_s

    def check_movable(self):
        if self.in_this_process:
            raise EnvError("only here")

    def close(self):
        self.calls.append("close")


class Runner:
    """Plays each episode at once, unless ``made.fails`` has an error for it."""

    def __init__(self, made):
        self.made = made

    def use_policy(self, policy):
        self.made.policy = policy

    def play(self, plan, index, on_frames):
        assert on_frames == "frames"
        if index in self.made.fails:
            raise self.made.fails[index]
        self.made.played.append(index)
        return episode(index)

    def close(self):
        self.made.closed += 1


@pytest.fixture
def world(monkeypatch):
    """Pools and episodes without environments; ``world.pools`` has the arguments of all pools."""
    made = SimpleNamespace(pools=[], ran=[], closed=0, played=[], fails={})

    class Pool:
        def __init__(self, workers, backend=None):
            made.pools.append((workers, backend))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            made.closed += 1

        def run(self, job, on_episode):
            made.ran.append((job, on_episode))
            return [episode(7)]

        def run_all(self, jobs, on_episode):
            made.queue, made.on_episode = jobs, on_episode
            for number in reversed(range(len(jobs))):
                yield SimpleNamespace(number=number, episodes=lambda: [episode(8)], wall_s=2.5)

    monkeypatch.setattr(module, "EpisodePool", Pool)
    monkeypatch.setattr(module, "EpisodeRunner", lambda: Runner(made))
    monkeypatch.setattr(module, "find_checkpoint", lambda agent: f"{agent}/best")
    monkeypatch.setattr(module, "load_checkpoint", lambda path: {"of": path})
    monkeypatch.setattr(module, "subject_in", lambda ckpt, path: (ckpt["of"], path))
    return made


def evaluated(monkeypatch, settings=None, pool=None, **own):
    """Evaluate a checkpoint; return its job and the result."""
    made = []

    def make(*given):
        made.append(Job(*given, **own))
        return made[-1]

    monkeypatch.setattr(module, "EvalJob", make)
    (indices, _) = evaluate("run", {"env_name": "x"}, settings, pool=pool, on_episode=print)
    return made[0], indices


@pytest.mark.parametrize(
    ("mode", "workers", "episodes", "size"),
    [("processes", 3, 5, 3), ("processes", 8, 5, 5), ("vector", 3, 5, 1)],
)
def test_workers_of_an_evaluation(world, monkeypatch, mode, workers, episodes, size):
    settings = EvalSettings(workers=workers, episodes=episodes)
    job, indices = evaluated(monkeypatch, settings, needs_processes=True, mode=mode)
    assert world.pools == [(size, None)] and world.closed == 1
    assert world.ran == [(job, print)] and indices == [7]
    assert job.calls == ["result", "close"]
    assert job.subject == ("run/best", "run/best") and job.plan.env_meta == {"env_name": "x"}


def test_an_evaluation_here_reads_its_checkpoint_once(world, monkeypatch):
    job, indices = evaluated(monkeypatch)
    assert job.calls == [("policy", {"of": "run/best"}), "result", "close"]
    assert (world.pools, world.policy, world.played) == ([], "policy", list(range(50)))
    assert indices == list(range(50)) and job.plan.settings == EvalSettings()


@pytest.mark.parametrize("here", [False, True])
def test_a_given_pool_plays_all_that_workers_can(world, monkeypatch, here):
    pool = module.EpisodePool("given")
    _, indices = evaluated(
        monkeypatch, EvalSettings(episodes=2), pool, in_this_process=here, needs_processes=not here
    )
    assert indices == ([0, 1] if here else [7])
    assert world.pools == [("given", None)]


def test_episodes_here_go_on_after_the_earlier_ones(world):
    job = Job(settings=EvalSettings(episodes=5), in_this_process=True, earlier=(episode(1),))
    heard = []
    ((number, (indices, wall_s)),) = evaluate_all([job], on_episode=heard.append)
    assert (number, indices) == (0, [0, 1, 2, 3, 4]) and wall_s < 60
    assert world.played == [one.index for one in heard] == [0, 2, 3, 4]
    assert job.calls.count("result") == 1 and ("policy", None) in job.calls


def test_episodes_here_are_given_up(world):
    settings = EvalSettings(episodes=9, give_up_after=3)
    ((_, (indices, _)),) = evaluate_all([Job(settings=settings, in_this_process=True)])
    assert indices == world.played == [0, 1, 2]


def test_a_robot_that_fails_ends_an_evaluation_whose_episodes_so_far_count(world, monkeypatch):
    world.fails = {2: RobotError("a motor is hot")}
    ended = []
    own = {"in_this_process": True, "result": lambda self, played, wall_s: ended.extend(played)}
    job = type("Robot", (Job,), own)(settings=EvalSettings(episodes=5))
    dict(evaluate_all([job]))
    assert [one.index for one in ended] == [0, 1, 2] and world.played == [0, 1]
    assert ended[2].error == "a motor is hot" and ended[2].seed == 102
    assert world.closed == 2  # the runner and the pool


def test_jobs_of_one_environment_follow_each_other_and_others_come_last(world):
    places = ["a", "b", "a", "c", "b", "a"]
    jobs = [Job(meta=place) for place in places]
    jobs[3].mode, jobs[4].in_this_process = "vector", True
    found = list(evaluate_all(jobs, workers=4, on_episode=print))
    assert world.pools == [(4, None)]
    assert [job.plan.env_meta for job in world.queue] == ["a", "a", "a", "b"]
    assert world.queue == [jobs[0], jobs[2], jobs[5], jobs[1]] and world.on_episode is print
    # Each comes with its own number, the slower ones last.
    assert [number for number, _ in found] == [1, 5, 2, 0, 3, 4]
    assert [result[0] for _, result in found] == [[8]] * 4 + [[7], [0, 1, 2, 3]]
    assert [result[1] for _, result in found[:4]] == [2.5] * 4
    assert world.ran == [(jobs[3], print)]
    assert all(job.calls[-1] == "close" for job in jobs)


def test_a_job_that_fails_leaves_the_others(world, monkeypatch):
    jobs = [Job(settings=EvalSettings(episodes=1), in_this_process=True) for _ in range(3)]
    monkeypatch.setattr(jobs[1], "policy", lambda ckpt=None: 1 / 0)
    jobs[0].result = lambda played, wall_s: jobs[0].check_movable()
    found = evaluate_all(jobs)
    number, error = next(found)
    assert number == 0 and isinstance(error, EnvError) and str(error) == "only here"
    with pytest.raises(ZeroDivisionError):  # an error of the program ends all
        next(found)
    assert all("close" in job.calls for job in jobs)
    assert world.pools == [(1, None)]


def test_a_back_end_plays_only_what_can_move(world):
    list(evaluate_all([Job()], workers=2, backend="cluster"))
    assert world.pools == [(2, "cluster")]
    jobs = [Job(), Job(in_this_process=True)]
    with pytest.raises(EnvError, match="only here"):
        list(evaluate_all(jobs, backend="cluster"))
    assert len(world.pools) == 1 and all(job.calls == ["close"] for job in jobs)
