"""Writing of demonstration files: their layout, refusals that lose nothing, interruptions, and kill -9."""

import json
import logging
import resource
import signal
import time

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile, DatasetWriter, finish_partial
from imitate.data.file import writer as module
from imitate.errors import ConfigError, DatasetError
from tests.calling import call
from tests.demo_files import episode
from tests.forked import Forked, die
from tests.refusals import refused

META = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": "Panda"}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.hdf5"


def demo(length=3, obs=None, actions=None, **changes):
    obs = obs or {"x": np.arange(length * 2, dtype=np.float64).reshape(length, 2)}
    actions = np.full((length, 2), 0.5) if actions is None else actions
    return episode(length, obs, actions, "terminal", **{"rewards": np.arange(length), **changes})


def step(obs=None, action=(0.1, 0.2), **more):
    seen = {"x": np.zeros(3), "image": np.zeros((8, 6, 3), np.uint8)}
    return {"obs": {**seen, **(obs or {})}, "action": action, **more}


def running(path, **options):
    """A writer with one step of a running episode."""
    writer = DatasetWriter(path, META, **options)
    writer.start_episode()
    writer.append(**step())
    return writer


def written(path, *episodes, **options):
    """Write episodes, by default one of 3 steps; return the bytes of the file."""
    with DatasetWriter(path, META, **options) as writer:
        for one in episodes or (demo(),):
            writer.append_episode(one)
    return path.read_bytes()


def interrupted(path, length=3, **options):
    """Write an episode, and be interrupted in the next one."""
    with pytest.raises(KeyboardInterrupt), DatasetWriter(path, META, **options) as writer:
        writer.append_episode(demo(length))
        writer.start_episode()
        raise KeyboardInterrupt
    return writer.partial


def lengths(path):
    with DatasetFile(path) as file:
        return [file.length(name) for name in file.demos()]


# ---- what is written -----------------------------------------------------------------------------


def test_layout_in_the_file(path):
    with DatasetWriter(path, META, control_freq=20) as writer:
        attrs = {"success": True, "ep_meta": {"a": 1}}
        first = writer.append_episode(demo(3, states=np.ones((3, 4)), attrs=attrs))
        second = writer.append_episode(demo(2, states=np.zeros((2, 4))), name="my demo")
        writer.add_filter_key("train", [second])
    assert (first, second) == ("demo_0", "my demo")
    with h5py.File(path) as file:
        attrs = dict(file["data"].attrs)
        assert json.loads(attrs.pop("env_args")) == META
        wanted = {"total": 5, "imitate_format": 1, "control_freq": 20.0}
        assert {key: attrs[key] for key in wanted} == wanted
        group = file["data/demo_0"]
        assert (group.attrs["num_samples"], bool(group.attrs["success"])) == (3, True)
        assert json.loads(group.attrs["ep_meta"]) == {"a": 1}
        assert (group["actions"].shape, group["states"].shape) == ((3, 2), (3, 4))
        for key, values in (
            ("obs/x", [[0, 1], [2, 3], [4, 5]]),
            ("rewards", [0, 1, 2]),
            ("terminals", [0, 0, 1]),
            ("dones", [0, 0, 1]),
            ("timeouts", [0, 0, 0]),
        ):
            np.testing.assert_array_equal(group[key][()], values)
        assert file["mask/train"][()].tolist() == [b"my demo"]
    assert [p.name for p in path.parent.iterdir()] == ["a.hdf5"]


def test_step_by_step(path):
    with DatasetWriter(path, META) as writer:
        writer.start_episode()
        writer.append(obs={"x": [9.0]}, action=[0.0])
        writer.discard_episode()
        writer.start_episode()
        for number in range(3):
            image = np.full((2, 2, 3), number, dtype=np.uint8)
            writer.append(
                obs={"x": [float(number)], "image": image},
                action=[0.1 * number],
                reward=number,
                state=[number, number],
                interventions=number == 1,
            )
        assert writer.finish_episode(success=False, language="lift it") == "demo_0"
    with DatasetFile(path) as file:
        assert file.demos() == ["demo_0"]
        assert file.read("demo_0", "obs/x").tolist() == [[0.0], [1.0], [2.0]]
        assert file.read("demo_0", "obs/image").dtype == np.uint8
        assert file.read("demo_0", "terminals").tolist() == [0, 0, 0]
        assert file.read("demo_0", "timeouts").tolist() == [0, 0, 1]
        assert file.read("demo_0", "interventions").tolist() == [False, True, False]
        assert file.attrs("demo_0") == {"num_samples": 3, "success": False, "language": "lift it"}


