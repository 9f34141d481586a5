"""Supervised episodes of a round: their seeds, what is tried again and what ends the round."""

import logging
from types import SimpleNamespace as Words

import numpy as np
import pytest

from imitate.errors import EnvError, RobotError, TrainingError, UserError
from imitate.train.interactive import dagger_episodes as module
from imitate.train.interactive.dagger_episodes import Scene, SupervisedPlayer
from imitate.train.interactive.supervision import DiscardedError
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
