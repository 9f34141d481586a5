"""Several checkpoints and environments with the same workers; the file of their results."""

import json
import os
from dataclasses import replace
from multiprocessing import active_children

import pytest

from imitate.errors import ConfigError, EnvError, EvaluationError
from imitate.evaluate.evaluate import EvalJob, EvalSettings, evaluate, evaluate_all
from imitate.evaluate.result import EvalResult, ResultsFile, result_from_dict
from imitate.evaluate.settings import Lateness
from tests.train.conftest import env_meta, write_expert

pytestmark = pytest.mark.usefixtures("importable_env")
SETTINGS = EvalSettings(episodes=3, horizon=30, seed=5, workers=2)
PATIENT_S = 8.0
"""Limit of a step where one hangs: the others, which do not, keep it on a busy machine too."""


def alone(place):
    """The result of a place by itself, in this process."""
    own = place.settings
    short = EvalSettings(own.episodes, own.horizon, own.seed, give_up_after=own.give_up_after)
    return evaluate(place.subject.file, place.plan.env_meta, short)


@pytest.mark.slow("five places, each also alone")
def test_each_place_has_the_result_that_it_has_alone_and_workers_are_kept(tmp_path):
    good, lazy = write_expert(tmp_path / "a.pth"), write_expert(tmp_path / "b.pth", gain=0.0)
    noisy = write_expert(tmp_path / "c.pth", noise=0.5)
    far = env_meta(impossible_at=[5, 6, 7])
    places = [
        EvalJob(good, env_meta(), SETTINGS),
        EvalJob(good, far, SETTINGS),
        EvalJob(lazy, env_meta(), replace(SETTINGS, give_up_after=1)),
        EvalJob(noisy, env_meta(), replace(SETTINGS, seed=7)),
        EvalJob(good, env_meta(), replace(SETTINGS, mode="vector")),
    ]
    before, workers, found, seen = set(active_children()), set(), {}, []
    for number, result in evaluate_all(places, workers=2, on_episode=seen.append):
        workers |= set(active_children()) - before
        found[number] = result
    assert sorted(found) == [0, 1, 2, 3, 4]
    for number, place in enumerate(places):
        assert found[number].episodes == alone(place).episodes, number
    assert found[2].gave_up and len(found[2].episodes) == 1
    assert len(workers) <= 2 and len(seen) >= 3 + 3 + 1 + 3 + 3
    assert set(active_children()) <= before


def test_places_that_fail_do_not_keep_others_from_being_played(tmp_path):
    good, settings = write_expert(tmp_path / "a.pth"), replace(SETTINGS, step_timeout_s=PATIENT_S)
    faults = ({"action_dim": 7}, {"die_at": [5, 6, 7]}, {"hang_in": "step", "hang_at": [6]}, {})
    places = [EvalJob(good, env_meta(**fault), settings) for fault in faults]
    found = dict(evaluate_all(places, workers=2))
    assert isinstance(found[0], EnvError) and "takes actions of 7" in str(found[0])
    assert isinstance(found[1], EvaluationError) and "exit code 7" in str(found[1])
    assert found[2].success == [True, False, True] and "step() did not" in found[2].warnings[0]
    assert found[3].episodes == alone(places[3]).episodes


def test_a_video_for_each_place(tmp_path):
    good = write_expert(tmp_path / "a.pth")
    short = replace(SETTINGS, episodes=1, video_episodes=1)
    places = [EvalJob(good, None, replace(short, video=tmp_path / f"{n}.mp4")) for n in range(2)]
    found = dict(evaluate_all(places, workers=1))
    assert [found[n].video for n in range(2)] == [str(tmp_path / f"{n}.mp4") for n in range(2)]
    assert all(os.path.getsize(result.video) for result in found.values())


# ---- the file ------------------------------------------------------------------------------------


def test_results_come_back_as_they_were(tmp_path):
    agent = write_expert(tmp_path / "a.pth")
    result = evaluate(agent, env_meta(raise_at=[1]), EvalSettings(episodes=3, horizon=30))
    late = replace(result, late=Lateness(150.0, "rtc"))
    for kept in (result, late):
        assert result_from_dict(json.loads(json.dumps(kept.to_dict()))) == kept


def test_an_entry_stands_for_the_same_checkpoint_environment_and_settings(tmp_path):
    agent, meta = write_expert(tmp_path / "a.pth"), env_meta()

    def same(meta=meta, **changes):
        return EvalJob(agent, meta, replace(SETTINGS, **changes)).identity

    assert same() == same(mode="processes")
    result = EvalResult("env", str(agent), (), 3, 30, 5, "processes", 2, 1.5)
    short = EvalSettings(episodes=1, horizon=9)
    result = replace(result, episodes=evaluate(agent, meta, short).episodes)
    file = ResultsFile(tmp_path / "t.json", resume=False)
    file.add(same(), result)
    with pytest.raises(ConfigError, match=r"t.json: another process is writing it"):
        ResultsFile(tmp_path / "t.json", resume=True)
    file.close(is_over=True)
    file = ResultsFile(tmp_path / "t.json", resume=True)
    assert file.find(same()) == result
    assert file.find(same(workers=7, video="v.mp4")) == result
    assert file.find(same(env_meta(action_dim=7))) is None
    assert file.find(same(late=Lateness(20.0))) is None
    for key, value in {
        "seed": 6,
        "episodes": 4,
        "horizon": 31,
        "mode": "vector",
        "precision": "int8",
        "epsilon": 0.1,
    }.items():
        assert file.find(same(**{key: value})) is None
    file.close(is_over=False)
    write_expert(agent, gain=1.0)
    file = ResultsFile(tmp_path / "t.json", resume=True)
    assert file.find(same()) is None
    file.close(is_over=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pth", "t.json"]
    with pytest.raises(ConfigError, match="continue it with --resume"):
        ResultsFile(tmp_path / "t.json", resume=False)
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(ConfigError, match="is not a table of evaluations"):
        ResultsFile(tmp_path / "other.json", resume=True)
