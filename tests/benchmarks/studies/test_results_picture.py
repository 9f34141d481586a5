import json

import pytest

from benchmarks.studies.results_picture import Point, draw, read_points


def leave(folder, task, variant, seed, *, successes, episodes, cpu_s=10.0, steps=100):
    cell = folder / task / variant / f"seed{seed}_epochs1" / "cell.json"
    cell.parent.mkdir(parents=True)
    numbers = {"train_cpu_s": cpu_s, "successes": successes, "episodes": episodes, "steps": steps}
    cell.write_text(json.dumps(numbers))


def test_seeds_are_put_together_and_more_episodes_win(tmp_path):
    few, many = tmp_path / "few", tmp_path / "many"
    leave(few, "lift", "bc", 1, successes=40, episodes=50)
    leave(few, "stack", "act", 1, successes=5, episodes=50)
    leave(many, "lift", "bc", 1, successes=90, episodes=100, cpu_s=8.0)
    leave(many, "lift", "bc", 2, successes=80, episodes=100, cpu_s=12.0)
    points = read_points([few, many])
    assert points == {"lift": {"bc": Point(10.0, 170, 200)}, "stack": {"act": Point(10.0, 5, 50)}}
    draw(points, tmp_path / "deep" / "picture.png")
    assert (tmp_path / "deep" / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_different_budgets_are_no_one_point(tmp_path):
    leave(tmp_path, "lift", "bc", 1, successes=40, episodes=50, steps=100)
    leave(tmp_path, "lift", "bc", 2, successes=40, episodes=50, steps=300)
    with pytest.raises(SystemExit, match="different numbers of updates"):
        read_points([tmp_path])
    with pytest.raises(SystemExit, match="no cells"):
        read_points([tmp_path / "nowhere"])
