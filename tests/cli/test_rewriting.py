"""Commands that write a changed copy of a file: dataset actions, convert, embed, migrate-env, set-env."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from imitate.cli.main import app
from imitate.data import DatasetFile
from imitate.policy import language
from imitate.system.instructions import Instructions
from tests.demo_files import make_demo_file

DATA = Path(__file__).parents[1] / "data"
FIXTURES = DATA / "formats" / "fixtures"
ROBOT = {"env_name": "my_arm", "type": 4, "env_kwargs": {"port": "/dev/arm"}}
SIMULATED = {"env_name": "myarm.envs:Reach-v0", "type": 2, "env_kwargs": {}}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder: demonstrations of a robot, others with instructions, and files of other formats."""
    monkeypatch.setattr(language, "TransformersText", Lengths)
    hand = {"hand_pos": 3, "hand_quat": 4}
    words = {"num_demos": 2, "length": 5, "filter_keys": {"train": [0]}, "env_meta": ROBOT}
    make_demo_file(tmp_path / "real.hdf5", obs_dims=hand, **words)
    told = make_demo_file(tmp_path / "told.hdf5", num_demos=3, length=4)
    with h5py.File(told, "a") as demos:
        for demo, said in zip(demos["data"].values(), ("stack", "lift it", "stack"), strict=True):
            demo.attrs["language"] = said
    for name in ("walker2d.hdf5", "pendulum.npz"):
        shutil.copy(FIXTURES / name, tmp_path)
    shutil.copy(DATA / "fixtures" / "robosuite_1.4.1_lift.hdf5", tmp_path / "old.hdf5")
    return tmp_path


class Lengths:
    """A stand-in for the text model. A text's vector: its length, and 1."""

    def __init__(self, name):
        assert name == "some/model"

    def embed(self, texts):
        return np.array([[len(text), 1] for text in texts], dtype=np.float32)


def env_of(path):
    with DatasetFile(path) as read:
        return read.env_meta


# ---- where to ------------------------------------------------------------------------------------

OUT = """
actions real.hdf5 --rotation euler --out
convert walker2d.hdf5
embed told.hdf5 --encoder some/model --out
set-env real.hdf5 --env a:B-v0 --out
delete real.hdf5 --demos demo_1 --out
merge real.hdf5 real.hdf5 --out
filter real.hdf5 few --first 1 --out
subset real.hdf5 --out
""".strip().splitlines()


@pytest.mark.parametrize("line", OUT)
def test_another_file_is_not_replaced_unasked(call, folder, line):
    """The existing file loses nothing, and the source stays as it was."""
    sources = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "out.npz" if "embed" in line else folder / "out.hdf5").write_text("mine")
    line += " out.npz" if "embed" in line else " out.hdf5"
    refused = call(f"dataset {line}", code=2).stderr
    assert refused.count("\n") == 1 and "exists" in refused and "--overwrite" in refused
    assert (folder / line.split()[-1]).read_text() == "mine"
    call(f"dataset {line} --overwrite")
    assert (folder / line.split()[-1]).stat().st_size > 100
    assert {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name in sources
    } == sources


@pytest.mark.parametrize(
    "line", ["actions real.hdf5 --rotation euler", "migrate-env old.hdf5 --check 0"]
)
def test_in_place_keeps_the_old_file(call, folder, line):
    name = line.split()[1]
    before = (folder / name).read_bytes()
    call(f"dataset {line} --in-place")
    assert (folder / f"{name}.bak").read_bytes() == before != (folder / name).read_bytes()


# ---- actions -------------------------------------------------------------------------------------


def test_actions_of_poses(call):
    line = "dataset actions real.hdf5 --out abs.hdf5 --to absolute --action-dict"
    printed = call(f"{line} --pose-keys hand_pos,hand_quat --scale 0.05,0.5").output
    assert "2 demos, 10 steps, delta -> absolute, axis_angle" in printed
    assert "action_dict/abs_rot_6d" in printed
    assert "poses from observations; clipped in 0 steps (0.0%)" in printed
    with h5py.File("abs.hdf5") as written:
        assert written["data/demo_1/actions"].shape == (5, 7)
    report = call.json("dataset actions real.hdf5 --out six.hdf5 --rotation rot6d")
    assert (report["was"], report["now"], report["rotation"]) == ("delta", "delta", "rot6d")
    assert report["keys"] == ["actions"]


# ---- environments --------------------------------------------------------------------------------


def test_another_environment_in_place_in_a_copy_and_back_to_a_robot(call, folder):
    def content(path):
        with h5py.File(path) as read:
            return read["data/demo_0/obs/hand_pos"][()].tolist(), list(read["mask"])

    before = content("real.hdf5")
    line = "dataset set-env real.hdf5 --env"
    call(f"{line} myarm.envs:Reach-v0 --kwargs '{{\"steps\": 9}}' --out new.hdf5")
    assert env_of("new.hdf5") == {**SIMULATED, "env_kwargs": {"steps": 9}}
    assert env_of("real.hdf5") == ROBOT and content("new.hdf5") == before
    names = sorted(path.name for path in folder.iterdir())
    assert json.dumps(ROBOT) in call(f"{line} myarm.envs:Reach-v0 --in-place").stdout
    assert env_of("real.hdf5") == SIMULATED and content("real.hdf5") == before
    assert sorted(path.name for path in folder.iterdir()) == names
    lift = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": "Panda"}}
    Path("lift.json").write_text(json.dumps(lift))
    call(f"{line} lift.json --in-place")
    assert env_of("real.hdf5") == lift
    call(f"{line} my_arm --type 4 --kwargs '{{}}' --in-place")
    assert env_of("real.hdf5") == {**ROBOT, "env_kwargs": {}}


