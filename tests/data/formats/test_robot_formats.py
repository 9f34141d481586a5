"""ALOHA, LIBERO and MimicGen: what their files shift, turn, leave out, and have besides."""

from io import BytesIO

import h5py
import numpy as np
import pytest
from PIL import Image

from imitate.data.file.image_codec import encode_jpeg
from imitate.data.formats import hdf5_tree
from imitate.data.formats.convert import convert
from imitate.data.formats.frames import decoded
from imitate.errors import DatasetError
from tests.data.formats.samples import aloha_episode, libero_task, mimicgen

# ---- HDF5 in general -----------------------------------------------------------------------------


def test_a_folder_and_a_file_without_a_required_array_are_named(tmp_path):
    with pytest.raises(DatasetError, match="is not a file"), hdf5_tree.opened(tmp_path):
        pass
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file["one"], file["group/two"] = np.arange(6), np.zeros(1)
    with hdf5_tree.opened(path) as file:
        array = hdf5_tree.wanted(file, "one", "a.hdf5")
        assert hdf5_tree.rows(array).tolist() == [0, 1, 2, 3, 4, 5]
        assert hdf5_tree.rows(array, 2, 4).tolist() == [2, 3]
        for name in ("group", "three"):
            with pytest.raises(DatasetError, match=rf"no array '{name}' \(found: group, one\)"):
                hdf5_tree.wanted(file, name, "a.hdf5")


# ---- ALOHA: one file per episode, compressed images, the shift of actions ------------------------


def test_simulated_episodes_are_taken_as_they_are(converted, tmp_path):
    source = tmp_path / "episodes"
    source.mkdir()
    for number in (0, 2, 10):
        aloha_episode(source / f"episode_{number}.hdf5", number=number)
    report, file = converted(source)
    assert (report.source_format, report.demos, report.steps) == ("aloha", 3, 12)
    assert file.read("demo_1", "obs/qpos")[:, 0].tolist() == [2, 3, 4, 5]
    assert file.read("demo_2", "obs/qpos")[:, 0].tolist() == [10, 11, 12, 13]
    np.testing.assert_allclose(file.read("demo_2", "actions")[:, 0], [1, 1.1, 1.2, 1.3])
    assert file.read("demo_2", "timeouts").tolist() == [0, 0, 0, 1]
    assert file.read("demo_2", "obs/top_image")[0, 0, 0, 0] == 10
    assert (file.file_attrs["control_freq"], file.env_meta["type"]) == (50, 4)


@pytest.mark.parametrize(
    ("sim", "option", "shift"), [(None, None, 1), (False, None, 1), (False, 0, 0), (True, 2, 2)]
)
def test_an_observation_goes_with_the_action_before_it(converted, tmp_path, sim, option, shift):
    _, file = converted(aloha_episode(tmp_path / "episode_0.hdf5", sim=sim), action_shift=option)
    assert file.read("demo_0", "obs/qpos")[:, 0].tolist() == list(range(shift, 4))
    actions = file.read("demo_0", "actions")[:, 0]
    np.testing.assert_allclose(actions, np.arange(4 - shift) / 10, rtol=1e-6)
    assert len(file.read("demo_0", "obs/top_image")) == 4 - shift


@pytest.mark.parametrize("padding", [True, False])
def test_compressed_images_have_the_colours_of_plain_ones(converted, tmp_path, padding):
    frame = np.zeros((16, 16, 3), dtype=np.uint8)
    frame[..., 0] = 220  # red
    data = encode_jpeg(frame[..., ::-1], 95)  # an encoder that expects BGR makes this of it
    padded = np.zeros((4, len(data) + 37), dtype=np.uint8)
    padded[:, : len(data)] = data
    source = aloha_episode(tmp_path / "episode_0.hdf5", image=padded)
    with h5py.File(source, "a") as file:
        file.attrs["compress"] = True
        file["compress_len"] = np.full((1, 4), len(data))
        if not padding:
            del file["observations/images/top"]
            rows = file.create_dataset("observations/images/top", 4, h5py.vlen_dtype(np.uint8))
            for row in range(4):
                rows[row] = padded[row, : len(data)]
    report, file = converted(source)
    image = file.read("demo_0", "obs/top_image")
    assert image.shape == (4, 16, 16, 3)
    assert np.abs(image.astype(int) - frame).max() <= 6
    assert report.changed["images"].startswith("JPEG")


@pytest.mark.parametrize(
    ("dtype", "words"),
    [("u1", "images/top.*not an image"), ("f4", "shape .4, 50.: neither frames")],
)
def test_bytes_that_are_no_image_are_refused(tmp_path, dtype, words):
    source = aloha_episode(tmp_path / "episode_0.hdf5", image=np.ones((4, 50), dtype=dtype))
    with pytest.raises(DatasetError, match=words):
        convert(source, tmp_path / "o.hdf5")
    assert not list(tmp_path.glob("o*"))


def picture(form, **options):
    data = BytesIO()
    Image.new("RGB", (8, 6)).save(data, form, **options)
    return data.getvalue()


@pytest.mark.parametrize("form", ["EPS", "GIF", "TIFF"])
def test_pictures_that_are_programs_or_films_are_refused(form, monkeypatch, tmp_path):
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(DatasetError, match="a.parquet: contains bytes that are not an image"):
        decoded(picture(form), "a.parquet")
    assert not (tmp_path / "ran").exists()


