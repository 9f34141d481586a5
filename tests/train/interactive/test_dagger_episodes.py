"""Supervised episodes of a round: their seeds, what is tried again and what ends the round."""

import logging
from types import SimpleNamespace as Words

import numpy as np
import pytest

from imitate.crew import Done, Limits, Lost
from imitate.errors import EnvError, RobotError, TrainingError, UserError
from imitate.train.interactive import supervision as module
from imitate.train.interactive.supervision import DiscardedError, Players, Scene, SupervisedPlayer
from tests.refusals import refused

SCENE = Scene({"env_name": "E"}, ("s", "front_image"), 5, 30, 4, "rounds")


@pytest.fixture
def player(monkeypatch):
    made = Words(envs=[], calls=[], errors=[])

    def make_env(meta, *, camera_names):
        made.envs.append(Words(meta=meta, cameras=camera_names, closed=[]))
        made.envs[-1].close = lambda env=made.envs[-1]: env.closed.append(1)
        return made.envs[-1]

    def supervised(env, policy, supervisor, **words):
        made.calls.append(words)
        if made.errors:
            raise made.errors.pop(0)
        return "episode"

    monkeypatch.setattr(module, "make_env", make_env)
    monkeypatch.setattr(module, "supervised_episode", supervised)
    made.player = SupervisedPlayer(SCENE)
    made.play = lambda **more: made.player.play(2, 7, None, None, states=True, **more)
    return made


def seed(attempt):
    return int(np.random.SeedSequence([5, 2, 7, attempt]).generate_state(1)[0]) % 2**31


def test_an_episode_has_its_own_seed(player):
    assert player.play() == "episode" and player.play(attempt=3) == "episode"
    words = {"horizon": 30, "hold_steps": 4, "round_number": 2, "states": True}
    assert player.calls == [{"seed": seed(0), **words}, {"seed": seed(3), **words}]
    (env,) = player.envs  # made once
    assert (env.meta, env.cameras) == ({"env_name": "E"}, ["front"])
    player.player.close()
    player.player.close()
    assert env.closed == [1]


def test_discarded_episodes_are_no_failures_and_failures_make_the_environment_again(player, caplog):
    player.errors = [*[DiscardedError()] * 11, ValueError("no contact")]
    with caplog.at_level(logging.INFO):
        assert player.play() == "episode"
    assert [call["seed"] for call in player.calls] == [seed(number) for number in range(13)]
    assert len(player.envs) == 2
    assert caplog.messages[0] == "round 2, episode 7: discarded by a person"
    assert "round 2, episode 7: ValueError: no contact" in caplog.messages[-1]


def test_ten_failures_end_the_round(player):
    player.errors = [ValueError("no contact")] * 9
    assert player.play() == "episode" and len(player.envs) == 10
    player.errors = [ValueError("no contact")] * 10
    words = "E: failed 10 times in a row in round 2 (ValueError: no contact"
    with refused(words, error=EnvError):
        player.play()


def test_faults_of_users_and_robots_end_it_at_once(player):
    player.errors = [UserError("no such key")]
    with refused("no such key", error=UserError):
        player.play()
    player.errors = [RobotError("the arm stopped")]
    words = "round 2, episode 7: the arm stopped; to resume, repeat the command for rounds"
    with refused(words, error=TrainingError):
        player.play()
    assert len(player.calls) == 2


def test_without_cameras_none_are_asked_for(player):
    other = SupervisedPlayer(Scene({}, ("s",), 0, 1, 0, ""))
    assert other.env().cameras is None


# ---- episodes of workers ---------------------------------------------------------------------------


def crew_of(results, made):
    """A crew whose results are given: of an item the next of its index, in the order in which items are taken."""

    class Crew:
        def __class_getitem__(cls, kinds):
            return cls

        def __init__(self, prepare, workers, **how):
            made.update(how, prepare=prepare, workers=workers, exits=[], items=[])

        def __exit__(self, *raised):
            made["exits"].append(raised)

        def as_completed(self, waiting):
            taken = True
            while taken:
                taken = list(waiting)
                made["items"] += [(item.index, item.attempt) for item in taken]
                for item in reversed(taken):
                    yield Done(0, item, results[item.index].pop(0))

    return Crew


