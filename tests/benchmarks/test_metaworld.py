import json

from benchmarks.metaworld import MULTI, TASKS, cells, finished, table
from benchmarks.studies.results import KnownCells


def cell(task, policy, seed, successes):
    numbers = {"successes": successes, "episodes": 50, "train_cpu_s": 10.0 + 2 * seed, "steps": 1}
    return {"task": task, "policy": policy, "seed": seed, **numbers}


def test_seeds_are_added_up_and_unfinished_cells_stay_empty():
    found = [cell("reach-v3", "bc", 0, 50), cell("reach-v3", "bc", 1, 40)]
    found += [cell("push-v3", MULTI, 0, 0)]
    lines = table(found).splitlines()
    assert lines[0] == "| task | | bc | multi_task |"
    assert len(lines) == 2 + len(TASKS)
    assert lines[2] == "| reach-v3 | easy | 90/100 (83 - 94 %), 11 s |  |"
    assert "| push-v3 | hard |  | 0/50 (0 - 7 %), 10 s |" in lines


def test_finished_cells_are_read_and_others_are_not_made_for_the_table(tmp_path):
    assert cells("bc", ["reach-v3"], 0, tmp_path, make=False) == []
    folder = tmp_path / "bc" / "reach-v3_seed0"
    folder.mkdir(parents=True)
    kept = [cell("reach-v3", "bc", 0, 35)]
    (folder / "cells.json").write_text(json.dumps(kept))
    assert cells("bc", ["reach-v3"], 0, tmp_path) == kept


def test_cells_of_a_file_are_finished_for_the_next_machine(tmp_path):
    path = tmp_path / "cells.json"
    known = KnownCells(path)
    known.add([cell("reach-v3", "bc", 0, 35)])
    known.add([cell("reach-v3", MULTI, 0, 30), cell("push-v3", MULTI, 0, 20)])
    again = KnownCells(path)
    assert finished(again, "bc", ["reach-v3"], 0) == [cell("reach-v3", "bc", 0, 35)]
    assert finished(again, "bc", ["reach-v3"], 1) == finished(again, "bc", ["push-v3"], 0) == []
    assert len(finished(again, MULTI, ["reach-v3", "push-v3"], 0)) == 2
    assert finished(again, MULTI, ["reach-v3"], 0) == []  # learned two tasks, not this one alone
