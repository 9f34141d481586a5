"""Steps on actions: rotations, poses, numbers of two values, quantiles. By hand, and back."""

import json
import math

import numpy as np
import pytest
import torch

from imitate.data.batches.statistics import KeyStats, quantiles_of
from imitate.errors import ConfigError
from imitate.functional.rotations import FORMS, axis_angle_to_matrix
from imitate.models.fitting import MeasuredStats, fit_actions, fit_obs
from imitate.models.preprocess import Preprocess
from imitate.models.preprocessing.coordinates import Rotation6d, SinCos
from imitate.models.preprocessing.measuring import Sample
from imitate.models.preprocessing.step import Space, Spec

SHAPES = {"pos": (3,), "quat": (4,)}
KINDS = dict.fromkeys(SHAPES, "low_dim")
POSE = {"step": "relative_pose", "position": "pos", "rotation": "quat"}
QUARTER = math.pi / 2
HALF = math.sqrt(0.5)
QUARTER_Z = [0.0, 0.0, HALF, HALF]


def pipeline(*steps, size=7, affine=None):
    return Preprocess(SHAPES, KINDS, {"actions": size}, None, affine, steps=steps)


def observed(chosen, pos=(1.0, 2.0, 3.0), quat=QUARTER_Z):
    return chosen.prepare_obs({"pos": np.array([pos]), "quat": np.array([quat])})


def close(found, wanted):
    torch.testing.assert_close(found, torch.tensor(wanted), atol=2e-6, rtol=0)


# ---- rotations --------------------------------------------------------------------------------------


def test_a_quarter_turn_as_six_numbers():
    chosen = pipeline({"step": "rotation_6d", "dims": [3, 4, 5]})
    assert chosen.action_dim == 10
    learned = chosen.normalize_actions(torch.tensor([[0.1, 0.2, 0.3, 0.0, 0.0, QUARTER, -1.0]]))
    # Rz(90 degrees) = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]; its first two rows
    close(learned, [[0.1, 0.2, 0.3, 0.0, -1.0, 0.0, 1.0, 0.0, 0.0, -1.0]])
    # A network's six numbers of any length: rows (0, -2, 0) and (3, -1, 0), made (0, -1, 0), (1, 0, 0)
    loose = torch.tensor([[0.1, 0.2, 0.3, 0.0, -2.0, 0.0, 3.0, -1.0, 0.0, -1.0]])
    close(chosen.unnormalize_actions(loose), [[0.1, 0.2, 0.3, 0.0, 0.0, QUARTER, -1.0]])


def test_in_the_frame_of_the_hand_and_along_the_world():
    # The hand is turned by a quarter about z, so that its x axis is the world's y. The goal is 2 along the world's y.
    action = torch.tensor([[1.0, 4.0, 3.5, 0.0, 0.0, math.pi, 1.0]])
    chosen = pipeline(POSE)
    learned = chosen.normalize_actions(action, observed(chosen))
    close(learned, [[2.0, 0.0, 0.5, 0.0, -1.0, 0.0, 1.0, 0.0, 0.0, 1.0]])
    chosen = pipeline({**POSE, "frame": "world"})
    learned = chosen.normalize_actions(action, observed(chosen))
    close(learned, [[0.0, 2.0, 0.5, 0.0, -1.0, 0.0, 1.0, 0.0, 0.0, 1.0]])


@pytest.mark.parametrize("frame", ["hand", "world", None])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_comes_back(form, frame):
    size, draw = FORMS[form].size, torch.Generator().manual_seed(0)
    rotation = FORMS[form].from_matrix(axis_angle_to_matrix(torch.randn(4, 5, 3, generator=draw)))
    rest = torch.randn(4, 5, 4, generator=draw)
    # The gripper's number is before the rotation, the position behind it.
    actions = torch.cat((rest[..., :1], rotation, rest[..., 1:]), -1)
    dims, place = list(range(1, 1 + size)), list(range(1 + size, 4 + size))
    step = {"step": "rotation_6d", "dims": dims, "form": form}
    if frame is not None:
        step = {**POSE, "rotation_dims": dims, "position_dims": place, "form": form, "frame": frame}
    affine = {"actions": (torch.randn(10), torch.rand(10) + 0.5)}
    chosen = pipeline(step, size=4 + size, affine=affine)
    quat = torch.randn(4, 4, generator=draw)
    obs = chosen.prepare_obs({"pos": torch.randn(4, 3, generator=draw), "quat": quat})
    learned = chosen.normalize_actions(actions, obs)
    assert learned.shape == (4, 5, 10)
    back = chosen.unnormalize_actions(learned, obs)
    torch.testing.assert_close(back, actions, atol=2e-5, rtol=0)


