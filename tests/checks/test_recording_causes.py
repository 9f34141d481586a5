"""Images that are turned, late or of other colours; vectors that are scaled, elsewhere or stuck."""

import numpy as np
import pytest

from imitate.checks.diagnosis import ranked
from imitate.checks.execution_causes import of_execution
from imitate.checks.image_causes import (
    Views,
    of_exchanged,
    of_images,
    of_other_episodes,
    of_uninformative,
    of_views,
)
from imitate.checks.recording_causes import of_dropped, of_rare_starts, of_vectors
from imitate.checks.subject import followed, positions_among
from imitate.deploy.check.deploy_check import CheckedDemo, Predictions
from imitate.deploy.check.statistics import range_of

TURNS = {
    None: lambda images: images,
    "upside down": lambda images: images[:, ::-1],
    "mirrored": lambda images: images[:, :, ::-1],
    "turned by half": lambda images: images[:, ::-1, ::-1],
    "turned by a quarter to the left": lambda images: np.rot90(images, 1, (1, 2)),
    "turned by a quarter to the right": lambda images: np.rot90(images, -1, (1, 2)),
}


def episode(rng, late=0, turn=TURNS[None], steps=40, background=0.0):
    """A bright spot at the position, which moves through the picture, with another spot at random."""
    speed, start = rng.uniform(-0.15, 0.15, 2), rng.uniform(-1, 1, 2)
    at = np.sin(start + speed * np.arange(steps)[:, None])
    place, y, x = rng.uniform(-1, 1, 2), *np.mgrid[-1.2:1.2:24j, -1.2:1.2:24j]

    def spot(p):
        return np.exp(-((y - p[..., 0, None, None]) ** 2 + (x - p[..., 1, None, None]) ** 2) / 0.1)

    seen = at[np.maximum(np.arange(steps) - late, 0)]
    images = np.stack(
        [spot(seen), spot(place) + 0 * spot(seen), background * (y + 0 * spot(seen))], axis=-1
    )
    images = (100 + 75 * images).astype(np.uint8)
    return CheckedDemo("demo", {"top": turn(images), "pos": at}, np.zeros((steps, 1)))


def found(keys=("pos",), **fault):
    shown, failed = (np.random.default_rng(seed) for seed in (0, 1))
    background = {"background": fault.pop("background", 0.0)}
    trained = Views([episode(shown, **background) for _ in range(20)], "top", keys)
    recorded = Views([episode(failed, **background, **fault) for _ in range(6)], "top", keys)
    return {cause.kind: cause for cause in of_views("top", recorded, trained)}


@pytest.mark.parametrize("turned", TURNS)
def test_turned_images(turned):
    causes = found(turn=TURNS[turned])
    assert causes["image turned"].is_named == (turned is not None)
    back = {"left": "right", "right": "left"}
    words = " ".join(back.get(word, word) for word in str(turned).split())
    assert turned is None or f"'top' are {words}, they" in causes["image turned"].words
    assert not causes["image late"].is_named


@pytest.mark.parametrize("late", [0, 2, 5])
def test_late_images(late):
    cause = found(late=late)["image late"]
    assert cause.is_named == (late > 0) and f"{late} steps before" in cause.words


def test_late_images_of_a_small_hand_beside_a_large_object_that_moves():
    def seen(rng, late=0, steps=40):
        speeds, starts = rng.uniform(-0.15, 0.15, (2, 2)), rng.uniform(-1, 1, (2, 2))
        hand, thing = np.sin(starts[:, None] + speeds[:, None] * np.arange(steps)[:, None])
        y, x = np.mgrid[-1.2:1.2:40j, -1.2:1.2:40j]
        before = np.maximum(np.arange(steps) - late, 0)
        images = np.repeat(rng.integers(60, 120, (1, 40, 40, 1), np.uint8), 3, axis=-1).repeat(
            steps, axis=0
        )
        for at, radius, colour in ((thing, 0.3, (220, 40, 40)), (hand, 0.12, (40, 40, 220))):
            spot = at[before, :, None, None]
            images[(y - spot[:, 0]) ** 2 + (x - spot[:, 1]) ** 2 < radius**2] = colour
        return CheckedDemo("demo", {"top": images, "pos": hand}, np.zeros((steps, 1)))

    shown, failed = (np.random.default_rng(seed) for seed in (0, 1))
    trained = Views([seen(shown) for _ in range(20)], "top", ["pos"])
    for late in (0, 6):
        recorded = Views([seen(failed, late) for _ in range(8)], "top", ["pos"])
        causes = {cause.kind: cause for cause in of_views("top", recorded, trained)}
        assert causes["image late"].is_named == (late > 0), causes["image late"]