@pytest.fixture
def crew(monkeypatch):
    """Plays episodes 2 to 5 of round 3 by a crew with these results."""

    def play(results, first=2, last=6, workers=1):
        made = {}
        monkeypatch.setattr(module, "Crew", crew_of(results, made))
        with Players(SCENE, "supervise", workers, backend="b", step_timeout_s=7.0) as players:
            made["episodes"] = []
            for episode in players.episodes(3, first, last, "c.pth", states=True):
                made["episodes"].append(episode)
        return made

    return play


def test_episodes_of_workers_come_in_their_order(crew):
    died = Lost("the worker died", died=True)
    made = crew({2: ["a"], 3: [died, died, "b"], 4: ["c"], 5: ["d"]})
    assert made["episodes"] == list("abcd")
    # two at a time are ahead of the one that is wanted
    assert made["items"] == [(2, 0), (3, 0), (3, 1), (4, 0), (3, 2), (5, 0)]
    assert (made["workers"], made["limits"], made["backend"]) == (1, Limits(call_s=7.0), "b")
    assert made["exits"] == [(None, None, None)]
    assert (made["prepare"].func, made["prepare"].args) == (
        module.prepared_episodes,
        (SCENE, "supervise"),
    )


def test_two_workers_are_four_episodes_ahead(crew):
    made = crew({number: [str(number)] for number in range(2, 8)}, last=8, workers=2)
    assert made["episodes"] == list("234567") and made["workers"] == 2
    assert made["items"] == [(number, 0) for number in range(2, 8)]
    died = Lost("the worker died", died=True)
    made = crew({**{n: [str(n)] for n in range(3, 8)}, 2: [died, "2"]}, last=8, workers=2)
    assert made["items"][:5] == [(2, 0), (3, 0), (4, 0), (5, 0), (2, 1)]


def test_an_episode_that_is_lost_ten_times_ends_the_round(crew, caplog):
    died = Lost("the worker died", died=True)
    assert crew({2: [*[died] * 9, "a"]}, last=3)["episodes"] == ["a"]
    assert caplog.messages[0] == (
        "E: round 3, episode 2: the worker died; played again with another seed"
    )
    words = "E: round 3, episode 2: the worker died; run imitate check-env to see the fault"
    with refused(words, error=EnvError):
        crew({2: [died] * 10}, last=3)


def test_faults_that_are_not_of_the_worker_end_the_round(crew):
    with refused("E: round 3, episode 2: a bug", error=EnvError):
        crew({2: [Lost("a bug")]}, last=3)
    with refused("no such key", error=UserError):
        crew({2: [Lost("a bug", error=UserError("no such key"))]}, last=3)


def test_a_worker_loads_a_policy_and_a_supervisor_for_each_round(monkeypatch):
    played, closed = [], []
    monkeypatch.setattr(
        SupervisedPlayer, "play", lambda self, *given, **more: played.append((*given, more))
    )
    monkeypatch.setattr(SupervisedPlayer, "close", lambda self: closed.append(1))
    loaded = []

    class Source:
        def load(self, device):
            loaded.append(device)
            return f"policy {len(loaded)}"

    work = module.prepared_episodes(SCENE, "supervisor of {}".format, lambda call: None)
    for number, index in ((1, 0), (1, 1), (2, 0)):
        work(module.Item(number, index, Source(), states=True, attempt=index))
    more = [{"states": True, "attempt": index} for index in (0, 1, 0)]
    assert played == [
        (1, 0, "policy 1", "supervisor of 1", more[0]),
        (1, 1, "policy 1", "supervisor of 1", more[1]),
        (2, 0, "policy 2", "supervisor of 2", more[2]),
    ]
    assert loaded == ["cpu", "cpu"]
    work.close()
    assert closed == [1]
