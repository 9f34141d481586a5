import math

from imitate.evaluate.result import EpisodeLog, EpisodeResult


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