@pytest.mark.nightly
def test_what_a_migration_would_change(call, folder):
    before = (folder / "old.hdf5").read_bytes()
    printed = call("dataset migrate-env old.hdf5 --dry-run --check 1").output
    for words in (
        'control_delta: true -> input_type "delta" (renamed)',
        "model_file of the demos: ",
        "demo_0: 33 steps played, hand at most ",
        "recorded: solved, now: solved",
        "nothing is written (--dry-run)",
    ):
        assert words in printed
    assert (folder / "old.hdf5").read_bytes() == before


def test_a_migration_in_place_and_again(call):
    report = call.json("dataset migrate-env old.hdf5 --in-place --check 0")
    assert report["written"]
    assert report["not_checked"] == "not wanted"
    assert {"key", "old", "new", "reason"} == set(report["changes"][0])
    assert any(change["key"].endswith("control_delta") for change in report["changes"])
    assert env_of("old.hdf5")["env_kwargs"]["controller_configs"]["type"] == "BASIC"
    assert "nothing to change" in call("dataset migrate-env old.hdf5 --in-place").output


# ---- instructions --------------------------------------------------------------------------------


def test_a_table_of_instructions_that_training_reads(call):
    line = "dataset embed told.hdf5 --encoder some/model --out table.npz"
    printed = call(f"{line} --text 'open the door'").output
    assert "table.npz: 3 instructions, vectors of 2" in printed
    table = Instructions.load("table.npz")
    assert table.names == ("lift it", "open the door", "stack")
    assert table.vector("lift it").tolist() == [7.0, 1.0]


# ---- other formats -------------------------------------------------------------------------------


def test_the_format_is_recognised_and_the_report_printed(call):
    printed = call("dataset convert walker2d.hdf5 new/walker.hdf5").stdout
    assert "(d4rl)" in printed and "4 demos, 191 steps" in printed
    assert "renamed: observations -> obs/flat" in printed
    assert [path.name for path in Path("new").iterdir()] == ["walker.hdf5"]
    report = call.json("dataset convert pendulum.npz p.hdf5 --env Pendulum-v1")
    assert (report["source_format"], report["target_format"]) == ("imitation", "robomimic")
    assert (report["demos"], report["steps"]) == (2, 400)
    assert env_of("p.hdf5")["env_name"] == "Pendulum-v1"
    listed = call("dataset convert --formats").stdout.splitlines()
    ways = {line.split()[0]: line.split()[1] for line in listed}
    assert (ways["robomimic"], ways["d4rl"]) == ("read,", "read")


def test_overwriting_happens_at_the_end(call, folder):
    call("dataset convert pendulum.npz o.hdf5")
    kept = Path("o.hdf5").read_bytes()
    np.savez("bad.npz", obs=np.zeros((4, 2)), acts=np.array([[0.0], [np.nan]]),
             terminal=[True, True], indices=[1])  # fmt: skip
    names = sorted(path.name for path in folder.iterdir())
    failed = call("dataset convert bad.npz o.hdf5 --overwrite", code=2)
    assert len(failed.stderr.splitlines()) == 1
    assert Path("o.hdf5").read_bytes() == kept
    assert sorted(path.name for path in folder.iterdir()) == names
    call("dataset convert walker2d.hdf5 o.hdf5 --overwrite")
    assert env_of("o.hdf5")["env_name"] == "Walker2d-v5"


def test_damage_anywhere_is_one_line(folder):
    """Cut and bit-flipped files: a result or one line, never a crash."""
    random = np.random.default_rng(0)
    for name in ("walker2d.hdf5", "pendulum.npz"):
        whole = (folder / name).read_bytes()
        for number in range(8):
            broken = bytearray(whole)
            if number % 2:
                broken = broken[: random.integers(1, len(whole))]
            else:
                broken[random.integers(len(whole))] ^= 1 << random.integers(8)
            (folder / name).write_bytes(broken)
            words = ["dataset", "convert", str(folder / name), str(folder / "o.hdf5")]
            done = CliRunner().invoke(app, [*words, "--overwrite"])
            assert done.exit_code in (0, 2), (name, number, done.output, done.exception)


def test_images_as_jpeg(call, demo_file):
    demo_file(num_demos=1, image=True)
    for storage, kind in (("jpeg", "jpeg"), ("gzip", "gzip"), ("as-source", "raw")):
        call(f"dataset convert demos.hdf5 {storage}.hdf5 --images {storage}")
        with DatasetFile(f"{storage}.hdf5") as file:
            assert file.storage("demo_0", "obs/agentview_image") == kind
