"""Whatever is wrong with a file, the message names the file, the demo, the key and what to do."""

import fcntl
import re
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile, SequenceDataset, build_datasets, check_dataset
from imitate.data.file.faults import (
    check_bounded,
    check_finite,
    check_length,
    check_modality,
    is_channel_first,
    odd_lengths,
)
from imitate.data.quality.doctor.diagnosis import diagnose
from imitate.errors import DatasetError, UserError
from tests.demo_files import data_config, episode, write_demos
from tests.refusals import refused

KEYS = ("robot0_eef_pos", "object")


def edit(path, change):
    with h5py.File(path, "a") as file:
        change(file)


def replace(key, make):
    """A change: array ``key`` becomes ``make(array)``."""

    def change(file):
        value = make(file[key][()])
        del file[key]
        file[key] = value

    return change


def cut(key, kept):
    return replace(f"data/{key}", lambda array: array[kept])


def put(key, at, value):
    def change(file):
        file[f"data/{key}"][at] = value

    return change


def put_number(of_step):
    """A change: the first number of an observation is written in float64 by a function of the step."""

    def make(array):
        wide = array.astype(np.float64)
        wide[:, 0] = of_step(np.arange(len(array)))
        return wide

    return replace("data/demo_1/obs/object", make)


def remove(key):
    return lambda file: file.pop(key)


def samples(number):
    return lambda file: file["data/demo_1"].attrs.update(num_samples=number)


OF_FLOAT32 = {"too large for float32", "clock times", "a counter"}
"""Faults of reading, not of the file: the check accepts them, training does not."""

# Each: what is changed in a good file, what the message has to say.
FAULTS = {
    "no group data": (lambda file: file.move("data", "demos"), "no group 'data'|found: demos|DatasetWriter"),
    "many groups": (
        lambda file: [file.move("data", "a"), *map(file.create_group, "bcdef")],
        "found: a, b, c, d and 2 more",
    ),
    "no demo": (lambda file: [file.pop(f"data/demo_{i}") for i in range(4)], "no demo under 'data'|collect"),
    "no actions": (remove("data/demo_2/actions"), "'demo_2'|no 'actions'|remove the demo"),
    "no step": (cut("demo_2/actions", slice(0)), "'demo_2'|'actions'|no step|remove the demo"),
    "num_samples wrong": (samples(11), "'demo_1'|'num_samples' is 11|12 steps|correct the attribute"),
    "observations too short": (
        cut("demo_1/obs/object", slice(-1)), "'demo_1'|'obs/object' has 11 steps|'actions' has 12|same length"
    ),
    "rewards too short": (cut("demo_3/rewards", slice(-1)), "'demo_3'|'rewards'|11|12|same length"),
    "NaN in actions": (put("demo_1/actions", (4, 2), np.nan), "'demo_1'|'actions' is nan at step 4|filter key"),
    "inf in actions": (put("demo_1/actions", (4, 2), -np.inf), "'demo_1'|'actions' is -inf at step 4|filter key"),
    "NaN in observations": (put("demo_2/obs/object", (0, 9), np.nan), "'demo_2'|'obs/object' is nan at step 0|filter"),
    "inf in rewards": (put("demo_2/rewards", 3, np.inf), "'demo_2'|'rewards' is inf at step 3|correct the value"),
    "too large for float32": (
        put("demo_2/obs/object", (0, 0), 1e300), "'demo_2'|'obs/object' is inf at step 0|correct the value"
    ),
    "clock times": (put_number(lambda t: 1.7e9 + 0.05 * t), "'demo_1'|number 0 of 'obs/object' is float64|offset"),
    "a counter": (put_number(lambda t: 2**40 + t), "'demo_1'|number 0 of 'obs/object'|changes are lost"),
    "actions outside [-1, 1]": (
        put("demo_3/actions", (7, 0), 1.5),
        "'demo_3'|'actions' is 1.5 at step 7|outside [-1, 1]|train.action_config.actions.normalization=min_max|rescale",
    ),
    "observation that some demos lack": (remove("data/demo_3/obs/object"), "'demo_3'|'obs/object'|filter key"),
    "no observations": (remove("data/demo_0/obs"), "'demo_0'|'obs/|correct the key"),
    "observation of another size": (
        cut("demo_3/obs/object", np.s_[:, :9]), "'demo_3'|'obs/object'|(9,)|(10,)|both the same shape"
    ),
    "observations that are text": (
        replace("data/demo_0/obs/object", lambda a: np.full(12, b"text")), "'demo_0'|'obs/object'|not numbers"
    ),
    "env_args not JSON": (lambda file: file["data"].attrs.update(env_args="{"), "'env_args'|JSON|env_name"),
}  # fmt: skip


