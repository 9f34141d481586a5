"""D4RL's normalized score by hand."""

import pytest

from imitate.system.statistics import REFERENCE_RETURNS, d4rl_score

DIGITS = {
    "HalfCheetah": (-280.178953, 12135.0),
    "Hopper": (-20.272305, 3234.3),
    "Walker2d": (1.629008, 4592.3),
    "Ant": (-325.6, 3879.7),
    "AdroitHandPen": (96.262799, 3076.8331),
    "AdroitHandHammer": (-274.856578, 12794.1348),
    "AdroitHandDoor": (-56.512833, 2880.5693),
    "AdroitHandRelocate": (-6.425911, 4233.8778),
}


@pytest.mark.parametrize("task", DIGITS)
def test_a_random_policy_scores_0_and_an_expert_100(task):
    random, expert = DIGITS[task]
    scores = [d4rl_score(f"{task}-v4", value) for value in (random, expert, (random + expert) / 2)]
    assert scores == pytest.approx([0.0, 100.0, 50.0], abs=1e-4)
    assert REFERENCE_RETURNS.keys() == DIGITS.keys()


@pytest.mark.parametrize("name", ["Hopper", "Hopper-vx", "Lift", "Lift-v1", "Hopper-v"])
def test_other_names_have_no_score(name):
    assert d4rl_score(name, 1.0) is None


def test_the_module_of_a_name_does_not_matter():
    assert d4rl_score("gymnasium_robotics:AdroitHandPen-v1", 96.262799) == pytest.approx(0.0)
