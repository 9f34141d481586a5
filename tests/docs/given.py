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
from tests.docs.pages import blocks
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
RECORDINGS = """
demos mixed stack datasets/lift/scripted datasets/lift/mixed datasets/stack/scripted
datasets/pick_place_can/scripted datasets/robomimic/can/ph/low_dim_v15
"""
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
    for name in RECORDINGS.split():
        Path(f"{name}.hdf5").parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("lift.hdf5", f"{name}.hdf5")
    for task, env in (("cartpole", "CartPole-v1"), ("pendulum", "Pendulum-v1")):
        shutil.copy(samples.FIXTURES / f"{task}.npz", f"{task}_expert.npz")
        terminal.run(f"imitate dataset convert {task}_expert.npz {task}.hdf5 --env {env}")
    shutil.copy("lift.hdf5", "image.hdf5")
    with h5py.File("image.hdf5", "r+") as file:
        for demo in file["data"].values():
            pictures = np.zeros((len(demo["actions"]), 84, 84, 3), np.uint8)
            for camera in ("agentview", "robot0_eye_in_hand"):
                demo.create_dataset(f"obs/{camera}_image", data=pictures, compression="gzip")
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
    training = "imitate train --config own_robot.json --dataset robot/demos.hdf5"
    terminal.run(shortened(f"{training} --output-dir trained"))
    (checkpoint,) = Path("trained/own_robot").glob("*/checkpoints/last.pth")
    for name in ("last.pth", "best.pth"):
        shutil.copy(checkpoint, robot / name)


def take_robots_files():
    """Take those of the robot in place of the simulator's."""
    for path in Path("robot").iterdir():
        path.replace(path.name)


COPIES = """
cluster: trained/lift_bc/* runs/lift_bc/20260101120000, ready.json my.json
curation: lift.hdf5 a.hdf5, lift.hdf5 b.hdf5
data: lift.hdf5 more.hdf5, ready.json my.json, lift.hdf5 recordings/lift.hdf5
encoders: image.hdf5 demos.hdf5
from_sb3: pendulum.hdf5 expert.hdf5
interactive: lift.hdf5 other.hdf5
offline_rl: trained/lift_bc/* runs/bc/20250101000000
online_rl: ready.json my_config.json
policies: lift.hdf5 mine.hdf5
robots: demos.hdf5 recorded.hdf5, demos.hdf5 training.hdf5, own_robot.json my.json
rl_with_demonstrations: pendulum.hdf5 datasets/pendulum/expert.hdf5, ready.json my_config.json
rl_with_demonstrations: trained/lift_bc/* runs/lift_bc/20260101120000, trained/lift_bc/* runs/can_bc/20260101120000
policies: trained/lift_bc/* runs/a/20260101120000
environments: image.hdf5 lift_84.hdf5
training: image.hdf5 datasets/lift/image_84.hdf5, trained/lift_bc/* runs/lift_flow/20260101120000
training: trained/lift_bc/* runs/lift/bc,seed=1/20260101120000
training: lift.hdf5 failed.hdf5, trained/lift_bc/* runs/one/20260101120000
"""
"""Page of docs/: file or folder of `fill` and its place on this page, which others do not take as given."""


def prepare(page):
    """Make in the working folder what this page takes as given, and others do not."""
    lines = (line.split(": ") for line in COPIES.strip().splitlines())
    pairs = ", ".join(pairs for name, pairs in lines if page == f"docs/{name}.md")
    for source, place in (pair.split() for pair in pairs.split(", ") if pair):
        found = next(Path().glob(source))
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if found.is_dir() else shutil.copy)(found, place)
    SPECIAL.get(page, lambda: None)()


def _curation():
    """Forces, of which one is NaN, and a filter key."""
    with h5py.File("demos.hdf5", "r+") as file:
        for demo in file["data"].values():
            demo["obs/force"] = np.ones((len(demo["actions"]), 3))
        file["data/demo_2/obs/force"][-1] = np.nan
        file["mask/better"] = [b"demo_0", b"demo_1"]


def _sweep():
    """The configuration with values to try that docs/training.md shows."""
    (text,) = (text for text in blocks("docs/training.md", "json") if "my_sweep" in text)
    Path("my_sweep.json").write_text(text)
    axes = {"config": ["bc", "bc_rnn_gmm", "flow_policy"], "train.seed": [1, 2, 3]}
    runs = [f"{config},seed={seed}" for config in axes["config"] for seed in axes["train.seed"]]
    Path("runs/lift").mkdir(parents=True, exist_ok=True)
    Path("runs/lift/sweep.json").write_text(json.dumps({"axes": axes, "runs": runs}))


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
    convert("lift.hdf5", "DATASET_FOLDER", to_format="lerobot")


def _tdmpc2():
    model = tutorials.ROOT / "tests/interop/fixtures/tdmpc2/model.pt"
    shutil.copy(model, "walker-run-1.pt")


def _robots():
    """A file of limits."""
    Path("lift.hdf5").unlink()  # which the page records
    Path("arm.json").write_text(json.dumps({"low": [-1, -1], "high": [1, 1], "step": 0.5}))


def _deployment():
    """A file of limits, certificates and a token."""
    _robots()
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    server.cert_chain_pems[0].write_to_path("cert.pem")
    server.private_key_pem.write_to_path("key.pem")
    authority.cert_pem.write_to_path("authority.pem")
    Path("token.txt").write_text("a" * 40)


SPECIAL = {
    "docs/cluster.md": _sweep,
    "docs/curation.md": _curation,
    "docs/deployment.md": _deployment,
    "docs/formats.md": _formats,
    "docs/from_diffusion_policy.md": _diffusion_policy,
    "docs/from_lerobot.md": _lerobot,
    "docs/from_other_rl.md": _d3rlpy,
    "docs/algorithms/tdmpc2.md": _tdmpc2,
    "docs/robots.md": _robots,
    "docs/training.md": _sweep,
}
"""Functions that `prepare` calls."""
