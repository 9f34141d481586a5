"""Commands of README.md, the landing page and the guide for own data run in page order, on small data."""

import h5py
import pytest

from tests.docs.pages import command_lines
from tests.loading import load
from tests.point_policy import save_point_policy

FEW = "--epochs 1 --set experiment.epoch_every_n_steps=2 --set experiment.validation_epoch_every_n_steps=2"
FEW += " --set train.batch_size=4 --set train.num_threads=1 --set experiment.rollout.enabled=false"
WARNINGS = 1
"""Exit code of the doctor for a file with warnings."""
PROGRAMS = ("imitate", "python", "bash", "pip")
ADDED = {
    "imitate config init": "--no-forecast",
    # The images here are smaller than its crops.
    "imitate train --config bc/bc_image": f"{FEW} --set observation.encoder.rgb.obs_randomizer_class=null",
    "imitate train": FEW,
    "imitate eval": "-n 2 --workers 1",
    "imitate run": "--steps 3",
}
"""Options that make commands short; the last of an option counts."""
NOT_RUN = (
    "bash scripts/quickstart.sh",  # minutes; tests/scripts has its parts
    "pip install",
)
RECORDING = """
import os, sys
sys.path.insert(0, "examples")
from write_own_dataset import PointRobot, Teacher, record

class Dies(PointRobot):
    episodes = 0
    def reset(self):
        self.episodes += 1
        return super().reset() if self.episodes < 9 else os._exit(0)

for number, day in enumerate(("monday", "tuesday")):
    record(PointRobot(seed=number), Teacher(), f"{day}.hdf5", 3)
record(Dies(seed=2), Teacher(), "own.hdf5", 100)
"""
"""Records two days; the third file is left in its unfinished form."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory, preloaded_commands):
    """A folder with what the pages take as given: recordings, a robot, a checkpoint."""
    tutorials = load("scripts/tutorials.py")
    reader = tutorials.Reader(tmp_path_factory.mktemp("reader"), preloaded_commands)
    tutorials.install(tutorials.ROOT / "examples" / "point_world", reader.site)
    reader.env["IMITATE_TRUST_MODULES"] = "point_world"
    reader.run("imitate collect --env point_world:Reach-v0 --num 4 --out demos.hdf5")
    with h5py.File(reader.folder / "demos.hdf5", "r+") as file:
        file["data"].attrs["control_freq"] = 10.0  # the rate of the robot below
    robot = (tutorials.ROOT / "examples" / "own_robot.py").read_text()
    (reader.folder / "my_robots.py").write_text(robot.replace("class PointArm", "class Arm"))
    reader.run(f"python - <<'END'\n{RECORDING}END")
    (reader.folder / "own_robot.json").symlink_to("examples/own_robot.json")
    save_point_policy(reader.folder / "last.pth")
    return reader


def short(line):
    """The command with the options that make it short; the doctor may find something."""
    if line.startswith("imitate dataset doctor"):
        return f"({line.partition(' #')[0]}) || test $? = {WARNINGS}"
    for begin, options in ADDED.items():
        if line.startswith(begin):
            command, comment, rest = line.partition(" #")
            return f"{command.rstrip()} {options}{comment}{rest}"
    return line


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", ["README.md", "docs/index.md", "docs/how_to.md", "docs/own_data.md"]
)
def test_the_commands_of_a_page_run_one_after_the_other(page, reader):
    (reader.folder / "my.json").unlink(missing_ok=True)  # of another page
    for line in command_lines(page, *PROGRAMS):
        if not line.startswith(NOT_RUN):
            reader.run(short(line))


def test_commands_are_made_short_in_front_of_their_comments():
    assert (
        short("imitate run runs/my   # on a robot") == "imitate run runs/my --steps 3 # on a robot"
    )
    assert short("ls  # all") == "ls  # all"


def test_a_command_that_does_not_work_is_found(reader):
    with pytest.raises(RuntimeError, match="nobody.hdf5"):
        reader.run(short("imitate config init nobody.hdf5 --out my.json"))
