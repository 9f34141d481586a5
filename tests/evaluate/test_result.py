import math

import pytest

from imitate.crew import Lost
from imitate.errors import ConfigError, EvaluationError, FileError
from imitate.evaluate import result as results
from imitate.evaluate.result import (
    EpisodeLog,
    EpisodeResult,
    EvalResult,
    LostEpisodes,
    ResultsFile,
    failed_episode,
    hopeless,
    in_order,
    result_from_dict,
    timed,
)
from imitate.evaluate.settings import EpisodePlan, EvalSettings, Lateness
from imitate.system.statistics import estimate
from tests.refusals import refused


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
        result([400] * 10, longest_demo=239),
        result([400] * 10, longest_demo=None),
        result([400] * 4 + [90] * 6),
        result([250] * 10, successes=10),
        result([400] * 10, successes=10),
    ],
    ids=["short demos", "unknown", "fails otherwise", "all succeed", "succeed at the end"],
)
def test_nothing_is_said_where_the_horizon_is_not_the_reason(played):
    assert played.horizon_note("--horizon ") is None


def test_half_of_the_failures_and_demonstrations_of_sixty_percent_are_enough():
    words = result([400] * 5 + [90] * 5, longest_demo=240).horizon_note("-H ")
    assert words == (
        "5 of 10 failures ended at the horizon of 400; demonstrations last up to 240 steps: -H 480"
    )


PLAN = EpisodePlan(None, {"env_name": "Can"}, "cpu", EvalSettings(seed=5), 10, None)
GONE = failed_episode(PLAN, 2, "died")


def played(*episodes, **more):
    words = {"planned": len(episodes), "horizon": 10, "seed": 5, "mode": "processes", "workers": 2}
    return EvalResult("Can", "a.pth", episodes, **{**words, "wall_s": 1.5, **more})


def test_a_result_by_hand():
    late = Lateness(20.0, "async", 3)
    found = played(
        EpisodeResult(0, 5, True, 2.0, 5, False, cpu="b"),
        EpisodeResult(1, 6, False, 4.0, 10, False, cpu="a"),
        GONE,
        planned=4,
        late=late,
        warnings=("slow",),
    )
    assert (found.returns, found.lengths, found.seeds) == ([2.0, 4.0, 0.0], [5, 10, 0], [5, 6, 7])
    assert found.over_episodes == estimate([2.0, 4.0]) and found.success == [True, False, False]
    saved = found.to_dict()
    low, high = found.rate.interval
    assert {key: value for key, value in saved.items() if key != "per_episode"} == {
        **{"env": "Can", "checkpoint": "a.pth", "episodes": 3, "planned_episodes": 4},
        **{"successes": 1, "success_rate": 1 / 3, "success_rate_95": [low, high]},
        **{"success_rate_at_end": 0.0, "mean_return": 3.0, "return_std": math.sqrt(2)},
        **{"mean_return_95": list(found.over_episodes[1:3]), "mean_length": 5.0, "horizon": 10},
        **{"out_of_time": 1, "longest_demo": None, "seed": 5, "mode": "processes", "workers": 2},
        **{"cpu_models": ["a", "b"], "latency_ms": 20.0, "inference": "async", "execute": 3},
        **{"wall_s": 1.5, "video": None, "gave_up": True, "not_played": 1, "warnings": ["slow"]},
    }
    assert saved["per_episode"][1:] == [
        {
            **{"index": 1, "seed": 6, "success": False, "episode_return": 4.0, "length": 10},
            **{"success_at_end": False, "frames": 0, "cpu": "a"},
        },
        {
            **{"index": 2, "seed": 7, "success": False, "episode_return": 0.0, "length": 0},
            **{"success_at_end": False, "frames": 0, "error": "died"},
        },
    ]
    assert result_from_dict(saved) == found
    assert result_from_dict({**played(GONE).to_dict(), "seed": 5}).late is None


