import pytest

from imitate.config import load_config
from imitate.errors import ConfigError


def learning_rate(**values):
    tree = {"algo_name": "config_toy", "algo": {"optimizer": {"learning_rate": values}}}
    return load_config(tree).algo.optimizer.learning_rate


@pytest.mark.parametrize("epochs", [[], [10, 20]])
def test_a_linear_decay_has_one_end(epochs):
    with pytest.raises(ConfigError) as error:
        learning_rate(scheduler_type="linear", epoch_schedule=epochs)
    assert str(error.value) == (
        "algo.optimizer.learning_rate: scheduler_type 'linear' wants exactly one epoch in "
        f"epoch_schedule (the end of the decay), got {epochs}; e.g. epoch_schedule [100]"
    )
    assert learning_rate(scheduler_type="linear", epoch_schedule=[100]).epoch_schedule == (100,)


@pytest.mark.parametrize(
    "values",
    [
        {"initial": 0.0},
        {"initial": "1e-4"},
        {"decay_factor": -0.1},
        {"warmup_steps": -1},
        {"num_cycles": 0},
        {"epoch_schedule": [-1]},
        {"scheduler_type": "step"},
        {"num_train_batches": 3},
    ],
)
def test_impossible_values(values):
    with pytest.raises(ConfigError, match=r"^algo.optimizer.learning_rate\." + next(iter(values))):
        learning_rate(**values)
