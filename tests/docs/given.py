"""Files that pages of the documentation take as given: recordings, configurations, a robot, certificates."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import trustme

from imitate.data.formats.convert import convert
from tests.docs.shortened import shortened
from tests.loading import load

tutorials = load("scripts/tutorials.py")
samples = load("tests/data/formats/samples.py")
EXAMPLES = tutorials.ROOT / "examples"
MODULES = ("table_world", "point_world", "my_package", "my_robots")
"""Trusted: a reader trusts the modules that the commands name."""
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
ARM = """
from tests.deploy.fake_robot import Pushing
class Device(Pushing):
    def __init__(self, **options):
        super().__init__(action=[0.5, -0.5])
"""
RECORDINGS = (
    *(
        "demos",
        "mixed",
        "stack",
        "datasets/lift/scripted",
        "datasets/lift/mixed",
        "datasets/stack/scripted",
    ),
    *("datasets/pick_place_can/scripted", "datasets/robomimic/can/ph/low_dim_v15"),
)
"""Names of recordings on the pages, without ending."""
MY_PACKAGE = """
import gymnasium
from gymnasium.envs.classic_control import PendulumEnv
gymnasium.register("MyEnv-v0", entry_point=PendulumEnv, max_episode_steps=200)
"""


def install(folder):
    """Put the stand-ins for a reader's packages, robot and simulator into a folder; the path of their modules."""
    site = folder / ".site"
    site.mkdir()
    tutorials.install(EXAMPLES / "point_world", site)
    tutorials.install(tutorials.ROOT / "tests" / "docs" / "table_world", site)
    (site / "my_package").mkdir()
    (site / "my_package" / "__init__.py").write_text(MY_PACKAGE)
    (site / "my_package" / "envs.py").write_text("import point_world")  # with its Reach-v0
    robot = (EXAMPLES / "own_robot.py").read_text()
    (site / "my_robots.py").write_text(robot.replace("class PointArm", "class Arm") + ARM)
    (folder / "examples").symlink_to(EXAMPLES)
    return site


def fill(terminal):
    """Make what many pages take as given, with stand-ins for robosuite; what a robot has is in ``robot``."""
    terminal.run("imitate collect --env table_world:Lift-v0 --num 12 --out lift.hdf5")
    with h5py.File("lift.hdf5", "r+") as file:
        file["data"].attrs["control_freq"] = 20.0  # that of robosuite's tasks
    for name in RECORDINGS:
        Path(f"{name}.hdf5").parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("lift.hdf5", f"{name}.hdf5")
    for task, env in (("cartpole", "CartPole-v1"), ("pendulum", "Pendulum-v1")):
        shutil.copy(samples.FIXTURES / f"{task}.npz", f"{task}_expert.npz")
        terminal.run(f"imitate dataset convert {task}_expert.npz {task}.hdf5 --env {env}")
    terminal.run("imitate config init lift.hdf5 --out ready.json --no-forecast")
    terminal.run(shortened("imitate train --config robosuite/lift/bc --output-dir trained"))
    (checkpoint,) = Path("trained/lift_bc").glob("*/checkpoints/last.pth")
    for name in ("best.pth", "first.pth", "second.pth"):
        shutil.copy(checkpoint, name)
    _robots_files(terminal)


def _robots_files(terminal):
    """Recordings of a robot, and a policy of it."""
    robot = Path("robot")
    robot.mkdir()
    terminal.run("imitate collect --env point_world:Reach-v0 --num 4 --out robot/demos.hdf5")
    with h5py.File(robot / "demos.hdf5", "r+") as file:
        file["data"].attrs["control_freq"] = 10.0  # the rate of the robot
    subprocess.run([sys.executable, "-c", RECORDING], check=True)
    Path("own_robot.json").symlink_to("examples/own_robot.json")
    training = (
        "imitate train --config own_robot.json --dataset robot/demos.hdf5 --output-dir trained"
    )
    terminal.run(shortened(training))
    (checkpoint,) = Path("trained/own_robot").glob("*/checkpoints/last.pth")
    for name in ("last.pth", "best.pth"):
        shutil.copy(checkpoint, robot / name)


def take_robots_files():
    """Take those of the robot in place of the simulator's."""
    for path in Path("robot").iterdir():
        path.replace(path.name)


def prepare(page):
    """Make in the working folder what this page takes as given, and others do not."""
    SPECIAL.get(page, lambda: None)()


def _curation():
    """Forces, of which one is NaN, a filter key, and two files of one kind."""
    with h5py.File("demos.hdf5", "r+") as file:
        for demo in file["data"].values():
            demo["obs/force"] = np.ones((len(demo["actions"]), 3))
        file["data/demo_2/obs/force"][-1] = np.nan
        file["mask/better"] = [b"demo_0", b"demo_1"]
    for name in "ab":
        shutil.copy("lift.hdf5", f"{name}.hdf5")


