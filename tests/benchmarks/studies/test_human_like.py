import json

import numpy as np
import pytest

from benchmarks.studies.human_like import TASKS, VARIANTS, finished, habits_of, row
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


def test_the_table_is_that_of_the_finished_cells(tmp_path):
    for task, variant, seed in (("stack", "vq_bet", 2), ("stack", "bc", 1), ("stack", "vq_bet", 1)):
        folder = tmp_path / task / variant / f"seed{seed}"
        folder.mkdir(parents=True)
        (folder / "cell.json").write_text(json.dumps(numbers(seed, 40, task, variant)))
    (tmp_path / "stack" / "act" / "seed1").mkdir(parents=True)  # under way
    lines = finished(tmp_path)
    assert [line.split(" | ")[:3] for line in lines] == [
        ["| stack", "bc", "1"],
        ["| stack", "vq_bet", "1, 2"],
    ]


def test_habits_are_counted():
    moving = np.array([[0.1, 0.2, 0, 0, 0, 0], [0.2, 0.1, 0, 0, 0, 0]])
    demo = np.concatenate([np.zeros((2, 6)), np.tile(moving, (3, 1))])
    found = habits_of([8, 4], [demo, np.zeros((4, 6))])
    assert found["median_steps"] == 6.0
    assert found["longest_steps"] == 8.0
    assert found["still"] == pytest.approx(6 / 12)
    assert found["neighbours"] == pytest.approx(-1.0)  # each command is the opposite of the last
