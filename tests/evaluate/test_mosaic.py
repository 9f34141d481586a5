from pathlib import Path

import numpy as np

from imitate.evaluate.result import EpisodeResult
from imitate.evaluate.video import (
    BORDER,
    OUTCOMES,
    RUNNING,
    FrameFolder,
    FrameSender,
    compose,
    frame_file,
    read_frames,
    write_mosaic,
)


def episode(index, success, frames):
    return EpisodeResult(index, index, success, 0.0, frames, success, frames=frames)


def test_layout_and_borders():
    episodes = [episode(0, True, 2), episode(1, False, 3), episode(2, None, 1)]
    reels = [np.full((e.frames, 4, 4, 3), 10 * (e.index + 1), np.uint8) for e in episodes]
    side = 4 + 2 * BORDER
    first, second, third = (compose(episodes, reels, t) for t in range(3))
    assert first.shape == (2 * side, 2 * side, 3)  # three tiles in a square of four
    # Episode 0 is at its last frame in the second picture, episode 1 in the third, episode 2 in the first.
    assert [tuple(picture[0, 0]) for picture in (first, second)] == [RUNNING, OUTCOMES[True]]
    assert [tuple(picture[0, side]) for picture in (second, third)] == [RUNNING, OUTCOMES[False]]
    assert tuple(first[side, 0]) == OUTCOMES[None]
    assert first[side + BORDER, BORDER, 0] == 30 and not first[side:, side:].any()


def test_frames_are_sent_sixteen_at_a_time_and_lie_at_their_place():
    frames, sent = np.random.default_rng(0).integers(0, 256, (35, 2, 2, 3), dtype=np.uint8), []
    sender = FrameSender(3, sent.append)
    for frame in frames:
        sender.add(frame)
    for _ in range(2):
        sender.flush()
    assert [(part.index, part.start, len(part.pixels)) for part in sent] == [
        (3, 0, 16),
        (3, 16, 16),
        (3, 32, 3),
    ]
    folder = FrameFolder()
    for part in (sent[0], sent[2], sent[1], sent[0]):  # the first of another try, too
        folder.add(part)
    np.testing.assert_array_equal(read_frames(folder.name, 3, 35, 2), frames)
    folder.close()
    assert not Path(folder.name).exists()


def test_without_frames_there_is_no_video(tmp_path):
    assert write_mosaic(tmp_path / "v.mp4", str(tmp_path), [episode(0, True, 0)], size=4) is None
    assert not (tmp_path / "v.mp4").exists()


def test_raw_frames_become_a_video(tmp_path):
    from imageio.v2 import get_reader

    frames = np.zeros((3, 32, 32, 3), np.uint8)
    frames[1:] = 200
    frame_file(str(tmp_path), 4).write_bytes(frames.tobytes())
    path = write_mosaic(tmp_path / "v.mp4", str(tmp_path), [episode(4, True, 3)], size=32)
    with get_reader(path) as reader:
        shown = [np.asarray(frame) for frame in reader]
    assert len(shown) == 3 + 10
    assert shown[0].shape == (44, 44, 3) and shown[0][20:24, 20:24].mean() < 20
    assert shown[1][20:24, 20:24].mean() > 180
