import json

import pytest

from benchmarks.studies import results
from benchmarks.studies.offline_mixed import METHODS, TASKS, main, pooled
from imitate import load_config
from imitate.config.ready_configs import bundled


def numbers(method, seed, successes, task="lift"):
    return {
        **{"task": task, "variant": method, "seed": seed, "steps": 10, "train_cpu_s": 1.0},
        **{"successes": successes, "episodes": 50, "mean_length": 40.0, "checkpoint": "x"},
    }


def test_seeds_are_pooled_and_only_separate_intervals_count():
    cells = [numbers("bc", seed, n) for seed, n in ((1, 30), (2, 25), (3, 35))]
    cells += [numbers("iql", seed, 50) for seed in (1, 2, 3)]
    cells += [numbers("td3_bc", seed, n) for seed, n in ((1, 0), (2, 10), (3, 5))]
    cells += [numbers("bcq", 1, 40), numbers("iql", 1, 49, task="pick_place_can")]
    # Wilson: 90/150 is 52 - 67 %, 150/150 is 98 - 100 %, 15/150 is 6 - 16 %, 40/50 is 67 - 89 %
    assert pooled(cells)[2:] == [
        "| lift | bc | 30, 25, 35 | 90/150 | 52 - 67 % |  |",
        "| lift | iql | 50, 50, 50 | 150/150 | 98 - 100 % | better |",
        "| lift | td3_bc | 0, 10, 5 | 15/150 | 6 - 16 % | worse |",
        "| lift | bcq | 40 | 40/50 | 67 - 89 % | no difference shown |",
        "| pick_place_can | iql | 49 | 49/50 | 90 - 100 % |  |",
    ]


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """What would be run; each command leaves the files that the real one does."""
    seen = []

    def run(command, log):
        seen.append([*command][1:])
        folder = log.parent
        if seen[-1][0] == "train":
            made = folder / "name" / "time"
            made.mkdir(parents=True)
            result = {"checkpoint": "last.pth", "step": 2000, "times": {"train_cpu_s": 5.0}}
            (made / "results.json").write_text(json.dumps(result))
        else:
            measured = {"successes": 3, "episodes": 4, "mean_length": 50.0}
            (folder / "eval.json").write_text(json.dumps({"evaluations": [measured]}))

    monkeypatch.setattr(results, "run", run)
    (tmp_path / "lift").mkdir()
    (tmp_path / "lift" / "mixed.hdf5").touch()
    return seen


def test_a_cell_is_trained_played_and_kept(tmp_path, commands, capsys):
    options = ["--datasets", str(tmp_path), "--out", str(tmp_path / "out"), "--task", "lift"]
    options += ["--method", "bc_filtered", "--seed", "7", "--episodes", "4"]
    broken = tmp_path / "out" / "lift" / "bc_filtered" / "seed7" / "name" / "killed"
    broken.mkdir(parents=True)
    assert main(options) == 0
    train, evaluate = commands
    assert train[:3] == ["train", "--config", "robosuite/lift/bc"]
    assert {"train.seed=7", "train.filter_best=0.25"} <= set(train)
    assert f"train.data={tmp_path}/lift/mixed.hdf5" in train
    assert evaluate[:3] == ["eval", "--agent", "last.pth"]
    assert evaluate[evaluate.index("--seed") + 1] == "0"
    assert "| lift | bc_filtered | 7 | 2000 | 5.0 | 3/4 | 30 - 95 % |" in capsys.readouterr().out
    assert not broken.exists()
    assert main(options) == 0
    assert len(commands) == 2  # not run again


def test_without_data(tmp_path):
    with pytest.raises(SystemExit, match=r"mixed.hdf5 is missing: docs/environments.md"):
        main(["--datasets", str(tmp_path), "--task", "lift", "--seed", "1"])


def test_ready_configurations_exist_and_settings_are_valid():
    for task in TASKS:
        for config, settings in METHODS.values():
            loaded = load_config(bundled(f"robosuite/{task}/{config}"), overrides=settings)
            assert loaded.train.batch_size > 0