def test_compressed_images_read_back_equal(path):
    image = np.zeros((3, 32, 32, 3), dtype=np.uint8)
    written(path, demo(3, obs={"image": image}), image_storage="gzip")
    with h5py.File(path) as file:
        stored = file["data/demo_0/obs/image"]
        assert stored.compression == "gzip"
        assert stored.id.get_storage_size() < image.nbytes / 10
        np.testing.assert_array_equal(stored[()], image)


def test_only_observations_of_two_axes_are_compressed(path):
    many = np.zeros((3, 4, 4))
    seen = {"image": many.astype(np.uint8), "x": np.zeros((3, 2))}
    written(path, demo(obs=seen, next_obs=seen, steps={"own": many}), image_storage="lzf")
    with h5py.File(path) as file:
        group = file["data/demo_0"]
        kinds = {
            key: group[key].compression
            for key in ("obs/image", "next_obs/image", "obs/x", "own", "actions")
        }
    packed = {"obs/image", "next_obs/image"}
    assert kinds == {key: "lzf" if key in packed else None for key in kinds}


def test_the_quality_of_jpegs(path):
    pixels = np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3), np.uint8)
    sizes = []
    for quality in ({}, {"jpeg_quality": 95}, {"jpeg_quality": 1}, {"jpeg_quality": 100}):
        how = {"image_storage": "jpeg", "overwrite": True, **quality}
        written(path, demo(1, {"image": pixels}), **how)
        with h5py.File(path) as file:
            sizes.append(len(file["data/demo_0/obs/image"][0]))
    assert sizes[2] < sizes[0] == sizes[1] < sizes[3]
    with refused("jpeg_quality is 101: expected 1 to 100", error=ConfigError):
        DatasetWriter(path.with_name("b.hdf5"), META, jpeg_quality=101)


def test_arrays_that_an_episode_may_lack(path):
    more = {"steps": {"signals/c": np.zeros(3), "own": np.zeros(3)}}
    with DatasetWriter(path, META, optional=("own",), attrs={"a": 1}) as writer:
        assert (writer.arrays, writer.num_episodes) == ((), 0)
        writer.append_episode(demo(steps={"signals/c": np.zeros(3)}))
        keys = ("actions", "rewards", "terminals", "timeouts", "signals/c", "obs/x", "dones")
        assert writer.arrays == keys
        writer.append_episode(demo(**more))
        assert (set(writer.arrays), writer.num_episodes) == ({*keys, "own"}, 2)
        writer.append_episode(demo(steps={"signals/c": np.zeros(3)}))
        with refused("'signals/c' is missing, which demo 'demo_0' has: give it in each episode"):
            writer.append_episode(demo())
        with refused("demo 'demo_3': 'other' is new, demo 'demo_0' lacks it: give it in each"):
            writer.append_episode(demo(steps={**more["steps"], "other": np.zeros(3)}))
        wide = {"signals/c": np.zeros(3), "own": np.zeros((3, 2))}
        with refused("a step of 'own' has shape (2,), but () in demo 'demo_0': give the same"):
            writer.append_episode(demo(steps=wide))
    with DatasetFile(path) as file:
        assert file.file_attrs["a"] == 1 and file.file_attrs["total"] == 9


def test_values_of_a_step_by_default(path):
    with DatasetWriter(path, META) as writer:
        writer.start_episode()
        writer.append(obs={"x": [1.0]}, action=[0.5], signals={"c": 2})
        writer.append(obs={"x": [2.0]}, action=[0.5], signals={"c": 3})
        writer.append(obs={"x": [3.0]}, action=[0.5], signals={"c": 4}, terminal=True, reward=1)
        assert writer.finish_episode(name="one", attrs={"a": "b"}) == "one"
        writer.start_episode()
        writer.append(obs={"x": [2.0]}, action=[0.5], signals={"c": 3}, timeout=True)
        writer.append(obs={"x": [2.0]}, action=[0.5], signals={"c": 3})
        writer.finish_episode()
    with DatasetFile(path) as file:
        found = {key: file.read("one", key).tolist() for key in file.keys("one")}  # noqa: SIM118
        assert found == {
            **{"actions": [[0.5]] * 3, "dones": [0, 0, 1], "obs/x": [[1], [2], [3]]},
            **{"rewards": [0, 0, 1], "signals/c": [2, 3, 4], "terminals": [0, 0, 1]},
            "timeouts": [0, 0, 0],
        }
        assert file.attrs("one") == {"num_samples": 3, "a": "b"}
        assert file.demos() == ["demo_1", "one"]
        assert file.read("demo_1", "timeouts").tolist() == [1, 1]


