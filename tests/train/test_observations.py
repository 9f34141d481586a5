"""Observations named ``auto``, and keys that the data lack."""

import json

import pytest

from imitate.config import load_config
from imitate.errors import ConfigError
from imitate.train.observations import with_observations
from imitate.train.setup import resolve
from imitate.train.trainer import train
from tests.demo_files import make_demo_file


@pytest.fixture
def own(tmp_path):
    return make_demo_file(
        tmp_path / "own.hdf5", obs_dims={"joint_pos": 3, "goal": 2}, image=True, action_dim=3
    )


def resolved(own, *overrides, config="bc/bc"):
    return resolve(load_config(config, overrides), own, None)


def test_auto_is_all_that_the_file_has(own):
    config = resolved(own, "observation.modalities=auto")
    assert config.observation.modality_of("obs") == {
        "goal": "low_dim",
        "joint_pos": "low_dim",
        "agentview_image": "rgb",
    }


def test_auto_of_one_modality_leaves_the_others_as_they_are(own):
    config = resolved(own, "observation.modalities.obs.low_dim=auto")
    assert config.observation.modality_of("obs") == {"goal": "low_dim", "joint_pos": "low_dim"}
    config = resolved(
        own, 'observation.modalities.obs.low_dim=["goal"]', "observation.modalities.obs.rgb=auto"
    )
    assert config.observation.modality_of("obs") == {"goal": "low_dim", "agentview_image": "rgb"}


def test_auto_for_goals(own):
    assert not resolved(own, "observation.modalities=auto").use_goals
    groups = ("obs", "goal")
    auto = [f"observation.modalities.{group}.low_dim=auto" for group in groups]
    config = resolved(own, *auto, "train.goal_mode=last")
    for group in groups:
        assert set(config.observation.modality_of(group)) == {"goal", "joint_pos"}


def test_a_key_that_is_listed_is_not_taken_twice(own):
    """A key that is listed under another modality of the group stays there."""
    config = resolved(
        own,
        'observation.modalities.obs.scan=["joint_pos"]',
        "observation.modalities.obs.low_dim=auto",
    )
    assert config.observation.modality_of("obs") == {"goal": "low_dim", "joint_pos": "scan"}


def test_the_runs_configuration_names_the_keys(own, tmp_path):
    overrides = [
        "experiment.rollout.enabled=false",
        "experiment.epoch_every_n_steps=1",
        "train.num_epochs=1",
    ]
    overrides += [
        "observation.modalities.obs.low_dim=auto",
        "experiment.logging.log_tb=false",
        "train.device=cpu",
    ]
    result = train(
        "bc/bc", dataset=own, output_dir=tmp_path / "runs", overrides=overrides, quiet=True
    )
    tree = json.loads((result.run_dir / "config.json").read_text())
    assert tree["observation"]["modalities"]["obs"]["low_dim"] == ["goal", "joint_pos"]


def test_a_template_whose_keys_are_missing_names_the_two_ways_out(own):
    with pytest.raises(ConfigError) as error:
        resolved(own)
    text = str(error.value)
    assert "'object', 'robot0_eef_pos', 'robot0_eef_quat', 'robot0_gripper_qpos'" in text
    assert "they have agentview_image (8, 6, 3), goal (2,), joint_pos (3,)" in text
    assert "--set observation.modalities=auto" in text
    assert f"imitate config init {own}" in text
    assert "\n" not in text


def test_a_misspelt_key_is_answered_with_the_near_one(own):
    with pytest.raises(
        ConfigError, match=r"the demos have no 'joint_poss' \(did you mean 'joint_pos'\?\)"
    ):
        resolved(own, 'observation.modalities.obs.low_dim=["joint_poss"]')


def test_auto_without_data():
    config = load_config("sac/sac_pendulum", ["observation.modalities=auto"])
    with pytest.raises(
        ConfigError, match="'auto' takes the observations of demonstrations, but there are none"
    ):
        with_observations(config)


def test_auto_reads_and_writes_as_any_value():
    config = load_config({"algo_name": "bc", "observation": {"modalities": "auto"}})
    assert load_config(config.to_json()) == config
    assert config.observation.modalities.obs.rgb == ("auto",)
