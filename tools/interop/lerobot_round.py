"""Part of lerobot.sh that runs with imitate.

python tools/interop/lerobot_round.py write FOLDER   writes demonstrations, and the same for LeRobot with PNGs and with
videos python tools/interop/lerobot_round.py read FOLDER    compares the dataset of lerobot_writes.py with the expected
one
"""

import sys
from pathlib import Path

import numpy as np

from imitate.data import DatasetFile, DatasetWriter, Episode
from imitate.data.formats.base import Options
from imitate.data.formats.convert import convert

LENGTHS = (6, 1, 9, 4)


def write(folder):
    random = np.random.default_rng(0)
    ramp = np.linspace(0, 100, 48 * 64).reshape(48, 64, 1)
    with DatasetWriter(
        folder / "demos.hdf5", {"env_name": "Lift", "type": 1}, control_freq=20
    ) as out:
        for number, length in enumerate(LENGTHS):
            levels = 30 * number + 5 * np.arange(length)
            frames = (levels[:, None, None, None] + np.repeat(ramp, 3, axis=2)).astype(np.uint8)
            last = np.arange(length) == length - 1
            out.append_episode(
                Episode(
                    obs={
                        "object": random.normal(size=(length, 10)),
                        "eef_pos": random.normal(size=(length, 3)),
                        "agentview_image": frames,
                        "wrist_image": frames[:, ::-1],
                    },
                    actions=random.uniform(-1, 1, (length, 7)),
                    rewards=last,
                    terminals=last,
                    timeouts=~last & False,
                    attrs={"success": True, "language": f"task {number % 2}"},
                )
            )
    convert(folder / "demos.hdf5", folder / "png", to_format="lerobot")
    for codec in ("h264", "av1"):
        options = Options(video=codec)
        convert(folder / "demos.hdf5", folder / codec, to_format="lerobot", options=options)


def read(folder):
    report = convert(folder / "theirs", folder / "theirs.hdf5")
    assert (report.source_format, report.demos, report.steps) == ("lerobot", 3, 12)
    with DatasetFile(folder / "theirs.hdf5") as file:
        assert file.file_attrs["control_freq"] == 10
        for episode, length in enumerate((4, 3, 5)):
            name = f"demo_{episode}"
            steps = np.arange(length)
            wanted = np.stack([np.full(length, episode), steps], axis=1)
            np.testing.assert_array_equal(file.read(name, "obs/state"), wanted)
            np.testing.assert_array_equal(file.read(name, "actions")[:, :2], wanted)
            np.testing.assert_array_equal(file.read(name, "rewards"), steps == length - 1)
            level = (60 * episode + 10 * steps)[:, None, None, None]
            wrist, top = file.read(name, "obs/wrist_image"), file.read(name, "obs/top_image")
            assert (wrist.shape[1:], top.shape[1:]) == ((32, 48, 3), (64, 64, 3))
            np.testing.assert_array_equal(wrist, np.broadcast_to(level, wrist.shape))
            assert np.abs(top.astype(int) - level).max() <= 4, name
            assert file.attrs(name)["language"] == f"task {episode % 2}"
    sys.stdout.write(f"we read LeRobot's: {report.steps} frames of {report.demos} episodes\n")


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]))
