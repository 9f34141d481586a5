"""Policies for the tests of server and client."""

import numpy as np

from imitate.deploy.schema import ObservedKey, Schema
from imitate.deploy.server.server import Prediction
from imitate.errors import UserError
from imitate.system import clock

SCHEMA = Schema(
    observations={"state": ObservedKey((2,)), "camera": ObservedKey((8, 8, 3), "rgb")},
    action_dim=2,
    action_low=(-1e4, -1e4),
    action_high=(1e4, 1e4),
    rate_hz=20.0,
    chunk=4,
    languages=("pick", "place"),
    algorithm="counter",
    history=2,
    execute=2,
)


class Counter:
    """Acts by its step and its state: action (step, state[0]); plans four steps; an episode's memory is its step."""

    schema = SCHEMA

    def __init__(self, seconds=0.0):
        self.seconds = seconds
        self.batches = []
        self.chunk_asks = []

    def begin(self, lang):
        if lang is not None and lang not in self.schema.languages:
            raise UserError(f"the instruction '{lang}' is unknown; known are pick, place")
        return {"step": 0, "cuts": 0}

    def cut(self, state):
        return {**state, "cuts": state["cuts"] + 1}

    def predict(self, asks):
        self.batches.append(len(asks))
        clock.sleep(self.seconds)
        replies = []
        for ask in asks:
            if ask.obs["state"][1] == 13.0:
                raise RuntimeError("/secret/path/of/the/server failed")
            step = ask.state["step"]
            action = np.array([step, ask.obs["state"][0]], dtype=float)
            chunk = action + np.arange(4.0)[:, None] + 100 * ask.state["cuts"]
            replies.append(Prediction(action, chunk, {**ask.state, "step": step + 1}))
        return replies

    def predict_chunks(self, asks):
        """Four actions (state[0] of the newest observation and on, number of observations)."""
        self.chunk_asks += asks
        clock.sleep(self.seconds)
        newest = [(ask.history[-1]["state"][0], len(ask.history)) for ask in asks]
        return [np.stack([first + np.arange(4.0), [count] * 4], 1) for first, count in newest]


def observation(value=0.0, other=0.0):
    return {"state": np.array([value, other], np.float32), "camera": np.zeros((8, 8, 3), np.uint8)}
