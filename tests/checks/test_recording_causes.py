"""Images of a recording that are turned or late are named, and those of the training are not."""

import numpy as np
import pytest

from imitate.checks.recording_causes import Views, of_vectors, of_views
from imitate.deploy.check.deploy_check import CheckedDemo
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


def test_without_vectors_images_are_compared_with_each_other():
    assert not found(())["image turned"].is_named
    assert found((), turn=TURNS["upside down"], background=1.0)["image turned"].is_named


def test_a_recording_outside_of_the_training_shows_nothing():
    rng = np.random.default_rng(0)
    inside, outside = (Views([episode(rng)], "top", ["pos"]) for _ in range(2))
    outside.states += 9.0
    assert not list(of_views("top", outside, inside))


@pytest.mark.parametrize(
    ("start", "speed", "named"),
    [
        ((-1, -0.6), 0.0, set()),
        ((-1, -0.6), 0.03, set()),
        ((-1, -0.6), 0.4, {"drift"}),
        ((1.5, 2.5), 0.0, {"outside", "offset"}),
        ((0.8, 1), 0.0, {"other starts"}),
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
