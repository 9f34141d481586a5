"""imitate dataset doctor: what it finds, and that the command it prints repairs it."""

import json
import re
import shlex
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from imitate.data import DatasetWriter, Episode
from tests.calling import call

LENGTH, DEMOS = 60, 6
FINDINGS = Path(__file__).with_name("fixtures") / "findings.json"
"""Whole findings, by name of the fault; where a change is meant, look at the new one and write it there."""


def report_of(path, exit_code=None):
    done = call("dataset doctor --json", path, code=exit_code)
    report = json.loads(done.stdout)
    assert report["exit_code"] == done.exit_code
    return report


def doctor(path, options="", code=0):
    return call(f"dataset doctor {options}", path, code=code)


def as_printed(command, code=0):
    """Run a command that the doctor has printed."""
    return call(command.removeprefix("imitate "), code=code)


def codes(report):
    return {finding["code"]: finding["level"] for finding in report["findings"]}


def integrated(actions, start):
    """Positions before each action, and after the last: each action is carried out at once."""
    return start + np.concatenate([np.zeros((1, 3)), 0.05 * actions[:, :3].cumsum(axis=0)])


@pytest.fixture
def clean(template, tmp_path):
    return Path(shutil.copy(template, tmp_path))


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A robot that follows its commands, a camera, simulator states with time and position."""
    random = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("clean") / "demos.hdf5"
    env = {"env_name": "Lift", "type": 1, "env_kwargs": {}}
    with DatasetWriter(path, env) as writer:
        for _ in range(DEMOS):
            actions = random.uniform(-0.9, 0.9, (LENGTH, 4))
            actions[:, 3] = np.where(np.arange(LENGTH) < LENGTH // 2, -1, 1)
            positions = integrated(actions, random.normal(size=3))
            images = random.integers(0, 256, (LENGTH, 24, 16, 3), dtype=np.uint8)
            last = np.arange(LENGTH) == LENGTH - 1
            time = 0.05 * np.arange(LENGTH)[:, None]
            writer.append_episode(
                Episode(
                    obs={
                        "robot0_eef_pos": positions[:-1],
                        "force": random.normal(size=(LENGTH, 2)),
                        "agentview_image": images,
                    },
                    next_obs={
                        "robot0_eef_pos": positions[1:],
                        "force": random.normal(size=(LENGTH, 2)),
                        "agentview_image": np.concatenate([images[1:], images[-1:]]),
                    },
                    actions=actions,
                    rewards=last.astype(float),
                    terminals=last,
                    timeouts=np.zeros(LENGTH),
                    states=np.concatenate([time, positions[:-1]], axis=1),
                    attrs={"success": True},
                )
            )
        writer.add_filter_key("train", [f"demo_{i}" for i in range(4)])
        writer.add_filter_key("valid", ["demo_4", "demo_5"])
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            demo["next_obs/force"][:-1] = demo["obs/force"][1:]
    return path


def replace(group, key, values, **how):
    del group[key]
    group.create_dataset(key, data=values, **how)


# ---- faults ----------------------------------------------------------------------------------------


def each(*changes):
    """A fault of every demo."""
    return lambda data: [change(demo) for demo in data.values() for change in changes]


def put(key, at, value):
    return lambda group: group[key].__setitem__(at, value)


def drop(key):
    return lambda group: group.__delitem__(key)


def anew(key, make):
    """Write what is made of the values of a key in their place."""
    return lambda group: replace(group, key, make(group[key][()]))


def images(make):
    return each(*(anew(f"{group}/agentview_image", make) for group in ("obs", "next_obs")))


def mask(name, *demos):
    return lambda data: replace(data.parent["mask"], name, np.array(demos, dtype="S"))


def cut(demo, rows):
    keys = []
    demo.visititems(lambda key, item: keys.append(key) if hasattr(item, "shape") else None)
    for key in keys:
        replace(demo, key, demo[key][rows])
    demo.attrs["num_samples"] = len(demo["actions"])


def look_ahead(demo):
    """Observations from after the action, as some recorders write them."""
    del demo["next_obs"]
    for key, item in demo["obs"].items():
        item[:-1] = demo[f"obs/{key}"][1:]
    demo["obs/robot0_eef_pos"][-1] += 0.05 * demo["actions"][-1, :3]


def displaced(to, source):
    """Positions at the wrong rows, and nothing else to tell them by."""

    def change(demo):
        del demo["next_obs"], demo["states"]
        demo["obs/robot0_eef_pos"][to] = demo["obs/robot0_eef_pos"][source]

    return each(change)


def idle(demo):
    actions = demo["actions"][()]
    actions[20:40, :3] = 0
    actions[:, 3] = 1
    actions[-1, 3] = -1
    positions = integrated(actions, demo["obs/robot0_eef_pos"][0])
    demo["actions"][...] = actions
    demo["obs/robot0_eef_pos"][...] = positions[:-1]
    demo["next_obs/robot0_eef_pos"][...] = positions[1:]
    demo["states"][:, 1:] = positions[:-1]


def jump(data):
    for key, rows in (("obs/robot0_eef_pos", 30), ("next_obs/robot0_eef_pos", 29)):
        data["demo_3"][key][rows:] += 3.0
    data["demo_3/states"][30:, 1:] += 3.0


def lost_time(data):
    data["demo_3/states"][30:, 0] += 0.5


FORCE, OPENGL = "demo_1/obs/force", {"macros_image_convention": "opengl"}
FAULTS = {
    "nan": ("error nan", put("demo_2/obs/force", (7, 1), np.nan)),
    "infinite action": ("error nan", put("demo_2/actions", (7, 1), np.inf)),
    "no actions": ("error no_actions", drop("demo_1/actions")),
    "empty": ("error empty_demo", lambda data: cut(data["demo_1"], slice(0))),
    "wrong count": ("error num_samples", lambda data: data["demo_1"].attrs.update(num_samples=7)),
    "no count": ("info num_samples", lambda data: data["demo_1"].attrs.pop("num_samples")),
    "wrong total": ("info total", lambda data: data.attrs.update(total=7)),
    "lacking": ("error missing_key", drop(FORCE)),
    "extra": ("error missing_key", lambda data: data.copy(FORCE, "demo_1/obs/torque")),
    "other shape": ("error shape", anew(FORCE, lambda old: np.hstack([old, old[:, :1]]))),
    "wide reward": ("error shape", each(anew("rewards", lambda old: np.zeros((LENGTH, 2))))),
    "one obs more": (
        "error lengths",
        each(anew("obs/force", lambda old: old[[*range(LENGTH), -1]])),
    ),
    "short reward": ("error lengths", anew("demo_3/rewards", lambda old: old[:-2])),
    "other type": ("info dtype", anew(FORCE, lambda old: old.astype(np.float32))),
    "text": ("error dtype", each(anew("obs/force", lambda old: np.full((LENGTH, 2), b"x")))),
    "channels first": ("error image_layout", images(lambda old: old.transpose(0, 3, 1, 2))),
    "float images": ("info image_range", images(lambda old: old.astype(np.float32) / 255)),
    "blank": ("warning blank_images", put("demo_3/obs/agentview_image", slice(5, 9), 0)),
    "opengl": ("warning upside_down", lambda data: data.attrs.update(OPENGL)),
    "unknown": ("error mask_unknown", mask("train", "demo_0", "demo_99")),
    "overlapping": ("error mask_overlap", mask("train", "demo_0", "demo_4")),
    "empty mask": ("warning mask_empty", mask("train")),
    "twice in mask": ("warning mask_twice", mask("train", "demo_0", "demo_0")),
    "beyond": ("warning action_range", put("demo_2/actions", (slice(3, 5), 0), -1.2)),
    "dead": ("warning constant", each(put("obs/force", ..., 0), put("next_obs/force", ..., 0))),
    "duplicate": ("warning duplicate", lambda data: data.copy("demo_2", "demo_7")),
    "look ahead": ("error misaligned", each(look_ahead)),
    "two early": ("warning lag", displaced(slice(-2), slice(2, None))),
    "five late": ("warning lag", displaced(slice(5, None), slice(-5))),
    "wrong next": ("error next_obs", each(anew("next_obs/force", lambda old: np.roll(old, 1, 0)))),
    "idle": ("warning idle", each(idle)),
    "jump": ("warning jump", jump),
    "lost time": ("warning clock", lost_time),
}
"""Level and code of what the doctor finds, and the fault; the second fault of a finding at night."""
FIRST = {finding: name for name, (finding, _) in reversed(FAULTS.items())}


def damage(path, name=None, fault=None):
    with h5py.File(path, "r+") as file:
        data = file["data"]
        (fault or FAULTS[name][1])(data)
        if name != "wrong total":
            lengths = [len(demo["actions"]) for demo in data.values() if "actions" in demo]
            data.attrs["total"] = sum(lengths)


def test_short_demos_are_looked_at_and_not_deleted(clean):
    damage(clean, fault=lambda data: cut(data["demo_3"], slice(5)))
    report = report_of(clean)
    assert codes(report) == {"short_demos": "warning"}
    (finding,) = report["findings"]
    assert finding["repair"] is None
    assert "1 demo is very short" in finding["what"]
    assert "imitate dataset playback" in finding["advice"]
    as_printed(finding["advice"].rpartition("others: ")[2])
    with h5py.File(clean) as file:
        assert len(file["mask/usual"]) == len(file["data"]) - 1


def test_a_clean_file_has_no_finding(clean):
    report = report_of(clean, exit_code=0)
    assert report["findings"] == []
    assert (report["demos"], report["steps"]) == (DEMOS, DEMOS * LENGTH)
    images = 2 * DEMOS * LENGTH * 24 * 16 * 3
    assert report["read_bytes"] >= images


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if FIRST[finding] == name else [pytest.mark.nightly])
        for name, (finding, _) in FAULTS.items()
    ],
)
def test_the_printed_command_repairs(clean, name):
    damage(clean, name)
    before = clean.read_bytes()
    report = report_of(clean)
    level, code = FAULTS[name][0].split()
    assert codes(report) == {code: level}, "one fault, one kind of finding"
    finding = report["findings"][0]
    path = rf"'?{re.escape(str(clean.parent))}(/[\w.]+)'?"
    shown = json.loads(re.sub(path, r"FOLDER\1", json.dumps(report["findings"])))
    assert shown == json.loads(FINDINGS.read_text())[name]
    words = shlex.split(finding["repair"])
    if words[2] == "delete":
        assert finding["advice"], "a repair that deletes is not the only offer"
    assert as_printed(finding["repair"], code=None).exit_code in (0, 1, 3)
    fixed = words[words.index("--out") + 1]
    assert codes(report_of(fixed)) == {}, "nothing else came up"
    assert clean.read_bytes() == before


def test_what_would_be_deleted_can_be_kept_out_of_the_training(clean):
    damage(clean, "nan")
    (finding,) = report_of(clean)["findings"]
    as_printed(finding["advice"].rpartition("others: ")[2])
    with h5py.File(clean) as file:
        assert b"demo_2" not in file["mask/without_nan"][()]
        assert len(file["mask/without_nan"]) == DEMOS - 1


# ---- --fix -----------------------------------------------------------------------------------------


def test_fix_repairs_everything_in_one_new_file(clean, tmp_path):
    for name in ("nan", "short reward", "opengl", "beyond", "overlapping", "wrong next"):
        damage(clean, name)
    before = clean.read_bytes()
    out = tmp_path / "a folder" / "fixed file.hdf5"
    assert "repaired nan" in call("dataset doctor --fix", clean, "--out", out).output
    assert clean.read_bytes() == before
    with h5py.File(clean) as old, h5py.File(out) as new:
        assert sorted(new["data"]) == ["demo_0", "demo_1", "demo_3", "demo_4", "demo_5"]
        assert new["data"].attrs["total"] == 4 * LENGTH + (LENGTH - 2)
        assert new["data/demo_3"].attrs["num_samples"] == LENGTH - 2
        images = old["data/demo_0/obs/agentview_image"][()]
        np.testing.assert_array_equal(new["data/demo_0/obs/agentview_image"][()], images[:, ::-1])
        assert "next_obs" not in new["data/demo_0"]
        assert new["mask/train"][()].tolist() == [b"demo_0"]
        assert new["mask/valid"][()].tolist() == [b"demo_4", b"demo_5"]
        assert new["data"].attrs["env_args"] == old["data"].attrs["env_args"]
        assert new["data/demo_0"].attrs["success"]


def test_shifted_observations_are_those_of_before_the_action(clean, tmp_path):
    with h5py.File(clean) as file:
        true = file["data/demo_0/obs/robot0_eef_pos"][()]
    damage(clean, "look ahead")
    out = tmp_path / "fixed.hdf5"
    call("dataset doctor --fix", clean, "--out", out)
    with h5py.File(clean) as old, h5py.File(out) as new:
        demo = new["data/demo_0"]
        np.testing.assert_array_equal(demo["obs/robot0_eef_pos"], true[1:])
        np.testing.assert_array_equal(demo["actions"], old["data/demo_0/actions"][1:])
        np.testing.assert_array_equal(demo["rewards"], old["data/demo_0/rewards"][1:])


def test_idle_steps_are_cut_down_to_five(clean, tmp_path):
    damage(clean, "idle")
    out = tmp_path / "fixed.hdf5"
    call("dataset doctor --fix", clean, "--out", out)
    with h5py.File(clean) as old, h5py.File(out) as new:
        kept = [*range(25), *range(40, LENGTH)]
        np.testing.assert_array_equal(new["data/demo_0/actions"], old["data/demo_0/actions"][kept])


def test_only_some(clean, tmp_path):
    damage(clean, "nan")
    damage(clean, "beyond")
    out = tmp_path / "fixed.hdf5"
    report = call.json("dataset doctor --fix --only action_range", clean, "--out", out, code=3)
    assert codes(report) == {"nan": "error"}
    assert [finding["code"] for finding in report["repaired"]] == ["action_range"]
    with h5py.File(out) as file:
        assert file["data/demo_2/actions"][3, 0] == -1


def test_in_place_keeps_the_old_file(clean):
    damage(clean, "nan")
    before = clean.read_bytes()
    doctor(clean, "--fix --in-place")
    assert clean.with_name("demos.hdf5.bak").read_bytes() == before
    assert report_of(clean)["demos"] == DEMOS - 1
    assert sorted(path.name for path in clean.parent.iterdir()) == ["demos.hdf5", "demos.hdf5.bak"]


def test_many_demos_get_a_short_command(clean):
    with h5py.File(clean, "r+") as file:
        for number in range(10, 40):
            file.copy(f"data/demo_{number % DEMOS}", file["data"], name=f"demo_{number}")
    (finding,) = [f for f in report_of(clean)["findings"] if f["code"] == "duplicate"]
    assert len(finding["where"]) == 30
    assert "--fix --only duplicate" in finding["repair"]


# ---- what a person reads -----------------------------------------------------------------------------


def test_text(clean):
    damage(clean, "nan")
    lines = doctor(clean, code=3).stdout.splitlines()
    assert lines[1] == "error    nan: 1 demo has NaN or inf in 'obs/force'"
    assert lines[2] == "         where:  demo_2 obs/force steps 7"
    words = ["delete", clean, "--demos", "demo_2", "--out", clean.with_name("demos_fixed.hdf5")]
    command = shlex.join(["imitate", "dataset", *map(str, words)])
    assert lines[3] == f"         repair: {command}"


# ---- damaged and foreign files ------------------------------------------------------------------------


def test_foreign_files(tmp_path):
    other = tmp_path / "other.hdf5"
    other.write_text("no")
    for path in (other, tmp_path / "none.hdf5"):
        doctor(path, code=2)
    with h5py.File(other, "w") as file:
        file["x"] = 1
    assert codes(report_of(other, exit_code=3)) == {"file": "error"}
    with h5py.File(other, "w") as file:
        file.create_group("data")
    assert set(codes(report_of(other, exit_code=3))) == {"no_demos", "env_args"}


def test_an_unreadable_chunk_is_found_and_its_demo_left_out(clean, tmp_path):
    with h5py.File(clean, "r+") as file:
        demo = file["data/demo_3"]
        replace(demo, "obs/force", demo["obs/force"][()], chunks=(10, 2), fletcher32=True)
        chunk = demo["obs/force"].id.get_chunk_info(2)
    with clean.open("r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(b"\xff\x00\xff\x00")
    report = report_of(clean, exit_code=3)
    (finding,) = report["findings"]
    assert finding["code"] == "unreadable"
    assert finding["where"] == [{"demo": "demo_3", "key": "obs/force", "steps": [[0, LENGTH]]}]
    as_printed(finding["repair"])
    assert report_of(clean.with_name("demos_fixed.hdf5"), exit_code=0)["demos"] == DEMOS - 1


def test_cut_and_flipped_files_are_reported(clean, tmp_path):
    content = clean.read_bytes()
    random = np.random.default_rng(0)
    broken = tmp_path / "broken.hdf5"
    for _ in range(8):
        broken.write_bytes(content[: random.integers(9, len(content))])
        assert doctor(broken, code=None).exit_code in (2, 3)
        flipped = bytearray(content)
        for at in random.integers(0, 20_000, size=4):
            flipped[at] ^= 1 << random.integers(8)
        broken.write_bytes(flipped)
        done = doctor(broken, "--json", code=None)
        assert done.exit_code in (0, 1, 2, 3)
        assert done.exit_code == 2 or json.loads(done.stdout)["path"] == str(broken)