def test_what_is_unknown_of_a_result():
    unknown = played(EpisodeResult(0, 5, None, 1.0, 3, None), GONE)
    assert unknown.rate is unknown.success_rate is unknown.success_rate_at_end is None
    assert (unknown.out_of_time, unknown.ended_by_env, unknown.mean_return) == (0, None, 1.0)
    lost = played(GONE)
    assert (lost.success_rate, lost.out_of_time, lost.gave_up) == (0.0, 0, False)
    assert math.isnan(lost.mean_return) and lost.over_episodes[1:] == (None, None, None, 0)
    same = played(
        EpisodeResult(0, 5, True, 1.0, 3, True), EpisodeResult(1, 6, False, 0.0, 3, False)
    )
    assert same.repeats_success and same.over_episodes == (0.5, None, None, None, 2)
    wide = played(*(EpisodeResult(n, n, True, x, 3, True) for n, x in enumerate((1.0, math.inf))))
    assert wide.over_episodes == (math.inf, None, None, None, 2)


@pytest.mark.parametrize(
    ("lengths", "ended"), [([7, 6], 7), ([9], 9), ([10, 3], None), ([11], None), ([], None)]
)
def test_failures_that_the_environment_ended(lengths, ended):
    episodes = [EpisodeResult(n, n, False, 0.5, x, False) for n, x in enumerate(lengths)]
    found = played(EpisodeResult(9, 9, True, 2.0, 4, True), GONE, *episodes)
    assert found.ended_by_env == ended
    assert found.out_of_time == sum(length >= 10 for length in lengths)


def test_agents():
    each = [{"return": 3.0, "success": True}, {"return": None, "success": None}]
    rows = [EpisodeResult(n, n, True, 1.0, 3, True, agents={"a": x}) for n, x in enumerate(each)]
    assert played(*rows, GONE).agents == {"a": (1.5, 0.5)}
    assert played(rows[1]).to_dict()["agents"] == {"a": {"mean_return": 0.0, "success_rate": None}}


def of_episodes(**success):
    return {int(k[1:]): EpisodeResult(int(k[1:]), 0, s, 0.0, 1, s) for k, s in success.items()}


@pytest.mark.parametrize(
    ("found", "after", "over", "kept"),
    [
        ({"e1": False, "e0": False, "e2": False}, 2, True, [0, 1]),
        ({"e1": False, "e0": False}, None, False, [0, 1]),
        ({"e0": False}, 2, False, [0]),
        ({"e2": False, "e0": False}, 2, False, [0, 2]),
        ({"e1": True, "e0": False}, 2, False, [0, 1]),
        ({"e1": None, "e0": False}, 2, False, [0, 1]),
    ],
)
def test_an_evaluation_without_hope_ends_with_its_first_episodes(found, after, over, kept):
    episodes = of_episodes(**found)
    assert hopeless(episodes, after) is over
    assert [episode.index for episode in in_order(episodes, after)] == kept


def test_lost_episodes_are_tried_twice():
    losses, first = LostEpisodes(PLAN), EpisodeResult(2, 7, True, 1.0, 3, True)
    assert losses.episode(2, first) is first
    losses.add(2, "hung", {})
    assert losses.episode(2, Lost("hung")) is None
    assert losses.episode(2, first).first_error == "hung"
    losses.add(2, "died", {})
    assert losses.episode(2, Lost("died")) == failed_episode(
        PLAN, 2, "environment 'Can': died, in 2 tries"
    )


@pytest.mark.parametrize(
    ("done", "begun", "words"),
    [
        ({}, True, "environment 'Can': all 4 attempts to play an episode failed; the last one: r3"),
        ({0: GONE}, True, "all 4 attempts"),
        ({}, False, "every evaluation process ended as it began (r3); a script that trains"),
        ({0: GONE, 1: EpisodeResult(1, 6, False, 0.0, 3, False)}, True, None),
    ],
)
def test_four_lost_episodes_and_none_played_end_an_evaluation(done, begun, words):
    losses, how = LostEpisodes(PLAN), {} if begun else {"begun": False}
    for number in range(3):
        losses.add(number % 2, f"r{number}", done, **how)
    if words is None:
        losses.add(3, "r3", done)
        return
    with refused(words, error=EvaluationError):
        losses.add(3, "r3", done, **how)


def test_times_are_rounded_to_milliseconds(monkeypatch):
    monkeypatch.setattr(results.time, "perf_counter", lambda: 3.23456)
    assert timed(2.0) == 1.235


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


