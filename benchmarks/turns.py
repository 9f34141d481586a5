"""Child processes' part of training loops and policies that run in turns in several processes. It needs no package."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any


def answer(**figures: float | str) -> None:
    """Send the parent a line of JSON."""
    print(json.dumps(figures), flush=True)


def next_request() -> dict[str, Any] | None:
    """Return the parent's next request, or None after the last one."""
    line = sys.stdin.readline()
    return json.loads(line) if line else None


class Turns:
    """Replacement of a training loop's update function, which lets the loop run in turns.

    Its first call reports the CPU time since the process began, which is the cost of the start. It then waits for
    ``{"n": n}``, lets the loop run until its n-th call from there, and answers with the CPU seconds of an iteration:
    in total, and without the update (loading and preparing the batch). The loop ends after the last request.

    Args:
        update: the function that it replaces.
        parameters: number of weights that learn, from the arguments of the update.
    """

    def __init__(self, update: Callable[..., Any], parameters: Callable[..., int]) -> None:
        self._update, self._parameters = update, parameters
        self._began = self._updating = 0.0
        self._n = self._left = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the update in its turn."""
        if self._left == 0:
            self._end_turn(*args, **kwargs)
        self._left -= 1
        began = time.process_time()
        result = self._update(*args, **kwargs)
        self._updating += time.process_time() - began
        return result

    def _end_turn(self, *args: Any, **kwargs: Any) -> None:
        now = time.process_time()
        if self._n == 0:
            answer(start_s=now, parameters=self._parameters(*args, **kwargs))
        else:
            spent = now - self._began
            answer(step_s=spent / self._n, data_s=(spent - self._updating) / self._n)
        request = next_request()
        if request is None:
            raise SystemExit(0)
        self._n = self._left = request["n"]
        self._began, self._updating = time.process_time(), 0.0


def serve_calls(
    policy: Callable[[dict[str, Any]], Any],
    start: Callable[[], None],
    own_name: Callable[[str], str] = str,
) -> None:
    """Answer requests for the CPU seconds of a call of a policy.

    ``{"case": "predict", "n": n}``: each call begins an episode, so that it predicts a chunk. ``{"case": "episode",
    "n": n}``: the mean over an episode of n calls.

    Args:
        policy: function from a raw observation to an action.
        start: function that begins an episode.
        own_name: function from LeRobot's name of an observation to the policy's.
    """
    observations = None
    while (request := next_request()) is not None:
        if "shapes" in request:
            shapes = {own_name(name): shape for name, shape in request["shapes"].items()}
            observations = random_observations(shapes, request["n"])
            answer(actions=json.dumps(_actions(policy, start, observations)))
            continue
        assert observations is not None
        start()
        began = time.process_time()
        for number in range(request["n"]):
            if request["case"] == "predict":
                start()
            policy(observations[number % len(observations)])
        answer(call_s=(time.process_time() - began) / request["n"])


def random_observations(shapes: dict[str, list[int]], n: int) -> list[dict[str, Any]]:
    """Return random raw observations: images (H, W, 3) of uint8, vectors of float32."""
    import numpy as np

    random = np.random.default_rng(0)
    return [
        {
            name: random.integers(0, 256, shape, dtype=np.uint8)
            if len(shape) == 3
            else random.uniform(-1, 1, shape).astype(np.float32)
            for name, shape in shapes.items()
        }
        for _ in range(n)
    ]


def _actions(
    policy: Callable[[dict[str, Any]], Any],
    start: Callable[[], None],
    observations: list[dict[str, Any]],
) -> list[list[float]]:
    start()
    return [[float(number) for number in policy(one)] for one in observations]