def test_a_running_chunk_means_the_same_from_the_next_pose():
    chosen = pipeline(POSE)
    actions = torch.randn(1, 4, 7, generator=torch.Generator().manual_seed(1))
    before, after = observed(chosen), observed(chosen, (0.5, 2.5, 3.0), (0.5, 0.5, 0.5, 0.5))
    learned = chosen.normalize_actions(actions, before)
    rebased = chosen.rebase_actions(learned, before, after)
    close(rebased, chosen.normalize_actions(actions, after).tolist())
    assert (rebased - learned).abs().max() > 0.1


def test_only_what_is_no_rotation_is_normalized():
    draw = torch.Generator().manual_seed(2)
    place, turn = torch.randn(2, 40, 1, 3, generator=draw)
    gripper = torch.randn(40, 1, 1, generator=draw).sign()
    actions = torch.cat((5 + place, turn / 2, gripper), -1)
    obs = {
        "pos": torch.randn(40, 1, 3, generator=draw),
        "quat": torch.randn(40, 1, 4, generator=draw),
    }
    sample = Sample(
        obs, actions, {k: v[:, 0] for k, v in obs.items()}, torch.ones(40, 1, dtype=torch.bool)
    )
    chosen = Preprocess.unfitted(
        SHAPES,
        KINDS,
        {"actions": 7},
        action_config={"actions": {"normalization": "gaussian"}},
        steps=[POSE, {"step": "binary_actions", "dims": [9]}],
    )
    chosen.fit({"obs": {}, "actions": {}}, lambda keys: [sample])
    assert chosen.action_offset[3:].eq(0).all() and chosen.action_scale[3:].eq(1).all()
    learned = chosen.normalize_actions(
        actions, chosen.prepare_obs({k: v[:, 0] for k, v in obs.items()})
    )
    close(learned[..., :3].mean((0, 1)), [0.0, 0.0, 0.0])
    close(learned[..., :3].std((0, 1), correction=0), [1.0, 1.0, 1.0])
    assert learned[..., 3:].abs().max() <= 1 + 1e-6
    saved = chosen.to_dict()
    again = Preprocess.from_dict({**saved, "steps": json.loads(json.dumps(saved["steps"]))})
    torch.testing.assert_close(
        again.unnormalize_actions(learned, chosen.prepare_obs({k: v[:, 0] for k, v in obs.items()})),
        actions, atol=1e-4, rtol=0,
    )  # fmt: skip


