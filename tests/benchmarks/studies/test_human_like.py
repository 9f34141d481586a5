import json

import numpy as np
import pytest

from benchmarks.studies.human_like import TASKS, VARIANTS, finished, habits_of, row, table
from imitate.config.ready_configs import bundled


def numbers(seed, successes, task="stack", variant="bc"):
    return {
        **{"task": task, "variant": variant, "seed": seed, "steps": 100, "train_cpu_s": 9.6 + seed},
        **{"successes": successes, "episodes": 50, "mean_length": 40.0, "checkpoint": "x"},
    }


def test_every_cell_has_a_ready_configuration():
    for task in TASKS.values():
        for variant in VARIANTS:
            assert bundled(f"robosuite/{task.configs}/{variant}") is not None


def test_seeds_are_pooled():
    # Wilson of 90/150 is 52 - 67 %
    assert row([numbers(1, 30), numbers(2, 25), numbers(3, 35)]) == (
        "| stack | bc | 1, 2, 3 | 100 | 11 - 13 | 30/50, 25/50, 35/50 | 90/150 (52 - 67 %) |"
    )
    assert row([numbers(1, 30)]).startswith("| stack | bc | 1 | 100 | 11 | 30/50 | 30/50 (")


def test_the_table_has_a_line_for_each_task_variant_and_length_of_training():
    found = [numbers(2, 40, variant="vq_bet"), numbers(1, 40), numbers(1, 40, variant="vq_bet")]
    longer = numbers(1, 45) | {"steps": 300}
    assert [line.split(" | ")[:4] for line in table([longer, *found])] == [
        ["| stack", "bc", "1", "100"],
        ["| stack", "bc", "1", "300"],
        ["| stack", "vq_bet", "1, 2", "100"],
    ]


def test_finished_cells_are_found_in_their_folders(tmp_path):
    for seed, name in ((1, "seed1"), (2, "seed2_epochs300")):
        folder = tmp_path / "stack" / "bc" / name
        folder.mkdir(parents=True)
        (folder / "cell.json").write_text(json.dumps(numbers(seed, 40)))
    assert [cell["seed"] for cell in finished(tmp_path)] == [1, 2]


def test_habits_are_counted():
    moving = np.array([[0.1, 0.2, 0, 0, 0, 0], [0.2, 0.1, 0, 0, 0, 0]])
    demo = np.concatenate([np.zeros((2, 6)), np.tile(moving, (3, 1))])
    found = habits_of([8, 4], [demo, np.zeros((4, 6))])
    assert found["median_steps"] == 6.0
    assert found["longest_steps"] == 8.0
    assert found["still"] == pytest.approx(6 / 12)
    assert found["neighbours"] == pytest.approx(-1.0)  # each command is the opposite of the last