def test_without_vectors_images_are_compared_with_each_other():
    assert not found(())["image turned"].is_named
    assert found((), turn=TURNS["upside down"], background=1.0)["image turned"].is_named


def test_a_recording_outside_of_the_training_shows_nothing():
    rng = np.random.default_rng(0)
    inside, outside = (Views([episode(rng)], "top", ["pos"]) for _ in range(2))
    outside.states += 9.0
    assert not list(of_views("top", outside, inside))


def aimed(shown):
    """Images of forty episodes with a spot at ``shown`` (40, 2), in [-1, 1]."""
    y, x = np.mgrid[-1.2:1.2:24j, -1.2:1.2:24j]
    at = shown[..., None, None]
    spots = np.exp(-((y - at[:, 0]) ** 2 + (x - at[:, 1]) ** 2) / 0.1)
    return (200 * spots[..., None] * [1, 1, 0]).astype(np.uint8)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("inverse", [False, True])
def test_images_in_the_order_of_names(first, inverse):
    aims = np.random.default_rng(0).uniform(-1, 1, (40, 2))
    order = sorted(range(40), key=lambda n: str(n + first))  # 0, 1, 10, 11, 12 or 0, 9, 10, 11
    cause = of_other_episodes("top", aimed(aims[np.argsort(order) if inverse else order]), aims)
    assert cause.is_named and "at its place in the order of names predicts" in cause.words


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_images_of_the_episode_before_or_after(offset):
    aims = np.random.default_rng(0).uniform(-1, 1, (40, 2))
    images = aimed(np.roll(aims, -offset, axis=0))
    ends = np.concatenate([aims, np.ones((40, 1))], axis=1)
    cause = of_other_episodes("top", images, ends)
    assert cause.is_named == (offset != 0)
    # images that show the next episode are those of this one in the episode before
    assert ("episode after" in cause.words) == (offset < 0)
    assert of_other_episodes("top", images[:19], ends[:19]) is None
    assert not of_other_episodes("top", 0 * images, ends).is_named
    assert not of_other_episodes("top", images, 0 * ends).is_named


@pytest.mark.parametrize(
    ("images_tell", "vectors_tell", "error", "named"),
    [
        (False, False, 0.6, True),
        (False, False, 0.2, False),
        (True, False, 0.6, False),
        (False, True, 0.6, False),
    ],
)
def test_images_that_show_nothing_of_the_task(images_tell, vectors_tell, error, named):
    rng = np.random.default_rng(0)
    aims = rng.uniform(-1, 1, (40, 2))
    images = rng.integers(0, 200, (40, 20, 20, 3))
    if images_tell:
        images[:, :10] = 100 * aims[:, :1, None, None] + 100
        images[:, 10:] = 100 * aims[:, 1:, None, None] + 100
    vectors = aims if vectors_tell else rng.uniform(-1, 1, (40, 3))
    cause = of_uninformative("top", images.astype(np.uint8), vectors, aims, error)
    assert (cause.kind, cause.is_named) == ("blind", named)
    assert of_uninformative("top", images[:19], vectors[:19], aims[:19], error) is None


@pytest.mark.parametrize(
    ("done", "named"),
    [
        (lambda wanted: np.clip(wanted, -0.2, 0.2), ["shortened"]),
        (lambda wanted: 0.5 * wanted, ["shortened"]),
        (lambda wanted: np.minimum(wanted, [9, 0.02]), ["shortened"]),
        (lambda wanted: wanted, []),
        (lambda wanted: np.roll(wanted, 1, axis=0), ["late actions"]),
        (lambda wanted: -wanted, ["other policy"]),
    ],
)
def test_how_executed_actions_differ_from_the_policys(done, named):
    wanted = np.random.default_rng(0).uniform(-1, 1, (200, 2)) * [1, 0.15]
    whole = Predictions([CheckedDemo("demo", {}, done(wanted))], [wanted], 0.0, [])
    causes = [*of_execution(whole, whole)]
    assert [cause.kind for cause in causes if cause.is_named] == named
    if "actions[0]" in causes[0].words:
        assert "executed actions reach -0.2 to 0.2 in actions[0]" in causes[0].words
        assert causes[0].words.endswith("78% of the steps, the executed ones are at its ends")


