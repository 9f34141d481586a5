"""Plans and keypoints on the frames of videos."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageDraw

from imitate.evaluate.evaluate import EvalSettings, evaluate
from imitate.evaluate.video import (
    INSET,
    MARGIN,
    NEAR,
    Overlay,
    draw_curves,
    draw_path,
    inset,
    without_repeats,
)
from imitate.policy.rollout_policy import RolloutPolicy
from tests.tiny import tiny_algo
from tests.train.conftest import env_meta

BLACK = np.zeros((120, 160, 3), np.uint8)


def make_policy(algo_name="flow_policy"):
    algo = tiny_algo(algo_name, obs={"goal": 2, "pos": 2}, action=2)
    return RolloutPolicy(algo, [-1, -1], [1, 1])


def act(policy):
    obs = {"goal": np.zeros(2), "pos": np.ones(2)}
    return obs, policy(obs)


def test_what_repeats_at_the_end_was_not_planned():
    actions = np.array([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0], [3.0, 4.0], [3.0, 4.0]])
    assert without_repeats(actions).tolist() == [[1, 2], [1, 2], [3, 4]]
    assert without_repeats(actions[:2]).tolist() == [[1, 2]]
    assert without_repeats(actions[:1]).tolist() == [[1, 2]]


def test_a_path_fades_and_what_is_behind_the_camera_is_left_out():
    picture = Image.fromarray(BLACK)
    path = np.array([[10.0, 50.0], [60.0, 50.0], [110.0, 50.0], [np.nan, np.nan]])
    draw_path(ImageDraw.Draw(picture, "RGBA"), path)
    drawn = np.asarray(picture).astype(int)
    first, second = drawn[50, 40], drawn[50, 90]
    assert tuple(first) == NEAR  # on black, at full strength
    assert 0 < second.sum() < first.sum()
    assert not drawn[:, 120:].any()
    assert drawn[50, 7].any()  # the ring around where the hand is


def test_curves_lie_between_the_limits():
    picture = Image.fromarray(BLACK)
    actions = np.array([[0.0], [0.5], [1.0]])
    draw_curves(ImageDraw.Draw(picture, "RGBA"), actions, np.array([0.0]), np.array([1.0]))
    rows, columns = np.nonzero(np.asarray(picture)[..., 0] > 200)
    assert (columns.min(), columns.max()) == (MARGIN, MARGIN + INSET)
    # A straight line from the lower left corner to the upper right one.
    np.testing.assert_allclose(rows + columns, 2 * MARGIN + INSET, atol=1)


def test_one_action_without_limits_is_drawn():
    picture = Image.fromarray(BLACK)
    unlimited = np.array([-np.inf, -np.inf]), np.array([np.inf, np.inf])
    draw_curves(ImageDraw.Draw(picture, "RGBA"), np.array([[3.0, -7.0]]), *unlimited)
    assert np.asarray(picture).any()


def test_keypoints_are_marked_at_their_pixels():
    """The centre of pixel (x 10, y 20) of 40 is at (10.5, 20.5) / 40 of the inset of 80: (21, 41)."""
    marked = np.asarray(inset(np.zeros((40, 40, 3), np.uint8), np.array([[10.0, 20.0]])))
    rows, columns = np.nonzero((marked == NEAR).all(axis=-1))
    assert (rows.mean(), columns.mean()) == (pytest.approx(41, abs=0.5), pytest.approx(21, abs=0.5))


def test_a_picture_has_the_plan_and_the_images_with_keypoints():
    policy, seen = make_policy(), []
    obs, _ = act(policy)
    obs["camera"] = np.full((20, 20, 3), 100, np.uint8)
    policy.keypoints = lambda ob: {"camera": np.array([[5.0, 5.0]])}

    def planned_paths(actions, **view):
        seen.append((actions.shape, view))
        return [np.array([[100.0, 60.0], [140.0, 60.0]])]

    env = SimpleNamespace(planned_paths=planned_paths)
    drawn = Overlay(policy).draw(BLACK, env, "front", obs)
    # 16 from the older of two observations on: 15 from now on.
    assert seen == [((15, 2), {"height": 120, "width": 160, "camera_name": "front"})]
    assert tuple(drawn[60, 120]) == NEAR
    assert drawn.shape == BLACK.shape
    assert tuple(drawn[120 - MARGIN - INSET // 2, MARGIN + INSET // 2]) == (100, 100, 100)
    assert not BLACK.any()


def test_a_policy_without_chunk_or_keypoints_leaves_the_picture():
    policy = make_policy("bc")
    obs, _ = act(policy)
    assert not Overlay(policy).draw(BLACK, SimpleNamespace(), None, obs).any()


@pytest.mark.usefixtures("importable_env")
def test_a_video_with_overlay_shows_more_of_the_same_episode(tmp_path):
    from imageio.v2 import get_reader

    shown = []
    for overlay in (False, True):
        path = tmp_path / f"{overlay}.mp4"
        settings = {"episodes": 1, "horizon": 6, "video": path, "video_skip": 2}
        result = evaluate(make_policy(), env_meta(), EvalSettings(**settings, overlay=overlay))
        with get_reader(path) as reader:
            shown.append((result.returns, [np.asarray(frame).astype(int) for frame in reader]))
    (returns, plain), (returns_drawn, drawn) = shown
    assert returns == returns_drawn
    assert len(plain) == len(drawn)
    box = slice(12, 80)
    assert np.abs(plain[0] - drawn[0])[box, box].mean() > 20  # dark behind the curves
    assert np.abs(plain[0] - drawn[0])[150:].mean() < 2


def test_a_step_that_differs_in_one_number_was_planned():
    actions = np.array([[1.0, 2.0], [1.0, 5.0], [1.0, 4.0], [1.0, 4.0]])
    assert without_repeats(actions).tolist() == [[1, 2], [1, 5], [1, 4]]


@pytest.mark.parametrize(
    "env", [SimpleNamespace(), SimpleNamespace(planned_paths=lambda actions, **view: [])]
)
def test_without_paths_the_plan_is_drawn_as_curves(env):
    policy = make_policy()
    obs, _ = act(policy)
    env.action_low, env.action_high = np.full(2, -1.0), np.ones(2)
    white = np.full((120, 160, 3), 255, np.uint8)
    drawn = Overlay(policy).draw(white, env, None, obs)
    assert (drawn[90:] == 255).all() and (drawn[:, 90:] == 255).all()
    assert (drawn[MARGIN : MARGIN + INSET, MARGIN : MARGIN + INSET] < 255).any(axis=2).all()


def test_images_with_keypoints_are_side_by_side():
    policy = make_policy("bc")
    obs, _ = act(policy)
    kinds = {
        "a": (10, np.uint8, 3),
        "b": (20, np.float32, 3),
        "c": (30, np.uint8, 4),
        "d": (40, np.uint8, 3),
    }
    for key, (value, dtype, channels) in kinds.items():
        obs[key] = np.full((20, 20, channels), value, dtype)
    policy.keypoints = lambda ob: {key: np.zeros((0, 2)) for key in kinds}
    black = np.zeros((120, 400, 3), np.uint8)
    drawn = Overlay(policy).draw(black, SimpleNamespace(), None, obs)
    row = drawn[80, :, 0].tolist()
    edge, step = 255, INSET + MARGIN
    assert row[: MARGIN + 2] == [0] * 4 + [edge, 10]
    assert row[MARGIN + INSET - 2 : step + 2] == [10, edge, 0, 0]
    assert not any(row[step : 3 * step + 4])
    assert row[3 * step + 4 : 3 * step + 6] == [edge, 40] and row[4 * step - 1 : 4 * step + 1] == [
        edge,
        0,
    ]
    assert drawn[:, 10, 0].nonzero()[0].tolist() == list(range(120 - MARGIN - INSET, 120 - MARGIN))


@pytest.mark.parametrize("start", [(np.nan, 50.0), (50.0, np.nan)])
def test_a_hand_behind_the_camera_has_no_ring(start):
    picture = Image.fromarray(BLACK)
    draw_path(ImageDraw.Draw(picture, "RGBA"), np.array([start, (60.0, 50.0), (110.0, 50.0)]))
    drawn = np.asarray(picture)
    assert drawn[50, 90].any() and not drawn[:, :57].any()
