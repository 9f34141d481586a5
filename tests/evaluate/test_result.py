import math

import pytest

from imitate.evaluate.result import EpisodeLog, EpisodeResult, EvalResult


def result(lengths, *, successes=0, horizon=400, longest_demo=380):
    """An evaluation; the first episodes succeed."""
    episodes = tuple(
        EpisodeResult(i, i, i < successes, float(i < successes), length, i < successes)
        for i, length in enumerate(lengths)
    )
    return EvalResult(
        env_name="Can",
        checkpoint=None,
        episodes=episodes,
        planned=len(episodes),
        horizon=horizon,
        seed=0,
        mode="processes",
        workers=1,
        wall_s=1.0,
        longest_demo=longest_demo,
    )


def test_failures_that_end_by_the_clock_are_told_of_where_demonstrations_are_that_long():
    played = result([250] * 26 + [400] * 19 + [90] * 5, successes=26)
    assert played.horizon_note("--horizon ") == (
        "19 of 24 failures ended at the horizon of 400; demonstrations last up to 380 steps: --horizon 760"
    )
    assert played.to_dict()["out_of_time"] == 19


@pytest.mark.parametrize(
    "played",
    [
        result([400] * 10, longest_demo=90),
        result([400] * 10, longest_demo=None),
        result([400] * 4 + [90] * 6),
        result([250] * 10, successes=10),
        result([400] * 10, successes=10),
    ],
    ids=["short demos", "unknown", "fails otherwise", "all succeed", "succeed at the end"],
)
def test_nothing_is_said_where_the_horizon_is_not_the_reason(played):
    assert played.horizon_note("--horizon ") is None


# ---- the file of episodes ------------------------------------------------------------------------


def episode(index, **more):
    return EpisodeResult(index, 5 + index, True, 1.5, 7, False, **more)


def test_episodes_come_back_by_evaluation_and_a_cut_line_is_left_out(tmp_path):
    log = EpisodeLog(tmp_path / "deep" / "t.json")
    kept = [episode(0, cpu="a"), episode(3, first_error="died"), episode(1, frames=2)]
    log.add("one", kept[0])
    log.add("two", kept[1])
    log.add("one", episode(2, error="died twice"))
    log.add("one", kept[2])
    log.close(remove=False)
    assert log.path.name == "t.json.episodes"
    log.path.write_bytes(log.path.read_bytes() + b'{"evaluation": "one", "episode": {"ind')
    resumed = EpisodeLog(tmp_path / "deep" / "t.json")
    resumed.read()
    assert resumed.find("one") == (kept[0], kept[2]) and resumed.find("two") == (kept[1],)
    assert resumed.find("one")[0].cpu == "a" and resumed.find("three") == ()
    resumed.add("two", episode(4))
    resumed.close(remove=False)
    again = EpisodeLog(tmp_path / "deep" / "t.json")
    again.read()
    assert again.find("two") == (kept[1], episode(4)) and again.find("one") == (kept[0], kept[2])
    again.close(remove=True)
    assert not log.path.exists()


def test_numbers_that_json_has_not(tmp_path):
    log = EpisodeLog(tmp_path / "t.json")
    log.add("one", EpisodeResult(0, 0, False, math.nan, 3, False))
    log.close(remove=False)
    log.read()
    (found,) = log.find("one")
    assert math.isnan(found.episode_return)


def test_without_a_file_there_is_nothing(tmp_path):
    log = EpisodeLog(tmp_path / "t.json")
    log.read()
    log.close(remove=True)
    assert log.find("one") == () and list(tmp_path.iterdir()) == []
