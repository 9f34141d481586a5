import json

import h5py
import numpy as np
import pytest

from benchmarks.studies import locomotion
from benchmarks.studies.locomotion import METHODS, cell, interval, main, references, row
from imitate import load_config
from imitate.config.ready_configs import bundled


def flat_file(path, **attrs):
    """Two episodes in D4RL's layout: one ends by the clock after 3 rows, one by a fall after 2."""
    with h5py.File(path, "w") as file:
        file["observations"] = np.arange(5 * 17, dtype=np.float32).reshape(5, 17)
        file["actions"] = np.full((5, 6), 0.1, dtype=np.float32)
        file["rewards"] = np.arange(5, dtype=np.float32)
        file["terminals"] = np.array([0, 0, 0, 0, 1], dtype=bool)
        file["timeouts"] = np.array([0, 0, 1, 0, 0], dtype=bool)
        file["metadata/episode_final_observation"] = np.zeros((2, 17), dtype=np.float32)
        file.attrs.update(attrs)
    return path


def test_mean_and_interval_over_seeds():
    # standard deviation 10, three seeds: 4.30 * 10 / sqrt(3) = 24.8
    assert interval([40.0, 50.0, 60.0]) == "50.0 ± 24.8"
    assert interval([42.34]) == "42.3"


def test_a_row_has_last_and_best_normalized():
    cells = [
        {"updates": 100, "returns": [50.0, 100.0, 60.0], "cpu_s": 10.0},
        {"updates": 100, "returns": [108.0, 30.0, 60.0], "cpu_s": 20.0},
    ]
    # between 10 (0) and 110 (100): last 50 and 50, best 90 and 98: 12.71 * 4
    assert row("walker", "iql", cells, (10.0, 110.0)) == (
        "| walker | iql | 100 | 50.0 ± 0.0 | 50.0, 50.0 | 94.0 ± 50.8 | 15 |"
    )


def test_references_come_from_the_file_else_from_d4rl(tmp_path):
    own = flat_file(
        tmp_path / "own.hdf5", env_id="Walker2d-v5", ref_random_return=-1.0, ref_expert_return=9.0
    )
    bare = flat_file(tmp_path / "bare.hdf5", env_id="Walker2d-v5")
    other = flat_file(tmp_path / "other.hdf5", env_id="Swimmer-v5")
    made = {
        path.stem: locomotion.converted(path, tmp_path / "out", None) for path in (own, bare, other)
    }
    assert references(made["own"]) == (-1.0, 9.0)
    assert references(made["bare"]) == (1.63, 4592.3)
    with pytest.raises(SystemExit, match="no returns to normalize by for Swimmer"):
        references(made["other"])


def test_arrays_for_the_peer_keep_their_alignment(tmp_path):
    source = flat_file(tmp_path / "a.hdf5", env_id="Walker2d-v5")
    locomotion.write_arrays(locomotion.converted(source, tmp_path, None), tmp_path / "a.npz")
    with h5py.File(source) as file, np.load(tmp_path / "a.npz") as arrays:
        for key in ("observations", "actions", "rewards", "terminals", "timeouts"):
            np.testing.assert_array_equal(arrays[key], file[key][()])


def test_a_cell_reads_the_evaluations_of_its_run(tmp_path, monkeypatch):
    ran = []

    def run(command, log):
        ran.append([*command])
        made = log.parent / "iql" / "time"
        made.mkdir(parents=True)
        (made / "results.json").write_text(json.dumps({"times": {"train_cpu_s": 7.0}}))
        lines = [
            {"kind": "epoch", "Train/Loss": 1.0},
            {"kind": "rollout", "Rollout/Return": 5.0},
            {"kind": "rollout", "Rollout/Return": 3.0},
        ]
        (made / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))

    monkeypatch.setattr(locomotion, "run", run)
    wanted = {"updates": 5000, "returns": [5.0, 3.0], "cpu_s": 7.0}
    for _ in range(2):
        assert cell(tmp_path / "d.hdf5", "iql", 4, 5000, tmp_path / "cell") == wanted
    assert len(ran) == 1
    assert {"train.seed=4", "experiment.epoch_every_n_steps=500", "train.num_epochs=10"} <= set(
        ran[0]
    )


@pytest.mark.slow
def test_a_file_of_d4rl_to_a_table(tmp_path, capsys):
    source = flat_file(tmp_path / "tiny.hdf5", env_id="Walker2d-v5")
    options = ["--data", str(source), "--method", "bc_filtered", "--seed", "1", "--updates", "10"]
    assert main([*options, "--out", str(tmp_path / "out")]) == 0
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert table[0].startswith("| data | method | updates | last |")
    assert table[2].startswith("| tiny | bc_filtered | 10 | ")


def test_settings_are_valid():
    for method, (config, settings) in METHODS.items():
        loaded = load_config(bundled(config), overrides=settings)
        assert loaded.observation.modalities.obs.low_dim == ("flat",)
        assert loaded.train.batch_size == (128 if method == "cql" else 256)
