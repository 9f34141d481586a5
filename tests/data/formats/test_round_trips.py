"""Every format that is read and written: whatever a demonstration holds comes back equal, with its type."""

from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imitate.data import DatasetFile
from imitate.data.formats.convert import convert
from imitate.errors import DatasetError
from tests.data.formats import samples
from tests.demo_files import assert_equal_contents, contents, episode, write_demos

TARGETS = {"robomimic": "x.hdf5", "diffusion-policy": "x.zarr", "minari": "x-v0", "lerobot": "x"}
DTYPES = ("f2", "f4", "f8", "u1", "i1", "u2", "i4", "i8", "?")
STEPS = ((3,), (1,), (9, 8, 3), (40, 33, 3), (6, 5, 1), (2, 3), (4, 4, 4))

pytestmark = pytest.mark.filterwarnings("ignore:.*is set to None", "ignore:env_spec is None")


def values(random, length, step, dtype):
    if np.dtype(dtype).kind == "f":
        return random.normal(size=(length, *step)).astype(dtype)
    return random.integers(0, 2 if dtype == "?" else 120, (length, *step)).astype(dtype)


def comes_back(folder, name):
    """The file a.hdf5 of a folder, there and back."""
    target = folder / TARGETS[name]
    there = convert(folder / "a.hdf5", target, to_format=name, overwrite=True)
    back = convert(target, folder / "b.hdf5", overwrite=True)
    assert_equal_contents(folder / "a.hdf5", folder / "b.hdf5")
    assert not back.synthesised and not back.dropped
    return there


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/.\x00", exclude_categories=["Cc", "Cs"]),
    min_size=1,
    max_size=8,
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
ATTRS = st.dictionaries(
    NAMES.map(lambda name: f"a {name}"),
    st.one_of(TEXTS, st.integers(-9, 9), st.floats(-1, 1), st.booleans()),
    max_size=3,
)


@pytest.mark.later
@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    seen=st.dictionaries(NAMES, st.tuples(st.sampled_from(STEPS), st.sampled_from(DTYPES)), min_size=1, max_size=4),
    actions=st.sampled_from(DTYPES[:3]),
    link=st.sampled_from(["following", "missing", "stored"]),
    rate=st.sampled_from([20, None, 29.97]),
    attrs=ATTRS,
    masks=st.dictionaries(NAMES, st.booleans(), max_size=2),
)  # fmt: skip
def test_whatever_a_demonstration_holds(
    tmp_path, name, seed, lengths, seen, actions, link, rate, attrs, masks
):
    random = np.random.default_rng(seed)
    demos = []
    for length in lengths:
        obs = {key: values(random, length + 1, *form) for key, form in seen.items()}
        after = {
            key: value[1:] if link == "following" else value[:0:-1] for key, value in obs.items()
        }
        demos.append(
            episode(
                length,
                {key: value[:-1] for key, value in obs.items()},
                values(random, length, (2,), actions),
                next_obs=None if link == "missing" else after,
                rewards=random.normal(size=length),
                terminals=random.integers(0, 2, length),
                timeouts=random.integers(0, 2, length),
                states=random.normal(size=(length, 3)),
                attrs=attrs,
                steps={
                    "extra/größe": values(random, length, (2,), "i2"),
                    "interventions": random.integers(0, 2, length),
                },
            )
        )
    masks = {key: [0] if holds else [] for key, holds in masks.items()}
    options = {"strict": False, "control_freq": rate}
    write_demos(tmp_path / "a.hdf5", demos, filter_keys=masks, **options)
    comes_back(tmp_path, name)


@pytest.mark.parametrize("name", TARGETS)
def test_many_demos_with_gaps_stay_in_their_order(tmp_path, name):
    """Demo 2 before demo 10, names that are not numbers, one step each, an empty filter key and a long text."""
    names = [*(f"demo_{k}" for k in (0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 20, 100)), "ensaio_é"]
    demos = [
        episode(1, {"x": x}, x, "terminal", rewards=[k], attrs={"model_file": "<x/>" * 30_000 * (k == 3)})
        for k, x in enumerate(np.arange(len(names), dtype=np.float32).repeat(2).reshape(-1, 1, 2))
    ]  # fmt: skip
    masks = {"none": [], "last": [12, 13]}
    write_demos(tmp_path / "a.hdf5", demos, filter_keys=masks, names=names, strict=False)
    comes_back(tmp_path, name)
    with DatasetFile(tmp_path / "b.hdf5") as file:
        assert file.demos() == names
        assert file.filter_keys() == {"last": names[-2:], "none": []}
        assert file.read("demo_100", "rewards").tolist() == [12]
    if name == "diffusion-policy":
        root = zarr.open_group(str(tmp_path / TARGETS[name]), mode="r")
        assert root["meta/episode_ends"][:].tolist() == list(range(1, 15))


def described(path):
    """Lines of a demonstration file: types, shapes and numbers of arrays (no pixels), attributes, filter keys."""
    arrays, attrs, masks, whole = contents(path)
    for (demo, key), value in arrays.items():
        numbers = value.ravel().astype(np.float64)
        said = f" {numbers[0]:.4g} {numbers[-1]:.4g} {numbers.sum():.4g}" if value.ndim < 4 else ""
        yield f"{demo} {key} {value.dtype} {value.shape}{said}"
    for owner, found in (*attrs.items(), ("file", whole), ("masks", masks)):
        yield from (f"{owner}: {key} = {str(found[key])[:300]}" for key in sorted(found))


@pytest.mark.parametrize("name", samples.MAKERS)
def test_what_each_format_becomes(tmp_path, monkeypatch, name):
    """Where a change is meant, look at the new lines and copy them over those that are kept."""
    _, place, make = samples.MAKERS[name]
    monkeypatch.chdir(tmp_path)
    make(Path(place))
    try:
        lines = [*convert(place, "o.hdf5").lines(), *described("o.hdf5"), ""]
    except DatasetError as error:  # recordings that are to be played back first
        lines = [str(error), ""]
    Path("new.txt").write_text("\n".join(lines))
    kept = samples.FIXTURES / "converted" / f"{name.replace(', ', '_').replace(' ', '_')}.txt"
    assert Path("new.txt").read_text() == kept.read_text(), f"{tmp_path}/new.txt is not as {kept}"
