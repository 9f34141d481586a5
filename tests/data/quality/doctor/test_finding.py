"""Findings in commands, words and numbers."""

from pathlib import Path

import pytest

from imitate.data.quality.doctor.finding import (
    DoctorReport,
    Finding,
    Level,
    Place,
    Remedy,
    counted,
    ranges_of,
    runs_of,
)

FILE = Path("d/a.hdf5")


def finding(remedy=None, level=Level.warning, **more):
    return Finding("odd", level, "is odd", remedy=remedy, **more)


@pytest.mark.parametrize(
    ("remedy", "command", "advice"),
    [
        (None, None, ""),
        (
            Remedy(drop_demos=["demo_1", "demo_2", "demo_3", "demo_7"]),
            "delete d/a.hdf5 --demos demo_1-demo_3,demo_7 --out",
            "imitate dataset filter d/a.hdf5 without_odd --without demo_1-demo_3,demo_7 --in-place",
        ),
        (
            Remedy(drop_keys=["obs/s", "x"]),
            "delete d/a.hdf5 --keys obs/s,x --out",
            "leave it out of observation.modalities",
        ),
        (
            Remedy(drop_demos=["demo_1"], drop_keys=["x"]),
            "delete d/a.hdf5 --demos demo_1 --keys x --out",
            "look at some of them with imitate dataset playback",
        ),
        (Remedy(drop_demos=["demo_1"]), "delete d/a.hdf5 --demos demo_1 --out", "without_odd"),
        (Remedy(drop_demos=["a,b"]), "doctor d/a.hdf5 --fix --only odd --out", "without_odd"),
        (Remedy(rows={"demo_1": None}), "doctor d/a.hdf5 --fix --only odd", ""),
        (Remedy(drop_keys=["x"], values={"x": None}), "doctor d/a.hdf5 --fix", "modalities"),
        (Remedy(masks={"m": []}), "doctor d/a.hdf5 --fix", ""),
        (Remedy(attrs={"a": 1}), "doctor d/a.hdf5 --fix", ""),
        (Remedy(), "doctor d/a.hdf5 --fix", ""),
        (Remedy(drop_keys=[f"k{n}" for n in range(20)]), "delete", "modalities"),
        (Remedy(drop_keys=[f"k{n}" for n in range(21)]), "doctor", "modalities"),
        (Remedy(drop_demos=[f"d_{2 * n}" for n in range(200)]), "doctor", "keep them"),
        (Remedy(drop_demos=[f"d_{2 * n}" for n in range(201)]), "doctor", "look at some"),
    ],
)
def test_repairs_and_alternatives(remedy, command, advice):
    made = finding(remedy)
    found = made.command(FILE)
    assert found is None if command is None else found.startswith(f"imitate dataset {command}")
    assert found is None or found.endswith("--out d/a_fixed.hdf5")
    words = made.alternative(FILE)
    assert words == "" if advice == "" else advice in words
    assert finding(remedy, advice="wait").alternative(FILE) == "wait"


@pytest.mark.parametrize(
    ("name", "fixed", "other"),
    [
        ("a.h5", "a_fixed.h5", "--in-place"),
        ("a", "a_fixed.hdf5", "--out a_filtered.hdf5"),
        ("a.npz", "a_fixed.hdf5", "--out a_filtered.hdf5"),
    ],
)
def test_other_formats_are_converted(name, fixed, other):
    made = finding(Remedy(drop_demos=["demo_1"]))
    assert made.command(Path(name)).endswith(f"--out {fixed}")
    assert made.alternative(Path(name)).endswith(other)


def test_a_report_in_json():
    places = [Place("demo_1", "obs/s", ((2, 4),)), Place("demo_1"), Place(key="x")]
    findings = [finding(places=places), finding(level=Level.info)]
    assert findings[0].demos == ["demo_1"]
    found = DoctorReport(FILE, 3, 9, 100, findings).to_dict()
    assert found["exit_code"] == 1 and found["counts"] == {"info": 1, "warning": 1, "error": 0}
    assert found["findings"][0]["where"] == [
        {"demo": "demo_1", "key": "obs/s", "steps": [[2, 4]]},
        {"demo": "demo_1", "key": None, "steps": []},
        {"demo": None, "key": "x", "steps": []},
    ]
    assert found["findings"][1]["advice"] is None and found["findings"][1]["repair"] is None


@pytest.mark.parametrize(
    ("levels", "code"),
    [([], 0), ([Level.info], 0), ([Level.info, Level.warning], 1), ([Level.error, Level.info], 3)],
)
def test_exit_codes(levels, code):
    assert DoctorReport(FILE, 0, 0, 0, [finding(level=x) for x in levels]).exit_code == code


@pytest.mark.parametrize(
    ("demos", "ranges"),
    [
        (["demo_1", "demo_2"], ["demo_1", "demo_2"]),
        (["demo_9", "demo_10", "demo_11"], ["demo_9-demo_11"]),
        (["a", "b", ""], ["a", "b", ""]),
        (["1", "2", "3"], ["1-3"]),
        (["demo_3", "demo_2", "demo_1"], ["demo_3", "demo_2", "demo_1"]),
        ([], []),
    ],
)
def test_ranges_of_demos(demos, ranges):
    assert ranges_of(demos) == ranges


@pytest.mark.parametrize(
    ("steps", "runs"), [([], ()), ([3], ((3, 4),)), ([0, 1, 3, 4, 5], ((0, 2), (3, 6)))]
)
def test_runs_of_steps(steps, runs):
    assert runs_of(steps) == runs


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 demos have"), (1, "1 demo has"), (2, "2 demos have")]
)
def test_counted(count, words):
    assert counted(count, "has have") == words
    assert counted(count) == words.rpartition(" ")[0]