def test_of_a_film_in_png_the_first_picture_is_read():
    film = picture("PNG", save_all=True, append_images=[Image.new("RGB", (8, 6), (9, 9, 9))] * 9)
    np.testing.assert_array_equal(decoded(film, "a"), np.zeros((6, 8, 3)))


# ---- LIBERO: late observations, images upside down, the instruction, a file per task -------------


def test_late_observations_are_moved_and_the_first_step_goes(converted, tmp_path):
    report, file = converted(libero_task(tmp_path / "open_the_drawer_demo.hdf5"))
    assert report.source_format == "libero"
    assert file.length("demo_0") == 4
    for key, values in (
        ("obs/robot0_joint_pos", [1, 2, 3, 4]),
        ("states", [1, 2, 3, 4]),
        ("robot_states", [1, 2, 3, 4]),
        ("next_obs/robot0_joint_pos", [2, 3, 4, 5]),
        ("actions", [0.01, 0.02, 0.03, 0.04]),
    ):
        assert file.read("demo_0", key)[:, -1].tolist() == values, key
    assert file.read("demo_0", "terminals").tolist() == [0, 0, 0, 1]
    attrs = file.attrs("demo_0")
    wanted = {"language": "pick up the book", "success": True, "model_file": "<x/>"}
    assert {key: attrs[key] for key in wanted} == wanted
    assert "late" in report.changed["obs"]


def test_files_made_again_without_the_lag_are_left_in_time(converted, tmp_path):
    report, file = converted(libero_task(tmp_path / "a_demo.hdf5", late=False))
    assert file.read("demo_0", "obs/robot0_joint_pos")[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert any("not late" in note for note in report.notes)


@pytest.mark.parametrize(
    ("convention", "option", "flipped", "after"),
    [
        ("opengl", None, True, "opencv"),
        ("opencv", None, False, "opencv"),
        ("opengl", False, False, "opengl"),
        ("opencv", True, True, "opengl"),
    ],
)
def test_images_are_set_upright_and_that_is_stored(
    converted, tmp_path, convention, option, flipped, after
):
    source = libero_task(tmp_path / "a_demo.hdf5", convention=convention)
    _, file = converted(source, flip_images=option)
    assert file.read("demo_1", "obs/agentview_image")[0, -1 if flipped else 0].min() == 200
    assert file.file_attrs["images_flipped"] == flipped
    assert file.file_attrs["macros_image_convention"] == after


def test_a_folder_of_tasks_becomes_one_file(converted, tmp_path):
    folder = tmp_path / "libero_goal"
    folder.mkdir()
    libero_task(folder / "a_demo.hdf5", "open it")
    libero_task(folder / "b_demo.hdf5", "close it", base=1.0)
    report, file = converted(folder)
    assert report.demos == 4
    assert file.filter_keys() == {"a": ["demo_0", "demo_1"], "b": ["demo_2", "demo_3"]}
    told = [(file.attrs(demo)["language"], file.attrs(demo)["task_id"]) for demo in file.demos()]
    assert told == [("open it", 0)] * 2 + [("close it", 1)] * 2
    assert file.attrs("demo_3")["bddl_file_name"] == "/somewhere/b_demo.bddl"
    assert file.read("demo_2", "actions")[0, 0] == 0.02


# ---- MimicGen: what its files leave out, and what they have besides ------------------------------


@pytest.mark.parametrize(
    ("name", "last_reward", "terminal", "timeout"), [("demo", 1, 1, 0), ("demo_failed", 0, 0, 1)]
)
def test_rewards_and_ends_are_made_up(converted, tmp_path, name, last_reward, terminal, timeout):
    report, file = converted(mimicgen(tmp_path / f"{name}.hdf5", ("demo_10", "demo_9")))
    assert report.source_format == "mimicgen"
    assert {"rewards", "terminals", "timeouts"} <= set(report.synthesised)
    assert file.demos() == ["demo_9", "demo_10"]
    assert file.read("demo_9", "rewards").tolist() == [0, 0, 0, last_reward]
    assert file.read("demo_9", "terminals").tolist() == [0, 0, 0, terminal]
    assert file.read("demo_9", "timeouts").tolist() == [0, 0, 0, timeout]
    assert file.attrs("demo_9")["success"] == (name == "demo")
    assert not file.has("demo_9", "next_obs")


def test_datagen_info_is_kept(converted, tmp_path):
    _, file = converted(mimicgen(tmp_path / "d.hdf5", ("demo_10", "demo_9")))
    assert file.shape("demo_10", "datagen_info/object_poses/cube") == (4, 4, 4)
    grasp = file.read("demo_10", "datagen_info/subtask_term_signals/grasp")
    assert grasp.tolist() == [0, 0, 1, 1]
    attrs = file.attrs("demo_10")
    assert attrs["datagen_info.env_interface_name"] == "MG_Stack"
    assert attrs["src_demo_inds"].tolist() == [3, 1]
    assert file.read("demo_10", "actions")[0, 0] == 0.1


def test_states_may_be_a_group(converted, tmp_path):
    report, file = converted(mimicgen(tmp_path / "d.hdf5", states="states/joints"))
    assert report.renamed["states/joints"] == "state_dict/joints"
    assert file.read("demo_1", "state_dict/joints")[3, 4] == 19
    assert not file.has("demo_1", "states")
