"""The doctor's round and the repaired copy: order, progress, places that cannot be read, and passes."""

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.edit.rewrite import Rows
from imitate.data.edit.target import Target
from imitate.data.file.extents import Extents
from imitate.data.quality.doctor import diagnosis
from imitate.data.quality.doctor.diagnosis import diagnose, examine, fix
from imitate.data.quality.doctor.finding import DoctorReport, Finding, Level, Remedy
from imitate.data.quality.doctor.survey import layout_of
from imitate.errors import DatasetError
from tests.demo_files import episode, write_demos
from tests.refusals import refused

META = {"env_name": "x", "type": 4, "env_kwargs": {}}


@pytest.fixture
def path(tmp_path):
    """Three demos without a fault, of 6 steps."""
    random = np.random.default_rng(0)
    demos = [
        episode(6, {"x": random.normal(size=(6, 2))}, random.uniform(-0.9, 0.9, (6, 2)), rewards=np.ones(6))
        for _ in range(3)
    ]  # fmt: skip
    return write_demos(tmp_path / "a.hdf5", demos, META)


def codes(report):
    return [finding.code for finding in report.findings]


def test_a_round(path, tmp_path):
    seen = []
    report = diagnose(str(path), lambda *words: seen.append(words))
    assert (report.path, report.demos, report.steps, codes(report)) == (path, 3, 18, [])
    assert seen == [(1, 3), (2, 3), (3, 3)]
    with DatasetFile(path) as file, Extents(file) as extents:
        layout = layout_of(extents)
        some = examine(layout, lambda *words: seen.append(words), layout.demos[:1])
    assert (some.demos, some.steps) == (3, 18)
    assert 3 * some.read_bytes == report.read_bytes > 0
    assert seen[3:] == [(1, 1)]
    content = path.read_bytes()
    path.write_bytes(content[:100])
    found = diagnose(path)
    assert (found.demos, found.steps, found.read_bytes, found.exit_code) == (0, 0, 0, 3)
    assert [(f.code, f.level) for f in found.findings] == [("file", Level.error)]
    assert str(path) not in found.findings[0].what
    for other in (tmp_path / "none", tmp_path):
        with pytest.raises(DatasetError):
            diagnose(other)
    path.write_text("no HDF5 file")
    with pytest.raises(DatasetError):
        diagnose(path)


def test_findings_are_ordered_and_count_demos_that_cannot_be_opened(path):
    with h5py.File(path, "r+") as file:
        file["data"].attrs["total"] = 7
        file["mask/none"] = np.array([], "S1")
        file["data/demo_3"] = 1.0
    report = diagnose(path)
    assert report.demos == 4 and report.steps == 18
    levels = [finding.level for finding in report.findings]
    assert levels == sorted(levels, key=[Level.error, Level.warning, Level.info].index)
    assert codes(report)[0] == "unreadable" and "mask_empty" in codes(report)


@pytest.mark.parametrize(
    ("env", "level", "repaired"), [(1, "warning", True), (4, "info", False), (None, "info", False)]
)
def test_robosuite_clips_actions_itself(path, env, level, repaired):
    with h5py.File(path, "r+") as file:
        file["data/demo_0/actions"][0] = 1.5
        meta = f'{{"env_name": "x", "type": {env}, "env_kwargs": {{}}}}'
        file["data"].attrs["env_args"] = "{" if env is None else meta
    (found,) = [f for f in diagnose(path).findings if f.code == "action_range"]
    assert "in 5.6 % of the steps" in found.what
    assert found.level.value == "info" and found.remedy is None  # more than a twentieth
    with h5py.File(path, "r+") as file:
        del file["data/demo_1"], file["data/demo_2"]
        for name in ("demo_4", "demo_5", "demo_6", "demo_7"):
            file.copy("data/demo_0", f"data/{name}")
            file[f"data/{name}/actions"][0] = 0.5
    (found,) = [f for f in diagnose(path).findings if f.code == "action_range"]
    assert (found.level.value, found.remedy is not None) == (level, repaired)


@pytest.mark.parametrize(
    ("bad", "words", "demos", "keys"),
    [
        ({0: ["x"]}, "1 stretches of 1 demo cannot be read: ", ["demo_0"], []),
        ({0: ["x", "y"]}, "2 stretches of 1 demo cannot be read: ", ["demo_0"], []),
        ({0: ["x"], 1: ["x"], 2: ["y"]}, "3 stretches of 3 demos cannot", [], ["obs/x", "obs/y"]),
        (
            {0: ["x"], 1: ["x"], 2: ["actions"]},
            "3 stretches of 3 demos",
            ["demo_0", "demo_1", "demo_2"],
            [],
        ),
    ],
)
def test_places_that_cannot_be_read(path, monkeypatch, bad, words, demos, keys):
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            demo["obs/y"] = demo["obs/x"][()] + 1
    names = {
        f"demo_{n}": [k if k == "actions" else f"obs/{k}" for k in ks] for n, ks in bad.items()
    }
    read = Extents.read

    def refuse(self, demo, key, start, stop):
        if key in names.get(demo, ()):
            raise DatasetError(f"{path}: {demo}/{key} is cut")
        return read(self, demo, key, start, stop)

    monkeypatch.setattr(Extents, "read", refuse)
    (found,) = [f for f in diagnose(path).findings if f.code == "unreadable"]
    first = next(f"{demo}/{key}" for demo, listed in names.items() for key in listed)
    assert found.level is Level.error and found.what.startswith(words)
    assert found.what.endswith(f": {first} is cut")
    assert (list(found.remedy.drop_demos), list(found.remedy.drop_keys)) == (demos, keys)
    assert found.places[0].steps == ((0, 6),)


