"""A served policy that does not tell its names."""

import numpy as np
import pytest

from imitate.errors import UserError
from imitate.policy.renaming import RenamedPolicy


class Served:
    control_freq = None

    def __call__(self, ob):
        return ob["observation/state"] + sum(ob["other"])

    def predict_chunk(self, history, **rest):
        return [self(ob) for ob in history], rest


def test_observations_have_the_names_of_the_policy():
    policy = RenamedPolicy(Served(), {"joints": "observation/state"})
    ob = {"joints": np.ones(2), "other": [1, 2]}
    np.testing.assert_array_equal(policy(ob), [4, 4])
    chunk, rest = policy.predict_chunk([ob], horizon=3)
    np.testing.assert_array_equal(chunk, [[4, 4]])
    assert rest == {"horizon": 3}
    assert policy.control_freq is None
    with pytest.raises(UserError, match="gives no 'joints'; it gives other"):
        policy({"other": [1]})