def test_what_was_discarded_binds_nobody(path):
    with running(path) as writer:
        writer.discard_episode()
        writer.start_episode()
        writer.append(obs={"x": np.zeros(5)}, action=[1.0, 2.0, 3.0])
        writer.finish_episode()


def test_types_that_mean_the_same_may_differ(path):
    later = {"reward": np.float64(1), "terminal": 1}
    with DatasetWriter(path, META) as writer:
        writer.start_episode()
        writer.append(obs={"x": [0, 0]}, action=[0, 1], reward=0)
        writer.append(obs={"x": np.float32([0.5, 0])}, action=[0.5, 1], **later)
        writer.finish_episode()
    with DatasetFile(path) as file:
        assert file.read("demo_0", "obs/x").tolist() == [[0, 0], [0.5, 0]]


def test_depth_and_what_is_no_picture_may_be_floats(path):
    seen = {"wrist_depth": np.zeros((8, 6, 1), np.float32), "touch": np.zeros((8, 6, 3))}
    for obs, strict in ((seen, False), ({"wrist_depth": seen["wrist_depth"]}, True)):
        with DatasetWriter(path, META, strict=strict, overwrite=True) as writer:
            writer.start_episode()
            writer.append(obs=obs, action=[0.0])
            writer.finish_episode()


# ---- refusals: the file goes on ------------------------------------------------------------------

