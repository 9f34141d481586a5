"""Pixels and frames of evaluation videos: exact places, colours and steps."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageDraw

from imitate.evaluate import video as module
from imitate.evaluate.result import EpisodeResult
from imitate.evaluate.settings import EpisodePlan, EvalSettings
from imitate.evaluate.video import FrameRecorder, compose, draw_curves, draw_path, inset

SIZE = 8


class Env:
    """Renders frames whose pixels are the number of calls."""

    calls = 0

    def __init__(self, shape=(SIZE, SIZE, 3), fails_at=0):
        self.shape, self.fails_at, self.asked = shape, fails_at, []

    def render(self, **how):
        self.calls += 1
        self.asked.append(how)
        if self.calls == self.fails_at:
            raise RuntimeError("no display")
        return np.full(self.shape, self.calls)


def recorder(index=0, shown=1, on_frames=None, **settings):
    settings = EvalSettings(**{"video_skip": 3, **settings})
    plan = EpisodePlan(None, {}, "cpu", settings, 9, None, shown, "front", SIZE)
    return FrameRecorder(plan, index, None, on_frames)


def test_steps_that_have_a_frame():
    sent, env = [], Env()
    with recorder(on_frames=sent.append) as made:
        assert made.wanted
        for step in range(8):
            made.add(env, step, last=step == 7)
        assert made.count == 4 and sent == []
    (frames,) = sent
    assert (frames.index, frames.start, frames.pixels.dtype) == (0, 0, np.uint8)
    assert frames.pixels[:, 0, 0, 0].tolist() == [1, 2, 3, 4]  # of steps 0, 3, 6 and 7
    assert env.asked == [{"height": SIZE, "width": SIZE, "camera_name": "front"}] * 4
    assert made.error is None


@pytest.mark.parametrize(
    ("env", "error", "frames"),
    [
        (Env(fails_at=2), "RuntimeError: no display", 1),
        (Env((SIZE, SIZE)), "ValueError: the renderer returned an image of shape (8, 8)", 0),
        (
            Env((SIZE, SIZE + 1, 3)),
            "ValueError: the renderer returned an image of shape (8, 9, 3)",
            0,
        ),
    ],
)
def test_a_renderer_that_fails_is_not_called_again(env, error, frames):
    sent = []
    with recorder(on_frames=sent.append, video_skip=1) as made:
        for step in range(3):
            made.add(env, step)
    assert made.error == error and env.calls == frames + 1
    assert sum(len(each.pixels) for each in sent) == frames == made.count


def test_episodes_without_frames():
    for made in (recorder(index=1, on_frames=print), recorder(on_frames=None)):
        with made:
            made.add(None, 0)
        assert not made.wanted and made.count == 0 and made.error is None
    assert recorder(index=1, shown=2, on_frames=print).wanted


def test_the_overlay_is_drawn_where_the_policy_has_acted(monkeypatch):
    seen, sent = [], []

    class Overlay:
        def __init__(self, policy):
            pass

        def draw(self, frame, *rest):
            seen.append(rest[1:])
            return frame + 100

    monkeypatch.setattr(module, "Overlay", Overlay)
    with recorder(on_frames=sent.append, overlay=True, video_skip=1) as made:
        made.add(Env(), 0, {"s": 1})
        made.add(Env(), 1, None, last=True)
    assert seen == [("front", {"s": 1})]
    assert sent[0].pixels[:, 0, 0, 0].tolist() == [101, 1]


# ---- pictures ------------------------------------------------------------------------------------


def canvas(size=100):
    picture = Image.new("RGB", (size, size))
    return picture, ImageDraw.Draw(picture, "RGBA")


def test_the_colours_along_a_path():
    """The colour of a line is that of its number over their count, from yellow to pink and to 35 %."""
    picture, drawing = canvas()
    draw_path(drawing, np.array([[10.0, 50], [30, 50], [50, 50], [50, np.nan], [90, 90]]))
    pixels = np.asarray(picture).astype(int)
    assert pixels[50, 20].tolist() == [255, 230, 0]
    opacity = round(255 * (1 - 0.25 * 0.65)) / 255
    expected = np.array([255, round(230 * 0.75), round(120 * 0.25)]) * opacity
    assert np.abs(pixels[50, 40] - expected).max() <= 1
    assert (pixels[[48, 52], 40] == 0).all() and (pixels[[49, 51], 40] > 0).any(axis=-1).all()
    assert (pixels[60:, 60:] == 0).all()  # behind the camera
    # a ring of radius 3 and width 2 around the start
    assert [bool(pixels[50, x].any()) for x in (6, 7, 8)] == [False, True, True]
    assert [bool(pixels[y, 10].any()) for y in (46, 47, 53, 54)] == [False, True, True, False]


def test_curves_in_their_box():
    picture, drawing = canvas()
    actions = np.array([[0.0, -1.0], [1.0, -1.0]])
    draw_curves(drawing, actions, np.array([0.0, -1.0]), np.array([2.0, 1.0]))
    pixels = np.asarray(picture).astype(int)
    assert pixels[44, 84].tolist() == [255, 77, 77]  # the first number ends in the middle
    assert pixels[84, 4].tolist()[1:] == [255, 255]  # red is drawn before, the second is below
    assert pixels[84, 50].tolist() == [77, 255, 255]
    assert (pixels[:4] == 0).all() and (pixels[86:] == 0).all() and (pixels[:, 86:] == 0).all()
    picture, drawing = canvas()
    white = Image.new("RGB", (100, 100), (255, 255, 255))
    draw_curves(
        ImageDraw.Draw(white, "RGBA"), actions[:1], *np.array([[-np.inf] * 2, [np.inf] * 2])
    )
    pixels = np.asarray(white)
    assert pixels[10, 10].tolist() == [round(255 * (1 - 140 / 255))] * 3
    assert pixels[3, 10].tolist() == pixels[85, 10].tolist() == [255] * 3
    assert pixels[84, 10].tolist() == [77, 255, 255]  # without limits or change both are below
    picture, drawing = canvas()
    draw_curves(drawing, actions, *np.array([[-np.inf] * 2, [np.inf] * 2]))
    assert np.asarray(picture)[4, 84].tolist() == [255, 77, 77]  # to the largest at the top


def test_an_inset_marks_its_points():
    picture = np.asarray(inset(np.full((40, 20, 3), 50, np.uint8), np.array([[9.5, 9.5]])))
    assert picture.shape == (80, 80, 3)
    # (9.5 + 0.5) * 80 / 20 = 40 across, (9.5 + 0.5) * 80 / 40 = 20 down
    assert picture[20, 40].tolist() == [255, 230, 0]
    assert picture[20, [38, 42]].tolist() == picture[[18, 22], 40].tolist() == [[0, 0, 0]] * 2
    assert picture[20, [37, 43]].tolist() == picture[[17, 23], 40].tolist() == [[50, 50, 50]] * 2
    assert picture[0, 0].tolist() == picture[79, 79].tolist() == [255] * 3
    assert picture[1, 1].tolist() == [50] * 3


def test_the_mosaic_of_three_episodes():
    episodes = [EpisodeResult(n, n, s, 0.0, 1, s) for n, s in enumerate((True, False, None))]
    reels = [np.full((n, 2, 2, 3), 10 * n, np.uint8) for n in (1, 2, 3)]
    reels[2][1:] += np.array([1, 2], np.uint8)[:, None, None, None]
    picture = compose(episodes, reels, 1)
    assert picture.shape == (28, 28, 3)  # two tiles of 2 + 2 * 6 in each direction
    corners = [picture[0, 0], picture[0, 14], picture[14, 0], picture[14, 14]]
    assert [corner.tolist() for corner in corners] == [
        [40, 180, 60],
        [210, 40, 40],
        [128, 128, 128],
        [0, 0, 0],
    ]
    tiles = [picture[6, 6], picture[7, 21], picture[20, 7]]
    assert [tile[0] for tile in tiles] == [10, 20, 31]
    assert picture[5, 6].tolist() == picture[8, 7].tolist() == [40, 180, 60]
    last = compose(episodes, reels, 9)
    assert last[14, 0].tolist() == [235, 235, 235] and last[20, 7, 0] == 32
    assert compose(episodes[:1], reels[:1], 0).shape == (14, 14, 3)
    assert compose(episodes[:2], reels[:2], 0).shape == (14, 28, 3)


def test_a_mosaic_is_held_after_its_last_frame(tmp_path, monkeypatch):
    import imageio.v2

    how, drawn = {}, []

    class Writer:
        def __init__(self, path, **options):
            how.update(options)
            path.write_bytes(b"mp4")

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def append_data(self, picture):
            drawn.append(picture[module.BORDER, module.BORDER, 0])

    monkeypatch.setattr(imageio.v2, "get_writer", Writer)
    frames = np.arange(3 * 4 * 4 * 3, dtype=np.uint8).reshape(3, 4, 4, 3)
    module.frame_file(str(tmp_path), 5).write_bytes(frames.tobytes())
    episode = EpisodeResult(5, 5, True, 0.0, 3, True, frames=3)
    nothing = SimpleNamespace(index=1, frames=0, success=True)
    out = tmp_path / "new" / "a.mp4"
    assert module.write_mosaic(out, str(tmp_path), [nothing, episode], size=4) == out
    assert out.read_bytes() == b"mp4"
    assert drawn == [0, 48] + [96] * 11  # the last frame, and ten times more
    assert how == {"fps": 10.0, "macro_block_size": 2, "codec": "libx264", "quality": 7}
    assert module.write_mosaic(out, str(tmp_path), [nothing], size=4) is None