@pytest.mark.parametrize(
    ("start", "speed", "named"),
    [
        ((-1, -0.6), 0.0, set()),
        ((-1, -0.6), 0.03, set()),
        ((-1, -0.6), 0.4, {"drift"}),
        ((1.6, 2.0), 0.0, {"outside", "offset"}),
        ((0.8, 1), 0.0, {"coverage"}),
    ],
)
def test_where_episodes_begin_tells_a_cause_from_its_consequence(start, speed, named):
    rng = np.random.default_rng(0)

    def drawn(low, high, speed):
        steps = np.arange(20)[:, None]
        return rng.uniform(low, high, 2) + speed * steps + rng.normal(0, 0.01, (20, 2))

    shown = [drawn(*((-1, -0.6) if n else (0.8, 1)), 0.0) for n in range(20)]
    failed = [drawn(*start, speed) for _ in range(12)]
    causes = [*of_vectors("pos", failed, range_of(shown), shown)]
    assert sum(cause.kind in ("outside", "drift") for cause in causes) == 1
    assert {cause.kind for cause in causes if cause.is_named} == named


@pytest.mark.parametrize(("number", "named"), [(8, False), (30, True)])
def test_episodes_begin_outside_of_few_demonstrations_by_chance(number, named):
    rng = np.random.default_rng(3)
    shown = [rng.normal(size=(1, 4)).repeat(5, axis=0) for _ in range(number)]
    known = range_of(shown)
    failed = [known.mean + np.zeros((5, 4)) for _ in range(12)]
    for one in failed[:5]:
        one[:, 0] = known.high[0] + 1
    causes = {cause.kind: cause for cause in of_vectors("pos", failed, known, shown)}
    assert causes["outside"].is_named == named


SCALED = {
    "looks standardized": lambda x, known: (x - known.mean) / known.std,
    "looks scaled to [-1, 1]": lambda x, known: 2 * (x - known.low) / (known.high - known.low) - 1,
    "looks scaled to [0, 1]": lambda x, known: (x - known.low) / (known.high - known.low),
    "centimetres": lambda x, known: 100 * x,
    "elsewhere": lambda x, known: x + (np.random.default_rng(9).uniform(-9, 9), 0, 0),
}


@pytest.mark.parametrize(
    ("fault", "kind"), [*zip(SCALED, ["normalization"] * 3 + ["units", "outside"], strict=True)]
)
def test_far_values_are_scaled_or_of_another_unit_or_elsewhere(fault, kind):
    rng = np.random.default_rng(1)
    shown = [rng.normal((5, 60, -9), 0.3, (1, 3)) + rng.normal(0, 0.05, (30, 3)) for _ in range(20)]
    known = range_of(shown)
    failed = [SCALED[fault](demo, known) for demo in shown[:12]]
    named = [cause for cause in of_vectors("pos", failed, known, shown) if cause.is_named]
    assert kind == named[0].kind
    assert kind != "normalization" or named[0].words.startswith(
        f"'pos' {fault} with the training's"
    )


@pytest.mark.parametrize(
    ("solved", "follows", "kind"),
    [
        ((), None, "offset"),
        ([False] * 10, None, "offset"),
        ([True] + [False] * 9, None, "offset"),
        ([True] * 2 + [False] * 8, None, "outside"),
        ([True] * 2 + [False] * 8, [True, False], "offset"),
    ],
)
def test_an_object_at_which_episodes_are_solved_is_there_indeed(solved, follows, kind):
    rng = np.random.default_rng(1)
    shown = [rng.normal(0, 1, (1, 2)).repeat(5, axis=0) for _ in range(30)]
    moved = [demo + (9.0, 0.0) for demo in shown[:10]]
    follows = None if follows is None else np.array(follows)
    found = [*of_vectors("pos", moved, range_of(shown), shown, None, follows, solved)]
    assert ranked(found)[0].kind == kind