X, XY = {"x": np.zeros((3, 2))}, {"x": np.zeros((3, 2)), "y": np.zeros((3, 2))}
PIXELS = np.zeros((3, 8, 6, 3))
PIXEL_OBS = {"image": PIXELS.astype(np.uint8)}
WRONG_EPISODES = [
    ({"actions": np.ones(3)}, "demo_0|'actions'|(3,)|(T, A)"),
    ({"actions": np.ones((0, 2))}, "demo_0|'actions'|at least 1"),
    ({"rewards": [1.0, 2.0]}, "demo_0|'rewards'|3 steps"),
    ({"rewards": np.ones((3, 2))}, "demo_0|'rewards'|expected (T,)"),
    ({"obs": {"x": np.ones((4, 1))}}, "demo_0|'obs/x'|3 steps"),
    ({"obs": {"x": [[1.0], [np.nan], [1.0]]}}, "demo_0|'obs/x'|NaN"),
    ({"actions": [[0.0], [np.inf], [0.0]]}, "demo_0|'actions'|inf"),
    ({"obs": {"x": [[1.0], [1.0, 2.0], [1.0]]}}, "demo_0|'obs/x'|not an array of numbers"),
    ({"obs": {"x": ["a", "b", "c"]}}, "demo_0|'obs/x'|not an array of numbers"),
    ({"attrs": {"env": object()}}, "demo_0|'env'|object"),
    ({"attrs": {"big": np.zeros(10_000)}}, "demo_0|'big'|80000 bytes"),
    ({"obs": {"x": PIXELS}}, "'obs/x'|float64|uint8"),
    ({"obs": {"x": np.zeros((3, 3, 8, 6), np.uint8)}}, "'obs/x'|(H, W, C)"),
    ({"obs": {"a/b": np.zeros((3, 2))}}, "'obs/a/b'|not contain '/'"),
    ({"next_obs": {"y": np.zeros((3, 2))}}, "'next_obs/y'|'obs/y' is missing"),
    ({"next_obs": {"x": np.zeros((3, 5))}}, "'next_obs/x'|(3, 5)|(3, 2)"),
    ({"obs": XY, "next_obs": X}, "'next_obs/y' is missing"),
]
OTHER_EPISODES = [
    ({}, {"obs": {"y": np.ones((3, 2))}}, "'obs/x' is missing"),
    ({}, {"obs": XY}, "'obs/y' is new"),
    ({}, {"obs": {"x": np.ones((3, 5))}}, "has shape (5,), but (2,) in demo 'demo_0'"),
    ({"obs": PIXEL_OBS}, {"obs": {"image": PIXELS}}, "'obs/image' is float64, but uint8 in demo"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG_EPISODES)
def test_a_malformed_episode_is_refused_and_the_file_goes_on(path, changes, words):
    with DatasetWriter(path, META) as writer:
        with refused(words, "a.hdf5"):
            writer.append_episode(demo(3, **changes))
        writer.append_episode(demo(3))
    assert lengths(path) == [3]


@pytest.mark.parametrize(("first", "second", "words"), OTHER_EPISODES)
def test_episodes_have_the_same_arrays(path, first, second, words):
    with DatasetWriter(path, META) as writer:
        writer.append_episode(demo(3, **first))
        with refused(words, "demo_1"):
            writer.append_episode(demo(3, **second))


WRONG_STEPS = [
    (step(action=[0.1]), "'actions'|(1,)|(2,)"),
    (step(action=[np.nan, 0.0]), "'actions'|nan"),
    (step(action=["a", "b"]), "'actions'|not an array of numbers"),
    (step({"x": np.zeros(4)}), "'obs/x'|(4,)|(3,)"),
    (step({"x": [0.0, np.inf, 0.0]}), "'obs/x'|inf"),
    (step({"x": [[1.0], [1.0, 2.0]]}), "'obs/x'|not an array of numbers"),
    (step({"x": None}), "'obs/x'|not an array of numbers"),
    (step({"image": np.zeros((8, 6, 3))}), "'obs/image'|float64|uint8"),
    (step({"image": np.zeros((3, 8, 6), np.uint8)}), "'obs/image'|(3, 8, 6)|(8, 6, 3)"),
    (step({"y": np.zeros(3)}), "'obs/y'|new|obs/x"),
    ({**step(), "obs": {"x": np.zeros(3)}}, "'obs/image'|missing"),
    (step(interventions=True), "'interventions'|new"),
    (step(reward=[1.0, 2.0]), "'rewards'|(2,)|one number"),
    (step(reward=np.nan), "'rewards'|nan"),
    (step(next_obs={"x": np.zeros(3)}), "next_obs|append_episode"),
]
WRONG_FIRST_STEPS = [
    (step({"image": np.zeros((8, 6, 3), np.float32)}), "float32|uint8"),
    (step({"image": np.full((8, 6, 3), 200.0)}), "float64|uint8"),
    (step({"image": np.zeros((3, 96, 96), np.uint8)}), "(3, 96, 96)|(H, W, C)"),
    (step({"arm/pos": np.zeros(3)}), "'obs/arm/pos'|not contain '/'"),
    (step(**{"a/b": 1.0}), "'a/b'|not contain '/'"),
    (step(action=0.5), "'actions'|()|(A,)"),
    (step(action=[[0.5, 0.5]]), "'actions'|(1, 2)|(A,)"),
    (step(action=[]), "'actions'|(0,)|(A,)"),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG_STEPS)
def test_a_wrong_step_is_told_when_it_is_given(path, wrong, words):
    with running(path) as writer:
        with refused(words, "step 1", "a.hdf5"):
            writer.append(**wrong)
        writer.append(**step())
        writer.finish_episode()
        writer.start_episode()
        with refused(words, "step 0"):
            writer.append(**wrong)
        writer.discard_episode()
    assert lengths(path) == [2], "the wrong step was not taken"


@pytest.mark.parametrize(("wrong", "words"), WRONG_FIRST_STEPS)
def test_a_wrong_first_step_is_told(path, wrong, words):
    writer = DatasetWriter(path, META)
    writer.start_episode()
    with refused(words, "step 0"):
        writer.append(**wrong)


def test_names_are_given_once_and_have_no_slash(path):
    with DatasetWriter(path, META) as writer:
        writer.append_episode(demo(), name="a")
        for name, words in (
            ("a", "already"),
            ("b/c", "not contain '/'"),
            ("", "at least one letter"),
        ):
            with refused(words):
                writer.append_episode(demo(), name=name)
        with refused("no demo 'aa'; did you mean 'a'"):
            writer.add_filter_key("train", ["aa"])


NEARLY = ("sucess", "succes", "Success", "languages", "task_ids")
FINISHES = [
    *(({"success": value}, "success is|expected True, False") for value in ("no", 2, 0.5)),
    *(({name: True}, f"{name}=|did you mean|attrs=|a.hdf5") for name in NEARLY),
]


@pytest.mark.parametrize(("attrs", "words"), FINISHES)
def test_attributes_are_checked_at_the_end_of_an_episode(path, attrs, words):
    with running(path) as writer:
        with refused(words):
            writer.finish_episode(**attrs)
        writer.finish_episode(success=np.bool_(True), operator="ada", attrs={**attrs, "success": 1})
    with DatasetFile(path) as file:
        assert {"operator": "ada"}.items() <= file.attrs("demo_0").items()
        assert attrs.keys() <= file.attrs("demo_0").keys()


def test_calls_in_a_wrong_order_are_refused(path, caplog):
    with running(path) as writer:
        with refused("obs is a ndarray: expected a dict"):
            writer.append(obs=np.zeros(3), action=[0.1, 0.2])
        with refused("episode of 1 step is running|discard_episode"):
            writer.start_episode()
        writer.finish_episode()
        writer.start_episode()
        writer.discard_episode()
        writer.start_episode()
        writer.append(**step())
    assert "the running episode of 1 step was neither finished nor discarded" in caplog.text
    assert lengths(path) == [1]
    with refused("no episode was written: the running episode of 1 step"):
        running(path.with_name("b.hdf5")).close()
    with DatasetWriter(path, META, overwrite=True) as writer:
        writer.append_episode(demo())
    with refused("the writer is closed"):
        writer.append_episode(demo())
    with refused("start_episode"):
        writer.append(obs={}, action=[0.0])
    with refused("without a step"):
        writer.finish_episode()


def test_steps_are_not_appended_to_demos_with_next_obs(path):
    written(path, demo(3, next_obs={"x": np.zeros((3, 2))}))
    with DatasetWriter(path, META, append=True) as writer, refused("next_obs|append_episode"):
        writer.start_episode()


@pytest.mark.parametrize("rate", [0, -1, np.nan, np.inf, "fast"])
def test_a_rate_is_a_positive_number(path, rate):
    with pytest.raises(ConfigError, match="control_freq is .*expected the number of actions"):
        DatasetWriter(path, META, control_freq=rate)
    assert not list(path.parent.iterdir())


# ---- interruptions, and going on -----------------------------------------------------------------


def test_without_an_episode_nothing_is_left(path):
    with refused("no episode was written"):
        DatasetWriter(path, META).close()
    with pytest.raises(KeyboardInterrupt), DatasetWriter(path, META):
        raise KeyboardInterrupt
    assert list(path.parent.iterdir()) == []


def test_an_existing_file_stays_until_the_new_one_is_complete(path):
    before = written(path)
    with refused("exists already"):
        DatasetWriter(path, META)
    with pytest.raises(ZeroDivisionError), DatasetWriter(path, META, overwrite=True) as writer:
        writer.append_episode(demo(5))
        assert path.read_bytes() == before
        raise ZeroDivisionError
    assert path.read_bytes() == before
    written(path, demo(5), overwrite=True)
    assert lengths(path) == [5]


def test_an_interrupted_recording_is_not_lost(path):
    partial = interrupted(path)
    assert not path.exists()
    assert lengths(partial) == [3]
    with refused("imitate dataset finish"):
        DatasetWriter(path, META)
    assert finish_partial(path) == 1
    assert lengths(path) == [3]
    assert [p.name for p in path.parent.iterdir()] == ["a.hdf5"]


def test_of_an_interrupted_recording_nothing_is_kept_but_what_was_there_before(path):
    interrupted(path, keep_partial=False)
    assert list(path.parent.iterdir()) == []
    written(path)
    assert lengths(interrupted(path, 5, append=True, keep_partial=False)) == [3, 5]


def test_names_in_masks_and_messages_after_several_episodes(tmp_path):
    path = tmp_path / "new" / "folder" / "a.hdf5"
    with DatasetWriter(path, META, control_freq=0.5) as writer:
        for number in range(3):
            writer.append_episode(demo())
            writer.add_filter_key("some", [f"demo_{number}"])  # replaces the mask
        writer.start_episode()
        with refused("'obs/x' has shape (3,), but (2,) in demo 'demo_0': give the same shape"):
            writer.append(obs={"x": np.zeros(3)}, action=[0.5, 0.5])
        writer.discard_episode()
    with DatasetFile(path) as file:
        assert file.filter_keys() == {"some": ["demo_2"]} and file.control_freq == 0.5


def test_an_error_while_an_episode_is_written_is_raised_and_ends_the_writer(path, monkeypatch):
    writer = DatasetWriter(path, META)
    writer.append_episode(demo())
    monkeypatch.setattr(module, "write_images", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        writer.append_episode(demo())
    with refused("the writer is closed"):
        writer.append_episode(demo())
    assert finish_partial(path) == 1 and lengths(path) == [3]


def test_a_file_that_leads_elsewhere_is_not_continued(path):
    before = written(path)
    link = path.with_name("link.hdf5")
    link.symlink_to(path)
    with refused(f"{link}: cannot be written ("):
        DatasetWriter(link, META, append=True)
    assert link.is_symlink() and path.read_bytes() == before
    with h5py.File(path, "a") as file:
        file["data/demo_0/obs/other"] = h5py.ExternalLink("other.hdf5", "/x")
    with refused("is a link to another file"):
        DatasetWriter(path, META, append=True)


def test_files_that_are_left_are_named(path, caplog):
    partial = path.with_name("a.hdf5.partial")
    with refused(f"{partial}: there is no such file"):
        finish_partial(path)
    interrupted(path)
    assert f"finished episodes (1) are kept in {partial}" in caplog.text
    kept = partial.read_bytes()
    with refused(
        f"{partial}: is left from an interrupted recording: make a file of it with: imitate dataset finish {path}, or"
    ):
        DatasetWriter(path, META)
    assert finish_partial(partial) == 1
    with refused(f"{path}: is finished already: there is no a.hdf5.partial beside it"):
        finish_partial(path)
    partial.write_bytes(kept)
    with refused(f"{path}: exists already: rename or remove it first"):
        finish_partial(path)
    with refused(f"{path}: exists beside {partial}: remove one of them"):
        DatasetWriter(path, META, append=True)
    with refused(f"{path}: exists already: choose another name, or pass overwrite=True"):
        DatasetWriter(path, META)
    path.unlink()
    with h5py.File(partial, "w") as file:
        file.create_group("data")
    with refused(f"{partial}: holds no episode: remove it"):
        finish_partial(path)
    written(path, overwrite=True)
    assert [file.name for file in path.parent.iterdir()] == ["a.hdf5"]


def test_nothing_is_warned_of_where_all_is_finished(path, caplog):
    with caplog.at_level(logging.INFO):
        written(path)
    assert caplog.text == ""
    with DatasetWriter(path, META, append=True) as writer:
        with refused(f"{path}: append() before start_episode(): call start_episode() first"):
            writer.append(**step())
        with refused(f"{path}: finish_episode() without a step: call start_episode()"):
            writer.finish_episode()
        assert writer.num_episodes == 1


def test_two_writers_do_not_share_a_file(path):
    with DatasetWriter(path, META) as writer:
        writer.append_episode(demo())
        with refused("another process is writing"):
            DatasetWriter(path, META, overwrite=True)
        with refused("another process is writing"):
            finish_partial(path)
        assert lengths(writer.partial) == [3]


def test_a_file_is_gone_on_with(path):
    images = {"image": np.zeros((3, 8, 8, 3), dtype=np.uint8)}
    for number in range(2):
        with DatasetWriter(path, META, append=True, image_storage="jpeg") as writer:
            assert writer.num_episodes == number
            if number:
                with refused("'obs/image'"):
                    writer.append_episode(demo())
            assert writer.append_episode(demo(obs=images)) == f"demo_{number}"
            assert not path.exists()
    with DatasetFile(path) as file:
        assert (file.demos(), file.file_attrs["total"]) == (["demo_0", "demo_1"], 6)
        assert file.env_meta == META


def test_what_an_interrupted_writer_left_is_gone_on_with(path):
    written(path, demo(2), append=True)
    interrupted(path, 3, append=True)
    assert not path.exists()
    with DatasetWriter(path, META, append=True) as writer:
        assert writer.num_episodes == 2
        writer.append_episode(demo(4))
    assert lengths(path) == [2, 3, 4]


def test_a_file_is_gone_on_with_at_its_rate_only(path):
    before = written(path, control_freq=10)
    with refused("recorded at 10 Hz, and control_freq is 20"):
        DatasetWriter(path, META, control_freq=20, append=True)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["a.hdf5"]
    for rate in (10, None):
        written(path, control_freq=rate, append=True)
    with DatasetFile(path) as file:
        assert (len(file.demos()), file.control_freq) == (3, 10.0)
    other = path.with_name("b.hdf5")
    interrupted(other, control_freq=10)
    with refused("recorded at 10 Hz"):
        DatasetWriter(other, META, control_freq=20, append=True)
    assert finish_partial(other) == 1


def test_what_lies_under_another_name_is_named(tmp_path):
    path = tmp_path / "a b.hdf5"
    with DatasetWriter(path, META) as writer:
        writer.append_episode(demo())
        with refused("is being recorded|a b.hdf5.partial"):
            DatasetFile(path)
        writer.close()
    path.unlink()
    partial = interrupted(path)
    with refused("imitate dataset finish|a b.hdf5'"):
        DatasetFile(path)

    done = call("info", path, code=2)
    assert "a b.hdf5.partial" in done.stderr and "imitate dataset finish" in done.stderr
    assert call("dataset finish", path).output.endswith("1 episode\n")
    for name in (path, partial):
        assert "is finished already" in call("dataset finish", name, code=2).stderr


# ---- processes that are killed, disks that are full ----------------------------------------------


def record(say, path, count=10**6, file_size=None):
    """Write episodes whose values are their number; say how many there are, or why no more can be written."""
    if file_size:  # a file that may not grow beyond stands for a full disk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    try:
        with DatasetWriter(path, META) as writer:
            for number in range(count):
                obs = {f"k{k}": np.full((20, 30), number, dtype=np.float64) for k in range(6)}
                writer.append_episode(episode(20, obs, 7, attrs={"model_file": "x" * 100_000}))
                say(number + 1)
    except DatasetError as error:
        say(error)


@pytest.mark.parametrize("milliseconds", [0, 3, 7, 12, 20, 31, 45, 60])
def test_kill_9_loses_the_running_episode_at_most(path, milliseconds):
    with Forked(record, path) as process:
        told = [process.line()]
        time.sleep(milliseconds / 1000)
        told += process.kill()
    assert not path.exists()
    count = finish_partial(path)
    assert int(told[-1]) <= count <= int(told[-1]) + 1
    with DatasetFile(path) as file:
        assert file.file_attrs["total"] == 20 * count
        for number, name in enumerate(file.demos()):
            assert file.length(name) == 20
            assert np.all(file.read(name, "obs/k5") == number)


def test_a_full_disk_loses_the_running_episode_only(path):
    with Forked(record, path, 1000, 1_000_000) as process:
        *told, last = process.rest()
    count = int(told[-1])
    assert count >= 3
    assert f"{path}: cannot be written (File too large)" in last
    assert f"the episodes before ({count}) are safe in {path}.partial: make room" in last
    assert not path.exists()
    assert finish_partial(path) == count
    with DatasetFile(path) as file:
        assert np.all(file.read(f"demo_{count - 1}", "obs/k5") == count - 1)


def test_a_disk_that_is_full_from_the_start_leaves_nothing(path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    written(path.with_name("ok.hdf5"))
    writer = DatasetWriter(path, META)
    monkeypatch.setattr("imitate.data.file.journal.write_all", full)
    with refused("No space left on device"):
        writer.append_episode(demo())
    assert [p.name for p in path.parent.iterdir()] == ["ok.hdf5"]


def test_a_killed_writer_is_gone_on_with(path):
    def work(say):
        with DatasetWriter(path, {}, append=True) as writer:
            writer.append_episode(demo())
        writer = DatasetWriter(path, {}, append=True)
        writer.append_episode(demo())
        writer._file.create_group("data/half")
        writer._file.flush()
        die()

    with Forked(work) as process:
        process.rest()
    assert process.code == -signal.SIGKILL
    with DatasetWriter(path, {}, append=True) as writer:
        assert writer.num_episodes == 2
    with DatasetFile(path) as file:
        assert file.demos() == ["demo_0", "demo_1"]
