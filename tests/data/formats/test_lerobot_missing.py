"""Missing files of a LeRobot dataset."""

import pytest

from imitate.data.formats.lerobot_missing import (
    absence,
    check_there,
    few,
    is_there,
    missing_videos,
)
from imitate.errors import DatasetError

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "videos" / "chunk-00").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "videos" / f"{number}.mp4").write_bytes(b"video")
    (tmp_path / "videos" / "lfs.mp4").write_text(POINTER)
    return tmp_path


def test_a_file_is_there_with_its_content(root):
    assert is_there(root / "videos" / "0.mp4")
    assert not is_there(root / "videos" / "9.mp4")
    assert not is_there(root / "videos" / "lfs.mp4")
    check_there(root / "videos" / "0.mp4", root)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("videos/9.mp4", "is missing: download it again"),
        ("video/0.mp4", "there is '.*videos': rename it|but there is 'videos': rename it"),
        ("data/a/0.mp4", "is missing: download it again"),
        ("videos/chunk-000/0.mp4", "but there is 'chunk-00': rename it"),
        ("videos/lfs.mp4", "Git LFS"),
    ],
)
def test_reasons(root, file, words):
    with pytest.raises(DatasetError, match=words) as raised:
        check_there(root / file, root)
    assert str(raised.value).startswith(absence(root / file, root))
    assert "--skip-incomplete" in str(raised.value)


def test_cameras_and_episodes_without_videos(root):
    def files(*names):
        return {n: root / "videos" / f"{name}.mp4" for n, name in enumerate(names)}

    whole = missing_videos({"top": files(0, 1, 2)}, root, [0, 1, 2])
    assert (whole.cameras, whole.episodes, whole.words) == (frozenset(), {}, "")
    found = missing_videos(
        {"top": files(0, 8, 9), "left": files(7, 7, 7), "right": files(7, 1, 2)}, root, [0, 1, 2]
    )
    assert found.cameras == {"left"}
    assert found.episodes == {1: ["top"], 2: ["top"], 0: ["right"]}
    top, left, right = found.words.split("; ")
    assert top.startswith("2 of 3 episodes (1, 2) have no video of 'top' (")
    assert "8.mp4: is missing" in top
    assert left.startswith("no episode has a video of 'left' (")
    assert right.startswith("1 of 3 episodes (0) have no video of 'right' (")


def test_the_first_of_many_episodes_are_named():
    assert few(range(8)) == "0, 1, 2, 3, 4, 5, 6, 7"
    assert few(range(9)) == "0, 1, 2, 3, 4, 5, 6, 7 ..."
