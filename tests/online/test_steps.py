import numpy as np

from imitate.online.steps import Collected, Step


def test_lost_steps_are_not_counted_and_end_an_episode():
    flags = np.zeros(3, dtype=bool)
    step = Step(
        {},
        np.zeros((3, 1)),
        np.zeros(3, np.float32),
        np.array([True, False, False]),
        flags,
        {},
        lost=np.array([False, False, True]),
    )
    assert step.ends.tolist() == [True, False, True]
    assert Collected([step, step], np.arange(3), []).num_steps == 4
