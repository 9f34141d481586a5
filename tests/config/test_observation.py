import pytest

from imitate.config import load_config
from imitate.config.observation import ROBOT_STATE
from imitate.errors import ConfigError


def observation(**values):
    return load_config({"algo_name": "config_toy", "observation": values}).observation


def test_defaults():
    modalities = observation().modalities
    assert modalities.obs.low_dim == ROBOT_STATE
    assert ROBOT_STATE == ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object")
    assert not any(modalities.goal.values())


def test_a_group_that_names_one_modality_keeps_the_others():
    obs = observation(modalities={"obs": {"rgb": ["agentview_image"]}}).modalities.obs
    assert obs.rgb == ("agentview_image",) and obs.low_dim == ROBOT_STATE


def test_other_modalities_and_their_encoders():
    section = observation(
        modalities={"obs": {"touch": ["finger"]}},
        encoder={"touch": {"core_class": "TouchCore", "core_kwargs": {"dims": [3, 4]}}},
    )
    assert section.modalities.obs.touch == ("finger",)
    assert section.modalities.obs.get("smell", ()) == ()
    assert section.encoder["touch"].core_kwargs.dims == (3, 4)


def test_randomizers_may_be_one_or_a_list():
    one = observation(
        encoder={
            "rgb": {
                "obs_randomizer_class": "CropRandomizer",
                "obs_randomizer_kwargs": {"crop_height": 76},
            }
        }
    ).encoder.rgb
    assert (one.core_class, one.obs_randomizer_kwargs.crop_height) == ("VisualCore", 76)
    two = observation(
        encoder={
            "rgb": {
                "obs_randomizer_class": ["CropRandomizer", "ColorRandomizer"],
                "obs_randomizer_kwargs": [{"crop_height": 76}, {}],
            }
        }
    ).encoder.rgb
    assert two.obs_randomizer_kwargs[0].crop_height == 76
    assert two.to_dict()["obs_randomizer_kwargs"] == [{"crop_height": 76}, {}]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"modalities": {"obs": {"rgb": ["object"]}}},
            "observation.modalities.obs: observation 'object' is listed under 'low_dim' "
            "and under 'rgb': remove it from one of them",
        ),
        (
            {"modalities": {"obs": {"low_dim": ["a", "a"]}}},
            "observation 'a' is listed under 'low_dim' and under 'low_dim': remove it from one of them",
        ),
        (
            {"modalities": {"goal": {"rgb": ["object"]}}},
            "observation.modalities: observation 'object' is 'low_dim' in 'obs' but 'rgb' in "
            "'goal': list it under one modality",
        ),
        (
            {"encoder": {"rgb": {"obs_randomizer_kwargs": [{}]}}},
            "observation.encoder.rgb: obs_randomizer_kwargs is a list: give one object per name",
        ),
        (
            {
                "encoder": {
                    "rgb": {"obs_randomizer_class": ["A", "B"], "obs_randomizer_kwargs": [{}]}
                }
            },
            "give one object per name in the list obs_randomizer_class",
        ),
    ],
)
def test_impossible_combinations(values, words):
    with pytest.raises(ConfigError) as error:
        observation(**values)
    assert words in str(error.value)


def test_an_encoder_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="encoder.rbg is neither a modality nor an observation"):
        observation(encoder={"rbg": {"core_class": "VisualCore"}})
    own = observation(
        modalities={"goal": {"rgb": ["camera"]}}, encoder={"camera": {"core_class": "VisualCore"}}
    )
    assert own.encoder.camera.share is False


def test_images_that_must_stay_in_the_unit_range():
    section = observation(
        modalities={
            "obs": {"rgb": ["plain", "jittered"], "depth": ["far"]},
            "goal": {"rgb": ["end"]},
        },
        encoder={
            "depth": {"core_kwargs": {"backbone_kwargs": {"pretrained": True}}},
            "jittered": {"obs_randomizer_class": ["CropRandomizer", "ColorRandomizer"]},
            "end": {"obs_randomizer_class": "ColorRandomizer"},
        },
    )
    assert section.unit_range_keys() == {"far", "jittered", "end"}
    assert observation().unit_range_keys() == set()
