import pytest

from imitate.config import load_config
from imitate.config.readiness import check_trainable
from imitate.errors import ConfigError

TOY = {"algo_name": "config_toy"}


def test_defaults_can_be_trained():
    check_trainable(load_config(TOY))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["observation.modalities.obs.low_dim=[]"], "observation.modalities.obs: lists no obs"),
        (['observation.modalities.goal.low_dim=["object"]'], "train.goal_mode: is null"),
        (["experiment.validate=true"], "train.hdf5_validation_filter_key: is null"),
        (
            ["train.hdf5_filter_key=a", "train.hdf5_validation_filter_key=a"],
            "train.hdf5_validation_filter_key: 'a' is also hdf5_filter_key",
        ),
        (["experiment.save.on_best_validation=true"], "experiment.save.on_best_validation: is"),
        (
            ['experiment.early_stopping={"enabled": true, "metric": "valid_loss"}'],
            "'valid_loss' is never measured: set experiment.validate to true",
        ),
        (
            ["experiment.early_stopping.enabled=true", "experiment.rollout.enabled=false"],
            "'success_rate' is never measured: set experiment.rollout.enabled to true",
        ),
    ],
)
def test_settings_that_do_not_work_together(overrides, words):
    with pytest.raises(ConfigError) as error:
        check_trainable(load_config(TOY, overrides))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_remedies_work():
    check_trainable(
        load_config(
            TOY,
            [
                'observation.modalities.goal.low_dim=["object"]',
                "train.goal_mode=last",
                "experiment.validate=true",
                "train.hdf5_filter_key=train",
                "train.hdf5_validation_filter_key=valid",
                "experiment.save.on_best_validation=true",
                'experiment.early_stopping={"enabled": true, "metric": "valid_loss"}',
            ],
        )
    )


def test_every_problem_has_its_line():
    config = load_config(TOY, ["observation.modalities.obs.low_dim=[]", "experiment.validate=true"])
    with pytest.raises(ConfigError) as error:
        check_trainable(config)
    assert len(str(error.value).splitlines()) == 2
