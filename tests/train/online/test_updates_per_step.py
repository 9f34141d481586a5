"""Workers that collect during the updates, in virtual time: the updates per step do not depend on the clock."""

from contextlib import nullcontext

import numpy as np
import pytest

from imitate.crew.backend import Answer
from imitate.train.online.learners import ReplayLearner
from imitate.train.online.replay import ReplayBuffer
from imitate.train.online.steps import Collected, Step
from imitate.train.online.workers import ProcessCollector

from .worlds import blueprints, make_algo

BOUND, CHUNK, STEPS, WARMUP = 50, 10, 1500, 200
STEP_S, UPDATE_S = 0.0035, 0.002


class Place:
    """Workers without a process: an answer comes when the clock of the place has reached its time.

    Args:
        reset_s: time of a reset, which follows each 40 to 150 steps.
        message_s: mean time of a message.
    """

    host, places = "127.0.0.1", 2

    def __init__(self, reset_s, message_s):
        self.reset_s, self.message_s = reset_s, message_s
        self.now_s, self.members, self.random = 0.0, 0, np.random.default_rng(0)

    def start(self, prepare):
        self.members += 1
        return Member(self, self.members - 1)

    def pack(self, item):
        return item

    def heard(self, members, limits):
        self.now_s = max(self.now_s, min(member.comes_s for member in members))
        return [member for member in members if member.comes_s <= self.now_s]


class Member:
    def __init__(self, place, lane):
        self.place, self.lane, self.left = place, lane, 100

    def give(self, request):
        self.request, self.comes_s = request, self.place.now_s
        if request is None:
            return
        self.comes_s += self.place.message_s * self.place.random.exponential(2.0)
        for _ in range(request.num_steps):
            self.comes_s += STEP_S
            self.left -= 1
            if not self.left:
                self.comes_s += self.place.reset_s
                self.left = int(self.place.random.integers(40, 151))

    def answer(self):
        if self.request is None:
            return Answer(None)
        places, zeros, never = (
            np.zeros((1, 1), np.float32),
            np.zeros(1, np.float32),
            np.zeros(1, bool),
        )
        step = Step({"place": places}, places, zeros, never, never, {"place": places})
        steps = [step] * self.request.num_steps
        collected = Collected(steps, np.array([self.lane]), [], self.request.weights.version, ())
        return Answer((vars(collected), None))

    def dismiss(self):
        pass

    def stop(self, patience_s=0.0):
        pass


@pytest.mark.parametrize(("reset_s", "message_s"), [(1.0, 0.0001), (0.1, 0.005), (1.0, 0.2)])
def test_each_step_has_its_updates_however_slow_resets_and_messages_are(reset_s, message_s):
    algo, place = make_algo(), Place(reset_s, message_s)
    collector = ProcessCollector(
        blueprints(algo, None, None),
        algo,
        step_timeout_s=60.0,
        max_staleness=BOUND,
        place=nullcontext(place),
    )
    memory = ReplayBuffer({"place": (1,)}, 1, 5000, num_envs=2)
    learner = ReplayLearner(
        algo, memory, memory, batch_size=1, update_ratio=1.0, warmup_steps=WARMUP
    )
    steps, ages = 0, []
    while steps < STEPS:
        collector.version = learner.updates
        collected = collector.collect(CHUNK)
        ages.append(learner.updates - collected.version)
        steps += collected.num_steps
        learner.take(collected)
        for _ in learner.batches_due(collector.updates_allowed()):
            place.now_s += UPDATE_S
        assert learner.updates >= steps - WARMUP - 2 * CHUNK
    collector.close()
    assert max(ages) <= BOUND
    assert 15 < np.mean(ages) < 20