def in_training_of(path, keys, **train):
    return data_config(path, keys, **{"hdf5_cache_mode": "all", **train})


def in_training(path, **train):
    return in_training_of(path, KEYS, **train)


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - OF_FLOAT32))
def test_the_check_names_the_fault(demo_file, fault):
    change, words = FAULTS[fault]
    path = demo_file(next_obs=False)
    edit(path, change)
    before = path.read_bytes()
    with refused(words, path):
        check_dataset(path, modalities=dict.fromkeys(KEYS, "low_dim"))
    assert path.read_bytes() == before


def test_images_with_the_channels_first_are_refused_in_training_too(demo_file):
    path = demo_file(image=True, next_obs=False)
    for demo in range(4):
        turned = replace(f"data/demo_{demo}/obs/agentview_image", lambda a: np.moveaxis(a, 3, 1))
        edit(path, turned)
    config = data_config(path, KEYS, rgb=["agentview_image"])
    with refused("'demo_0'|channels first|--only image_layout", path):
        build_datasets(config)


@pytest.mark.parametrize(
    ("steps", "names"), [([12] * 6, None), ([12, 12, 2, 12, 1, 12], "demo_2 .2 steps., demo_4")]
)
def test_very_short_demos_are_a_line_of_the_training_as_of_the_doctor(tmp_path, steps, names):
    made = [episode(count, {"pos": np.zeros((count, 2))}, end="timeout") for count in steps]
    path = write_demos(tmp_path / "a.hdf5", made)
    said = "\n".join(build_datasets(in_training_of(path, ["pos"]))[0].storage_words)
    found = [finding for finding in diagnose(path).findings if finding.code == "short_demos"]
    assert len(found) == (names is not None)
    assert ("very short" in said) == (names is not None)
    assert names is None or re.search(names, said)


@pytest.mark.parametrize("fault", sorted(OF_FLOAT32))
def test_the_check_accepts_what_float32_does_not_hold(demo_file, fault):
    path = demo_file(next_obs=False)
    edit(path, FAULTS[fault][0])
    check_dataset(path, modalities=dict.fromkeys(KEYS, "low_dim"))


@pytest.mark.parametrize("of_step", [lambda t: 9000 + 0.5 * t, lambda t: 2**40 + 0 * t])
def test_large_numbers_that_float32_tells_apart_or_that_do_not_change_are_read(demo_file, of_step):
    path = demo_file(next_obs=False)
    edit(path, put_number(of_step))
    build_datasets(in_training(path))


@pytest.mark.parametrize("cache_mode", ["all", "low_dim", None])
@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"env_args not JSON"}))
def test_training_is_refused(demo_file, fault, cache_mode):
    change, words = FAULTS[fault]
    path = demo_file(next_obs=False)
    edit(path, change)
    with refused(words, path):
        build_datasets(in_training(path, hdf5_cache_mode=cache_mode))


def test_the_check_looks_at_every_mask_and_at_next_observations(demo_file):
    path = demo_file(filter_keys={"train": [0, 1], "stale": [0]})
    check_dataset(path)
    edit(path, replace("mask/stale", lambda names: np.array([b"demo_9"])))
    with refused("'stale'|'demo_9'|remove the name", path):
        check_dataset(path)
    edit(path, remove("mask/stale"))
    edit(path, put("demo_3/next_obs/object", (2, 0), np.nan))
    with refused("'demo_3'|'next_obs/object' is nan at step 2", path):
        check_dataset(path)
    check_dataset(path, filter_key="train")


def test_a_good_file_passes(demo_file):
    path = demo_file(image=True, filter_keys={"train": [0]})
    check_dataset(path)
    modalities = {"object": "low_dim", "agentview_image": "rgb"}
    check_dataset(path, filter_key="train", modalities=modalities)


@pytest.mark.parametrize("normalization", ["min_max", "gaussian"])
def test_actions_of_any_size_train_with_normalization(demo_file, normalization):
    path = demo_file(action_scale=30.0)
    config = in_training(path, action_config={"actions": {"normalization": normalization}})
    train_set, _ = build_datasets(config)
    assert train_set.statistics()["actions"]["actions"].max.max() > 20
    check_dataset(path, bounded_actions=False)


def test_actions_at_the_limit_are_inside(demo_file):
    path = demo_file()
    edit(path, put("demo_0/actions", (0, 0), 1.000001))
    build_datasets(in_training(path))


# ---- files that are none -------------------------------------------------------------------------


