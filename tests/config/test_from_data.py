import subprocess
import sys

import pytest

from imitate.config.from_data import action_normalization, num_epochs, rollout_horizon


def test_the_horizon_is_twice_a_long_demo():
    assert rollout_horizon([100] * 20) == 200
    assert rollout_horizon(list(range(1, 102))) == 200  # 95 % of the lengths are at most 96: 192
    assert rollout_horizon([3]) == 10


def test_one_very_long_demo_alone_does_not_set_the_horizon_but_fits_in():
    assert rollout_horizon([100] * 99 + [150]) == 200
    assert rollout_horizon([100] * 99 + [1000]) == 1000


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        ([-1.0, -0.2], [1.0, 0.1], None),
        ([-0.5, 0.0], [0.1, 0.1], None),
        ([-0.1, -0.2], [0.3, 0.1], "min_max"),
        ([-1.5, -0.2], [0.3, 0.1], "min_max"),
        ([-0.2], [40.0], "min_max"),
    ],
)
def test_actions_that_do_not_fill_the_range_of_networks_are_normalized(low, high, wanted):
    assert action_normalization(low, high) == wanted


def test_updates_follow_from_the_samples():
    assert (
        num_epochs(samples=38400, batch_size=256, epoch_steps=100) == 30
    )  # 20 * 38400 / 256 = 3000 updates
    assert num_epochs(samples=38401, batch_size=256, epoch_steps=100) == 31
    assert num_epochs(samples=500, batch_size=256, epoch_steps=100) == 10  # 1000 updates at least
    assert num_epochs(samples=500, batch_size=256, epoch_steps=1) == 1000


def test_no_torch_is_needed():
    program = "import sys, imitate.config.from_data; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
