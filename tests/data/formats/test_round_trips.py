"""Every format that is read and written: whatever a demonstration holds comes back equal, with its type."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imitate.data import DatasetFile, DatasetWriter, Episode
from imitate.data.formats.convert import convert

TARGETS = {"robomimic": "x.hdf5", "diffusion-policy": "x.zarr", "minari": "x-v0", "lerobot": "x"}
ENV = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": "Panda"}}
DTYPES = (
    np.float16,
    np.float32,
    np.float64,
    np.uint8,
    np.int8,
    np.uint16,
    np.int32,
    np.int64,
    bool,
)
STEPS = ((3,), (1,), (9, 8, 3), (40, 33, 3), (6, 5, 1), (2, 3), (4, 4, 4))

pytestmark = pytest.mark.filterwarnings("ignore:.*is set to None", "ignore:env_spec is None")


def values(random, length, step, dtype):
    if np.dtype(dtype).kind == "f":
        return random.normal(size=(length, *step)).astype(dtype)
    return random.integers(0, 2 if dtype is bool else 120, (length, *step)).astype(dtype)


def everything(path):
    with DatasetFile(path) as file:
        found = [(demo, key) for demo in file.demos() for key in file.keys(demo)]  # noqa: SIM118
        arrays = {place: file.read(*place) for place in found}
        attrs = {demo: file.attrs(demo) for demo in file.demos()}
        return arrays, attrs, file.filter_keys(), file.file_attrs


def comes_back(folder, name):
    """The file a.hdf5 of a folder, there and back."""
    target = folder / TARGETS[name]
    convert(folder / "a.hdf5", target, to_format=name, overwrite=True)
    convert(target, folder / "b.hdf5", overwrite=True)
    before, after = everything(folder / "a.hdf5"), everything(folder / "b.hdf5")
    assert list(before[0]) == list(after[0])
    for place, value in before[0].items():
        np.testing.assert_array_equal(after[0][place], value, err_msg=str(place))
        assert after[0][place].dtype == value.dtype, place
    assert before[1:] == after[1:]


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/.\x00", exclude_categories=["Cc", "Cs"]),
    min_size=1,
    max_size=8,
)
ATTRS = st.dictionaries(
    NAMES.map(lambda name: f"a {name}"),
    st.one_of(
        st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20),
        st.integers(-9, 9),
        st.floats(-1, 1),
        st.booleans(),
    ),
    max_size=3,
)


@pytest.mark.parametrize("name", TARGETS)
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    seen=st.dictionaries(NAMES, st.tuples(st.sampled_from(STEPS), st.sampled_from(DTYPES)), min_size=1, max_size=4),
    actions=st.sampled_from(DTYPES[:3]),
    following=st.booleans(),
    attrs=ATTRS,
    masks=st.dictionaries(NAMES, st.booleans(), max_size=2),
)  # fmt: skip
def test_whatever_a_demonstration_holds(
    tmp_path, name, seed, lengths, seen, actions, following, attrs, masks
):
    random = np.random.default_rng(seed)
    with DatasetWriter(
        tmp_path / "a.hdf5", ENV, overwrite=True, control_freq=20, strict=False
    ) as writer:
        for length in lengths:
            obs = {key: values(random, length, *form) for key, form in seen.items()}
            writer.append_episode(
                Episode(
                    obs=obs,
                    next_obs={key: value[::-1] for key, value in obs.items()}
                    if following
                    else None,
                    actions=values(random, length, (2,), actions),
                    rewards=random.normal(size=length),
                    terminals=random.integers(0, 2, length),
                    timeouts=random.integers(0, 2, length),
                    attrs=attrs,
                    steps={"extra/größe": values(random, length, (2,), np.int16)},
                )
            )
        for key, holds in masks.items():
            writer.add_filter_key(key, ["demo_0"] if holds else [])
    comes_back(tmp_path, name)


@pytest.mark.parametrize("name", TARGETS)
def test_many_demos_with_gaps_stay_in_their_order(tmp_path, name):
    """Demo 2 before demo 10, names that are no numbers, one step each, and an empty filter key."""
    numbers = [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 20, 100]
    names = [*(f"demo_{number}" for number in numbers), "ensaio_é"]
    with DatasetWriter(tmp_path / "a.hdf5", ENV, strict=False) as writer:
        for number, demo in enumerate(names):
            writer.append_episode(
                Episode(
                    obs={"x": np.full((1, 2), number, np.float32)},
                    actions=np.full((1, 2), number, np.float32),
                    rewards=[number],
                    terminals=[True],
                    timeouts=[False],
                ),
                demo,
            )
        writer.add_filter_key("none", [])
        writer.add_filter_key("last", names[-2:])
    comes_back(tmp_path, name)
    with DatasetFile(tmp_path / "b.hdf5") as file:
        assert file.demos() == names
        assert file.filter_keys() == {"last": names[-2:], "none": []}
        assert file.read("demo_100", "rewards").tolist() == [12]