def test_a_file_that_is_not_there_or_a_folder(tmp_path):
    for read in (DatasetFile, check_dataset, lambda p: SequenceDataset(p, KEYS)):
        with refused("no such file|correct the path", tmp_path / "none.hdf5"):
            read(tmp_path / "none.hdf5")
    with refused("none.hdf5|collect or download", error=UserError):
        build_datasets(in_training(tmp_path / "none.hdf5"))
    with refused("is a folder"):
        DatasetFile(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x89HDF", b"not an HDF5 file at all", bytes(5000)])
def test_not_an_hdf5_file(tmp_path, content):
    path = tmp_path / "a.hdf5"
    path.write_bytes(content)
    with refused("not an HDF5 file|.hdf5", path):
        SequenceDataset(path, KEYS)


def test_a_file_that_another_program_has_open_for_writing_is_not_called_damaged(demo_file):
    path = demo_file()
    with path.open("rb") as held:  # HDF5 locks by flock
        fcntl.flock(held, fcntl.LOCK_EX)
        with refused("another process is changing it", path):
            SequenceDataset(path, KEYS)


@pytest.mark.parametrize("kept", [0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999, 0.99999])
def test_a_file_cut_short(demo_file, kept):
    path = demo_file()
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with refused("cut short or damaged|copy or collect it again", path):
        SequenceDataset(path, KEYS)


@pytest.mark.parametrize("seed", range(25))
def test_a_file_with_foreign_bytes_is_read_or_refused_in_words(demo_file, seed):
    path = demo_file(num_demos=2, length=3)
    content = bytearray(path.read_bytes())
    random = np.random.default_rng(seed)
    start = int(random.integers(8, len(content) - 600))
    content[start : start + 600] = random.bytes(600)
    path.write_bytes(content)
    try:
        check_dataset(path)
    except DatasetError as error:
        assert str(path) in str(error)


# ---- keys and modalities -------------------------------------------------------------------------

IMAGE, VECTOR = "'obs/agentview_image'|(8, 6, 3)", "'demo_0'|'obs/object'|(10,)"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"obs_keys": ("objct",)}, "'demo_0'|'obs/objct'|did you mean 'object'"),
        ({"action_keys": ("action",)}, "'demo_0'|'action'|did you mean 'actions'"),
        ({"dataset_keys": ("reward",)}, "'demo_0'|'reward'|did you mean 'rewards'"),
        ({"filter_by_attribute": "tran"}, "'tran'|did you mean 'train'"),
        ({"filter_by_attribute": "empty"}, "'empty'|selects no demo|another filter key"),
        ({"filter_by_attribute": "stale"}, "'stale'|'demo_9'|remove the name"),
        ({"action_keys": ("obs/agentview_image",)}, f"{IMAGE}|one vector per step"),
        ({"obs_keys": ("mixed",)}, "'demo_2'|'obs/mixed'|float32|uint8|both with the same type"),
    ],
)
def test_wrong_names_come_with_the_nearest_one(demo_file, arguments, words):
    path = demo_file(filter_keys={"train": [0, 1], "empty": [], "stale": [0]}, image=True)
    edit(path, replace("mask/stale", lambda names: np.array([b"demo_9"])))
    for number in range(4):
        frames = np.zeros((12, 8, 6, 3), np.float32 if number == 2 else np.uint8)
        edit(
            path,
            lambda file, n=number, f=frames: file.create_dataset(
                f"data/demo_{n}/obs/mixed", data=f
            ),
        )
    with refused(words, path):
        SequenceDataset(path, **{"obs_keys": KEYS, **arguments})


def test_where_there_are_no_filter_keys_the_command_that_writes_them_is_named(demo_file):
    path = demo_file()
    with refused(
        f"'train'|make the filter keys train and valid with: imitate dataset split {path} --in-place",
        path,
    ):
        SequenceDataset(path, obs_keys=KEYS, filter_by_attribute="train")


