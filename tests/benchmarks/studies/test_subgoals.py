"""The picture of subgoals: what is recorded, how errors are measured."""

import numpy as np
import pytest

from benchmarks.studies.subgoals import draw, errors, of_places, play


class Walk:
    """The hand moves one centimetre a step along x; the fifth step succeeds."""

    def reset(self, seed):
        self.step_number = 0
        return self.obs(), {}

    def obs(self):
        x = 0.01 * self.step_number
        return {"robot0_eef_pos": np.array([x, 0, 0]), "object": np.arange(23.0)}

    def step(self, action):
        self.step_number += 1
        return self.obs(), 0.0, False, False, {}

    def is_success(self):
        return {"task": self.step_number == 5}


class Planner:
    """Names a place three centimetres ahead every two steps."""

    class algo:  # noqa: N801
        class algo_config:  # noqa: N801
            subgoal_update_interval = 2

    def start_episode(self):
        self.seen = None

    def __call__(self, obs):
        self.seen = obs
        return np.zeros(1)

    def subgoal(self):
        ahead = self.seen["robot0_eef_pos"] + [0.03, 0, 0]
        return {"robot0_eef_pos": ahead[None], "object": self.seen["object"][None]}


def test_an_episode_ends_with_success_and_errors_are_those_of_subgoals_that_were_due(tmp_path):
    recorded = play(Planner(), Walk(), seed=0, horizon=2, steps=50)
    assert recorded.success
    assert recorded.named == [0, 2, 4]
    assert recorded.places["hand"][:, 0].tolist() == pytest.approx(
        [0, 0.01, 0.02, 0.03, 0.04, 0.05]
    )
    off = errors(recorded)
    # After two steps the hand has moved 2 cm, 1 cm less than was named; the third subgoal was not due.
    assert off["hand"] == pytest.approx((0.01, 0.02))
    assert off["cube B"] == pytest.approx((0.0, 0.0))
    draw(recorded, "walk", tmp_path / "new" / "walk.png")
    assert (tmp_path / "new" / "walk.png").stat().st_size > 10_000


def test_places_are_cut_out_of_observations():
    places = of_places([{"robot0_eef_pos": np.ones(3), "object": np.arange(23.0)}] * 2)
    assert places["cube A, to be stacked"].tolist() == [[0, 1, 2]] * 2
    assert places["cube B"].tolist() == [[7, 8, 9]] * 2