def _copy(source, name):
    return lambda: shutil.copy(source, name)


def _run(name):
    shutil.copytree(next(Path("trained/lift_bc").glob("*")), name)


def _sweep():
    """A configuration with values to try."""
    tree = json.loads(Path("ready.json").read_text())
    tree["train"]["seed"] = [1, 2, 3]
    Path("my_sweep.json").write_text(json.dumps(tree))


def _cluster():
    _run("runs/lift_bc/20260101120000")
    shutil.copy("ready.json", "my.json")
    _sweep()


def _online_rl():
    """Another name of a recording and of a configuration, and the policies to build upon."""
    Path("datasets/pendulum").mkdir()
    shutil.copy("pendulum.hdf5", "datasets/pendulum/expert.hdf5")
    shutil.copy("ready.json", "my_config.json")
    for name in ("lift_bc", "can_bc"):
        _run(f"runs/{name}/20260101120000")


def _images(path):
    """A recording with the images of two cameras."""
    shutil.copy("lift.hdf5", path)
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            pictures = np.zeros((len(demo["actions"]), 84, 84, 3), np.uint8)
            for camera in ("agentview", "robot0_eye_in_hand"):
                demo[f"obs/{camera}_image"] = pictures


def _policies():
    """A configuration, and two experiments with a run each."""
    shutil.copy("ready.json", "my.json")
    for name in "ab":
        _run(f"runs/{name}/20260101120000")


def _training():
    """Runs to compare, values to try, and images."""
    _images("datasets/lift/image_84.hdf5")
    _sweep()
    for name in ("lift_flow", "one"):
        _run(f"runs/{name}/20260101120000")


def _data():
    """Another recording, a configuration, and a folder of recordings."""
    shutil.copy("lift.hdf5", "more.hdf5")
    shutil.copy("ready.json", "my.json")
    Path("recordings").mkdir()
    shutil.copy("lift.hdf5", "recordings/lift.hdf5")


def _formats():
    Path("demos.hdf5").unlink()  # which the page makes
    convert("lift.hdf5", "LEROBOT_FOLDER", to_format="lerobot")


def _d3rlpy():
    Path("demos.hdf5").unlink()  # which the page makes
    with h5py.File("pendulum.hdf5") as recorded, h5py.File("buffer.h5", "w") as file:
        file["columns"] = [b"observations", b"actions", b"rewards", b"terminated"]
        file["num_episodes"], file["version"] = len(recorded["data"]), "2.1"
        for i, demo in enumerate(recorded["data"].values()):
            file[f"observations_{i}"] = demo["obs/flat"][:]
            file[f"actions_{i}"] = demo["actions"][:]
            file[f"rewards_{i}"] = demo["rewards"][:][:, None]
            file[f"terminated_{i}"] = False


def _diffusion_policy():
    samples.diffusion_policy(Path("replay_buffer.zarr"))
    samples.zipped(Path("recording.zarr.zip"))


def _lerobot():
    load("tests/interop/lerobot/conftest.py").Recorded("act_images_0.6.1", Path("FOLDER"))


def _deployment():
    """A file of limits, certificates, a token, and recordings."""
    Path("lift.hdf5").unlink()  # which the page records
    Path("arm.json").write_text(json.dumps({"low": [-1, -1], "high": [1, 1], "step": 0.5}))
    for name in ("recorded", "training"):
        shutil.copy("demos.hdf5", f"{name}.hdf5")
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    server.cert_chain_pems[0].write_to_path("cert.pem")
    server.private_key_pem.write_to_path("key.pem")
    authority.cert_pem.write_to_path("authority.pem")
    shutil.copy("own_robot.json", "my.json")
    Path("token.txt").write_text("a" * 40)


SPECIAL = {
    "docs/cluster.md": _cluster,
    "docs/curation.md": _curation,
    "docs/data.md": _data,
    "docs/deployment.md": _deployment,
    "docs/encoders.md": lambda: _images("demos.hdf5"),
    "docs/formats.md": _formats,
    "docs/from_d3rlpy.md": _d3rlpy,
    "docs/from_diffusion_policy.md": _diffusion_policy,
    "docs/from_lerobot.md": _lerobot,
    "docs/from_sb3.md": _copy("pendulum.hdf5", "expert.hdf5"),
    "docs/offline_rl.md": lambda: _run("runs/bc/20250101000000"),
    "docs/training.md": _training,
    "docs/online_rl.md": _online_rl,
    "docs/policies.md": _policies,
    "docs/rendering.md": lambda: _images("lift_84.hdf5"),
    "docs/hierarchy.md": _copy("lift.hdf5", "mine.hdf5"),
}
"""What `prepare` calls."""