@pytest.mark.parametrize(
    ("shift", "of_robot", "kind"),
    [
        (9.0, False, "outside"),
        (9.0, True, "offset"),
        (0.9, True, "offset"),
        (0.9, False, "coverage"),
    ],
)
def test_objects_far_outside_are_elsewhere_but_a_shifted_joint_has_a_wrong_sensor(
    shift, of_robot, kind
):
    rng = np.random.default_rng(3)
    shown = [rng.normal(0, 0.3, (1, 1)) + rng.normal(0, 1, (30, 1)) for _ in range(40)]
    for demo in shown:
        demo[0] = rng.normal(0, 0.1, 1)
    moved = [demo + shift for demo in shown[:10]]
    causes = of_vectors("q", moved, range_of(shown), shown, None, np.array([of_robot]))
    (found,) = [cause for cause in causes if "begins" in cause.words and "away" in cause.words]
    assert (found.kind, found.is_named) == (kind, True)


@pytest.mark.parametrize(("follows", "named"), [((True, False), True), ((False, False), False)])
def test_only_a_number_of_the_robot_has_to_vary_in_each_episode(follows, named):
    rng = np.random.default_rng(2)
    shown = [rng.normal(size=(30, 2)) for _ in range(10)]
    failed = [np.stack([np.full(30, rng.normal()), rng.normal(size=30)], axis=1) for _ in range(10)]
    causes = of_vectors("pos", failed, range_of(shown), shown, None, np.array(follows))
    sensors = [cause for cause in causes if cause.kind == "sensor" and cause.is_named]
    assert bool(sensors) == named
    assert not named or sensors[0].words.startswith("pos[0] varies ")


def test_any_number_that_has_one_value_in_all_episodes_is_stuck():
    rng = np.random.default_rng(2)
    shown = [rng.normal(size=(30, 2)) for _ in range(10)]
    failed = [np.stack([np.full(30, 0.5), rng.normal(size=30)], axis=1) for _ in range(10)]
    causes = of_vectors("pos", failed, range_of(shown), shown, None, np.zeros(2, dtype=bool))
    assert "sensor" in {cause.kind for cause in causes if cause.is_named}


def pictures(rng, red=(200, 40, 30)):
    """A red and a green square at random places."""
    image = np.full((1, 32, 32, 3), 90, dtype=np.uint8)
    for colour in (red, (30, 180, 60)):
        y, x = rng.integers(0, 26, 2)
        image[:, y : y + 6, x : x + 6] = colour
    return image


@pytest.mark.parametrize("scale", [np.uint8, lambda images: np.float32(images / 255)])
def test_red_and_blue_are_exchanged_if_colours_occur_as_often_then(scale):
    rng = np.random.default_rng(0)
    shown, right = ([scale(pictures(rng)) for _ in range(12)] for _ in range(2))
    wrong = [image[..., ::-1] for image in right]
    named = [
        [cause.kind for cause in of_images("top", images, None, shown) if cause.is_named]
        for images in (right, wrong, [scale(pictures(rng, (200, 200, 30))) for _ in range(12)])
    ]
    assert named == [[], ["image channels"], []]


def test_black_bars_that_the_demonstrations_do_not_have():
    rng = np.random.default_rng(0)
    shown, barred = ([pictures(rng) for _ in range(6)] for _ in range(2))
    for image in barred:
        image[:, 24:] = 0
    (found,) = [one for one in of_images("top", barred, None, shown) if one.kind == "image border"]
    assert found.words == "25% of the pixels of 'top' are always black (0% in the demonstrations)"
    assert found.is_named and found.score == 2.5
    kinds = {one.kind for one in of_images("top", barred, None, barred) if one.is_named}
    assert "image border" not in kinds