def test_a_table_of_evaluations(tmp_path):
    path, found = tmp_path / "deep" / "t.json", played(episode(0), episode(1))
    table = ResultsFile(path, resume=False)
    assert table.find({"a": 1}) is None
    table.keeper({"a": 1, "b": 2})(episode(0))
    table.close(is_over=False)
    with refused("t.json.episodes: exists already|--resume", error=ConfigError):
        ResultsFile(path, resume=False)
    table = ResultsFile(path, resume=True)
    assert table.earlier({"b": 2, "a": 1}) == (episode(0),) and table.earlier({"a": 1}) == ()
    table.add({"a": 1}, found)
    table.close(is_over=True)
    assert [file.name for file in path.parent.iterdir()] == ["t.json"]
    table = ResultsFile(path, resume=True)
    assert table.find({"a": 1}) == found and table.find({"a": 2}) is None
    table.close(is_over=True)
    for text, words in (("[]", "is not a table of evaluations (TypeError"), ("{}", "KeyError")):
        path.write_text(text)
        with refused(f"t.json: |{words}", error=ConfigError):
            ResultsFile(path, resume=True)
    path.write_text('{"evaluations": [{"settings": {"a": 1}}]}')
    table = ResultsFile(path, resume=True)
    with refused("t.json: contains an evaluation that cannot be read (KeyError", error=ConfigError):
        table.find({"a": 1})
    table.close(is_over=True)


def test_an_episode_is_on_disk_at_once_and_one_writer_has_the_file(tmp_path):
    table = tmp_path / "a" / "b" / "t.json"
    log = EpisodeLog(table)
    log.add("one", episode(0))
    (line,) = log.path.read_text().splitlines()
    assert '"evaluation": "one"' in line and log.path.read_bytes().endswith(b"\n")
    other = EpisodeLog(table)
    for call in (other.read, lambda: other.add("two", episode(1))):
        with refused("t.json: another process is writing it: wait for", error=ConfigError):
            call()
    other.close(remove=True)
    assert log.path.exists()
    log.path.unlink()
    log.close(remove=True)
    other.add("two", episode(1))
    other.read()
    assert other.find("two") == (episode(1),)
    other.close(remove=False)


def test_a_file_that_was_just_removed_is_not_written(tmp_path):
    with (tmp_path / "t.json.episodes").open("w") as file:
        (tmp_path / "t.json.episodes").unlink()
        with refused("t.json: another process is writing it", error=ConfigError):
            results._lock(file, tmp_path / "t.json.episodes")


def test_an_empty_file_of_episodes_is_removed(tmp_path):
    log = EpisodeLog(tmp_path / "t.json")
    log.read()
    assert log.path.exists()
    log.close(remove=False)
    assert not log.path.exists()


def test_the_text_of_a_table(tmp_path):
    path = tmp_path / "a" / "b" / "t.json"
    table = ResultsFile(path, resume=False)
    table.add({"a": 1}, played(episode(0)))
    text = path.read_text()
    assert text.startswith('{\n  "evaluations": [\n    {\n      "env": "Can",\n')
    assert text.endswith("\n    }\n  ]\n}\n")
    table.close(is_over=True)
    with refused("t.json: exists already; choose another name", error=ConfigError):
        ResultsFile(path, resume=False)
    ResultsFile(tmp_path / "new.json", resume=True).close(is_over=True)
    assert not (tmp_path / "new.json").exists()


def test_a_table_of_a_hundred_thousand_episodes_can_be_continued(tmp_path):
    """Of 3.2 million values, more than another JSON file may have."""
    path = tmp_path / "t.json"
    numbers = ",".join(["0"] * 32)
    episodes = ",".join([f"[{numbers}]"] * 100_000)
    path.write_text(f'{{"evaluations": [{{"settings": 1, "per_episode": [{episodes}]}}]}}')
    table = ResultsFile(path, resume=True)
    assert table.find({"a": 2}) is None
    table.close(is_over=True)


def test_a_hole_in_a_log_of_episodes_takes_no_memory(tmp_path):
    log = EpisodeLog(tmp_path / "t.json")
    log.add("one", episode(0))
    with log.path.open("r+b") as file:
        file.truncate(2**23)
        file.seek(0, 2)
        file.write(b"\n")
    log.add("one", episode(1))
    log.read()
    assert log.find("one") == (episode(0), episode(1))
    with log.path.open("r+b") as file:
        file.truncate(2**36)
    with refused(
        "t.json.episodes: is not a text file: a line has more than 16 MiB", error=FileError
    ):
        log.read()
    log.close(remove=True)
