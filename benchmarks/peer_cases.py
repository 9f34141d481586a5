"""Names and sizes of the cases of other toolkits, and the loop of the programs that run them.

Those programs are run by interpreters of their own, so this module imports the standard library alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

CAMERAS = ("agentview_image", "robot0_eye_in_hand_image")
IMAGE_BATCH_SIZE = 16
SIZE, CROP = 84, 76
LOW_DIM = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
OFFLINE_STEPS = {"iql": (100, 256), "td3_bc": (256,), "cql": (256,)}
"""Algorithms and batch sizes."""


def offline_name(algo_name: str, batch_size: int) -> str:
    """Return the name of a case of offline RL."""
    return f"step_{algo_name}_{batch_size}"


def answer(
    hello: Mapping[str, Any],
    cases: Mapping[str, Callable[[Mapping[str, Any]], Callable[[int], dict[str, float]]]],
    answers: TextIO,
) -> None:
    """Answer requests, a line of JSON each, until standard input ends.

    Args:
        hello: first answer.
        cases: functions from the first request of a case to a function that runs iterations and returns their cost.
        answers: stream of the answers.
    """
    ready: dict[str, Callable[[int], dict[str, float]]] = {}
    print(json.dumps(hello), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        case = request["case"]
        if case not in ready:
            ready[case] = cases[case](request)
        print(json.dumps(ready[case](request["n"])), file=answers, flush=True)