def test_rotations_are_sent_whatever_those_of_the_data_were():
    chosen = pipeline(
        {"step": "rotation_6d", "dims": [0, 1, 2]},
        {"step": "rotation_6d", "dims": [9, 10, 11, 12], "form": "quaternion"},
        size=10,
    )  # dims 9 to 12 behind a rotation that is three numbers longer: 6 to 9 of what is sent
    low, high = chosen.sent_limits([-0.2] * 10, [0.2] * 10)
    assert low == [-math.pi] * 3 + [-0.2] * 3 + [-1.0] * 4
    assert high == [-value for value in low]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"step": "rotation_6d", "dims": [3, 4]}, r"dims are \[3, 4\]; expected 3 consecutive"),
        ({"step": "rotation_6d", "dims": [5, 6, 7]}, "expected 3 consecutive indices below 7"),
        ({"step": "rotation_6d", "dims": [3, 4, 5], "form": "quat"}, "form is 'quat'; valid names|mean"),
        ({**POSE, "position": "quat"}, r"'quat' has shape \(4,\); expected \(3,\)"),
        ({**POSE, "position_dims": [1, 2, 3]}, "position_dims is .* other than"),
        ({**POSE, "frame": "base"}, "frame is 'base'; expected 'hand' or 'world'"),
        ({"step": "binary_actions", "dims": [7]}, "dims is .*; expected distinct indices from 0 to 6"),
        ({"step": "binary_actions", "dims": [6], "values": [1, 0]}, "the lower first"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(step, words):
    with pytest.raises(ConfigError, match=words):
        pipeline(step)


# ---- two values -------------------------------------------------------------------------------------


def fitted(recorded, **options):
    chosen = pipeline({"step": "binary_actions", "dims": [1], **options}, size=2)
    stats = MeasuredStats.of(torch.stack((torch.zeros(len(recorded)), torch.tensor(recorded)), -1))
    chosen.fit({"obs": {}, "actions": {"actions": stats}})
    return chosen


def test_the_nearer_of_two_values_is_sent():
    chosen = fitted([0.0, 0.08, 0.08, 0.08])
    close(
        chosen.normalize_actions(torch.tensor([[0.3, 0.0], [0.3, 0.08]])), [[0.3, -1.0], [0.3, 1.0]]
    )
    close(
        chosen.unnormalize_actions(torch.tensor([[0.3, -0.1], [0.3, 0.4]])),
        [[0.3, 0.0], [0.3, 0.08]],
    )
    again = Preprocess.from_dict(chosen.to_dict())
    close(again.unnormalize_actions(torch.tensor([[0.3, 2.0]])), [[0.3, 0.08]])


def test_other_values_than_two_are_refused_unless_named():
    with pytest.raises(ConfigError, match="number 1 .* from -1 to 1, but does not have"):
        fitted([-1.0, 0.0, 0.2, 1.0])
    with pytest.raises(ConfigError, match="does not have exactly two values"):
        fitted([1.0, 1.0])
    named = fitted([-1.0, 0.0, 0.2, 1.0], values=[-1, 1])
    close(named.normalize_actions(torch.tensor([[0.0, 0.2]])), [[0.0, 1.0]])


# ---- quantiles --------------------------------------------------------------------------------------


def test_quantiles_by_hand():
    # 0, 1, ..., 100: q01 = 1, q99 = 99, q10 = 10, q90 = 90; the second number is constant
    values = np.stack((np.arange(101.0), np.full(101, 7.0)), -1)
    low, high = values.min(0), values.max(0)
    stats = KeyStats(np.zeros(2), np.zeros(2), low, high, lambda: quantiles_of(values))
    for found in (stats, MeasuredStats.of(torch.tensor(values))):
        offset, scale = fit_actions("quantile", found, "actions")
        assert ((torch.tensor([99.0, 7.0]) - offset) / scale).tolist() == [1.0, 0.0]
        offset, scale = fit_actions("quantile10", found, "actions")
        assert ((torch.tensor([90.0, 7.0]) - offset) / scale).tolist() == [1.0, 0.0]
        assert ((torch.tensor([10.0, 8.0]) - offset) / scale).tolist() == [-1.0, 1.0]
        assert fit_obs("quantile10", found, "x")[1].tolist() == [40.0, 1.0]


def test_numbers_after_a_rotation_keep_their_place_in_the_data():
    step = Rotation6d([3, 4, 5])
    assert [step.place_before(dim) for dim in (0, 2, 9, 10)] == [0, 2, 6, 7]
    assert step.imitates  # but a critic's actions are those of the environment


def test_angles_of_windows_are_converted_as_those_of_single_steps():
    step, values = SinCos("angles", [1, 2]), torch.arange(24.0).reshape(2, 3, 4)
    step.bind(Spec({"angles": Space((4,), "low_dim")}, {}))
    single = torch.stack([step.forward_obs("angles", row) for row in values[0]])
    assert torch.equal(step.forward_obs("angles", values)[0], single) and single.shape == (3, 6)