def moved(rng, sign=1.0, steps=24):
    """An arm's position and velocity, an object that is taken in the middle, and a number at random."""
    u = rng.uniform(-1, 1, (steps, 1)).repeat(2, axis=0)[:steps]
    arm = np.cumsum(np.concatenate([[[0.0]], 0.1 * sign * u[:-1]]), axis=0)
    taken = np.arange(steps)[:, None] >= steps // 2
    object_ = np.where(taken, arm, arm[steps // 2])
    return u, np.concatenate([arm, object_, rng.normal(size=(steps, 1))], axis=1)


def test_numbers_of_the_robot_follow_the_actions_from_the_first_steps_on():
    rng = np.random.default_rng(4)
    pairs = [moved(rng) for _ in range(10)]
    assert followed(pairs).tolist() == [True, False, False]
    assert followed([(u[:4], q[:4]) for u, q in pairs]) is None
    own, recorded = positions_among(pairs, pairs[:2])
    assert [q.shape for _, q in own] == [(24, 1)] * 10 and len(recorded) == 2
    np.testing.assert_array_equal(own[0][1][:, 0], pairs[0][1][:, 0])
    assert positions_among(pairs, [(u, q[:, :2]) for u, q in pairs]) == ([], [])
    assert positions_among([(u, q[:, 2:]) for u, q in pairs]) == ([], [])
    mirrored = [moved(rng, sign=(-1) ** number) for number in range(10)]
    assert [q.shape for _, q in positions_among(mirrored)[0]] == [(24, 1)] * 10


def test_starts_near_which_few_demonstrations_begin_are_rare():
    rng = np.random.default_rng(0)
    usual, rare = rng.uniform(0, 1, (60, 2)), rng.uniform((5, 0), (6, 1), (3, 2))
    there = np.concatenate([usual, rare])
    among = of_rare_starts(rng.uniform(0, 1, (8, 2)), there)
    far = of_rare_starts(rng.uniform((5, 0), (6, 1), (8, 2)), there)
    assert (among.is_named, far.is_named, far.kind) == (False, True, "coverage")
    assert of_rare_starts(usual, there[:19]) is None and of_rare_starts(usual[:0], there) is None
    assert of_rare_starts(usual, np.ones((30, 2))) is None


def test_two_cameras_are_exchanged_if_each_shows_the_picture_of_the_other():
    rng = np.random.default_rng(0)
    scenes = {
        "front": rng.integers(0, 256, (12, 12, 3)),
        "wrist": rng.integers(0, 256, (12, 12, 3)),
    }

    def seen(names):
        images = {
            key: np.clip(scenes[scene] + rng.integers(-20, 20, (5, 12, 12, 3)), 0, 255).astype(
                np.uint8
            )
            for key, scene in names.items()
        }
        return CheckedDemo("demo", images, np.zeros((5, 1)))

    right, wrong = {"front": "front", "wrist": "wrist"}, {"front": "wrist", "wrist": "front"}
    alike = {"front": "front", "wrist": "front"}
    for here, there, named in ((right, right, False), (wrong, right, True), (alike, alike, False)):
        (cause,) = of_exchanged(["front", "wrist"], [seen(here)] * 3, [seen(there)] * 3)
        assert (cause.kind, cause.is_named) == ("exchanged", named), cause
    assert not [*of_exchanged(["front"], [seen(wrong)], [seen(right)])]


@pytest.mark.parametrize(
    ("still", "burst", "named"), [(0, 10, True), (0, 40, False), (20, 10, False)]
)
def test_long_repetitions_count_only_if_the_value_never_repeats_in_demonstrations(
    still, burst, named
):
    walk = np.random.default_rng(0).normal(size=(120, 2)).cumsum(axis=0)
    shown, seen = walk.copy(), walk[np.arange(120) // burst * burst]
    shown[40 : 40 + still] = shown[40]
    cause = of_dropped("part", [seen], [shown])
    assert cause.is_named == named


def test_a_joint_that_pauses_loses_no_frames():
    """After a pause it goes on with a usual step; a value that was not updated jumps."""
    steps = np.arange(120)
    paused = 0.1 * np.minimum(steps % 12, 3) + 0.3 * (steps // 12)
    lost = 0.1 * np.where(steps % 12 < 4, steps, steps // 12 * 12 + 3)
    shown = 0.1 * steps
    for seen, named in ((paused, False), (lost, True)):
        assert of_dropped("hand", [seen[:, None]], [shown[:, None]]).is_named == named
