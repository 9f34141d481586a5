"""How well an uncertainty tells demonstrations from others."""

import types

import numpy as np
import pytest

from imitate.errors import DatasetError, UserError
from imitate.evaluate.uncertainty import separation, uncertainties
from imitate.policy.uncertainty import Calibration
from tests.demo_files import episode, write_demos


class Policy:
    """Its uncertainty is the observation, and its entropy twice as much."""

    goal_keys, obs_keys = (), ("s",)
    calibration = None
    algo = types.SimpleNamespace(global_config=types.SimpleNamespace(algo_name="bc"))

    def __init__(self, names=("uncertainty", "entropy")):
        self.names, self.told = names, []

    def start_episode(self, lang=None):
        self.told.append(lang)

    def __call__(self, obs):
        values = {"uncertainty": obs["s"], "entropy": 2 * obs["s"]}
        self.last_extras = {name: values[name] for name in self.names}


@pytest.fixture
def path(tmp_path):
    demos = [
        episode(2, {"s": np.array([[1.0], [2.0]])}, attrs={"language": "lift"}),
        episode(1, {"s": np.array([[3.0]])}),
    ]
    return write_demos(tmp_path / "a.hdf5", demos, filter_keys={"last": [1]})


def test_uncertainties_of_each_demo(path):
    policy = Policy()
    found = uncertainties(policy, path)
    assert {name: [x.tolist() for x in demos] for name, demos in found.items()} == {
        "uncertainty": [[1.0, 2.0], [3.0]],
        "entropy": [[2.0, 4.0], [6.0]],
    }
    assert policy.told == ["lift", None]
    assert [x.tolist() for x in uncertainties(policy, path, "last")["uncertainty"]] == [[3.0]]
    assert list(uncertainties(Policy(["entropy"]), path)) == ["entropy"]


def test_policies_without_uncertainty_with_goals_or_other_observations(path):
    with pytest.raises(UserError, match="bc reports no uncertainty: train bc_ensemble"):
        uncertainties(Policy(()), path)
    policy = Policy()
    policy.goal_keys = ("s",)
    with pytest.raises(UserError, match="the policy takes goals"):
        uncertainties(policy, path)
    policy = Policy()
    policy.obs_keys = ("s", "t")
    with pytest.raises(DatasetError, match="demo_0 lacks the observation 't'"):
        uncertainties(policy, path)


def test_a_separation_by_hand():
    usual = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    other = [np.array([2.5, 9.0, 9.0]), np.array([9.0]), np.array([0.0, 9.0])]
    policy = Policy()
    found = separation(policy, "uncertainty", usual, other)
    # 4 of 6 steps are above all four, one above two of them, and one above none
    assert found.auroc.value == pytest.approx((4 * 4 + 2) / 24)
    assert (found.usual, found.other, found.usual_steps, found.other_steps) == (2, 3, 4, 6)
    assert found.usual_above is None and found.other_above is None
    auroc = found.auroc._asdict()
    counts = {"usual": 2, "other": 3, "usual_steps": 4, "other_steps": 6}
    above = {"usual_above": None, "other_above": None}
    assert found.to_dict() == {"measure": "uncertainty", "auroc": auroc, **counts, **above}
    policy.calibration = Calibration.of(np.arange(19) / 6, held_out=True)  # at 95 %: 3.0
    found = separation(policy, "uncertainty", usual, other)
    assert (found.usual_above, found.other_above) == (0.25, pytest.approx(4 / 6))
    assert separation(policy, "entropy", usual, other).usual_above is None