def test_a_finding_that_another_covers_is_left_out(path, monkeypatch):
    def check(*codes):
        return lambda layout: [Finding(code, Level.info, code) for code in codes]

    for given, kept in (
        (("misaligned", "lag", "action_range"), ["misaligned", "action_range"]),
        (("rescaled_actions", "lag", "action_range"), ["rescaled_actions", "lag"]),
        (("lag", "action_range"), ["lag", "action_range"]),
    ):
        monkeypatch.setattr(diagnosis, "CHECKS", (check(*given),))
        assert codes(diagnose(path)) == kept


# ---- the repaired copy ---------------------------------------------------------------------------


def found(code="odd", level=Level.warning, **remedy):
    return Finding(code, level, code, remedy=Remedy(**remedy) if remedy else None)


def reports(monkeypatch, *rounds):
    """The doctor finds these findings in each round, and nothing later; returns what it looked at."""
    left, seen = list(rounds), []

    def look(path, on_demo=None):
        seen.append(path)
        return DoctorReport(path, 3, 18, 100, left.pop(0) if left else [])

    monkeypatch.setattr(diagnosis, "diagnose", look)
    return seen


def test_a_copy_is_repaired_again_up_to_four_times(path, tmp_path, monkeypatch):
    out = tmp_path / "b.hdf5"
    seen = reports(monkeypatch, *([[found(attrs={"n": n})] for n in range(9)]))
    repaired, report = fix(path, Target(out))
    assert len(repaired) == 4 and len(seen) == 5 and seen[0] == path != seen[1]
    assert (report.path, report.demos, report.steps, report.read_bytes) == (out, 3, 18, 100)
    assert len(report.findings) == 1
    with DatasetFile(out) as file:
        assert file.file_attrs["n"] == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.hdf5", "b.hdf5"]
    seen = reports(monkeypatch, [found(attrs={"n": 9})])
    assert len(fix(path, Target(out, overwrite=True))[0]) == 1 and len(seen) == 2


@pytest.mark.parametrize(
    ("only", "repaired", "words"),
    [
        ((), ["a", "b"], None),
        (["info"], ["info"], None),
        (["a", "info"], ["a", "info"], None),
        (["none"], None, "no finding 'none' that can be repaired; "),
        (["a", "x"], ["a"], None),
        (["by hand"], None, "no finding 'by hand' that can be repaired"),
    ],
)
def test_which_findings_are_repaired(path, tmp_path, monkeypatch, only, repaired, words):
    findings = [
        found("a", attrs={"a": 1}),
        found("b", Level.error, attrs={"a": 1}),
        found("info", Level.info, attrs={"a": 1}),
        found("by hand"),
    ]
    reports(monkeypatch, findings)
    target = Target(tmp_path / "b.hdf5")
    if words is None:
        assert [finding.code for finding in fix(path, target, only=only)[0]] == repaired
        return
    with refused(f"{path}: {words}"):
        fix(path, target, only=only)


def test_nothing_to_repair(path, tmp_path, monkeypatch):
    reports(monkeypatch, [found("info", Level.info, attrs={"a": 1}), found("by hand")])
    with refused(f"{path}: nothing to repair: no file is written"):
        fix(path, Target(tmp_path / "b.hdf5"))
    assert [p.name for p in tmp_path.iterdir()] == ["a.hdf5"]


def test_remedies_are_joined(path, tmp_path, monkeypatch):
    with h5py.File(path, "r+") as file:
        file["mask/m"] = np.array([b"demo_0", b"demo_1"])
        file["mask/k"] = np.array([b"demo_1"])
        before = file["data/demo_1/obs/x"][()], file["data/demo_1/actions"][()]
        file["data/demo_1/steps_x"] = np.zeros(6)
    first, second = (Rows(np.arange(n), np.arange(n)) for n in (4, 2))
    reports(
        monkeypatch,
        [
            found(drop_demos=["demo_0"], rows={"demo_1": first}),
            found(drop_keys=["steps_x"], rows={"demo_1": second, "demo_2": second}),
            found(values={"obs/x": lambda values: values + 1}, attrs={"n": 1}),
            found(values={"obs/x": lambda values: values * 2}, masks={"m": ["demo_2"]}),
        ],
    )
    out, seen = tmp_path / "b.hdf5", []
    fix(path, Target(out), on_demo=lambda *words: seen.append(words))
    with DatasetFile(out) as file:
        assert file.demos() == ["demo_1", "demo_2"]
        assert [file.length(demo) for demo in file.demos()] == [4, 2]
        np.testing.assert_allclose(file.read("demo_1", "obs/x"), 2 * (before[0][:4] + 1), rtol=1e-6)
        np.testing.assert_array_equal(file.read("demo_1", "actions"), before[1][:4])
        assert file.filter_keys() == {"k": ["demo_1"], "m": ["demo_2"]}
        assert "steps_x" not in list(file.keys("demo_1")) and file.file_attrs["n"] == 1
    assert seen[-1] == (2, 2)


def test_a_repair_that_fails_leaves_nothing(path, tmp_path, monkeypatch):
    def fail(values):
        raise DatasetError("no")

    reports(monkeypatch, [found(values={"obs/x": fail})])
    with refused("no"):
        fix(path, Target(tmp_path / "b.hdf5"))
    assert [p.name for p in tmp_path.iterdir()] == ["a.hdf5"]


def test_masks_that_cannot_be_read_are_not_kept(path, tmp_path, monkeypatch):
    with h5py.File(path, "r+") as file:
        file["mask/m/deeper"] = np.zeros(2)
    reports(monkeypatch, [found(attrs={"n": 1})])
    fix(path, Target(tmp_path / "b.hdf5"))
    with DatasetFile(tmp_path / "b.hdf5") as file:
        assert file.filter_keys() == {}
