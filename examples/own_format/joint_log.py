"""An example of your own dataset format: a log with one line of JSON per step.

    {"episode": 0, "joints": [0.1, -0.3], "command": [0.0, 0.2], "success": false}

``success`` is true in an episode's last line if the episode succeeded.
"""

import itertools
import json
from contextlib import contextmanager

import numpy as np

from imitate.data import Episode
from imitate.data.formats.base import Format, NamedDemo, OpenedDataset
from imitate.errors import DatasetError

FIELDS = ("episode", "joints", "command", "success")


def lines(path):
    """Yield the steps, one at a time."""
    with path.open() as file:
        for number, line in enumerate(file, start=1):
            step = json.loads(line)
            missing = [name for name in FIELDS if name not in step]
            if missing:
                raise DatasetError(f"{path}: line {number} has no '{missing[0]}'")
            yield step


def recognises(path):
    """Look at the first line only; never raise for the content of other files."""
    if path.suffix != ".jsonl":
        return False
    try:
        return next(lines(path), None) is not None
    except (ValueError, OSError, DatasetError):
        return False


def demos(path, report):
    """Yield the episodes, one at a time, so that the log may be larger than the memory."""
    for number, steps in itertools.groupby(lines(path), key=lambda step: step["episode"]):
        episode = list(steps)
        done = np.arange(len(episode)) == len(episode) - 1
        success = bool(episode[-1]["success"])
        yield NamedDemo(
            f"demo_{number}",
            Episode(
                obs={"joints": np.array([step["joints"] for step in episode], np.float32)},
                actions=np.array([step["command"] for step in episode], np.float64),
                rewards=(done & success).astype(np.float32),
                terminals=done & success,
                timeouts=done & ~np.bool_(success),
                attrs={"success": success},
            ),
        )
    report.keep("joints", "success")
    report.renamed["command"] = "actions"
    report.synthesised["rewards"] = "1 at the last step of a success"


@contextmanager
def read(path, options, report):
    """Open a log; ``options`` contains the user's options of the command line."""
    yield OpenedDataset(
        env_meta={"env_name": "joint_log", "type": 4, "env_kwargs": {}},  # 4: a real robot
        demos=demos(path, report),
        control_freq=options.fps,
    )


FORMAT = Format(
    name="joint_log",
    summary="logs of joints and commands, a line of JSON per step",
    recognises=recognises,
    read=read,
    options=frozenset({"fps"}),
)
