"""Filter keys and the named environment: exact masks, limits of a split, and files that differ in nothing else."""

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.edit import small_changes as module
from imitate.data.edit.selection import Selection
from imitate.data.edit.small_changes import add_filter_key, failures_among, set_env_args, split
from imitate.data.edit.target import Target
from imitate.data.file.outcomes import outcomes
from tests.demo_files import ENV_META, episode, write_demos
from tests.refusals import refused


@pytest.fixture
def path(tmp_path):
    """Eleven demos of one step; demos 0, 2, 4 ... are solved; the mask ``few`` has demos 8 to 10."""
    demos = [episode(1, {"s": np.zeros((1, 1))}, attrs={"success": n % 2 == 0}) for n in range(11)]
    return write_demos(tmp_path / "a.hdf5", demos, filter_keys={"few": [8, 9, 10], "one": [3]})


def demos(*numbers):
    return [f"demo_{number}" for number in numbers]


@pytest.mark.parametrize(
    ("words", "names", "valid"),
    [
        ({"ratio": 0.2}, range(11), 2),
        ({"ratio": 0.25}, range(11), 3),  # 2.75
        ({"ratio": 0.01}, range(11), 1),
        ({"ratio": 0.99, "seed": 5}, range(11), 10),
        ({"ratio": 0.3, "success": True}, range(0, 11, 2), 2),
        ({"ratio": 0.2, "success": False}, range(1, 11, 2), 1),
        ({"ratio": 0.5, "filter_key": "few"}, range(8, 11), 2),  # 1.5 is rounded to an even number
    ],
)
def test_splits(path, words, names, valid):
    order = np.random.default_rng(words.get("seed", 0)).permutation(len(names))
    chosen = sorted(names[i] for i in order[:valid])
    prefix = "few_" if "filter_key" in words else ""
    masks = {
        f"{prefix}train": demos(*(n for n in names if n not in chosen)),
        f"{prefix}valid": demos(*chosen),
    }
    assert split(path, Target(None, path), **words) == masks
    with DatasetFile(path) as file:
        assert file.filter_keys() == {"few": demos(8, 9, 10), "one": demos(3), **masks}


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ({"ratio": 0.0}, "ratio is 0: expected a number between 0 and 1"),
        ({"ratio": 1.0}, "ratio is 1: expected"),
        ({"ratio": 0.5, "filter_key": "one"}, "1 demo cannot be split: two are needed"),
    ],
)
def test_refused_splits(path, words, refusal):
    with refused(f"{path}: {refusal}"):
        split(path, Target(None, path), **words)


def test_masks_are_replaced_only_with_overwrite(path):
    target = Target(None, path)
    assert add_filter_key(path, target, "early", Selection(first=3)) == demos(0, 1, 2)
    add_filter_key(path, target, "early", Selection(first=3))  # equal
    words = (
        "there are filter keys of this name already (early 3 demos), and this would write early 2"
    )
    with refused(f"{path}: {words}"):
        add_filter_key(path, target, "early", Selection(first=2))
    add_filter_key(path, target, "early", Selection(first=2), overwrite=True)
    with DatasetFile(path) as file:
        assert file.filter_keys()["early"] == demos(0, 1)
    split(path, target, ratio=0.2)
    split(path, target, ratio=0.2)
    with refused("already (train 9, valid 2 demos), and this would write train 10, valid 1"):
        split(path, target, ratio=0.1)
    split(path, target, ratio=0.1, overwrite=True)


@pytest.mark.parametrize("name", ["", ".", "a/b"])
def test_names_that_no_filter_key_may_have(path, name):
    with refused(f"'{name}' is not a valid name"):
        add_filter_key(path, Target(None, path), name, Selection())


def test_an_empty_selection_and_links_to_other_files(path, tmp_path):
    with refused("no demo fulfils the conditions: the filter key 'long' would be empty"):
        add_filter_key(path, Target(None, path), "long", Selection(min_length=2))
    assert failures_among(path, demos(0, 1, 3, 4)) == 2
    (tmp_path / "other.hdf5").write_bytes(path.read_bytes())
    with h5py.File(path, "a") as file:
        file["data/link"] = h5py.ExternalLink("other.hdf5", "data/demo_0")
    for change in (
        lambda: add_filter_key(path, Target(None, path), "a", Selection()),
        lambda: set_env_args(path, Target(None, path), {"env_name": "B", "type": 2}, print),
    ):
        with refused("link"):
            change()


def test_the_environment_is_changed_and_nothing_else(path, tmp_path, monkeypatch):
    assert module.MB == 10**6
    monkeypatch.setattr(module, "MB", 1000)
    monkeypatch.setattr(module, "PIECE_BYTES", 3000)
    seen, out = [], tmp_path / "b.hdf5"
    size, meta = path.stat().st_size, {"env_name": "B", "type": 2, "env_kwargs": {}}
    put = set_env_args(path, Target(out), meta, lambda *mb: seen.append(mb))
    assert put == ENV_META
    ends = [min(3000 * n, size) // 1000 for n in range(1, 1 + -(-size // 3000))]
    assert seen == [(end, size // 1000) for end in ends]
    with DatasetFile(out) as file, DatasetFile(path) as old:
        assert file.env_meta == meta and old.env_meta == ENV_META
        assert file.filter_keys() == old.filter_keys()
    with h5py.File(out) as file:
        assert file["data"].attrs["env_args"].startswith('{\n    "env_name": "B"')
    for key in ("env_name", "type"):
        with refused(f"env_args need '{key}': give it with --env or --type"):
            set_env_args(path, Target(None, path), {**meta, key: None}, print)
    set_env_args(path, Target(None, path), {**meta, "type": 0}, print)


@pytest.mark.parametrize(
    ("success", "rewards", "said"),
    [
        ((True, False), ([0, 0], [1, 0]), [True, False]),
        ((None, None), ([0, 1, 0], [0, 0]), [True, False]),
        ((None, False), ([0, 1, 0], [0, 1]), [True, False]),
        ((None, None), ([0, 0], [0, 0]), [None, None]),  # nothing was recorded
        ((None, None), ([0, 0.5], [0, 1]), [None, None]),  # rewards of another kind
        ((None, True), ([0, 2], [0, 1]), [None, True]),
        ((None, None), ([1], None), [None, None]),
    ],
)
def test_outcomes(tmp_path, success, rewards, said):
    parts = []
    for word, values in zip(success, rewards, strict=True):
        length = 1 if values is None else len(values)
        more = {} if values is None else {"rewards": values}
        attrs = {} if word is None else {"success": word}
        parts.append(episode(length, {"s": np.zeros((length, 1))}, attrs=attrs, **more))
    path = write_demos(tmp_path / "a.hdf5", parts)
    if rewards[1] is None:
        with h5py.File(path, "a") as file:
            del file["data/demo_1/rewards"]
    with DatasetFile(path) as file:
        assert list(outcomes(file, file.demos()).values()) == said