def test_a_wrong_modality_is_told_with_the_right_one(demo_file):
    path = demo_file(image=True)
    words = f"'demo_0'|{IMAGE}|declared low_dim|observation.modalities.obs.rgb"
    with refused(words, path):
        build_datasets(data_config(path, ["object", "agentview_image"]))
    with refused(words, path):
        check_dataset(path, modalities={"agentview_image": "low_dim"})
    with refused(f"{VECTOR}|declared rgb|low_dim", path):
        check_dataset(path, modalities={"object": "rgb"})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([[1.0], [-1.0]], None),
        ([[0.5], [-1.1]], "'actions' is -1.1 at step 6, outside [-1, 1]"),
        ([[1.00001], [-1.00001]], None),
        ([[1.00002], [0.5]], "'actions' is 1.00002 at step 5, outside [-1, 1]"),
        ([[0.5], [-1.00002]], "'actions' is -1.00002 at step 6, outside"),
        (np.ones((2, 1), np.uint8), None),
        (np.ones((2, 1), bool), None),
        (np.array([[-128], [0]], np.int8), "'actions' is -128 at step 5"),
        (np.zeros((0, 1)), None),
    ],
)
def test_the_limits_of_actions_of_every_type(tmp_path, values, words):
    """Some types have no negative of their numbers: that of 1 is 255, that of -128 is -128."""
    file = SimpleNamespace(path=tmp_path / "a.hdf5")
    if words is None:
        check_bounded(np.asarray(values), file, "demo_0", "actions", 5)
        return
    with refused(words):
        check_bounded(np.asarray(values), file, "demo_0", "actions", 5)


@pytest.mark.parametrize(
    ("lengths", "short", "long"),
    [
        ([100, 100, 100, 1], [], []),  # too few to compare
        ([100, 100, 100, 100, 1], [4], []),
        ([24, 26, 100, 100, 100, 299, 301], [], []),  # as uneven as most
        ([*[100] * 9, 24, 26, 299, 301], [9], [12]),
        ([*[16] * 9, 4, 48], [], []),  # just a quarter, and three times
        ([50, 50, 100, 100, 200, 200, 47_000], [], []),  # six times the usual spread, 476
        ([50, 50, 100, 100, 200, 200, 48_000], [], [6]),
    ],
)
def test_lengths_that_differ_from_the_others(lengths, short, long):
    assert odd_lengths(lengths) == {"short": short, "long": long}


@pytest.mark.parametrize(
    ("step", "first"),
    [
        *(((3, 8, 8), True), ((1, 8, 8), True), ((4, 8, 5), True), ((8, 8, 3), False)),
        *(((3, 8, 3), False), ((2, 8, 8), False), ((3, 8), False), ((3, 8, 8, 8), False)),
    ],
)
def test_shapes_with_channels_first(step, first):
    assert is_channel_first(step) is first


def form(step, dtype=np.float32, length=2, said=None):
    """A file whose demo has one array."""
    attrs = {} if said is None else {"num_samples": said}
    return SimpleNamespace(
        path="F",
        shape=lambda demo, key: (length, *step),
        dtype=lambda demo, key: np.dtype(dtype),
        length=lambda demo: length,
        attrs=lambda demo, names: attrs,
    )


@pytest.mark.parametrize(
    ("step", "dtype", "modality", "words"),
    [
        ((4, 4), "f4", "low_dim", None),
        ((4,), "u1", "low_dim", None),
        ((4, 4), "u1", "low_dim", "'obs/k' is an image (shape (4, 4), uint8) but declared low_dim"),
        ((4, 4, 2), "f4", "low_dim", "'obs/k' is an image (shape (4, 4, 2), float32) but"),
        ((4, 4), "u1", "scan", None),
        ((4, 4), "u1", "rgb", "'obs/k' has shape (4, 4) but is declared rgb, which is (H, W, C)"),
        ((4, 4, 2, 3), "f4", "depth", "'obs/k' has shape (4, 4, 2, 3) but is declared depth"),
        ((3, 8, 8), "u1", "rgb", "images of 'obs/k' are (3, 8, 8), channels first: expected (H, W"),
        ((3, 8, 8), "u1", "scan", None),
        ((8, 8, 1), "f4", "depth", None),
    ],
)
def test_forms_of_modalities(step, dtype, modality, words):
    if words is None:
        check_modality(form(step, dtype), "d", "k", modality)
        return
    with refused(f"F: demo 'd': {words}"):
        check_modality(form(step, dtype), "d", "k", modality)


def test_lengths_and_values():
    assert check_length(form(()), "d") == check_length(form((), said=2), "d") == 2
    with refused("F: demo 'd': attribute 'num_samples' is 3, but 'actions' has 2 steps: correct"):
        check_length(form((), said=3), "d")
    with refused("F: demo 'd': 'actions' has no step: remove the demo"):
        check_length(form((), length=0), "d")
    check_finite(np.array(["nan"]), form(()), "d", "k")
    with refused("F: demo 'd': 'k' is nan at step 1: correct the value"):
        check_finite(np.array([[0, 0], [0, np.nan]]), form(()), "d", "k")
    with refused("'k' is inf at step 7: correct"):
        check_finite(np.array([[0, 0], [0, np.inf]]), form(()), "d", "k", 6)
